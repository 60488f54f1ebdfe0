"""What the pipeline queries the log for about partial rows, and what it does where the log does not know."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import replace
from queue import SimpleQueue

from tests.support.capture.memory_source import OrdersSource

from cdcflow.capture.attempt import Attempt, LoopIntervals, Orders
from cdcflow.capture.interleave.limits import Limits
from cdcflow.capture.interleave.messages import Committed, Input, Resume
from cdcflow.capture.interleave.progress import Progress, State, TableProgress
from cdcflow.capture.waker import Waker
from cdcflow.model.change import Run
from cdcflow.model.position import Checkpoint, Offset
from cdcflow.model.table import UNCHANGED
from cdcflow.sinks.memory import Memory, MemoryLog
from cdcflow.sources.memory_database import MemoryChange
from cdcflow.testing.sinks import ORDERS, Writer
from cdcflow.testing.sources import refuse_spool


def partly_changed(of: OrdersSource, *keys: int) -> None:
    """Commit changes of these rows without their notes."""
    rows = [MemoryChange(of.table.shape, "u", {"id": key, UNCHANGED: ["note"]}) for key in keys]
    of.database.commit(rows, set(), lambda: None, hold=False)


def left(*keys: int, state: State = "reading", exhausted: bool = False) -> tuple[OrdersSource, Memory]:
    """A source, and its log as an earlier run left it: the table in this state, and partial rows of these keys."""
    of, kept = OrdersSource(1, *keys), Memory()
    log = MemoryLog(kept)
    writer = Writer.of(log)
    begun = of.prepare(Checkpoint(), log.log_id).checkpoint
    with closing(of.chunks()) as chunks:
        planned = chunks.plan(ORDERS.id, 1)
    reading = TableProgress(
        state,
        1,
        Offset(1),
        incarnation=of.table.incarnation,
        plan=planned.plan,
        cursor=str(planned.units),
        units=planned.units,
        units_done=1,
        chunks=1,
        exhausted=exhausted,
    )
    writer.checkpoint = replace(begun, progress=Progress({ORDERS.id: reading}).to_json())
    partly_changed(of, *keys)
    with closing(of.stream(begun, refuse_spool)) as stream:
        for event in stream.poll():
            assert isinstance(event, Committed)
            assert isinstance(event.run, Run)
            writer.put(event.run)
    return of, kept


def captured(
    of: OrdersSource, kept: Memory, until: Callable[[Attempt], bool], *, requests: tuple[Input, ...] = ()
) -> tuple[Attempt, list[tuple[str, Mapping[str, object]]]]:
    """Capture until something is reached, and return what was reported."""
    told: list[tuple[str, Mapping[str, object]]] = []
    queue: SimpleQueue[Input] = SimpleQueue()
    for request in requests:
        queue.put(request)
    log, waker = MemoryLog(kept), Waker()
    attempt = Attempt(
        of,
        log,
        log_id=log.log_id,
        epoch=log.epoch,
        limits=Limits(),
        orders=Orders(),
        pace=LoopIntervals(),
        requests=queue,
        waker=waker,
        on_event=lambda event, fields: told.append((event, fields)),
    )
    try:
        attempt.run(lambda: until(attempt))
    finally:
        attempt.close()
        waker.close()
    return attempt, told


def is_done(attempt: Attempt) -> bool:
    return state(attempt).state == "done"


def state(attempt: Attempt) -> TableProgress:
    return attempt._machine.progress.tables[ORDERS.id]


def test_keys_of_the_log_are_read_after_a_restart() -> None:
    """W11: a row that moved while it was read is in no chunk; only the log still knows its key."""
    of, kept = left(7, 8, exhausted=True)
    attempt, _ = captured(of, kept, is_done)
    assert [c.kind for c in of.chunks_read] == ["keys"]
    assert state(attempt).generation == 1


def test_table_whose_partial_rows_have_expired_is_read_again_from_the_start() -> None:
    """Without their keys the table would be reported done with rows whose columns are missing."""
    of, kept = left(7, exhausted=True)
    kept.expire()
    attempt, told = captured(of, kept, is_done)
    assert state(attempt).generation == 2
    assert [c.kind for c in of.chunks_read] == ["range"]
    assert {"partial rows unknown", "table to be read again"} <= {event for event, _ in told}
    (reason,) = [str(fields["reason"]) for event, fields in told if event == "partial rows unknown"]
    assert "expired" in reason


def test_resumed_table_requests_its_partial_rows_from_the_log() -> None:
    """A paused table's keys are kept nowhere in memory, however long the pause is; the log has them."""
    of, kept = left(7, 8, state="paused", exhausted=True)
    attempt, _ = captured(of, kept, is_done, requests=(Resume(ORDERS.id),))
    (chunk,) = of.chunks_read
    assert chunk.keys is not None
    assert sorted(row["id"] for row in chunk.keys.keys.to_pylist()) == [7, 8]
    assert state(attempt).generation == 1


def test_resumed_table_whose_partial_rows_have_expired_is_read_from_scratch() -> None:
    """A pause may be longer than the log is kept."""
    of, kept = left(7, state="paused")
    kept.expire()
    attempt, _ = captured(of, kept, is_done, requests=(Resume(ORDERS.id),))
    assert state(attempt).generation == 2


def test_paused_table_stays_paused_when_its_partial_rows_have_expired() -> None:
    """An operator paused it; keys missing from the log are no reason to load the source."""
    of, kept = left(7, state="paused")
    kept.expire()
    partly_changed(of, 9)
    attempt, _ = captured(of, kept, lambda a: a._recording.rows["captured"] == 1)
    assert (state(attempt).state, state(attempt).generation) == ("paused", 1)
    assert of.chunks_read == []
    assert attempt._machine._backlog.work[ORDERS.id].keys == []
