"""The merge: what is new in a change log, folded into current-state tables, then published as one cut.

    log       ──cut 41──segment──cut 52──segment──cut 60──▶       newest sealed cut: 60
    orders    at 52   ─────────── (52, 60] ──▶ one commit with (log, orders) = 60
    products  at 60   (a run before this one got that far, then died): nothing to do
    cuts      41 published ───────────────────▶ 60 published, last

Where a table stands is read from the table: its newest commit of ours names the cut, in the same atomic commit as the
rows. So a run that dies anywhere is finished by the next one, a range is never applied twice, and a log that is older
than the table, or another, is refused.

Which engine does it is said table by table: `Engines` names the one that is asked first, and the one that takes what
the first declines.
"""

from __future__ import annotations

import contextlib
import functools
import json
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, TypeVar

import structlog

from cdcflow.changelog import notes
from cdcflow.changelog.layout import Layout as LogLayout
from cdcflow.errors import CdcflowError, ConfigurationError, HistoryLost, InvariantViolated, SinkUnavailable
from cdcflow.merge import statement
from cdcflow.merge.evolution import CannotFollow, Evolution, Target, evolve, rebuilt, seen
from cdcflow.merge.reduce import Layout
from cdcflow.merge.standing import Backfill
from cdcflow.model.position import Checkpoint
from cdcflow.model.table import Table, TableId
from cdcflow.warehouse import changes
from cdcflow.warehouse.cut import Cut, CutTable
from cdcflow.warehouse.paths import Warehouse, table_at, table_path
from cdcflow.warehouse.port import CurrentTable, Engine, HandOver, Snapshot
from cdcflow.warehouse.segments import InputFile, OlderNeeded, Range, backfills, offsets_of, sealed, shapes_of

OnEdit = Literal["warn", "stop"]

CONFLICTS_MAX = 5
"""A table that somebody else commits to (OPTIMIZE, a retention job) is merged again so often."""

TABLES_AT_ONCE = 3
"""Much of a small merge is planning and commits on the driver, one thread's work: three tables keep two cores busy."""


@dataclass(frozen=True, slots=True)
class Progress:
    """A table that a merge begins with: the `number`th of `tables`, in the `step`th range of cuts."""

    table: str
    number: int
    tables: int
    step: int = 1


Watch = Callable[[Progress], None]
"""Called as a merge goes on, from several threads at once."""


def unwatched(progress: Progress) -> None:
    """For a merge that nobody looks at."""


_log = structlog.get_logger()
_Answer = TypeVar("_Answer")


@dataclass(frozen=True, slots=True)
class TableReport:
    """One table of a merge. `changes` counts rows read from the log; 0 with `version` unchanged: nothing was new.
    `edits`: what someone else did to the table's rows since the last published cut. `complete`: every row is there;
    `state` is what the log says of its backfill. `left_out`: why the table is not in the cut; None: it is.
    `engine`: what merged it ("": there was nothing to merge)."""

    name: str
    changes: int
    version: int
    complete: bool
    seconds: float
    edits: tuple[str, ...] = ()
    state: str = ""
    left_out: str | None = None
    engine: str = ""


@dataclass(frozen=True, slots=True)
class MergeReport:
    """What a merge did. `cut` 0: the log has no sealed segment yet. `published`: this run published the cut."""

    cut: int
    offset: int
    published: bool
    seconds: float
    tables: tuple[TableReport, ...]


class Engines:
    """The engine that is asked first, and the one that takes what the first declines; it is begun when it is needed."""

    def __init__(self, first: Engine, other: Callable[[], Engine] | None = None, remedy: str | None = None) -> None:
        """`remedy`: what somebody can do to whom there is no other."""
        self.first = first
        self._begin = other
        self._remedy = remedy
        self._begun: Engine | None = None
        self._lock = threading.Lock()

    def other(self, table: TableId, reason: str) -> Engine:
        """The engine that takes a table which the first one declines.

        Raises:
            CannotFollow: there is none.
        """
        if self._begin is None:
            raise CannotFollow(f"merging into {table}: {reason}", remedy=self._remedy)
        with self._lock:
            if self._begun is None:
                self._begun = self._begin()
            _log.info("table handed over", table=str(table), to=self._begun.name, reason=reason)
            return self._begun


