"""A table of two hundred orders in a log that is written by hand, merged by Spark and changed row by row."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cdcflow.model.table import Table
from cdcflow.spark import job


class MergedOrders(ABC):
    """The log, its warehouse of one format, and what the table has."""

    format = ""

    def __init__(self, spark: Any, log: Any, warehouse: Path, make_table: Callable[..., Table]) -> None:
        self.spark, self.log, self.warehouse = spark, log, warehouse
        self.table = make_table("orders", id="int64", a="int32", doc="string")
        log.state(self.table)
        self.change(*(("c", {"id": n, "a": n, "doc": f"doc {n}"}) for n in range(200)))

    def merge(self) -> None:
        job.merge(self.spark, self.log.root, self.warehouse, table_format=self.format)

    def change(self, *rows: tuple[str, dict[str, Any]]) -> None:
        """Another segment of the log, merged."""
        self.log.segment([(self.table, op, values) for op, values in rows])
        self.merge()

    @abstractmethod
    def frame(self) -> Any:
        """The table's rows."""

    def row(self, key: int) -> tuple[Any, ...] | None:
        found = self.frame().where(f"id = {key}").select("a", "doc").collect()
        return tuple(found[0]) if found else None

    def rows(self, *keys: int) -> list[tuple[Any, ...] | None]:
        return [self.row(key) for key in keys]
