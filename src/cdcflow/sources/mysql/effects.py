"""Effects of statements and rows on whole tables: which are read again, and which fail. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from cdcflow.model.table import TableId
from cdcflow.sources.engine.selection import Refusal

FillCause = Literal["changed", "swapped", "possible"]
"""Why a table is read again: a statement changed its rows; it was swapped for a copy with the same values; a statement
on other tables may have changed its rows."""


@dataclass(slots=True)
class Effects:
    """The tables that are to be read again (`filled`), and those that fail because of statements (`failing`) or of rows
    (`failures`, see `RowEvents.take_failures`).

    `renamed`: columns of tables that are read again, with their earlier and new names. `xids`: the transactions of the
    statements for which tables are read again.
    """

    filled: dict[TableId, FillCause] = field(default_factory=dict)
    renamed: dict[TableId, tuple[tuple[str, str], ...]] = field(default_factory=dict)
    failing: dict[TableId, Refusal] = field(default_factory=dict)
    failures: dict[TableId, tuple[str, bool]] = field(default_factory=dict)
    xids: tuple[int, ...] = ()

    def fill_for(self, table: TableId, cause: FillCause) -> None:
        """Have the rows of a table read again for a cause; several different causes count as a change."""
        self.filled[table] = cause if self.filled.get(table) in (None, cause) else "changed"

    def rename(self, table: TableId, names: tuple[tuple[str, str], ...]) -> None:
        """Note the columns that a statement renamed."""
        self.renamed[table] = (*self.renamed.get(table, ()), *names)

    def fail(self, table: TableId, refusal: Refusal) -> None:
        """Have a table fail; it is then not read again."""
        self.filled.pop(table, None)
        self.failing[table] = refusal

    def add(self, later: Effects) -> None:
        """Add the effects of later statements and rows."""
        for table, refusal in later.failing.items():
            self.fail(table, refusal)
        for table, cause in later.filled.items():
            self.fill_for(table, cause)
        for table, names in later.renamed.items():
            self.rename(table, names)
        self.failures |= later.failures
        self.xids += later.xids
