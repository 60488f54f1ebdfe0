"""How large the next chunk is: as large as allowed while no transaction waits for it, small while one does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from cdcflow.capture.interleave.backlog import Backlog
from cdcflow.capture.interleave.chunk_choice import ChunkChoice
from cdcflow.capture.interleave.delivered import Delivered
from cdcflow.capture.interleave.limits import Limits, ReadingPace
from cdcflow.capture.interleave.messages import Chunk, ChunkRead, Planned
from cdcflow.capture.interleave.progress import Progress
from cdcflow.capture.interleave.work import QUIET_WINDOWS_MIN
from cdcflow.model.change import KeySet, Run, reads
from cdcflow.model.position import Offset, Position, Token
from cdcflow.model.table import Column, Table, TableId
from cdcflow.model.types import ColumnType
from cdcflow.sources.postgres.xid_snapshot import XidSnapshot

ORDERS = Table(TableId("public", "orders"), 16400, (Column("id", 1, ColumnType("bigint", pa.int64())),), ("id",))
SECONDS_PER_UNIT = 0.001


class Reading:
    """A table of a million units, read window after window at a steady speed."""

    def __init__(self) -> None:
        limits = Limits(chunk_time_target_s=0.2, chunk_time_live_s=0.05, chunk_time_busy_s=0.01, chunk_rows_max=1 << 40)
        self.backlog = Backlog(Progress.from_json({}), {ORDERS.id: ORDERS}, limits, Offset(1), {})
        self.choice = ChunkChoice(self.backlog)
        asked = self.choice.plan(ORDERS.id, Offset(1), Delivered(np.empty(0, np.uint64), 1))
        assert asked is not None
        self.choice.accept_plan(Planned(ORDERS.id, asked.generation, "all", 16, 1_000_000, ORDERS))
        self.units = 0

    def next_chunk(self) -> Chunk:
        chunk = self.choice.chunk(ORDERS.id, Token("1/1/low"))
        assert chunk is not None
        return chunk

    def window(
        self,
        *,
        holding: bool = False,
        held: bool = False,
        live: bool = False,
        live_later: bool = False,
        lag_s: float = 0.0,
    ) -> int:
        """One window; return the size of the chunk after it. `lag_s`: how late its marks arrive."""
        chunk = self.next_chunk()
        self.units += chunk.size
        rows = pa.record_batch([pa.array(np.arange(chunk.size))], schema=ORDERS.row_schema)
        run: Run = reads(ORDERS, [rows], Position("0"), 0)
        seconds = chunk.size * SECONDS_PER_UNIT
        snapshot = XidSnapshot(1, 1, frozenset())
        read = ChunkRead(chunk, run, ORDERS, (snapshot,), str(self.units), self.units, seconds=seconds)
        self.choice.adapt_size(read, holding=holding, live=live or holding)
        closed_us = int((seconds + lag_s) * 1e6)
        seen = {"held": held or holding, "live": live or live_later or holding or held}
        self.choice.count_in(read, closed_us, opened_us=0, **seen)
        known = self.backlog.get(ORDERS.id)
        assert known is not None
        return known.size


def test_chunks_grow_to_their_time_while_no_transaction_waits() -> None:
    """By twice at most, so that one fast chunk does not ask for a huge one."""
    reading = Reading()
    assert [reading.window() for _ in range(6)] == [32, 64, 128, 200, 200, 200]


def test_chunk_has_the_share_of_the_time_that_it_may_take() -> None:
    """So it can read in slices. A chunk that took hours would hold changes for as long."""
    reading = Reading()
    for share, told in ((1.0, 1.0), (0.5, 0.5), (1 / 8, 1 / 8), (1 / 1024, 1 / 8)):
        reading.backlog.pace = ReadingPace(share=share)
        assert reading.next_chunk().share == told


def test_chunks_are_of_the_size_for_live_transactions_below_the_full_pace() -> None:
    """Slices spare other transactions; only those of the chunk's own table need it shorter."""
    reading = Reading()
    reading.backlog.pace = ReadingPace(share=1 / 64)
    assert [reading.window() for _ in range(4)] == [32, 50, 50, 50]
    assert [reading.window(holding=True) for _ in range(2)][-1] == 10


