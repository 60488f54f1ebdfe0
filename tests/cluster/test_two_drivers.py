"""Two independent drivers merge one log into the same tables: nothing lost, doubled or undone.

The lease only saves work, so it is not used here. Planted, Delta's own store for S3 gives versions to both:
`CDCFLOW_LOG_STORE=io.delta.storage.S3SingleDriverLogStore make test-cluster PYTEST="-k committed_twice"`.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from tests.cluster.conftest import Lake
from tests.servers.objects import ObjectServer
from tests.support.merge import commit_driver, local_driver
from tests.support.merge import driver as merge_driver
from tests.support.polling import wait_until

from cdcflow.errors import SinkUnavailable
from cdcflow.spark.engine import SparkEngine
from cdcflow.tables.local.engine import LocalEngine

pytestmark = pytest.mark.long

SEED = int(os.environ.get("CDCFLOW_SPARK_SEED", "0")) or random.SystemRandom().randrange(1, 10**6)
SEGMENTS, STOPS, VERSIONS = 12, 5, 400
PATIENCE_S = 600
ON_BRANCHES: dict[str, Any] = {"branch_rows": 1}
"""Of a driver that changes rows of Iceberg tables on a branch, while a second driver merges."""


class Driver:
    """A process that merges until its log is whole."""

    def __init__(self, lake: Lake, scratch: Path, program: ModuleType = merge_driver, **more: object) -> None:
        scratch.mkdir()
        log_store = os.environ.get("CDCFLOW_LOG_STORE")
        told = {
            "log": lake.objects.model_dump(mode="json", exclude_none=True),
            "warehouse": str(lake.place),
            "bucket": lake.place.bucket,
            "catalog": lake.place.catalog,
            "format": lake.format,
            "scratch": str(scratch),
            **more,
            "spark": {} if log_store is None else {"spark.delta.logStore.s3a.impl": log_store},
        }
        self.said = scratch / "stdout"
        self._stderr = scratch / "stderr"
        with self.said.open("wb") as out, self._stderr.open("wb") as err:
            self._process = subprocess.Popen(
                [sys.executable, str(program.__file__), json.dumps(told)],
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )

    def merges(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.said.read_text().splitlines() if line.endswith("}")]

    def signal(self, number: signal.Signals) -> None:
        """To Python and its Java alike."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    def end(self) -> None:
        self.signal(signal.SIGKILL)
        self._process.communicate()

    def check(self) -> None:
        """Let it continue."""
        assert self._process.poll() is None, self._stderr.read_text()[-5000:]

    def go(self) -> None:
        """Let a process that waits for a line continue."""
        assert self._process.stdin is not None
        self._process.stdin.close()


@contextmanager
def driver(lake: Lake, scratch: Path, program: ModuleType = merge_driver, **more: object) -> Iterator[Driver]:
    started = Driver(lake, scratch, program, **more)
    try:
        yield started
    finally:
        started.end()


def wait(until: Callable[[], bool], what: str, *drivers: Driver) -> None:
    def holds() -> bool:
        for one in drivers:
            one.check()
        return until()

    wait_until(holds, what, patience_s=PATIENCE_S)


def test_two_drivers_at_once_lose_nothing(spark: Any, lake: Lake, tmp_path: Path) -> None:
    lake.segment(1)
    with ExitStack() as started:
        both = [
            started.enter_context(driver(lake, tmp_path / name, until=10**9, **chosen))
            for name, chosen in (("a", ON_BRANCHES), ("b", {}))
        ]
        for number in range(2, SEGMENTS + 1):
            seen = sum(len(one.merges()) for one in both)
            wait(lambda seen=seen: sum(len(one.merges()) for one in both) > seen, "a merge", *both)  # type: ignore[misc]
            lake.segment(number)
        last = lake.log.cut
        wait(lambda: all(any(m.get("cut") == last for m in one.merges()) for one in both), "the last cut", *both)
    said = [m for one in both for m in one.merges()]
    print(f"{len(said)} merges, {sum('put off' in m for m in said)} put off")
    assert len(lake.check(spark, random.Random(SEED))) > 3


