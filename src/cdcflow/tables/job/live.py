"""Read every table as of the latest sealed cut of a log, without a merge: the latest published cut plus later changes.

    cuts      41 published
    log       ──cut 41──segment──cut 52──segment──cut 60──▶     latest sealed cut: 60
    orders    version 7, of cut 41   + (41, 60]                 one query, nothing is written
    products  version 3, of cut 41   + nothing                  its version 3
    returns   in no cut              + (0, 60]                  all of it is in the log

A table is read at the version that the published cut shows, even while a merge changes it. So all tables show one
state, the same that a merge of this log would publish (`job`). Tables have the names that they have at the source, also
under routes (`cdcflow.model.routes`).

This module decides what a table looks like, and what it needs of the log. The reader produces the rows: Spark plans, or
Arrow tables from DuckDB (`cdcflow.spark.live`, `cdcflow.tables.local.live`).
"""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Generic, Protocol, TypeVar

import structlog

from cdcflow.errors import CdcflowError, ConfigurationError, HistoryLost, InvariantViolated
from cdcflow.log.files.layout import Layout
from cdcflow.log.fold.completeness import IN_DOUBT
from cdcflow.model.position import position_text
from cdcflow.model.suggestions import did_you_mean
from cdcflow.model.table import Table, TableId
from cdcflow.tables.cut import REPLACED, Cut, CutTable, is_replaced, own_part
from cdcflow.tables.job import histories
from cdcflow.tables.job.derived_tables import without_derived
from cdcflow.tables.job.failures import table_failed
from cdcflow.tables.job.foldings import folding
from cdcflow.tables.job.member_tables import PastMember
from cdcflow.tables.job.past_tables import PastTable, RowsMade, VersionGone
from cdcflow.tables.job.positions import Positions
from cdcflow.tables.job.ranges import TableRange, group_shapes
from cdcflow.tables.job.spans import shapes_over_time
from cdcflow.tables.merge import live as sql
from cdcflow.tables.merge import versions
from cdcflow.tables.merge.evolution import Evolution, evolve
from cdcflow.tables.merge.format import Format
from cdcflow.tables.merge.modes import CURRENT, ModeRules, decide_mode
from cdcflow.tables.merge.policy import DEFAULTS, Policies
from cdcflow.tables.merge.reduce import ColumnLayout as ReduceLayout
from cdcflow.tables.merge.refusals import CannotFollow
from cdcflow.tables.merge.target import Target
from cdcflow.tables.paths import Warehouse, table_path
from cdcflow.tables.port import Failure, HandOver, SqlSession, TableSnapshot
from cdcflow.tables.segments import InputFile, OlderNeeded, Range, SegmentGone, sealed_range

TRIES_MAX = 3
"""How often the log is read again after it was compacted or expired during a read."""

BROADCAST_ROWS_MAX = 1_000_000
"""The keys of at most this many changes are sent to every executor. To join more changes, the table's rows are
sorted."""

TOGETHER_ROWS_MAX = 100_000
"""Up to this many changes are reduced by one task."""

Rows = TypeVar("Rows")

_log = structlog.get_logger()


class NewestCut(Protocol):
    """The part of the interface `cdcflow.tables.port.Cuts` that the live view needs."""

    def newest(self) -> Cut | None:
        """Return the latest published cut; `None` if there is none."""


class Reader(Protocol[RowsMade]):
    """An engine's interface for reading the tables of one warehouse."""

    name: str
    """The engine's name."""

    remedy: str
    """What an operator can do about a table that this reader cannot read."""

    shows_doubled: bool
    """Whether a key that a table has more than once is shown as often, for callers that check a table for errors (see
    `tables.merge.live.current`)."""

    @property
    def rules(self) -> Format:
        """The format of the warehouse's tables."""

    def cuts(self) -> NewestCut: ...

    def table(self, path: Sequence[str]) -> PastTable[RowsMade]:
        """Return the table at a path (schema, name); it need not exist."""

    def readable_files(self, layout: Layout, files: Sequence[InputFile], room: Path) -> list[InputFile]:
        """Return the files at paths where this reader can read them, for as long as the folder `room` exists."""

    def declines(self, files: Sequence[InputFile], mode: ModeRules = CURRENT) -> str | None:
        """Return why this reader cannot read these changes; `None` if it can."""

    def is_gone(self, error: BaseException) -> bool:
        """Return whether an error means that a file does not exist."""

    def failure(self, error: Exception) -> Failure | None:
        """Return what an error that ended the reading of one table means; `None` if it does not concern that table
        alone."""


