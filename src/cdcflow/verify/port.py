"""What a comparison asks of an engine. Rows are Arrow tables: keys as columns `k0`, `k1`, …, a row's digest as `d`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from cdcflow.merge.digest import Buckets
from cdcflow.merge.target import Target
from cdcflow.model.table import Table, TableId

COUNTED = ("of_source", "of_copy")
"""In what differs: how often each side has a row of the key."""


@dataclass(frozen=True, slots=True)
class Columns:
    """What is compared of a table: these columns, each with its type in the copy (Spark's text for it), and the key's
    (of a table without one: all of them)."""

    table: TableId
    columns: tuple[tuple[str, str], ...]
    key: tuple[str, ...]
    has_key: bool

    def type_of(self, name: str) -> str:
        return dict(self.columns)[name]


@dataclass(frozen=True, slots=True)
class At:
    """The place in the log that a copy is at: its cut, and the last offset in it."""

    cut: int
    offset: int


class NotComparable(Exception):
    """A table cannot be compared now; the message says why, and what to do."""


class NothingSealed(NotComparable):
    """The log has no sealed segment, so there is no copy."""

    def __init__(self) -> None:
        super().__init__(
            "the log has no sealed segment yet: one is made log.seal.age_max after the first row, and an idle database"
            " gives none; verify after the next change of a captured table"
        )


class Copy(Protocol):
    """The copy that the source is compared with, as of the newest sealed cut."""

    def describe(self, table: TableId) -> Target:
        """What the copy of a table looks like.

        Raises:
            NotComparable: there is none, or it does not have all rows yet.
        """

    def digests(self, columns: Columns, buckets: Buckets | None = None) -> tuple[At, pa.Table]:
        """The key and the digest of every row; or of those in some buckets.

        Raises:
            NotComparable: as `describe`; or it looks otherwise by now.
        """

    def buckets(self, columns: Columns, buckets: Buckets) -> tuple[At, pa.Table]:
        """The rows added up by bucket (`merge.digest.sums`). Called beside another thread, which calls none of these.

        Raises:
            NotComparable: as `digests`.
        """

    def rows(self, columns: Columns, keys: pa.Table) -> tuple[At, pa.Table]:
        """The rows that have these keys, or digests (see `Comparer.matching`): the columns that are compared.

        Raises:
            NotComparable: as `digests`.
        """


class Comparer(Protocol):
    """Works on rows in columns."""

    def converted(self, columns: Columns, shape: Table, rows: pa.Table) -> pa.Table:
        """Rows of the source or the log, in a shape's columns, as the copy would hold them: `Columns.columns`."""

    def keys(self, columns: Columns, shape: Table, rows: pa.Table) -> pa.Table:
        """The keys of rows of the log, as `k0`, `k1`, …, each once."""

    def digested(self, columns: Columns, converted: pa.Table) -> pa.Table:
        """The keys and digests of converted rows."""

    def differing(self, source: pa.Table, copy: pa.Table) -> pa.Table:
        """The keys of which the two sides' rows differ, with `COUNTED`. `source` and `copy`: keys and digests."""

    def outside(self, keys: pa.Table, others: pa.Table) -> pa.Table:
        """Those of these rows whose keys are not among the others."""

    def among(self, rows: pa.Table, keys: pa.Table) -> pa.Table:
        """Those of these rows, in columns `k0`, `k1`, … and others, whose keys are among the keys."""

    def matching(self, columns: Columns, converted: pa.Table, keys: pa.Table) -> pa.Table:
        """Those of these rows that have one of the keys; in a table without a key, one of the digests `d`."""
