"""Answers and requests for tables that are not read: a stopped table, or one that is no longer captured."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.simulation.transactions import Keys, Plain, Row, Shape, Transaction, position_of

from cdcflow.capture.interleave.backlog import Backlog
from cdcflow.capture.interleave.chunk_choice import ChunkChoice
from cdcflow.capture.interleave.delivered import Delivered
from cdcflow.capture.interleave.limits import Limits
from cdcflow.capture.interleave.machine import Interleave
from cdcflow.capture.interleave.messages import (
    Backfill,
    ChangesRefused,
    Chunk,
    ChunkFailed,
    ChunkRead,
    Committed,
    Effect,
    Event,
    MarkSeen,
    MarkWritten,
    Pause,
    Planned,
    PlanTable,
    Resume,
    RowsCompared,
    RowsFilled,
    RowsIncomplete,
    RowVersion,
    TakeSnapshot,
    Tick,
    WriteMark,
)
from cdcflow.capture.interleave.progress import Progress, State, TableProgress
from cdcflow.errors import InvariantViolated
from cdcflow.model.position import Checkpoint, Epoch, Offset, Token
from cdcflow.model.table import TableId
from cdcflow.sources.postgres.xid_snapshot import XidSnapshot

ORDERS = TableId("public", "orders")
GONE = TableId("public", "gone")
SHAPE = Shape(("id", "a"))
SEEN = XidSnapshot(1, 1)


def machine(limits: Limits | None = None, progress: Progress | None = None) -> Interleave:
    return Interleave(
        epoch=Epoch(1),
        checkpoint=Checkpoint(position=position_of(0), progress=(progress or Progress({})).to_json()),
        tables={ORDERS: SHAPE},
        limits=limits or Limits(),
        delivered=np.empty(0, np.uint64),
        partial={},
    )


def told(effects: list[Effect]) -> list[str]:
    return [e.event for e in effects if isinstance(e, Event)]


def planned(table: TableId) -> Planned:
    return Planned(table, 1, "plan", 1, 1, SHAPE, visibilities=(SEEN,))


def test_answers_about_a_table_that_is_not_captured_are_dropped_or_refused_with_an_error_that_names_it() -> None:
    """They were under way when the settings changed; the attempt must not end in an error that names no table."""
    reading = machine()
    reading.step(Tick(0))
    assert told(reading.step(ChunkFailed(GONE, "away", retry=True))) == []
    assert told(reading.step(RowsCompared((RowVersion(GONE, None, "b", changed=True),)))) == []
    with pytest.raises(InvariantViolated, match=r"public\.gone was planned for generation 1, which was not requested"):
        reading.step(planned(GONE))
    with pytest.raises(
        InvariantViolated, match=r"public\.orders was planned for generation 2, which was not requested"
    ):
        reading.step(replace(planned(ORDERS), generation=2))


def test_incomplete_rows_of_a_failed_table_do_not_begin_it_again() -> None:
    """It would be tried again, and fail, at every such row."""
    reading = machine()
    reading.step(Tick(0))
    reading.step(ChunkFailed(ORDERS, "no grant", retry=False))
    assert told(reading.step(RowsIncomplete(ORDERS, Keys((1,)), position_of(1)))) == ["rows changed unseen"]
    assert reading.progress.tables[ORDERS].state == "failed"


def test_rows_of_a_failed_table_that_were_filled_begin_it_again() -> None:
    """The statement may have fixed the cause of the failure; and a table that it emptied would stay empty."""
    reading = machine()
    reading.step(Tick(0))
    reading.step(ChunkFailed(ORDERS, "no grant", retry=False))
    assert reading.progress.tables[ORDERS].state == "failed"
    assert told(reading.step(RowsFilled(ORDERS, position_of(1)))) == ["table to be read again"]
    assert reading.progress.tables[ORDERS].state == "waiting"


def test_statement_does_not_begin_a_table_again_whose_changes_cannot_leave() -> None:
    """The statement that exchanges the names of two columns also fills the table: read again, it would be filtered by
    the other column, and not fail. Settings or a command have it read again."""
    reading = machine()
    reading.step(Tick(0))
    reading.step(ChangesRefused(ORDERS, "note has the name of another column", position_of(1)))
    assert told(reading.step(RowsFilled(ORDERS, position_of(1)))) == []
    assert told(reading.step(RowsFilled(ORDERS, position_of(2), swapped=True))) == []
    assert reading.progress.tables[ORDERS].lacks_changes
    reading.step(Backfill((ORDERS,)))
    assert not reading.progress.tables[ORDERS].lacks_changes


def test_table_that_the_source_refuses_is_read_again_once_a_check_no_longer_refuses_it() -> None:
    """An operator fixes it at the source, and nothing else has to be done. Other tables that lack changes stay."""
    reading = machine()
    reading.step(Tick(0))
    assert told(reading.step(RowsCompared((), {ORDERS: "it has no key"}))) == ["table failed"]
    assert told(reading.step(RowsCompared((), {ORDERS: "it has no key"}))) == []
    assert reading.progress.tables[ORDERS].is_refused
    again = machine(progress=Progress.from_json(reading.progress.to_json()))
    again.step(Tick(0))
    assert told(again.step(RowsCompared(()))) == ["table to be read again"]
    assert again.progress.tables[ORDERS].state == "waiting"
    again.step(ChangesRefused(ORDERS, "note has the name of another column", position_of(1)))
    assert told(again.step(RowsCompared(()))) == []
    assert again.progress.tables[ORDERS].lacks_changes


def test_table_that_was_paused_before_it_was_planned_simply_continues() -> None:
    """No row of it was read, so no key of a partial row can be missing."""
    reading = machine()
    reading.step(Tick(0))
    reading.step(Pause(ORDERS))
    assert "table to be read again" not in told(reading.step(Resume(ORDERS, None)))
    assert reading.progress.tables[ORDERS].generation == 1


def test_failed_check_is_requested_again() -> None:
    """Otherwise the ids of delivered transactions are kept indefinitely, more with every transaction."""
    reading = machine(Limits(delivered_max=10))
    reading.step(Tick(0))
    assert asked(reading, range(1, 11)) == 0
    assert asked(reading, range(11, 12)) == 1
    assert asked(reading, range(12, 50)) == 0, "one at a time"
    reading.step(ChunkFailed(None, "the connection is gone", retry=True))
    assert asked(reading, range(50, 200)) == 1


def test_ids_that_a_chunk_has_seen_are_forgotten_without_a_check() -> None:
    """While a table is read, its chunks report continuously what is visible: no separate query is needed."""
    reading = machine(Limits(delivered_max=10))
    reading.step(Tick(0))
    assert asked(reading, range(1, 9)) == 0
    (write,) = (e for e in reading.step(planned(ORDERS)) if isinstance(e, WriteMark))
    reading.step(MarkWritten(write.token))
    reading.step(MarkSeen(write.token, position_of(9), 0))
    (chunk,) = (read.chunk for read in write.reads)
    read = ChunkRead(chunk, Plain((Transaction(0, 0, ()),), read=True), SHAPE, (XidSnapshot(100, 100),), "1", 1, True)
    (write,) = (e for e in reading.step(read) if isinstance(e, WriteMark))
    reading.step(MarkWritten(write.token))
    assert "table done" in told(reading.step(MarkSeen(write.token, position_of(10), 0)))
    assert asked(reading, range(11, 19)) == 0
    assert asked(reading, range(19, 24)) == 1


def asked(reading: Interleave, xids: range) -> int:
    """Deliver these transactions; return how many checks are requested."""
    items = tuple(Transaction(n, n, (Row(ORDERS, SHAPE, "c", {"id": n, "a": 1}),)) for n in xids)
    return sum(isinstance(e, TakeSnapshot) for e in reading.step(Committed(Plain(items))))


def test_nothing_is_held_while_no_window_is_open() -> None:
    """`cdcflow status` and the memory limit count what is held."""
    assert machine().held_size == (0, 0)
    assert machine().window_tables == ()


def backlog(limits: Limits | None = None) -> Backlog:
    return Backlog(Progress.from_json({}), {ORDERS: SHAPE}, limits or Limits(), Offset(1), {})


def plan(of: Backlog) -> PlanTable | None:
    return ChunkChoice(of).plan(ORDERS, Offset(1), Delivered(np.empty(0, np.uint64), 1))


def test_keys_from_before_the_plan_are_not_read_by_key() -> None:
    """The plan's chunks show them; a table with many of them would be begun again needlessly."""
    reading = backlog(Limits(keys_max=2))
    reading.pause(ORDERS)
    reading.resume(ORDERS, [Keys((1, 2, 3))])
    assert plan(reading) == PlanTable(ORDERS, 1)
    assert reading.too_many_keys() == []


