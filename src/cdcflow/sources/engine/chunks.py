"""Existing rows in chunks: the kinds of chunks, their parts, and the result of reading each.

    chunk   range ──▶ part │ part │ part     each part through its own connection, in its own snapshot
            keys  ──▶ the rows that have these keys now
            whole ──▶ a truncate, then all rows of one snapshot

For every part: take a snapshot in which the table's shape cannot change; check that the table still is what the plan
pinned; read. The first part's snapshot also determines where the parts begin and end. A `ChunkDialect` defines the
statements for this.

Why snapshots at different times do no harm (W26: every reader carries its own fence). A row that does not leave its
part appears in one snapshot, and the machine's argument is about a row and the snapshot that showed it. A row that
moves from one part to another between two snapshots appears twice, or not at all. But one of the two snapshots does not
see that change, so it was committed after low; the other sees it, so it was committed before high: it is held, and
replayed. If it omits columns, the chunk must be placed exactly between what its snapshots saw and what they did not;
such a position may not exist (`Window.held_before`). Then the chunk is read again, smaller, and in the end as a single
part.

Other processes may read parts (`capture.ports.part_readers`), with this same code: they report the facts that their
snapshots showed, keep the rows, and write them into files once the machine has assigned their offsets.

A part that ends early (its rows were too large) ends the chunk: the rows of later parts are dropped, with their fences.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any, Generic, Protocol, TypeVar, cast

import pyarrow as pa

from cdcflow.capture.interleave.messages import Chunk, ChunkRead, Planned, Visibility
from cdcflow.capture.ports.comparison import ChunkSums
from cdcflow.capture.ports.part_readers import PartRows, Readers
from cdcflow.errors import ConfigurationError, SourceUnavailable
from cdcflow.model.change import HeldRun, KeySet, Run, reads
from cdcflow.model.digest import SUM, Buckets, Hash
from cdcflow.model.position import Position, Token
from cdcflow.model.table import Table, TableId, word
from cdcflow.sources.engine.changes import absent, after_deletes, after_truncate
from cdcflow.sources.engine.connections import Pool

C = TypeVar("C")
P = TypeVar("P")
R = TypeVar("R", bound="PartRead")
R_co = TypeVar("R_co", bound="PartRead", covariant=True)
C_contra = TypeVar("C_contra", contravariant=True)
T = TypeVar("T")

KEYS_BYTES_MAX = 64 << 20
WHOLE_BYTES_MAX = 1 << 30
KEYS_WHERE_WAIT_S = 60
"""How long the server may search for the rows that match a predicate."""
PARTS_MIN = 2
"""Other processes read chunks of at least this many parts."""
NO_SUMS = pa.table({"b": pa.array([], pa.int64()), "n": pa.array([], pa.int64()), "t": pa.array([], SUM)})


class Rewritten(Exception):
    """Raised when the table is no longer what the plan pinned: it must be planned again and read from the start."""


class TooLarge(Exception):
    """Raised when a table must be read as a whole and has more bytes than the limit."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A snapshot: the transactions that it sees, the position in the source's log that it belongs to, and the server's
    clock at that time (microseconds since 1970, UTC)."""

    visibilities: tuple[Visibility, ...]
    position: Position
    clock_us: int


@dataclass(frozen=True, slots=True)
class PartRead:
    """The result of reading a part of a chunk in a snapshot. `is_whole`: the part did not end early. `idle_seconds`:
    how long the server had nothing to do between slices."""

    snapshot: Snapshot
    shape: Table
    batches: tuple[pa.RecordBatch, ...]
    is_whole: bool = True
    idle_seconds: float = field(default=0.0, kw_only=True)


@dataclass(frozen=True, slots=True)
class ChunkProgress:
    """Where the next chunk begins, as the dialect wrote it, and how much has been read (see `ChunkRead`)."""

    cursor: str | None
    units_done: int
    exhausted: bool


class OpenTable(Protocol[P, R_co]):
    """A table in one snapshot; its shape cannot change until the snapshot ends."""

    @property
    def snapshot(self) -> Snapshot: ...

    @property
    def shape(self) -> Table: ...

    def parts(self, chunk: Chunk, at_once: int) -> Sequence[P]:
        """Return the parts of a range chunk, in order: as many as are worth it, at most `at_once`; empty if no rows are
        left."""
        ...

    def read(self, part: P) -> Callable[[], R_co]:
        """Fetch a part's rows from the server. The returned function decodes them, and may be called after the snapshot
        ended."""
        ...

    def rows_with(self, keys: KeySet, bytes_max: int) -> tuple[Sequence[pa.RecordBatch], KeySet | None]:
        """Return the rows that have these keys (a key without a row yields none), and the keys that were not looked up.

        The latter are the last of `keys`: those whose rows would exceed about `bytes_max`; None if all were looked up.
        At least one key is always looked up.
        """
        ...

    def all_rows(self, bytes_max: int) -> Sequence[pa.RecordBatch]:
        """Return all rows of the table. Raises TooLarge if they exceed `bytes_max`, before they are in memory."""
        ...


class DigestingTable(OpenTable[P, R_co], Protocol[P, R_co]):
    """An open table whose server computes digests of rows, in the buckets that `buckets` defines. Raises NoText if the
    server cannot."""

    def parts_to_end(self, chunk: Chunk, at_once: int) -> Sequence[P]:
        """Like `parts`, but where each part ends is known before it is read."""
        ...

    def sums(self, part: P, buckets: Buckets) -> R_co:
        """Have the server add up a part's rows. The batches of the result are sums (`ports.ChunkSums`), and the part
        never ends early."""
        ...

    def read_among(self, part: P, buckets: Buckets) -> Callable[[], R_co]:
        """Fetch, like `read`, a part's rows, but only those in the chosen buckets."""
        ...


