"""How a server compares the names of schemas and tables: its `lower_case_table_names`. Pure.

    0  case counts (usual on Linux)
    1  names are stored in lower case, and a statement may write them in any case (usual on Windows)
    2  names are stored as given, and compared in lower case (usual on macOS); the log's rows have lower case

The servers lower a name letter by letter, and so does this module; it does not apply rules for whole words (a sigma at
the end).
"""

from __future__ import annotations

from dataclasses import dataclass

from cdcflow.model.table import TableId


@dataclass(frozen=True, slots=True)
class TableNames:
    """How a server compares names. `mode` is the value of `lower_case_table_names`."""

    mode: int = 0

    def key(self, table: TableId) -> TableId:
        """Return a key that is equal for names that mean the same table."""
        return TableId(self.text(table.schema), self.text(table.name))

    def text(self, name: str) -> str:
        return lower_name(name) if self.mode else name

    def as_stored(self, name: str) -> str:
        """Return a name as the catalog stores it."""
        return lower_name(name) if self.mode == 1 else name


def lower_name(name: str) -> str:
    """Return a name in the servers' lower case."""
    return name.lower() if name.isascii() else "".join(letter.lower()[0] for letter in name)