def test_a_driver_of_each_engine_at_once_lose_nothing(spark: Any, open_lake: Lake, tmp_path: Path) -> None:
    """Spark, and a process without it that is stopped now and then: each continues on what the other has committed."""
    lake = open_lake
    chance = random.Random(SEED)
    print(f"seed {SEED}")
    lake.segment(1)
    with driver(lake, tmp_path / "a", until=10**9) as a, driver(lake, tmp_path / "b", local_driver, until=10**9) as b:
        for number in range(2, SEGMENTS + 1):
            seen = len(a.merges())
            if number % 3 == 0:
                time.sleep(chance.random() * 0.3)
                b.signal(signal.SIGSTOP)
            wait(lambda seen=seen: len(a.merges()) > seen, "a merge by Spark", a)  # type: ignore[misc]
            b.signal(signal.SIGCONT)
            lake.segment(number)
        last = lake.log.cut
        wait(lambda: all(any(m.get("cut") == last for m in one.merges()) for one in (a, b)), "the last cut", a, b)
    said = {name: sum("cut" in m for m in one.merges()) for name, one in (("Spark", a), ("local", b))}
    print(f"merges: {said}")
    assert len(lake.check(spark, random.Random(SEED))) > 3
    assert min(said.values()) > 1


@pytest.mark.parametrize("lake", ["delta"], indirect=True)
def test_each_engine_respects_the_lease_of_the_other(spark: Any, lake: Lake) -> None:
    by_spark, local = SparkEngine(spark, lake.place, "delta"), LocalEngine(lake.place, "delta")
    for first, second in ((by_spark, local), (local, by_spark)):
        with first.lease(), pytest.raises(SinkUnavailable, match="another merge works there"), second.lease():
            pass
        with second.lease():
            pass


@pytest.mark.parametrize("lake", ["delta"], indirect=True)
def test_no_version_is_committed_twice(lake: Lake, server: ObjectServer, tmp_path: Path) -> None:
    """The log store alone, version after version from both sides: each is one driver's, with that driver's content."""
    with ExitStack() as started:
        both = {
            who: started.enter_context(driver(lake, tmp_path / who, commit_driver, who=who, versions=VERSIONS))
            for who in "ab"
        }
        wait(lambda: all(one.merges() for one in both.values()), "both to begin", *both.values())
        for one in both.values():
            one.go()
        wait(lambda: all("done" in one.merges()[-1] for one in both.values()), "the last version")
    won = {who: [m["won"] for m in one.merges() if "won" in m] for who, one in both.items()}
    assert sorted(won["a"] + won["b"]) == list(range(VERSIONS)), "a version was committed by both, or by neither"
    folder = server.directory / "buckets" / lake.place.location_of(("raced", "_delta_log")).removeprefix("s3a://")
    for who, versions in won.items():
        written = [json.loads((folder / f"{version:020d}.json").read_text()) for version in versions]
        assert written == [{"by": who, "version": version} for version in versions]


def test_a_driver_that_was_stopped_in_the_middle_undoes_nothing(spark: Any, lake: Lake, tmp_path: Path) -> None:
    """It wakes up and continues with its old state; others have already merged far beyond that."""
    chance = random.Random(SEED)
    print(f"seed {SEED}")
    lake.segment(1)
    number = 1
    with (
        driver(lake, tmp_path / "stale", until=10**9, **ON_BRANCHES) as stale,
        driver(lake, tmp_path / "other", until=10**9) as other,
    ):
        wait(lambda: bool(stale.merges()) and bool(other.merges()), "both to merge", stale, other)
        for _ in range(STOPS):
            number += 1
            lake.segment(number)
            time.sleep(chance.uniform(0.0, 4.0))  # where in its merge it stops is the chance's choice
            stale.signal(signal.SIGSTOP)
            for _ in range(2):
                number += 1
                lake.segment(number)
                cut = lake.log.cut
                wait(lambda cut=cut: any(m.get("cut") == cut for m in other.merges()), "the other driver", other)  # type: ignore[misc]
            seen = len(stale.merges())
            stale.signal(signal.SIGCONT)
            wait(lambda seen=seen: len(stale.merges()) > seen, "the stale one to continue", stale)  # type: ignore[misc]
            stale.check()
            other.check()
    assert len(lake.check(spark, chance)) > STOPS