def merge(
    engines: Engines,
    log: LogLayout | Path | str,
    warehouse: Warehouse | Path | str,
    tables: Collection[str] | None = None,
    *,
    on_edit: OnEdit = "warn",
    newest: Checkpoint | None = None,
    origin: Mapping[str, object] | None = None,
    watch: Watch = unwatched,
) -> MergeReport:
    """Bring every current-state table to the newest sealed cut of the log, then publish the cut.

    `engines` work in this warehouse (see `cdcflow.spark.job.merge` and `cdcflow.local.merge`, which name them).
    `log`: its directory, or its layout where segments lie in an object store; what has to be fetched from there is
    merged in several steps, so that the local disk holds little of it at one time. `tables`: only these, by name
    (`schema.name`); the cut is then published only if no other table has changes up to it. `on_edit`: what to do when
    somebody else changed a table's rows (hard case G36).
    Where the directory is the history of a log in Kafka, `newest` is that log's newest checkpoint, and `origin` the
    place in its topic where the history ends, which each table's commit then tells (see `cdcflow.spark.kafka`).

    A table that cannot follow its source, or for which the log no longer has what it needs, is left out of the cut, and
    its report says why; the others go on.

    Raises:
        SinkUnavailable: another merge works in this warehouse, or somebody changed a table again and again meanwhile;
            try again later.
        ConfigurationError: the tables belong to another log or are ahead of this one, the warehouse is a URL, no table
            at all can follow its source, or no engine can do it; the message says what to do.
        HistoryLost: the log no longer has what any table needs.
        InvariantViolated: a row of a table whose backfill is done misses columns.
    """
    with engines.first.lease():
        given = (engines, LogLayout.of(log), Warehouse.of(warehouse), tables, on_edit, newest, origin or {}, watch)
        try:
            return _merge(*given, recent=True)
        except OlderNeeded:
            return _merge(*given, recent=False)


def _merge(
    engines: Engines,
    log: LogLayout,
    place: Warehouse,
    tables: Collection[str] | None,
    on_edit: OnEdit,
    newest: Checkpoint | None,
    origin: Mapping[str, object],
    watch: Watch,
    *,
    recent: bool,
) -> MergeReport:
    """`recent`: only segments that came since the published cut are listed, where all would cost more. OlderNeeded:
    that is not enough; what was committed by then is committed."""
    began = time.monotonic()
    cuts = engines.first.cuts()
    before = cuts.newest()
    whole = sealed(log, 0 if before is None else before.offset, recent=recent)
    if whole.newest is None:
        return MergeReport(0, 0, False, time.monotonic() - began, ())
    reports: dict[str, TableReport] = {}
    published = False
    steps = [whole] if engines.first.reads_in_place else whole.steps(0 if before is None else before.cut)
    for number, step in enumerate(steps, 1):
        told = functools.partial(_tell_step, watch, number)
        run = _Run(engines, step, place, on_edit, whole, newest, origin, before, told)
        found = run.tables(_known(tables, step, whole, before))
        new = run.cut(found)
        if new is not None:
            run.pin(new)
            cuts.publish(new)
            _log.info("cut published", cut=new.cut, tables=len(new.tables))
            before, published = new, True
        reports |= {r.name: _both(reports.get(r.name), r) for r in found}
    if before is not None and log.is_home:
        _note(log, place, before)
    last = whole.newest
    ordered = tuple(reports[name] for name in sorted(reports))
    return MergeReport(last.last_cut, last.last_offset, published, time.monotonic() - began, ordered)


def _note(log: LogLayout, warehouse: Warehouse, cut: Cut) -> None:
    """Tell the log's retention what this warehouse does not need any more. What is left out may go back further."""
    name = notes.warehouse_name(warehouse.folder if warehouse.is_local else str(warehouse))
    known = notes.read(log, "merge", name)
    held = tuple(sorted(cut.left_out))
    offset = (0 if known is None else known.offset) if held else cut.offset
    with contextlib.suppress(OSError):  # without a note nothing expires, and retention says so
        notes.write(log, notes.Note("merge", name, offset, held))


