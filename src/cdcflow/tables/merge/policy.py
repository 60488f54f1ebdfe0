"""The decisions of operators about a table in the warehouse: what its rows are, and how it follows its source."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from cdcflow.model.file_layout import PartitionField, SortColumn
from cdcflow.model.routes import NO_ROUTES, Routes
from cdcflow.tables.merge.contract import Contract

Mode = Literal["current", "soft_delete", "append", "history"]
"""What the rows of a table are. `current`: the rows that the source has now; `soft_delete`: these, and the deleted
ones with a mark; `append`: the changes; `history`: the versions of each row."""

HistoryColumns = Literal["cdcflow", "auto_cdc"]
"""The names of the columns with the ends of versions. `cdcflow`: `_valid_from` and `_valid_to`; `auto_cdc`: those of
Spark's Auto CDC."""


Evolve = Literal["evolve", "add_only", "freeze"]
"""Which changes of the source's shape a table follows. `evolve`: all; `add_only`: new columns; `freeze`: none."""

Incompatible = Literal["stop", "new_column"]
"""What happens to a column whose new type does not hold the old values. `stop`: the table is excluded from the cuts;
`new_column`: the new type gets a separate column."""


Readable = Literal["fast", "wide"]
"""What a new table is optimized for. `fast`: cheap changes; `wide`: readers that support neither marked rows nor
renamed columns."""


@dataclass(frozen=True, slots=True)
class TablePolicy:
    """The policy of one table. Every field has the default for a table without settings.

    `mode`: `None` keeps an existing table's mode, and creates a new table as `current`. `history_columns`: `None` keeps
    those of an existing table. `partition_by` and `sort_by`: `None` keeps those of an existing table, and creates a new
    table without. For modes that keep deleted rows: `purge_origins` are the origins of transactions whose deletes
    remove rows all the same, `kept_purges` those whose deletes leave rows unmarked.
    """

    mode: Mode | None = None
    history_columns: HistoryColumns | None = None
    evolve: Evolve = "evolve"
    incompatible: Incompatible = "stop"
    readable: Readable = "fast"
    partition_by: tuple[PartitionField, ...] | None = None
    sort_by: tuple[SortColumn, ...] | None = None
    purge_origins: tuple[str, ...] = ()
    kept_purges: tuple[str, ...] = ()
    contract: Contract = ()

    @property
    def keeps_versions(self) -> bool:
        """Whether a column may stay next to its version with a new type."""
        return self.incompatible == "new_column"


UNSAID = TablePolicy()
"""The policy of a table without settings."""


@dataclass(frozen=True, slots=True)
class DerivedQuery:
    """How a derived table is computed from others: by the query `sql`, or by the function `transform` of the rows of
    the table `of`. `key`: the columns of the result that identify a row. `version` changes whenever the function's
    results may."""

    key: tuple[str, ...]
    sql: str = ""
    of: str = ""
    transform: str = ""
    version: str = ""

    @property
    def text(self) -> str:
        """A text of everything that determines the table's rows apart from the rows of its inputs."""
        return json.dumps(["transform", self.of, self.transform, self.version]) if self.transform else self.sql


@dataclass(frozen=True, slots=True)
class Policies:
    """Every table's policy: its own, or the common one. Tables are identified by name (`schema.name`). `routes`: which
    table of the warehouse gets the rows of a captured one. `derived`: the tables that are computed from others.
    `contracts`: by the same names as `each`, and independent of it."""

    others: TablePolicy = UNSAID
    each: Mapping[str, TablePolicy] = field(default_factory=dict)
    routes: Routes = NO_ROUTES
    derived: Mapping[str, DerivedQuery] = field(default_factory=dict)
    contracts: Mapping[str, Contract] = field(default_factory=dict)

    def of(self, table: str) -> TablePolicy:
        """Return the policy of a captured table: the one under its own name, or that of the table that gets
        its rows."""
        routed = self.routes.find(table) if self.routes else None
        names = (table,) if routed is None else (table, str(routed.table))
        found = next((self.each[name] for name in names if name in self.each), self.others)
        contract = next((self.contracts[name] for name in names if name in self.contracts), ())
        return replace(found, contract=contract) if contract else found


DEFAULTS = Policies()
"""The policies if there are no settings for tables."""
