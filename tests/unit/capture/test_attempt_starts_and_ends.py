"""One attempt from start to end: where it begins, what it requests, when it stops by itself."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from queue import SimpleQueue
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.support.capture.small_source import AT, BIGINT, DONE, ITEMS, ORDERS, Small, committed

from cdcflow.capture import attempt as attempts
from cdcflow.capture import log_writes
from cdcflow.capture.attempt import Attempt, LoopIntervals, Orders, table_ids
from cdcflow.capture.interleave.limits import Limits
from cdcflow.capture.interleave.messages import Committed, Input, Pause
from cdcflow.capture.interleave.progress import Progress, TableProgress
from cdcflow.capture.ports.source import SourceHistory
from cdcflow.capture.reread import unread
from cdcflow.capture.source_polls import TablesChanged
from cdcflow.capture.waker import Waker
from cdcflow.errors import ConfigurationError
from cdcflow.model.change import ChangeBatch, SpooledTransaction
from cdcflow.model.position import Checkpoint, Epoch, Offset, Position
from cdcflow.model.table import Column, Table, TableId
from cdcflow.sinks.memory import Memory, MemoryLog


class Stage:
    """One log that outlives attempts, and the parts from which they are built."""

    def __init__(self) -> None:
        self.memory = Memory()
        self.told: list[tuple[str, dict[str, object]]] = []
        self.requests: SimpleQueue[Input] = SimpleQueue()
        self.made: list[tuple[Attempt, Waker]] = []

    def attempt(
        self, source: Small, orders: Orders | None = None, log: MemoryLog | None = None, **pace: float
    ) -> Attempt:
        log = log or MemoryLog(self.memory)
        waker = Waker()
        given: Any = source
        made = Attempt(
            given,
            log,
            log_id=log.log_id,
            epoch=log.epoch,
            limits=Limits(),
            orders=orders or Orders(),
            pace=LoopIntervals(**({"heartbeat_s": 1e9, "tables_look_s": 1e9} | pace)),
            requests=self.requests,
            waker=waker,
            on_event=lambda event, fields: self.told.append((event, dict(fields))),
        )
        self.made.append((made, waker))
        return made

    def holds(self, checkpoint: Checkpoint) -> None:
        """The log as left by an earlier attempt."""
        log = MemoryLog(self.memory)
        log.cut(checkpoint)
        log.sync()

    @property
    def progress(self) -> dict[str, Any]:
        found: Any = self.memory.checkpoint.progress
        return {name: (entry["state"], entry["generation"]) for name, entry in found["tables"].items()}

    def logged(self) -> list[Any]:
        return self.memory.entries

    def close(self) -> None:
        for attempt, waker in self.made:
            with closing(waker):
                attempt.close()


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    monkeypatch.setattr(attempts, "IDLE_WAIT_S", 0.001)  # the loop turns often: nothing here is a measurement
    made = Stage()
    yield made
    made.close()


def after(turns: int) -> Callable[[], bool]:
    """Stop after this many checks."""
    left = iter(range(turns))
    return lambda: next(left, None) is None


def by_itself() -> Callable[[], bool]:
    """Nothing stops it from outside: it has to end before it has checked this often."""
    left = iter(range(5000))

    def stopping() -> bool:
        assert next(left, None) is not None, "it does not end"
        return False

    return stopping


# ── where it starts ─────────────────────────────────────────────────────────────────────────────────────────


def test_first_position_is_durable_before_anything_is_read_from_it(stage: Stage) -> None:
    """A crash right after it must find this position again, not create a new one after what happened in between."""
    source = Small()

    def durable_already() -> None:
        assert stage.memory.checkpoint.position == AT

    source.on_opening = durable_already
    stage.attempt(source)
    assert (stage.memory.checkpoint.cut, stage.memory.checkpoint.epoch) == (1, 1)
    assert source.streamed_from == [stage.memory.checkpoint]


def test_start_that_finds_everything_unchanged_writes_nothing(stage: Stage) -> None:
    """A restart is not an event: the log's last cut stays the last one, only the epoch is the new attempt's."""
    stage.holds(Checkpoint(AT, cut=5, source={"slot": "s"}))
    source = Small()
    stage.attempt(source)
    assert stage.memory.checkpoint == Checkpoint(AT, cut=5, source={"slot": "s"})
    assert source.streamed_from == [Checkpoint(AT, cut=5, source={"slot": "s"}, epoch=source.streamed_from[0].epoch)]
    assert source.streamed_from[0].epoch == 2


@pytest.mark.parametrize("changed", [{"position": Position("0009")}, {"source": {"slot": "t"}}])
def test_checkpoint_that_the_source_changed_is_kept(stage: Stage, changed: dict[str, Any]) -> None:
    """A changed position, or other data for finding it again: both are written in a separate cut, with unchanged
    progress."""
    stage.holds(Checkpoint(AT, cut=5, source={"slot": "s"}, progress=DONE.to_json()))
    source = Small()
    source.prepared = lambda c: replace(c, **changed)
    stage.attempt(source)
    found = stage.memory.checkpoint
    assert found == replace(
        Checkpoint(AT, cut=6, source={"slot": "s"}, progress=DONE.to_json()), **changed, epoch=Epoch(2)
    )


def test_accepted_loss_is_passed_to_the_source_and_never_kept(stage: Stage) -> None:
    """If it were kept, it would also accept the next loss, which no operator has seen yet."""
    stage.holds(Checkpoint(AT, cut=5, source={"slot": "s"}))
    source = Small()
    stage.attempt(source, Orders(accept_history_loss=True))
    assert (source.asked[0].source, source.accepted) == ({"slot": "s"}, [True])
    assert stage.memory.checkpoint.source == {"slot": "s"}
    other = Small()
    stage.attempt(other)
    assert (other.asked[0].source, other.accepted) == ({"slot": "s"}, [False])


def lossy(*tables: Table, position: str = "0500") -> Small:
    """A source that begins at a new position because its history is lost."""
    source = Small(*tables)
    source.prepared = lambda c: replace(c, position=Position(position), source={"slot": "new"})
    source.history = SourceHistory.LOST
    return source


def test_after_a_hole_no_table_is_done_until_it_is_read_again(stage: Stage) -> None:
    """The merge takes a done table as complete; after a gap it is not."""
    stage.holds(Checkpoint(AT, cut=5, source={"slot": "s"}, progress=DONE.to_json()))
    source = lossy()
    attempt = stage.attempt(source, Orders(accept_history_loss=True))
    assert stage.memory.checkpoint.position == Position("0500")
    assert stage.progress == {"public.orders": ("waiting", 1)}
    assert stage.memory.checkpoint.source == {"slot": "new", "history": "lost"}
    attempt.run(lambda: stage.progress == {"public.orders": ("done", 2)})
    assert stage.memory.checkpoint.source == {"slot": "new"}


def test_a_crash_between_the_hole_and_the_order_to_read_again_forgets_neither(stage: Stage) -> None:
    """The source reports it once: after a crash the next attempt does not get the report again and must know it from
    the log."""
    stage.holds(Checkpoint(AT, cut=5, source={"slot": "s"}, progress=DONE.to_json()))
    first = lossy()
    stage.attempt(first)
    second = Small()
    second.prepared = lambda c: replace(c, source={"slot": "new"})
    attempt = stage.attempt(second)
    assert stage.memory.checkpoint.source["history"] == "lost"
    attempt.run(lambda: stage.progress == {"public.orders": ("done", 2)})
    assert stage.memory.checkpoint.source == {"slot": "new"}


def test_command_for_a_dropped_table_is_no_mistake_when_the_log_has_it(stage: Stage) -> None:
    """The daemon was started with this command, reconnects a week later, and continues without a table that was dropped
    since."""
    stage.holds(Checkpoint(AT, cut=5, source={"slot": "s"}, progress=DONE.to_json()))
    order = Orders(backfill=("public.dropped", "public.orders"), given=True, once=True)
    stage.attempt(Small(), order).run(lambda: False)
    stage.attempt(Small(), replace(order, backfill=("public.dropped",))).run(lambda: False)
    assert stage.progress == {"public.orders": ("done", 1)}
    with pytest.raises(ConfigurationError, match=r"public\.dropped is not captured"):
        stage.attempt(Small(), replace(order, given=False)).run(lambda: False)


KEPT = Orders(accept_history_loss=True, keep_rows=True)


def in_doubt(stage: Stage) -> dict[str, bool]:
    known = Progress.from_json(stage.memory.checkpoint.progress)
    return {str(table): progress.in_doubt for table, progress in known.tables.items()}


def read_once(*others: TableProgress) -> Progress:
    done = TableProgress("done", 1, Offset(1), incarnation=ORDERS.incarnation, whole_since=Offset(1))
    tables = (ORDERS.id, ITEMS.id, TableId("public", "x"))
    return Progress(dict(zip(tables, (done, *others), strict=False)))


def test_rows_can_be_kept_unverified_after_a_hole(stage: Stage) -> None:
    """They are compared with the source instead of being read; the log records in which range nothing is known."""
    stage.holds(Checkpoint(AT, cut=5, source={"slot": "s"}, progress=read_once().to_json()))
    source = lossy()
    attempt = stage.attempt(source, KEPT)
    known = Progress.from_json(stage.memory.checkpoint.progress).tables[ORDERS.id]
    assert known.gap is not None
    assert (known.gap.before, known.gap.after, known.gap.epoch) == (AT.text, "0500", 2)
    attempt.run(lambda: "history" not in stage.memory.checkpoint.source)
    assert stage.progress == {"public.orders": ("done", 1)}
    assert in_doubt(stage) == {"public.orders": True}


def test_tables_that_cannot_be_compared_are_read_again_all_the_same(stage: Stage) -> None:
    """One without a key, and one of which not all rows were read."""
    items = TableProgress("done", 1, Offset(1), incarnation=ITEMS.incarnation, whole_since=Offset(1))
    before = read_once(replace(items, state="waiting", keys_since=Offset(1)))
    stage.holds(Checkpoint(AT, cut=5, source={"slot": "s"}, progress=before.to_json()))
    source = lossy(ORDERS, ITEMS)
    stage.attempt(source, KEPT).run(lambda: stage.progress["public.items"] == ("done", 2))
    assert stage.progress["public.orders"] == ("done", 1)
    assert in_doubt(stage) == {"public.orders": True, "public.items": False}
    keyless = lossy(replace(ORDERS, key=()), ITEMS)
    stage.attempt(keyless, KEPT).run(lambda: stage.progress["public.orders"] == ("done", 2))
    assert in_doubt(stage) == {"public.orders": False, "public.items": True}


def test_crash_directly_after_the_hole_leaves_the_rows_unverified(stage: Stage) -> None:
    """The source does not report it to the next attempt again: the log records which tables are read again and which
    are not."""
    items = TableProgress("reading", 1, Offset(1), incarnation=ITEMS.incarnation)
    stage.holds(Checkpoint(AT, cut=5, source={"slot": "s"}, progress=read_once(items).to_json()))
    first = lossy(ORDERS, ITEMS)
    stage.attempt(first, KEPT)
    second = Small(ORDERS, ITEMS)
    second.prepared = lambda c: replace(c, source={"slot": "new"})
    stage.attempt(second).run(lambda: stage.progress["public.items"] == ("done", 2))
    assert stage.progress["public.orders"] == ("done", 1)
    assert in_doubt(stage) == {"public.orders": True, "public.items": False}


def test_a_second_hole_begins_where_the_first_did(stage: Stage) -> None:
    """In between nothing has shown that the rows are right."""
    stage.holds(Checkpoint(AT, cut=5, source={"slot": "s"}, progress=read_once().to_json()))
    for number in (1, 2):
        stage.attempt(lossy(position=f"0{number}00"), KEPT)
    known = Progress.from_json(stage.memory.checkpoint.progress).tables[ORDERS.id]
    assert known.gap is not None
    assert (known.gap.before, known.gap.after, known.gap.epoch) == (AT.text, "0200", 3)


def test_unverified_rows_are_read_again_if_the_next_hole_is_accepted_so(stage: Stage) -> None:
    """The operator's word counts each time."""
    stage.holds(Checkpoint(AT, cut=5, source={"slot": "s"}, progress=read_once().to_json()))
    source = lossy()
    stage.attempt(source, KEPT)
    again = lossy()
    stage.attempt(again, Orders(accept_history_loss=True)).run(lambda: stage.progress == {"public.orders": ("done", 2)})
    assert in_doubt(stage) == {"public.orders": False}