def _tell_step(watch: Watch, step: int, progress: Progress) -> None:
    watch(replace(progress, step=step))


def _known(tables: Collection[str] | None, step: Range, whole: Range, before: Cut | None) -> Collection[str] | None:
    """Of the wanted tables those that have rows as early as this step."""
    if tables is None or step.segments == whole.segments:
        return tables
    known = step.tables(before)
    return [name for name in tables if name in known]


def _both(before: TableReport | None, after: TableReport) -> TableReport:
    """One report of a table over several steps."""
    if before is None:
        return after
    return replace(
        after,
        changes=before.changes + after.changes,
        seconds=before.seconds + after.seconds,
        edits=(*before.edits, *after.edits),
    )


class _Run:
    """One merge: the log's newest cut, and what was published before. `log` is what this step merges of `whole`."""

    def __init__(
        self,
        engines: Engines,
        log: Range,
        warehouse: Warehouse,
        on_edit: OnEdit,
        whole: Range,
        newest: Checkpoint | None,
        origin: Mapping[str, object],
        published: Cut | None,
        watch: Watch,
    ) -> None:
        self._watch = watch
        self._engines = engines
        self._log = log
        self._warehouse = warehouse
        self._rules = engines.first.rules
        self._on_edit = on_edit
        self._checkpoint = log.checkpoint
        self._cut = self._checkpoint.cut
        self._whole = whole
        self._last_cut = whole.checkpoint.cut
        self._ahead: set[TableId] = set()
        self._backfills = backfills(log, newest)
        self._newest_backfills = backfills(whole, newest)
        self._there: dict[TableId, Snapshot | None] = {}
        self._ids: dict[TableId, str] = {}
        self._refused: list[CdcflowError] = []
        self._known: Mapping[str, TableId] = {}
        self._chosen: Mapping[TableId, int] = {}
        self._origin = origin
        self._published = published
        self._check_log()

    def _check_log(self) -> None:
        before = self._published
        if before is None:
            return
        if before.log_id != self._log.log_id:
            raise ConfigurationError(
                f"merging {self._log.layout.name} into {self._warehouse}: its tables come from another log "
                f"({before.log_id}, this one is {self._log.log_id})",
                remedy="merge into another warehouse",
                runbook="other-log",
            )
        if before.cut > self._last_cut:
            raise ConfigurationError(
                f"merging {self._log.layout.name} into {self._warehouse}: the log ends at cut {self._last_cut},"
                f" the tables already have cut {before.cut}, so this is an older copy of the log",
                remedy="merge the newest log, or merge into another warehouse",
                runbook="other-log",
            )

    def tables(self, wanted: Collection[str] | None) -> tuple[TableReport, ...]:
        known = self._known = self._log.tables(self._published)
        unknown = sorted(set(wanted or ()) - set(known))
        if unknown:
            raise ConfigurationError(
                f"merging {self._log.layout.name}: it has no rows of table {', '.join(unknown)}",
                remedy=f"name one of: {', '.join(sorted(known))}",
                runbook="table-not-found",
            )
        chosen = [known[n] for n in sorted(known) if wanted is None or n in wanted]
        self._chosen = {table: number for number, table in enumerate(chosen, 1)}
        with ThreadPoolExecutor(TABLES_AT_ONCE) as pool:
            reports = tuple(report for report in pool.map(self._table, chosen) if report is not None)
        if self._refused and all(r.left_out is not None for r in reports):
            raise self._refused[0]
        return reports

    def _table(self, table: TableId) -> TableReport | None:
        engine = self._engines.first
        for _ in range(CONFLICTS_MAX):
            try:
                try:
                    return self._merged(table, engine)
                except HandOver as reason:
                    engine = self._engines.other(table, str(reason))
                    return self._merged(table, engine)
            except (CannotFollow, HistoryLost) as error:
                self._refused.append(error)
                _log.error("table left out of the cut", table=str(table), reason=error.with_section)
                return TableReport(str(table), 0, 0, False, 0.0, left_out=error.with_section)
            except Exception as error:
                if not engine.is_conflict(error):
                    raise
                _log.info("table changed meanwhile, merging it again", table=str(table))
        raise SinkUnavailable(
            f"merging into {table}: somebody else changed the table during each of {CONFLICTS_MAX} tries",
            remedy="nothing is lost; merge again when it is changed less often",
            runbook="busy",
        )

    def _merged(self, table: TableId, engine: Engine) -> TableReport | None:
        with closing(engine.table(table_path(table))) as there:
            return self._merged_into(there, table, engine)

    def _merged_into(self, there: CurrentTable, table: TableId, engine: Engine) -> TableReport | None:
        began = time.monotonic()
        before = self._there[table] = there.snapshot()
        if (before is None or str(table) not in self._backfills) and not self._log.files(table, 0):
            return None  # a cut shows it, and nothing here says more of it: its rows have expired
        start, since = self._start(there, table, before)
        if start > self._cut:
            self._ahead.add(table)  # a merge that died had come further with it than this step goes
        files = self._log.files(table, start, since)
        if files and (reason := engine.declines(before, files)) is not None:
            raise HandOver(reason)
        edits = self._edits(there, table, before)
        work = _TableMerge(self, engine, table, there, before, files, start, since)
        if files:
            self._watch(Progress(str(table), self._chosen[table], len(self._chosen)))
            work.run()
        elif before is not None and table not in self._ahead and work.sweeps:
            work.sweep()
        after = there.snapshot()
        if after is None:
            if since > self._checkpoint.next_offset - 1:
                later = CannotFollow(
                    f"merging into {table}: it begins at offset {since}, after this cut",
                    remedy="run `cdcflow merge` again later: a later cut has it",
                )
                return TableReport(str(table), 0, 0, False, 0.0, left_out=later.with_section)
            raise InvariantViolated(f"merging {table}: {len(files)} files of the log gave no table")
        was = 0 if before is None else before.transactions.get(self._app(table), 0)
        came_to, expected = after.transactions.get(self._app(table), 0), self._cut if files else was
        if came_to != expected and table not in self._ahead:
            raise _overtaken(table, came_to, self._cut)  # what it is now is not what it was at our cut
        self._ids[table] = after.id
        known = self._backfill(table)
        report = TableReport(
            name=str(table),
            changes=sum(f.file.rows for f in files),
            version=after.version,
            complete=known.is_whole(int(after.properties.get(statement.BEGUN_PROPERTY, "0"))),
            seconds=time.monotonic() - began,
            edits=tuple(edits),
            state=known.state,
            engine=engine.name if files else "",
        )
        if report.changes:
            seconds = round(report.seconds, 2)
            _log.info("table merged", table=report.name, changes=report.changes, seconds=seconds, engine=engine.name)
        return report

    def _start(self, there: CurrentTable, table: TableId, before: Snapshot | None) -> tuple[int, int]:
        """The cut behind which a table is to be merged, and the offset before which nothing is needed (0: none).

        Raises:
            CannotFollow: it is to be made, and the log holds a change of shape that no table follows.
            HistoryLost: the log does not reach back to where the table is.
        """
        start = self._position(there, table, before)
        if before is None or not before.transactions.get(self._app(table)):
            return start, self._beginning(table)
        if start >= self._cut or self._log.reaches(start):
            return start, 0
        floor = self._backfill(table).floor
        if floor is not None and self._log.has(floor):
            return start, floor  # everything was read since, so what lies between is not needed
        raise self._log.history_lost(table, start)

    def _beginning(self, table: TableId) -> int:
        """The offset from which on a table is folded that has no rows yet, as whole as the log allows."""
        refused: CdcflowError = self._whole.history_lost(table, 0)
        for offset in Backfill.of(self._newest_backfills.get(str(table), {})).beginnings():
            if not (self._whole.reaches(0) or self._whole.has(offset)):
                continue
            files = self._whole.files(table, 0)
            # At least one row, of which the table learns its columns; the sweep takes it.
            since = min(offset, files[-1].file.last_offset) if files else offset
            try:
                evolve(None, shapes_of(self._whole.files(table, 0, since)), format_=self._rules)
            except CannotFollow as error:
                evolve(
                    None, [files[-1].shape], format_=self._rules
                )  # of a shape that no table can have it says so itself
                refused = CannotFollow(
                    f"{str(error).splitlines()[0]}, and the log's sealed segments have no later backfill",
                    remedy=f"run `cdcflow backfill {table}`, and `cdcflow merge` once it is sealed (log.seal.age_max)",
                )
            else:
                return since
        raise refused

    def cut(self, reports: tuple[TableReport, ...]) -> Cut | None:
        """The cut to publish; None where it says nothing new, or a table has not got there."""
        if self._ahead:
            return None
        merged = {r.name: r for r in reports}
        known = self._known
        if not all(n in merged or self._untouched(t) for n, t in known.items()):
            return None
        before = self._published
        tables = dict(before.tables) if before is not None else {}
        left_out = dict(before.left_out) if before is not None else {}
        for name, report in merged.items():
            if report.left_out is not None:
                tables.pop(name, None)
                left_out[name] = report.left_out
                continue
            left_out.pop(name, None)
            tables[name] = self._cut_table(known[name], report)
        for name in (tables.keys() - merged.keys()) & self._backfills.keys():
            now = Backfill.of(self._backfills[name])
            complete = tables[name].complete and now.floor is not None
            tables[name] = replace(tables[name], complete=complete, state=now.state)
        if before is not None and (before.cut, dict(before.tables), dict(before.left_out)) == (
            self._cut,
            tables,
            left_out,
        ):
            return None
        return Cut(
            cut=self._cut,
            log_id=self._log.log_id,
            offset=self._checkpoint.next_offset - 1,
            position=self._checkpoint.position or "",
            commit_clock=self._checkpoint.commit_clock,
            tables=tables,
            left_out=left_out,
        )

    def pin(self, cut: Cut) -> None:
        """Have the formats keep what the cut shows; what an older one shows already is kept."""
        before = self._published.tables if self._published is not None else {}
        engine = self._engines.first
        for name, table in cut.tables.items():
            known = before.get(name)
            if known is not None and (known.id, known.version) == (table.id, table.version):
                continue
            try:
                self._asked(table_at(table.path), functools.partial(_pin, version=table.version, cut=cut.cut))
            except Exception as error:
                if not engine.is_conflict(error):
                    raise
                raise SinkUnavailable(
                    f"publishing cut {cut.cut}: somebody else changed {name} just then",
                    remedy="nothing is lost; merge again",
                    runbook="busy",
                ) from error

    def _asked(self, table: TableId, ask: Callable[[CurrentTable], _Answer]) -> _Answer:
        """What a table says to the first engine, or to the other one where that hands it over."""
        engine = self._engines.first
        for _ in range(2):
            with closing(engine.table(table_path(table))) as there:
                try:
                    return ask(there)
                except HandOver as reason:
                    engine = self._engines.other(table, str(reason))
        raise InvariantViolated(f"asking {table}: both engines hand it over")

    def _cut_table(self, table: TableId, report: TableReport) -> CutTable:
        known = self._backfill(table)
        complete = report.complete
        if complete and (count := self._rows_that_miss(table)):
            if known.is_done:
                raise InvariantViolated(
                    f"merging {table} up to cut {self._cut}: its backfill is done, and {count} rows miss columns"
                )
            complete = False
        return CutTable(
            path="/".join(table_path(table)),
            version=report.version,
            complete=complete,
            generation=max(known.finished, self._swept(table)),
            id=self._ids[table],
            state=known.state,
        )

    def _untouched(self, table: TableId) -> bool:
        if self._published is not None and str(table) in self._published.left_out:
            return True  # and it stays out
        entry = self._entry(table)
        return entry is not None and self._published is not None and not self._log.files(table, self._published.cut)

    def _entry(self, table: TableId) -> CutTable | None:
        """The table in the newest published cut; None if that was another table in the same folder."""
        found = None if self._published is None else self._published.tables.get(str(table))
        there = self._there.get(table)
        return None if found is not None and there is not None and found.id not in ("", there.id) else found

    def _backfill(self, table: TableId) -> Backfill:
        return Backfill.of(self._backfills.get(str(table), {}))

    def _swept(self, table: TableId) -> int:
        entry = self._entry(table)
        return 0 if entry is None else entry.generation

    def _sweep_due(self, table: TableId) -> int:
        """The offset before which rows go that nothing touched since; 0: none is to go."""
        known = self._backfill(table)
        return known.floor or 0 if known.finished > self._swept(table) else 0

    def _app(self, table: TableId) -> str:
        return f"cdcflow/{self._log.log_id}/{table}"

    def _position(self, there: CurrentTable, table: TableId, before: Snapshot | None) -> int:
        """The cut that the table has: what its own commits say, or the published cut if none has come since.

        One can have come that is older: of a merge that stood still in the middle of its commit. Such a commit undoes
        what it was overtaken by, and what has come since it is merged again.
        """
        entry = self._entry(table)
        if before is None:
            return 0
        ours = self._app(table)
        strangers = [
            app
            for app in before.transactions
            if app.startswith("cdcflow/") and app != ours and not app.startswith(f"{ours}/")
        ]
        source = json.loads(before.properties.get(statement.IDENTITY_PROPERTY, "null"))
        if strangers or source != self._source(table):
            raise ConfigurationError(
                f"merging {self._log.layout.name} into table {table} of {self._warehouse}: that table was not "
                f"merged from table {table} of this log",
                remedy="merge into another warehouse, or move the table's folder away",
                runbook="other-log",
            )
        done = before.transactions.get(ours, 0)
        # A table that nothing was ever merged into is none that a cut was published of, whatever its version.
        if done and entry is not None and self._published is not None and before.version >= entry.version:
            then = done if before.version == entry.version else there.transactions_of(entry.version).get(ours, done)
            if then == done:
                done = max(done, self._published.cut)
            elif done < self._published.cut:
                _log.warning("an older merge has committed after a newer one", table=str(table), cut=done)
        if done > self._last_cut:
            now = sealed(self._log.layout, self._checkpoint.next_offset - 1).newest
            if now is not None and now.last_cut >= done:
                raise _overtaken(table, done, self._last_cut)
            raise ConfigurationError(
                f"merging {self._log.layout.name} into {table}: the log ends at cut {self._last_cut},"
                f" the table already has cut {done}, so this is an older copy of the log",
                remedy="merge the newest log, or merge into another warehouse",
                runbook="other-log",
            )
        return done

    def _source(self, table: TableId) -> dict[str, str]:
        return {"log": self._log.log_id, "schema": table.schema, "name": table.name}

    def _edits(self, there: CurrentTable, table: TableId, before: Snapshot | None) -> list[str]:
        entry = self._entry(table)
        if before is None or entry is None or before.version == entry.version:
            return []
        found = there.edits_since(entry.version)
        if found and self._on_edit == "stop":
            raise ConfigurationError(
                f"merging into {table}: somebody else changed its rows ({', '.join(found)})",
                remedy=f"check the table against its source; to rebuild it, move its folder away and run"
                f" `cdcflow backfill {table}`",
                runbook="table-changed-by-others",
            )
        if found:
            _log.warning("table changed by somebody else", table=str(table), edits=found)
        return found

    def _rows_that_miss(self, table: TableId) -> int:
        """How many rows miss columns: none once its backfill is done. Looked for only if one could have come or was
        there."""
        entry, before = self._entry(table), self._there.get(table)
        if before is None or before.is_empty:
            since = 0
        elif entry is not None and entry.complete and self._published is not None:
            since = self._published.cut
        else:
            since = None
        if since is not None and not any(f.file.partial for f in self._log.files(table, since)):
            return 0
        return self._asked(table, lambda there: there.rows_that_miss())


