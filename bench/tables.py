"""tables: how users read the warehouse, compared with plain scans of the same tables.

`CDCFLOW_BENCH_PARTS` selects the parts (none: all), `CDCFLOW_BENCH_FORMATS` the formats. A part is a function below
`PARTS`, from a format and a budget to lines.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace

from bench import (
    tablesappend,
    tablescluster,
    tablesfreshness,
    tableshistory,
    tableslive,
    tableslog,
    tablesmarks,
    tablespartitions,
    tablesscan,
    tablesupkeep,
)
from bench.harness import Budget, tell
from bench.mergeparties import FORMATS
from bench.results import Line

ROWS = 2_000_000
"""Rows of a large table."""

PARTS: Mapping[str, Callable[[str, Budget], list[Line]]] = {
    "live": tableslive.read_live,
    "history": tableshistory.history,
    "append": tablesappend.append,
    "log": tableslog.read_log,
    "scan": tablesscan.after_merges,
    "upkeep": tablesupkeep.after_upkeep,
    "cluster": tablescluster.clustered,
    "partitions": tablespartitions.partitions,
    "marks": tablesmarks.marks,
    "freshness": tablesfreshness.freshness,
}
"""In the order in which they run."""


def run(budget: Budget, transport: str) -> list[Line]:
    lines: list[Line] = []
    chosen = os.environ.get("CDCFLOW_BENCH_PARTS", "").split() or list(PARTS)
    for table_format in FORMATS:
        for name in chosen:
            tell(f"  tables: {name}, {table_format}")
            found = PARTS[name](table_format, budget)
            lines += [replace(line, bench="tables", case=f"{table_format}: {line.case}") for line in found]
    return lines
