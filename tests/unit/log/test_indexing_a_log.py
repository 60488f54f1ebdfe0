"""The index of a log while the log grows, is compacted, expires, is interrupted by a kill, and is restored to an
earlier state."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.support.kill.disk_layer import DyingLayer, Killed
from tests.support.polling import wait_until

from cdcflow.log.disk.maintenance_lock import Busy, hold_lock
from cdcflow.log.files.layout import Layout
from cdcflow.log.index import index_files
from cdcflow.log.index.index_files import KeyIndex
from cdcflow.log.index.keyhash import hashes
from cdcflow.log.maintenance.index import BackgroundIndexing, Indexing
from cdcflow.log.maintenance.retention import ExpiryRule, LogRetention
from cdcflow.model.position import SourceIdentity
from cdcflow.sinks.files.log import FileLog
from cdcflow.testing.sinks import ORDERS, Writer, orders

IDENTITY = SourceIdentity("postgres", "7301", "shop", "1")
KEYS = 5
NOBODY = 10**6


class GrowingLog:
    """A log whose segments have a row each, of `KEYS` orders in turn."""

    def __init__(self, root: Path) -> None:
        self.layout = Layout(root)
        self.log = FileLog.open(root, IDENTITY)
        self.writer = Writer.of(self.log)
        self.next = 1

    def grow(self, count: int, shift: int = 0) -> None:
        for _ in range(count):
            self.writer.put(orders((self.next + shift) % KEYS, xid=self.next))
            self.log.roll()
            self.log.seal_pending()
            self.next += 1


def places(layout: Layout, key: int) -> list[tuple[int, int]]:
    """The ranges that the index names for a key."""
    index = KeyIndex(layout)
    index.refresh(layout.segment_offsets())
    last = layout.segment_offsets()[-1][1]
    number = int(hashes([pa.array([key], ORDERS.row_schema.field(ORDERS.key[0]).type)])[0])
    return index.may_have(ORDERS.id, [number], layout.log_file().first_offset, last)


def assert_right(grown: GrowingLog, shift: int = 0) -> None:
    """Every row of a key is in the ranges that the index names for it."""
    first = grown.layout.log_file().first_offset
    for offset in range(first, grown.next):
        assert any(a <= offset <= b for a, b in places(grown.layout, (offset + shift) % KEYS)), offset


def names(layout: Layout) -> list[str]:
    return sorted(path.name for path in index_files.folder(layout).glob("*.keys"))


@pytest.fixture
def grown(tmp_path: Path) -> GrowingLog:
    return GrowingLog(tmp_path / "log")


def test_index_follows_the_log_and_what_it_does_not_cover_is_named_as_a_whole(grown: GrowingLog) -> None:
    grown.grow(3)
    assert places(grown.layout, 1) == [(1, 3)]
    assert Indexing(grown.layout).step() == 3
    assert places(grown.layout, 1) == [(1, 1)]
    assert places(grown.layout, NOBODY) == []
    grown.grow(2)
    assert places(grown.layout, NOBODY) == [(4, 5)]
    assert Indexing(grown.layout).step() == 2
    assert places(grown.layout, NOBODY) == []
    assert_right(grown)
    assert Indexing(grown.layout).step() == 0


def test_many_segments_have_few_files(grown: GrowingLog) -> None:
    """Eight files of a level become one, whether indexed step by step or all at once."""
    grown.grow(20)
    assert Indexing(grown.layout).step() == 20
    assert len(names(grown.layout)) == 2 + 4
    assert_right(grown)
    before = names(grown.layout)
    assert Indexing(grown.layout).step(anew=True) == 20
    assert names(grown.layout) == before


def test_index_stays_right_over_a_compaction_and_continues_in_the_middle_of_a_segment(grown: GrowingLog) -> None:
    """Offsets never change. A segment that is half indexed is indexed from that offset to its end."""
    grown.grow(4)
    Indexing(grown.layout).step()
    grown.grow(4)
    LogRetention(grown.layout, grace_s=0).compact()
    assert grown.layout.segment_offsets() == [(1, 7), (8, 8)]
    assert places(grown.layout, NOBODY) == [(5, 8)]
    assert_right(grown)
    assert Indexing(grown.layout).step() == 2
    assert places(grown.layout, NOBODY) == []
    assert_right(grown)
    assert Indexing(grown.layout).step() == 0


def test_expired_segments_are_removed_from_the_index_too(grown: GrowingLog) -> None:
    grown.grow(4)
    Indexing(grown.layout).step()
    LogRetention(grown.layout).expire(ExpiryRule(before_cut=4))
    first = grown.layout.log_file().first_offset
    assert first > 1
    grown.grow(1)
    Indexing(grown.layout).step()
    assert not any(name.startswith(f"{1:020d}") for name in names(grown.layout))
    assert_right(grown)


def test_restored_log_is_not_read_with_the_index_of_its_other_future(grown: GrowingLog, tmp_path: Path) -> None:
    """A restored copy continues with other rows at the same offsets. The index, which was not restored, would hide
    them."""
    grown.grow(3)
    grown.log.close()
    shutil.copytree(grown.layout.root, tmp_path / "copy")
    later = GrowingLog(grown.layout.root)
    later.next = 4
    later.grow(3)
    Indexing(later.layout).step()
    later.log.close()
    shutil.copytree(index_files.folder(later.layout), tmp_path / "index")
    shutil.rmtree(grown.layout.root)
    shutil.copytree(tmp_path / "copy", grown.layout.root)
    shutil.copytree(tmp_path / "index", index_files.folder(grown.layout))
    other = GrowingLog(grown.layout.root)
    other.next = 4
    other.grow(4, shift=2)
    assert all(any(a <= o <= b for a, b in places(other.layout, (o + 2) % KEYS)) for o in range(4, other.next))
    assert places(other.layout, NOBODY) == [(4, other.next - 1)]
    assert Indexing(other.layout).step() == 4
    assert places(other.layout, NOBODY) == []
    assert all(any(a <= o <= b for a, b in places(other.layout, (o + 2) % KEYS)) for o in range(4, other.next))


def test_index_of_another_log_counts_for_nothing(grown: GrowingLog, tmp_path: Path) -> None:
    grown.grow(2)
    other = GrowingLog(tmp_path / "other")
    other.grow(2, shift=1)
    Indexing(other.layout).step()
    shutil.copytree(index_files.folder(other.layout), index_files.folder(grown.layout))
    assert places(grown.layout, NOBODY) == [(1, 2)]
    assert Indexing(grown.layout).step() == 2
    assert places(grown.layout, NOBODY) == []
    assert_right(grown)


@pytest.mark.spread(1)
@pytest.mark.parametrize(("at_once", "most"), [(1, 50), (9, 10)])
def test_index_is_right_wherever_its_writer_is_killed(tmp_path: Path, at_once: int, most: int) -> None:
    """The kills: while it writes a file, between writing a joined file and removing its parts, and during that
    removal."""
    deaths = 0
    grown = GrowingLog(tmp_path / "log")
    grown.grow(9)
    for acts in range(200):
        shutil.rmtree(index_files.folder(grown.layout), ignore_errors=True)
        try:
            layer = DyingLayer(acts)
            for _ in range(9):
                Indexing(grown.layout, layer).step(segments_max=at_once)
        except Killed:
            deaths += 1
        else:
            break
        assert_right(grown)
        Indexing(grown.layout).step()
        assert_right(grown)
        assert places(grown.layout, NOBODY) == []
        assert len(names(grown.layout)) == 2
    assert deaths > most


def test_two_do_not_index_at_one_time(grown: GrowingLog) -> None:
    grown.grow(1)
    Indexing(grown.layout).step()
    with (
        hold_lock(index_files.folder(grown.layout) / "lock", "testing"),
        pytest.raises(Busy, match=r"indexing .*: another"),
    ):
        Indexing(grown.layout).step()


def test_segments_that_a_capture_seals_are_indexed_in_the_background(grown: GrowingLog) -> None:
    """It does so in the background; an error does not end the capture and is reported once."""
    told: list[tuple[str, Any]] = []
    grown.grow(2)
    with BackgroundIndexing(grown.layout, lambda event, fields: told.append((event, dict(fields))), every_s=0.01):
        wait_until(lambda: not places(grown.layout, NOBODY), "all to be indexed")
        grown.grow(2)
        wait_until(lambda: not places(grown.layout, NOBODY), "all to be indexed")
        room = index_files.folder(grown.layout)
        shutil.rmtree(room)
        room.write_text("in the way")
        grown.grow(1)
        wait_until(lambda: bool(told), "a report")
        room.unlink()
        wait_until(lambda: not places(grown.layout, NOBODY), "all to be indexed")
    # The thread may have met the folder between its going and what took its place: another reason.
    assert {event for event, _ in told} == {"index put off"}
    assert len({fields["reason"] for _, fields in told}) == len(told)
    assert_right(grown)