@pytest.mark.parametrize(
    ("open_us", "idle_us", "share", "pause_us"),
    [(1000, 0, 1 / 4, 3000), (1000, 750, 1 / 4, 0), (1000, 600, 1 / 4, 600), (1000, 999, 1 / 4, 0), (1000, 0, 1, 0)],
)
def test_pauses_within_a_window_count(open_us: int, idle_us: int, share: float, pause_us: int) -> None:
    """Otherwise a table that is read in slices would be read at the square of the share."""
    assert ReadingPace(share=share).pause_us_after(open_us, idle_us) == pause_us


def test_capture_that_lags_reads_larger_chunks() -> None:
    """A table of 200,000 rows was read as long as ten minutes of load lasted: chunks of 10 ms, one in many seconds,
    since each window waited for all that had been written before its marks."""
    reading = Reading()
    while reading.window(holding=True, lag_s=0.1) > 10:
        pass
    sizes = [reading.window(holding=True, lag_s=8) for _ in range(6)]
    assert max(sizes) >= 1_500, "a quarter of the eight seconds that its transactions wait in any case"
    assert max(sizes) <= 2_000
    for _ in range(3):
        last = reading.window(holding=True, lag_s=0.1)
    assert last == 10, "the capture has caught up, and transactions wait for the chunk again"


def test_one_slow_window_makes_no_chunk_larger() -> None:
    """A busy machine may let any window wait: only if the latest three were slow does the capture lag."""
    reading = Reading()
    while reading.window(holding=True, lag_s=0.1) > 10:
        pass
    assert [reading.window(holding=True, lag_s=lag) for lag in (0.1, 20, 20, 0.1)] == [10] * 4


def test_chunk_that_live_transactions_wait_for_makes_the_next_one_short_at_once() -> None:
    """Live capture has priority: the wait is over after one window, not after several smaller ones."""
    reading = Reading()
    while reading.window() < 200:
        pass
    assert reading.window(holding=True) == 10
    assert reading.window(holding=True) == 10


def test_chunks_stay_short_until_it_has_been_quiet_for_a_while() -> None:
    """Otherwise a table with occasional writes would be delayed each time."""
    reading = Reading()
    reading.window(holding=True)
    assert {reading.window() for _ in range(QUIET_WINDOWS_MIN - 1)} == {10}
    assert reading.window() == 20


def test_transactions_that_arrive_after_the_chunk_was_read_count_too() -> None:
    """They wait for the high mark as well."""
    reading = Reading()
    reading.window(held=True)
    assert reading.window() == 10


def test_chunks_are_of_middle_length_while_other_tables_are_written_to() -> None:
    """Live transactions then wait only for the chunk to be written to the log and to the disk."""
    reading = Reading()
    while reading.window() < 200:
        pass
    assert not reading.next_chunk().single_connection
    assert reading.window(live=True) == 50
    assert reading.next_chunk().single_connection
    assert {reading.window() for _ in range(QUIET_WINDOWS_MIN - 1)} == {50}
    assert reading.window() == 100
    assert not reading.next_chunk().single_connection


def test_chunk_that_may_take_a_share_of_the_time_is_read_through_one_connection() -> None:
    """Several connections at once would load the source more than the share allows."""
    reading = Reading()
    while reading.next_chunk().single_connection:
        reading.window()
    reading.backlog.pace = ReadingPace(share=0.5)
    assert reading.next_chunk().single_connection


def test_live_transactions_after_the_chunk_was_read_count_too() -> None:
    """Much of the time in which they can arrive is between a chunk's read and its high mark."""
    reading = Reading()
    while reading.window() < 200:
        pass
    reading.window(live_later=True)
    assert reading.window() == 50


def test_transactions_that_wait_for_a_chunk_weigh_more_than_unrelated_ones() -> None:
    """A table that is written to has short chunks, whatever else is written; after that, chunks of middle length."""
    reading = Reading()
    reading.window(holding=True)
    assert {reading.window(live=True) for _ in range(QUIET_WINDOWS_MIN - 1)} == {10}
    assert [reading.window(live=True) for _ in range(4)] == [20, 40, 50, 50]


