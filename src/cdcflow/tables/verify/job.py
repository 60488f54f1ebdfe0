"""A comparison of source and copy, table by table, while both keep running.

    pass     digest the source's rows and the copy's; differences are unverified. The server digests if it can, and
             adds up, and only rows of differing buckets are read (`buckets`); otherwise all are read, and digested here
    rounds   read unverified rows again, by key: a row that still differs, although no change touched it, is different

The pass determines which rows are unverified; later writes add none. Rounds are needed only for keys that change all
the time, and for those whose changes are in the log's unsealed tail. A table without a key is read whole in each round.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc
import structlog

from cdcflow.capture.interleave.progress import Progress
from cdcflow.capture.ports.comparison import Comparison, NoText
from cdcflow.errors import CdcflowError, ConfigurationError, see
from cdcflow.log.read.log_reader import LogReader
from cdcflow.model.change import KeySet
from cdcflow.model.keytexts import texts_of
from cdcflow.model.table import Table
from cdcflow.tables.job.failures import kinds, of_system
from cdcflow.tables.merge.target import Target
from cdcflow.tables.verify.buckets import MOST, MOST_DIFFER, Pass, differing_buckets, no_buckets, plan
from cdcflow.tables.verify.history import Key, histories
from cdcflow.tables.verify.port import COUNTED, At, Columns, Comparer, Copy, Gate, NotComparable, NothingSealed
from cdcflow.tables.verify.report import (
    NOT_THERE_YET,
    Against,
    LoggedChange,
    Report,
    Row,
    RowDifference,
    TableReport,
    Verdict,
    What,
)
from cdcflow.tables.verify.settled import Changed, Fences, SettledRange, changed_keys, concat_tables, wait_for_log
from cdcflow.tables.verify.source_rows import SourceRows

MOVES_MAX = 12
"""A row that is still open after the copy has advanced this many times changes all the time."""

STILL_MAX = 30
"""After this many consecutive rounds at the same place of the copy, the copy is not expected to advance."""

ROUNDS_MAX = 60


KEYS_AT_ONCE = 20_000
"""At most this many unverified keys are read again; if there are more, the first of them are representative."""
DIFFERENCES_MAX = 20

NONE = pa.table({name: pa.array([], pa.int64()) for name in COUNTED})

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Pace:
    """How fast a comparison reads, and how long it waits. `rows_per_second`: the maximum rate of reading the source;
    `None`: no limit. `log_wait_s`: how long the log may take to reach the position at which the source was read.
    `seal_wait_s`: the pause between two rounds, so that the log's tail is sealed. `gate`: admits each read, if reading
    is limited."""

    rows_per_second: int | None = None
    gate: Gate | None = None
    log_wait_s: float = 60.0
    seal_wait_s: float = 2.0


PACE = Pace()


def verify(
    comparison: Comparison,
    log: LogReader,
    copies: Mapping[Against, Copy],
    comparer: Comparer,
    tables: Collection[str] = (),
    *,
    differences_max: int = DIFFERENCES_MAX,
    keys_max: int = 0,
    pace: Pace = PACE,
    sleep: Callable[[float], None] = time.sleep,
    watch: Callable[[TableReport], None] | None = None,
) -> Report:
    """Compare tables (by default all captured ones) of the source with each of the copies.

    `differences_max`: how many differing rows are reported per table; all of them are counted. `keys_max`: how many of
    their keys are reported, in the notation of `keytexts`. `watch` is called with each table's report as soon as the
    table is compared.

    Raises:
        ConfigurationError: no table has such a name; or the log does not follow the source.
        SourceUnavailable: the source does not answer.
    """
    began = time.monotonic()
    found = []
    sides = _Sides(comparison, log, comparer, differences_max, keys_max, pace, sleep)
    for shape in _select(comparison.tables(), tables):
        for against, copy in copies.items():
            one = _Verification(sides, copy, shape, against).run()
            _log.info("table compared", table=one.table, against=against, verdict=one.verdict, rows=one.rows)
            found.append(one)
            if watch is not None:
                watch(one)
    return Report(tuple(found), time.monotonic() - began)


def _select(known: Sequence[Table], names: Collection[str]) -> list[Table]:
    if unknown := sorted(set(names) - {str(t.id) for t in known}):
        raise ConfigurationError(
            f"comparing {', '.join(unknown)}: the source has no captured table of that name",
            remedy=f"name one of: {', '.join(str(t.id) for t in known)}",
            runbook="table-not-found",
        )
    return [t for t in known if not names or str(t.id) in names]


@dataclass(frozen=True, slots=True)
class _Look:
    """The result of one read of source and copy. `doubts`: the keys that differ, with `COUNTED`; `open`: those among
    them that changed in the meantime. `source`: rows of the source that were read; `rows`: their total number."""

    at: At
    reached: SettledRange
    doubts: pa.Table
    open: pa.Table
    rows: int
    source: pa.Table | None = None


@dataclass(frozen=True, slots=True)
class _Sides:
    """The arguments of `verify` that the comparisons of all tables share."""

    comparison: Comparison
    log: LogReader
    comparer: Comparer
    differences_max: int
    keys_max: int
    pace: Pace
    sleep: Callable[[float], None]


class _Verification:
    """The comparison of one table with one copy."""

    def __init__(self, sides: _Sides, copy: Copy, shape: Table, against: Against) -> None:
        self._sides = sides
        self._log = sides.log
        self._comparison = sides.comparison
        self._copy = copy
        self._comparer = sides.comparer
        self._shape = shape
        self._against: Against = against
        self._pace = sides.pace
        rate, gate = sides.pace.rows_per_second, sides.pace.gate
        self._source = SourceRows(sides.comparison, shape.id, rows_per_second=rate, gate=gate, sleep=sides.sleep)

    def run(self) -> TableReport:
        began = time.monotonic()
        epoch = self._log.newest_checkpoint().epoch
        report = TableReport(str(self._shape.id), self._against, "not compared", epoch=epoch)
        try:
            found = self._compare_table(report)
        except NothingSealed as why:
            found = self._compared_with_nothing(report, why)
        except NotComparable as why:
            found = replace(report, reason=str(why))
        except CdcflowError:
            raise
        except Exception as error:  # noqa: BLE001  whatever the error is, the next tables are compared
            found = replace(report, reason=not_compared(error))
            _log.error("comparison failed", table=report.table, reason=found.reason)
        return replace(found, seconds=time.monotonic() - began)

    def _compared_with_nothing(self, report: TableReport, why: NothingSealed) -> TableReport:
        """Compare a table with a log without a single row. Such a log is a complete copy of the table if the backfill
        is done and found no row."""
        fences = self._begin()
        has_rows = any(piece.rows.num_rows for piece in self._source.all(fences))
        found = self._end(fences)
        checkpoint = self._log.newest_checkpoint()
        state = Progress.from_json(checkpoint.progress).tables.get(self._shape.id)
        if has_rows or checkpoint.next_offset > 1 or state is None or state.state != "done":
            return replace(report, reason=str(why))
        return replace(report, verdict="equal", position=found.position)

    def _compare_table(self, report: TableReport) -> TableReport:
        columns, left_out = columns_of(self._shape, self._copy.describe(self._shape.id))
        report = replace(report, left_out=left_out)
        first, report = self._first(columns, report)
        look = first
        rounds = Rounds()
        while look.open.num_rows or (look.doubts.num_rows and rounds.done == 1 and columns.has_key):
            if rounds.are_over:
                break
            if rounds.done > 1 or not columns.has_key:
                self._sides.sleep(self._pace.seal_wait_s)
            before = look.at.offset
            # Keys that certainly differ stay included: their rows are shown as last read.
            look = self._again(columns, look.doubts) if columns.has_key else self._whole(columns)
            # Without a key each round reads the whole table.
            rounds.count(moved=look.at.offset != before or not columns.has_key)
        sure = self._comparer.outside(look.doubts, look.open) if look.open.num_rows else look.doubts
        equal: Verdict = "equal but for" if report.missing_columns else "equal"
        verdict: Verdict = "different" if sure.num_rows else "unsettled" if look.open.num_rows else equal
        beyond = max(0, first.doubts.num_rows - KEYS_AT_ONCE) if columns.has_key else 0
        return replace(
            report,
            verdict=verdict,
            rows=first.rows,
            position=first.reached.position,
            offset=first.reached.first - 1,
            cut=look.at.cut,
            different=sure.num_rows + (beyond if sure.num_rows else 0),
            unsettled=look.open.num_rows,
            differences=self._differences(columns, sure.slice(0, self._sides.differences_max), look),
            keys=self._key_texts(columns, sure.slice(0, self._sides.keys_max)),
            shape_key=self._shape_key(columns) if verdict == "equal but for" else (),
            rounds=rounds.done,
        )

    def _first(self, columns: Columns, report: TableReport) -> tuple[_Look, TableReport]:
        """Compare all rows, by digests that the server computes if it can."""
        if why := no_buckets(self._comparison, columns):
            return self._whole(columns), replace(report, read_why=why)
        try:
            look = self._by_buckets(columns)
        except NoText as none:
            return self._whole(columns), replace(report, read_why=str(none))
        if look is None:
            return self._whole(columns), replace(report, read_why=MOST_DIFFER)
        return look, replace(report, by="digests")

    # ── reading and comparing ───────────────────────────────────────────────────────────────────────────────

    def _whole(self, columns: Columns) -> _Look:
        """Compare every row of the source with every row of the copy."""
        fences = self._begin()
        digests, rows = [], []
        for piece in self._source.all(fences):
            converted = self._comparer.convert_rows(columns, piece.shape, piece.rows)
            digests.append(self._comparer.digest_rows(columns, converted))
            if not columns.has_key:
                rows.append(converted)
        found = self._end(fences)
        at, copy = self._copy.digests(columns)
        source = concat_tables(digests) if digests else copy.slice(0, 0)
        doubts = self._comparer.differing(source, copy)
        return self._look(columns, at, found, doubts, source.num_rows, concat_tables(rows) if rows else None)

    def _by_buckets(self, columns: Columns) -> _Look | None:
        """Compare every row, but read only the rows in buckets that differ; return `None` if most of them do.

        Raises:
            NoText: the server has no text for some columns.
        """
        buckets = plan(self._comparison, columns)
        summed = Pass(self._source, self._comparison, buckets)
        fences = self._begin()
        (at, copied), source = summed.sum_concurrently(lambda: self._copy.buckets(columns, buckets), fences)
        found = self._end(fences)
        rows = int(pc.sum(source.column("n")).as_py() or 0)
        numbers = differing_buckets(source, copied)
        if not numbers:
            return _Look(at, found, NONE, NONE, rows)
        if len(numbers) > buckets.count * MOST:
            return None
        buckets = buckets.among(numbers)
        fences = self._begin()
        digests = [
            self._comparer.digest_rows(columns, self._comparer.convert_rows(columns, piece.shape, piece.rows))
            for piece in Pass(self._source, self._comparison, buckets).rows(fences)
        ]
        again = self._end(fences)
        at, copy = self._copy.digests(columns, buckets)
        doubts = self._comparer.differing(concat_tables(digests) if digests else copy.slice(0, 0), copy)
        # The first pass has compared the other buckets.
        return replace(self._look(columns, at, again, doubts, rows, None), reached=found)

    def _again(self, columns: Columns, doubts: pa.Table) -> _Look:
        """Compare only the rows with the keys in `doubts`."""
        keys = doubts.drop_columns(list(COUNTED)).slice(0, KEYS_AT_ONCE)
        fences = self._begin()
        pieces = [
            self._comparer.convert_rows(columns, piece.shape, piece.rows)
            for piece in self._source.with_keys(fences, self._shape, self._as_source(keys))
        ]
        found = self._end(fences)
        at, copied = self._copy.rows(columns, keys)
        # The server may also have found another row, whose key is spelled differently but equal to it.
        source = self._comparer.matching(columns, concat_tables(pieces), keys) if pieces else copied.slice(0, 0)
        differing = self._comparer.differing(
            self._comparer.digest_rows(columns, source), self._comparer.digest_rows(columns, copied)
        )
        return self._look(columns, at, found, differing, source.num_rows, source)

    def _begin(self) -> Fences:
        fences = Fences(self._log.newest_checkpoint().next_offset)
        self._source.begin(fences)
        return fences

    def _end(self, fences: Fences) -> SettledRange:
        self._source.end(fences)
        return wait_for_log(self._log, self._comparison, fences, self._pace.log_wait_s, self._sides.sleep)

    def _look(
        self, columns: Columns, at: At, found: SettledRange, doubts: pa.Table, rows: int, source: pa.Table | None
    ) -> _Look:
        if not doubts.num_rows:
            return _Look(at, found, doubts, doubts, rows, source)
        first, last = min(found.first, at.offset + 1), max(found.newest, at.offset)
        touched = changed_keys(self._log, self._comparer, columns, self._shape, first, last)
        return _Look(at, found, doubts, self._open(columns, doubts, touched), rows, source)

    def _open(self, columns: Columns, doubts: pa.Table, touched: Changed) -> pa.Table:
        """Return the unverified keys that changed in the meantime, so that they cannot be judged yet."""
        if touched.is_empty:
            return doubts.slice(0, 0)
        if touched.keys is None or not columns.has_key:
            return doubts
        return self._comparer.among(doubts, touched.keys)

    def _as_source(self, keys: pa.Table) -> pa.Table:
        """Convert keys to the types of the source's rows."""
        types = {c.name: c.type.arrow for c in self._shape.columns}
        try:
            return keys.cast(pa.schema([(f"k{i}", types[name]) for i, name in enumerate(self._shape.key)]))
        except pa.ArrowException:
            raise NotComparable(
                "rows differ, and they cannot be named by their key, which has another type in the copy"
            ) from None

    def _key_texts(self, columns: Columns, sure: pa.Table) -> tuple[tuple[str, ...], ...]:
        if not columns.has_key or not sure.num_rows:
            return ()
        return tuple(map(tuple, texts_of(KeySet(self._as_source(sure.drop_columns(list(COUNTED)))))))

    def _shape_key(self, columns: Columns) -> tuple[str, ...]:
        """Return the key of one row of the source, if it has a row whose key can be written as text."""
        with contextlib.suppress(NotComparable, ValueError):
            for piece in self._source.all(self._begin()) if columns.has_key else ():
                if piece.rows.num_rows:
                    values = [piece.rows.column(name).slice(0, 1) for name in self._shape.key]
                    key = pa.table(values, [f"k{number}" for number in range(len(values))])
                    return tuple(texts_of(KeySet(self._as_source(key)))[0])
        return ()

    # ── reporting ───────────────────────────────────────────────────────────────────────────────────────────

    def _differences(self, columns: Columns, sure: pa.Table, look: _Look) -> tuple[RowDifference, ...]:
        if not sure.num_rows:
            return ()
        keys = sure.drop_columns(list(COUNTED))
        _, copied = self._copy.rows(columns, keys)
        source = copied.slice(0, 0) if look.source is None else self._comparer.matching(columns, look.source, keys)
        there, here = _by_key(columns, source), _by_key(columns, copied)
        last = self._log.newest_checkpoint().next_offset - 1
        known = histories(self._log, self._comparer, columns, keys, last) if columns.has_key else {}
        return tuple(
            _difference(columns, key, there.get(key, []), here.get(key, []), known.get(key, ()))
            for key in dict.fromkeys([*there, *here])
        )


