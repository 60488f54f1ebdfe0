"""One range of a table in the order of its key, as several parts that can be read at the same time.

    key      cursor ────────▶ split ────────▶ split ────────▶ as many rows as were requested, or the plan's bound
    part             1                2               3       each in its own snapshot

A part is a range of keys, (split, next split], so the parts cover everything without overlaps, whatever their snapshots
contain; how a split is found only affects their sizes. The first part's snapshot determines the splits: the server
counts rows and returns the key that it reached. That takes a tenth as long as reading, so if keys are integers, the
splits are guessed from the distances of the last chunk's keys. A part that such a guess made too large ends early.

A dialect defines how rows are fetched and decoded, and how a statement names the key's index.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from cdcflow.errors import ConfigurationError
from cdcflow.model.change import KeySet
from cdcflow.model.digest import Buckets
from cdcflow.model.table import Table
from cdcflow.sources.engine.chunks import PartRead, Snapshot, TooLarge
from cdcflow.sources.engine.slices import Slices
from cdcflow.sources.engine.table_key import KEYS_AT_ONCE, Literals, TableKey

CONDITION_BYTES_MAX = 256 << 10
"""Keys may be long, and a server refuses statements that are longer than its limit (MySQL: `max_allowed_packet`)."""
KEYS_GROWTH = 16
"""A query by keys requests at most this many times as many rows as all queries before it, whose rows may have been
unusually small."""


class FetchedRows(Protocol):
    """Rows as the server sent them. `is_whole`: these are all rows of the query; otherwise more may follow."""

    @property
    def data(self) -> bytes: ...
    @property
    def is_whole(self) -> bool: ...
    def __len__(self) -> int: ...


C = TypeVar("C")
F = TypeVar("F", bound=FetchedRows)


@dataclass(frozen=True, slots=True)
class KeyRange:
    """A part of a chunk: the rows after `after` (None: from the start) up to and including `upto`, at most `rows_max`
    (None: any number). `is_last`: its `upto` is the plan's bound."""

    after: Literals | None
    upto: Literals
    rows_max: int | None
    is_last: bool
    bytes_max: int


@dataclass(frozen=True, slots=True)
class KeyPartRead(PartRead):
    """The result of reading a part. `reached`: the last row's key, or where the part began if it has no rows.
    `exhausted`: it is the last part, and no rows are left before the bound. `has_whole_key`: the key is one integer.
    `rows_counted`: the number of rows, if the batches do not contain all of them; 0 if it is unknown."""

    bytes: int = 0
    reached: Literals | None = None
    exhausted: bool = False
    has_whole_key: bool = False
    rows_counted: int | None = None

    @property
    def rows(self) -> int:
        if self.rows_counted is not None:
            return self.rows_counted
        return sum(batch.num_rows for batch in self.batches)