@pytest.mark.parametrize(
    ("rows_max", "rate", "expected"), [(1 << 40, 0, 256), (29_100, 0, 100), (100, 0, 1), (1 << 40, 2910, 10)]
)
def test_first_chunk_has_no_more_rows_than_are_allowed(rows_max: int, rate: int, expected: int) -> None:
    """Nothing is measured yet, so it is bounded by the rows that a unit can have at most."""
    limits = Limits(chunk_rows_max=rows_max, rows_per_second_max=rate)
    backlog = Backlog(Progress.from_json({}), {ORDERS.id: ORDERS}, limits, Offset(1), {})
    ChunkChoice(backlog).plan(ORDERS.id, Offset(1), Delivered(np.empty(0, np.uint64), 1))
    ChunkChoice(backlog).accept_plan(Planned(ORDERS.id, 1, "all", 256, 1_000_000, ORDERS, rows_per_unit_max=291))
    known = backlog.get(ORDERS.id)
    assert known is not None
    assert known.size == expected


def test_keys_that_a_chunk_did_not_read_are_read_by_the_next_ones() -> None:
    """Their rows are so large that fewer fit into memory: they must not be lost, and the next chunk requests fewer."""
    reading = Reading()
    reading.window()
    keys = KeySet(pa.table({"id": pa.array(range(100), pa.int64())}))
    reading.backlog.read_keys(ORDERS.id, keys, Offset(1))
    known = reading.backlog.get(ORDERS.id)
    assert known is not None
    read_all = ChunkRead(reading.next_chunk(), reads(ORDERS, [], Position("0"), 0), ORDERS, (), "e", 1, exhausted=True)
    reading.choice.count_in(read_all, 0, opened_us=0, held=False, live=False)
    asked: list[int] = []
    found: list[int] = []
    while not reading.choice.is_read(ORDERS.id):
        chunk = reading.next_chunk()
        assert chunk.keys is not None
        asked.append(len(chunk.keys))
        taken, left = chunk.keys.take(30)
        found += taken.keys.column("id").to_pylist()
        run = reads(ORDERS, [], Position("0"), 0)
        read = ChunkRead(chunk, run, ORDERS, (), chunk.after, keys_left=left if len(left) else None)
        reading.choice.count_in(read, 0, opened_us=0, held=False, live=False)
    assert asked == [100, 30, 38, 10], "as many as fitted, then slowly more"
    assert sorted(found) == list(range(100))


def test_unit_is_one_row_unless_the_source_specifies_otherwise() -> None:
    """A first chunk of keys has as many rows as are allowed, and no fewer."""
    backlog = Backlog(Progress.from_json({}), {ORDERS.id: ORDERS}, Limits(chunk_rows_max=48), Offset(1), {})
    ChunkChoice(backlog).plan(ORDERS.id, Offset(1), Delivered(np.empty(0, np.uint64), 1))
    ChunkChoice(backlog).accept_plan(Planned(ORDERS.id, 1, "all", 256, 1_000_000, ORDERS))
    known = backlog.get(ORDERS.id)
    assert known is not None
    assert known.size == 48


@pytest.mark.parametrize(
    ("lowered", "rows_max"), [(Limits(chunk_rows_max=10), 10), (Limits(rows_per_second_max=7), 7)], ids=["rows", "rate"]
)
def test_limit_that_is_lowered_while_a_table_is_read_counts_for_its_next_chunk(lowered: Limits, rows_max: int) -> None:
    backlog = Backlog(Progress.from_json({}), {ORDERS.id: ORDERS}, Limits(), Offset(1), {})
    ChunkChoice(backlog).plan(ORDERS.id, Offset(1), Delivered(np.empty(0, np.uint64), 1))
    ChunkChoice(backlog).accept_plan(Planned(ORDERS.id, 1, "all", 256, 1_000_000, ORDERS))
    backlog.use(lowered)
    chunk = ChunkChoice(backlog).chunk(ORDERS.id, Token("1/1/low"))
    assert chunk is not None
    assert chunk.rows_max == rows_max