def test_chunk_of_a_rewritten_table_does_not_affect_the_size_of_the_next() -> None:
    """Nothing was read: it took no time."""
    reading = backlog()
    plan(reading)
    assert ChunkChoice(reading).accept_plan(replace(planned(ORDERS), size=64, units=1000)) == "taken"
    chunk = ChunkChoice(reading).chunk(ORDERS, Token("1/1/low"))
    assert chunk is not None
    ChunkChoice(reading).adapt_size(ChunkRead(chunk, None, SHAPE, (SEEN,), rewritten=True), holding=False, live=False)
    assert reading.progress.tables[ORDERS].size == 64


def test_a_version_that_is_known_holds_no_plan_up_a_second_time() -> None:
    """A table that is compared at every check would never be planned."""
    reading = backlog()
    version = RowVersion(ORDERS, None, "b", changed=False)
    assert reading.keep_version(version) is True
    assert not reading.keep_version(version)
    assert reading.keep_version(replace(version, now="c")) is True
    plan(reading)
    assert not reading.keep_version(replace(version, now="d")), "the plan under way has its own version"


def test_keys_of_a_table_that_is_not_planned_yet_are_not_remembered() -> None:
    """Its chunks will show them; too many of them would begin it again before it began."""
    reading = backlog(Limits(keys_max=2))
    reading.read_keys(ORDERS, Keys((1, 2, 3)), Offset(5))
    assert reading.too_many_keys() == []
    plan(reading)
    reading.read_keys(ORDERS, Keys((1, 2, 3)), Offset(5))
    assert reading.too_many_keys() == [ORDERS], "they may have been read since the plan"


