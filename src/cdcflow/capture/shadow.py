"""The shadow check: whether what the stream decoded equals what the source holds. Sampled; off unless requested.

What it finds, and what not: docs/verify.md. A row that a transaction changed is read again by its key, and compared:

    c      the stream delivers a change of a row: key, columns and transaction are kept
    read   the row, by its key, in a snapshot that sees c
    mark   is committed after it, and arrives through the stream

                 c                        read      mark
    source log ──┴──(nothing of this key)──────────┴──▶

Whatever the snapshot saw is in the log before the mark. So if nothing between c and the mark touches the row, the
snapshot showed it as c left it, and every column must be equal, exactly. If something does (a change of the key, a
truncate, another shape, a statement that changes rows), the sample is useless and is dropped: it is unknown whether the
snapshot was before or after that.

A commit is in the log before it can be seen (hard case W03). A snapshot that does not see c reports that (`hidden`),
and the row is read again a little later.

A statement that changes rows without the log containing it (PostgreSQL's rewrites) shows in the rows' version, which is
queried after the read and compared with that of the table's backfill. The catalog may be ahead of the stream; but a
backfill is done only when the stream has passed its last mark, so a row that arrives afterwards was not decoded from
before its version.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cdcflow.capture.interleave.messages import (
    Chunk,
    ChunkRead,
    Committed,
    Input,
    KnownRows,
    MarkSeen,
    RowsCompared,
    RowsFilled,
    RowsIncomplete,
)
from cdcflow.capture.interleave.progress import Progress
from cdcflow.capture.ports.chunks import ChunkSource
from cdcflow.capture.ports.source import EventComparison, SecondOpinion, Source
from cdcflow.capture.ports.stream import StreamEvent
from cdcflow.capture.source_tasks import SourceTasks
from cdcflow.errors import CdcflowError
from cdcflow.model.change import INSERT, UPDATE, ChangeBatch, KeySet, Run, SpooledTransaction
from cdcflow.model.position import Epoch, Position, Token
from cdcflow.model.table import OP, UNCHANGED, Table, TableId, word
from cdcflow.model.types import ERASABLE, HASHED

DIFFERENCE = "shadow check found a difference"
AGAIN_S = 1.0
"""The pause before a row whose transaction was not visible yet is read again."""
READS_MAX = 60
ROWS_TRIED = 4
"""At most this many rows of a run are checked for one that can be a sample."""
_SPREAD = 2654435761  # 2^32 divided by the golden ratio: consecutive multiples are far apart


@dataclass(slots=True, eq=False)
class _Sample:
    """A decoded row to compare with the source. `row_version`: the version of its table's rows when it was decoded.

    `again_at`: when it is read once more. `token`: the mark sent after it was read; `shown`: the row as the source
    showed it, empty if the source had no such row.
    """

    table: Table
    key: KeySet
    row: pa.RecordBatch
    xid: int
    position: Position
    generation: int
    row_version: str | None
    is_asked: bool = False
    reads: int = 0
    again_at: float | None = None
    token: Token | None = None
    shown: tuple[pa.RecordBatch, ...] = ()


@dataclass(frozen=True, slots=True)
class _Difference:
    """A difference that was found in a table. `generation` counts the table's backfills: a later backfill replaces
    wrong rows, and so ends the difference."""

    generation: int
    text: str


class Shadow:
    """The shadow checks of a capture: one at a time, at most one per `every_s` (None: off). `tell` gets events about
    them.

    `read` is called from a task's thread, `counts` and `states` from any, the other methods from the loop's.
    Differences outlive attempts.
    """

    def __init__(self, every_s: float | None, tell: Callable[[str, Mapping[str, object]], None]) -> None:
        self.every_s = every_s
        self._tell = tell
        self._lock = threading.Lock()
        self._prefix = ""
        self._number = 0
        self._sample: _Sample | None = None
        self._progress = Progress({})
        self._now, self._asked_at = 0.0, -1e9
        self._asked: dict[TableId, int] = {}  # at which number a table was read last
        self._turn = 0
        self._counts = {"shadow_checks": 0, "shadow_differences": 0, "shadow_moved_on": 0, "shadow_events": 0}
        self._events = EventChecks(self.event_compared)
        self._differences: dict[TableId, _Difference] = {}

    def begin(self, tables: Sequence[Table], epoch: Epoch) -> None:
        """Begin a new attempt, which captures these tables.

        Its stream begins earlier than the previous attempt's ended, so a sample of that attempt is dropped.
        """
        with self._lock:
            self._prefix, self._progress = f"shadow {epoch}", Progress({})
            if self._sample is not None:
                self._forget(self._sample)
            known = {t.id for t in tables}
            self._differences = {t: found for t, found in self._differences.items() if t in known}

    # ── from the stream ─────────────────────────────────────────────────────────────────────────────────────

    def came(self, event: StreamEvent) -> None:
        """Take an event of the stream, in the order of the source's log, even if a window holds its rows back."""
        if self.every_s is None and self._sample is None:
            return
        found: _Sample | None = None
        with self._lock:
            match event:
                case Committed(run):
                    self._drop_if_touched(run)
                    self._take(run)
                case RowsFilled(table=table) | RowsIncomplete(table=table):
                    if self._sample is not None and self._sample.table.id == table:
                        self._forget(self._sample)
                case MarkSeen(token=token):
                    if self._sample is not None and self._sample.token == token:
                        found, self._sample = self._sample, None
                case _:
                    pass
        if found is not None:
            self._compare(found)

    def _drop_if_touched(self, run: object) -> None:
        """Drop the sample if this run touches its row."""
        sample = self._sample
        if sample is None:
            return
        if isinstance(run, SpooledTransaction):
            if run.first_touching(frozenset((sample.table.id,))) is not None or run.truncates(sample.table.id):
                self._forget(sample)
        elif isinstance(run, Run) and any(_touches(batch, sample) for batch in run.batches):
            self._forget(sample)

    def _take(self, run: object) -> None:
        """Keep a row of this run as the sample, if a sample is due. Replace a sample that is not being read yet if a
        table of this run has waited longer."""
        if self.every_s is None or not isinstance(run, Run) or (self._sample is not None and self._sample.is_asked):
            return
        latest = max(self._asked.values(), default=0)
        before = latest + 1 if self._now - self._asked_at >= self.every_s else latest
        if self._sample is not None:
            before = self._asked.get(self._sample.table.id, 0)
        for batch in sorted(run.batches, key=lambda b: self._asked.get(b.table.id, 0)):
            if self._asked.get(batch.table.id, 0) >= before:
                return
            if (sample := self._of(run, batch)) is not None:
                self._sample = sample
                return

    def _of(self, run: Run, batch: ChangeBatch) -> _Sample | None:
        """Return a row of this batch that is complete and that no later row of the run changes; None if no row tried
        is."""
        table, rows = batch.table, batch.rows
        known = self._progress.tables.get(table.id)
        if known is None or known.state != "done" or not _is_compared(table):
            return None
        if sum(b.table.id == table.id for b in run.batches) > 1 or run.truncates(table.id):
            return None
        for _ in range(min(ROWS_TRIED, rows.num_rows)):
            self._turn += 1
            picked = rows.slice(self._turn * _SPREAD % rows.num_rows, 1)
            at = int(np.flatnonzero(_has_key(rows, picked, table))[-1])
            if rows.column(OP)[at].as_py() not in (INSERT, UPDATE) or rows.column(UNCHANGED)[at].is_valid:
                continue
            # `take` copies the row. A slice would keep the whole run in memory.
            row = rows.select(table.row_schema.names).take(pa.array([at]))
            number = int(np.searchsorted(run.ends, batch.index[at], side="right"))
            return _Sample(
                table=table,
                key=KeySet(pa.Table.from_batches([row.select(list(table.key))])),
                row=row,
                xid=int(run.xid[number]),
                position=Position(run.position[number].as_py()),
                generation=known.generation,
                row_version=known.row_version,
            )
        return None

    def _forget(self, sample: _Sample) -> None:
        if self._sample is sample:
            self._sample = None
            self._counts["shadow_moved_on"] += sample.is_asked

    # ── reading ─────────────────────────────────────────────────────────────────────────────────────────────

    def look(self, now_s: float, tasks: SourceTasks, source: Source, chunks: ChunkSource, progress: Progress) -> None:
        """Have the sample read, and a row event compared, if it is time."""
        self._now, self._progress = now_s, progress
        self._events.look(now_s, self.every_s, tasks, source)
        if (sample := self._sample) is not None and self._is_to_be_read(sample):
            tasks.call(lambda: self.read(sample, source, chunks))

    def _is_to_be_read(self, sample: _Sample) -> bool:
        with self._lock:
            if sample.is_asked:
                is_time = sample.again_at is not None and self._now >= sample.again_at
                if is_time:
                    sample.again_at = None
                return is_time
            if self.every_s is None:  # switched off since
                self._forget(sample)
                return False
            if self._now - self._asked_at < self.every_s:
                return False
            sample.is_asked = True
            self._asked_at = self._now
            self._asked[sample.table.id] = max(self._asked.values(), default=0) + 1
            return True

    def read(self, sample: _Sample, source: Source, chunks: ChunkSource) -> Input | None:
        """Read a sample's row and send a mark after it, unless it was dropped.

        Return the source's row version, from which the machine learns about unlogged changes of rows.
        """
        compared: RowsCompared | None = None
        try:
            table = sample.table.id
            with self._lock:
                self._number += 1
                token = Token(f"{self._prefix} {self._number}")
            plan = chunks.plan(table, 0).plan
            found = chunks.read_chunk(
                Chunk(table, sample.generation, 1, plan, None, 1, token, "keys", sample.key, single_connection=True)
            )
            if found.rewritten or _is_hidden(sample.xid, found):
                self._read_again(sample)
                return None
            # The version is queried after the read, so that it shows a statement that changed the row before the read.
            compared = self._compare_rows(sample, source)
            is_other = _is_another(sample.table, found.shape)
            if is_other or compared is None or any(v.changed or v.known is None for v in compared.found):
                with self._lock:
                    self._forget(sample)
            elif self._keep(sample, token, found):
                chunks.write_mark(token)
        except CdcflowError:
            # No answer, or no table: the stream and the periodic checks have the same problem, and report it.
            with self._lock:
                self._forget(sample)
        return compared

    def _compare_rows(self, sample: _Sample, source: Source) -> RowsCompared | None:
        """Compare the rows' version in the source's catalog with the sample's.

        None if the version in the machine's progress has changed since.
        """
        known = self._progress.tables.get(sample.table.id)
        if known is None or (known.generation, known.row_version) != (sample.generation, sample.row_version):
            return None
        return source.compare_rows({sample.table.id: KnownRows(sample.generation, sample.row_version)})

    def _read_again(self, sample: _Sample) -> None:
        with self._lock:
            sample.reads += 1
            if sample.reads >= READS_MAX:
                self._forget(sample)
            else:
                sample.again_at = self._now + AGAIN_S

    def _keep(self, sample: _Sample, token: Token, found: ChunkRead) -> bool:
        """Store the row that the source showed. Return whether the sample was kept; its mark may arrive from now on."""
        run = found.run
        assert run is None or isinstance(run, Run)  # noqa: S101 - rows read by key are in memory
        with self._lock:
            sample.token = token
            sample.shown = () if run is None else tuple(b.rows for b in run.batches if b.rows.num_rows)
            return self._sample is sample

    # ── the result ──────────────────────────────────────────────────────────────────────────────────────────

    def _compare(self, sample: _Sample) -> None:
        table, count = sample.table, sum(rows.num_rows for rows in sample.shown)
        names = _changed_columns(sample.row, sample.shown[0], table) if count == 1 else list(table.row_schema.names)
        with self._lock:
            self._counts["shadow_checks"] += 1
            if not names:
                return
            self._counts["shadow_differences"] += 1
            what = f"differs in {', '.join(names)}" if count == 1 else "is not there" if not count else "is doubled"
            remedy = f"run `cdcflow verify {word(table.id)}`"
            self._differences[table.id] = _Difference(
                sample.generation, f"a row that was decoded at {sample.position} {what} at the source; {remedy}"
            )
        fields = {"table": str(table.id), "row": what, "columns": ", ".join(names), "position": sample.position.text}
        self._tell(DIFFERENCE, {**fields, "transaction": sample.xid, "remedy": remedy})

    def event_compared(self, found: EventComparison) -> None:
        """Record the result of decoding a row event with another library as well."""
        what = " and ".join(
            [f"differs in {', '.join(found.columns)}"] * bool(found.columns) + [found.failure] * bool(found.failure)
        )
        with self._lock:
            self._counts["shadow_events"] += 1
            if found.is_equal:
                return
            self._counts["shadow_differences"] += 1
            remedy = f"run `cdcflow verify {word(found.table)}`"
            known = self._progress.tables.get(found.table)
            self._differences[found.table] = _Difference(
                0 if known is None else known.generation,
                f"a row event that ends at {found.position} was also decoded by {found.by}, and {what}; {remedy}",
            )
        fields = {"table": str(found.table), "row": what, "columns": ", ".join(found.columns)}
        self._tell(DIFFERENCE, {**fields, "position": found.position, "by": found.by, "remedy": remedy})

    @property
    def counts(self) -> dict[str, int]:
        """Counts of compared rows, samples that could not be compared, compared row events, and differences.

        A row event is compared with another library's decoding. Differences of rows and of row events are added up.
        """
        with self._lock:
            return dict(self._counts)

    def states(self, progress: Progress) -> dict[str, dict[str, object]]:
        """Return `shadow_difference` for each table with a sample that differed, until a newer backfill of the table
        has begun."""
        with self._lock:
            return {
                str(table): {"shadow_difference": found.text}
                for table, found in self._differences.items()
                if (known := progress.tables.get(table)) is None or known.generation <= found.generation
            }


