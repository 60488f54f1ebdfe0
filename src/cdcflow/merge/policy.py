"""What people decide of a table in the warehouse: what its rows are, and how it follows its source."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Mode = Literal["current", "soft_delete", "append", "history"]
"""What the rows of a table are: those that the source has now; these and the deleted ones, marked; the changes; the
versions of each row."""

HistoryColumns = Literal["cdcflow", "auto_cdc"]
"""What the ends of versions are called: `_valid_from` and `_valid_to`, or as Spark's Auto CDC calls them."""


Evolve = Literal["evolve", "add_only", "freeze"]
"""Which changes of the source's shape a table follows: all; new columns; none."""

Incompatible = Literal["stop", "new_column"]
"""What becomes of a column whose new type does not hold the old values: the table is left out; the new type gets a
column of its own."""


Readable = Literal["fast", "wide"]
"""What a new table is made for: cheap changes; readers that know nothing of marked rows and renamed columns."""


@dataclass(frozen=True, slots=True)
class TablePolicy:
    """One table's. Every field has the default of a table of which nobody says anything.

    `mode`: None leaves an existing table its own, and makes a new one `current`. `history_columns`: the same.
    """

    mode: Mode | None = None
    history_columns: HistoryColumns | None = None
    evolve: Evolve = "evolve"
    incompatible: Incompatible = "stop"
    readable: Readable = "fast"

    @property
    def keeps_versions(self) -> bool:
        """Whether a column may stay beside one of its new type."""
        return self.incompatible == "new_column"


UNSAID = TablePolicy()
"""Of a table of which nobody says anything."""


@dataclass(frozen=True, slots=True)
class Policies:
    """Every table's: its own, or the one for all others. Tables are known by name (`schema.name`)."""

    others: TablePolicy = UNSAID
    each: Mapping[str, TablePolicy] = field(default_factory=dict)

    def of(self, table: str) -> TablePolicy:
        """The policy of a table."""
        return self.each.get(table, self.others)


DEFAULTS = Policies()
"""Of tables of which nobody says anything."""
