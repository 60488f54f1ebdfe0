"""The same of a log in an object store: executors read and write there, and have nothing of the log's folder."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.servers.objects import SECRET_KEY
from tests.support.log.work import AsMany, dying, made, told_of
from tests.support.objects.logs import put_away

from cdcflow.config import Objects
from cdcflow.errors import CdcflowError, InvariantViolated
from cdcflow.log.files import states
from cdcflow.log.files.compaction import CompactionRule
from cdcflow.log.files.layout import UPLOADS, Layout, segment_name
from cdcflow.log.maintenance.index import Indexing
from cdcflow.log.maintenance.retention import LogRetention
from cdcflow.log.maintenance.snapshots_before_expiry import Keeping
from cdcflow.log.read.reader import check, list_segments
from cdcflow.log.workers import Workers
from cdcflow.sinks.objects.remote import RemoteBucket
from cdcflow.sinks.objects.remote_access import StoredLog
from cdcflow.sinks.objects.store import BucketStore
from cdcflow.sinks.objects.uploaded import Uploaded
from cdcflow.spark.executors.workers import over
from cdcflow.stores.bucket import Bucket
from cdcflow.wiring.logs import log_at

pytestmark = pytest.mark.spark

NOT_PUT = 4
"""This many of the latest segments are on the log's machine alone."""


