"""SIGKILL before every single step of an upload, a compaction and an expiry: nothing is missing, nothing is doubled."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest
from objectlogs import IDENTITY, ObjectLog, assert_whole, seen, write, written

from cdcflow.changelog.layout import Layout
from cdcflow.changelog.reader import check, list_segments
from cdcflow.sinks.files import FileLog
from cdcflow.sinks.keeping import Rule
from cdcflow.testing.objects import ObjectServer

SUPPORT = Path(__file__).parents[2] / "support"
STEPS_MAX = 200
_buckets = count(1)


class Killable:
    """Works on logs in processes of its own, of which each dies where it is told to."""

    def __init__(self) -> None:
        self._forks = subprocess.Popen(
            [sys.executable, str(SUPPORT / "killable_objects.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(SUPPORT)},
            text=True,
        )

    def died(self, log: ObjectLog, work: str, step: int) -> bool:
        """Whether a process doing this died before its `step`-th step; else it got to the end."""
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


def every_step(one: Callable[[int], bool]) -> int:
    """Call `one(step)` for step 1, 2, … until it says that no step was left; how many there were."""
    return next(step for step in range(1, STEPS_MAX) if not one(step)) - 1


@pytest.fixture
def sealed(tmp_path: Path) -> Path:
    """A log on files with two segments that were never put anywhere."""
    log = FileLog.open(tmp_path / "sealed", IDENTITY)
    write(log, [1, 2])
    write(log, [3, 4])
    log.close()
    return tmp_path / "sealed"


def test_upload_killed_at_any_step_goes_on_without_holes_or_doubles(
    object_server: ObjectServer, killable: Killable, sealed: Path, tmp_path: Path
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

    steps = every_step(one)
    print(steps)
    assert steps > 15


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
        log.keeper().compact()
        log.keeper().expire(Rule(before_cut=3))
        assert [(s.first_offset, s.last_offset) for s in list_segments(log.alone)] == [(9, 10)]
        names = {name.split("/")[1] for name in log.bucket.listed("") if "/" in name}
        assert len(names) == 1, "what was replaced is still in the bucket"
        assert check(log.alone, deep=True).faults == ()
        return died

    steps = every_step(one)
    print(steps)
    assert steps > 15


def assert_rows_from_the_first(place: Layout) -> None:
    first = place.log_file().first_offset
    assert seen(place, first) == [row for row in written([[1, 2], [3, 4], [5]]) if row[0] >= first]
