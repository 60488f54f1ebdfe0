"""Compaction, the index and states by Spark's executors: the same files' content as without, wherever one dies."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.support.log.work import AsMany, dying, made, told_of
from typer.testing import CliRunner

import cdcflow
from cdcflow.cli.app import app
from cdcflow.errors import CdcflowError, ConfigurationError
from cdcflow.log.files.compaction import CompactionRule
from cdcflow.log.files.layout import Layout
from cdcflow.log.maintenance.index import Indexing
from cdcflow.log.maintenance.retention import LogRetention
from cdcflow.log.maintenance.snapshots_before_expiry import Keeping
from cdcflow.log.read.reader import check, list_segments
from cdcflow.spark.executors.workers import over
from cdcflow.spark.runtime.context import context
from cdcflow.wiring.logs import log_at

pytestmark = pytest.mark.spark

SETTINGS = "source: {kind: postgres, url: 'postgresql://nobody@127.0.0.1/shop'}\nlog: {path: log}\n"


def current(folder: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = cdcflow.open(folder).current("public.orders").sort_by("id").to_pylist()
    return found


@pytest.mark.long
def test_executors_write_the_same_as_this_process(spark: Any, tmp_path: Path) -> None:
    """Several pieces at once, each in a separate task."""
    found = []
    for name in ("here", "there"):
        log = made(tmp_path / name)
        layout = Layout(log.root)
        with over(spark.sparkContext, log.root, "testing") as workers:
            chosen = AsMany(workers.at_once) if name == "here" else workers
            reopened = None if name == "here" else log_at
            assert Indexing(layout, workers=chosen).step() == 40
            Keeping(cdcflow.open(log.root), layout, workers=chosen, reopened=reopened).keep(40)
            compacted = LogRetention(layout, grace_s=0).compact(CompactionRule(20_000), chosen)
        assert len(compacted) > 3
        assert check(layout, deep=True).is_whole
        assert not list(log.root.glob("**/*.tmp"))
        assert not list(log.root.glob(".*.probe"))
        found.append((told_of(layout, 40), current(log.root)))
    assert found[0] == found[1]


@pytest.mark.parametrize("how", ["kill", "fail"])
@pytest.mark.spread(1)
def test_worker_that_dies_leaves_nothing_that_counts(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """Its files exist, but were never reported: the next run does all of it again."""
    log = made(tmp_path / "log", segments=8)
    layout, before = Layout(log.root), current(tmp_path / "log")
    with over(spark.sparkContext, log.root, "testing") as workers:
        each = workers.each
        monkeypatch.setattr(workers, "each", lambda work, given: each(dying(work, tmp_path / "once", how), given))
        with pytest.raises(CdcflowError, match="tasks end without an answer"):
            LogRetention(layout, grace_s=0).compact(CompactionRule(20_000), workers)
        assert check(layout, deep=True).is_whole
        assert current(log.root) == before
        LogRetention(layout, grace_s=0).compact(CompactionRule(20_000), workers)
    assert not list(log.root.glob("**/*.tmp"))
    assert len(list_segments(layout)) < 8
    assert check(layout, deep=True).is_whole
    assert current(log.root) == before


def test_folder_that_executors_do_not_see_is_named(spark: Any, tmp_path: Path) -> None:
    log = made(tmp_path / "log", segments=4)
    with over(spark.sparkContext, log.root, "testing") as workers:
        for probe in log.root.glob(".*.probe"):
            probe.unlink()  # as on a machine that has another folder there
        with pytest.raises(ConfigurationError, match="does not see this folder") as refused:
            LogRetention(Layout(log.root), grace_s=0).compact(CompactionRule(20_000), workers)
    assert "without --on" in (refused.value.remedy or "")
    assert len(list_segments(Layout(log.root))) == 4


def test_executors_without_anything_to_do_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cdcflow.yaml").write_text(SETTINGS)
    found = CliRunner().invoke(app, ["log", "expire", "--before-cut", "3", "--on", "local[2]"])
    assert found.exit_code == 78, found.output
    assert "give --state" in found.output


def test_second_spark_in_a_process_is_refused(spark: Any) -> None:
    """Spark's own error would be about a context and a file that the user does not know."""
    with pytest.raises(ConfigurationError, match="this process already has a Spark session") as refused:
        context("local[2]", {}, "indexing")
    assert "a separate process" in (refused.value.remedy or "")


@pytest.mark.long
@pytest.mark.parametrize("command", [["compact"], ["index"], ["expire", "--before-cut", "3", "--state"]], ids=str)
def test_command_works_as_users_run_it(tmp_path: Path, command: list[str]) -> None:
    """`--on local[2]`, with its own JVM."""
    log = made(tmp_path / "log", segments=6)
    before = current(log.root)
    (tmp_path / "cdcflow.yaml").write_text(SETTINGS)
    line = [sys.executable, "-m", "cdcflow.cli", "log", *command, "--on", "local[2]"]
    subprocess.run(line, cwd=tmp_path, check=True)
    assert check(Layout(log.root), deep=True).is_whole
    assert current(log.root) == before
