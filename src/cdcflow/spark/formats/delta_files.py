"""Which files of a Delta table upkeep writes again: small ones, and those of which much is dead. OPTIMIZE is told so by
its settings; where rows are to be put in an order, which it cannot, the same is chosen here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

SMALL_BYTES, MADE_BYTES = 32 << 20, 256 << 20
"""Files of less become one, of so much at most."""

DEAD_SHARE_MAX = 0.33
"""A file of which more is dead is written again."""

COMPACTED: Mapping[str, str] = {
    "spark.databricks.delta.optimize.minFileSize": str(SMALL_BYTES),
    "spark.databricks.delta.optimize.maxFileSize": str(MADE_BYTES),
    "spark.databricks.delta.optimize.maxDeletedRowsRatio": str(DEAD_SHARE_MAX),
}
"""Of files that are larger, and of which less is dead, OPTIMIZE would only make others of their kind."""


def chosen(files: Sequence[Mapping[str, Any]]) -> list[int]:
    """The numbers of those of a table's files, as its log describes them, that are written again; none: they are as
    they should be."""
    worn = [n for n, file in enumerate(files) if _dead_share(file) > DEAD_SHARE_MAX]
    small = [n for n, file in enumerate(files) if file["size"] < SMALL_BYTES]
    return sorted({*worn, *small}) if worn or len(small) > 1 else []


def _dead_share(file: Mapping[str, Any]) -> float:
    dead = (file.get("deletionVector") or {}).get("cardinality", 0)
    rows = json.loads(file.get("stats") or "{}").get("numRecords") or 0
    return dead / rows if rows else 0.0


__all__ = ["COMPACTED", "MADE_BYTES", "chosen"]