def test_keys_that_arrive_while_a_table_is_paused_are_kept_by_the_log() -> None:
    """It may be paused for a week; its plan is requested when it is resumed."""
    reading = backlog(Limits(keys_max=2))
    plan(reading)
    assert ChunkChoice(reading).accept_plan(planned(ORDERS)) == "taken"
    reading.pause(ORDERS)
    reading.read_keys(ORDERS, Keys((1, 2, 3)), Offset(5))
    reading.resume(ORDERS, [])
    assert reading.too_many_keys() == []
    reading.read_keys(ORDERS, Keys((1, 2, 3)), Offset(6))
    assert reading.too_many_keys() == [ORDERS]


@pytest.mark.parametrize("token", ["1/1/low", "1/7/low", "2/1/low", "hello"])
def test_mark_that_was_not_requested_is_refused(token: str) -> None:
    """A mark of a future window, of another run, of another process: the machine and the source would diverge."""
    reading = machine()
    reading.step(Tick(0))
    with pytest.raises(InvariantViolated):
        reading.step(MarkWritten(Token(token)))


@pytest.mark.parametrize("token", ["1/1/low", "1/7/low", "2/1/low", "hello"])
def test_chunk_after_a_mark_that_was_not_requested_is_refused(token: str) -> None:
    """The place of its rows in the log is unknown."""
    reading = machine()
    reading.step(Tick(0))
    chunk = Chunk(ORDERS, 1, 1, "plan", None, size=1, low=Token(token))
    with pytest.raises(InvariantViolated, match="which was not written"):
        reading.step(ChunkRead(chunk, None, SHAPE, (SEEN,)))


def test_plan_that_arrives_too_late_is_not_accepted() -> None:
    """Of a generation that is over, or when there is one already: neither is accepted, and neither is an error."""
    reading = backlog()
    plan(reading)
    assert ChunkChoice(reading).accept_plan(replace(planned(ORDERS), generation=0)) == "late"
    assert ChunkChoice(reading).accept_plan(planned(ORDERS)) == "taken"
    assert ChunkChoice(reading).accept_plan(planned(ORDERS)) == "late"


