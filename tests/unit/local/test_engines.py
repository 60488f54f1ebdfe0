"""Which engine merges, by the settings and by what is installed; nothing is started."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.support.merge.histories import make_table

from cdcflow import local, wiring
from cdcflow.config import Config, load
from cdcflow.errors import ConfigurationError
from cdcflow.model.table import TableId
from cdcflow.spark.engine import SparkEngine
from cdcflow.spark.runtime import java
from cdcflow.tables.job.engines import Engines
from cdcflow.tables.local.engine import LocalEngine
from cdcflow.tables.merge.refusals import CannotFollow
from cdcflow.wiring import warehouses

SETTINGS = """
source: {{kind: postgres, url: postgresql://nobody@127.0.0.1/shop}}
log: {log}
merge: {merge}
"""

LARGE: Any = SimpleNamespace(shape=make_table("orders"), file=SimpleNamespace(rows=local.CHANGES_MAX + 1))
"""The part of a log's file that an engine inspects before it reads it."""


def settings(folder: Path, merge: str, log: str = "{path: ./log}") -> Config:
    path = folder / "cdcflow.yaml"
    path.write_text(SETTINGS.format(log=log, merge=merge))
    return load(path)


def engines(folder: Path, merge: str, log: str = "{path: ./log}") -> Any:
    return wiring.engines(settings(folder, merge, log))


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Spark sessions that were requested."""
    found: list[Any] = []

    def session_for(config: Any) -> Any:
        found.append(config)
        return object()

    # The package has a function of that name, too.
    monkeypatch.setattr(importlib.import_module("cdcflow.spark.session"), "session_for", session_for)
    monkeypatch.setattr(java, "missing_for_spark", lambda: None)
    return found


@pytest.mark.parametrize("merge", ["{}", "{format: iceberg}"])
def test_auto_has_the_local_engine_do_what_is_small(tmp_path: Path, started: list[Any], merge: str) -> None:
    """Spark takes seconds to start: not before a table needs it."""
    chosen = engines(tmp_path, merge)
    assert isinstance(chosen.first, LocalEngine)
    assert not started
    assert isinstance(chosen.other(TableId("public", "orders"), "it is large"), SparkEngine)
    assert isinstance(chosen.other(TableId("public", "items"), "it is large"), SparkEngine)
    assert len(started) == 1


@pytest.mark.parametrize("merge", ["{}", "{format: iceberg}"])
def test_auto_is_local_without_a_bound_where_spark_cannot_be_started(
    tmp_path: Path, started: list[Any], monkeypatch: pytest.MonkeyPatch, merge: str
) -> None:
    """One large table ended the merge of all of them."""
    monkeypatch.setattr(java, "missing_for_spark", lambda: "install it")
    chosen = engines(tmp_path, merge)
    assert isinstance(chosen.first, LocalEngine)
    assert chosen.first.declines(None, [LARGE]) is None
    with pytest.raises(CannotFollow, match="a struct\n  install it: Spark then merges this table"):
        chosen.other(TableId("public", "orders"), "a struct")
    assert not started


def test_engine_that_cannot_start_skips_the_tables_that_need_it(tmp_path: Path) -> None:
    """It is tried once: a start that fails takes seconds."""
    tried: list[int] = []

    def begin() -> Any:
        tried.append(1)
        raise ConfigurationError("no Java", remedy="install Java", runbook="package-missing")

    chosen = Engines(local.local_engine(tmp_path, "delta"), begin)
    for name in ("orders", "items"):
        with pytest.raises(CannotFollow, match=f"(?s){name}: it is large, .* no Java\n  install Java") as found:
            chosen.other(TableId("public", name), "it is large")
        assert found.value.runbook == "package-missing"
    assert len(tried) == 1


@pytest.mark.parametrize("merge", ["{engine: spark}", "{engine: spark, format: iceberg}"])
def test_spark_merges_what_the_settings_assign_to_it(tmp_path: Path, started: list[Any], merge: str) -> None:
    assert isinstance(engines(tmp_path, merge).first, SparkEngine)
    assert len(started) == 1


def test_what_is_not_installed_is_named_or_done_without(
    tmp_path: Path, started: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "is_installed", lambda *_: False)
    assert isinstance(engines(tmp_path, "{format: iceberg}").first, SparkEngine)
    with pytest.raises(ConfigurationError, match=r"run `pip install 'cdcflow\[local\]'`"):
        engines(tmp_path, "{engine: local, format: iceberg}")


@pytest.mark.parametrize(
    ("merge", "log", "said"),
    [
        ("{engine: local, warehouse: hdfs://lake/tables}", "{path: ./log}", "set merge.engine to auto"),
        (
            "{engine: local, format: iceberg}",
            "{kafka: {brokers: 'a:1', topic: t}}",
            "auto for a log in Kafka",
        ),
    ],
)
def test_what_the_local_engine_cannot_is_refused_with_the_settings(
    tmp_path: Path, merge: str, log: str, said: str
) -> None:
    with pytest.raises(ConfigurationError, match=said):
        engines(tmp_path, merge, log)


@pytest.mark.parametrize("scheme", ["s3", "s3a"])
def test_delta_tables_in_a_bucket_are_merged_without_spark(tmp_path: Path, started: list[Any], scheme: str) -> None:
    for engine in ("auto", "local"):
        chosen = engines(tmp_path, f"{{engine: {engine}, warehouse: '{scheme}://lake/tables'}}")
        assert isinstance(chosen.first, LocalEngine)
    assert not started


def test_bucket_that_only_spark_knows_how_to_reach_is_left_to_spark(tmp_path: Path) -> None:
    """Settings that merged by Spark would otherwise look for the bucket at AWS."""
    spark = "{spark.hadoop.fs.s3a.endpoint: 'http://127.0.0.1:1'}"
    config = settings(tmp_path, f"{{warehouse: 's3a://lake/tables', spark: {spark}}}")
    assert not warehouses.is_merged_here(config, warehouses.warehouse(config))