def _difference(
    columns: Columns, key: Key, source: Sequence[Row], copy: Sequence[Row], history: tuple[LoggedChange, ...]
) -> RowDifference:
    off: tuple[str, ...] = ()
    what: What = "extra" if not source else "missing" if not copy else "doubled"
    if source and copy:
        # Compared as texts, which distinguishes the two zeros and handles NaN.
        off = tuple(name for name, _ in columns.columns if repr(source[0][name]) != repr(copy[0][name]))
        what = "different" if off else "doubled"
    named = dict(zip(columns.key, key, strict=True)) if columns.has_key else {}
    return RowDifference(
        named, what, off, source[0] if source else None, copy[0] if copy else None, (len(source), len(copy)), history
    )


def columns_of(shape: Table, target: Target) -> tuple[Columns, dict[str, str]]:
    """Return the columns of a table that are compared, and the ones that are not, with the reason.

    Raises:
        NotComparable: the copy has a different key.
    """
    there = {c.name: c for c in target.columns}
    here = {c.name for c in shape.columns}
    left_out = {c.name: NOT_THERE_YET for c in shape.columns if c.name not in there}
    left_out |= {name: "the source no longer has it" for name in there if name not in here}
    if tuple(target.key) != tuple(shape.key) or set(shape.key) & left_out.keys():
        raise NotComparable("its key is different in the copy; run `cdcflow merge`, and verify again")
    named = tuple((c.name, there[c.name].type) for c in shape.columns if c.name in there)
    key = tuple(shape.key) or tuple(name for name, _ in named)
    return Columns(shape.id, named, key, bool(shape.key)), left_out