@pytest.mark.parametrize("size", [1, 2, 3, 8])
@pytest.mark.parametrize("rows_of_unit", [100, 300, 501, 1000, 5000])
@pytest.mark.parametrize("rows_max", [1000, 3000])
def test_a_chunk_has_no_more_units_than_their_rows_allow(size: int, rows_of_unit: int, rows_max: int) -> None:
    """Measured by the previous one, however few units that had; at least one unit is read."""
    limits = Limits(chunk_rows_max=rows_max)
    backlog = Backlog(Progress.from_json({}), {ORDERS.id: ORDERS}, limits, Offset(1), {})
    ChunkChoice(backlog).plan(ORDERS.id, Offset(1), Delivered(np.empty(0, np.uint64), 1))
    ChunkChoice(backlog).accept_plan(Planned(ORDERS.id, 1, "all", size, 1_000_000, ORDERS))
    chunk = ChunkChoice(backlog).chunk(ORDERS.id, Token("1/1/low"))
    assert chunk is not None
    rows = pa.record_batch([pa.array(np.arange(size * rows_of_unit))], schema=ORDERS.row_schema)
    read = ChunkRead(chunk, reads(ORDERS, [rows], Position("0"), 0), ORDERS, (), str(size), size, seconds=1e-9)
    ChunkChoice(backlog).adapt_size(read, holding=False, live=False)
    known = backlog.get(ORDERS.id)
    assert known is not None
    assert known.size == max(1, min(2 * size, rows_max // rows_of_unit))


def test_chunk_is_a_range_unless_its_kind_specifies_otherwise() -> None:
    """A source reads what the kind specifies."""
    chunk = Chunk(ORDERS.id, 1, 1, "all", None, size=1, low=Token("1/1/low"))
    assert (chunk.kind, chunk.keys, chunk.single_connection) == ("range", None, False)


def read_while_busy(
    reading: Reading, seconds_of: Callable[[Chunk], float], opening_s: float, windows: int
) -> list[int]:
    """Read while each window has a transaction that waits for it; return the sizes of the chunks."""
    sizes = []
    for _ in range(windows):
        chunk = reading.next_chunk()
        sizes.append(chunk.size)
        reading.units += chunk.size
        rows = pa.record_batch([pa.array(np.arange(chunk.size))], schema=ORDERS.row_schema)
        run: Run = reads(ORDERS, [rows], Position("0"), 0)
        snapshot = XidSnapshot(1, 1, frozenset())
        read = ChunkRead(chunk, run, ORDERS, (snapshot,), str(reading.units), reading.units, seconds=seconds_of(chunk))
        read = replace(read, opening_seconds=opening_s)
        reading.choice.adapt_size(read, holding=True, live=True)
        reading.choice.count_in(read, 0, opened_us=0, held=True, live=True)
    return sizes


def test_chunks_of_a_distant_source_have_more_than_a_row_although_it_is_written_to() -> None:
    """One round trip takes longer than a chunk should: smaller chunks are no quicker, and would take days."""
    round_trip_s, unit_s = 0.025, 0.0001
    seconds_of = lambda chunk: round_trip_s + chunk.size * unit_s  # noqa: E731
    sizes = read_while_busy(Reading(), seconds_of, 3 * round_trip_s, 40)
    assert min(sizes[-20:]) > 100
    assert max(map(unit_s.__mul__, sizes)) <= 3 * round_trip_s, "rows take no longer than opening the table"


def test_chunks_grow_again_on_a_machine_that_lets_half_of_the_reads_wait() -> None:
    """Shrinking more after a slow read than growing after a fast one ends at one row, whatever is set."""
    clock = np.random.default_rng(7)
    unit_s, wait_s = 0.0001, 0.04
    seconds_of = lambda chunk: chunk.size * unit_s + wait_s * (clock.random() < 0.5)  # noqa: E731
    sizes = read_while_busy(Reading(), seconds_of, 0.001, 400)
    assert np.median(sizes[100:]) > 30, "of the 100 that 10 ms are enough for"
    assert max(sizes) <= 200


def test_chunk_does_not_grow_after_a_slow_one() -> None:
    """Rows that are dense again after empty pages: the fast ones before must not make chunks longer and longer."""
    reading = Reading()
    sizes = read_while_busy(reading, lambda chunk: chunk.size * 1e-6, 0.001, 8)
    grown = reading.next_chunk().size
    assert grown > 16 * sizes[0]
    dense = read_while_busy(reading, lambda chunk: chunk.size * 0.001, 0.001, 6)
    assert max(dense) == grown
    assert dense[-1] == 10
