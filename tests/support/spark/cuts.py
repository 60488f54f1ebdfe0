"""The latest cut, read by Spark or by the engine that is quicker."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from cdcflow import local
from cdcflow.model.table import Table
from cdcflow.spark import read_cut


def rows_of_cut(spark: Any, warehouse: Path) -> Callable[[Table], list[dict[str, Any]]]:
    """The rows of any table of it. The cut is checked once: for Spark that costs more than the rows do."""
    found = read_cut(spark, warehouse, incomplete=True)
    return lambda table: [row.asDict() for row in found[str(table.id)].collect()]


def rows_between(warehouse: Path) -> Callable[[Table], list[dict[str, Any]]]:
    """The same without Spark, which takes seconds for a table: for merges that others follow in the same test."""
    found = local.read_cut(warehouse, incomplete=True)
    return lambda table: found[str(table.id)].to_pylist()


__all__ = ["rows_between", "rows_of_cut"]
