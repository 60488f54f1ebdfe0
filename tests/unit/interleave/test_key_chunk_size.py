"""How many keys the next chunk of kind "keys" has: fewer where their rows were too large, slowly more again."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa

from cdcflow.capture.interleave.backlog import Backlog
from cdcflow.capture.interleave.chunk_choice import ChunkChoice
from cdcflow.capture.interleave.delivered import Delivered
from cdcflow.capture.interleave.limits import Limits
from cdcflow.capture.interleave.messages import ChunkRead, Planned
from cdcflow.capture.interleave.progress import Progress
from cdcflow.capture.interleave.work import Work
from cdcflow.model.change import KeySet, reads
from cdcflow.model.position import Offset, Position, Token
from cdcflow.model.table import Column, Table, TableId
from cdcflow.model.types import ColumnType
from cdcflow.sources.postgres.xid_snapshot import XidSnapshot

ORDERS = Table(TableId("public", "orders"), 16400, (Column("id", 1, ColumnType("bigint", pa.int64())),), ("id",))
KEYS_PER_CHUNK = 100


class Reading:
    """A table whose pages are read, and many of whose rows are still to be read by key."""

    def __init__(self, keys: int = 100_000) -> None:
        limits = Limits(keys_per_chunk=KEYS_PER_CHUNK)
        self.backlog = Backlog(Progress.from_json({}), {ORDERS.id: ORDERS}, limits, Offset(1), {})
        self.choice = ChunkChoice(self.backlog)
        asked = self.choice.plan(ORDERS.id, Offset(1), Delivered(np.empty(0, np.uint64), 1))
        assert asked is not None
        self.choice.accept_plan(Planned(ORDERS.id, asked.generation, "all", 1, 1, ORDERS))
        self.backlog.pause(ORDERS.id)
        self.backlog.resume(ORDERS.id, [KeySet(pa.table({"id": pa.array(range(keys))}))])
        self._count(self._chunk(), exhausted=True)

    def chunk(self, *, fits: int = 1 << 40, meanwhile: int = 0) -> int:
        """One chunk of keys; at most `fits` of its rows are read. Return how many it requested. `meanwhile`: the
        number of keys that are added while it is read."""
        read = self._chunk()
        if meanwhile:
            more = pa.array(range(1_000_000, 1_000_000 + meanwhile))
            self.backlog.read_keys(ORDERS.id, KeySet(pa.table({"id": more})), Offset(1))
        keys = read.chunk.keys
        assert keys is not None
        _, left = keys.take(fits)
        self._count(read, left if len(left) else None)
        return len(keys)

    def _chunk(self) -> ChunkRead:
        chunk = self.choice.chunk(ORDERS.id, Token("1/1/low"))
        assert chunk is not None
        run = reads(ORDERS, [], Position("0"), 0)
        return ChunkRead(chunk, run, ORDERS, (XidSnapshot(1, 1, frozenset()),), "1", 1)

    def _count(self, read: ChunkRead, left: KeySet | None = None, *, exhausted: bool = False) -> None:
        counted = replace(read, keys_left=left, exhausted=exhausted)
        self.choice.count_in(counted, 0, opened_us=0, held=False, live=False)


def test_chunk_that_got_fewer_rows_requests_that_number_the_next_time() -> None:
    """Keys that do not fit are read in vain."""
    reading = Reading()
    assert reading.chunk() == KEYS_PER_CHUNK
    assert reading.chunk(fits=4) == KEYS_PER_CHUNK
    assert reading.chunk(fits=4) == 4


def test_keys_grow_again_slowly_once_their_rows_fit() -> None:
    """One run of large rows made every later chunk small: one row per chunk, each with its window and two marks."""
    reading = Reading()
    reading.chunk(fits=1)
    assert [reading.chunk() for _ in range(6)] == [1, 2, 3, 4, 6, 8]
    sizes = [reading.chunk() for _ in range(20)]
    assert max(sizes) == sizes[-1] == KEYS_PER_CHUNK


def test_keys_of_a_window_that_held_too_much_grow_again() -> None:
    """It was abandoned because of concurrent changes, which are over."""
    reading = Reading()
    for _ in range(5):
        reading.choice.shrink_chunk(ORDERS.id)
    assert reading.chunk() == KEYS_PER_CHUNK >> 5
    assert reading.chunk() > KEYS_PER_CHUNK >> 5


def test_chunk_of_the_last_few_keys_predicts_nothing_about_more_of_them() -> None:
    """That a few rows fit does not mean that many do."""
    reading = Reading(keys=6)
    assert reading.chunk(fits=4) == 6
    assert reading.chunk(meanwhile=50) == 2
    assert reading.chunk() == 4


def test_chunk_of_keys_never_shrinks_to_zero_keys() -> None:
    """It would return without rows, and be requested again, endlessly."""
    reading = Reading()
    for _ in range(20):
        reading.choice.read_less(ORDERS.id)
    assert [reading.chunk() for _ in range(3)] == [1, 2, 3]


def test_keys_that_cannot_be_compared_are_requested_as_often_as_they_arrived() -> None:
    """Arrow finds no two nested values equal; more of them than were sent would be read needlessly, or begin the
    table again."""
    work = Work(keys_max=3)
    for number in range(4):
        work.remember(KeySet(pa.table({"id": pa.array([[number]])})))
    work.compact_at = 4
    work.remember(KeySet(pa.table({"id": pa.array([[4]])})))
    assert not work.has_more_than(5)
    assert work.has_more_than(4)
    found = [work.take_keys() for _ in range(3)]
    assert [None if k is None else k.keys.column("id").to_pylist() for k in found] == [
        [[0], [1], [2]],
        [[3], [4]],
        None,
    ]
