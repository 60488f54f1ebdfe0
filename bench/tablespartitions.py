"""tables, partitions: a merge of recent keys in a table by day that has ten times the days, without Spark."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from bench.harness import Budget, tell
from bench.mergelog import SealedLog, rows, table
from bench.results import Line, at_most, compared
from cdcflow import local
from cdcflow.model.file_layout import PartitionField
from cdcflow.tables.merge.policy import Policies, TablePolicy

CHANGES, TIMES, DAYS = 1000, 10, 10
AIM = 1.3
BY_DAY = Policies(TablePolicy(partition_by=(PartitionField("at", "day"),)))
FIRST_US, DAY_US = 1_700_006_400_000_000, 86_400_000_000


def partitions(table_format: str, budget: Budget) -> list[Line]:
    """`budget.rows`: of the smaller table, in `DAYS` days. Other formats than Iceberg have no partitions here."""
    if table_format != "iceberg":
        return []
    small, large = budget.rows, budget.rows * TIMES
    seconds: dict[int, list[float]] = {small: [], large: []}
    cpu: dict[int, list[float]] = {small: [], large: []}
    with tempfile.TemporaryDirectory() as folder:
        logs = {size: SealedLog(Path(folder) / f"log {size}") for size in seconds}
        chance = np.random.default_rng(7)
        for size, log in logs.items():
            for first in range(0, size, small):
                log.segment({table("large"): _by_day(np.arange(first, min(first + small, size)), small)}, "r")
            took, _ = _merge(log, Path(folder) / str(size))
            tell(f"    the first merge of {size:,} rows: {took:.1f} s")
        for number in range(budget.rounds + 1):
            for size, log in sorted(logs.items(), reverse=bool(number % 2)):
                ids = np.sort(chance.choice(np.arange(size - small // 5, size), CHANGES, replace=False))
                log.segment({table("large"): _by_day(ids, small, number + 1)}, "u")
                took = _merge(log, Path(folder) / str(size))
                if number:
                    seconds[size].append(took[0])
                    cpu[size].append(took[1])
    case = f"partitions, {CHANGES:,} changes of recent keys, {large:,} rows in {DAYS * TIMES} days, without Spark"
    peer = f"{small:,} rows in {DAYS} days"
    return [
        compared("tables", case, "s", seconds[large], seconds[small], peer, at_most(AIM)),
        compared("tables", case, "CPU s", cpu[large], cpu[small], peer),
    ]


def _by_day(ids: np.ndarray[Any, Any], small: int, seed: int = 0) -> pa.RecordBatch:
    """Rows whose day grows with their key: a tenth of `small` rows in each."""
    found = rows(ids, seed)
    at = FIRST_US + ids * (DAY_US * DAYS // small)
    number = found.schema.get_field_index("at")
    return found.set_column(number, found.schema.field(number), pa.array(at, found.schema.field(number).type))


def _merge(log: SealedLog, warehouse: Path) -> tuple[float, float]:
    """Merge a log's new changes. Return the seconds and the CPU seconds that it took."""
    began, cpu = time.perf_counter(), time.process_time()
    local.merge(log.root, warehouse, table_format="iceberg", policies=BY_DAY)
    return time.perf_counter() - began, time.process_time() - cpu