def _is_compared(table: Table) -> bool:
    """Whether rows of the table can be checked: it has a key that Arrow compares as the server does, and that finds the
    row.

    A hashed key does not qualify, because the source cannot find a row by its hash.
    """
    types = [c.type for c in table.columns if c.name in table.key]
    is_found = not any(
        t.source == HASHED or pa.types.is_nested(t.arrow) or pa.types.is_floating(t.arrow) for t in types
    )
    return bool(types) and is_found


def _has_key(rows: pa.RecordBatch, one: pa.RecordBatch, table: Table) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Return a mask of the rows that have the key of the row `one`."""
    same = np.ones(rows.num_rows, np.bool_)
    for name in table.key:
        same &= pc.equal(rows.column(name), one.column(name)[0]).fill_null(False).to_numpy(zero_copy_only=False)
    return same


def _touches(batch: ChangeBatch, sample: _Sample) -> bool:
    """Whether the batch changes the sample's row, or the table's definition. A truncate's key is NULL."""
    if batch.table.id != sample.table.id:
        return False
    if batch.table != sample.table:
        return True
    is_known = pc.is_valid(batch.rows.column(sample.table.key[0]))
    return not pc.all(is_known).as_py() or bool(_has_key(batch.rows, sample.row, sample.table).any())


def _is_hidden(xid: int, found: ChunkRead) -> bool:
    xids = np.array([xid], np.uint64)
    return any(len(visibility.hidden(xids)) for visibility in found.visibilities)


