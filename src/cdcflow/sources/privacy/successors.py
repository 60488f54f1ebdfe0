"""New tables without policies that may be a table with policies under another name.

Such a table fails, without stopping other tables, until an operator names it in `tables`; otherwise its rows might
leave without the policies. A checkpoint stores these tables, because at the next start they are no longer new.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping

from cdcflow.errors import TableMisfit
from cdcflow.model.table import TableId, tables_as_json, tables_from_json
from cdcflow.sources.privacy.policies import misfit

Successors = Mapping[TableId, TableId]
"""Maps each such table to the table that is gone."""

ENTRY = "perhaps_renamed"
"""The name of the entry for such tables in a checkpoint's `source`."""


def successors(
    tables: Iterable[TableId],
    captured: Collection[TableId],
    private: Collection[TableId],
    is_named: Callable[[TableId], bool],
    before: Successors,
) -> Successors:
    """Return the new tables that may be a table with policies under another name, each with the table that is gone.

    `tables`: the tables that exist now; `captured`: the tables that were captured before; `private`: tables that have
    or had policies; `is_named`: whether an entry of the settings matches a table; `before`: the successors of the last
    start.
    """
    known = frozenset(tables)
    still = {table: gone for table, gone in before.items() if table in known and not is_named(table)}
    gone = sorted(frozenset(private).intersection(captured) - known)
    new = () if not gone else (t for t in known.difference(captured, still) if not is_named(t))
    return still | dict.fromkeys(new, *gone[:1])


def successor_misfit(table: TableId, gone: TableId) -> TableMisfit:
    """Return the error for rows of a successor."""
    return misfit(
        table,
        f"it has no policies, and may be {gone}, which has policies and is gone",
        f"if it is {gone}, give it its policies; otherwise name it in tables with `columns: {{}}`",
    )


def read_successors(source: Mapping[str, str]) -> Successors:
    """Read the successors in a checkpoint's `source`."""
    new, gone = (tables_from_json(text) for text in json.loads(source.get(ENTRY, '["[]", "[]"]')))
    return dict(zip(new, gone, strict=True))


def successors_as_json(found: Successors) -> dict[str, str]:
    """Return the entry of a checkpoint's `source` for successors; empty if there are none."""
    return {ENTRY: json.dumps([tables_as_json(found.keys()), tables_as_json(found.values())])} if found else {}
