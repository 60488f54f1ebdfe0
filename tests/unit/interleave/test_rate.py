"""The rate limit: how long a table rests after a chunk, whatever happened before."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa

from cdcflow.capture.interleave.backlog import Backlog
from cdcflow.capture.interleave.chunk_choice import ChunkChoice
from cdcflow.capture.interleave.limits import Limits
from cdcflow.capture.interleave.messages import Adjust, Chunk, ChunkRead
from cdcflow.capture.interleave.progress import Progress, TableProgress
from cdcflow.model.change import reads
from cdcflow.model.position import Offset, Position, Token
from cdcflow.model.table import Column, Table, TableId
from cdcflow.model.types import ColumnType
from cdcflow.sources.postgres.xid_snapshot import XidSnapshot

ORDERS = Table(TableId("public", "orders"), 16400, (Column("id", 1, ColumnType("bigint", pa.int64())),), ("id",))
SECOND = 1_000_000
HOUR = 3600 * SECOND


class Reading:
    """A table that may be read at 100 rows per second, in chunks of 50 rows."""

    def __init__(self, rate: int = 100) -> None:
        limits = Limits(rows_per_second_max=rate, chunk_rows_max=50)
        known = TableProgress("reading", 1, Offset(1), ORDERS.incarnation, units=1_000_000, plan="all", size=50)
        self.backlog = Backlog(Progress({ORDERS.id: known}), {ORDERS.id: ORDERS}, limits, Offset(1), {})
        self.choice = ChunkChoice(self.backlog)

    def chunk(self) -> Chunk:
        chunk = self.choice.chunk(ORDERS.id, Token("1/1/low"))
        assert chunk is not None
        return chunk

    def reads(self, now_us: int, rows: int = 50) -> None:
        chunk = self.chunk()
        run = reads(ORDERS, [pa.record_batch([pa.array(np.arange(rows))], schema=ORDERS.row_schema)], Position("0"), 0)
        read = ChunkRead(chunk, run, ORDERS, (XidSnapshot(1, 1),), str(chunk.number), chunk.number)
        self.choice.count_in(read, now_us, opened_us=now_us, held=False, live=False)

    def is_due(self, now_us: int) -> bool:
        return list(self.choice.turns(now_us)) == [ORDERS.id]


def test_a_chunk_is_paid_for_before_the_next_one() -> None:
    """50 rows at 100 a second: half a second of rest, to the microsecond."""
    reading = Reading()
    reading.reads(7)
    assert not reading.is_due(7 + SECOND // 2 - 1)
    assert reading.is_due(7 + SECOND // 2)


def test_an_idle_hour_is_no_credit() -> None:
    """After a pause the table continues at its rate: no burst makes up for the rows that were not read."""
    reading = Reading()
    reading.reads(0)
    reading.reads(HOUR)
    assert not reading.is_due(HOUR + SECOND // 2 - 1)
    assert reading.is_due(HOUR + SECOND // 2)


def test_chunks_that_were_under_way_together_are_all_paid_for() -> None:
    """A window has several chunks of a table: each adds its own time, though all arrive at once."""
    reading = Reading()
    for _ in range(3):
        reading.reads(0)
    assert not reading.is_due(SECOND + SECOND // 2 - 1)
    assert reading.is_due(SECOND + SECOND // 2)


def test_without_a_rate_there_is_no_rest() -> None:
    """0 is no limit."""
    reading = Reading(0)
    reading.reads(5)
    assert reading.is_due(5)


def test_an_operator_s_rate_wins_over_the_settings() -> None:
    """Also where it lifts the limit altogether."""
    reading = Reading()
    reading.backlog.adjust(Adjust(ORDERS.id, rows_per_second_max=10))
    reading.reads(0)
    assert not reading.is_due(5 * SECOND - 1)
    assert reading.is_due(5 * SECOND)
    reading.backlog.adjust(Adjust(ORDERS.id, rows_per_second_max=0))
    reading.reads(5 * SECOND)
    assert reading.is_due(5 * SECOND)


def test_a_chunk_never_has_more_rows_than_a_second_may_have() -> None:
    """Otherwise the rate would only hold on average, and one chunk would take a minute's rows at once."""
    reading = Reading(rate=10)
    chunk = replace(reading.chunk(), size=1000)
    run = reads(ORDERS, [pa.record_batch([pa.array(np.arange(1000))], schema=ORDERS.row_schema)], Position("0"), 0)
    read = ChunkRead(chunk, run, ORDERS, (XidSnapshot(1, 1),), "x", units_done=1000, seconds=0.01)
    reading.choice.adapt_size(read, holding=False, live=False)
    known = reading.backlog.get(ORDERS.id)
    assert known is not None
    assert known.size == 10


def test_a_table_that_failed_rests_for_the_retry_pause() -> None:
    """And not for longer."""
    reading = Reading()
    reading.choice.wait(ORDERS.id, 1000)
    pause = Limits().retry_pause_us
    assert not reading.is_due(1000 + pause - 1)
    assert reading.is_due(1000 + pause)
