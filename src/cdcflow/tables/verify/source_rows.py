"""Read the source's rows without locks: a whole table in chunks, as a backfill does, or the rows with some keys.

Each chunk has its own snapshot. A row that moved from one chunk to another between two snapshots is read twice or not
at all. Such a row changed, so its difference proves nothing (`settled`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Literal, Protocol, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from cdcflow.capture.interleave.messages import Chunk, ChunkRead, Visibility
from cdcflow.capture.ports.comparison import Comparison
from cdcflow.errors import SourceUnavailable
from cdcflow.model.change import READ, KeySet, Run
from cdcflow.model.position import Token
from cdcflow.model.table import OP, Table, TableId
from cdcflow.tables.verify.port import Gate, NotComparable
from cdcflow.tables.verify.settled import Fences

CHUNK_S = 0.2
"""The intended duration of reading a chunk."""
GROWTH = 4.0
REPLANNED_MAX = 5
"""How often reading a table begins again because the table was rewritten in the meantime."""

TOKEN = Token("verify")


class Taken(Protocol):
    """The result of reading a chunk."""

    @property
    def visibilities(self) -> tuple[Visibility, ...]: ...
    @property
    def reached(self) -> str | None: ...
    @property
    def exhausted(self) -> bool: ...
    @property
    def seconds(self) -> float: ...
    @property
    def rewritten(self) -> bool: ...


T = TypeVar("T", bound=Taken)


@dataclass(frozen=True, slots=True)
class ChunkPiece:
    """Rows of one chunk, in the columns of `shape`."""

    shape: Table
    rows: pa.Table


class SourceRows:
    """Reads the rows of one table. `rows_per_second`: the maximum average rate. `gate`: admits each read, if reading is
    limited."""

    def __init__(
        self,
        comparison: Comparison,
        table: TableId,
        *,
        rows_per_second: int | None = None,
        gate: Gate | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._comparison = comparison
        self._chunks = comparison.chunks
        self._table = table
        self._rows_per_second = rows_per_second
        self._gate = gate
        self._sleep = sleep

    def begin(self, fences: Fences) -> None:
        """Record the state before the first read. Call it before anything is read: everything visible at that time is
        visible to all later reads."""
        fences.seen.append(self._chunks.snapshot())

    def end(self, fences: Fences) -> None:
        """Record the state after the last read. Call it when everything was read: it determines how far the log must
        reach."""
        fences.end = self._comparison.end()

    def all(self, fences: Fences) -> Iterator[ChunkPiece]:
        """Yield every row, chunk by chunk.

        Raises:
            NotComparable: the table is rewritten repeatedly, so that reading must start again each time.
        """
        return self.of(self.walk(fences, self._chunks.read_chunk))

    def of(self, chunks: Iterator[ChunkRead]) -> Iterator[ChunkPiece]:
        """Yield the rows of these chunks."""
        for read in chunks:
            if (piece := _rows(read)) is not None:
                self.wait(piece.rows.num_rows, read.seconds, piece.rows.nbytes)
                yield piece

    def walk(self, fences: Fences, take: Callable[[Chunk], T]) -> Iterator[T]:
        """Call `take` with each chunk of the table, and yield the results.

        Raises:
            NotComparable: as `all`.
        """
        for _ in range(REPLANNED_MAX):
            planned = self._chunks.plan(self._table, 0)
            fences.seen.extend(planned.visibilities)
            kind: Literal["range", "whole"] = "whole" if planned.whole else "range"
            chunk = Chunk(self._table, 0, 1, planned.plan, None, planned.size, TOKEN, kind)
            while not (read := self._take_when_due(take, chunk)).rewritten:
                fences.seen.extend(read.visibilities)
                yield read
                if read.exhausted or planned.whole:
                    return
                size = _next_size(chunk.size, read.seconds)
                chunk = replace(chunk, number=chunk.number + 1, after=read.reached, size=size)
            if chunk.number > 1:
                raise NotComparable("the table was rewritten while it was read; verify it again")
        raise NotComparable("the table was rewritten again and again while it was read; verify it again")

    def _take_when_due(self, take: Callable[[Chunk], T], chunk: Chunk) -> T:
        if self._gate is not None:
            self._gate.admit()
        return take(chunk)

    def wait(self, rows: int, seconds: float, size: int = 0) -> None:
        """Sleep as long as the configured rate and pace require. `rows`, `size` and `seconds`: the rows and bytes that
        were read, and how long reading took."""
        if self._gate is not None:
            self._gate.count(rows, size, seconds)
            self._gate.yield_after(seconds)
        if self._rows_per_second:
            self._sleep(max(0.0, rows / self._rows_per_second - seconds))

    def with_keys(self, fences: Fences, shape: Table, keys: pa.Table) -> Iterator[ChunkPiece]:
        """Yield the rows with these keys, in the types of the source's key columns. A key without a row is skipped."""
        planned = self._chunks.plan(self._table, 0)
        left: KeySet | None = KeySet(keys.rename_columns(list(shape.key)))
        number = 0
        while left is not None and len(left):
            number += 1
            read = self._chunks.read_chunk(
                Chunk(self._table, 0, number, planned.plan, None, 0, TOKEN, kind="keys", keys=left)
            )
            if read.rewritten:
                raise SourceUnavailable(f"reading {self._table}: it was rewritten while it was read")
            fences.seen.extend(read.visibilities)
            yield from self.of(iter([read]))
            left = read.keys_left


def _rows(read: ChunkRead) -> ChunkPiece | None:
    if not isinstance(read.run, Run) or not read.run.batches:
        return None
    batches = [b.rows.filter(pc.equal(b.rows.column(OP), READ)) for b in read.run.batches]
    return ChunkPiece(read.run.batches[0].table, pa.Table.from_batches(batches))


def _next_size(size: int, seconds: float) -> int:
    return max(1, int(size * min(GROWTH, max(1 / GROWTH, CHUNK_S / max(seconds, 1e-3)))))
