"""Reading the journals while the daemon writes them: nothing twice, nothing skipped, nothing too early."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from cdcflow.errors import InvariantViolated
from cdcflow.log.files.layout import Layout
from cdcflow.log.format.journal import CutMark, Record
from cdcflow.log.format.rows import ShapeRows
from cdcflow.log.read.journal_follower import Following
from cdcflow.model.position import SourceIdentity
from cdcflow.sinks.files.log import FileLog
from cdcflow.testing.sinks import ORDERS, Writer, changes, orders

IDENTITY = SourceIdentity("postgres", "7301", "shop", "1")


@pytest.fixture
def log(tmp_path: Path) -> FileLog:
    return FileLog.open(tmp_path / "log", IDENTITY)


@pytest.fixture
def layout(log: FileLog) -> Layout:
    return Layout(log.path)


def offsets(records: list[Record]) -> list[int]:
    return [int(o) for r in records if isinstance(r, ShapeRows) for o in r.offsets]


def cuts(records: list[Record]) -> list[int]:
    return [r.checkpoint.cut for r in records if isinstance(r, CutMark)]


def test_every_record_is_returned_once_over_all_journals(log: FileLog, layout: Layout) -> None:
    """A record that is read twice is published twice, and one that is skipped never reaches a topic."""
    writer = Writer.of(log)
    writer.put(orders(1, 2))
    following = Following(layout, 1)
    first = list(following.read())
    assert (offsets(first), cuts(first)) == ([1, 2], [1])
    assert list(following.read()) == []
    writer.put(orders(3))
    assert log.roll()
    writer.put(orders(4), orders(5))
    assert log.roll()
    writer.put(orders(6))
    then = list(following.read())
    assert (offsets(then), cuts(then)) == ([3, 4, 5, 6], [2, 3, 4])
    assert list(following.read()) == []
    following.close()


def test_records_that_no_whole_cut_covers_are_not_returned_yet(log: FileLog, layout: Layout) -> None:
    """A crash may remove it again, and what was published cannot be undone."""
    writer = Writer.of(log)
    writer.put(orders(1))
    journal = layout.journal(1)
    end = journal.stat().st_size
    writer.put(orders(2, 3))
    content = journal.read_bytes()
    journal.write_bytes(content[:end])
    following = Following(layout, 1)
    for size in (end, end + 1, end + 60, len(content) - 1):
        journal.write_bytes(content[:size])
        assert 2 not in offsets(list(following.read()))
    journal.write_bytes(content)
    assert offsets(list(following.read())) == [2, 3]
    assert offsets(list(Following(layout, 1).read())) == [1, 2, 3]


def test_new_journal_without_a_cut_returns_no_records(log: FileLog, layout: Layout) -> None:
    """The position of the last cut in the previous journal means nothing in this one."""
    writer = Writer.of(log)
    writer.put(orders(*range(1, 50)))
    following = Following(layout, 1)
    assert len(offsets(list(following.read()))) == 49
    log.roll()
    writer.append(orders(50))
    log.sync()
    assert layout.journal_offsets() == [1, 50]
    assert list(following.read()) == []
    writer.cut()
    log.sync()
    assert offsets(list(following.read())) == [50]


def test_rows_of_a_spool_are_returned_where_it_is_attached(log: FileLog, layout: Layout) -> None:
    """The rows of a large transaction are in a separate file, but their place in the order is in the journal."""
    writer = Writer.of(log)
    writer.append(orders(1))
    batch = changes(ORDERS, [{"id": 8}, {"id": 9}])
    pieces = [((batch,), np.array([7, 8], np.uint64))]
    writer.put(writer.write_spool(7, pieces, aborted=[8], rows=1), orders(3))
    found = [r for r in Following(layout, 1).read() if isinstance(r, ShapeRows)]
    assert [int(o) for r in found for o in r.offsets] == [1, 2, 3]
    assert [r.rows.column("id").to_pylist() for r in found] == [[1], [8], [3]]


def test_following_begins_in_the_journal_that_has_the_offset(log: FileLog, layout: Layout) -> None:
    """An earlier journal would be read in vain, and with a later one rows would be skipped."""
    writer = Writer.of(log)
    for number in range(3):
        writer.put(orders(2 * number + 1, 2 * number + 2))
        log.roll()
    writer.put(orders(7))
    assert layout.journal_offsets() == [1, 3, 5, 7]
    assert [offsets(list(Following(layout, at).read()))[0] for at in (1, 2, 3, 4, 5, 6, 7, 8)] == [
        1,
        1,
        3,
        3,
        5,
        5,
        7,
        7,
    ]
    with pytest.raises(FileNotFoundError):
        Following(layout, 0)


def test_journal_that_was_sealed_in_between_is_read_as_a_segment(log: FileLog, layout: Layout) -> None:
    """A reader that had not finished it finds its rows in a segment, and does not skip them."""
    writer = Writer.of(log)
    writer.put(orders(1))
    behind = Following(layout, 1)
    assert offsets(list(behind.read())) == [1]
    writer.put(orders(2))
    log.roll()
    writer.put(orders(3))
    log.roll()
    writer.put(orders(4))
    log.seal_pending()
    assert layout.journal_offsets() == [4]
    with pytest.raises(FileNotFoundError):
        list(behind.read())
    with pytest.raises(FileNotFoundError):
        Following(layout, 3)
    assert offsets(list(Following(layout, 4).read())) == [4]


def test_journal_of_a_stale_writer_is_not_followed(log: FileLog, layout: Layout, tmp_path: Path) -> None:
    """Its rows do not count: the newer process has assigned these offsets to other rows."""
    writer = Writer.of(log)
    writer.put(orders(1))
    following = Following(layout, 1)
    list(following.read())
    log.close()
    other = FileLog.open(tmp_path / "other", IDENTITY)
    stale = Writer.of(other)
    stale.put(orders(1))
    other.roll()
    stale.put(orders(20))
    again = FileLog.open(log.path, IDENTITY)  # a higher epoch, and its own journal
    taken = Writer.of(again)
    taken.put(orders(2))
    assert offsets(list(following.read())) == [2]
    taken.put(orders(3))
    name = layout.journal(2)
    name.unlink()
    (Layout(other.path).journal(2)).rename(name)
    with pytest.raises(FileNotFoundError):
        list(following.read())


def test_journal_of_an_older_process_does_not_continue_this_one(log: FileLog, layout: Layout, tmp_path: Path) -> None:
    """It names the right journal before it, and was written by a process that had lost the log already."""
    other = FileLog.open(tmp_path / "other", IDENTITY)
    stale = Writer.of(other)
    stale.put(orders(1))
    other.roll()
    stale.put(orders(20))
    log.close()
    again = FileLog.open(log.path, IDENTITY)
    Writer.of(again).put(orders(1))
    assert again.epoch > other.epoch
    following = Following(layout, 1)
    assert offsets(list(following.read())) == [1]
    Layout(other.path).journal(2).rename(layout.journal(2))
    with pytest.raises(FileNotFoundError, match="no journal continues this one"):
        list(following.read())


def test_damage_before_a_whole_cut_is_reported_as_an_error(log: FileLog, layout: Layout) -> None:
    """Rows that were never returned and are unreadable now must not be skipped."""
    writer = Writer.of(log)
    writer.put(orders(1))
    following = Following(layout, 1)
    assert offsets(list(following.read())) == [1]
    at = layout.journal(1).stat().st_size
    writer.put(orders(2))
    writer.put(orders(3))
    list(Following(layout, 1).read())
    following._newest_cut()  # the cut has been seen; then the disk loses what is in front of it
    content = bytearray(layout.journal(1).read_bytes())
    content[at + 20] ^= 0xFF
    layout.journal(1).write_bytes(content)
    with pytest.raises(InvariantViolated, match="in front of a whole cut"):
        list(following.read())
    content[:64] = bytes(64)
    layout.journal(1).write_bytes(content)
    with pytest.raises(InvariantViolated, match=r"0001\.journal: its header is damaged"):
        Following(layout, 1)
