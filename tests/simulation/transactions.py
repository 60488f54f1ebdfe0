"""Whole transactions as plain lists: the machine gets these here instead of Arrow columns, for speed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from cdcflow.model.change import Int64s, KeySet, Kind, Run, Uint64s
from cdcflow.model.position import Position
from cdcflow.model.table import TableId


class Shape(NamedTuple):
    """A table's shape: its columns, and which table of that name it is."""

    columns: tuple[str, ...]
    incarnation: int = 1


class Keys(KeySet):
    """A key set that holds plain values."""

    __slots__ = ("plain",)
    plain: tuple[int, ...]

    def __init__(self, plain: Iterable[int]) -> None:
        object.__setattr__(self, "plain", tuple(plain))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Keys) and self.plain == other.plain

    def __hash__(self) -> int:
        return hash(self.plain)

    def __repr__(self) -> str:
        return f"Keys{self.plain}"

    def __len__(self) -> int:
        return len(self.plain)

    def union(self, *others: KeySet) -> Keys:
        return Keys(key for part in (self, *others) for key in plain_keys(part))

    def distinct(self) -> Keys:
        return Keys(dict.fromkeys(self.plain))

    def take(self, count: int) -> tuple[Keys, Keys]:
        return Keys(self.plain[:count]), Keys(self.plain[count:])

    @property
    def keys(self) -> pa.Table:  # made only where these meet keys out of a checkpoint
        return pa.table({"id": pa.array(self.plain, pa.int64())})


def plain_keys(keys: KeySet) -> tuple[int, ...]:
    """The plain values of a key set, also of one from a checkpoint."""
    if isinstance(keys, Keys):
        return keys.plain
    return tuple(keys.keys.column("id").to_pylist()) if len(keys) else ()


class Row(NamedTuple):
    """One row of a transaction. `values` are those that are sent, if it is `published`; `full` is the whole new row,
    for the truth. `lost`: the log never gets it, although the table is captured; `in_gap`: because it is where the
    source has discarded its log. `unfit`: it cannot leave the source, as in a table whose settings do not fit it."""

    table: TableId
    shape: Shape
    op: str
    values: dict[str, object]
    unchanged: frozenset[str] = frozenset()
    before: dict[str, object] | None = None
    full: dict[str, object] | None = None
    published: bool = True
    lost: bool = False
    in_gap: bool = False
    unfit: bool = False


class Transaction(NamedTuple):
    xid: int
    lsn: int
    rows: tuple[Row, ...]


def position_of(lsn: int) -> Position:
    return Position(f"{lsn:08d}")


def lsn_of(position: Position | None) -> int:
    """0 before the source was read."""
    return 0 if position is None else int(position.text)


class Plain(Run):
    """Consecutive transactions; `read` marks the rows of a chunk."""

    __slots__ = ("items", "read")
    items: tuple[Transaction, ...]
    read: bool

    def __init__(self, items: tuple[Transaction, ...], read: bool = False) -> None:
        object.__setattr__(self, "items", items)
        object.__setattr__(self, "read", read)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Plain) and (self.items, self.read) == (other.items, other.read)

    def __hash__(self) -> int:
        return hash((self.items, self.read))

    def __repr__(self) -> str:
        return f"Plain({self.items}, read={self.read})"

    @property
    def kind(self) -> Kind:
        return Kind.READ if self.read else Kind.SOURCE

    @property
    def commit_ts(self) -> Int64s:
        return np.array([t.lsn for t in self.items], np.int64)

    @property
    def transactions(self) -> int:
        return len(self.items)

    @property
    def rows(self) -> int:
        return sum(len(t.rows) for t in self.items)

    @property
    def bytes(self) -> int:
        return 100 * self.rows

    @property
    def xids(self) -> Uint64s:
        return np.array([t.xid & 0xFFFFFFFF for t in self.items], np.uint64)

    @property
    def last_position(self) -> Position:
        return position_of(self.items[-1].lsn)

    @property
    def last_commit_ts(self) -> int:
        return self.items[-1].lsn

    def first_touching(self, tables: frozenset[TableId]) -> int | None:
        for number, item in enumerate(self.items):
            if any(row.table in tables for row in item.rows):
                return number
        return None

    def split_at(self, count: int) -> tuple[Plain, Plain]:
        return Plain(self.items[:count], self.read), Plain(self.items[count:], self.read)

    def shapes_of(self, table: TableId) -> frozenset[Any]:
        return frozenset(row.shape for item in self.items for row in item.rows if row.table == table)

    def truncates(self, table: TableId) -> bool:
        return any(row.table == table and row.op == "t" for item in self.items for row in item.rows)

    def partial_keys(self, table: TableId) -> Keys | None:
        return self._keys(table, "cu")

    def moved_keys(self, table: TableId) -> Keys | None:
        return self._keys(table, "c")

    def without(self, tables: frozenset[TableId]) -> Plain:
        items = (item._replace(rows=tuple(row for row in item.rows if row.table not in tables)) for item in self.items)
        return Plain(tuple(items), self.read)

    def _keys(self, table: TableId, ops: str) -> Keys | None:
        found = [
            row.values["id"]
            for item in self.items
            for row in item.rows
            if row.unchanged and row.table == table and row.op in ops
        ]
        return Keys(k for k in found if isinstance(k, int)) if found else None
