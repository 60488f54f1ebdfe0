"""The merge as a streaming query over logs in files: it produces what the fold does, however it starts and ends.

`test_merge_from_kafka` tests the same over a log in Kafka.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import queue
import random
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog
from tests.servers.objects import SECRET_KEY
from tests.support.log.hand_log import HandLog
from tests.support.merge.histories import World, assert_as_folded, make_table
from tests.support.objects.logs import ObjectLog
from tests.support.polling import wait_until

from cdcflow.config import Objects
from cdcflow.errors import ConfigurationError
from cdcflow.spark import merge_stream, published_cut, read_cut
from cdcflow.spark.job import MergeReport
from cdcflow.tables.paths import LEASE
from cdcflow.testing.sinks import Writer, orders

pytestmark = pytest.mark.spark

PAGE = Path(__file__).parents[3] / "docs" / "merge.md"
SEED = int(os.environ.get("CDCFLOW_SPARK_SEED", "0")) or random.SystemRandom().randrange(1, 10**6)
ONCE = {"availableNow": True}
WITHIN_S = 300


class Grows:
    """A log of one table with random changes, and the fold of them."""

    def __init__(self, log: HandLog) -> None:
        self.chance = random.Random(SEED)
        self.table = make_table("orders", id="int64", note="string")
        self.world = World(self.chance, {"orders": self.table}, 0)
        self.log = log
        self.grow()

    def grow(self) -> None:
        steps = [(self.table, self.chance.choice("ccud"), {"id": self.chance.randrange(9)}) for _ in range(20)]
        self.log.segment(
            [(t, op, row | ({} if op == "d" else {"note": f"n{n}"})) for n, (t, op, row) in enumerate(steps)]
        )
        self.world.apply("orders", self.log.written[-len(steps) :])

    def assert_merged(self, spark: Any, warehouse: Path) -> None:
        rows: list[Any] = read_cut(spark, warehouse, incomplete=True)[str(self.table.id)].collect()
        assert_as_folded(self.world, lambda _: rows, f"seed {SEED}")


@pytest.fixture
def grows(hand_log: HandLog) -> Grows:
    return Grows(hand_log)


@pytest.fixture
def stream(spark: Any) -> Iterator[Callable[..., Any]]:
    """stream(log, warehouse, …): a query, which is stopped after the test."""
    queries: list[Any] = []

    def start(*given: Any, **more: Any) -> Any:
        queries.append(merge_stream(spark, *given, **more))
        return queries[-1]

    yield start
    for query in queries:
        query.stop()


def ends(query: Any) -> None:
    assert query.awaitTermination(WITHIN_S), "it does not end"


def merged_up_to(offset: int, query: Any, reports: queue.Queue[MergeReport]) -> None:
    """Wait for the report of a merge that came so far."""

    def is_merged() -> bool:
        with contextlib.suppress(queue.Empty):
            while reports.get_nowait().offset < offset:
                pass
            return True
        assert query.isActive, query.exception()
        return False

    wait_until(is_merged, f"a merge up to offset {offset}", patience_s=WITHIN_S)


def versions(spark: Any, warehouse: Path) -> tuple[int, dict[str, int]]:
    cut = published_cut(spark, warehouse)
    return cut.cut, {name: table.version for name, table in cut.tables.items()}


def test_existing_rows_are_merged_and_the_query_ends(
    spark: Any, stream: Callable[..., Any], grows: Grows, warehouse: Path, tmp_path: Path
) -> None:
    """The checkpoint is kept, then lost. A query always merges once, whatever its checkpoint contains: the warehouse
    may have been restored to an older state.
    """
    reports: list[MergeReport] = []

    def once(checkpoint: str) -> None:
        at = tmp_path / checkpoint
        ends(stream(grows.log.root, warehouse, checkpoint=at, trigger=ONCE, on_merge=reports.append))
        grows.assert_merged(spark, warehouse)

    once("one")
    grows.grow()
    once("one")
    before = versions(spark, warehouse)
    once("one")
    once("another")
    assert [report.published for report in reports] == [True, True, False, False]
    assert versions(spark, warehouse) == before


@pytest.mark.long
def test_what_is_sealed_later_is_merged_later(
    spark: Any, stream: Callable[..., Any], grows: Grows, warehouse: Path, tmp_path: Path
) -> None:
    """Two queries in one session, each on its own log: one continues, without a checkpoint, while the other begins and
    ends.
    """
    reports: queue.Queue[MergeReport] = queue.Queue()
    running = stream(grows.log.root, warehouse, on_merge=reports.put)
    merged_up_to(grows.log.next_offset - 1, running, reports)
    ends(stream(HandLog(tmp_path / "other").root, tmp_path / "beside", trigger=ONCE))
    grows.grow()
    merged_up_to(grows.log.next_offset - 1, running, reports)
    grows.assert_merged(spark, warehouse)
    running.stop()
    assert running.exception() is None
    for thread in threading.enumerate():
        if thread.name == "cdcflow-offsets":
            thread.join(WITHIN_S)
            assert not thread.is_alive(), "it answers a query that has ended"


@pytest.mark.long
def test_repeated_batch_changes_nothing(
    spark: Any, stream: Callable[..., Any], grows: Grows, warehouse: Path, tmp_path: Path
) -> None:
    """The query dies when the batch is merged, and Spark does not know that yet."""
    reports: list[MergeReport] = []

    def dies(report: MergeReport) -> None:
        reports.append(report)
        raise ConnectionAbortedError

    at = tmp_path / "checkpoint"
    with pytest.raises(Exception, match="ConnectionAbortedError"):
        ends(stream(grows.log.root, warehouse, checkpoint=at, trigger=ONCE, on_merge=dies))
    before = versions(spark, warehouse)
    ends(stream(grows.log.root, warehouse, checkpoint=at, trigger=ONCE, on_merge=reports.append))
    published = [report.published for report in reports]
    assert published[0]
    assert published[1:], "the batch does not come again"
    assert not any(published[1:])
    assert versions(spark, warehouse) == before
    grows.assert_merged(spark, warehouse)


@pytest.mark.long
def test_running_merge_is_waited_for_but_not_indefinitely(
    stream: Callable[..., Any], hand_log: HandLog, warehouse: Path
) -> None:
    """`cdcflow merge` by hand must not end a query that has run for weeks; but one that can never merge must end."""
    reports: list[MergeReport] = []
    warehouse.mkdir()
    with (warehouse / LEASE).open("a") as lease, structlog.testing.capture_logs() as said:
        fcntl.flock(lease, fcntl.LOCK_EX)
        with pytest.raises(Exception, match="another merge works there"):
            ends(stream(hand_log.root, warehouse, trigger=ONCE, retry_timeout_s=0))
        assert [line["event"] for line in said] == []
        query = stream(hand_log.root, warehouse, trigger=ONCE, on_merge=reports.append)
        while "put off" not in [line["event"] for line in said]:
            assert not query.awaitTermination(0.1), query.exception()
        assert reports == []
        fcntl.flock(lease, fcntl.LOCK_UN)
        ends(query)
    assert len(reports) == 1


@pytest.mark.long
def test_log_in_a_bucket_is_merged_and_its_keys_stay_in_the_driver(
    spark: Any, stream: Callable[..., Any], objects: Objects, tmp_path: Path
) -> None:
    """The keys are in an environment that Spark's own processes may not have. They must not appear where others can
    read them: in the checkpoint, in a plan, among the arguments of a process.
    """
    log = ObjectLog(tmp_path / "log", objects)
    opened = log.open()
    Writer.of(opened).put(orders(1, 2, xid=1))
    opened.roll()
    opened.seal_pending()
    log.settled()
    opened.close()
    query = stream(log.alone, tmp_path / "warehouse", checkpoint=tmp_path / "checkpoint", trigger=ONCE)
    ends(query)
    rows = read_cut(spark, tmp_path / "warehouse", incomplete=True)["shop.orders"].collect()
    assert sorted(row.id for row in rows) == [1, 2]
    found = [path.read_bytes() for path in (tmp_path / "checkpoint").rglob("*") if path.is_file()]
    assert b'"offset": 2' in b"".join(found)
    found += [*arguments(), str(query._jsq.explainInternal(True)).encode(), str(query.lastProgress).encode()]
    assert [text for text in found if SECRET_KEY.encode() in text] == []


def arguments() -> Iterator[bytes]:
    """Those of every process."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # it has just ended
            yield path.read_bytes()