def test_only_what_was_done_is_unread_after_a_hole() -> None:
    """A table that is being read continues with its own plan, and one whose backfill was cancelled stays cancelled."""
    other = TableId("public", "x")
    reading = TableProgress("reading", 2, Offset(9), plan="p", cursor="c")
    gone = TableProgress("cancelled", 1, Offset(3), plan="p", cursor="c")
    done = TableProgress("done", 3, Offset(5), plan="p", cursor="c", rows=7)
    before = Progress({ORDERS.id: done, ITEMS.id: reading, other: gone})
    found = Progress.from_json(unread(before.to_json()))
    waiting = replace(done, state="waiting", plan=None, cursor=None)
    assert dict(found.tables) == {ORDERS.id: waiting, ITEMS.id: reading, other: gone}


def test_no_table_is_whole_after_a_hole() -> None:
    """What was read before it may be gone from the source, whether the table is read again already or not."""
    known = [TableProgress(state, 2, Offset(9), whole_since=Offset(3)) for state in ("done", "reading", "cancelled")]
    tables = {TableId("public", f"t{n}"): progress for n, progress in enumerate(known)}
    found = Progress.from_json(unread(Progress(tables).to_json()))
    assert [(p.state, p.whole_since) for p in found.tables.values()] == [
        ("waiting", None),
        ("reading", None),
        ("cancelled", None),
    ]


