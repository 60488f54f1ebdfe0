"""Compaction, the index and states by Spark's executors: the same files' content as without, wherever one dies."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from handlog import HandLog
from mergehistories import make_table
from typer.testing import CliRunner

import cdcflow
from cdcflow.changelog import indexing, keyindex, states
from cdcflow.changelog.layout import Layout
from cdcflow.changelog.reader import check, list_segments
from cdcflow.changelog.segment import manifest_hash
from cdcflow.cli.app import app
from cdcflow.errors import CdcflowError, ConfigurationError
from cdcflow.ports.workers import Here
from cdcflow.sinks.indexing import Indexing
from cdcflow.sinks.keeping import Keeping
from cdcflow.sinks.retention import Retention
from cdcflow.spark.workers import over
from cdcflow.wiring.logs import _folder_log

pytestmark = pytest.mark.spark

ORDERS = make_table("orders", id="int64", v="string")
ITEMS = make_table("items", id="int64")
SETTINGS = "source: {kind: postgres, url: 'postgresql://nobody@127.0.0.1/shop'}\nlog: {path: log}\n"


def made(folder: Path, segments: int = 40) -> HandLog:
    log = HandLog(folder, has_transactions=True)
    for table in (ORDERS, ITEMS):
        log.state(table)
    for number in range(segments):
        rows = [(ORDERS, "c" if number < 9 else "u", {"id": number % 9, "v": f"v{number}"})]
        log.segment([*rows, (ITEMS, "c", {"id": number})])
    chain(Layout(log.root))
    return log


def chain(layout: Layout) -> None:
    """Each segment names the one before it, as the sinks have it."""
    previous, offset = "", 0
    for bounds in layout.segment_offsets():
        segment, _ = layout.manifest(*bounds)
        text = replace(segment, previous=previous, previous_offset=offset).to_json().encode()
        (layout.segment(*bounds) / "segment.json").write_bytes(text)
        previous, offset = manifest_hash(text), bounds[0]


def current(folder: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = cdcflow.open(folder).current("public.orders").sort_by("id").to_pylist()
    return found


def told_of(layout: Layout) -> list[Any]:
    """What a log has, whatever its files are called: its segments, its index, its newest state."""
    segments = [(s.first_offset, s.last_offset, [f.sha256 for f in s.files], s.seams) for s in list_segments(layout)]
    index = [keyindex.IndexFile.to_bytes(indexing.opened(layout, bounds)) for bounds in indexing.listed(layout)]
    kept = [(entry.sha256, entry.rows) for entry in states.opened(layout, 40).tables.values()]
    return [segments, index, kept]


class AsMany(Here):
    """This process, in as large turns as others."""

    def __init__(self, at_once: int) -> None:
        self.at_once = at_once


def test_executors_make_what_this_process_makes(spark: Any, tmp_path: Path) -> None:
    """Several pieces at once, each in a task of its own."""
    found = []
    for name in ("here", "there"):
        log = made(tmp_path / name)
        layout = Layout(log.root)
        with over(spark.sparkContext, log.root, "testing") as workers:
            chosen = AsMany(workers.at_once) if name == "here" else workers
            reopened = None if name == "here" else partial(_folder_log, log.root)
            assert Indexing(layout, workers=chosen).step() == 40
            Keeping(cdcflow.open(log.root), layout, workers=chosen, reopened=reopened).keep(40)
            compacted = Retention(layout, grace_s=0).compact(20_000, chosen)
        assert len(compacted) > 3
        assert check(layout, deep=True).is_whole
        assert not list(log.root.glob("**/*.tmp"))
        assert not list(log.root.glob(".*.probe"))
        found.append((told_of(layout), current(log.root)))
    assert found[0] == found[1]


def dying(work: Callable[[Any], Any], once: Path, how: str) -> Callable[[Any], Any]:
    """A piece of work that fails or kills its process the first time that it is done."""

    def done(piece: Any) -> Any:
        result = work(piece)
        try:
            os.close(os.open(once, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return result
        if how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        raise RuntimeError("out of luck")

    return done


@pytest.mark.parametrize("how", ["kill", "fail"])
def test_worker_that_dies_leaves_nothing_that_counts(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """Its files are there, and nobody was told: the next run makes all of it again."""
    log = made(tmp_path / "log", segments=8)
    layout, before = Layout(log.root), current(tmp_path / "log")
    with over(spark.sparkContext, log.root, "testing") as workers:
        each = workers.each
        monkeypatch.setattr(workers, "each", lambda work, given: each(dying(work, tmp_path / "once", how), given))
        with pytest.raises(CdcflowError, match="tasks end without an answer"):
            Retention(layout, grace_s=0).compact(20_000, workers)
        assert check(layout, deep=True).is_whole
        assert current(log.root) == before
        Retention(layout, grace_s=0).compact(20_000, workers)
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
            Retention(Layout(log.root), grace_s=0).compact(20_000, workers)
    assert "without --on" in (refused.value.remedy or "")
    assert len(list_segments(Layout(log.root))) == 4


def test_log_in_a_store_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    made(tmp_path / "log", segments=4)
    text = SETTINGS.replace("log: {path: log}", "log: {path: log, objects: {url: 's3://bucket/log'}}")
    (tmp_path / "cdcflow.yaml").write_text(text)
    found = CliRunner().invoke(app, ["log", "compact", "--on", "local[2]"])
    assert found.exit_code == 78, found.output
    assert "this one is in an object store" in found.output


def test_executors_without_anything_to_do_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cdcflow.yaml").write_text(SETTINGS)
    found = CliRunner().invoke(app, ["log", "expire", "--before-cut", "3", "--on", "local[2]"])
    assert found.exit_code == 78, found.output
    assert "give --state" in found.output


@pytest.mark.long
@pytest.mark.parametrize("command", [["compact"], ["index"], ["expire", "--before-cut", "3", "--state"]], ids=str)
def test_command_works_as_users_run_it(tmp_path: Path, command: list[str]) -> None:
    """`--on local[2]`, with a JVM of its own."""
    log = made(tmp_path / "log", segments=6)
    before = current(log.root)
    (tmp_path / "cdcflow.yaml").write_text(SETTINGS)
    line = [sys.executable, "-m", "cdcflow.cli", "log", *command, "--on", "local[2]"]
    subprocess.run(line, cwd=tmp_path, check=True)
    assert check(Layout(log.root), deep=True).is_whole
    assert current(log.root) == before
