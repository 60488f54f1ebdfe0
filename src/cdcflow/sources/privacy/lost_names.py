"""Names of columns that may mean other columns after a part of the source's log was lost, if columns have no numbers.

A statement in that part may have given a name that the settings use to another column, and nothing in the table's shape
shows it for certain. If the table's columns are in another order, or one is gone, the table fails until an operator has
checked the names; otherwise values might leave under the rules of other columns. A checkpoint stores such tables with
their rules. An operator confirms the names by changing the rules, or by listing the names under `optional`.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from cdcflow.errors import TableMisfit
from cdcflow.model.table import Table, TableId
from cdcflow.sources.privacy.policies import misfit


@dataclass(frozen=True, slots=True)
class DoubtfulNames:
    """The names of a table's columns that may mean other columns now, and the table's rules as a text."""

    names: tuple[str, ...]
    rules: str


LostNames = Mapping[TableId, DoubtfulNames]

ENTRY = "names_in_doubt"
"""The name of the entry for such names in a checkpoint's `source`."""


def names_in_doubt(before: Table, now: Table, used: Collection[str]) -> tuple[str, ...]:
    """Return, in lower case, the names in `used` that another column may have now. `before`: the table's shape before
    the lost part."""
    earlier, later = ([c.name.lower() for c in table.columns] for table in (before, now))
    if not frozenset(earlier) <= frozenset(later):
        return tuple(sorted(frozenset(used).intersection(later)))
    kept = [name for name in later if name in earlier]
    moved = (name for name, same in zip(earlier, kept, strict=True) if name != same and name in used)
    return tuple(sorted(moved))


def lost_names_misfit(table: TableId, found: DoubtfulNames) -> TableMisfit:
    """Return the error for rows of a table with such names."""
    listed = ", ".join(found.names)
    return misfit(
        table,
        "its columns changed in a part of the source's log that is lost, and may have exchanged their names, which "
        "tables uses",
        f"correct its settings, if the columns of these names are others now; otherwise list the names there: "
        f"`optional: [{listed}]`",
    )


def read_lost_names(source: Mapping[str, str]) -> LostNames:
    """Read the lost names in a checkpoint's `source`."""
    listed = json.loads(source.get(ENTRY, "[]"))
    return {TableId(schema, name): DoubtfulNames(tuple(names), rules) for schema, name, names, rules in listed}


def lost_names_as_json(found: LostNames) -> dict[str, str]:
    """Return the entry of a checkpoint's `source` for lost names; empty if no name was lost."""
    listed = [[table.schema, table.name, one.names, one.rules] for table, one in found.items()]
    return {ENTRY: json.dumps(listed)} if found else {}