# ── what it orders ──────────────────────────────────────────────────────────────────────────────────────────


def test_once_ends_when_the_ordered_tables_are_read_and_that_is_durable(stage: Stage) -> None:
    """`cdcflow backfill` returns only when a restart would not read again."""
    source = Small(ITEMS, ORDERS)
    stage.attempt(source, Orders(backfill=("public.orders",), once=True)).run(by_itself())
    assert stage.progress["public.orders"][0] == "done"
    assert source.acknowledged[-1] == stage.memory.checkpoint.position


def test_once_without_names_waits_for_every_table(stage: Stage) -> None:
    """A command that names no table concerns all of them."""
    source = Small(ITEMS, ORDERS)
    stage.attempt(source, Orders(once=True)).run(by_itself())
    assert {state for state, _ in stage.progress.values()} == {"done"}


def test_once_ends_with_a_table_that_cannot_be_read(stage: Stage) -> None:
    """Waiting does not get it read; the log records why it failed."""
    source = Small(ITEMS, ORDERS)
    source.fails = {ORDERS.id}
    stage.attempt(source, Orders(backfill=("public.orders",), once=True)).run(by_itself())
    assert stage.progress["public.orders"][0] == "failed"


def test_a_table_that_is_done_is_read_again_only_when_that_is_ordered(stage: Stage) -> None:
    """A command that an earlier attempt wrote into the log is waited for, not given a second time."""
    stage.holds(Checkpoint(AT, cut=5, progress=DONE.to_json()))
    for orders, generation, plans in (
        (Orders(once=True), 1, 0),
        (Orders(backfill=(), once=True), 2, 1),
        (Orders(backfill=(), given=True, once=True), 2, 0),
        (Orders(backfill=("public.orders",), once=True), 3, 1),
    ):
        source = Small()
        stage.attempt(source, orders).run(by_itself())
        assert stage.progress == {"public.orders": ("done", generation)}
        assert len(source.planned) == plans