class OrderedTable(ABC, Generic[C, F]):
    """A table in the order of its key, in one snapshot. `key` has no columns if the table has no key."""

    slices: Slices | None = None
    """The slices in which `read` reads a part. None: one statement reads all of a part's rows."""

    def __init__(self, connection: C, snapshot: Snapshot, shape: Table, key: TableKey) -> None:
        self.connection = connection
        self.snapshot = snapshot
        self.shape = shape
        self.key = key

    @property
    @abstractmethod
    def source(self) -> str:
        """The SQL that names the table in a FROM."""

    @property
    @abstractmethod
    def by_index(self) -> str:
        """The SQL after `source` in a FROM that makes the server use the key's index."""

    @property
    @abstractmethod
    def select(self) -> str:
        """The SELECT of all of the table's columns, as `decode` expects them."""

    @abstractmethod
    def fetch(self, statement: str, bytes_max: int | None = None) -> F:
        """Return all rows of a SELECT. With `bytes_max`: at least one row, then as many as fit into about that many
        bytes."""

    @abstractmethod
    def decode(self, fetched: F) -> pa.RecordBatch: ...

    @abstractmethod
    def decode_sums(self, fetched: F) -> pa.RecordBatch:
        """Decode the rows of a query that `sums_of` returned."""

    @abstractmethod
    def sums_of(self, rows: str, buckets: Buckets) -> str:
        """Return the query that adds up rows by bucket. `rows`: the SQL after FROM."""

    @abstractmethod
    def among_buckets(self, buckets: Buckets) -> str:
        """Return the SQL condition that a row is in one of the buckets."""

    @abstractmethod
    def first_key(self, fetched: F) -> Literals:
        """Return the key of the first row of a SELECT of the key's `select_list`."""

    @abstractmethod
    def last_key(self, fetched: F) -> Literals:
        """Return the key of the last row of a `select`."""

    # ── parts ───────────────────────────────────────────────────────────────────────────────────────────────

    def greatest(self) -> Literals | None:
        """Return the greatest key; None if the table has no rows, or no key."""
        if not self.key.columns:
            return None
        return self._key_at(f"ORDER BY {self.key.descending} LIMIT 1")

    def split(
        self,
        after: Literals | None,
        bound: Literals,
        sizes: Sequence[int],
        bytes_max: int,
        stride: float | None = None,
    ) -> list[KeyRange]:
        """Split the next rows after `after` into parts of about these sizes; fewer parts if the rows end before.

        Together the parts have at most about `bytes_max` bytes. `stride`: the mean distance of the last chunk's keys,
        from which the splits are guessed; None if it is unknown.
        """
        parts: list[KeyRange] = []
        each = bytes_max // len(sizes)
        for size in sizes[:-1]:
            begin = parts[-1].upto if parts else after
            if stride is not None and begin is not None:
                end, rows_max = _guess_bound(begin, bound, size * stride), 2 * size
            else:
                end, rows_max = self._key_after(begin, bound, size), None
            if end is None:
                break
            self._check_progress(begin, end)
            parts.append(KeyRange(begin, end, rows_max, False, each))
        left = sum(sizes) - sum(sizes[: len(parts)])
        return [*parts, KeyRange(parts[-1].upto if parts else after, bound, left, True, each)]

    def split_to_end(
        self, after: Literals | None, bound: Literals, sizes: Sequence[int], bytes_max: int
    ) -> list[KeyRange]:
        """Split rows into parts like `split`, except that the last part, too, ends at a known key and not after a
        number of rows."""
        parts: list[KeyRange] = []
        each = bytes_max // len(sizes)
        for size in sizes:
            begin = parts[-1].upto if parts else after
            end = self._key_after(begin, bound, size)
            if end is None:
                return [*parts, KeyRange(begin, bound, None, True, each)]
            self._check_progress(begin, end)
            parts.append(KeyRange(begin, end, None, False, each))
        return parts

    def _key_after(self, begin: Literals | None, bound: Literals, rows: int) -> Literals | None:
        """Return the key of row number `rows` after `begin`; None if the bound is before it."""
        where = self._where(begin, bound)
        return self._key_at(f"WHERE {where} ORDER BY {self.key.names} LIMIT 1 OFFSET {rows - 1}")

    def _check_progress(self, before: Literals | None, row: Literals) -> None:
        """Raise an error if the server returned the same row as the one after itself: the backfill would never end
        (W17)."""
        if row == before:
            raise ConfigurationError(
                f"the backfill of {self.shape.id} makes no progress: the server sorts a row after itself",
                remedy="check the collation of its key's columns, or leave the table out of source.tables",
                runbook="table-not-capturable",
            )

    def _key_at(self, rest: str) -> Literals | None:
        statement = f"SELECT {self.key.select_list} FROM {self.source} {self.by_index} {rest}"  # noqa: S608  quoted
        fetched = self.fetch(statement)
        return self.first_key(fetched) if len(fetched) else None

    def _where(self, after: Literals | None, upto: Literals) -> str:
        return " AND ".join([self.key.upto(upto), *([self.key.after(after)] if after is not None else [])])

    # ── reading ─────────────────────────────────────────────────────────────────────────────────────────────

    def read(self, part: KeyRange) -> Callable[[], KeyPartRead]:
        found: list[F] = []
        reached, rows, size, is_whole = part.after, 0, 0, True
        for rows_max in self._limits(part.rows_max):
            limit = "" if rows_max is None else f" LIMIT {rows_max}"
            fetched = self._fetch_part(self._where(reached, part.upto), limit, part.bytes_max - size)
            found.append(fetched)
            rows, size, is_whole = rows + len(fetched), size + len(fetched.data), fetched.is_whole
            if len(fetched):
                before, reached = reached, self.last_key(fetched)
                self._check_progress(before, reached)
            if not is_whole or rows == part.rows_max or len(fetched) != rows_max:
                break
            if size >= part.bytes_max:
                is_whole = False
                break
        is_full = rows == part.rows_max
        return lambda: KeyPartRead(
            snapshot=self.snapshot,
            shape=self.shape,
            batches=tuple(self.decode(fetched) for fetched in found),
            is_whole=is_whole and (part.is_last or not is_full),
            bytes=size,
            reached=reached,
            exhausted=is_whole and part.is_last and not is_full,
            has_whole_key=self.key.is_whole_number,
            rows_counted=rows,  # another process may keep the batches
            idle_seconds=0.0 if self.slices is None else self.slices.idle_s,
        )

    def _limits(self, rows_max: int | None) -> Iterator[int | None]:
        """Yield the limit on the rows of each statement."""
        if self.slices is None:
            yield rows_max
            return
        rows = 0
        for size in self.slices:
            size_now = size if rows_max is None else min(size, rows_max - rows)
            yield size_now
            rows += size_now

    def read_among(self, part: KeyRange, buckets: Buckets) -> Callable[[], KeyPartRead]:
        where = f"{self._where(part.after, part.upto)} AND {self.among_buckets(buckets)}"
        fetched = self._fetch_part(where, "", part.bytes_max)
        reached = part.upto if fetched.is_whole else self.last_key(fetched)
        return lambda: KeyPartRead(
            snapshot=self.snapshot,
            shape=self.shape,
            batches=(self.decode(fetched),),
            is_whole=fetched.is_whole,
            reached=reached,
            exhausted=fetched.is_whole and part.is_last,
            has_whole_key=self.key.is_whole_number,
            rows_counted=0,
        )

    def _fetch_part(self, where: str, limit: str, bytes_max: int) -> F:
        statement = f"{self.select} {self.by_index} WHERE {where} ORDER BY {self.key.names}{limit}"
        return self.fetch(statement, bytes_max)

    def sums(self, part: KeyRange, buckets: Buckets) -> KeyPartRead:
        rows = f"{self.source} {self.by_index} WHERE {self._where(part.after, part.upto)}"
        batch = self.decode_sums(self.fetch(self.sums_of(rows, buckets)))
        return KeyPartRead(
            snapshot=self.snapshot,
            shape=self.shape,
            batches=(batch,),
            reached=part.upto,
            exhausted=part.is_last,
            has_whole_key=self.key.is_whole_number,
            rows_counted=int(pc.sum(batch.column("n")).as_py() or 0),
        )

    def rows_with(self, keys: KeySet, bytes_max: int) -> tuple[Sequence[pa.RecordBatch], KeySet | None]:
        found: list[pa.RecordBatch] = []
        size = looked_for = 0
        some = 1  # their size is unknown
        while looked_for < len(keys) and some:
            _, left = keys.take(looked_for)
            these, condition = self._sought_keys(left, some)
            room = bytes_max - size if looked_for else None
            rows = self.fetch(f"{self.select} WHERE {condition}", room)
            if room is not None and (not rows.is_whole or len(rows.data) > room):
                break  # larger than earlier rows: the next chunk reads them
            found.append(self.decode(rows))
            size += len(rows.data)
            looked_for += len(these)
            # The number of keys whose rows fit, if these rows are as large as the earlier ones.
            likely = max(bytes_max - size, 0) * looked_for // max(size, 1)
            some = min(KEYS_AT_ONCE, KEYS_GROWTH * looked_for, likely)
        _, left = keys.take(looked_for)
        return found, left if len(left) else None

    def _sought_keys(self, keys: KeySet, count: int) -> tuple[KeySet, str]:
        """Return the first of these keys, at most `count`, and the condition that matches their rows."""
        while True:
            these, _ = keys.take(count)
            [condition] = self.key.among(these)
            size = len(condition.encode())
            if count == 1 or size <= CONDITION_BYTES_MAX:
                return these, condition
            count = max(1, count * CONDITION_BYTES_MAX // size)

    def all_rows(self, bytes_max: int) -> Sequence[pa.RecordBatch]:
        rows = self.fetch(self.select, bytes_max)
        if not rows.is_whole:
            raise TooLarge
        return [self.decode(rows)]


def _guess_bound(begin: Literals, bound: Literals, distance: float) -> Literals | None:
    """Return the integer key `distance` after `begin`; None if that is not before `bound`."""
    end = int(begin[0]) + max(1, int(distance))
    return (str(end),) if end < int(bound[0]) else None


def sizes(rows: int, parts_max: int, part_rows_min: int) -> list[int]:
    """Return the number of rows of each part: as many parts as are worth it, about equal."""
    count = max(1, min(parts_max, rows // part_rows_min))
    return [rows * (i + 1) // count - rows * i // count for i in range(count)]


def stride(after: Literals | None, found: Sequence[KeyPartRead]) -> float | None:
    """Return the mean distance between the keys of a chunk's rows; None if the key is not an integer."""
    if after is None:  # the first chunk: the start of its keys is unknown
        after, found = found[0].reached, found[1:]
    rows = sum(part.rows for part in found)
    if after is None or not rows or not found[-1].has_whole_key:
        return None
    reached = found[-1].reached
    assert reached is not None  # noqa: S101  there are rows
    return (int(reached[0]) - int(after[0])) / rows
