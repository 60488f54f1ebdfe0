"""A table of two hundred orders in a log that is written by hand, merged by Spark and changed row by row."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cdcflow.model.table import Table
from cdcflow.spark import job

PARTIAL: list[tuple[str, dict[str, Any]]] = [
    ("u", {"id": 5, "a": -5, "_unchanged": ["doc"]}),
    ("u", {"id": 6, "a": None, "doc": None}),
    ("d", {"id": 7}),
    ("c", {"id": 500, "a": 1, "doc": "c"}),
    ("d", {"id": 900}),
]
AFTER_PARTIAL = {5: (-5, "doc 5"), 6: (None, None), 7: None, 500: (1, "c"), 900: None}
"""Changes one of which leaves a column unchanged, and the rows of their keys after them."""


class MergedOrders(ABC):
    """The log, its warehouse of one format, and the table's rows."""

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