def test_an_order_is_kept_once_a_cut_with_it_is_durable(stage: Stage) -> None:
    """Until then, the attempt that follows a broken one has to give the command again."""
    stage.holds(Checkpoint(AT, cut=5, progress=DONE.to_json()))
    attempt = stage.attempt(Small(), Orders(backfill=()))
    assert not attempt.order_is_kept()
    attempt.run(after(3))
    assert attempt.order_is_kept()
    assert stage.progress["public.orders"][1] == 2


def test_an_unknown_table_is_refused_with_those_that_are_captured() -> None:
    """A typing error must not become a backfill of nothing."""
    assert table_ids(("public.orders",), (ITEMS, ORDERS)) == (ORDERS.id,)
    assert table_ids((), (ITEMS, ORDERS)) == (ITEMS.id, ORDERS.id)
    with pytest.raises(ConfigurationError, match=r"table public\.x is not captured.*public\.items, public\.orders"):
        table_ids(("public.orders", "public.x"), (ITEMS, ORDERS))


def test_operator_s_requests_are_handled_in_the_next_turn(stage: Stage) -> None:
    """All waiting tables, in their order."""
    source = Small(ITEMS, ORDERS)
    stage.requests.put(Pause(ITEMS.id))
    stage.requests.put(Pause(ORDERS.id))
    stage.attempt(source).run(after(4))
    assert {state for state, _ in stage.progress.values()} == {"paused"}


# ── when it ends by itself ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("now", [[ORDERS, ITEMS], [], [replace(ORDERS, incarnation=9)]])
def test_another_list_of_tables_ends_the_attempt(stage: Stage, now: list[Table]) -> None:
    """The next attempt applies it. A table that was recreated under its name is a different table too."""
    source = Small()
    attempt = stage.attempt(source, tables_look_s=0.0)
    source.listed = now
    with pytest.raises(TablesChanged):
        attempt.run(after(1000))


def test_the_same_tables_in_another_shape_or_order_end_nothing(stage: Stage) -> None:
    """Shape changes are followed in the stream; a check that gets no answer proves nothing about tables."""
    source = Small(ITEMS, ORDERS)
    attempt = stage.attempt(source, tables_look_s=0.0, heartbeat_s=0.0)
    source.listed = [replace(ORDERS, columns=(*ORDERS.columns, Column("x", 2, BIGINT))), ITEMS]
    attempt.run(lambda: source.beats > 3)
    source.broken = True
    before = source.beats
    attempt = stage.attempt(replaced := Small(), tables_look_s=0.0, heartbeat_s=0.0)
    replaced.broken = True
    attempt.run(lambda: replaced.beats > 3)
    assert before > 3


