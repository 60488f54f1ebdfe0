"""Derived tables where Spark merges their inputs: the local engine computes them in the driver, from the same cut."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.integration.local.test_derived_tables import SEED, Tables, counted, expected, found, queries, run_history
from tests.support.log.hand_log import HandLog

from cdcflow import local
from cdcflow.spark import job
from cdcflow.spark.engine import SparkEngine
from cdcflow.tables.formats import FORMATS
from cdcflow.tables.job.reports import MergeReport
from cdcflow.tables.local import reachable
from cdcflow.tables.local.deriver import LocalDeriver
from cdcflow.tables.local.engine import LocalEngine
from cdcflow.tables.merge.refusals import CannotFollow
from cdcflow.tables.paths import Metastore, Warehouse

pytestmark = pytest.mark.spark

Merge = Callable[..., MergeReport]


@pytest.mark.spread(1)
@pytest.mark.parametrize("table_format", FORMATS)
def test_derived_tables_agree_with_inputs_that_either_engine_merged(
    spark: Any, hand_log: HandLog, warehouse: Path, table_format: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A table is continued by the rows that changed, whichever engine committed them."""
    tables, names = Tables(hand_log, random.Random(SEED)), ("groups",)
    by: list[Merge] = [functools.partial(job.merge, spark), local.merge, functools.partial(job.merge, spark)]
    with counted(monkeypatch) as seen:
        for merge in by:
            tables.change()
            merge(hand_log.root, warehouse, table_format=table_format, policies=queries(*names))
            assert found(warehouse) == expected(tables, names), SEED
    assert seen == [True, False, False]


@pytest.mark.long
@pytest.mark.parametrize("table_format", FORMATS)
@pytest.mark.parametrize("number", range(4))
def test_derived_tables_of_random_histories_are_what_their_queries_give(
    spark: Any, hand_log: HandLog, warehouse: Path, table_format: str, number: int
) -> None:
    """The same histories and the same oracle as where the local engine merges."""
    merge = functools.partial(job.merge, spark, table_format=table_format)
    run_history(merge, hand_log, warehouse, table_format, f"{SEED} {number}")


@pytest.mark.long
@pytest.mark.parametrize("table_format", FORMATS)
def test_derived_table_that_another_program_has_just_changed_is_computed_again(
    spark: Any, hand_log: HandLog, warehouse: Path, table_format: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark's errors of a conflict are not those of the engine that commits the table."""
    tables, names = Tables(hand_log, random.Random(SEED)), ("groups",)
    given: dict[str, Any] = {"table_format": table_format, "policies": queries(*names)}
    job.merge(spark, hand_log.root, warehouse, **given)
    conflicts, right = [1], LocalDeriver.derive

    def derive(self: LocalDeriver, *told: Any) -> Any:
        if conflicts:
            conflicts.pop()
            raise Conflict
        return right(self, *told)

    monkeypatch.setattr(LocalDeriver, "derive", derive)
    monkeypatch.setattr(LocalEngine, "is_conflict", lambda _, error: isinstance(error, Conflict))
    tables.change()
    assert job.merge(spark, hand_log.root, warehouse, **given).published
    assert not conflicts
    assert found(warehouse) == expected(tables, names), SEED


class Conflict(Exception):
    """Another process has committed."""


@pytest.mark.long
def test_derived_table_that_the_local_engine_does_not_reach_is_excluded_alone(
    spark: Any, hand_log: HandLog, warehouse: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The captured tables are published; the reason names what would have to be different."""
    Tables(hand_log, random.Random(SEED))
    monkeypatch.setattr(reachable, "is_installed", lambda *_: False)
    report = job.merge(spark, hand_log.root, warehouse, policies=queries("groups"))
    assert report.latest is not None
    assert sorted(report.latest.tables) == ["public.a", "public.b", "public.c"]
    assert (
        "its packages are not installed\n  run `pip install 'cdcflow[local]'`"
        in (report.latest.left_out["derived.groups"])
    )


@pytest.mark.long
@pytest.mark.parametrize(
    ("place", "reason"),
    [
        (Warehouse("hdfs://name/lake"), "neither in a folder nor in an object store"),
        (Warehouse(Path("lake"), metastore=Metastore()), "its tables have names in a Hive metastore"),
        (
            Warehouse("gs://bucket/lake"),
            "only Spark.s settings describe how its bucket is reached",
        ),
    ],
)
def test_place_that_only_spark_reaches_is_refused_with_its_reason(
    spark: Any, tmp_path: Path, place: Warehouse, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine of the merge works there, so nothing else would tell."""
    engine = SparkEngine(spark, tmp_path, "delta")
    monkeypatch.setattr(engine, "_warehouse", place)
    with pytest.raises(CannotFollow, match=reason):
        engine.deriver()
