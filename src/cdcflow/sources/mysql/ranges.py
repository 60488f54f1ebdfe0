"""One range of a table in the order of its key, as several parts that can be read at the same time.

    key      cursor ────────▶ split ────────▶ split ────────▶ as many rows as were requested, or the plan's bound
    part             1                2               3       each in its own snapshot

A part is a range of keys, (split, next split], so the parts cover everything without overlaps, whatever their snapshots
contain; the origin of a split only affects their sizes. The first part's snapshot determines the splits: the server
counts rows and returns the key that it reached. That takes a tenth as long as reading, so if keys are integers, the
splits are guessed from the distances of the last chunk's keys. A part that such a guess made too large ends early.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from cdcflow.errors import ConfigurationError
from cdcflow.model.digest import Buckets
from cdcflow.sources.engine import chunks
from cdcflow.sources.mysql import digests
from cdcflow.sources.mysql.catalog import CatalogTable
from cdcflow.sources.mysql.connection import Connection
from cdcflow.sources.mysql.decoders import decode
from cdcflow.sources.mysql.fetch import Fetched, fetch
from cdcflow.sources.mysql.images import Extents
from cdcflow.sources.mysql.keys import Literals, TableKey
from cdcflow.sources.mysql.results import cells_of
from cdcflow.sources.mysql.sql import quote_name
from cdcflow.sources.mysql.tables import DescribedTable
from cdcflow.sources.mysql.types.registry import select_expression


@dataclass(frozen=True, slots=True)
class KeyRange:
    """Rows after `after` (None: from the start) up to and including `upto`; at most `rows_max`, None for all.
    `is_last`: its `upto` is the plan's bound."""

    after: Literals | None
    upto: Literals
    rows_max: int | None
    is_last: bool
    bytes_max: int


@dataclass(frozen=True, slots=True)
class PartRead(chunks.PartRead):
    """What a part's snapshot showed. `reached`: the last row's key, or where the part began if it has no rows.
    `exhausted`: it is the last part, and no rows are left before the bound. `key` is the table's. `rows_counted`: the
    number of rows, if the batches do not contain all of them; 0 if it is unknown."""

    bytes: int = 0
    reached: Literals | None = None
    exhausted: bool = False
    key: TableKey | None = None
    rows_counted: int | None = None

    @property
    def rows(self) -> int:
        if self.rows_counted is not None:
            return self.rows_counted
        return sum(batch.num_rows for batch in self.batches)