# ── how fast it goes ────────────────────────────────────────────────────────────────────────────────────────


class Held(MemoryLog):
    """A log whose syncs, in another thread, wait until the test releases them."""

    def __init__(self, memory: Memory) -> None:
        super().__init__(memory)
        self.free = threading.Event()

    def sync(self) -> Checkpoint:
        if threading.current_thread().name == "cdcflow-sync":
            assert self.free.wait(30)
        return super().sync()


def test_the_source_is_not_read_while_too_much_waits_for_the_disk(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a disk that is slower than the source fills the memory. Rows that have arrived are cut and synced all
    the same."""
    monkeypatch.setattr(log_writes, "UNSYNCED_BYTES_MAX", 0)
    stage.holds(Checkpoint(AT, cut=5, progress=DONE.to_json()))
    source, log = Small(), Held(stage.memory)
    attempt = stage.attempt(source, log=log)
    source.coming = [committed(1)]

    def turns() -> Iterator[None]:
        yield
        read = source.polls
        source.coming = [committed(2)]
        for _ in range(3):
            yield
        assert source.polls == read, "what the first turn brought is not durable"
        log.free.set()
        while source.polls == read:
            yield
        while stage.memory.checkpoint.position != Position("0002"):
            yield

    play(attempt, turns())
    assert source.acknowledged[-2:] == [Position("0001"), Position("0002")]


def test_the_source_is_not_read_while_too_many_journals_wait_to_be_sealed(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A merge sees only sealed rows, and a daemon that is asked to stop seals the remaining ones first."""
    monkeypatch.setattr(log_writes, "UNSEALED_MAX", 1)
    held = threading.Event()

    class Sealing(MemoryLog):
        due = True

        def seal_due(self, now_s: float) -> bool:
            return self.due

        def seal_pending(self) -> None:
            assert held.wait(30)

    stage.holds(Checkpoint(AT, cut=5, progress=DONE.to_json()))
    source, log = Small(), Sealing(stage.memory)
    attempt = stage.attempt(source, log=log)

    def turns() -> Iterator[None]:
        for _ in range(3):
            yield
        read = source.polls
        assert read == 2, "each turn rolls a journal: one may wait, two are too many"
        for _ in range(3):
            yield
        assert source.polls == read
        log.due = False
        held.set()
        while source.polls == read:
            yield

    play(attempt, turns())


def play(attempt: Attempt, turns: Iterator[None]) -> None:
    """The attempt turns once at each `yield`."""
    attempt.run(lambda: next(turns, attempt) is attempt)


def test_status_counts_rows_by_their_origin(stage: Stage) -> None:
    """Rows that were read are not rows that were captured."""
    source = Small()
    source.coming = [committed(1), committed(2), committed(3)]
    attempt = stage.attempt(source, Orders(once=True))
    attempt.run(by_itself())
    status = attempt.status()
    assert (status["rows_captured"], status["rows_read"]) == (3, 1)
    assert status["next_offset"] == stage.memory.checkpoint.next_offset == 5
    assert ("range chunk read", "public.orders", 1) in [(e, f.get("table"), f.get("rows")) for e, f in stage.told]
    assert stage.told[-1] == ("capture stopped", {"cut": stage.memory.checkpoint.cut, "next_offset": 5})


def test_a_transaction_that_was_spooled_is_numbered_like_any_other(stage: Stage) -> None:
    """Its rows count, and its commit time moves the clock that never goes back."""
    source = Small()
    attempt = stage.attempt(source, Orders(once=True))
    rows = pa.RecordBatch.from_pylist([{"id": n, "_op": "c"} for n in (1, 2)], schema=ORDERS.change_schema)
    spool = source.open_spool()
    spool.write([ChangeBatch(ORDERS, np.array([0, 1], np.int64), rows)], None)
    spool.finish()
    spooled = SpooledTransaction(9, Position("0009"), 5000, 2, spool.name, shapes=frozenset({ORDERS}))
    source.coming = [Committed(spooled), committed(10)]
    attempt.run(by_itself())
    heads = [(e.headers.first_offset, e.headers.ends.tolist(), e.headers.commit_clock.tolist()) for e in stage.logged()]
    assert heads[:2] == [(1, [2], [5000]), (3, [1], [5001])]
    assert attempt.status()["rows_captured"] == 3