@dataclass
class Stored:
    """A log whose oldest segments are in a bucket, and no longer here."""

    folder: Path
    objects: Objects
    segments: int

    def __post_init__(self) -> None:
        log = made(self.folder / "log", segments=self.segments)
        here = list_segments(Layout(log.root))
        kept = self.folder / "kept"
        for segment in here[-NOT_PUT:]:
            name = segment_name((segment.first_offset, segment.last_offset))
            shutil.copytree(log.root / "segments" / name, kept / name)
            shutil.rmtree(log.root / "segments" / name)
        put_away(log.root, self.bucket)
        for path in (log.root / "segments").glob("*/*.parquet"):
            path.unlink()
        shutil.copytree(kept, log.root / "segments", dirs_exist_ok=True)
        known = Uploaded(self.bucket.name, here[-NOT_PUT - 1].last_offset)
        (log.root / UPLOADS).write_text(json.dumps(asdict(known)))
        self.root = log.root

    @property
    def bucket(self) -> Bucket:
        return Bucket(self.objects)

    @property
    def layout(self) -> Layout:
        return Layout(self.root, BucketStore(self.bucket, self.folder / "cache", 1 << 20))

    @property
    def alone(self) -> Layout:
        """From a machine that has only the bucket."""
        return Layout(self.folder / "nothing", BucketStore(self.bucket, self.folder / "elsewhere", 1 << 20))

    @property
    def away(self) -> StoredLog:
        return StoredLog(self.bucket.name, self.bucket.address)

    def retention(self) -> LogRetention:
        return LogRetention(self.layout, RemoteBucket(self.bucket), grace_s=0)

    def current(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = log_at(self.layout).current("public.orders").sort_by("id").to_pylist()
        return found

    def settings(self) -> Path:
        access = {k: v for k, v in self.objects.model_dump(mode="json").items() if v is not None}
        path = self.folder / "cdcflow.yaml"
        source = {"kind": "postgres", "url": "postgresql://nobody@127.0.0.1/shop"}
        path.write_text(yaml.safe_dump({"source": source, "log": {"path": str(self.root), "objects": access}}))
        return path


@pytest.fixture
def log(objects: Objects, tmp_path: Path) -> Stored:
    return Stored(tmp_path, objects, 8 + NOT_PUT)


@pytest.fixture
def fetched(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files that this process, and no executor, fetches from a store."""
    seen: list[str] = []
    fetch = Bucket.fetch

    def noted(bucket: Bucket, name: str, target: Path) -> str:
        seen.append(name)
        return fetch(bucket, name, target)

    monkeypatch.setattr(Bucket, "fetch", noted)
    return seen


@pytest.mark.long
def test_executors_write_the_same_as_this_process_in_a_store(
    spark: Any, objects: Objects, tmp_path: Path, fetched: list[str]
) -> None:
    """A machine that has only the bucket sees the result, and no temporary file of the work is left."""
    found = []
    for name in ("here", "there"):
        place = objects.model_copy(update={"url": f"{objects.url}/{name}"})
        log = Stored(tmp_path / name, place, 40)
        layout, before = log.layout, log.current()
        with over(spark.sparkContext, log.root, "testing", log.away) as executors:
            workers: Workers = AsMany(executors.at_once) if name == "here" else executors
            assert Indexing(layout, workers=workers).step() == 40
            Keeping(log_at(layout), layout, workers=workers, reopened=None if name == "here" else log_at).keep(30)
            fetched.clear()
            compacted = log.retention().compact(CompactionRule(20_000), workers)
        assert bool(fetched) == (name == "here"), "what executors compact does not come to this machine"
        assert len(compacted) > 3
        assert check(log.layout, deep=True).is_whole
        assert check(log.alone, deep=True).is_whole
        assert log.current() == before
        assert not list(log.root.glob("**/*.tmp"))
        assert not [path for path in log.bucket.list_objects("") if "/." in path]
        found.append((told_of(layout, 30), sorted(log.bucket.list_objects("segments")), before))
    assert found[0] == found[1]
    assert SECRET_KEY not in str(spark.sparkContext.getConf().getAll())


@pytest.mark.parametrize("how", ["kill", "fail"])
@pytest.mark.long
def test_executor_that_dies_leaves_nothing_that_counts_in_a_store(
    spark: Any, log: Stored, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """Its files exist, and have no manifest: the next run does all of it again."""
    before = log.current()
    with over(spark.sparkContext, log.root, "testing", log.away) as workers:
        each = workers.each
        monkeypatch.setattr(workers, "each", lambda work, given: each(dying(work, tmp_path / "once", how), given))
        with pytest.raises(CdcflowError, match="tasks end without an answer"):
            log.retention().compact(CompactionRule(20_000), workers)
        assert check(log.alone, deep=True).is_whole
        assert log.current() == before
        log.retention().compact(CompactionRule(20_000), workers)
    assert len(list_segments(log.layout)) < 8
    for layout in (log.layout, log.alone):
        assert check(layout, deep=True).is_whole
    assert log.current() == before


def test_file_of_a_state_that_differs_from_the_uploaded_one_is_refused(
    spark: Any, log: Stored, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Executor and command each access the store; the file is compared with what was uploaded."""
    with over(spark.sparkContext, log.root, "testing", log.away) as workers:
        keeping = Keeping(log_at(log.layout), log.layout, workers=workers, reopened=log_at)
        monkeypatch.setattr(StoredLog, "take", lambda away, name, target: target.write_bytes(b"else") and "else")
        with pytest.raises(InvariantViolated, match="its content differs from what was uploaded"):
            keeping.keep(8)
        monkeypatch.undo()
        assert states.state_offsets(log.layout) == []
        keeping.keep(8)
    assert states.state_offsets(log.layout) == [8]


@pytest.mark.long
@pytest.mark.parametrize("command", [["compact"], ["index"], ["expire", "--before-cut", "3", "--state"]], ids=str)
def test_command_works_on_a_log_in_a_store(log: Stored, command: list[str]) -> None:
    """`--on local[2]`, with settings that name the store and its own JVM."""
    before = log.current()
    line = [sys.executable, "-m", "cdcflow.cli", "log", *command, "--on", "local[2]", "--config", str(log.settings())]
    subprocess.run(line, cwd=log.folder, check=True)
    for layout in (log.layout, log.alone):
        assert check(layout, deep=True).is_whole
    assert log.current() == before
