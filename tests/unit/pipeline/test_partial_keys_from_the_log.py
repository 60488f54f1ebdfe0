"""What the pipeline asks the log about partial rows, and what it does where the log does not know."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from queue import SimpleQueue

import pyarrow as pa
from memorysource import MemorySource

from cdcflow.interleave.machine import Limits
from cdcflow.interleave.messages import Input, Resume
from cdcflow.interleave.progress import Progress, TableProgress
from cdcflow.model.position import Offset, Position
from cdcflow.model.table import UNCHANGED
from cdcflow.pipeline.attempt import Attempt, Orders, Pace
from cdcflow.pipeline.waker import Waker
from cdcflow.sinks.memory import Memory, MemoryLog
from cdcflow.testing.sinks import ORDERS, Writer, changes, transactions

READING = TableProgress(
    "reading", 1, Offset(1), ORDERS.incarnation, plan="all", cursor="1", units=2, units_done=1, chunks=1
)
PARTIAL = {"_op": "u", UNCHANGED: ["note"]}


def memory(progress: TableProgress, *keys: int) -> Memory:
    """A log with a table in this state, and partial rows of these keys."""
    kept = Memory()
    writer = Writer.of(MemoryLog(kept))
    stored = Progress({ORDERS.id: progress}).to_json()
    writer.checkpoint = replace(writer.checkpoint, progress=stored, position=Position("0/0"))
    writer.put(transactions([1], [len(keys)], changes(ORDERS, [{"id": key, **PARTIAL} for key in keys])))
    return kept


def source() -> MemorySource:
    return MemorySource({ORDERS: pa.RecordBatch.from_pydict({"id": [1], "note": ["a"]}, ORDERS.row_schema)})


def captured(
    kept: Memory, of: MemorySource, until: Callable[[Attempt], bool], *, requests: tuple[Input, ...] = ()
) -> tuple[Attempt, list[tuple[str, Mapping[str, object]]]]:
    """Capture until something is reached, and say what was told."""
    told: list[tuple[str, Mapping[str, object]]] = []
    queue: SimpleQueue[Input] = SimpleQueue()
    for request in requests:
        queue.put(request)
    log, waker = MemoryLog(kept), Waker()
    attempt = Attempt(
        of,
        log,
        log_id="memory",
        epoch=log.epoch,
        limits=Limits(),
        orders=Orders(),
        pace=Pace(),
        requests=queue,
        waker=waker,
        on_event=lambda event, fields: told.append((event, fields)),
    )
    try:
        attempt.run(lambda: until(attempt))
    finally:
        attempt.close()
        waker.close()
        of.shut()
    return attempt, told


def is_done(attempt: Attempt) -> bool:
    return state(attempt).state == "done"


def state(attempt: Attempt) -> TableProgress:
    return attempt._machine.progress.tables[ORDERS.id]


def test_keys_of_the_log_are_read_after_a_restart() -> None:
    """W11: a row that moved while it was read is in no chunk; only the log still knows its key."""
    of = source()
    attempt, _ = captured(memory(replace(READING, exhausted=True), 7, 8), of, is_done)
    assert [c.kind for c in of.chunks_read] == ["keys"]
    assert state(attempt).generation == 1


def test_table_whose_partial_rows_have_expired_is_read_again_from_the_start() -> None:
    """Without their keys the table would be called done with rows whose columns are missing."""
    kept, of = memory(replace(READING, exhausted=True), 7), source()
    kept.expire()
    attempt, told = captured(kept, of, is_done)
    assert state(attempt).generation == 2
    assert [c.kind for c in of.chunks_read] == ["range"]
    assert {"partial rows unknown", "table to be read again"} <= {event for event, _ in told}
    (reason,) = [str(fields["reason"]) for event, fields in told if event == "partial rows unknown"]
    assert "expired" in reason


def test_resumed_table_asks_the_log_for_its_partial_rows() -> None:
    """Nobody keeps keys of a table that is paused, however long it is; the log has them."""
    of = source()
    kept = memory(replace(READING, state="paused", exhausted=True), 7, 8)
    attempt, _ = captured(kept, of, is_done, requests=(Resume(ORDERS.id),))
    (chunk,) = of.chunks_read
    assert chunk.keys is not None
    assert sorted(row["id"] for row in chunk.keys.keys.to_pylist()) == [7, 8]
    assert state(attempt).generation == 1


def test_resumed_table_whose_partial_rows_have_expired_starts_anew() -> None:
    """A pause may be longer than the log is kept."""
    kept, of = memory(replace(READING, state="paused"), 7), source()
    kept.expire()
    attempt, _ = captured(kept, of, is_done, requests=(Resume(ORDERS.id),))
    assert state(attempt).generation == 2


def test_paused_table_stays_paused_when_its_partial_rows_have_expired() -> None:
    """An operator paused it; that the log forgot something is no reason to load the source."""
    kept, of = memory(replace(READING, state="paused"), 7), source()
    kept.expire()
    of.commit(transactions([2], [1], changes(ORDERS, [{"id": 9, **PARTIAL}])))
    attempt, _ = captured(kept, of, lambda a: a.rows["captured"] == 1)
    assert (state(attempt).state, state(attempt).generation) == ("paused", 1)
    assert of.chunks_read == []
    assert attempt._machine._backlog._work[ORDERS.id].keys == []
