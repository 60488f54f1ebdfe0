"""Which offset a cut, a position or a commit time means, of logs as the sink seals them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow as pa
import pytest

from cdcflow.errors import ConfigurationError, HistoryLost
from cdcflow.log.files.layout import Layout
from cdcflow.log.files.parquet import columns_of
from cdcflow.log.maintenance.retention import ExpiryRule, LogRetention
from cdcflow.log.read.moments import clock_of, offset_before, offset_of_cut, offset_of_position, sealed_checkpoint
from cdcflow.log.read.reader import read_transactions
from cdcflow.model.change import reads
from cdcflow.model.position import Position, SourceIdentity
from cdcflow.sinks.files.log import FileLog
from cdcflow.testing.sinks import COMMIT_TS, ORDERS, Writer, orders

IDENTITY = SourceIdentity("postgres", "7301", "shop", "1")
SEGMENTS, ROWS = 4, 3
"""Segments of two transactions each, the first of one row and the second of `ROWS` - 1."""


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    """Offsets 1-3, 4-6, 7-9 and 10-12 sealed, two cuts each; transactions 0/10, 0/11, 0/20, …; 13 in the journal."""
    log = FileLog.open(tmp_path / "log", IDENTITY)
    writer = Writer.of(log)
    for number in range(1, SEGMENTS + 1):
        writer.put(orders(number, xid=16 * number))
        writer.put(orders(100 + number, 200 + number, xid=16 * number + 1))
        log.roll()
        log.seal_pending()
    writer.put(orders(9, xid=16 * (SEGMENTS + 1)))
    return Layout(tmp_path / "log")


def known(layout: Layout) -> list[tuple[int, int, str]]:
    """Last offset, clock and position of every sealed transaction, from its header."""
    last = sealed_checkpoint(layout).next_offset - 1
    found = [row for table in read_transactions(layout, 1, last) for row in table.to_pylist()]
    return [(row["last_offset"], clock_of(row["commit_clock"]), row["position"]) for row in found]


def test_every_time_means_what_was_committed_before_it(layout: Layout) -> None:
    """Compared with reading all headers: one wrong step of the binary search would lose, or repeat, a transaction."""
    headers = known(layout)
    assert len(headers) == 2 * SEGMENTS
    for clock in range(COMMIT_TS - 2, headers[-1][1] + 3):
        expected = max((last for last, its, _ in headers if its < clock), default=0)
        assert offset_before(layout, clock) == expected


def test_every_position_means_what_was_committed_up_to_it(layout: Layout) -> None:
    """The same for positions, also those between two transactions."""
    headers = known(layout)
    for number in range(1, 16 * SEGMENTS + 2):
        expected = max((last for last, _, text in headers if int(text[2:], 16) <= number), default=0)
        assert offset_of_position(layout, f"0/{number:X}") == expected


@pytest.mark.spread(1)
@pytest.mark.parametrize("sealed", [0, 1, 3, 6])
def test_rows_of_a_backfill_do_not_disturb_the_search_for_a_position(tmp_path: Path, sealed: int) -> None:
    """Their positions show when they were read, and are before and after those of the transactions around them."""
    log = FileLog.open(tmp_path / "log", IDENTITY)
    writer = Writer.of(log)
    ends: list[tuple[int, int]] = []  # of the source's transactions: position, offset before it
    for number, read_at in enumerate([20, 90, 10, 16, 70, 1], 1):
        chunk = pa.RecordBatch.from_pydict({"id": [number, 50 + number], "note": ["r", "r"]}, ORDERS.row_schema)
        ends.append((16 * number, int(writer.checkpoint.next_offset) + 1))
        writer.put(reads(ORDERS, [chunk], Position(f"0/{read_at:X}"), COMMIT_TS), orders(number, xid=16 * number))
        if number <= sealed:
            log.roll()
            log.seal_pending()
    layout = Layout(tmp_path / "log")
    last = int(writer.checkpoint.next_offset) - 1
    begins = int(sealed_checkpoint(layout).next_offset)
    for position in range(1, 16 * 6 + 1):
        expected = next((before for its, before in ends if its > position), last)
        assert offset_of_position(layout, f"0/{position:X}", read_transactions(layout, begins)) == expected, position
    log.close()


def test_transactions_after_the_sealed_ones_count_where_they_are_given(layout: Layout) -> None:
    """A caller that reads the journal too resolves points in time in it by the same rule."""
    tail = list(read_transactions(layout, 13))
    newest = clock_of(tail[-1].column("commit_clock")[-1].as_py())
    assert offset_before(layout, newest + 1) == 12
    assert offset_before(layout, newest + 1, tail) == 13
    assert offset_before(layout, newest, tail) == 12
    assert offset_of_position(layout, "0/50", tail) == 13
    assert offset_of_position(layout, "0/60", tail, reached="0/60") == 13  # no transaction since, but a heartbeat
    with pytest.raises(ConfigurationError, match="has reached 0/60"):
        offset_of_position(layout, "0/61", tail, reached="0/60")
    with pytest.raises(ConfigurationError, match="has reached 0/41"):
        offset_of_position(layout, "0/50")


def test_cuts_that_end_segments_are_found_also_after_compaction(layout: Layout) -> None:
    """A merge published them, so readers will request them; compaction keeps them as seams."""
    before = {cut: offset_of_cut(layout, cut) for cut in range(0, 2 * SEGMENTS + 1, 2)}
    assert before == {0: 0, 2: 3, 4: 6, 6: 9, 8: 12}
    between = r"cut 3: that cut is inside .*\n  name cut 2 \(offset 3\) or cut 4 \(offset 6\)"
    with pytest.raises(ConfigurationError, match=between):
        offset_of_cut(layout, 3)
    with pytest.raises(ConfigurationError, match="sealed up to cut 8"):
        offset_of_cut(layout, 9)
    LogRetention(layout, grace_s=0).compact()
    assert len(layout.segment_offsets()) < SEGMENTS
    assert {cut: offset_of_cut(layout, cut) for cut in before} == before
    with pytest.raises(ConfigurationError, match=between):
        offset_of_cut(layout, 3)
    test_every_time_means_what_was_committed_before_it(layout)


def test_expired_positions_name_the_first_offset_left(layout: Layout) -> None:
    """Read from the wrong place, a log would show some changes as if they were all."""
    headers = known(layout)
    LogRetention(layout, grace_s=0).expire(ExpiryRule(before_cut=5))
    assert layout.segment_offsets()[0] == (7, 9)
    assert offset_before(layout, headers[4][1]) == 6  # exactly the first remaining one: nothing of it has expired
    asks: list[Callable[[], int]] = [
        lambda: offset_before(layout, headers[4][1] - 1),
        lambda: offset_of_cut(layout, 2),
        lambda: offset_of_cut(layout, 0),
        lambda: offset_of_position(layout, "0/21"),
    ]
    for ask in asks:
        with pytest.raises(HistoryLost, match="first offset left is 7"):
            ask()


def test_positions_of_another_server_are_not_guessed_at(layout: Layout) -> None:
    """Two servers' positions have no common order."""
    for position in ("binlog.000003:77", "somewhere"):
        with pytest.raises(ConfigurationError, match="commit time"):
            offset_of_position(layout, position)


def test_one_transactions_file_is_read_however_many_segments_there_are(
    layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A log may have tens of thousands of segments."""
    read: list[object] = []

    def counted(path: Path, columns: Sequence[str] | None = None) -> pa.Table:
        read.append(path)
        return columns_of(path, columns)

    monkeypatch.setattr("cdcflow.log.read.moments.columns_of", counted)
    offset_before(layout, COMMIT_TS + 4)
    assert len(read) == 1