def _is_another(table: Table, shape: object) -> bool:
    """Whether a shape is not the table's: another table, key or columns. A column's default for older rows does not
    count."""
    if not isinstance(shape, Table) or shape.incarnation != table.incarnation or shape.key != table.key:
        return True
    return [(c.name, c.number, c.type) for c in shape.columns] != [(c.name, c.number, c.type) for c in table.columns]


def _changed_columns(decoded: pa.RecordBatch, shown: pa.RecordBatch, table: Table) -> list[str]:
    """Return the columns in which the source shows a row differently, except values of a person who was erased in
    between."""
    erased = {c.name for c in table.columns if c.type.source == ERASABLE and shown.column(c.name).null_count}
    return [name for name in differing(decoded, shown, table) if name not in erased]


def differing(decoded: pa.RecordBatch, shown: pa.RecordBatch, table: Table) -> list[str]:
    """Return the columns in which two batches of one table differ; floats by their bits, except that NaN equals NaN."""
    return [n for n in table.row_schema.names if not same_values(decoded.column(n), shown.column(n))]


def same_values(a: pa.Array, b: pa.Array) -> bool:
    """Whether two arrays hold the same values. NULL equals NULL."""
    if a.type != b.type or len(a) != len(b) or not a.is_null().equals(b.is_null()):
        return False
    if pa.types.is_struct(a.type):
        return all(same_values(x, y) for x, y in zip(a.flatten(), b.flatten(), strict=True))
    if pa.types.is_nested(a.type):
        return pc.list_value_length(a).equals(pc.list_value_length(b)) and same_values(a.flatten(), b.flatten())
    if pa.types.is_floating(a.type):
        return np.array_equal(_bits(a), _bits(b))
    return bool(a.equals(b))