class Live(dict[str, Rows], Generic[Rows]):
    """Tables, keyed by name, all as of one point in time: the log's cut `cut`, which ends with offset `offset` at the
    source's `position`; the source committed it at `commit_clock` (microseconds since 1970 UTC).

    `published`: the cut at which the warehouse's tables were read (0 if none was published). `left_out`: tables that
    cannot be shown, and why; `declined` are those that only this reader cannot show. `incomplete`: tables with rows
    that are still to be read, and the state of their backfill; they are shown only on request.
    """

    def __init__(self, cut: int, offset: int, position: str, commit_clock: int, published: int) -> None:
        super().__init__()
        self.cut = cut
        self.offset = offset
        self.position = position
        self.commit_clock = commit_clock
        self.published = published
        self.left_out: dict[str, str] = {}
        self.declined: set[str] = set()
        self.incomplete: dict[str, str] = {}


def read(
    reader: Reader[Rows],
    log: Layout | Path | str,
    warehouse: Warehouse | Path | str,
    tables: Collection[str] | None = None,
    *,
    incomplete: bool = False,
    policies: Policies = DEFAULTS,
) -> Live[Rows]:
    """Return every table, or some, as of the latest sealed cut of the log.

    `log`: as for `job.merge`. Tables with rows that are still to be read at that cut are excluded unless `incomplete`,
    as in `read_cut`. A table that the published cut excludes, that cannot follow the later changes, or that is missing
    from the warehouse is listed in `Live.left_out`; the others are shown.

    Raises:
        ConfigurationError: the tables are another log's, or newer than this copy of it; there is no log; or neither log
            nor warehouse has a table of a name in `tables`.
        SinkUnavailable: the log was compacted or expired repeatedly while it was read; call it again.
    """
    layout, place = Layout.of(log), Warehouse.of(warehouse)
    for number in range(1, TRIES_MAX + 1):
        try:
            return _read(reader, layout, place, tables, incomplete, policies)
        except SegmentGone as error:
            if number == TRIES_MAX:
                raise SegmentGone(
                    f"reading {layout.name}: its segments were compacted or expired while they were read,"
                    f" {TRIES_MAX} times",
                    remedy="call read_live again: it reads the segments that exist then",
                    runbook="busy",
                ) from error
            _log.info("segments of the log are gone, reading it again", log=layout.name)
    raise AssertionError  # not reached


# ── inside ──────────────────────────────────────────────────────────────────────────────────────────────────


def _read(
    reader: Reader[Rows],
    layout: Layout,
    place: Warehouse,
    tables: Collection[str] | None,
    incomplete: bool,
    policies: Policies,
) -> Live[Rows]:
    # The cut first: everything in it is already in the log at that time.
    published = without_derived(own_part(reader.cuts().newest(), layout.log_file().log_id))
    published = None if published is None else published.by_source()
    behind = 0 if published is None else published.offset
    try:
        log = sealed_range(layout, behind, recent=True)
        return _View(reader, log, place, published, incomplete, policies).read(tables)
    except OlderNeeded:
        return _View(reader, sealed_range(layout, behind), place, published, incomplete, policies).read(tables)


@dataclass(frozen=True, slots=True)
class _Part:
    """The rows that a table is read from: `range_` folded onto version `entry.version`, or onto nothing if `entry` is
    `None`.

    `empty`: the table's description if neither the log nor the published cut has a row of it.
    """

    range_: TableRange
    entry: CutTable | None
    complete: bool
    state: str
    empty: Target | None = None