class DigestingDialect(Protocol[C_contra]):
    """A `ChunkDialect` whose tables are `DigestingTable`."""

    def hash(self, connection: C_contra) -> Hash: ...


class ChunkDialect(Protocol[C_contra, P, R]):
    """How a server is queried for chunks. Every method may be called from several threads at once."""

    def plan(self, connection: C_contra, table: TableId, generation: int) -> Planned: ...

    def write_mark(self, connection: C_contra, token: Token) -> None: ...

    def heartbeat(self, connection: C_contra) -> None: ...

    def visibility(self, connection: C_contra) -> Visibility:
        """Return which transactions are certainly visible now."""
        ...

    def keys_where(self, connection: C_contra, table: TableId, predicate: str, keys_max: int) -> KeySet:
        """Return the keys of the rows that match a predicate now, at most `keys_max`.

        The query runs in a transaction that writes nothing and ends after `KEYS_WHERE_WAIT_S`.

        Raises:
            ConfigurationError: see `predicate_refused` and `predicate_too_slow`.
        """
        ...

    def open_table(self, connection: C_contra, chunk: Chunk, part: P | None) -> AbstractContextManager[OpenTable[P, R]]:
        """Open the chunk's table, in a snapshot that lasts as long as the block.

        `part`: the part that will be read from it; None: the first part, the keys, or the result of the table's
        `parts`.

        Raises:
            Rewritten: the table is not what the chunk's plan pinned.
        """
        ...

    def opened_whole(self, connection: C_contra, chunk: Chunk) -> AbstractContextManager[OpenTable[P, R]]:
        """Open the table of a chunk of kind "whole", in a snapshot that has one exact position in the log."""
        ...

    def elsewhere(self) -> AbstractContextManager[Callable[[R], R]]:
        """Prepare for the reading of parts by other processes, which happens inside the block.

        The block gets a function that turns a result that another process reported into one that this process can use.
        """
        return contextlib.nullcontext(lambda part: part)

    def progress_after(self, chunk: Chunk, found: Sequence[R]) -> ChunkProgress:
        """Return the progress to report about a range chunk once its parts are read; `found` is empty if no rows were
        left."""
        ...

    def close(self) -> None:
        """End the threads and connections that the dialect itself has started, if any."""
        return


