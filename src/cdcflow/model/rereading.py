"""The tables to read again, recorded in a checkpoint's `source` until a cut holds the command to read them. Pure.

The code that compares settings records the tables there, in the same checkpoint as the settings; the capture issues the
command, and the cut that holds it no longer lists the tables. A crash between the two loses neither.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping

from cdcflow.model.table import TableId

REREAD = "reread"
RETRIED = "retried"
"""Tables for which a changed setting now keeps values differently: if their backfill had failed, it is retried."""


def pending(source: Mapping[str, str]) -> frozenset[TableId]:
    """The tables to read again, for which no command may have been issued yet."""
    return frozenset(TableId(*name) for name in json.loads(source.get(REREAD, "[]")))


def tables_to_retry(source: Mapping[str, str]) -> frozenset[TableId]:
    """The tables to retry if their backfill had failed, for which no command may have been issued yet."""
    return frozenset(TableId(*name) for name in json.loads(source.get(RETRIED, "[]")))


def as_source_entries(tables: Collection[TableId], retried_: Collection[TableId] = ()) -> dict[str, str]:
    """The entries of a checkpoint's `source` for these tables; {} if there are no tables."""
    return {name: _names(found) for name, found in ((REREAD, tables), (RETRIED, retried_)) if found}


def _names(tables: Collection[TableId]) -> str:
    return json.dumps([[table.schema, table.name] for table in sorted(tables)], separators=(",", ":"))


def without(source: Mapping[str, str]) -> dict[str, str]:
    """The same `source` without tables to read again."""
    return {name: value for name, value in source.items() if name not in (REREAD, RETRIED)}
