"""What an attempt acknowledges to its source: only what a sync has returned, and never backwards."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from queue import SimpleQueue

import numpy as np
import pyarrow as pa
import pytest
from tests.simulation.steps import Later, Silent, Steps

from cdcflow.capture.attempt import Attempt, LoopIntervals, Orders
from cdcflow.capture.interleave.limits import Limits
from cdcflow.capture.interleave.messages import (
    Advanced,
    Chunk,
    ChunkRead,
    Committed,
    KnownRows,
    Planned,
    RowsCompared,
    Visibility,
)
from cdcflow.capture.ports.findings import Dropped, Finding
from cdcflow.capture.ports.log import OpenSpool
from cdcflow.capture.ports.source import Prepared, Preview, SourceStatus, TransactionsBack
from cdcflow.capture.ports.stream import StreamEvent
from cdcflow.model.change import ChangeBatch, KeySet, Run
from cdcflow.model.position import Checkpoint, Position, SourceIdentity, Token
from cdcflow.model.table import Column, Table, TableId
from cdcflow.model.types import ColumnType
from cdcflow.sinks.memory import Memory, MemoryLog
from cdcflow.sources.postgres.xid_snapshot import XidSnapshot

ORDERS = Table(TableId("public", "orders"), 1, (Column("id", 1, ColumnType("bigint", pa.int64())),), ("id",))
SYNC = "cdcflow-sync"


def insert(number: int) -> Committed:
    """Transaction `number`, which inserts one row; its place in the source's log is its number."""
    rows = pa.RecordBatch.from_pylist([{"id": number, "_op": "c"}], schema=ORDERS.change_schema)
    return Committed(
        Run(
            np.array([number], np.uint64),
            pa.array([position_of(number).text]),
            np.array([number], np.int64),
            np.array([1], np.int64),
            (ChangeBatch(ORDERS, np.array([0], np.int64), rows),),
        )
    )


def position_of(number: int) -> Position:
    return Position(f"{number:04d}")


class Pausing(MemoryLog):
    """A log whose sync, in its own thread, waits before it begins and, once all is durable, before it returns. Each
    wait takes `takes_s`."""

    def __init__(self, memory: Memory, steps: Steps) -> None:
        super().__init__(memory)
        self._steps = steps
        self._durable: list[Checkpoint] = []
        self._begun = False
        self.returned: list[Position | None] = []
        self.cuts: list[Position | None] = []
        self.now_s = 0.0
        self.takes_s = 1.0

    def cut(self, checkpoint: Checkpoint) -> None:
        super().cut(checkpoint)
        self.cuts.append(checkpoint.position)

    def sync(self) -> Checkpoint:
        if self._steps.in_loop(SYNC):
            checkpoint = super().sync()
        elif not self._begun:
            self._begun = True
            raise Later
        elif not self._durable:
            self._durable.append(super().sync())
            raise Later
        else:
            checkpoint = self._durable.pop()
            self._begun = False
        self.now_s += self.takes_s
        self.returned.append(checkpoint.position)
        return checkpoint

    def monotonic_s(self) -> float:
        return self.now_s


class Tape:
    """A source with one table and nothing to read in it: implements `Source`, `Stream` and `ChunkSource`.

    `coming` is what the stream brings. What is acknowledged has to be what the log's sync has returned, and more than
    before.
    """

    def __init__(self, log: Pausing) -> None:
        self._log = log
        self.coming: list[StreamEvent] = []
        self.busy = False
        self.acknowledged: list[Position] = []

    def identity(self) -> SourceIdentity:
        return SourceIdentity("tape", "1", "shop")

    def prepare(
        self,
        checkpoint: Checkpoint,
        log_id: str,
        transactions_back: TransactionsBack | None = None,
        *,
        accept_history_loss: bool = False,
    ) -> Prepared:
        return Prepared(checkpoint)

    def left_out(self, checkpoint: Checkpoint | None = None) -> Sequence[TableId]:
        return ()

    def preview(self, checkpoint: Checkpoint, log_id: str) -> Preview:
        return Preview(())

    def compare_rows(self, known: Mapping[TableId, KnownRows]) -> RowsCompared:
        return RowsCompared(())

    def left_behind(self, log_id: str) -> Sequence[Finding]:
        return ()

    def drop(self, log_id: str, checkpoint: Checkpoint) -> Sequence[Dropped]:
        return ()

    def tables(self) -> Sequence[Table]:
        return [ORDERS]

    def stream(self, checkpoint: Checkpoint, open_spool: OpenSpool) -> Tape:
        return self

    def chunks(self) -> Tape:
        return self

    def doctor(self) -> Sequence[Finding]:
        return ()

    def continues(self, newest: Callable[[], Checkpoint], log_id: str) -> Sequence[Finding]:
        return ()

    def status(self, acknowledged: Position | None, log_id: str = "") -> SourceStatus:
        return SourceStatus(None, None, {})

    def fileno(self) -> int:
        return -1

    def poll(self) -> Sequence[StreamEvent]:
        events, self.coming = self.coming, []
        return events

    @property
    def ready(self) -> bool:
        return self.busy

    def acknowledge(self, position: Position) -> None:
        assert position in self._log.returned, f"{position} was acknowledged, no sync has returned it"
        assert position.text > max((p.text for p in self.acknowledged), default=""), (
            f"{position} was acknowledged after {self.acknowledged}"
        )
        self.acknowledged.append(position)

    def plan(self, table: TableId, generation: int) -> Planned:
        raise AssertionError("no table is read in these tests")

    def write_mark(self, token: Token) -> None:
        raise AssertionError("no table is read, so no mark is written")

    def read_chunk(self, chunk: Chunk) -> ChunkRead:
        raise AssertionError("no table is read in these tests")

    def keys_where(self, table: TableId, predicate: str, keys_max: int) -> KeySet:
        raise AssertionError("these tests request no rows")

    def snapshot(self) -> Visibility:
        return XidSnapshot(1, 1)

    def heartbeat(self) -> None:
        raise AssertionError("no time passes that would ask for one")

    def close(self) -> None:
        pass


