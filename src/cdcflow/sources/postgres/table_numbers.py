"""The numbers that tables have in the log: their oids, unless the log moved here from a server with other oids. Pure.

A table's number in the log is its incarnation: rows with another number are those of another table of the same name,
and no longer exist. At a restored dump, or at a logical replica, each table has another oid. If a table is otherwise
the same, it keeps its number in the log, and so its rows, which are then compared with those of the new server.

    server 1   items   16401 ──▶ 16401
    server 2   items   16923 ──▶ 16401           the same columns: the same table
               notes   16401 ──▶ 16401 + 2³²     other columns: another table than any that the log has

The move determines the numbers once, and the checkpoint stores them, because all code that describes a table of this
log needs them. Numbers from before a move never equal those of tables after it, whatever oids the servers have in
common.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from cdcflow.model.table import Table, TableId

_OIDS = 1 << 32


@dataclass(frozen=True, slots=True)
class TableNumbers:
    """The numbers of one log's tables.

    `moves`: how often the log moved to a server with other oids. `known`: the numbers of the tables that it had before
    the last of these moves, by the oid that each has here.
    """

    moves: int = 0
    known: Mapping[int, int] = field(default_factory=dict)

    def number(self, oid: int) -> int:
        """Return the number of the table with this oid."""
        return self.known.get(oid, oid + self.moves * _OIDS)

    def oid(self, number: int) -> int:
        """Return the oid of the table with this number."""
        return next((oid for oid, known in self.known.items() if known == number), number % _OIDS)

    def after_move(
        self, tables: Iterable[Table], captured: Mapping[TableId, int], logged: Callable[[TableId], Table | None]
    ) -> TableNumbers:
        """Return the numbers after a move to another server.

        `tables`: the tables of the new server, with their oids as incarnations. `captured`: the oids of the captured
        tables at the previous server. `logged`: returns the shape of a table's latest rows in the log, None without
        rows.
        """
        found = {}
        for table in tables:
            oid, before = table.incarnation, captured.get(table.id)
            if before is None:
                continue
            number, shape = self.number(before), logged(table.id)
            # A table without rows in the log has no shape to compare. It is the same if it has the same oid, because
            # pg_upgrade keeps oids.
            is_same = oid == before if shape is None else shape.incarnation == number and shape.has_columns_of(table)
            if is_same:
                found[oid] = number
        return TableNumbers(self.moves + 1, found)

    def to_text(self) -> str:
        return json.dumps([self.moves, list(self.known.items())], separators=(",", ":"))

    @classmethod
    def from_text(cls, text: str | None) -> TableNumbers:
        """Read what `to_text` wrote. None: the log never moved."""
        if text is None:
            return cls()
        moves, known = json.loads(text)
        return cls(moves, dict(known))