@dataclass(frozen=True, slots=True)
class _Taken(Generic[R]):
    """A range chunk whose parts were read. `snapshot`: the snapshot of the first part."""

    chunk: Chunk
    snapshot: Snapshot
    shape: Table
    found: Sequence[R]
    reached: ChunkProgress
    opening_seconds: float
    seconds: float

    @property
    def batches(self) -> list[pa.RecordBatch]:
        return [b for part in self.found for b in part.batches]

    @property
    def visibilities(self) -> tuple[Visibility, ...]:
        return tuple(v for part in self.found for v in part.snapshot.visibilities) or self.snapshot.visibilities


class Chunks(Generic[C, P, R]):
    """Implements `cdcflow.ports.ChunkSource` on a dialect. Thread-safe.

    `parts_at_once`: the maximum number of connections through which one chunk is read. `pool`: connections to the
    source, closed together with this object. `whole_bytes_max`: the maximum size of a table without a key, which is
    read as a whole. A chunk of kind "keys" ends early at `keys_bytes_max`. `readers`: other processes that read the
    parts of range chunks, as many at once as there are readers (None: this process reads them). `reading`: connections
    to a server that replicates from that of `pool`, through which rows are read (None: they are read through `pool`);
    also closed with this object.
    """

    def __init__(
        self,
        dialect: ChunkDialect[C, P, R],
        pool: Pool[C],
        *,
        parts_at_once: int,
        whole_bytes_max: int = WHOLE_BYTES_MAX,
        keys_bytes_max: int = KEYS_BYTES_MAX,
        readers: Readers | None = None,
        reading: Pool[C] | None = None,
    ) -> None:
        self._others = readers
        self._dialect = dialect
        self._pool = pool
        self._reading = pool if reading is None else reading
        self._parts_at_once = parts_at_once
        self._whole_bytes_max = whole_bytes_max
        self._keys_bytes_max = keys_bytes_max
        self._readers = ThreadPoolExecutor(parts_at_once * 4, thread_name_prefix="cdcflow-part")

    # ── cdcflow.ports.ChunkSource ───────────────────────────────────────────────────────────────────────────

    def plan(self, table: TableId, generation: int) -> Planned:
        return self._pool.run(f"planning the backfill of {table}", lambda c: self._dialect.plan(c, table, generation))

    def write_mark(self, token: Token) -> None:
        self._pool.run("writing a mark", lambda c: self._dialect.write_mark(c, token))

    def heartbeat(self) -> None:
        self._pool.run("writing a heartbeat", self._dialect.heartbeat)

    def keys_where(self, table: TableId, predicate: str, keys_max: int) -> KeySet:
        return self._pool.run(
            f"looking for rows of {table}", lambda c: self._dialect.keys_where(c, table, predicate, keys_max)
        )

    def snapshot(self) -> Visibility:
        return self._pool.run("taking a snapshot", self._dialect.visibility)

    def read_chunk(self, chunk: Chunk) -> ChunkRead:
        began = time.monotonic()
        try:
            match chunk.kind:
                case "range":
                    others = self._others
                    return (
                        self._range(chunk)
                        if others is None or others.unavailable
                        else self._read_by_others(chunk, others)
                    )
                case "keys":
                    return self._run(chunk, lambda connection: self._keys(connection, chunk))
                case "whole":
                    return self._run(chunk, lambda connection: self._whole(connection, chunk))
        except Rewritten:
            return ChunkRead(chunk, None, None, (), rewritten=True, seconds=time.monotonic() - began)

    # ── cdcflow.capture.ports.part_readers.PartReader ─────────────────────────────────────────────────────────────────

    def read_part(self, chunk: Chunk, part: P) -> PartRows:
        def start_read(connection: C) -> tuple[float, Callable[[], R]]:
            with self._dialect.open_table(connection, chunk, part) as table:
                return time.monotonic(), table.read(part)

        began, decoded = self._run(chunk, start_read)
        found = decoded()
        return PartRows(replace(found, batches=()), found.shape, found.batches, time.monotonic() - began)

    # ── cdcflow.ports.DigestSource, where the dialect's tables are `DigestingTable` ─────────────────────────────

    def hash(self) -> Hash:
        dialect = cast("DigestingDialect[C]", self._dialect)
        return self._reading.run("querying the hash functions of the server", dialect.hash)

    def sum_chunk(self, chunk: Chunk, buckets: Buckets) -> ChunkSums:
        began = time.monotonic()

        def sums(table: OpenTable[P, R], part: P) -> Callable[[], R]:
            found = _digesting(table).sums(part, buckets)
            return lambda: found

        try:
            taken = self._read_parts(chunk, lambda table, at_once: _digesting(table).parts_to_end(chunk, at_once), sums)
        except Rewritten:
            return ChunkSums(NO_SUMS, (), rewritten=True, seconds=time.monotonic() - began)
        return ChunkSums(
            pa.Table.from_batches(taken.batches, NO_SUMS.schema),
            taken.visibilities,
            taken.reached.cursor,
            taken.reached.exhausted,
            taken.seconds,
        )

    def read_among(self, chunk: Chunk, buckets: Buckets) -> ChunkRead:
        began = time.monotonic()
        try:
            return self._as_read(
                self._read_parts(
                    chunk,
                    lambda table, at_once: _digesting(table).parts_to_end(chunk, at_once),
                    lambda table, part: _digesting(table).read_among(part, buckets),
                )
            )
        except Rewritten:
            return ChunkRead(chunk, None, None, (), rewritten=True, seconds=time.monotonic() - began)

    def close(self) -> None:
        self._pool.close()
        self._reading.close()
        self._readers.shutdown(wait=True, cancel_futures=True)
        self._dialect.close()

    # ── kinds ───────────────────────────────────────────────────────────────────────────────────────────────

    def _range(self, chunk: Chunk) -> ChunkRead:
        return self._as_read(self._read_parts(chunk, lambda table, at_once: table.parts(chunk, at_once), _read))

    def _read_parts(
        self,
        chunk: Chunk,
        split: Callable[[OpenTable[P, R], int], Sequence[P]],
        take: Callable[[OpenTable[P, R], P], Callable[[], R]],
    ) -> _Taken[R]:
        """Read a range chunk's parts, each in its own snapshot."""
        at_once = 1 if chunk.single_connection else self._parts_at_once
        later: list[Future[R]] = []

        def first(connection: C) -> tuple[Snapshot, Table, tuple[float, float], Callable[[], R] | None]:
            asked = time.monotonic()
            with self._dialect.open_table(connection, chunk, None) as table:
                began = time.monotonic()  # the work before takes as long for one row as for many
                parts = split(table, at_once)
                later.extend(self._readers.submit(self._part, chunk, part, take) for part in parts[1:])
                return table.snapshot, table.shape, (asked, began), take(table, parts[0]) if parts else None

        try:
            snapshot, shape, (asked, began), decoded = self._run(chunk, first)
        finally:
            # No thread must keep reading for a chunk that was abandoned. This waits only after the first part's
            # transaction has ended: a change of the table's shape may wait for that transaction, and the other parts
            # for that change.
            settle(later)
        found = [decoded(), *(part.result() for part in later)] if decoded is not None else []
        found = _parts_of_chunk(chunk.table, found)
        reached = self._dialect.progress_after(chunk, found)
        return _Taken(chunk, snapshot, shape, found, reached, began - asked, time.monotonic() - began)

    def _as_read(self, taken: _Taken[R]) -> ChunkRead:
        snapshot, reached = taken.snapshot, taken.reached
        return ChunkRead(
            chunk=taken.chunk,
            # The earliest snapshot's position and clock: no row of the run claims to be later than it is.
            run=reads(taken.shape, taken.batches, snapshot.position, snapshot.clock_us),
            shape=taken.shape,
            visibilities=taken.visibilities,
            reached=reached.cursor,
            units_done=reached.units_done,
            exhausted=reached.exhausted,
            seconds=taken.seconds,
            opening_seconds=taken.opening_seconds,
            idle_seconds=min((part.idle_seconds for part in taken.found), default=0.0),
        )

    def _read_by_others(self, chunk: Chunk, others: Readers) -> ChunkRead:
        """Have other processes read and keep the parts of a range chunk.

        The limit of a chunk to one connection spares live transactions the processor and the traffic through this
        process, so it does not apply here. A chunk that is not worth two parts, because its own table is being written
        to, is read in this process: otherwise it would become a file of a few rows.
        """
        chunk_of_all = replace(chunk, single_connection=False)
        at_once = max(others.count, PARTS_MIN)

        def split(connection: C) -> tuple[Snapshot, Table, Sequence[P]]:
            with self._dialect.open_table(connection, chunk_of_all, None) as table:
                return table.snapshot, table.shape, table.parts(chunk_of_all, at_once)

        snapshot, shape, parts = self._run(chunk, split)
        if len(parts) < PARTS_MIN:
            return self._range(chunk)
        with self._dialect.elsewhere() as here:
            asked = [others.read(chunk, part) for part in parts]
            settle(asked)
            found = [one.result() for one in asked]
            kept = _parts_of_chunk(chunk.table, [here(cast(R, one.told)) for one in found])
        if any(part.shape != shape for part in kept):
            raise SourceUnavailable(f"reading {chunk.table}: its columns changed while a chunk was read")
        reached = self._dialect.progress_after(chunk, kept)
        visibilities = tuple(v for part in kept for v in part.snapshot.visibilities) or snapshot.visibilities
        pieces = tuple(part.rows for part in found[: len(kept)] if part.rows.rows)
        return ChunkRead(
            chunk=chunk,
            run=HeldRun(shape, snapshot.position, snapshot.clock_us, pieces),
            shape=shape,
            visibilities=visibilities,
            reached=reached.cursor,
            units_done=reached.units_done,
            exhausted=reached.exhausted,
            seconds=max(part.seconds for part in found),
        )

    def _part(self, chunk: Chunk, part: P, take: Callable[[OpenTable[P, R], P], Callable[[], R]]) -> R:
        def start_read(connection: C) -> Callable[[], R]:
            with self._dialect.open_table(connection, chunk, part) as table:
                return take(table, part)

        return self._run(chunk, start_read)()

    def _keys(self, connection: C, chunk: Chunk) -> ChunkRead:
        assert chunk.keys is not None  # noqa: S101  what kind "keys" means
        with self._dialect.open_table(connection, chunk, None) as table:
            began = time.monotonic()
            keys = chunk.keys.distinct()
            asked = _as_in(table.shape, keys) if chunk.repairs else None
            rows, left = table.rows_with(keys, self._keys_bytes_max)
            read = replace(self._answer(chunk, table, rows, began), keys_left=left)
            if asked is None:
                return read
            assert read.run is not None  # noqa: S101  it was just made
            gone = absent(asked.slice(0, len(keys) - (0 if left is None else len(left))), rows)
            run = after_deletes(cast(Run, read.run), table.shape, gone)
            return replace(read, run=run, deleted=gone.num_rows)

    def _whole(self, connection: C, chunk: Chunk) -> ChunkRead:
        """Read a whole table as one chunk. Rows without a key cannot be replayed over each other, so they replace the
        existing rows."""
        with self._dialect.opened_whole(connection, chunk) as table:
            began = time.monotonic()
            try:
                rows = table.all_rows(self._whole_bytes_max)
            except TooLarge:
                raise too_large(chunk.table, self._whole_bytes_max) from None
            return self._answer(chunk, table, rows, began)

    def _answer(self, chunk: Chunk, table: OpenTable[P, R], rows: Sequence[pa.RecordBatch], began: float) -> ChunkRead:
        run = reads(table.shape, rows, table.snapshot.position, table.snapshot.clock_us)
        return ChunkRead(
            chunk=chunk,
            run=after_truncate(run, table.shape) if chunk.kind == "whole" else run,
            shape=table.shape,
            visibilities=table.snapshot.visibilities,
            reached=chunk.after,
            exhausted=True,
            seconds=time.monotonic() - began,
        )

    def _run(self, chunk: Chunk, work: Callable[[C], T]) -> T:
        return self._reading.run(f"reading {chunk.table}", work)


