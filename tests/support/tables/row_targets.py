"""A target in memory that checks what it gets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from cdcflow.model.table import Table, TableId
from cdcflow.ports import Overtaken, TableChange

Row = tuple[tuple[str, Any], ...]


class MemoryTarget:
    """Implements `cdcflow.ports.TargetTables`. `fails`: what the next calls of `apply` raise, before or after they have
    applied the change."""

    def __init__(self) -> None:
        self.shapes: dict[TableId, Table] = {}
        self.rows: dict[TableId, list[dict[str, Any]]] = {}
        self.stored: dict[TableId, str] = {}
        self.changes: list[TableChange] = []
        self.fails: list[tuple[str, Exception]] = []

    def places(self) -> Mapping[TableId, str]:
        return dict(self.stored)

    def apply(self, change: TableChange) -> None:
        when, error = self.fails.pop(0) if self.fails else ("", Exception())
        if when == "before":
            raise error
        self._apply(change)
        if when == "after":
            raise error

    def close(self) -> None:
        """Nothing is open."""

    def _apply(self, change: TableChange) -> None:
        table = change.table
        if self.stored.get(table.id) != change.after:
            raise Overtaken
        assert change.rows.schema.equals(table.row_schema)
        rows, deleted = change.rows.to_pylist(), change.deleted.to_pylist()
        keys = [_key(row, table) for row in (*rows, *deleted)]
        assert not table.key or len(set(keys)) == len(keys), "a key is in the change twice"
        if change.is_whole:
            self.rows[table.id] = rows
            assert not deleted
        else:
            assert table.key
            assert self.shapes[table.id] == table
            gone = set(keys)
            self.rows[table.id] = [row for row in self.rows[table.id] if _key(row, table) not in gone] + rows
        self.shapes[table.id] = table
        self.stored[table.id] = change.place
        self.changes.append(change)

    def counted(self, table: TableId, numbers: set[int]) -> Counter[str]:
        """The rows, in the columns with these numbers."""
        names = {c.name: c.number for c in self.shapes[table].columns if c.number in numbers}
        return Counter(_text({names[n]: v for n, v in row.items() if n in names}) for row in self.rows[table])


def counted(rows: list[dict[int, Any]], numbers: set[int]) -> Counter[str]:
    """The same of rows by the columns' numbers."""
    return Counter(_text({n: v for n, v in row.items() if n in numbers}) for row in rows)


def _text(row: Mapping[int, Any]) -> str:
    return repr(sorted((n, _same(v)) for n, v in row.items()))


def _same(value: Any) -> Any:
    """Equal numbers as equal texts, except that -0.0 is not 0.0."""
    return value.normalize() if hasattr(value, "normalize") else value


def _key(row: Mapping[str, Any], table: Table) -> tuple[str, ...]:
    return tuple(repr(row[name]) for name in table.key)