class _View(Generic[Rows]):
    """One read of the log and the published cut."""

    def __init__(
        self,
        reader: Reader[Rows],
        log: Range,
        place: Warehouse,
        published: Cut | None,
        incomplete: bool,
        policies: Policies,
    ) -> None:
        self._reader = reader
        self._log = log
        self._place = place
        self._published = published
        self._incomplete = incomplete
        self._policies = policies
        self._entries: Mapping[str, CutTable] = {} if published is None else published.tables
        self._start = 0 if published is None else published.cut

    def read(self, wanted: Collection[str] | None) -> Live[Rows]:
        if self._log.newest is None and self._published is None:
            return Live(0, 0, "", 0, 0)  # nothing is sealed yet
        self._check_log()
        checkpoint = self._log.checkpoint
        self._positions = Positions(
            self._log, self._log, None, self._published, self._place, self._reader.rules, self._policies
        )
        found = Live[Rows](
            checkpoint.cut,
            checkpoint.next_offset - 1,
            position_text(checkpoint.position) or "",
            checkpoint.commit_clock,
            self._start,
        )
        left_out = {} if self._published is None else dict(self._published.left_out)
        known = {str(table): table for table in self._positions.without_rows}
        known |= {name: entry.source for name, entry in self._entries.items()}
        known |= self._log.tables_behind(0 if self._published is None else self._published.offset)
        self._check_names(wanted, known.keys() | left_out.keys())
        for name in sorted(known.keys() | left_out.keys()):
            if wanted is None or name in wanted:
                self._show(found, name, known.get(name), left_out.get(name))
        for name, why in found.left_out.items():
            _log.warning("table not in the live view", table=name, cut=found.cut, reason=why)
        return found

    def _check_log(self) -> None:
        before, layout = self._published, self._log.layout
        if before is None:
            return
        if before.log_id != self._log.log_id:
            raise ConfigurationError(
                f"reading {layout.name} with the tables of {self._place}: they belong to another log"
                f" ({before.log_id}, this one is {self._log.log_id})",
                remedy="name the log that is merged into that warehouse",
                runbook="other-log",
            )
        last = 0 if self._log.newest is None else self._log.checkpoint.cut
        if before.cut > last:
            raise ConfigurationError(
                f"reading {layout.name} with the tables of {self._place}: the log ends at cut {last}, the tables have"
                f" cut {before.cut} already, so this is an older copy of the log",
                remedy="name the latest log, the one that is merged into that warehouse",
                runbook="other-log",
            )

    def _check_names(self, wanted: Collection[str] | None, known: Collection[str]) -> None:
        if unknown := sorted(set(wanted or ()) - set(known)):
            raise ConfigurationError(
                f"reading {self._place}: neither its latest cut nor {self._log.layout.name} has a table"
                f" {', '.join(unknown)}",
                remedy=f"{did_you_mean(unknown[0], known)}name one of: {', '.join(sorted(known))}",
                runbook="table-not-found",
            )

    def _show(self, found: Live[Rows], name: str, table: TableId | None, why: str | None) -> None:
        """Add one table to the result: to its rows, its incomplete tables or its excluded tables."""
        if why is not None or table is None:
            found.left_out[name] = why or ""
            return
        entry = self._entries.get(name)
        path = table_path(table) if entry is None else entry.path.split("/")
        whole = self._reader.table(path)
        with closing(PastMember(whole, table, entry.key) if entry is not None and entry.key else whole) as there:
            try:
                part = self._part(there, table)
                if not part.complete:
                    found.incomplete[name] = part.state
                if part.complete or self._incomplete:
                    found[name] = self._rows(there, part)
            except HandOver as reason:
                found.left_out[name] = f"{reason}\n  {self._reader.remedy}"
                found.declined.add(name)
            except VersionGone as gone:
                found.left_out[name] = self._version_gone(table, self._entries[name], str(gone)).with_section
            except (CannotFollow, HistoryLost) as error:
                found.left_out[name] = error.with_section
            except (CdcflowError, OlderNeeded, SegmentGone):
                raise
            except Exception as error:
                if (failure := self._reader.failure(error)) is None:
                    raise
                layout, folder = self._log.layout, self._place.location_of(path)
                log = "" if layout.store is not None else str(layout.root.resolve())
                told = table_failed(name, self._reader.name, failure, folder, log, attempted="read")
                found.left_out[name] = told.with_section

    def _part(self, there: PastTable[Rows], table: TableId) -> _Part:
        """Return what must be read and folded for a table.

        Raises:
            CannotFollow, HistoryLost, VersionGone: the table cannot be shown; the message is the reason.
        """
        entry = self._entries.get(str(table))
        known = self._positions.backfill(table)
        policy = self._policies.of(str(table))
        if entry is None:
            mode = decide_mode(table, None, policy)
            since, before, start = self._positions.beginning(table, mode), None, 0
            complete, state = known.is_whole(since), known.state_of(since)
        else:
            before = self._snapshot(there, table, entry)
            mode = decide_mode(table, before.properties, policy)
            self._positions.see(table, before)
            start = self._start
            since = self._positions.behind(table, start, mode)
            complete, state = self._positions.standing(table, before)
        files = self._log.files(table, start, since)
        range_ = TableRange(table, before, files, start, policy=policy, mode=mode, is_new=before is None)
        range_ = self._positions.swept_by(range_, since)
        has_stood = entry is not None and (entry.complete or entry.state == IN_DOUBT)
        if entry is not None and has_stood and not files and not range_.sweep:
            complete, state = known.stays_whole(complete=entry.complete, state=entry.state)
        if mode.ends is not None or range_.purges:
            asked = [offset for offset in (range_.since, range_.sweep) if offset]
            range_ = replace(range_, transactions=self._log.transactions(files, asked))
        empty = self._empty(table, mode) if before is None and not files else None
        return _Part(range_, entry, complete, state, empty)

    def _empty(self, table: TableId, mode: ModeRules) -> Target:
        """Return the description of a table that never had a row.

        Raises:
            HistoryLost: it had rows, which have expired.
        """
        shape = self._positions.empty_shape(table)
        if shape is None:
            raise self._positions.history_lost(table)
        return evolve(None, [shape], format_=self._reader.rules, mode=mode).target

    def _snapshot(self, there: PastTable[Rows], table: TableId, entry: CutTable) -> TableSnapshot:
        """Return the table as the published cut shows it."""
        found = there.as_of(entry.version)
        if self._published is not None and is_replaced(self._published, str(table), found.commit, found.transactions):
            raise VersionGone(REPLACED)
        # An older cdcflow did not keep the id.
        if entry.id == found.id or (
            not entry.id and 0 < found.transactions.get(self._positions.app(table), 0) <= self._start
        ):
            return found
        raise VersionGone("another table is in its folder, created since then")

    def _version_gone(self, table: TableId, entry: CutTable, why: str) -> HistoryLost:
        return HistoryLost(
            f"version {entry.version} of table {table}, which cut {self._start} of {self._place} shows, no longer"
            f" exists: {why}",
            remedy="run `cdcflow merge`, then read again",
            runbook="cut-gone",
        )

    def _rows(self, there: PastTable[Rows], part: _Part) -> Rows:
        range_, mode = part.range_, part.range_.mode
        if part.empty is not None:
            return there.result(sql.nothing(part.empty, mode), part.empty, mode)
        if range_.files and (reason := self._reader.declines(range_.files, mode)) is not None:
            raise HandOver(reason)
        with self._with_readable_files(range_) as located:
            return self._folded_rows(there, located) if range_.files else self._unchanged_rows(there, located)

    def _unchanged_rows(self, there: PastTable[Rows], range_: TableRange) -> Rows:
        """Return the rows of a table that has no changes in the range, without those that a later backfill did not
        find."""
        target, mode, session = range_.existing_target(), range_.mode, there.session
        assigned = {} if mode.ended is None else {mode.ended: "true"}
        if mode.ends is not None and range_.sweep:
            found = histories.moment(session, range_.transactions, range_.sweep)
            assigned = versions.sweep_assignments(mode.ends, range_.sweep, found)
        with _Views(session) as views:
            base = views.add(there.base())
            query = sql.rows_without_changes(target, base, mode, sweep_before=range_.sweep, assigned=assigned)
            return there.result(query, target, mode)

    def _folded_rows(self, there: PastTable[Rows], range_: TableRange) -> Rows:
        mode, session = range_.mode, there.session
        target = None if range_.before is None else range_.existing_target()
        with _Views(session) as views:
            rows = _Once(lambda: views.add(there.base()))
            for turn, groups in _turns(range_):
                evolutions: list[Evolution] = []
                for shapes in groups:
                    evolutions.append(turn.evolution_of(target, shapes, self._reader.rules))
                    target = evolutions[-1].target
                    rows = self._rows_in_latest_shape(evolutions[-1], rows, session, views, mode)
                with folding(turn, session, evolutions, rows.standing) as found:
                    name = "" if found.empty or found.emptied else rows()
                    broadcast, together = (found.count <= most for most in (BROADCAST_ROWS_MAX, TOGETHER_ROWS_MAX))
                    query = sql.rows_after_range(
                        found,
                        evolutions[-1].target,
                        name,
                        mode,
                        broadcast=broadcast,
                        together=together,
                        doubled=self._reader.shows_doubled,
                    )
                    if turn.files[-1] is range_.files[-1]:
                        return there.result(query, evolutions[-1].target, mode)
                    rows = _Once(functools.partial(str, views.add(session.keep("turn", query))))
        raise AssertionError  # not reached

    def _rows_in_latest_shape(
        self, evolution: Evolution, rows: Callable[[], str], session: SqlSession, views: _Views, mode: ModeRules
    ) -> _Once:
        """Return the table's rows in its latest shape."""

        def make_view() -> str:
            before = evolution.before
            if before is None:
                raise InvariantViolated(f"reading {evolution.numbered[-1].id}: rows of a table that does not exist")
            return views.add(session.view("live", sql.rows_after_acts(before, evolution.acts(), rows(), mode)))

        return _Once(make_view)

    @contextmanager
    def _with_readable_files(self, range_: TableRange) -> Iterator[TableRange]:
        """Yield the range with its files at paths where the reader can read them.

        Raises:
            SegmentGone: one of them was removed in the meantime.
        """
        layout, files = self._log.layout, [*range_.files, *range_.transactions]
        above = None if layout.store is None else layout.store.room
        with tempfile.TemporaryDirectory(prefix="cdcflow-live-", dir=above) as room:
            try:
                try:
                    changes, transactions = (
                        self._reader.readable_files(layout, of, Path(room)) if of else []
                        for of in (range_.files, range_.transactions)
                    )
                except HistoryLost as error:  # neither local nor in the log's store
                    raise SegmentGone(str(error)) from error
                yield replace(range_, files=changes, transactions=transactions)
            except Exception as error:
                if not self._reader.is_gone(error) or self._are_there(files):
                    raise
                raise SegmentGone(f"reading {layout.name}: a file of it is gone") from error

    def _are_there(self, files: Sequence[InputFile]) -> bool:
        """Return whether all of these files of the log still exist. If so, the missing file is not among them."""
        layout = self._log.layout
        return layout.store is None and all(Path(file.path).exists() for file in files)


