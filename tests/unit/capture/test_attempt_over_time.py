"""The attempt loop's periodic work, with a clock and threads that only the test advances."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from queue import SimpleQueue
from typing import Any

import pytest
from tests.simulation.steps import Silent, Steps
from tests.support.capture.small_source import AT, DONE, ITEMS, ORDERS, Small, committed

from cdcflow.capture import attempt as attempts
from cdcflow.capture import log_writes
from cdcflow.capture.attempt import Attempt, LoopIntervals, Orders
from cdcflow.capture.interleave.limits import Limits
from cdcflow.capture.interleave.messages import Chunk, ChunkRead, Input, KnownRows, RowsCompared
from cdcflow.capture.interleave.progress import Progress, TableProgress
from cdcflow.capture.ports.findings import Finding
from cdcflow.errors import RightMissing, SinkUnavailable, SourceUnavailable
from cdcflow.model.position import Checkpoint, Offset, Position, position_text
from cdcflow.model.table import TableId
from cdcflow.sinks.memory import Memory, MemoryLog

SYNC, SEAL = "cdcflow-sync", "cdcflow-seal"


class Waits(Silent):
    """Records what the loop would have waited for."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[tuple[int | None, float]] = []

    def wait(self, fileno: int | None, seconds: float) -> None:
        self.waits.append((fileno, seconds))


class Source(Small):
    """A small source that records the calls it gets."""

    is_ready = False

    def __init__(self, *tables: Any) -> None:
        super().__init__(*tables)
        self.looks = 0
        self.compared: list[dict[TableId, KnownRows]] = []
        self.closed: list[str] = []
        self.left: Sequence[Finding] = ()

    @property
    def ready(self) -> bool:  # type: ignore[override]  # a constant there
        return self.is_ready

    def fileno(self) -> int:
        return 77

    def tables(self) -> Any:
        self.looks += 1
        return super().tables()

    def compare_rows(self, known: Mapping[TableId, KnownRows]) -> RowsCompared:
        self.compared.append(dict(known))
        return RowsCompared(())

    def left_behind(self, log_id: str) -> Sequence[Finding]:
        return self.left

    def read_chunk(self, chunk: Chunk) -> ChunkRead:
        return replace(super().read_chunk(chunk), seconds=0.12345)

    def close(self) -> None:
        self.closed.append("closed")


class Log(MemoryLog):
    """Seals when it is due, counts its rolls, and may fail to sync. `now_s` is the clock that all parts share."""

    def __init__(self, memory: Memory) -> None:
        super().__init__(memory)
        self.now_s = 1000.0
        self.due = False
        self.has_rows = True
        self.rolled = 0
        self.syncs = 0
        self.fails: Exception | None = None

    def seal_due(self, now_s: float) -> bool:
        assert now_s == self.now_s
        return self.due

    def roll(self) -> bool:
        self.rolled += 1
        return self.has_rows

    def sync(self) -> Checkpoint:
        if self.fails is not None:
            raise self.fails
        self.syncs += 1
        return super().sync()


class Stage:
    """An attempt; `turns` turns its loop. The threads and the clock do not advance during that."""

    def __init__(
        self,
        source: Source | None = None,
        *,
        progress: Progress = DONE,
        begins: bool = False,
        orders: Orders | None = None,
        **pace: float,
    ) -> None:
        self.source = source or Source()
        self.memory = Memory()
        if not begins:
            before = MemoryLog(self.memory)
            before.cut(Checkpoint(AT, cut=1, progress=progress.to_json()))
            before.sync()
        self.log = Log(self.memory)
        self.steps = Steps()
        self.seal_wanted = threading.Event()
        self.waker = Waits()
        self.told: list[tuple[str, dict[str, object]]] = []
        given: Any = self.source
        self.attempt = Attempt(
            given,
            self.log,
            log_id=self.log.log_id,
            epoch=self.log.epoch,
            limits=Limits(),
            orders=orders or Orders(),
            pace=LoopIntervals(**({"heartbeat_s": 1e9, "tables_look_s": 1e9} | pace)),
            requests=SimpleQueue[Input](),
            waker=self.waker,
            on_event=lambda event, fields: self.told.append((event, dict(fields))),
            threads=self.steps,
            clock=lambda: self.log.now_s,
            seal_wanted=self.seal_wanted,
        )

    def begin(self) -> None:
        self.attempt._begin()

    def turns(self, count: int = 1) -> None:
        for _ in range(count):
            self.attempt._turn()

    def after(self, seconds: float) -> None:
        self.log.now_s += seconds
        self.turns()

    def carry_out(self) -> None:
        """All tasks that were sent, and those that they send."""
        while len(self.steps.tasks):
            self.steps.tasks.go(0)

    def events(self) -> list[str]:
        return [event for event, _ in self.told]


