"""The tables that are to be read anew, as a checkpoint's `source` names them until a cut has the order. Pure.

Who compares settings notes them there, together with the settings; who captures orders the reading, and the cut with
the order no longer names them. A crash between the two finds both as they were.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping

from cdcflow.model.table import TableId

REREAD = "reread"
RETRIED = "retried"
"""Tables whose values another setting keeps now: where the reading of one had failed, it is tried again."""


def pending(source: Mapping[str, str]) -> frozenset[TableId]:
    """The tables that are to be read anew, and may not have been ordered yet."""
    return frozenset(TableId(*name) for name in json.loads(source.get(REREAD, "[]")))


def retried(source: Mapping[str, str]) -> frozenset[TableId]:
    """The tables that are to be tried again if their reading had failed, and may not have been ordered yet."""
    return frozenset(TableId(*name) for name in json.loads(source.get(RETRIED, "[]")))


def noted(tables: Collection[TableId], retried_: Collection[TableId] = ()) -> dict[str, str]:
    """What a checkpoint's `source` gets for these tables; {} for none."""
    return {name: _names(found) for name, found in ((REREAD, tables), (RETRIED, retried_)) if found}


def _names(tables: Collection[TableId]) -> str:
    return json.dumps([[table.schema, table.name] for table in sorted(tables)], separators=(",", ":"))


def without(source: Mapping[str, str]) -> dict[str, str]:
    """The same with no table to be read anew."""
    return {name: value for name, value in source.items() if name not in (REREAD, RETRIED)}


__all__ = ["REREAD", "RETRIED", "noted", "pending", "retried", "without"]
