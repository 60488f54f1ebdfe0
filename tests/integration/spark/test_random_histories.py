"""Random histories of tables, merged by every engine, against the fold in plain Python.

As in `tests/integration/local/test_random_histories.py`, each history has its own seed: `CDCFLOW_HISTORY_SEED=<seed>
CDCFLOW_HISTORIES=1` runs one alone.
"""

from __future__ import annotations

import functools
import os
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.support.log.hand_log import HandLog
from tests.support.spark.cuts import rows_between, rows_of_cut
from tests.support.tables.histories import MODES, Histories

from cdcflow import local
from cdcflow.spark import job
from cdcflow.spark.job import MergeReport
from cdcflow.spark.private_delta import DeltaTransaction
from cdcflow.spark.runtime.sessions import FAST_DELTA
from cdcflow.tables.formats import FORMATS
from cdcflow.tables.local import file_rewrites, position_deletes
from cdcflow.tables.merge.policy import Mode
from cdcflow.tables.paths import table_path

pytestmark = pytest.mark.spark

Merge = Callable[..., MergeReport]

SEED = int(os.environ.get("CDCFLOW_HISTORY_SEED", "0")) or random.SystemRandom().randrange(1, 10**8)
ALONE = int(os.environ.get("CDCFLOW_HISTORIES", "0"))
FEW = {"delta by spark": 1, "delta by local": 1, "iceberg by spark": 3, "iceberg by local": 2, "in turns": 2}
FEW["delta by statements"] = 1
MANY = {"delta by spark": 100, "iceberg by spark": 300, "iceberg by local": 100, "in turns": 120, "delta by local": 100}
MANY["delta by statements"] = 100
"""Histories of each engine: here, and in `make test-long`."""

FEW_IN_MODE = 3
"""Histories of tables in other modes than `current`, in each format."""

PARTS = 10
"""One of many: each has its own log."""

ROUNDS = 3