def test_a_loop_with_nothing_to_read_waits_for_the_stream_s_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not for long, because the log needs its periodic work; and not at all while the stream has more data ready."""
    monkeypatch.setattr(attempts, "IDLE_WAIT_S", 0.1)
    on = Stage()
    on.turns()
    assert on.waker.waits == [(77, 0.1)]
    on.source.is_ready = True
    on.turns()
    assert len(on.waker.waits) == 1
    monkeypatch.setattr(log_writes, "UNSYNCED_BYTES_MAX", 0)
    on.source.coming = [committed(1)]
    on.turns(2)
    assert on.waker.waits[1:] == [(None, 0.1)], "the disk sets the pace, so the stream's socket does not count"


def test_source_gets_a_heartbeat_whenever_its_time_is_reached() -> None:
    """On an idle database nothing else moves the position, so the server keeps its log. Each heartbeat also checks
    which transactions are visible."""
    on = Stage(heartbeat_s=10.0)
    snapshots = 0

    def snapshot() -> Any:
        nonlocal snapshots
        snapshots += 1
        return Small.snapshot(on.source)

    on.source.snapshot = snapshot  # type: ignore[method-assign]  # it counts
    beats = []
    for seconds in (0.0, 9.5, 0.5, 0.0, 9.0, 1.5, 8.0, 2.0):
        on.after(seconds)
        on.carry_out()
        beats.append(on.source.beats)
    assert beats == [0, 0, 1, 1, 1, 2, 2, 3]
    assert snapshots == 3
    on.turns()


@pytest.mark.parametrize("error", [SourceUnavailable("no answer"), RightMissing("taken away")])
def test_unanswered_heartbeat_is_left_to_the_stream_to_report(error: Exception) -> None:
    """It notices too, and has the better words for it."""
    on = Stage(heartbeat_s=0.0, tables_look_s=0.0)

    def fails() -> None:
        raise error

    on.source.heartbeat = fails  # type: ignore[method-assign]  # it fails
    on.source.tables = fails  # type: ignore[method-assign]  # it fails
    on.turns()
    on.carry_out()
    on.turns()
    assert on.attempt._tasks.answers() == []


def test_list_of_tables_is_checked_whenever_its_time_is_reached() -> None:
    """The row versions are read along with it: a statement may have changed rows without a record in the source's
    log."""
    on = Stage(tables_look_s=30.0)
    looks = []
    for seconds in (0.0, 29.5, 0.5, 0.0, 29.0, 1.5):
        on.after(seconds)
        on.carry_out()
        looks.append((on.source.looks - 1, len(on.source.compared)))
    assert looks == [(0, 0), (0, 0), (1, 1), (1, 1), (1, 1), (2, 2)]


def test_row_versions_are_compared_of_tables_that_were_or_will_be_read() -> None:
    """The log does not have the rows of a table whose backfill was cancelled; a table that is still to be read has no
    version yet."""
    x, y, z = (TableId("public", name) for name in "xyz")
    known = {
        ORDERS.id: TableProgress("done", 1, Offset(1), incarnation=1, row_version="7"),
        ITEMS.id: TableProgress("waiting", 1, Offset(1), incarnation=2),
        x: TableProgress("cancelled", 1, Offset(1), row_version="8"),
        y: TableProgress("failed", 1, Offset(1)),
        z: TableProgress("forgotten", 1, Offset(1)),
    }
    on = Stage(Source(ORDERS, ITEMS), progress=Progress(known))
    on.begin()
    assert on.source.compared == [{ORDERS.id: KnownRows(1, "7"), ITEMS.id: KnownRows(1, None)}]


def test_journal_is_rolled_once_for_a_merge_that_waits_for_its_rows() -> None:
    """With a roll in each turn the log would get a segment for each cut; without rows there is nothing to roll yet."""
    on = Stage()
    on.seal_wanted.set()
    on.log.has_rows = False
    on.turns(3)
    assert (on.seal_wanted.is_set(), on.steps.workers[SEAL].behind) == (True, 0), "the first row is what it waits for"
    on.log.has_rows = True
    on.turns()
    assert (on.seal_wanted.is_set(), on.steps.workers[SEAL].behind) == (False, 1)
    on.turns(3)
    assert on.steps.workers[SEAL].behind == 1, "one request, one segment"


def test_journal_is_rolled_when_due_even_without_changes() -> None:
    """A merge sees only what is sealed: rows of an idle source must not wait for the next change."""
    on = Stage()
    on.turns()
    assert on.log.rolled == 0
    on.log.due = True
    on.turns()
    assert (on.log.rolled, on.steps.workers[SEAL].behind) == (1, 1)
    on.source.coming = [committed(1)]
    on.turns()
    assert on.log.rolled == 3, "at the cut, and again when the turn ends"


def test_rows_a_second_are_those_of_the_last_five_seconds() -> None:
    """`cdcflow status` shows it; a quarter of a second apart is close enough, and what was long ago does not count."""
    on = Stage()

    def rate() -> object:
        return on.attempt.status()["rows_per_second"]

    on.turns()
    assert rate() == 0.0, "one point is no rate"
    for number in range(1, 9):
        on.source.coming = [committed(number)]
        on.after(0.25)
    assert rate() == 4.0
    on.source.coming = [committed(9), committed(10)]
    on.after(0.125)
    assert rate() == 4.0, "too soon for another point"
    on.after(0.875)
    assert rate() == round(10 / 3, 1)
    on.after(2.0)
    assert rate() == 2.0, "the point five seconds ago counts"
    on.after(0.25)
    assert rate() == round(9 / 5, 1), "one that is older does not"
    on.log.now_s += 5
    assert rate() == 0.0
    on.attempt._recording.rows["read"] += 9
    on.after(1.0)
    on.after(0.5)
    on.attempt._recording.rows["read"] += 9
    on.after(1.0)
    assert rate() == round(9 / 1.5, 1), "rows that were read count like those that were captured"


def test_status_has_all_fields_under_their_names() -> None:
    """`cdcflow status` and the metrics read these names."""
    on = Stage(progress=Progress(), orders=Orders(once=True))
    on.begin()
    for _ in range(20):
        on.turns()
        on.carry_out()
        on.steps.workers[SYNC].go()
    status = on.attempt.status()
    checkpoint = on.memory.checkpoint
    tables: Any = status.pop("tables")
    assert tables["public.orders"]["state"] == "done"
    events: Any = status.pop("events")
    assert events == Counter(on.events())
    assert events["range chunk read"] == events["table done"] == 1
    assert status == {
        "epoch": on.log.epoch,
        "cut": checkpoint.cut,
        "position": position_text(checkpoint.position),
        "next_offset": 2,
        "commit_clock": checkpoint.commit_clock,
        "syncs": on.log.syncs,
        "rows_captured": 0,
        "rows_read": 1,
        "rows_per_second": 0.0,
        "rows_read_per_second": None,
        "window": [],
        "held_rows": 0,
        "held_bytes": 0,
        "left_out": [],
    }
    (read,) = [fields for event, fields in on.told if event == "range chunk read"]
    assert read == {"table": "public.orders", "number": 1, "rows": 1, "seconds": 0.123}


def test_chunk_of_a_rewritten_table_is_reported_as_one() -> None:
    """No rows were read; the table is planned again."""
    on = Stage(progress=Progress())
    on.begin()
    read = on.source.read_chunk
    found = [True]

    def rewritten(chunk: Chunk) -> ChunkRead:
        return replace(read(chunk), run=None, rewritten=True) if found and found.pop() else read(chunk)

    on.source.read_chunk = rewritten  # type: ignore[method-assign]  # the first one is
    for _ in range(40):
        on.after(1.0)
        on.carry_out()
        on.steps.workers[SYNC].go()
    chunks = [(event, fields["rows"]) for event, fields in on.told if "number" in fields and "seconds" in fields]
    assert chunks == [("table rewritten", 0), ("range chunk read", 1)]


# ── making it durable ───────────────────────────────────────────────────────────────────────────────────────


def test_large_cut_is_synced_concurrently_with_the_rest_of_the_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """The writing begins while the loop still decodes; a small cut waits for the end of the turn."""
    size = committed(1).run.bytes
    monkeypatch.setattr(log_writes, "SMALL_BYTES_MAX", size)
    on = Stage()
    on.turns()
    assert on.steps.workers[SYNC].behind == 0
    asked = []
    written: Any = on.attempt._recording
    written.make_durable = lambda: asked.append(on.steps.workers[SYNC].behind)
    on.source.coming = [committed(1)]
    on.turns()
    assert asked == [0], "as large as that is small"
    on.source.coming = [committed(2)]
    on.turns()
    assert asked == [0, 1], "together with what is not durable yet it is large"


def test_one_sync_is_requested_for_each_turn_with_a_cut() -> None:
    """Each unnecessary request is one more fsync."""
    on = Stage()
    on.source.is_ready = True
    for count, number in enumerate((1, 2), start=1):
        on.source.coming = [committed(number)]
        on.turns()
        assert on.steps.workers[SYNC].behind == count
        on.turns()
        assert on.steps.workers[SYNC].behind == count, "nothing was cut in that turn"


def test_cut_that_the_thread_already_has_is_not_synced_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was large: the thread has it already."""
    monkeypatch.setattr(log_writes, "SMALL_BYTES_MAX", 0)
    on = Stage()
    on.source.is_ready = True
    on.source.coming = [committed(1)]
    on.turns()
    assert on.steps.workers[SYNC].behind == 1


