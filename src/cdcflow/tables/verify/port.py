"""The interface that a comparison needs from an engine. Rows are Arrow tables: keys in columns `k0`, `k1`, …, a row's
digest in `d`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from cdcflow.model.digest import Buckets
from cdcflow.model.table import Table, TableId
from cdcflow.tables.merge.target import Target

COUNTED = ("of_source", "of_copy")
"""Columns of a table of differences: how often each side has a row with the key."""


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns of a table that are compared, each with its type in the copy (Spark's text for it), and the key's
    columns (in a table without a key: all columns)."""

    table: TableId
    columns: tuple[tuple[str, str], ...]
    key: tuple[str, ...]
    has_key: bool

    def type_of(self, name: str) -> str:
        return dict(self.columns)[name]


@dataclass(frozen=True, slots=True)
class At:
    """A copy's place in the log: its cut, and the last offset in it."""

    cut: int
    offset: int


class NotComparable(Exception):
    """The error for a table that cannot currently be compared; the message is the reason, and what to do."""


class NothingSealed(NotComparable):
    """The error for a log that has no sealed segment, so that there is no copy."""

    def __init__(self) -> None:
        super().__init__(
            "the log has no sealed segment yet: the first comes log.seal.age_max after the first row, and an idle "
            "database"
            " has no rows; verify after the next change of a captured table"
        )


class Copy(Protocol):
    """The copy that the source is compared with, as of the latest sealed cut."""

    def describe(self, table: TableId) -> Target:
        """Return the description of the copy of a table.

        Raises:
            NotComparable: there is no copy, or it does not have all rows yet.
        """

    def digests(self, columns: Columns, buckets: Buckets | None = None) -> tuple[At, pa.Table]:
        """Return the key and the digest of every row, or of the rows in some buckets.

        Raises:
            NotComparable: as `describe`; or the copy has changed.
        """

    def buckets(self, columns: Columns, buckets: Buckets) -> tuple[At, pa.Table]:
        """Return the rows added up by bucket (`model.digest.sums`). May run in one thread while another works that
        calls no method of the copy.

        Raises:
            NotComparable: as `digests`.
        """

    def rows(self, columns: Columns, keys: pa.Table) -> tuple[At, pa.Table]:
        """Return the compared columns of the rows with these keys, or digests (see `Comparer.matching`).

        Raises:
            NotComparable: as `digests`.
        """


class Gate(Protocol):
    """Decides when and how fast a comparison may read the source. `capture.governor.Governor` implements it."""

    def admit(self) -> None:
        """Wait until the next chunk may be read."""
        ...

    def count(self, rows: int, size: int, seconds: float) -> None:
        """Record that a chunk was read: its rows, its bytes (0: only digests were read), and how long reading took."""
        ...

    def yield_after(self, seconds: float) -> None:
        """Pause after a chunk that took `seconds` to read, if reading may take only a share of the time."""
        ...


class Comparer(Protocol):
    """An engine's operations on rows in Arrow tables."""

    def convert_rows(self, columns: Columns, shape: Table, rows: pa.Table) -> pa.Table:
        """Convert rows of the source or the log, in a shape's columns, to the values that the copy would hold. The
        result has the columns of `Columns.columns`."""

    def keys(self, columns: Columns, shape: Table, rows: pa.Table) -> pa.Table:
        """Return the keys of rows of the log, as `k0`, `k1`, …, each once."""

    def digest_rows(self, columns: Columns, converted: pa.Table) -> pa.Table:
        """Return the keys and digests of converted rows."""

    def differing(self, source: pa.Table, copy: pa.Table) -> pa.Table:
        """Return the keys for which the two sides' rows differ, with `COUNTED`. `source` and `copy`: keys and
        digests."""

    def outside(self, keys: pa.Table, others: pa.Table) -> pa.Table:
        """Return those of `keys` that are not among `others`."""

    def among(self, rows: pa.Table, keys: pa.Table) -> pa.Table:
        """Return those of `rows` (in columns `k0`, `k1`, … and others) whose key is among `keys`."""

    def matching(self, columns: Columns, converted: pa.Table, keys: pa.Table) -> pa.Table:
        """Return the rows with one of the keys; in a table without a key, with one of the digests `d`."""
