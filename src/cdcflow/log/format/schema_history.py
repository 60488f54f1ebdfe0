"""The shapes that each table has had, with their numbers: the `<version>` in a Parquet file's name.

Shapes are numbered per table name from 1, in the order in which they appeared in the log; a shape that reappears gets
its old number. Stored in `<log>/schemas.json`, which is written before the first segment that needs it; shapes later
than that file are in the journal's schema frames.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from cdcflow.errors import ConfigurationError
from cdcflow.model.table import Table, TableId, table_from_json

HISTORY_VERSION = 1


class SchemaHistory:
    """The numbers of all shapes so far. The log's writer owns one: one thread adds to it, others may read it.

    Readers iterate over lists, which only grow: a dictionary must not change while another thread copies it.
    """

    def __init__(self) -> None:
        self._numbers: dict[Table, int] = {}
        self._all: list[tuple[Table, int]] = []
        self._of: dict[TableId, list[tuple[int, Table]]] = {}

    def number(self, table: Table) -> int:
        """Return the number of this shape. A new shape gets its number now."""
        known = self._numbers.get(table)
        if known is None:
            known = max((number for number, _ in self._of.get(table.id, ())), default=0) + 1
            self.learn(table, known)
        return known

    def learn(self, table: Table, number: int) -> None:
        """Add a shape with the number that a file records for it."""
        if self._numbers.get(table) == number:
            return
        self._numbers[table] = number
        self._of.setdefault(table.id, []).append((number, table))
        self._all.append((table, number))

    def __len__(self) -> int:
        return len(self._numbers)

    def __iter__(self) -> Iterator[tuple[Table, int]]:
        return iter(self._all[:])

    def newest(self, table: TableId) -> Table | None:
        """Return the shape of a table with the highest number; `None` if the table has no shape."""
        return max(self._of.get(table, ()), key=lambda entry: entry[0], default=(0, None))[1]

    def shapes(self) -> dict[TableId, dict[int, Table]]:
        """Return all shapes by table and number, oldest first."""
        found: dict[TableId, dict[int, Table]] = {}
        for table, number in sorted(self, key=lambda entry: (entry[0].id, entry[1])):
            found.setdefault(table.id, {})[number] = table
        return found

    def to_json(self) -> str:
        shapes = [{"number": number, "table": table.to_json()} for table, number in self]
        return json.dumps({"version": HISTORY_VERSION, "shapes": shapes}, indent=1)

    @classmethod
    def from_json(cls, text: str | bytes, name: str = "schemas.json") -> SchemaHistory:
        """Read what `to_json` wrote. Raises ConfigurationError if a newer cdcflow wrote it."""
        value = json.loads(text)
        if value["version"] > HISTORY_VERSION:
            raise ConfigurationError(
                f"reading {name}: a newer cdcflow wrote it (version {value['version']})", runbook="newer-format"
            )
        history = cls()
        for shape in value["shapes"]:
            history.learn(table_from_json(shape["table"]), shape["number"])
        return history
