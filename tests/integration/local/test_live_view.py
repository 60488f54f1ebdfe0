"""The live view of random histories, read without Spark, against the fold in plain Python.

As in `test_random_histories.py`, each history has a seed of its own: `CDCFLOW_HISTORY_SEED=<seed> CDCFLOW_HISTORIES=1`
runs one alone (`CDCFLOW_HISTORY_FORMAT` says in which format).
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import livehistories
import pytest

from cdcflow import local
from cdcflow.local.deltalog import DeltaLog
from cdcflow.local.engine import LocalCuts, LocalEngine
from cdcflow.local.iceberg import IcebergTable
from cdcflow.model.table import Table
from cdcflow.warehouse import job
from cdcflow.warehouse.formats import FORMATS
from cdcflow.warehouse.live import Live
from cdcflow.warehouse.paths import table_path
from cdcflow.warehouse.reports import MergeReport

SEED = int(os.environ.get("CDCFLOW_HISTORY_SEED", "0")) or random.SystemRandom().randrange(1, 10**8)
ALONE = int(os.environ.get("CDCFLOW_HISTORIES", "0"))
HISTORIES, MANY = 30, 2000
"""Of each format: here, and in `make test-long`."""

ROUNDS = 4
COMMITS: list[tuple[Any, str]] = [(IcebergTable, "create"), (IcebergTable, "_changing"), (DeltaLog, "commit")]
"""Where each commit begins."""

ONLY = os.environ.get("CDCFLOW_HISTORY_FORMAT", "")


class Here:
    """Implements `livehistories.Parties` in this process."""

    def __init__(self, table_format: str) -> None:
        self._format = table_format

    def merge(self, log: Path, warehouse: Path) -> MergeReport:
        return local.merge(log, warehouse, table_format=self._format)

    def merge_and_die(self, log: Path, warehouse: Path, before: int) -> None:
        left = before

        def dying(right: Callable[..., Any]) -> Callable[..., Any]:
            def commits(*given: Any, **more: Any) -> Any:
                nonlocal left
                if not left:
                    raise KeyboardInterrupt
                left -= 1
                return right(*given, **more)

            return commits

        def never(*_: Any) -> None:
            raise KeyboardInterrupt

        with pytest.MonkeyPatch.context() as patch, suppress(KeyboardInterrupt):
            patch.setattr(job, "TABLES_AT_ONCE", 1)
            patch.setattr(LocalCuts, "publish", never)
            for of, method in COMMITS:
                patch.setattr(of, method, dying(getattr(of, method)))
            self.merge(log, warehouse)

    def read_live(self, log: Path, warehouse: Path) -> Live[Any]:
        return local.read_live(log, warehouse, incomplete=True)

    def rows(self, shown: Any) -> Iterable[Mapping[str, Any]]:
        found: list[dict[str, Any]] = shown.to_pylist()
        return found

    def merged_rows(self, warehouse: Path, table: Table) -> Iterable[Mapping[str, Any]]:
        with closing(LocalEngine(warehouse, self._format)) as engine:
            there = engine.table(table_path(table.id))
            assert there.snapshot() is not None
            return self.rows(there.rows())


@pytest.mark.parametrize("table_format", [ONLY] if ONLY else FORMATS)
def test_live_view_of_histories_is_the_fold_of_all_that_is_sealed(table_format: str, tmp_path: Path) -> None:
    """Whoever reads live reads what a merge would leave, before it, while it runs, and after it."""
    livehistories.run(Here(table_format), SEED, ALONE or HISTORIES, tmp_path, ROUNDS)


@pytest.mark.long
@pytest.mark.parametrize("part", range(10))
def test_live_view_of_many_histories_is_the_fold(part: int, tmp_path: Path) -> None:
    """The same, thousands of them."""
    for first in range(part * MANY // 10, (part + 1) * MANY // 10, 25):
        table_format = FORMATS[first // 25 % len(FORMATS)]
        livehistories.run(Here(table_format), SEED + 2_000_000 + first, 25, tmp_path / str(first), ROUNDS)
