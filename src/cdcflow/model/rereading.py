"""The tables that are to be read anew, as a checkpoint's `source` names them until a cut has the order. Pure.

Who compares settings notes them there, together with the settings; who captures orders the reading, and the cut with
the order no longer names them. A crash between the two finds both as they were.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping

from cdcflow.model.table import TableId

REREAD = "reread"


def pending(source: Mapping[str, str]) -> frozenset[TableId]:
    """The tables that are to be read anew, and may not have been ordered yet."""
    return frozenset(TableId(*name) for name in json.loads(source.get(REREAD, "[]")))


def noted(tables: Collection[TableId]) -> dict[str, str]:
    """What a checkpoint's `source` gets for these tables; {} for none."""
    names = [[table.schema, table.name] for table in sorted(tables)]
    return {REREAD: json.dumps(names, separators=(",", ":"))} if names else {}


def without(source: Mapping[str, str]) -> dict[str, str]:
    """The same with no table to be read anew."""
    return {name: value for name, value in source.items() if name != REREAD}


__all__ = ["REREAD", "noted", "pending", "without"]
