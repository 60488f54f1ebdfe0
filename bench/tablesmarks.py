"""tables, marks: a change of some rows of a large file, most of whose cost must not be the rows deleted before."""

from __future__ import annotations

import tempfile
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from bench.harness import Budget, tell
from bench.results import Line, at_most, compared
from cdcflow.tables.local.engine import LocalEngine
from cdcflow.tables.local.scan import RowMarks

ROWS, DELETED = 5_000_000, 600_000
"""Of the file, and of these when the measurement begins."""

QUICK = 10
"""A quick run divides both by this."""

CHANGED = 440
"""Rows that a commit marks: what a table among five gets in 0.22 s at 10,000 changes a second."""

COMMITS = 40
"""Commits of a round."""

AIMS = {"iceberg": at_most(2.0)}
"""Delta has no aim: its protocol allows a file one deletion vector, so each commit has to write all deleted rows."""

NONE_DELETED = "the same file without deleted rows"
COLUMNS = pa.schema([("id", pa.int64())])


def marks(table_format: str, budget: Budget) -> list[Line]:
    divided = QUICK if budget.quick else 1
    size, deleted = ROWS // divided, DELETED // divided
    case = f"marks, {CHANGED} rows of a file of {size:,}, {deleted:,} of them deleted before"
    tell(f"  tables: {case}")
    with tempfile.TemporaryDirectory() as folder, closing(LocalEngine(Path(folder), table_format)) as engine:
        order = np.random.default_rng(7).permutation(size)
        worn, whole = (File(engine, name, order) for name in ("worn", "whole"))
        worn.mark(deleted)
        ours, theirs = [], []
        for _ in range(budget.rounds):
            ours.append(1000 * worn.commit_cpu_s())
            theirs.append(1000 * whole.commit_cpu_s())
    return [compared("tables", case, "CPU ms/commit", ours, theirs, NONE_DELETED, AIMS.get(table_format))]


class File:
    """A table of one file. Its rows are deleted in this order."""

    def __init__(self, engine: LocalEngine, name: str, order: npt.NDArray[np.int64]) -> None:
        self._table: Any = engine.table(("bench", name))
        self._order = order
        self._marked = 0
        self._cut = 1
        self._table.create(COLUMNS, {}, {"cut": 1})
        self._table.snapshot()
        self._table.append(pa.table([np.sort(order)], schema=COLUMNS), {"cut": 1}, "", 0, 9)

    def commit_cpu_s(self) -> float:
        """Make the commits of a round, and return the CPU seconds of one."""
        return float(np.median([self.mark(CHANGED) for _ in range(COMMITS)]))

    def mark(self, count: int) -> float:
        """Mark this many more rows as deleted in one commit, and return the CPU seconds that it took."""
        self._table.snapshot()
        (file,) = self._table.files()
        more = self._order[self._marked : self._marked + count]
        self._marked += count
        self._cut += 1
        began = time.process_time()
        gone = RowMarks.of(self._table.deleted_rows(file), more)
        self._table.replace([], None, {"cut": self._cut}, "", 0, [(file, gone)])
        return time.process_time() - began
