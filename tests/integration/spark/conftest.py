"""One Spark session for the whole run, and merges by every engine."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.servers.objects import ObjectServer
from tests.support.log.hand_log import HandLog
from tests.support.merge import histories as merge_histories

from cdcflow import local
from cdcflow.model.table import Table
from cdcflow.spark import job
from cdcflow.spark.engine import SparkEngine
from cdcflow.spark.formats import table_format
from cdcflow.spark.job import MergeReport
from cdcflow.tables.formats import FORMATS
from cdcflow.tables.job.engines import Engines
from cdcflow.tables.job.job import merge as merge_by
from cdcflow.tables.paths import table_path


@pytest.fixture
def hand_log(tmp_path: Path) -> HandLog:
    return HandLog(tmp_path / "log")


@pytest.fixture(scope="module")
def hand_log_at(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., HandLog]:
    """hand_log_at("name"): a log that several tests of a module inspect."""
    return lambda name, **more: HandLog(tmp_path_factory.mktemp(name) / "log", **more)


@pytest.fixture(scope="session")
def server() -> Iterator[ObjectServer]:
    """One store for all tests of the session: Spark caches its clients per bucket."""
    with ObjectServer() as started:
        yield started


@pytest.fixture
def warehouse(tmp_path: Path) -> Path:
    return tmp_path / "warehouse"


@pytest.fixture(
    scope="session", params=[*(f"{name} by spark" for name in FORMATS), *(f"{name} by local" for name in FORMATS)]
)
def merged_by(request: pytest.FixtureRequest) -> str:
    """Each table format and engine in turn: what a merge means is the same in all."""
    return str(request.param)


@pytest.fixture(scope="session")
def format_name(merged_by: str) -> str:
    """The table format whose turn it is."""
    return merged_by.split()[0]


@pytest.fixture(scope="session")
def merge(spark: Any, merged_by: str, format_name: str) -> Callable[..., MergeReport]:
    """merge(log, warehouse): the merge, by the engine and into tables of the format whose turn it is."""
    if merged_by.endswith("local"):

        def merged(log: Any, warehouse: Path, tables: Any = None, **more: Any) -> MergeReport:
            # Spark merges what the local engine does not support, as with `merge.engine: auto`.
            engines = Engines(
                local.local_engine(warehouse, format_name), lambda: SparkEngine(spark, warehouse, format_name)
            )
            return merge_by(engines, log, warehouse, tables, **more)

        return merged
    return functools.partial(job.merge, spark, table_format=format_name)


@pytest.fixture
def sql_of(spark: Any, warehouse: Path, format_name: str) -> Callable[[Table], str]:
    """How SQL names a current-state table of the test's warehouse."""
    return lambda table: table_format(format_name).table(spark, warehouse, table_path(table.id)).sql


@pytest.fixture(scope="session")
def make_table() -> Callable[..., Table]:
    """make_table("orders", id="int64", doc="string", key=("id",))"""
    return merge_histories.make_table
