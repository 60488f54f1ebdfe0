"""A source whose rows can be compared with a copy of them while both keep changing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import pyarrow as pa

from cdcflow.capture.interleave.messages import Chunk, ChunkRead, Visibility
from cdcflow.capture.ports.chunks import ChunkSource
from cdcflow.model.digest import Buckets, Hash
from cdcflow.model.position import Checkpoint, Position
from cdcflow.model.table import Table


class NoText(Exception):
    """Raised if, for some columns, the server cannot produce the text that the copy's engine produces, so the rows must
    be read. `columns` gives the reason for each."""

    def __init__(self, columns: Mapping[str, str]) -> None:
        super().__init__("; ".join(f"column {name}: {why}" for name, why in columns.items()))
        self.columns = columns


@dataclass(frozen=True, slots=True)
class ChunkSums:
    """A range chunk's rows, added up in the server. `sums` has, for each bucket with rows, its number `b`, the number
    of rows `n`, and the sum of their digests `t`; a bucket may occur several times. The other fields are as in
    `ChunkRead`."""

    sums: pa.Table
    visibilities: tuple[Visibility, ...]
    reached: str | None = None
    exhausted: bool = False
    seconds: float = 0.0
    rewritten: bool = False


class DigestSource(Protocol):
    """Existing rows as digests computed by the server (`model.digest`), in the chunks in which they are read: the same
    ranges, snapshots and visibilities. May be called from several threads at once."""

    def hash(self) -> Hash:
        """Return the hash function that the server can compute."""

    def sum_chunk(self, chunk: Chunk, buckets: Buckets) -> ChunkSums:
        """Add up the digests of a range chunk's rows.

        Raises:
            NoText: the server has no text for some columns, or their type differs from the copy's.
        """

    def read_among(self, chunk: Chunk, buckets: Buckets) -> ChunkRead:
        """Read those rows of a range chunk that are in these buckets.

        Raises:
            NoText: as `sum_chunk`.
        """


class Comparison(Protocol):
    """The source side of a comparison. The caller must `close` it."""

    @property
    def chunks(self) -> ChunkSource:
        """Existing rows, read as the capture reads them; marks use the log's slot."""

    @property
    def digests(self) -> DigestSource | None:
        """The same rows as digests, or None if this server cannot compute them."""

    def tables(self) -> Sequence[Table]:
        """The selected tables in their current shape, sorted by name."""

    def end(self) -> Position:
        """The current end of the server's log: everything visible at this point is logged before it."""

    def covers(self, position: Position, end: Position) -> bool:
        """Whether a log that has reached `position` has every transaction up to `end`."""

    def first_unseen(self, visibility: Visibility, transactions: pa.Table) -> int:
        """Return the index of the first of these transactions that a snapshot may not see, or their count if it sees
        all of them.

        `transactions`: the log's headers (`TRANSACTIONS_SCHEMA`) in its order, of kind source.
        """

    def close(self) -> None: ...


@runtime_checkable
class Comparable(Protocol):
    """A source whose rows can be compared with a copy."""

    def comparison(self, checkpoint: Checkpoint) -> Comparison:
        """Begin a comparison with the log that has this checkpoint. Nothing is prepared or changed at the source.

        Raises:
            ConfigurationError: the settings do not fit the server or its tables.
        """
        ...
