"""Tables that statements on other tables may have changed: how often they are read again, and when they are done."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from tests.simulation.transactions import Shape, position_of

from cdcflow.capture.interleave.backlog import Backlog
from cdcflow.capture.interleave.limits import Limits
from cdcflow.capture.interleave.machine import Interleave
from cdcflow.capture.interleave.messages import (
    Backfill,
    Cancel,
    ChangesRefused,
    ChunkFailed,
    Effect,
    Event,
    MarkSeen,
    Pause,
    PlanTable,
    Resume,
    RowsFilled,
    Tick,
    WriteMark,
)
from cdcflow.capture.interleave.progress import Progress, Stale, TableProgress
from cdcflow.model.position import Checkpoint, Epoch, Offset
from cdcflow.model.table import TableId

A, B = (TableId("public", name) for name in "ab")
SHAPE = Shape(("id", "a"))
DONE = TableProgress("done", 1, Offset(1), SHAPE.incarnation, whole_since=Offset(1), exhausted=True)
SECOND = 1_000_000


def machine(*tables: TableId, known: TableProgress = DONE, epoch: int = 1) -> Interleave:
    return Interleave(
        epoch=Epoch(epoch),
        checkpoint=Checkpoint(position=position_of(0), progress=Progress(dict.fromkeys(tables, known)).to_json()),
        tables=dict.fromkeys(tables, SHAPE),
        limits=Limits(),
        delivered=np.empty(0, np.uint64),
        partial={},
    )


def suspected(table: TableId) -> RowsFilled:
    return RowsFilled(table, position_of(1), possible=True)


def events(effects: Sequence[Effect]) -> list[str]:
    return [e.event for e in effects if isinstance(e, Event)]


def marks(effects: Sequence[Effect]) -> list[WriteMark]:
    return [e for e in effects if isinstance(e, WriteMark)]


def at_next_mark(reading: Interleave, effects: Sequence[Effect]) -> list[Effect]:
    """The effects of the mark that these effects request, when it arrives."""
    (mark,) = marks(effects)
    return reading.step(MarkSeen(mark.token, position_of(2), 0))


def test_statements_that_never_end_cannot_keep_a_table_from_being_planned() -> None:
    """One arrives before every mark: the table waits for one mark, and is then read, though it will not be done."""
    reading = machine(A)
    reading.step(Tick(0))
    assert events(reading.step(suspected(A))) == ["table to be read again"]
    effects = reading.step(Tick(SECOND))
    assert events(reading.step(suspected(A))) == []
    assert PlanTable(A, 2) in at_next_mark(reading, effects)
    assert reading.progress.tables[A].stale == "pending"


def test_read_that_begins_after_the_last_statement_covers_all_of_them() -> None:
    """Those that arrived while it rested were gathered for it."""
    reading = machine(A)
    reading.step(Tick(0))
    reading.step(suspected(A))
    reading.step(Tick(SECOND // 2))
    assert reading.step(suspected(A)) == []
    assert PlanTable(A, 2) in at_next_mark(reading, reading.step(Tick(SECOND)))
    assert reading.progress.tables[A].stale == "reading"


def test_tables_that_are_suspected_wait_for_one_mark_together() -> None:
    """Each would hold up the plans of all others."""
    reading = machine(A, B)
    reading.step(Tick(0))
    for table in (A, B):
        reading.step(suspected(table))
    effects = at_next_mark(reading, reading.step(Tick(SECOND)))
    assert {PlanTable(A, 2), PlanTable(B, 2)} <= {e for e in effects if isinstance(e, PlanTable)}


@pytest.mark.parametrize("stale", ["reading", "pending"])
def test_suspicion_survives_a_restart_and_is_in_the_status(stale: Stale) -> None:
    """Another attempt has to know that the table is not done at the end of the read that it continues."""
    known = replace(DONE, state="reading", plan="plan", stale=stale)
    again = Progress.from_json(Progress({A: known}).to_json())
    assert again.tables[A].stale == stale
    assert again.to_status(0)[str(A)]["stale"] == stale  # type: ignore[index]
    assert "stale" not in Progress({A: DONE}).to_json()["tables"][str(A)]  # type: ignore[index]


def test_every_later_generation_counts_as_suspected_until_it_is_planned() -> None:
    """One that a command begins may be planned before what preceded the statement has arrived."""
    reading = machine(A)
    reading.step(Tick(0))
    reading.step(suspected(A))
    effects = reading.step(Backfill((A,)))
    assert not [e for e in effects if isinstance(e, PlanTable)]
    assert PlanTable(A, 3) in at_next_mark(reading, effects)
    assert reading.progress.tables[A].stale == "reading"


def test_failed_table_is_tried_again_after_a_rest() -> None:
    """At every statement it would fail again."""
    reading = machine(A)
    reading.step(Tick(0))
    reading.step(suspected(A))
    at_next_mark(reading, reading.step(Tick(SECOND)))
    reading.step(ChunkFailed(A, "no such type", retry=False))
    assert events(reading.step(suspected(A))) == ["table to be read again"]
    assert not marks(reading.step(Tick(60 * SECOND)))
    assert not reading.is_reading
    assert marks(reading.step(Tick(61 * SECOND)))
    assert reading.is_reading


def test_cancelled_table_is_reported_once() -> None:
    """It is not read, until an operator requests it."""
    reading = machine(A)
    reading.step(Tick(0))
    reading.step(suspected(A))
    reading.step(Cancel(A))
    reading = machine(A, known=replace(reading.progress.tables[A], stale=None))
    assert [events(reading.step(suspected(A))) for _ in range(3)] == [["rows changed unseen"], [], []]
    assert reading.progress.tables[A].state == "cancelled"


def test_paused_table_stays_paused_and_is_suspected_when_it_is_resumed() -> None:
    reading = machine(A, known=TableProgress("waiting", 1, Offset(1), SHAPE.incarnation))
    reading.step(Tick(0))
    reading.step(Pause(A))
    assert events(reading.step(suspected(A))) == []
    assert (reading.progress.tables[A].state, reading.progress.tables[A].stale) == ("paused", "pending")
    reading.step(Resume(A))
    assert reading.progress.tables[A].stale == "pending"


def test_table_whose_rows_are_read_by_key_is_read_whole() -> None:
    """Its other rows would not be read."""
    reading = machine(A, known=replace(DONE, state="waiting", keys_since=Offset(5)))
    reading.step(Tick(0))
    assert events(reading.step(suspected(A))) == ["table to be read again"]
    assert (reading.progress.tables[A].generation, reading.progress.tables[A].keys_since) == (2, None)


def test_table_whose_changes_cannot_leave_is_not_read_because_of_a_suspicion() -> None:
    reading = machine(A)
    reading.step(Tick(0))
    reading.step(ChangesRefused(A, "unfit", position_of(1)))
    assert events(reading.step(suspected(A))) == []
    assert reading.progress.tables[A].lacks_changes


@pytest.mark.parametrize(
    ("own", "others", "rest"),
    [
        (1, [], 60),
        (100, [], 100),
        (100, [100, 100], 500),
        (100, [1, 5000], 302),
        (1, [5000] * 9, 60),
        (10, [5000] * 9, 190),
    ],
)
def test_tables_rest_so_that_half_of_the_time_is_left_to_the_source(own: int, others: list[int], rest: int) -> None:
    """As long as it was read, and twice as long as all others together; a small table does not wait for
    large ones."""
    tables = {TableId("public", f"t{n}"): replace(DONE, stale="pending") for n in range(1 + len(others))}
    backlog = Backlog(Progress(tables), dict.fromkeys(tables, SHAPE), Limits(), Offset(1), {})
    for table, seconds in zip(tables, (own, *others), strict=True):
        backlog.work[table].read_us = seconds * SECOND
    first = next(iter(tables))
    backlog.rest(first, 7)
    assert backlog.work[first].rest_until_us == 7 + rest * SECOND


def test_window_that_opened_before_the_first_tick_did_not_open_when_the_machine_started() -> None:
    """The clock begins anywhere: a table that was read in that window would rest for hours."""
    reading = machine(A, known=TableProgress("waiting", 1, Offset(1), SHAPE.incarnation), epoch=2)
    assert marks(reading.step(suspected(A)))
    reading.step(Tick(10**12))
    window = reading._windows.window
    assert window is not None
    assert window.opened_us == 10**12