@pytest.fixture(autouse=True)
def rows_are_marked(monkeypatch: pytest.MonkeyPatch) -> None:
    """The local engine marks rows in files of any size; every other run, Iceberg's have delete files as large ones have
    them."""
    monkeypatch.setattr(file_rewrites, "TINY_BYTES", 0)
    if SEED % 2:
        monkeypatch.setattr(position_deletes, "SHARING_BYTES", 0)
        monkeypatch.setattr(position_deletes, "OWN_TIMES", SEED // 2 % 2)


def run(
    spark: Any,
    seed: int,
    count: int,
    folder: Path,
    merge: Merge,
    modes: Sequence[Mode] = MODES,
    rounds: int = ROUNDS,
    layouts: str = "",
) -> None:
    """Merge histories and compare after each merge; after the last one as Spark reads the tables. `layouts`: see
    `Histories.lay_out`."""
    warehouse = folder / "warehouse"
    made = Histories(range(seed, seed + count), HandLog(folder / "log"), modes, with_layouts=layouts)
    for left in reversed(range(rounds)):
        made.write_round()
        made.move_away(lambda table: warehouse.joinpath(*table_path(table)))
        made.lay_out()
        report = merge(made.log.root, warehouse, policies=made.policies)
        made.check(report, rows_between(warehouse) if left else rows_of_cut(spark, warehouse))


def run_part(spark: Any, part: int, engine: str, folder: Path, merge: Merge) -> None:
    first = 10_000 * (1 + list(MANY).index(engine)) + 1000 * part
    run(spark, SEED if ALONE else SEED + first, ALONE or MANY[engine] // PARTS, folder, merge)


@pytest.mark.spread(1)
def test_histories_of_tables_give_what_the_fold_gives(spark: Any, merge: Merge, merged_by: str, tmp_path: Path) -> None:
    """A few of the histories that the local engine runs hundreds of."""
    run(spark, SEED, ALONE or FEW[merged_by], tmp_path, merge)


@pytest.mark.long
@pytest.mark.parametrize("table_format", FORMATS)
def test_histories_of_tables_in_other_modes_give_what_the_fold_gives(
    spark: Any, tmp_path: Path, table_format: str
) -> None:
    """Rows are the same whichever engine merges: Spark, a few of what the local engine gets."""
    merge = functools.partial(job.merge, spark, table_format=table_format)
    run(spark, SEED, ALONE or FEW_IN_MODE, tmp_path, merge, ["soft_delete", "append", "history"], rounds=2)


@pytest.mark.long
@pytest.mark.parametrize("part", range(PARTS))
def test_many_histories_of_tables_give_what_the_fold_gives(
    part: int, spark: Any, merge: Merge, merged_by: str, tmp_path: Path
) -> None:
    """Hundreds of them; Spark merges what the local engine does not support."""
    run_part(spark, part, merged_by, tmp_path, merge)


@pytest.fixture
def by_statements(spark: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Merge]:
    """Merge Delta tables with `merge.fast_delta` off: nothing may begin one of Delta's transactions."""

    def refuse(*_: Any) -> None:
        raise AssertionError("a row of a table was changed through Delta's private classes")

    monkeypatch.setattr(DeltaTransaction, "__init__", refuse)
    spark.conf.set(FAST_DELTA, "false")
    yield functools.partial(job.merge, spark, table_format="delta")
    spark.conf.unset(FAST_DELTA)


@pytest.mark.long
def test_histories_merged_by_statements_alone_give_what_the_fold_gives(
    spark: Any, by_statements: Merge, tmp_path: Path
) -> None:
    """The fallback is what every merge does the day Delta changes its private classes."""
    run(spark, SEED, ALONE or FEW["delta by statements"], tmp_path, by_statements, rounds=2)


@pytest.mark.long
@pytest.mark.parametrize("part", range(PARTS))
def test_many_histories_merged_by_statements_alone_give_what_the_fold_gives(
    part: int, spark: Any, by_statements: Merge, tmp_path: Path
) -> None:
    """The same, many of them."""
    run_part(spark, part, "delta by statements", tmp_path, by_statements)


class InTurns:
    """Merges by another engine each time, as chance has it."""

    def __init__(self, spark: Any, seed: int, table_format: str) -> None:
        self._spark = spark
        self._chance = random.Random(seed)
        self._format = table_format

    def __call__(self, log: Path, warehouse: Path, **more: Any) -> MergeReport:
        if self._chance.random() < 0.5:
            return local.merge(log, warehouse, table_format=self._format, **more)
        return job.merge(self._spark, log, warehouse, table_format=self._format, **more)


@pytest.mark.spread(1)
@pytest.mark.parametrize("table_format", FORMATS)
def test_histories_merged_by_engines_in_turns_give_what_the_fold_gives(
    spark: Any, tmp_path: Path, table_format: str
) -> None:
    """Rows, descriptions and positions do not depend on which engine wrote them, whatever the source did in between."""
    run(spark, SEED, ALONE or FEW["in turns"], tmp_path, InTurns(spark, SEED, table_format))


@pytest.mark.spread(1)
@pytest.mark.parametrize("table_format", list(reversed(FORMATS)))
def test_histories_of_tables_with_layouts_merged_in_turns_give_what_the_fold_gives(
    spark: Any, tmp_path: Path, table_format: str
) -> None:
    """Partitions, their values and orders do not depend on which engine wrote them."""
    merge = InTurns(spark, SEED, table_format)
    run(spark, SEED, ALONE or FEW["in turns"], tmp_path, merge, layouts=table_format)


@pytest.mark.long
@pytest.mark.parametrize("part", range(PARTS))
def test_many_histories_of_tables_with_layouts_merged_in_turns_give_what_the_fold_gives(
    part: int, spark: Any, tmp_path: Path
) -> None:
    """The same, many of them."""
    table_format = FORMATS[part % len(FORMATS)]
    first = SEED if ALONE else SEED + 80_000 + 1000 * part
    merge = InTurns(spark, first, table_format)
    run(spark, first, ALONE or MANY["in turns"] // PARTS, tmp_path, merge, layouts=table_format)


@pytest.mark.long
@pytest.mark.parametrize("part", range(PARTS))
def test_many_histories_merged_by_engines_in_turns_give_what_the_fold_gives(
    part: int, spark: Any, tmp_path: Path
) -> None:
    """The same, many of them."""
    run_part(spark, part, "in turns", tmp_path, InTurns(spark, SEED + part, FORMATS[part % len(FORMATS)]))