@pytest.mark.parametrize("state", ["reading", "done"])
def test_rows_that_were_read_are_right_at_the_latest_compared_version(state: State) -> None:
    """Compared with the old version repeatedly, the table would be queried at every check."""
    reading = backlog()
    plan(reading)
    assert ChunkChoice(reading).accept_plan(planned(ORDERS)) == "taken"
    if state == "done":
        reading.stop(ORDERS, state)
    for version in ("b", "c"):
        assert not reading.keep_version(RowVersion(ORDERS, None, version, changed=False))
        known = reading.progress.tables[ORDERS]
        assert (known.state, known.row_version) == (state, version)


@pytest.mark.parametrize("state", ["cancelled", "failed", "forgotten"])
def test_new_version_of_a_table_that_is_not_read_holds_up_no_plan(state: State) -> None:
    """Each check compares it again: the other tables would wait for one mark after another."""
    reading = backlog()
    reading.stop(ORDERS, state)
    assert not reading.keep_version(RowVersion(ORDERS, None, "b", changed=False))


def test_a_lost_connection_without_a_window_holds_up_no_mark() -> None:
    """No window was under way: the next requested table is begun at once."""
    reading = Interleave(
        epoch=Epoch(2),
        checkpoint=Checkpoint(position=position_of(0)),
        tables={ORDERS: SHAPE},
        limits=Limits(backfill_new=False),
        delivered=np.empty(0, np.uint64),
        partial={},
    )
    reading.step(Tick(0))
    reading.step(ChunkFailed(None, "the connection is gone", retry=True))
    assert [e.token for e in reading.step(Backfill((ORDERS,))) if isinstance(e, WriteMark)] == [Token("2/1/low")]


def test_changed_rows_of_a_table_that_is_not_read_hold_up_its_next_plan() -> None:
    """Changes from before the statement may still arrive, and would survive the sweep of the next reading."""
    reading = machine(Limits(backfill_new=False))
    reading.step(Tick(0))
    assert told(reading.step(RowsCompared((RowVersion(ORDERS, None, "b", changed=True),)))) == ["rows changed unseen"]
    effects = reading.step(Backfill((ORDERS,)))
    assert [e for e in effects if isinstance(e, PlanTable | WriteMark)] == [WriteMark(Token("1/1/low"), ())]
    effects = reading.step(MarkSeen(Token("1/1/low"), position_of(1), 0))
    assert PlanTable(ORDERS, 1) in effects


@pytest.mark.parametrize("version", [None, "a"])
@pytest.mark.parametrize("now", [None, "a", "b"])
def test_table_with_only_keys_left_stays_at_the_version_that_it_was_read_at(
    version: str | None, now: str | None
) -> None:
    """Otherwise a statement between the two would be compared with nothing, and the rows it changed would never be
    read again."""
    done = TableProgress("done", 1, Offset(1), SHAPE.incarnation, exhausted=True, row_version=version)
    reading = Backlog(Progress({ORDERS: done}), {ORDERS: SHAPE}, Limits(), Offset(7), {})
    reading.read_keys(ORDERS, Keys((1, 2)), Offset(7))
    assert reading.progress.tables[ORDERS].keys_since == 7
    assert plan(reading) == PlanTable(ORDERS, 1, keys_only=True)
    assert ChunkChoice(reading).accept_plan(replace(planned(ORDERS), row_version=now)) == "taken"
    assert reading.progress.tables[ORDERS].row_version == version
    chunk = ChunkChoice(reading).chunk(ORDERS, Token("1/1/low"))
    assert chunk is not None
    assert (chunk.kind, chunk.keys) == ("keys", Keys((1, 2)))


def test_change_that_only_the_stream_showed_counts_at_any_version_of_the_progress() -> None:
    """A poll was quicker, and the progress has a later version than the one that the stream compared with. A poll's own
    answer is dropped: the next poll compares again."""
    done = TableProgress("done", 1, Offset(1), SHAPE.incarnation, row_version="b")
    reading = machine(progress=Progress({ORDERS: done}))
    shown = RowVersion(ORDERS, "a", "c", changed=True)
    assert told(reading.step(RowsCompared((shown,)))) == []
    assert "table to be read again" in told(reading.step(RowsFilled(ORDERS, position_of(2), shown)))
    assert reading.progress.tables[ORDERS].generation == 2
    unchanged = replace(shown, changed=False)
    assert told(reading.step(RowsFilled(ORDERS, position_of(2), unchanged))) == []
    assert told(reading.step(RowsFilled(GONE, position_of(2), replace(shown, table=GONE)))) == []