class Stage:
    """An attempt over a tape, whose threads advance one step at a time when the test lets them. `play` runs a script:
    at each `yield` the loop turns once."""

    def __init__(self) -> None:
        self.steps = Steps()
        self.log = Pausing(Memory(), self.steps)
        self.tape = Tape(self.log)
        self._attempt = Attempt(
            self.tape,
            self.log,
            log_id=self.log.log_id,
            epoch=self.log.epoch,
            limits=Limits(backfill_new=False),
            orders=Orders(),
            pace=LoopIntervals(heartbeat_s=1e9, tables_look_s=1e9),
            requests=SimpleQueue(),
            waker=Silent(),
            on_event=lambda _, __: None,
            threads=self.steps,
            clock=self.log.monotonic_s,
        )

    def commit(self, *numbers: int) -> None:
        self.tape.coming += [insert(number) for number in numbers]

    def sync_on(self) -> None:
        """Let the syncing thread run to its next pause."""
        self.steps.workers[SYNC].go()

    def play(self, script: Callable[[Stage], Iterator[None]]) -> None:
        playing = script(self)
        self._attempt.run(lambda: next(playing, self) is self)

    def close(self) -> None:
        self._attempt.close()


@pytest.fixture
def stage() -> Iterator[Stage]:
    made = Stage()
    yield made
    made.close()


def test_nothing_is_acknowledged_before_its_sync_has_returned(stage: Stage) -> None:
    """The server drops log that it believes cdcflow has: an early acknowledgement loses data in the next power cut. No
    kill of the process shows it, because the system keeps what the process wrote."""
    told = stage.tape.acknowledged

    def script(on: Stage) -> Iterator[None]:
        on.commit(1)
        yield
        on.commit(2)
        yield
        assert on.log.cuts == [position_of(1), position_of(2)]
        assert told == [], "cut, and no sync has begun"
        on.sync_on()
        yield
        assert told == [], "a sync has begun"
        on.sync_on()
        on.commit(3)
        yield
        assert on.log.checkpoint.position == position_of(2)
        assert told == [], "durable, but the sync has not returned"
        on.sync_on()
        yield
        assert told == [position_of(2)], "3 was cut after that sync began"

    stage.play(script)
    assert told == [position_of(2), position_of(3)], "it ends when all is durable and acknowledged"


def test_what_a_quick_disk_has_is_acknowledged_in_the_same_turn(stage: Stage) -> None:
    """The loop itself syncs there, and then a source with a small log must not wait for the next turn."""

    def script(on: Stage) -> Iterator[None]:
        on.log.takes_s = 0.0
        for number in (1, 2, 3):
            on.commit(number)
            yield
            while number == 1 and not on.log.returned:
                on.sync_on()
        assert on.tape.acknowledged[-1] == position_of(3)
        assert on.log.returned == [position_of(1), position_of(2), position_of(3)]

    stage.play(script)


def test_acknowledged_position_never_decreases(stage: Stage) -> None:
    """A sync in another thread that returns late must not take back a later acknowledgement: no server accepts that."""
    told = stage.tape.acknowledged

    def script(on: Stage) -> Iterator[None]:
        on.log.takes_s = 0.0
        on.commit(1)
        yield
        while not on.log.returned:
            on.sync_on()
        on.commit(2)
        on.tape.busy = True  # so that the loop leaves the sync to the thread
        yield
        on.sync_on()
        on.sync_on()
        on.tape.busy = False  # the disk is quick: the loop would now sync by itself
        on.commit(3)
        yield
        assert told == [position_of(1)], "2 is durable, but its sync has not returned"
        on.sync_on()
        yield

    stage.play(script)
    assert told == [position_of(1), position_of(2), position_of(3)]


def test_position_without_rows_is_durable_before_it_is_acknowledged(stage: Stage) -> None:
    """On an idle table only the position moves: that is a promise to the server too."""

    def script(on: Stage) -> Iterator[None]:
        on.tape.coming.append(Advanced(position_of(7)))
        yield
        assert on.tape.acknowledged == []
        while not on.log.returned:
            on.sync_on()
        yield
        assert on.tape.acknowledged == [position_of(7)]

    stage.play(script)
