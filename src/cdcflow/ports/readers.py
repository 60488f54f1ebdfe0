"""Parts of chunks that other processes read: what is asked of them, and what they ask a source for."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa

from cdcflow.interleave.messages import Chunk
from cdcflow.model.change import HeldRows
from cdcflow.model.table import Table


@dataclass(frozen=True, slots=True)
class PartRows:
    """A part of a chunk, read in one snapshot. `told`: what the source's dialect says of it, its rows aside; it can be
    sent to another process. `batches` have the table's `row_schema`. `seconds`: how long it took, without what takes as
    long for one row as for many."""

    told: Any
    table: Table
    batches: tuple[pa.RecordBatch, ...]
    seconds: float = 0.0


class PartReader(Protocol):
    """Reads parts of chunks from a source. Used by one thread."""

    def read_part(self, chunk: Chunk, part: Any) -> PartRows:
        """Read one, in a snapshot taken after this call began. `part` is the dialect's own.

        Raises:
            SourceUnavailable, ConfigurationError: as `ChunkSource.read_chunk`. What the dialect raises where the table
                is no longer what the plan pinned comes as it is.
        """
        ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class HeldPart:
    """A part that another process has read: what its dialect says of it, its rows, which that process keeps, and how
    long it took (see `PartRows`)."""

    told: Any
    rows: HeldRows
    seconds: float = 0.0


class Readers(Protocol):
    """Other processes that read parts of chunks: `count` at one time, each through one connection. Thread-safe."""

    @property
    def count(self) -> int: ...

    @property
    def gone(self) -> bool:
        """None is there and none will come: whoever would ask reads by itself."""
        ...

    def read(self, chunk: Chunk, part: Any) -> Future[HeldPart]:
        """Have a part read. The result raises what `PartReader.read_part` raises, and SourceUnavailable where the
        process that read it is gone.

        The rows are kept until they are written, and no longer than until the window after the next is read.
        """
        ...


__all__ = ["HeldPart", "PartReader", "PartRows", "Readers"]