@pytest.mark.long
def test_the_example_of_the_docs_merges(
    spark: Any, hand_log: HandLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is copied before anything else is read."""
    hand_log.segment([(make_table("orders", id="int64"), "c", {"id": n}) for n in (1, 2)])
    hand_log.root.rename(tmp_path / "shop-log")
    (example,) = re.findall(r"```python\n([^`]*merge_stream[^`]*)```", PAGE.read_text())
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("cdcflow.spark.session", lambda: spark)
    exec(example, {})  # noqa: S102 - our own page
    assert (tmp_path / "checkpoint" / "commits").exists(), "not where the example says"
    rows = read_cut(spark, tmp_path / "warehouse", incomplete=True)["public.orders"].collect()
    assert sorted(row.id for row in rows) == [1, 2]


def test_missing_log_is_named_at_once(spark: Any, tmp_path: Path) -> None:
    """A typo in a path would otherwise be a query that waits indefinitely."""
    with pytest.raises(ConfigurationError, match=r"there is no change log at (?s:.*)wiring\.log_layout"):
        merge_stream(spark, tmp_path / "logg", tmp_path / "warehouse")
    assert not (tmp_path / "warehouse").exists()


_CHILD = """
import sys
from pathlib import Path
from cdcflow.spark import merge_stream, session

spark = session(cores=2, scratch=Path(sys.argv[1]) / "scratch", settings={"spark.sql.shuffle.partitions": "2"})
query = merge_stream(
    spark,
    Path(sys.argv[1]) / "log",
    Path(sys.argv[1]) / "warehouse",
    checkpoint=Path(sys.argv[1]) / "checkpoint",
    on_merge=lambda report: print("merged", report.offset, flush=True),
)
query.awaitTermination()
"""


@pytest.mark.long
@pytest.mark.parametrize("checkpoint", ["kept", "lost"])
def test_killed_query_resumes_in_another_process(
    spark: Any, stream: Callable[..., Any], grows: Grows, warehouse: Path, tmp_path: Path, checkpoint: str
) -> None:
    """SIGKILL after a merge, when Spark may or may not have recorded the batch."""
    command = [sys.executable, "-c", _CHILD, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as child:
        assert child.stdout is not None
        for line in child.stdout:
            if line.startswith("merged"):
                break
        grows.grow()
        os.killpg(child.pid, signal.SIGKILL)
    before = versions(spark, warehouse)
    name = "checkpoint" if checkpoint == "kept" else "another"
    ends(stream(grows.log.root, warehouse, checkpoint=tmp_path / name, trigger=ONCE))
    grows.assert_merged(spark, warehouse)
    assert versions(spark, warehouse)[0] > before[0]