def not_compared(error: Exception) -> str:
    """Return the reason to report for an error that ended a table's comparison. The error's own text may contain a
    row's values."""
    found = of_system(error)
    if found is not None and found.place:
        return f"{found.place} cannot be read ({found.what}); {see('table-failed')}"
    return f"the comparison failed ({kinds(error)}), which is a fault in cdcflow; {see(CdcflowError.section)}"


def _by_key(columns: Columns, rows: pa.Table) -> dict[Key, list[Row]]:
    found: dict[Key, list[Row]] = {}
    for row in rows.to_pylist():
        found.setdefault(tuple(_plain(row[name]) for name in columns.key), []).append(row)
    return found


def _plain(value: object) -> object:
    return tuple(map(_plain, value)) if isinstance(value, list) else value


@dataclass(slots=True)
class Rounds:
    """The rounds of one table: how often rows that change while they are compared are compared again.

        copy     ──A─────────────B──────────▶      A, B: the copy advances, by a sealed segment or a merge
        rounds     1  2  3  4  5 6                 2 to 5 see the copy of round 1

    A row that was written after the copy's place stays open until the copy has passed it. So the limit is on the number
    of times that the copy advanced, not on the number of comparisons. A log in Kafka advances only with its merges.
    `done`: the number of rounds so far.
    """

    done: int = 1
    _moves: int = 1
    _still: int = 0

    def count(self, *, moved: bool) -> None:
        """Record another round. `moved`: the copy was at another place than in the round before."""
        self.done += 1
        self._moves += moved
        self._still = 0 if moved else self._still + 1

    @property
    def are_over(self) -> bool:
        return self.done >= ROUNDS_MAX or self._moves >= MOVES_MAX or self._still >= STILL_MAX
