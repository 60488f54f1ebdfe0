"""Choose the files of a Delta table that maintenance rewrites: small ones, and those with many deleted rows. OPTIMIZE
does this by its settings, but it cannot sort rows, so for sorted rows the same files are chosen here."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

SMALL_BYTES, MADE_BYTES = 32 << 20, 256 << 20
"""Files below the first size are merged, into files of at most the second size."""

DEAD_SHARE_MAX = 0.33
"""The share of deleted rows above which a file is rewritten."""

COMPACTED: Mapping[str, str] = {
    "spark.databricks.delta.optimize.minFileSize": str(SMALL_BYTES),
    "spark.databricks.delta.optimize.maxFileSize": str(MADE_BYTES),
    "spark.databricks.delta.optimize.maxDeletedRowsRatio": str(DEAD_SHARE_MAX),
}
"""OPTIMIZE's settings for the same choice of files. By default it would also replace larger files by similar ones."""


def files_to_rewrite(files: Sequence[Mapping[str, Any]]) -> list[int]:
    """Return the indexes of the files to rewrite; empty if there is nothing to do. `files`: a table's files, as its log
    describes them."""
    worn = [n for n, file in enumerate(files) if _dead_share(file) > DEAD_SHARE_MAX]
    small = [n for n, file in enumerate(files) if file["size"] < SMALL_BYTES]
    return sorted({*worn, *small}) if worn or len(small) > 1 else []


def _dead_share(file: Mapping[str, Any]) -> float:
    dead = (file.get("deletionVector") or {}).get("cardinality", 0)
    rows = json.loads(file.get("stats") or "{}").get("numRecords") or 0
    return dead / rows if rows else 0.0
