"""The parts of the streaming form that need no Spark: retrying, checking a log, answering, refusing."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle
from tests.support.log.hand_log import HandLog
from tests.support.merge.histories import make_table

from cdcflow.errors import ConfigurationError, SinkUnavailable
from cdcflow.log.files.layout import Layout
from cdcflow.spark import kafka, merge, merge_stream, read_cut, streaming
from cdcflow.spark.log_source.sealed_offsets import OffsetServer, source_of
from cdcflow.spark.streaming import retry


class Clock:
    """Time that passes only during a sleep."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(streaming, "time", found)
    return found


class Unavailable:
    """A resource that is unavailable before its time."""

    def __init__(self, clock: Clock, until_s: float) -> None:
        self.clock, self.until_s = clock, until_s
        self.asked: list[float] = []

    def __call__(self) -> str:
        self.asked.append(round(self.clock.now_s - 100, 3))
        if self.clock.now_s < self.until_s:
            raise SinkUnavailable("another merge works there")
        return "merged"


def test_pauses_grow_and_end(clock: Clock) -> None:
    attempt = Unavailable(clock, 200)
    assert retry(attempt, 600) == "merged"
    assert attempt.asked == [0, 1, 3, 7, 15, 31, 61, 91, 121]
    never = Unavailable(clock, 10**9)
    with pytest.raises(SinkUnavailable, match="another merge"):
        retry(never, 10)
    assert [at - never.asked[0] for at in never.asked] == [0, 1, 3, 7]


def test_process_does_not_wait_for_a_query_that_was_stopped(clock: Clock) -> None:
    """Spark waits for a batch that is at work when a query is stopped."""
    attempt = Unavailable(clock, 10**9)
    with pytest.raises(SinkUnavailable):
        retry(attempt, 600, lambda: clock.now_s < 120)
    assert attempt.asked[-1] == 15
    assert clock.now_s < 121


def test_other_errors_are_not_tried_again(clock: Clock) -> None:
    def attempt() -> None:
        raise ConfigurationError("another log")

    with pytest.raises(ConfigurationError):
        retry(attempt, 600)
    assert clock.now_s == 100


def test_check_takes_names_alone_and_not_a_hundred_in_a_second(clock: Clock, tmp_path: Path) -> None:
    """Spark queries without a pause where a query has no trigger; the log may have tens of thousands of segments."""
    log = HandLog(tmp_path / "log")
    looks = streaming._Looks(Layout(log.root))
    assert looks.newest() == 0
    orders = make_table("orders", id="int64")
    for number in (1, 2):
        log.segment([(orders, "c", {"id": number}), (orders, "u", {"id": number})])
    for manifest in log.root.glob("segments/*/segment.json"):
        manifest.unlink()
    assert looks.newest() == 4
    assert clock.now_s == 101
    clock.now_s += 10
    assert looks.newest() == 4
    assert clock.now_s == 111


def answering_is_over() -> None:
    for thread in threading.enumerate():
        if thread.name == "cdcflow-offsets":
            thread.join(60)


_ASK = """
import sys
from pyspark import cloudpickle
source = cloudpickle.loads(sys.stdin.buffer.read())
reader = source({}).streamReader(None)
print(reader.initialOffset()["offset"], reader.latestOffset()["offset"], reader.latestOffset()["offset"])
assert not [name for name in sys.modules if name.startswith("cdcflow")], "it needs cdcflow"
try:
    reader.latestOffset()
except RuntimeError as error:
    print(error)
"""


def test_other_process_needs_nothing_of_cdcflow(tmp_path: Path) -> None:
    """Spark's Python may differ from the driver's. An error of the driver's ends the query with its text."""
    answers = iter([7, 9])

    def newest() -> int:
        try:
            return next(answers)
        except StopIteration:
            raise ConfigurationError("the bucket is gone") from None

    before = threading.active_count()
    server = OffsetServer(newest)
    server.start(lambda: True)
    sent = cloudpickle.dumps(source_of(server.path))  # type: ignore[no-untyped-call]  # as Spark sends it
    done = subprocess.run([sys.executable, "-c", _ASK], input=sent, capture_output=True, check=False)
    assert done.stdout.decode().splitlines() == ["0 7 9", "ConfigurationError: the bucket is gone"], done.stderr
    answering_is_over()
    assert threading.active_count() == before
    assert not Path(server.path).parent.exists()


def test_each_query_begins_with_a_batch_and_is_not_answered_indefinitely() -> None:
    """A checkpoint's value of an earlier run never equals it; a query that never requests a batch leaves nothing."""
    servers = [OffsetServer(lambda: 5), OffsetServer(lambda: 5)]
    first, second = (server._answer() for server in servers)
    assert first["offset"] == second["offset"] == 5
    assert first != second
    for server in servers:
        server.start(lambda: False)
        answering_is_over()
        assert not Path(server.path).exists()


class ConnectSession:
    """Replaces Spark Connect's session: it has no access to the JVM, and using one is an error."""

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"[JVM_ATTRIBUTE_NOT_SUPPORTED] Attribute `{name}` is not supported in Spark Connect")


ConnectSession.__module__ = "pyspark.sql.connect.session"


def test_spark_connect_is_refused_with_what_to_do_instead(tmp_path: Path) -> None:
    """Otherwise the first table ends with a py4j error, after other work was already done."""
    spark: Any = ConnectSession()
    HandLog(tmp_path / "log")
    tier: Any = object()
    for refused in (
        lambda: merge(spark, tmp_path / "log", tmp_path / "warehouse"),
        lambda: merge_stream(spark, tmp_path / "log", tmp_path / "warehouse"),
        lambda: read_cut(spark, tmp_path / "warehouse"),
        lambda: kafka.merge(spark, tier, tmp_path / "warehouse"),
    ):
        with pytest.raises(ConfigurationError, match=r"Spark Connect(?s:.*)spark-submit"):
            refused()