def _read(table: OpenTable[P, R], part: P) -> Callable[[], R]:
    return table.read(part)


def _digesting(table: OpenTable[P, R]) -> DigestingTable[P, R]:
    return cast("DigestingTable[P, R]", table)


def too_large(table: TableId, bytes_max: int) -> ConfigurationError:
    return ConfigurationError(
        f"reading {table}: it has no key, so it is read in one piece, and it has more than {bytes_max} bytes",
        remedy=f"give {table} a primary key; or set source.backfill.whole_bytes_max to more than its size, if "
        f"this machine's memory holds it three times, and start again; then run `cdcflow backfill {word(table)}`",
        runbook="too-large",
    )


def predicate_refused(table: TableId, found: str) -> ConfigurationError:
    """Return the error for a predicate that the server refuses. `found` is the server's message, and holds no row
    values."""
    return ConfigurationError(
        f"looking for rows of {table}: the server refuses the predicate: {found}",
        remedy="write what follows WHERE, in the server's own SQL, with the names of the table's columns",
        runbook="order-refused",
    )


def predicate_too_slow(table: TableId) -> ConfigurationError:
    return ConfigurationError(
        f"looking for rows of {table}: the server did not find all of them within {KEYS_WHERE_WAIT_S} s",
        remedy="use a predicate that an index helps with, or name the keys",
        runbook="order-refused",
    )