def test_what_waits_for_the_disk_is_counted_until_it_is_durable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut by cut: a sync frees the room of the cuts that it covers and no others."""
    on = Stage()
    size = committed(1).run.bytes
    for number in (1, 2):
        on.source.coming = [committed(number)]
        on.turns()
    assert on.attempt._recording._unsynced_bytes() == 2 * size
    on.source.is_ready = True
    on.steps.workers[SYNC].go()
    on.source.coming = [committed(3)]
    on.turns()
    assert on.attempt._recording._unsynced_bytes() == size, "the third was cut after that sync"
    monkeypatch.setattr(log_writes, "UNSYNCED_BYTES_MAX", size)
    polls = on.source.polls
    on.turns()
    assert on.source.polls == polls + 1, "as much as may wait"
    monkeypatch.setattr(log_writes, "UNSYNCED_BYTES_MAX", size - 1)
    on.turns()
    assert on.source.polls == polls + 1


@pytest.mark.parametrize("worker", [SYNC, SEAL])
def test_an_error_of_a_thread_ends_the_attempt_in_its_next_turn(worker: str) -> None:
    """L08: after the error nothing may be acknowledged or read."""
    on = Stage()
    on.steps.workers[worker]._error = SinkUnavailable("no room")
    with pytest.raises(SinkUnavailable):
        on.turns()


# ── ending ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_stopped_attempt_makes_its_last_cut_durable_and_acknowledges_it() -> None:
    """Otherwise the next start would read again what is already in the log."""
    on = Stage()
    on.source.is_ready = True
    on.source.coming = [committed(1)]
    turns: Iterator[bool] = iter([False, True])
    on.attempt.run(lambda: next(turns))
    assert on.memory.checkpoint.position == Position("0001")
    assert on.source.acknowledged[-1] == Position("0001")
    assert on.events()[0] == "capture started"
    assert on.told[-1] == ("capture stopped", {"cut": on.memory.checkpoint.cut, "next_offset": 2})


def test_attempt_whose_last_sync_fails_reports_it() -> None:
    """It must not end as if all were durable."""
    on = Stage()
    on.source.is_ready = True
    on.source.coming = [committed(1)]
    turns: Iterator[bool] = iter([False, True])
    on.log.fails = SinkUnavailable("no room")
    with pytest.raises(SinkUnavailable, match="no room"):
        on.attempt.run(lambda: next(turns))
    assert Position("0001") not in on.source.acknowledged
    assert "capture stopped" not in on.events()


def test_closing_releases_everything_although_the_connection_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Most attempts end because it is."""
    on = Stage()
    closed = []

    def close() -> None:
        closed.append(1)
        if len(closed) == 1:
            raise SourceUnavailable("gone already")

    on.source.close = close  # type: ignore[method-assign]  # stream and chunks are closed by the same word here
    monkeypatch.setattr(on.attempt._durability, "stop", lambda sealing_s: closed.append(2))
    on.attempt.close()
    assert closed == [1, 1, 2]


def test_slots_of_other_logs_are_reported_when_a_log_begins() -> None:
    """A slot without a reader fills the server's disk. A log that continues reports nothing, but the status does."""
    for begins in (True, False):
        source = Source()
        source.left = [Finding("warning", "slot cdcflow_old", "holds 7 GB", "SELECT pg_drop_replication_slot('x')")]
        on = Stage(source, begins=begins)
        expected = {"what": "slot cdcflow_old", "found": "holds 7 GB", "remedy": "SELECT pg_drop_replication_slot('x')"}
        assert on.told == ([("left behind", expected)] if begins else [])
