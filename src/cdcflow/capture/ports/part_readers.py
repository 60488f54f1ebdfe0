"""Other processes that read parts of chunks: how the capture calls them, and how they call a source."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa

from cdcflow.capture.interleave.messages import Chunk
from cdcflow.model.change import HeldRows
from cdcflow.model.table import Table


@dataclass(frozen=True, slots=True)
class PartRows:
    """A part of a chunk, read in one snapshot.

    `told`: the dialect's own result, apart from the rows; it can be sent to another process. `batches` have the table's
    `row_schema`. `seconds`: how long reading took, without costs that do not depend on the number of rows.
    """

    told: Any
    table: Table
    batches: tuple[pa.RecordBatch, ...]
    seconds: float = 0.0


class PartReader(Protocol):
    """Reads parts of chunks from a source. Used by one thread."""

    def read_part(self, chunk: Chunk, part: Any) -> PartRows:
        """Read one part, in a snapshot taken after this call began. `part` is a value of the dialect.

        Raises:
            SourceUnavailable, ConfigurationError: as `ChunkSource.read_chunk`. Errors that the dialect raises because
                the table no longer matches the plan are passed on unchanged.
        """
        ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class HeldPart:
    """A part that another process has read: the dialect's own result, the rows, which that process keeps, and how long
    it took (see `PartRows`)."""

    told: Any
    rows: HeldRows
    seconds: float = 0.0


class Readers(Protocol):
    """Other processes that read parts of chunks: at most `count` at a time, each through one connection.
    Thread-safe."""

    @property
    def count(self) -> int: ...

    @property
    def unavailable(self) -> bool:
        """Whether no such process runs and none will start, so that callers must read parts themselves."""
        ...

    def read(self, chunk: Chunk, part: Any) -> Future[HeldPart]:
        """Have a process read a part. The future raises what `PartReader.read_part` raises, and SourceUnavailable if
        the process has exited.

        The rows are kept until they are written, but at most until the window after the next one is read.
        """
        ...