@dataclass(frozen=True, slots=True)
class Ordered:
    """A table in a snapshot, in the order of its key."""

    entry: CatalogTable
    described: DescribedTable
    key: TableKey

    @property
    def select(self) -> str:
        """A SELECT of all of its columns, as `decoded` expects them."""
        columns = ", ".join(select_expression(c) for c in self.described.columns)
        return f"SELECT {columns} FROM {self.entry.sql}"  # noqa: S608  quoted by `results`

    @property
    def _index(self) -> str:
        return f"FORCE INDEX ({quote_name(self.key.index)})"

    def decode(self, fetched: Fetched) -> pa.RecordBatch:
        return decode(self.described, fetched.data, Extents(fetched.start, fetched.end))

    def greatest(self, connection: Connection) -> Literals | None:
        """The greatest key; None if there are no rows, or no key."""
        if not self.key.columns:
            return None
        return self._key_at(connection, f"ORDER BY {self.key.descending} LIMIT 1")

    def parts(
        self,
        connection: Connection,
        after: Literals | None,
        bound: Literals,
        sizes: Sequence[int],
        bytes_max: int,
        stride: float | None = None,
    ) -> list[KeyRange]:
        """The next rows after `after`, cut into parts of about these sizes; fewer parts if the rows end before.
        Together they end at about `bytes_max`.

        `stride`: that of the last chunk, if it had one; then the splits are guessed.
        """
        parts: list[KeyRange] = []
        each = bytes_max // len(sizes)
        for size in sizes[:-1]:
            begin = parts[-1].upto if parts else after
            if stride is not None and begin is not None:
                end, rows_max = _guess_bound(begin, bound, size * stride), 2 * size
            else:
                where = _where(self.key, begin, bound)
                end = self._key_at(connection, f"WHERE {where} ORDER BY {self.key.names} LIMIT 1 OFFSET {size - 1}")
                rows_max = None
            if end is None:
                break
            self._check_progress(begin, end)
            parts.append(KeyRange(begin, end, rows_max, False, each))
        left = sum(sizes) - sum(sizes[: len(parts)])
        return [*parts, KeyRange(parts[-1].upto if parts else after, bound, left, True, each)]

    def parts_to_end(
        self, connection: Connection, after: Literals | None, bound: Literals, sizes: Sequence[int], bytes_max: int
    ) -> list[KeyRange]:
        """Like `parts`, but no part ends by the number of its rows: the last one also ends at a known key."""
        parts: list[KeyRange] = []
        each = bytes_max // len(sizes)
        for size in sizes:
            begin = parts[-1].upto if parts else after
            where = _where(self.key, begin, bound)
            end = self._key_at(connection, f"WHERE {where} ORDER BY {self.key.names} LIMIT 1 OFFSET {size - 1}")
            if end is None:
                return [*parts, KeyRange(begin, bound, None, True, each)]
            self._check_progress(begin, end)
            parts.append(KeyRange(begin, end, None, False, each))
        return parts

    def sums(self, connection: Connection, part: KeyRange, snapshot: chunks.Snapshot, buckets: Buckets) -> PartRead:
        where = _where(self.key, part.after, part.upto)
        rows = f"{self.entry.sql} {self._index} WHERE {where}"
        fetched = fetch(connection, digests.sums(self.described, buckets, rows))
        batch = decode(digests.SUMS, fetched.data, Extents(fetched.start, fetched.end))
        return PartRead(
            snapshot=snapshot,
            shape=self.described.table,
            batches=(batch,),
            reached=part.upto,
            exhausted=part.is_last,
            key=self.key,
            rows_counted=int(pc.sum(batch.column("n")).as_py() or 0),
        )

    def read_among(
        self, connection: Connection, part: KeyRange, snapshot: chunks.Snapshot, buckets: Buckets
    ) -> Callable[[], PartRead]:
        where = f"{_where(self.key, part.after, part.upto)} AND {digests.among(self.described, buckets)}"
        statement = f"{self.select} {self._index} WHERE {where} ORDER BY {self.key.names}"
        fetched = fetch(connection, statement, bytes_max=part.bytes_max)
        reached = part.upto if fetched.is_whole else self._last_key(fetched)
        return lambda: PartRead(
            snapshot=snapshot,
            shape=self.described.table,
            batches=(self.decode(fetched),),
            is_whole=fetched.is_whole,
            reached=reached,
            exhausted=fetched.is_whole and part.is_last,
            key=self.key,
            rows_counted=0,
        )

    def read(self, connection: Connection, part: KeyRange, snapshot: chunks.Snapshot) -> Callable[[], PartRead]:
        limit = "" if part.rows_max is None else f" LIMIT {part.rows_max}"
        where = _where(self.key, part.after, part.upto)
        statement = f"{self.select} {self._index} WHERE {where} ORDER BY {self.key.names}{limit}"
        fetched = fetch(connection, statement, bytes_max=part.bytes_max)
        reached = part.after
        if len(fetched):
            reached = self._last_key(fetched)
            self._check_progress(part.after, reached)
        is_full = len(fetched) == part.rows_max
        return lambda: PartRead(
            snapshot=snapshot,
            shape=self.described.table,
            batches=(self.decode(fetched),),
            is_whole=fetched.is_whole and (part.is_last or not is_full),
            bytes=len(fetched.data),
            reached=reached,
            exhausted=fetched.is_whole and part.is_last and not is_full,
            key=self.key,
            rows_counted=len(fetched),  # another process may keep the batches
        )

    def _check_progress(self, before: Literals | None, row: Literals) -> None:
        """The server may return the same row as the one after itself: the backfill would never end (W17)."""
        if row == before:
            raise ConfigurationError(
                f"the backfill of {self.entry.id} makes no progress: the server sorts a row after itself",
                remedy="check the collation of its key's columns, or leave the table out of source.tables",
                runbook="table-not-capturable",
            )

    def _key_at(self, connection: Connection, rest: str) -> Literals | None:
        statement = f"SELECT {self.key.select_list} FROM {self.entry.sql} {self._index} {rest}"  # noqa: S608  as above
        fetched = fetch(connection, statement)
        if not len(fetched):
            return None
        return self.key.literals(cells_of(fetched.data, int(fetched.start[0]), int(fetched.end[0])))

    def _last_key(self, fetched: Fetched) -> Literals:
        cells = cells_of(fetched.data, int(fetched.start[-1]), int(fetched.end[-1]))
        by_name = dict(zip((c.name for c in self.described.columns), cells, strict=True))
        return self.key.literals([by_name[c.name] for c in self.key.columns])


def _where(key: TableKey, after: Literals | None, upto: Literals) -> str:
    return " AND ".join([key.upto(upto), *([key.after(after)] if after is not None else [])])


def _guess_bound(begin: Literals, bound: Literals, distance: float) -> Literals | None:
    """The integer `distance` after `begin`; None if that is not before `bound`."""
    end = int(begin[0]) + max(1, int(distance))
    return (str(end),) if end < int(bound[0]) else None


def sizes(rows: int, parts_max: int, part_rows_min: int) -> list[int]:
    """The number of rows of each part: as many parts as are worth it, about equal."""
    count = max(1, min(parts_max, rows // part_rows_min))
    return [rows * (i + 1) // count - rows * i // count for i in range(count)]


def stride(after: Literals | None, found: Sequence[PartRead]) -> float | None:
    """How far apart the keys of a chunk's rows are; None if the key is not an integer."""
    if after is None:  # the first chunk: the start of its keys is unknown
        after, found = found[0].reached, found[1:]
    rows = sum(part.rows for part in found)
    if after is None or not rows or found[-1].key is None or not found[-1].key.is_whole_number:
        return None
    reached = found[-1].reached
    assert reached is not None  # noqa: S101  there are rows
    return (int(reached[0]) - int(after[0])) / rows
