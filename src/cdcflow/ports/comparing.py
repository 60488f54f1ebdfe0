"""A source whose rows can be compared with a copy of them while both go on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import pyarrow as pa

from cdcflow.interleave.messages import Chunk, ChunkRead, Visibility
from cdcflow.merge.digest import Buckets, Hash
from cdcflow.model.position import Checkpoint, Position
from cdcflow.model.table import Table
from cdcflow.ports.chunks import ChunkSource


class NoText(Exception):
    """The server has no text for values of some columns that every side would have: their rows must be read.
    `columns` says of each why."""

    def __init__(self, columns: Mapping[str, str]) -> None:
        super().__init__("; ".join(f"column {name}: {why}" for name, why in columns.items()))
        self.columns = columns


@dataclass(frozen=True, slots=True)
class ChunkSums:
    """A range chunk's rows, added up in the server. `sums`: of each bucket that has rows its number `b`, how many they
    are, `n`, and the sum of their digests, `t`; a bucket may be there several times. All else as in `ChunkRead`."""

    sums: pa.Table
    visibilities: tuple[Visibility, ...]
    reached: str | None = None
    exhausted: bool = False
    seconds: float = 0.0
    rewritten: bool = False


class DigestSource(Protocol):
    """Existing rows as digests that the server works out (`merge.digest`), chunk by chunk as they are read: the same
    ranges, snapshots and visibilities. May be called from several threads at once."""

    def hash(self) -> Hash:
        """What the server can hash with."""

    def sum_chunk(self, chunk: Chunk, buckets: Buckets) -> ChunkSums:
        """Add up a range chunk's rows.

        Raises:
            NoText: some columns have no text there, or are of another type than the copy's.
        """

    def read_among(self, chunk: Chunk, buckets: Buckets) -> ChunkRead:
        """A range chunk's rows of some buckets.

        Raises:
            NoText: as `sum_chunk`.
        """


class Comparison(Protocol):
    """What a comparison asks of a source. `close` it."""

    @property
    def chunks(self) -> ChunkSource:
        """Existing rows, as the capture reads them; marks of the log's own slot."""

    @property
    def digests(self) -> DigestSource | None:
        """The same rows as digests; None: this server works out none."""

    def tables(self) -> Sequence[Table]:
        """The selected tables as they are now, sorted by name."""

    def end(self) -> Position:
        """The end of the server's log now: nothing that is visible by now is logged behind it."""

    def covers(self, position: Position, end: Position) -> bool:
        """Whether a log that is at `position` has every transaction up to `end`."""

    def first_unseen(self, visibility: Visibility, transactions: pa.Table) -> int:
        """The number of the first of these transactions that a snapshot may not see; as many as there are: it sees all
        of them. `transactions`: the log's headers (`TRANSACTIONS_SCHEMA`) in its order, of kind source."""

    def close(self) -> None: ...


@runtime_checkable
class Comparable(Protocol):
    """A source that can be compared."""

    def comparison(self, checkpoint: Checkpoint) -> Comparison:
        """Begin to compare with the log that has this checkpoint. Nothing is prepared or changed at the source.

        Raises:
            ConfigurationError: the settings do not fit the server or its tables.
        """
        ...
