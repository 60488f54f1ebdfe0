"""The merge: fold the new changes of a log into current-state tables, then publish one cut.

    log       ──cut 41──segment──cut 52──segment──cut 60──▶       latest sealed cut: 60
    orders    at 52   ─────────── (52, 60] ──▶ one commit with (log, orders) = 60
    products  at 60   (an earlier run got that far, then died): nothing to do
    cuts      41 published ───────────────────▶ 60 published, last

A table's position is read from the table: the latest commit by cdcflow names the cut, in the same atomic commit as the
rows. So the next run finishes what a killed run began, a range is never applied twice, and a log that is older than the
table, or a different log, is refused.

The engine is chosen per table: `Engines` has the first engine, and the other one, for tables that the first cannot
merge.

    merge ──▶ Run ──▶ TableMerge ──▶ TableRange      what a range does to a table's shape and rows
                 └──▶ Positions                       where each table is, and where its merge starts
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, TypeVar

import structlog

from cdcflow.errors import CdcflowError, ConfigurationError, InvariantViolated, SinkUnavailable
from cdcflow.log.files import notes
from cdcflow.log.files.layout import Layout as LogLayout
from cdcflow.model.position import Checkpoint, position_text
from cdcflow.model.routes import Destination
from cdcflow.model.suggestions import did_you_mean
from cdcflow.model.table import TableId, word
from cdcflow.tables.cut import Cut, CutMember, CutTable
from cdcflow.tables.formats import tag_of
from cdcflow.tables.job import clashes, views
from cdcflow.tables.job.derived_tables import Derivation, without_derived
from cdcflow.tables.job.engines import Engines
from cdcflow.tables.job.failures import contradiction, is_of_one_table, of_all_tables, rows_missing, table_failed
from cdcflow.tables.job.member_tables import MemberTable
from cdcflow.tables.job.positions import Positions, overtaken
from cdcflow.tables.job.ranges import TableRange
from cdcflow.tables.job.reports import (
    MergeProgress,
    MergeReport,
    TableMergeReport,
    Watch,
    both,
    ignore_progress,
    ignore_tables_done,
)
from cdcflow.tables.job.table_merge import TableMerge
from cdcflow.tables.job.unity import UnityNames
from cdcflow.tables.merge import statement
from cdcflow.tables.merge.modes import ModeRules, decide_mode
from cdcflow.tables.merge.policy import DEFAULTS, Policies
from cdcflow.tables.merge.refusals import CannotFollow
from cdcflow.tables.merge.target import Target
from cdcflow.tables.paths import Warehouse, table_at, table_path
from cdcflow.tables.port import CurrentTable, Engine, HandOver, TableSnapshot
from cdcflow.tables.segments import OlderNeeded, Range, sealed_range

OnEdit = Literal["warn", "stop"]

CONFLICTS_MAX = 5
"""How often a table is merged again after another process (OPTIMIZE, a retention job) committed to it."""

TABLES_AT_ONCE = 3
"""How many tables are merged at a time. Most of a small merge is planning and commits on the driver, in one thread:
three tables keep two cores busy."""

_log = structlog.get_logger()
_Answer = TypeVar("_Answer")


@dataclass(frozen=True, slots=True)
class MergeRequest:
    """The arguments of one merge: the log, the warehouse into which it is merged, and how; see `merge`."""

    engines: Engines
    log: LogLayout
    warehouse: Warehouse
    on_edit: OnEdit
    watch: Watch
    policies: Policies
    newest: Checkpoint | None
    origin: Mapping[str, object]
    tables_done: Callable[[], None] = ignore_tables_done


def merge(
    engines: Engines,
    log: LogLayout | Path | str,
    warehouse: Warehouse | Path | str,
    tables: Collection[str] | None = None,
    *,
    on_edit: OnEdit = "warn",
    newest: Checkpoint | None = None,
    origin: Mapping[str, object] | None = None,
    watch: Watch = ignore_progress,
    policies: Policies = DEFAULTS,
    tables_done: Callable[[], None] = ignore_tables_done,
) -> MergeReport:
    """Bring every current-state table to the latest sealed cut of the log, then publish the cut.

    `engines` work in this warehouse (see `cdcflow.spark.job.merge` and `cdcflow.local.merge`, which name them). `log`:
    its directory, or its layout if segments are in an object store. Segments that have to be fetched are merged in
    several steps, so that the local disk holds few of them at a time. `tables`: only these (`schema.name`); the cut is
    then published only if no other table has changes up to it. `on_edit`: what to do if another process changed a
    table's rows (hard case G36). `policies`: the settings of each table. If the directory is the history of a log in
    Kafka, `newest` is that log's latest checkpoint, and `origin` the place in its topic where the history ends, which
    each table's commit then records (see `cdcflow.spark.kafka`). `tables_done` is called when every table has been
    merged, and the cut is published next.

    A table is excluded from the cut, with the reason in its report, if it cannot follow its source, if the log no
    longer has what it needs, or if its merge ends with an error of the engine (a damaged file, a full disk); the others
    continue.

    Raises:
        SinkUnavailable: another merge works in this warehouse, or another process kept changing a table; try again
            later.
        ConfigurationError: the tables belong to another log or are ahead of this one, the warehouse is a URL, no table
            at all can follow its source, or no engine can do it; the message says what to do.
        HistoryLost: the log no longer has what any table needs.
        InvariantViolated: every table contradicts itself.
        TableFailed: the engine failed at every table.
    """
    with engines.first.lease():
        place = Warehouse.of(warehouse)
        request = MergeRequest(
            engines, LogLayout.of(log), place, on_edit, watch, policies, newest, origin or {}, tables_done
        )
        try:
            return _merge(request, tables, recent=True)
        except OlderNeeded:
            return _merge(request, tables, recent=False)


def _merge(request: MergeRequest, tables: Collection[str] | None, *, recent: bool) -> MergeReport:
    """Do the work of `merge`. `recent`: list only segments after the published cut, if listing all of them would cost
    more.

    Raises:
        OlderNeeded: these segments are not enough; what was already committed stays committed.
    """
    began = time.monotonic()
    engine, log, place = request.engines.first, request.log, request.warehouse
    with of_all_tables(engine, place):
        cuts = engine.cuts()
        cuts.drop_torn()
        shown = cuts.newest()
    before = without_derived(shown)
    whole = sealed_range(log, 0 if before is None else before.offset, recent=recent)
    if whole.newest is None:
        return MergeReport(0, 0, False, time.monotonic() - began, ())
    for name in _unknown_names(request.policies, whole, before):
        _log.warning("settings name a table of which the log has no row", table=name)
    reports: dict[str, TableMergeReport] = {}
    published = False
    steps = [whole] if engine.reads_in_place else whole.steps(0 if before is None else before.cut)
    for number, step in enumerate(steps, 1):
        told = functools.partial(_tell_step, request.watch, number)
        run = MergeRun(replace(request, watch=told), step, whole, before)
        found = run.tables(_tables_with_rows(tables, step, whole, before))
        if step.checkpoint.cut == whole.checkpoint.cut:
            request.tables_done()
        new = run.cut(found)
        new = None if new is None else run.pin(new)
        found = run.final(found)
        if request.policies.derived or shown is not before:
            new, more = _derive(request, new or before, shown)
            found += more
        if new is not None:
            with of_all_tables(engine, place):
                cuts.publish(new)
            _log.info("cut published", cut=new.cut, tables=len(new.tables))
            shown, published = new, True
            before = without_derived(new)
        reports |= {r.name: both(reports.get(r.name), r) for r in found}
    if shown is not None:
        show_views(engine, place, shown)
    if before is not None and log.is_home:
        note(log, place, before)
    last = whole.newest
    ordered = tuple(reports[name] for name in sorted(reports))
    return MergeReport(last.last_cut, last.last_offset, published, time.monotonic() - began, ordered, shown)


def _derive(
    request: MergeRequest, cut: Cut | None, shown: Cut | None
) -> tuple[Cut | None, tuple[TableMergeReport, ...]]:
    """Return the cut with its derived tables, and their reports. The cut is `None` if readers would see nothing new.
    `shown`: the latest published cut, with its derived tables."""
    if cut is None:
        return None, ()
    derivation = Derivation(request.engines, request.warehouse, request.policies.derived, shown, request.watch)
    found, reports = derivation.derive(cut)
    return None if found == shown else found, reports


def show_views(engine: Engine, warehouse: Warehouse, cut: Cut) -> None:
    """Write the latest cut's SQL for readers without cdcflow, unless it is already written. An earlier run may have
    died between publishing the cut and writing it."""
    text = views.spark_sql(cut, warehouse, engine.rules.name)
    try:
        if engine.read_text(views.LATEST) != text:
            engine.write_text(views.LATEST, text)
    except (OSError, SinkUnavailable) as error:
        # Tables and cuts are correct; the next merge tries again.
        _log.warning("views of the latest cut were not written", cut=cut.cut, reason=str(error).splitlines()[0])


def note(log: LogLayout, warehouse: Warehouse, cut: Cut) -> None:
    """Record for the log's retention which offsets this warehouse no longer needs. An excluded table may need older
    segments."""
    name = notes.warehouse_name(warehouse.folder if warehouse.is_local else str(warehouse))
    known = notes.read(log, "merge", name)
    held = tuple(sorted(cut.left_out))
    offset = (0 if known is None else known.offset) if held else cut.offset
    with contextlib.suppress(OSError):  # without a note nothing expires, and retention reports that
        notes.write(log, notes.Note("merge", name, offset, held))


def _tell_step(watch: Watch, step: int, progress: MergeProgress) -> None:
    watch(replace(progress, step=step))


def _unknown_names(policies: Policies, whole: Range, before: Cut | None) -> list[str]:
    """Return the table names in the settings that neither the log nor the warehouse has."""
    named = policies.each.keys() | policies.contracts.keys()
    if not named:
        return []
    known = set(whole.tables(None if before is None else before.by_source()))
    targets = {str(found.table) for name in known if (found := policies.routes.find(name)) is not None}
    return sorted(named - known - targets)


def _tables_with_rows(
    tables: Collection[str] | None, step: Range, whole: Range, before: Cut | None
) -> Collection[str] | None:
    """Return the requested tables that already have rows in this step (`None`: all tables were requested)."""
    if tables is None or step.segments == whole.segments:
        return tables
    known = step.tables(None if before is None else before.by_source())
    return [name for name in tables if name in known]


class MergeRun:
    """One merge of a part of a log, up to that part's latest cut. `log` is the part of `whole` that this step merges;
    `published` is the cut that was published before."""

    def __init__(self, request: MergeRequest, log: Range, whole: Range, published: Cut | None) -> None:
        self._request = request
        self._engines = request.engines
        self._log = log
        self._warehouse = request.warehouse
        self._checkpoint = log.checkpoint
        self._cut = self._checkpoint.cut
        self._ahead: set[TableId] = set()
        rules = request.engines.first.rules
        self._routes = request.policies.routes
        self._before = published
        self._by_source = None if published is None else published.by_source()
        published = self._published = None if self._by_source is None else self._in_their_places(self._by_source)
        self._positions = Positions(log, whole, request.newest, published, request.warehouse, rules, request.policies)
        self._ids: dict[TableId, str] = {}
        self._commits: dict[TableId, str] = {}
        self._shown: set[str] = set()
        self._modes: dict[TableId, ModeRules] = {}
        self._refused: list[CdcflowError] = []
        self._late: dict[str, str] = {}
        self._removed: set[str] = set()
        self._known: Mapping[str, TableId] = {}
        self._chosen: Mapping[TableId, int] = {}
        self._clashes: Mapping[TableId, CannotFollow] = {}
        unity = request.warehouse.unity
        self._names = None if unity is None else UnityNames(unity, request.warehouse)

    def _in_their_places(self, cut: Cut) -> Cut:
        """Return a cut by source without the tables whose routes have changed since; these are created again."""
        if not self._routes and cut is self._before:
            return cut
        tables = {}
        for name, table in cut.tables.items():
            there = self._routes.destination(table.source)
            if (table.path, dict(table.key)) == ("/".join(table_path(there.table)), dict(there.key)):
                tables[name] = table
        return replace(cut, tables=tables)

    def _destination(self, table: TableId) -> Destination:
        return self._routes.destination(table)

    def _open(self, engine: Engine, table: TableId) -> CurrentTable:
        """Return the table of the warehouse that gets the rows of a captured table, as if it had only those rows."""
        if not self._routes:
            return engine.table(table_path(table))
        there = self._destination(table)
        whole = engine.table(table_path(there.table))
        return MemberTable(whole, self._log.log_id, table, there, self._routes, engine.rules) if there.key else whole

    def tables(self, wanted: Collection[str] | None) -> tuple[TableMergeReport, ...]:
        empty = {str(table): table for table in self._positions.without_rows}
        known = self._known = {**empty, **self._log.tables(self._by_source)}
        targets: Mapping[str, list[str]] = {}
        if self._routes:
            self._clashes = clashes.find(known.values(), self._routes)
            targets = clashes.by_target(known.values(), self._routes)
            wanted = None if wanted is None else [one for name in wanted for one in targets.get(name, [name])]
        unknown = sorted(set(wanted or ()) - set(known))
        if unknown:
            raise ConfigurationError(
                f"merging {self._log.layout.name}: it has no rows of table {', '.join(unknown)}",
                remedy=f"{did_you_mean(unknown[0], {*known, *targets})}name one of: {', '.join(sorted(known))}",
                runbook="table-not-found",
            )
        chosen = [known[n] for n in sorted(known) if wanted is None or n in wanted]
        self._chosen = {table: number for number, table in enumerate(chosen, 1)}
        turns: dict[TableId, list[TableId]] = {}
        for table in chosen:  # tables that go into one table of the warehouse are merged one after another
            turns.setdefault(self._destination(table).table, []).append(table)
        with ThreadPoolExecutor(TABLES_AT_ONCE) as pool:
            found = [report for turn in pool.map(self._turn, turns.values()) for report in turn]
        reports = tuple(sorted(found, key=lambda report: report.name) if self._routes else found)
        if self._refused and all(r.left_out is not None for r in reports):
            raise self._refused[0]
        return reports

    def _turn(self, tables: list[TableId]) -> list[TableMergeReport]:
        """Merge the tables whose rows go into one table of the warehouse, one after the other."""
        return [report for table in tables if (report := self._table(table)) is not None]

    def _table(self, table: TableId) -> TableMergeReport | None:
        engine = self._engines.first
        for _ in range(CONFLICTS_MAX):
            try:
                try:
                    return self._merge_table(table, engine)
                except HandOver as reason:
                    engine = self._engines.other(table, str(reason))
                    return self._merge_table(table, engine)
            except OlderNeeded:
                raise
            except Exception as error:  # noqa: BLE001  raised again unless it concerns only this table
                if not engine.is_conflict(error):
                    return TableMergeReport(
                        str(table), 0, 0, False, 0.0, left_out=self._refusal(table, engine, error).with_section
                    )
                _log.info("table changed during its merge, merging it again", table=str(table))
        raise SinkUnavailable(
            f"merging into {table}: another process changed the table during each of {CONFLICTS_MAX} tries",
            remedy="nothing is lost; merge again when it is changed less often",
            runbook="busy",
        )

    def _refusal(self, table: TableId, engine: Engine, error: Exception) -> CdcflowError:
        """Return the error with which a table is excluded after its merge ended with `error`. Raise that error again if
        it concerns more than this table."""
        raised = error if isinstance(error, CdcflowError) else self._table_error(table, engine, error)
        if not is_of_one_table(raised):
            raise raised
        told = contradiction(table, raised) if isinstance(raised, InvariantViolated) else raised
        self._refused.append(raised)
        _log.error("table not in the cut", table=str(table), reason=told.with_section)
        return told

    def _table_error(self, table: TableId, engine: Engine, error: Exception) -> CdcflowError:
        failure = engine.failure(error)
        if failure is None:
            raise error
        log = "" if self._log.layout.store is not None else str(self._log.layout.root.resolve())
        folder = self._warehouse.location_of(table_path(self._destination(table).table))
        found = table_failed(table, engine.name, failure, folder, log)
        found.__cause__ = error  # printed with --debug
        return found

    def _merge_table(self, table: TableId, engine: Engine) -> TableMergeReport | None:
        if (clash := self._clashes.get(table)) is not None:
            raise clash
        with closing(self._open(engine, table)) as there:
            return self._merged_into(there, table, engine)

    def _merged_into(self, there: CurrentTable, table: TableId, engine: Engine) -> TableMergeReport | None:
        began = time.monotonic()
        shown = None if self._published is None else self._published.tables.get(str(table))
        there.drop_torn(-1 if shown is None else shown.version)
        before = there.snapshot()
        self._positions.see(table, before, there)
        if before is None and self._positions.is_removed(table):
            self._removed.add(str(table))
            return None
        self._keep_name(table, before)
        policy = self._request.policies.of(str(table))
        mode = decide_mode(table, None if before is None else before.properties, policy)
        if (before is None or str(table) not in self._positions.backfilled_tables) and not self._log.files(table, 0):
            if before is not None:
                return None  # its rows in the log have expired, and a cut shows the table
            before = self._made_empty(there, table, engine, mode)
        start, since = self._positions.start(there, table, before, mode)
        if start > self._cut:
            self._ahead.add(table)  # an earlier merge went further with this table before it died
        files = self._log.files(table, start, since)
        if files and (reason := engine.declines(before, files, mode)) is not None:
            raise HandOver(reason)
        edits = self._edits(there, table, before)
        is_new = self._positions.is_new(table, before)
        key = self._destination(table).key
        range_ = TableRange(table, before, files, start, policy=policy, mode=mode, is_new=is_new, member=key)
        work = TableMerge(self._log, self._positions, engine, there, range_, since, self._request.origin)
        if files:
            self._request.watch(MergeProgress(str(table), self._chosen[table], len(self._chosen)))
            work.run()
        elif before is not None and table not in self._ahead and work.sweeps:
            work.sweep()
        after = there.own_snapshot()
        if after is None:
            return self._later(table, since, len(files))
        self._check_not_overtaken(table, before, after, merged=bool(files))
        self._ids[table], self._modes[table], self._commits[table] = after.id, mode, after.commit
        if self._shows_already(table, after, there):
            self._shown.add(str(table))
        if before is None or before.columns != after.columns:
            self._keep_name(table, after)
        complete, state = self._positions.standing(table, after)
        report = TableMergeReport(
            name=str(table),
            changes=sum(f.file.rows for f in files),
            version=after.version,
            complete=complete,
            seconds=time.monotonic() - began,
            edits=tuple(edits),
            state=state,
            engine=engine.name if files else "",
            place=str(self._destination(table).table) if self._routes.find(str(table)) is not None else "",
            warned=work.contract.warned,
            quarantined=work.contract.quarantined,
        )
        _log_merge(report, engine)
        return report

    def _later(self, table: TableId, since: int, files: int) -> TableMergeReport:
        """Return the report of a table that a merge of this cut does not create, because its rows begin later.

        Raises:
            InvariantViolated: they do not.
        """
        if since <= self._checkpoint.next_offset - 1:
            raise InvariantViolated(f"merging {table}: {files} files of the log gave no table")
        later = CannotFollow(
            f"merging into {table}: it begins at offset {since}, after this cut",
            remedy="run `cdcflow merge` again later: a later cut has it",
        )
        return TableMergeReport(str(table), 0, 0, False, 0.0, left_out=later.with_section)

    def _check_not_overtaken(
        self, table: TableId, before: TableSnapshot | None, after: TableSnapshot, *, merged: bool
    ) -> None:
        """Raise an error if another merge has changed the table to a later cut."""
        app = self._positions.app(table)
        earlier = 0 if before is None else before.transactions.get(app, 0)
        now = after.transactions.get(app, 0)
        if now != (self._cut if merged else earlier) and table not in self._ahead:
            raise overtaken(table, now, self._cut)

    def _keep_name(self, table: TableId, there: TableSnapshot | None) -> None:
        """Register the table in Unity Catalog if the warehouse uses one. Before the table exists (`there` is `None`),
        only check that its name is free."""
        if self._names is None:
            return
        named = self._destination(table)
        if named.key:
            raise CannotFollow(
                f"table {table} cannot be merged into {named.table}: tables that several share are not registered in"
                " Unity Catalog",
                remedy="route it under a name that no other table has (merge.tables.routes), or merge into a warehouse"
                " without that catalog",
            )
        if there is None:
            self._names.check(named.table)
        else:
            self._names.keep(named.table, there.columns)

    def _made_empty(self, there: CurrentTable, table: TableId, engine: Engine, mode: ModeRules) -> TableSnapshot | None:
        """Create a table that has no row in the log, and return its snapshot.

        Raises:
            HistoryLost: the table may have had rows that have expired.
        """
        shape = self._positions.empty_shape(table)
        if shape is None:
            raise self._positions.history_lost(table)
        range_ = TableRange(table, None, (), 0, policy=self._request.policies.of(str(table)), mode=mode)
        TableMerge(self._log, self._positions, engine, there, range_, 0, self._request.origin).make_empty(shape)
        made = there.snapshot()
        self._positions.see(table, made)
        _log.info("table made without a row", table=str(table), engine=engine.name)
        return made

    def final(self, reports: tuple[TableMergeReport, ...]) -> tuple[TableMergeReport, ...]:
        """Return the reports, in which tables that were excluded while the cut was built are marked as excluded.

        Raises:
            CdcflowError: every table is excluded.
        """
        found = tuple(
            replace(report, left_out=self._late[report.name]) if report.name in self._late else report
            for report in reports
        )
        if self._late and all(r.left_out is not None for r in found):
            raise self._refused[0]
        return found

    def cut(self, reports: tuple[TableMergeReport, ...]) -> Cut | None:
        """Return the cut to publish; `None` if it contains nothing new, or if a table has not reached it."""
        if self._ahead:
            return None
        merged = {r.name: r for r in reports}
        known = self._known
        if not all(n in merged or self._is_untouched(t) for n, t in known.items()):
            return None
        before = self._published
        tables = dict(before.tables) if before is not None else {}
        left_out = dict(before.left_out) if before is not None else {}
        for name, report in merged.items():
            why, shown = report.left_out, None
            if why is None:
                why, shown = self._try(known[name], functools.partial(self._cut_table, known[name], report))
            if shown is None:
                tables.pop(name, None)
                left_out[name] = why or ""
                continue
            left_out.pop(name, None)
            if name in self._shown and not _is_known_better(tables[name], shown):
                shown = replace(tables[name], state=shown.state)
            tables[name] = shown
        for name in (tables.keys() - merged.keys()) & self._positions.backfilled_tables:
            now = self._positions.backfill(tables[name].source)
            complete, state = now.stays_whole(complete=tables[name].complete, state=tables[name].state)
            tables[name] = replace(tables[name], complete=complete, state=state)
        for name in self._removed:
            tables.pop(name, None)
            left_out.pop(name, None)
        new = Cut(
            cut=self._cut,
            log_id=self._log.log_id,
            offset=self._checkpoint.next_offset - 1,
            position=position_text(self._checkpoint.position) or "",
            commit_clock=self._checkpoint.commit_clock,
            tables=tables,
            left_out=left_out,
        )
        if self._routes or before is not self._before:
            new = new.by_target(self._routes)
        before = self._before
        if before is not None and (before.cut, dict(before.tables), dict(before.left_out)) == (
            new.cut,
            new.tables,
            new.left_out,
        ):
            return None
        return new

    def _shows_already(self, table: TableId, now: TableSnapshot, there: CurrentTable) -> bool:
        """Return whether an earlier publication of this same cut shows the table in a version that still exists. The
        cut then keeps showing that version, even if the table was changed since."""
        published = self._published
        shown = None if published is None or published.cut != self._cut else published.tables.get(str(table))
        if shown is None or shown.id != now.id or not shown.commit:
            return False
        return there.commit_of(shown.version) == shown.commit

    def pin(self, cut: Cut) -> Cut:
        """Make the formats keep what the cut shows, durably, and return the cut without the tables for which that
        failed. Versions that an older cut shows are already kept."""
        before = self._before.tables if self._before is not None else {}
        failed = {}
        for name, table in cut.tables.items():
            known = before.get(name)
            if known is not None and _version(known) == _version(table):
                continue
            why, _ = self._try(table_at(table.path), functools.partial(self._pin, known, table, cut.cut, name))
            if why is not None:
                failed[name] = why
        if not failed:
            return cut
        tables = {name: table for name, table in cut.tables.items() if name not in failed}
        return replace(cut, tables=tables, left_out={**cut.left_out, **failed})

    def _pin(self, known: CutTable | None, table: CutTable, cut: int, name: str) -> None:
        shown = None if known is None or known.id != table.id else known.version
        try:
            pin = functools.partial(_pin, version=table.version, cut=cut, shown=shown)
            self._ask(table_at(table.path), pin, lambda engine, _: engine.table(table.path.split("/")))
        except Exception as error:
            if not self._engines.first.is_conflict(error):
                raise
            raise SinkUnavailable(
                f"publishing cut {cut}: another process changed {name} at the same time",
                remedy="nothing is lost; merge again",
                runbook="busy",
            ) from error

    def _try(self, table: TableId, ask: Callable[[], _Answer]) -> tuple[str | None, _Answer | None]:
        """Call `ask` for a merged table, and return `None` and its result. If it fails, exclude the table and return
        the reason and `None`."""
        try:
            return None, ask()
        except Exception as error:  # noqa: BLE001  raised again unless it concerns only this table
            why = self._late[str(table)] = self._refusal(table, self._engines.first, error).with_section
            return why, None

    def _ask(
        self,
        table: TableId,
        ask: Callable[[CurrentTable], _Answer],
        opened: Callable[[Engine, TableId], CurrentTable] | None = None,
    ) -> _Answer:
        """Call `ask` with the table as the first engine opens it, or with that of the other engine if the first cannot
        do it."""
        engine = self._engines.first
        for _ in range(2):
            with closing((opened or self._open)(engine, table)) as there:
                try:
                    return ask(there)
                except HandOver as reason:
                    engine = self._engines.other(table, str(reason))
        raise InvariantViolated(f"querying {table}: neither engine supports it")

    def _cut_table(self, table: TableId, report: TableMergeReport) -> CutTable:
        known = self._positions.backfill(table)
        complete = report.complete
        if complete and (count := self._rows_that_miss(table)):
            if known.is_done:
                raise rows_missing(table, self._cut, count)
            complete = False
        return CutTable(
            path="/".join(table_path(self._destination(table).table)),
            version=report.version,
            complete=complete,
            generation=max(known.finished_generation, self._positions.swept_generation(table)),
            id=self._ids[table],
            state=report.state,
            tag=self._tag(table, report.version),
            commit=self._commits[table],
            member=self._member(table),
        )

    def _member(self, table: TableId) -> CutMember | None:
        """Return the captured table that a cut records for a routed table; `None` if no route applies to it."""
        if self._routes.find(str(table)) is None:
            return None
        return CutMember("/".join(table_path(table)), complete=False, key=self._destination(table).key)

    def _tag(self, table: TableId, version: int) -> str:
        """Return the tag of a version. A tag is named after the first cut that shows the version (see `pin`)."""
        entry = self._positions.entry(table)
        if entry is not None and _version(entry) == (self._ids[table], version, self._commits[table]):
            return entry.tag
        return tag_of(self._engines.first.rules.name, self._cut) if version else ""

    def _is_untouched(self, table: TableId) -> bool:
        if str(table) in self._removed or (self._published is not None and str(table) in self._published.left_out):
            return True  # it stays excluded
        entry = self._positions.entry(table)
        return entry is not None and self._published is not None and not self._log.files(table, self._published.cut)

    def _edits(self, there: CurrentTable, table: TableId, before: TableSnapshot | None) -> list[str]:
        entry = self._positions.entry(table)
        if before is None or entry is None or before.version == entry.version:
            return []
        found = there.edits_since(entry.version)
        if found and self._request.on_edit == "stop":
            raise ConfigurationError(
                f"merging into {table}: another process changed its rows ({', '.join(found)})",
                remedy=f"check the table against its source; to rebuild it, move its folder away and run"
                f" `cdcflow backfill {word(table)}`",
                runbook="table-changed-by-others",
            )
        if found:
            _log.warning("table changed by another process", table=str(table), edits=found)
        return found

    def _rows_that_miss(self, table: TableId) -> int:
        """Return how many rows of a table lack columns: 0 once its backfill is done. The rows are counted only if there
        may be such rows."""
        mode = self._modes[table]
        if mode.keeps_changes:
            return 0  # nothing is completed later
        entry, before = self._positions.entry(table), self._positions.last_seen(table)
        if entry is not None and entry.complete and self._published is not None:
            since = self._published.cut
        elif before is None or before.is_empty:
            since = 0
        else:
            since = None
        if since is not None and not any(f.file.partial for f in self._log.files(table, since)):
            return 0
        return self._ask(table, functools.partial(_rows_that_miss, ended=mode.ending_columns))


def _log_merge(report: TableMergeReport, engine: Engine) -> None:
    if report.warned or report.quarantined:
        found = "; ".join(f"{promise} ({count})" for promise, count in report.warned.items())
        _log.warning("contract broken", table=report.name, warned=found, quarantined=report.quarantined)
    if report.changes:
        seconds = round(report.seconds, 2)
        _log.info("table merged", table=report.name, changes=report.changes, seconds=seconds, engine=engine.name)


def _rows_that_miss(there: CurrentTable, ended: Sequence[str]) -> int:
    """Return how many rows lack a column that the source still has. The values of a dropped column can never be known,
    so they do not count."""
    found = there.snapshot()
    described = None if found is None else found.properties.get(statement.TARGET_PROPERTY)
    left = () if described is None else Target.from_json(described).left_names
    return there.rows_that_miss(ended, left)


def _version(table: CutTable) -> tuple[str, int, str]:
    """Return the values that identify the version of a table that a cut shows."""
    return table.id, table.version, table.commit


def _is_known_better(shown: CutTable, new: CutTable) -> bool:
    """Return whether the log's knowledge of a table has changed since the same cut was published: whether every row is
    present, or which backfill was the latest."""
    return (shown.complete, shown.generation) != (new.complete, new.generation)


def _pin(there: CurrentTable, version: int, cut: int, shown: int | None) -> None:
    there.pin(version, cut)
    there.sync(shown)