class _TableMerge:
    """One table, one range."""

    def __init__(
        self,
        run: _Run,
        engine: Engine,
        table: TableId,
        there: CurrentTable,
        before: Snapshot | None,
        files: list[InputFile],
        start: int,
        since: int,
    ) -> None:
        self._run = run
        self._engine = engine
        self._table = table
        self._files = files
        self._before = before
        self._start = start
        self._since = since
        self._there = there
        self._session = there.session
        # Where the range begins behind something, nothing of before it is known to live.
        self._sweep = max(run._sweep_due(table), since if before is not None else 0)

    @property
    def sweeps(self) -> bool:
        """Rows may be there that a backfill did not find."""
        return self._sweep > 0

    def sweep(self) -> None:
        """Nothing new, but a backfill is done: remove what it did not find."""
        app = f"{self._run._app(self._table)}/sweep"
        generation = self._run._backfill(self._table).finished
        self._there.sweep(self._sweep, self._metadata(), app, generation)

    def run(self) -> None:
        store = self._run._log.layout.store
        with tempfile.TemporaryDirectory(prefix="cdcflow-merge-", dir=None if store is None else store.room) as room:
            self._files = self._engine.located(self._run._log.layout, self._files, Path(room))
            self._merge()

    def _merge(self) -> None:
        shapes = shapes_of(self._files)
        target = None if self._before is None else _described(self._table, self._before, shapes)
        evolution = evolve(target, shapes, self._start, self._run._rules)
        self._evolve(evolution)
        layout = Layout.of(evolution, shapes)
        living = [f for f in self._files if f.shape.incarnation == evolution.target.incarnation]
        after = changes.last_truncate(self._session, living)
        if evolution.fresh:
            after = max(after, offsets_of(living)[0] - 1)
        emptied = after > 0 or self._is_empty
        standing = None if emptied else functools.partial(self._there.standing, layout)
        with changes.view(self._session, layout, living, after, standing) as found:
            folding = statement.Folding(
                layout,
                found.name,
                found.masks,
                empty=self._is_empty,
                emptied=emptied,
                once=self._is_empty and self._each_key_once(layout, living, found),
                sweep_before=max(self._sweep, after + 1 if after else 0),
                ends=tuple((f.file.key_min, f.file.key_max) for f in living),
                count=sum(f.file.rows for f in living),
            )
            self._there.fold(folding, self._metadata(), self._run._app(self._table), self._run._cut)

    @property
    def _is_empty(self) -> bool:
        """Whether the table holds no row from before."""
        return self._before is None or self._before.is_empty

    def _each_key_once(self, layout: Layout, files: list[InputFile], found: changes.View) -> bool:
        """Whether the changes are whole rows, and no two of one key: so it is after a backfill. Manifests say whether
        it may be, and mostly that it is; where they do not, the keys in the log are looked at."""
        target = layout.target
        if not target.key or not all(f.ops and f.ops.keys() <= {"c", "r"} and not f.file.partial for f in files):
            return False
        first = target.columns[layout.key[0]].type
        if statement.each_key_once(first, [f.file.key_runs for f in files]):
            return True
        return not self._session.rows(statement.repeated(target, found.name))

    def _evolve(self, evolution: Evolution) -> None:
        """Bring the table into the shape that the range needs."""
        run = self._run
        if evolution.before is None:
            source = json.dumps(run._source(self._table), separators=(",", ":"))
            self._there.make(evolution.target, source, self._since, self._metadata())
        elif self._before is not None and not self._before.transactions.get(run._app(self._table)):
            self._there.begin(self._since, self._metadata())
        for act in evolution.acts():
            once = statement.transaction(act, evolution.target.incarnation)
            app = f"{run._app(self._table)}/{once}" if once else ""
            self._there.follow(act, self._metadata(), app, 1 if once else 0)

    def _metadata(self) -> dict[str, object]:
        first, last = offsets_of(self._files)
        return {
            "log": self._run._log.log_id,
            "table": str(self._table),
            "cut": self._run._cut,
            "offsets": [first, last],
            "generation": self._run._backfill(self._table).generation if self._sweep else 0,
            **self._run._origin,
        }


def _pin(there: CurrentTable, version: int, cut: int) -> None:
    there.pin(version, cut)


def _overtaken(table: TableId, came_to: int, cut: int) -> SinkUnavailable:
    return SinkUnavailable(
        f"merging into {table}: another merge brought it to cut {came_to} while this one merged cut {cut}",
        remedy="nothing is lost; merge again",
        runbook="busy",
    )


def _described(table: TableId, before: Snapshot, shapes: Sequence[Table]) -> Target:
    """What the table looks like: its own description, with the names that its columns have by now."""
    text = before.properties.get(statement.TARGET_PROPERTY)
    if text is None:
        raise CannotFollow(
            f"merging into {table}: the table's property {statement.TARGET_PROPERTY} is gone, which describes its "
            f"columns",
            remedy=rebuilt(table),
        )
    return seen(Target.from_json(text), before.columns, table, shapes)