def _turns(range_: TableRange) -> Iterator[tuple[TableRange, list[list[Table]]]]:
    """Yield the parts of a range that are folded one after the other, each with the groups of shapes through which the
    table evolves. In the mode `history` each incarnation of the source table is one part."""
    groups = group_shapes(shapes_over_time(range_.files), range_.mode)
    if not range_.mode.in_turn:
        yield range_, groups
        return
    for shapes in groups:
        files = [f for f in range_.files if f.shape.incarnation == shapes[0].incarnation]
        is_last = shapes is groups[-1]
        yield replace(range_, files=files, sweep=range_.sweep if is_last else 0), [shapes]
        stood = range_.before or TableSnapshot("", 0, {}, {}, (), is_empty=False)
        range_ = replace(range_, before=replace(stood, is_empty=False))


class _Once:
    """A view that is created when it is first needed."""

    def __init__(self, make: Callable[[], str]) -> None:
        self._make = make
        self._made: str | None = None

    def __call__(self) -> str:
        if self._made is None:
            self._made = self._make()
        return self._made

    def standing(self, layout: ReduceLayout, changes: str, *, whole: bool = False) -> str:
        """Return the name of the view of all rows, as `CurrentTable.standing` does; the arguments are ignored."""
        return self()


class _Views:
    """The views that were created in a session, which are dropped at the end."""

    def __init__(self, session: SqlSession) -> None:
        self._session = session
        self._names: list[str] = []

    def add(self, name: str) -> str:
        self._names.append(name)
        return name

    def __enter__(self) -> _Views:
        return self

    def __exit__(self, *_: object) -> None:
        self._session.drop(self._names)
