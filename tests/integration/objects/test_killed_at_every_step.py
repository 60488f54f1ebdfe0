"""SIGKILL before every single step of an upload, a compaction and an expiry: nothing is missing, nothing is doubled."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest
from tests.servers.objects import ObjectServer
from tests.support.objects.logs import IDENTITY, ObjectLog, assert_whole, seen, settings_file, write, written
from typer.testing import CliRunner

from cdcflow.cli.app import app
from cdcflow.log.files.layout import Layout, segment_name
from cdcflow.log.maintenance.retention import ExpiryRule
from cdcflow.log.read.reader import check, list_segments
from cdcflow.sinks.files.log import FileLog

PROGRAM = Path(__file__).parents[2] / "support" / "kill" / "object_store.py"
STEPS_MAX = 200
_buckets = count(1)


class Killable:
    """Works on logs in separate processes, each of which dies at a given step."""

    def __init__(self) -> None:
        self._forks = subprocess.Popen(
            [sys.executable, str(PROGRAM)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            text=True,
        )

    def died(self, log: ObjectLog, work: str, step: int) -> bool:
        """Whether a process doing this died before its `step`-th step; otherwise it completed."""
        assert self._forks.stdin is not None
        assert self._forks.stdout is not None
        self._forks.stdin.write(json.dumps([str(log.root), log.objects.model_dump_json(), work, step]) + "\n")
        self._forks.stdin.flush()
        status = int(self._forks.stdout.readline())
        assert status in (0, -signal.SIGKILL)
        return status != 0

    def close(self) -> None:
        self._forks.communicate(timeout=60)


@pytest.fixture(scope="module")
def killable() -> Iterator[Killable]:
    made = Killable()
    yield made
    made.close()


def every_step(one: Callable[[int], bool], stride: int = 1) -> int:
    """Call `one(step)` for step 1, 2, … until it reports that no step was left; return how many there were. With a
    `stride` steps in between are skipped, other ones in each run."""
    first = random.randint(1, stride)
    print(f"steps {first}, {first + stride}, …")
    return next(step for step in range(first, STEPS_MAX, stride) if not one(step)) - 1


@pytest.fixture
def sealed(tmp_path: Path) -> Path:
    """A log on files with two segments that were never uploaded."""
    log = FileLog.open(tmp_path / "sealed", IDENTITY)
    write(log, [1, 2])
    write(log, [3, 4])
    log.close()
    return tmp_path / "sealed"


@pytest.mark.parametrize("stride", [3, pytest.param(1, marks=pytest.mark.long)])
def test_upload_killed_at_any_step_resumes_without_holes_or_doubles(
    object_server: ObjectServer, killable: Killable, sealed: Path, tmp_path: Path, stride: int
) -> None:
    """The bucket is the only copy once the files here are dropped: a hole in it is data lost (hard case L02)."""

    def one(step: int) -> bool:
        room = tmp_path / f"step-{step}"
        shutil.copytree(sealed, room / "log")
        log = ObjectLog(room / "log", object_server.objects(f"upload-{next(_buckets)}", "a/b"))
        died = killable.died(log, "upload", step)
        assert seen(log.layout) == written([[1, 2], [3, 4]])
        opened = log.open()
        write(opened, [5])
        log.settled()
        opened.close()
        assert_whole(log, [[1, 2], [3, 4], [5]], room / "copy")
        return died

    steps = every_step(one, stride)
    print(steps)
    assert steps > 15


@pytest.mark.long
def test_compaction_and_expiry_killed_at_any_step_lose_and_double_nothing(
    object_server: ObjectServer, killable: Killable, sealed: Path, tmp_path: Path
) -> None:
    """Half a compaction must never be read as two copies of its rows, nor as none; in the bucket as on disk (L18)."""

    def one(step: int) -> bool:
        room = tmp_path / f"step-{step}"
        shutil.copytree(sealed, room / "log")
        log = ObjectLog(room / "log", object_server.objects(f"keep-{next(_buckets)}"))
        opened = log.open()
        write(opened, [5])
        log.settled()
        opened.close()
        died = killable.died(log, "keep", step)
        for place in (log.layout, log.alone):
            assert_rows_from_the_first(place)
        log.retention().compact()
        log.retention().expire(ExpiryRule(before_cut=3))
        assert len(list(log.layout.segments.iterdir())) == 1, "what was replaced or expired is still here"
        assert [(s.first_offset, s.last_offset) for s in list_segments(log.alone)] == [(9, 10)]
        names = {name.split("/")[1] for name in log.bucket.list_objects("") if "/" in name}
        assert len(names) == 1, "what was replaced is still in the bucket"
        assert check(log.alone, deep=True).faults == ()
        return died

    steps = every_step(one)
    print(steps)
    assert steps > 15


@pytest.mark.parametrize("stride", [23, pytest.param(1, marks=pytest.mark.long)])
def test_daemon_killed_while_it_joins_segments_loses_and_doubles_nothing(
    object_server: ObjectServer, killable: Killable, tmp_path: Path, stride: int
) -> None:
    """It does so all the time, in the bucket as on disk: most kills of a daemon are during one (L18)."""
    sealed = [[2 * n, 2 * n + 1] for n in range(11)]
    log = FileLog.open(tmp_path / "sealed", IDENTITY)
    for ids in sealed:
        write(log, ids)
    log.close()
    rows, deaths = written(sealed), 0
    for step in range(1, STEPS_MAX, stride):
        room = tmp_path / f"step-{step}"
        shutil.copytree(tmp_path / "sealed", room / "log")
        made = ObjectLog(room / "log", object_server.objects(f"join-{next(_buckets)}"))
        opened = made.open()
        made.settled()
        opened.close()
        died = killable.died(made, "join", step)
        for place in (made.layout, made.alone):
            assert seen(place) == rows, f"after {step} steps"
        made.retention().sweep()
        assert not killable.died(made, "join", STEPS_MAX)
        made.retention().sweep()
        for place in (made.layout, made.alone):
            assert seen(place) == rows, f"after {step} steps and another start"
            assert [(s.first_offset, s.last_offset) for s in list_segments(place)] == [(1, 40), (41, 44)]
        assert check(made.alone, deep=True).faults == ()
        names = {name.split("/")[1] for name in made.bucket.list_objects("") if "/" in name}
        assert names == {segment_name((1, 40)), segment_name((41, 44))}
        if not died:
            break
        deaths += 1
    assert deaths


@pytest.mark.spread(1)
@pytest.mark.parametrize("place", ["folder", "store"])
def test_expiry_killed_at_any_step_is_finished_and_named_by_the_next(
    object_server: ObjectServer, killable: Killable, sealed: Path, tmp_path: Path, place: str
) -> None:
    """Old rows are removed because they must no longer be available: their files may not stay permanently, and a
    repeated command must not answer that there was nothing to do.
    """
    said: list[str] = []

    def one(step: int) -> bool:
        room = tmp_path / f"step-{step}"
        shutil.copytree(sealed, room / "log")
        log = ObjectLog(room / "log", object_server.objects(f"expire-{next(_buckets)}"))
        if place == "store":
            opened = log.open()
            log.settled()
            opened.close()
        else:
            FileLog.open(log.root, IDENTITY).close()
        died = killable.died(log, "expire" if place == "folder" else "expire there", step)
        config = settings_file(room, log, objects=place == "store")
        ran = CliRunner().invoke(app, ["log", "expire", "--before-cut", "2", "-c", str(config)])
        assert ran.exit_code == 0, ran.output
        said.append(ran.output)
        assert [path.name for path in log.layout.segments.iterdir()] == [segment_name((5, 8))]
        if place == "store":
            assert {name.split("/")[1] for name in log.bucket.list_objects("") if "/" in name} == {segment_name((5, 8))}
        return died

    assert every_step(one) > 5
    finished = [
        text for text in said if "finished an interrupted expiry: the rest of 1 segments (offsets 1-4) is gone" in text
    ]
    afresh = [text for text in said if "the log begins at offset 5" in text]
    nothing = [text for text in said if text.startswith("no segment is old enough")]
    assert len(finished) + len(afresh) + len(nothing) == len(said)
    assert len(finished) > 2
    assert nothing == said[-1:], "only the one that was not killed had left nothing to do"


def assert_rows_from_the_first(place: Layout) -> None:
    first = place.log_file().first_offset
    assert seen(place, first) == [row for row in written([[1, 2], [3, 4], [5]]) if row[0] >= first]