def without_key(table: TableId) -> ConfigurationError:
    return ConfigurationError(
        f"looking for rows of {table}: it has no key to read them by",
        remedy=f"run `cdcflow table backfill {word(table)}`",
        runbook="order-refused",
    )


def _parts_of_chunk(table: TableId, found: Sequence[R]) -> list[R]:
    """Return the parts that make up one chunk, in order: parts after one that ended early do not belong to it.

    Raises:
        SourceUnavailable: the table was altered between two parts, so no row of the chunk may be used.
    """
    ended = next((i for i, part in enumerate(found) if not part.is_whole), len(found) - 1)
    kept = list(found[: ended + 1])
    if any(part.shape != kept[0].shape for part in kept):
        raise SourceUnavailable(f"reading {table}: its columns changed between two parts of a chunk")
    return kept


def _as_in(shape: Table, keys: KeySet) -> pa.Table:
    """Return the keys with the types of the table's columns.

    Raises:
        Rewritten: the keys no longer fit the table's key.
    """
    if set(keys.keys.column_names) != set(shape.key):
        raise Rewritten
    try:
        return keys.keys.select(list(shape.key)).cast(pa.schema([shape.row_schema.field(name) for name in shape.key]))
    except pa.ArrowException:
        raise Rewritten from None


def settle(futures: Sequence[Future[Any]]) -> None:
    """Wait until each of these futures has finished or was cancelled, whatever its result.

    `concurrent.futures.wait` is not used: it waits indefinitely for a future that its executor's shutdown cancelled.
    """
    for future in futures:
        with contextlib.suppress(CancelledError):
            future.exception()


class OwnPartReader:
    """Implements `cdcflow.capture.ports.part_readers.PartReader` on chunks. `close` closes the connections that the
    chunks use."""

    def __init__(self, chunks: Chunks[Any, Any, Any], close: Callable[[], None]) -> None:
        self._chunks = chunks
        self._close = close

    def read_part(self, chunk: Chunk, part: Any) -> PartRows:
        return self._chunks.read_part(chunk, part)

    def close(self) -> None:
        self._chunks.close()
        self._close()
