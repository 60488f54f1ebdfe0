"""The part of a source that is not its stream: existing rows, marks, snapshots."""

from __future__ import annotations

from typing import Protocol

from cdcflow.capture.interleave.messages import Chunk, ChunkRead, Planned, Visibility
from cdcflow.model.change import KeySet
from cdcflow.model.position import Token
from cdcflow.model.table import TableId


class ChunkSource(Protocol):
    """Reads existing rows and writes marks. May be called from several threads at once."""

    def plan(self, table: TableId, generation: int) -> Planned:
        """Pin the rows to read and their upper bound.

        `generation` 0: the plan begins no generation; it is only for reading single rows, or copies for a comparison.
        """
        ...

    def write_mark(self, token: Token) -> None:
        """Commit a mark at the source; it is committed when this returns."""
        ...

    def read_chunk(self, chunk: Chunk) -> ChunkRead:
        """Read one chunk, each part in one snapshot taken after this call began."""
        ...

    def keys_where(self, table: TableId, predicate: str, keys_max: int) -> KeySet:
        """The keys of the rows for which a predicate is true now, at most `keys_max` of them. Reads only.

        Raises:
            ConfigurationError: the source does not understand the predicate, or the search takes too long.
        """
        ...

    def snapshot(self) -> Visibility: ...

    def heartbeat(self) -> None:
        """Write something harmless to the source's log, so that cdcflow's position advances while tables are idle."""
        ...

    def close(self) -> None: ...