def _bits(values: pa.Array) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    found = values.fill_null(0).to_numpy(zero_copy_only=False)
    bits: np.ndarray[tuple[int], np.dtype[np.uint8]] = np.where(np.isnan(found), found.dtype.type(np.nan), found).view(
        np.uint8
    )
    return bits


class EventChecks:
    """Has row events compared with another library's decoding: at most one per `every_s`, if the source supports it.

    `on_compared` is called from a task's thread.
    """

    def __init__(self, on_compared: Callable[[EventComparison], None]) -> None:
        self._on_compared = on_compared
        self._source: Source | None = None
        self._wanted: bool | None = None
        self._asked_at = -1e9

    def look(self, now_s: float, every_s: float | None, tasks: SourceTasks, source: Source) -> None:
        """Have the kept event compared, if it is time. `every_s` None: stop."""
        wanted = every_s is not None
        if source is not self._source or wanted is not self._wanted:
            self._source, self._wanted = source, wanted
            if isinstance(source, SecondOpinion):
                source.sample_events(wanted=wanted)
        if every_s is None or now_s - self._asked_at < every_s or not isinstance(source, SecondOpinion):
            return
        self._asked_at = now_s
        tasks.call(lambda: self._compare(source))

    def _compare(self, source: SecondOpinion) -> None:
        found = source.compare_event()
        if found is not None:
            self._on_compared(found)
