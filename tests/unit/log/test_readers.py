"""Which rows a reader gets of a log in segments and journals: these offsets, these tables, each row once."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Collection
from dataclasses import replace
from datetime import date
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from tests.support.log import empty_journals

from cdcflow.errors import ConfigurationError, HistoryLost, InvariantViolated
from cdcflow.log.files.extents import Extent, extents_of
from cdcflow.log.files.layout import Layout
from cdcflow.log.read import reader
from cdcflow.log.read.check import check
from cdcflow.log.read.folder import FolderReader
from cdcflow.log.read.reader import list_segments, newest_checkpoint, read_rows, read_transactions, table_shapes
from cdcflow.model.change import ChangeBatch
from cdcflow.model.position import SourceIdentity
from cdcflow.model.table import TableId
from cdcflow.sinks.files.log import FileLog
from cdcflow.testing.sinks import ORDERS, ORDERS_WIDER, PRODUCTS, Writer, changes, orders, transactions

IDENTITY = SourceIdentity("postgres", "7301", "shop", "1")
LAST = 13


def story(log: FileLog) -> Writer:
    """Two segments (offsets 1 to 3 and 4 to 7), a closed journal (8 to 10) and the latest one (11 to 13)."""
    writer = Writer.of(log)
    writer.put(orders(1, 2, xid=1), transactions([2], [1], changes(PRODUCTS, [{"id": 3}])))
    log.roll()
    writer.put(  # a shape appears, is dropped and returns
        orders(4, xid=3),
        transactions([4], [1], changes(ORDERS_WIDER, [{"id": 5, "due": date(2024, 2, 29)}])),
        orders(6, 7, xid=5),
    )
    log.roll()
    log.seal_pending()
    batch = changes(ORDERS, [{"id": 9}, {"id": 0}, {"id": 10}])
    spooled = writer.write_spool(7, [((batch,), np.array([7, 8, 7], np.uint64))], aborted=[8], rows=2)
    writer.put(orders(8, xid=6), spooled)
    log.roll()
    writer.put(transactions([8, 9], [2, 3], changes(ORDERS, [{"id": 11}, {"id": 13}], [0, 2]), products(12)))
    return writer


def products(number: int) -> ChangeBatch:
    return changes(PRODUCTS, [{"id": number}], [1])


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> FileLog:
    """No test changes it; a test that needs to does so in a copy."""
    log = FileLog.open(tmp_path_factory.mktemp("readers") / "log", IDENTITY)
    story(log)
    return log


@pytest.fixture
def copy(log: FileLog, tmp_path: Path) -> Layout:
    return Layout(shutil.copytree(log.path, tmp_path / "copy"))


def ids(
    place: Path, from_offset: int = 1, to_offset: int | None = None, tables: Collection[TableId] | None = None
) -> list[int]:
    found = [row for _, _, rows in read_rows(place, from_offset, to_offset, tables) for row in rows.to_pylist()]
    assert all(row["_offset"] == row["id"] for row in found)
    return [row["id"] for row in found]


def test_story_has_what_the_tests_below_speak_of(log: FileLog) -> None:
    """Otherwise they would prove nothing."""
    layout = Layout(log.path)
    assert layout.segment_offsets() == [(1, 3), (4, 7)]
    assert layout.journal_offsets() == [8, 11]
    assert [s.first_offset for s in list_segments(log.path)] == [1, 4]


@pytest.mark.parametrize("first", range(1, LAST + 1))
def test_rows_from_any_offset_to_any_other_are_those_and_no_others(log: FileLog, first: int) -> None:
    """A merge continues where the last one ended: an offset too few is a lost row, and one too many is applied
    twice."""
    for last in range(first, LAST + 1):
        assert sorted(ids(log.path, first, last)) == list(range(first, last + 1))
        headers = [t for table in read_transactions(log.path, first, last) for t in table.to_pylist()]
        covered = {o for t in headers for o in range(t["first_offset"], t["last_offset"] + 1)}
        assert covered >= set(range(first, last + 1))
        assert all(t["last_offset"] >= first and t["first_offset"] <= last for t in headers)
        assert [t["number"] for t in headers] == sorted({t["number"] for t in headers})


def test_a_table_s_rows_ascend_over_segments_shapes_and_journals(log: FileLog) -> None:
    """The last row of a key is the one that counts, and readers take the one that arrives last."""
    assert ids(log.path, tables=[ORDERS.id]) == [1, 2, 4, 5, 6, 7, 8, 9, 10, 11, 13]
    assert ids(log.path, tables=[PRODUCTS.id]) == [3, 12]
    assert ids(log.path, tables=[]) == []
    assert sorted(ids(log.path)) == list(range(1, LAST + 1))
    versions = [(version, len(rows)) for _, version, rows in read_rows(log.path, 4, 7)]
    assert versions == [(1, 1), (2, 1), (1, 2)]
    owners = [r["_txn"] for _, _, rows in read_rows(log.path, 8) for r in rows.to_pylist()]
    assert sorted(owners) == [6, 7, 7, 8, 8, 9]


def test_spools_before_the_first_offset_are_not_opened(tmp_path: Path) -> None:
    """A spool holds a transaction of gigabytes: a reader that continues right after it must not read it first."""
    log = FileLog.open(tmp_path / "log", IDENTITY)
    writer = Writer.of(log)
    batch = changes(ORDERS, [{"id": 2}, {"id": 3}])
    writer.put(orders(1, xid=1), writer.write_spool(2, [((batch,), None)], aborted=[], rows=2), orders(4, 5, xid=3))
    for spool in Layout(log.path).spools.iterdir():
        spool.unlink()
    assert [ids(log.path, first) for first in (4, 5)] == [[4, 5], [5]]
    with pytest.raises(InvariantViolated, match="spool is missing"):
        ids(log.path, 3)


def test_latest_checkpoint_and_shapes_are_found_wherever_the_log_ends(copy: Layout, tmp_path: Path) -> None:
    """A merge requests both before anything else."""
    assert newest_checkpoint(copy).next_offset == LAST + 1
    shapes = table_shapes(copy)
    assert shapes[ORDERS.id] == {1: ORDERS, 2: ORDERS_WIDER}
    assert shapes[PRODUCTS.id] == {1: PRODUCTS}
    for first in copy.journal_offsets():
        copy.journal(first).unlink()
    assert (newest_checkpoint(copy).next_offset, newest_checkpoint(copy).cut) == (8, 2)
    assert newest_checkpoint(FileLog.open(tmp_path / "empty", IDENTITY).path).cut == 0


@pytest.mark.parametrize("question", [newest_checkpoint, table_shapes, list_segments])
def test_a_folder_without_a_log_is_not_an_empty_log(question: Callable[[Path], object], tmp_path: Path) -> None:
    """Otherwise a mistyped path would look like a log in which nothing has happened yet."""
    with pytest.raises(ConfigurationError, match="there is no log here"):
        question(tmp_path)


def test_shapes_that_only_a_journal_has_are_found(copy: Layout) -> None:
    """The file of shapes is written when a segment needs it, which may be hours later."""
    copy.schemas.unlink()
    assert table_shapes(copy) == {ORDERS.id: {1: ORDERS}, PRODUCTS.id: {1: PRODUCTS}}


@pytest.mark.parametrize("missing", ["segment", "journal"])
def test_missing_segment_between_two_others_is_reported_and_never_passed_over(
    copy: Layout, missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader that continued after it would skip rows silently."""
    monkeypatch.setattr(reader, "TRIES_MAX", 2)
    if missing == "segment":
        shutil.rmtree(copy.segment(1, 3))
        with pytest.raises(InvariantViolated, match=r"offset 1.*missing"):
            ids(copy.root, 1, 5)
        assert sorted(ids(copy.root, 4, 9)) == [4, 5, 6, 7, 8, 9]
    else:
        copy.journal(8).unlink()
        with pytest.raises(InvariantViolated, match="missing"):
            ids(copy.root, 5, 12)
        assert sorted(ids(copy.root, 2, 7)) == [2, 3, 4, 5, 6, 7]


@pytest.mark.parametrize("to", [8, 9, LAST - 1, LAST, None])
@pytest.mark.parametrize("journal_is_left", [True, False])
@pytest.mark.parametrize("asked", [read_rows, read_transactions])
def test_journal_that_is_sealed_while_a_reader_opens_it_is_read_as_a_segment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, to: int | None, journal_is_left: bool, asked: Callable[..., object]
) -> None:
    """Its rows are in no segment that the reader has listed, and the remaining journal begins after them."""
    other = FileLog.open(tmp_path / "log", IDENTITY)
    story(other)
    layout = Layout(other.path)
    looks = 0

    def sealed_first(where: Layout) -> list[Extent]:
        nonlocal looks
        looks += 1
        if looks == 1:
            other.roll()
            other.seal_pending()
            for first in layout.journal_offsets() if not journal_is_left else ():
                layout.journal(first).unlink()
        return extents_of(where)

    monkeypatch.setattr(reader, "extents_of", sealed_first)
    last = to or LAST
    if asked is read_rows:
        assert sorted(ids(other.path, 6, to)) == list(range(6, last + 1))
    else:
        headers = [t for table in read_transactions(other.path, 6, to) for t in table.to_pylist()]
        assert {o for t in headers for o in range(t["first_offset"], t["last_offset"] + 1)} >= set(range(6, last + 1))
    assert looks


def test_shapes_are_read_although_a_restart_replaces_an_empty_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The daemon that starts writes another journal under its name, and a reader must not call that damage."""
    root = empty_journals.write_log(tmp_path / "log", IDENTITY)
    restarted = list[FileLog]()

    def restarts_behind(where: Layout) -> list[Extent]:
        found = extents_of(where)
        if not restarted:
            restarted.append(FileLog.open(root, IDENTITY))
            writer = Writer.of(restarted[0])
            writer.checkpoint = replace(writer.checkpoint, progress={"tables": {"shop.orders": {"state": "x" * 500}}})
            writer.put(transactions([8], [1], changes(PRODUCTS, [{"id": 1}])))
        return found

    monkeypatch.setattr(reader, "extents_of", restarts_behind)
    assert table_shapes(root).keys() == {ORDERS.id, PRODUCTS.id}


def test_files_after_the_last_offset_are_not_opened(copy: Layout) -> None:
    """A merge of a few rows costs those rows, and damage after them does not concern it."""
    for file in copy.segment(4, 7).glob("*.parquet"):
        file.unlink()
    assert sorted(ids(copy.root, 1, 3)) == [1, 2, 3]
    assert len(list(read_transactions(copy.root, 1, 3))) == 1
    assert sorted(ids(copy.root, 8, 9)) == [8, 9]
    (copy.segment(4, 7) / "segment.json").write_text("damaged")
    assert sorted(ids(copy.root, 1, 3)) == [1, 2, 3]


def test_missing_middle_segment_is_reported(log: FileLog, tmp_path: Path) -> None:
    """The two segments around it do not meet."""
    other = FileLog.open(tmp_path / "log", IDENTITY)
    writer = Writer.of(other)
    for number in (1, 2, 3):
        writer.put(orders(number))
        other.roll()
    other.seal_pending()
    layout = Layout(other.path)
    shutil.rmtree(layout.segment(2, 2))
    with pytest.raises(InvariantViolated, match="from 2 is missing"):
        list_segments(layout)


def test_another_log_s_segment_is_refused(copy: Layout) -> None:
    """Copied by hand, it has the right name and other rows."""
    manifest = copy.segment(1, 3) / "segment.json"
    log_id = copy.log_file().log_id
    manifest.write_text(manifest.read_text().replace(log_id, "0" * len(log_id)))
    with pytest.raises(InvariantViolated, match="another log"):
        ids(copy.root, 3, 3)
    assert sorted(ids(copy.root, 4, 5)) == [4, 5]


def test_offset_that_has_expired_is_refused_and_the_first_existing_one_is_not(log: FileLog, tmp_path: Path) -> None:
    """Without an error, a reader would assume that nothing had happened."""
    other = FileLog.open(tmp_path / "log", IDENTITY)
    writer = Writer.of(other)
    for number in (1, 2, 3):
        writer.put(orders(number))
        other.roll()
    other.seal_pending()
    other.expire(before_cut=2)
    with pytest.raises(HistoryLost, match="first one left is 2"):
        ids(other.path, 1)
    assert ids(other.path, 2) == [2, 3]
    assert [s.first_offset for s in list_segments(other.path)] == [2, 3]
    with pytest.raises(HistoryLost):
        list(read_transactions(other.path, 1, 1))


@pytest.mark.parametrize("sealed", [False, True])
def test_rows_are_cut_out_of_the_middle_of_what_was_written_together(tmp_path: Path, sealed: bool) -> None:
    """One frame, or one row group, has many of them; a range may begin and end inside."""
    other = FileLog.open(tmp_path / "log", IDENTITY)
    Writer.of(other).put(transactions([1, 2], [3, 7], changes(ORDERS, [{"id": i} for i in range(1, 8)])))
    if sealed:
        other.roll()
        other.seal_pending()
    for first in range(1, 8):
        for last in range(first, 8):
            assert ids(other.path, first, last) == list(range(first, last + 1))


@pytest.mark.parametrize("damage", ["cut off", "no footer", "overwritten"])
@pytest.mark.parametrize("name", ["*orders*", "transactions*"])
def test_damaged_file_is_reported_with_its_log_and_offset(copy: Layout, damage: str, name: str) -> None:
    """A reader that assumed it missing would search for it twenty times, and then report the wrong problem."""
    (file,) = copy.segment(1, 3).glob(name)
    content = file.read_bytes()
    footer = len(content) // 2
    file.write_bytes(
        {
            "cut off": content[:footer],
            "no footer": content[:-8] + b"PAR1" * 2,
            "overwritten": content[:4] + bytes(len(content) - 8) + content[-4:],
        }[damage]
    )
    read = read_transactions if name.startswith("transactions") else read_rows
    with pytest.raises(InvariantViolated, match=r"copy at offset 1: a file is damaged \((Arrow|OS)") as told:
        list(read(copy.root, 1, 3))
    assert told.value.remedy == "run `cdcflow log check`, and restore the segment from a copy"
    assert sorted(ids(copy.root, 4, 9)) == [4, 5, 6, 7, 8, 9], "the other segments are unchanged"


def test_bounds_of_row_groups_only_save_reading_them(copy: Layout) -> None:
    """A program that rewrote a file, without bounds, changed no row of it."""
    files = list(copy.segment(4, 7).glob("*.[12].parquet"))
    assert len(files) == 2
    for file in files:
        pq.write_table(pq.read_table(file), file, write_statistics=False)
    assert [sorted(ids(copy.root, first, 7)) for first in (3, 5, 7)] == [[3, 4, 5, 6, 7], [5, 6, 7], [7]]


@pytest.mark.parametrize("sealed", [False, True])
def test_log_is_read_from_its_first_row_unless_an_offset_is_given(tmp_path: Path, sealed: bool) -> None:
    """Rows and transactions alike: the first one is the easiest to lose."""
    other = FileLog.open(tmp_path / "log", IDENTITY)
    Writer.of(other).put(orders(1, xid=1), orders(2, xid=2))
    if sealed:
        other.roll()
        other.seal_pending()
    assert ids(other.path) == [1, 2]
    assert [t["number"] for table in read_transactions(other.path) for t in table.to_pylist()] == [1, 2]
    folder = FolderReader(other.path)
    assert [row["id"] for _, _, rows in folder.read_rows() for row in rows.to_pylist()] == [1, 2]
    assert [t["number"] for table in folder.read_transactions() for t in table.to_pylist()] == [1, 2]


def test_log_in_a_folder_answers_queries_about_its_place(log: FileLog, tmp_path: Path) -> None:
    """Merges and commands use one query, wherever the log is; it covers the whole log unless they give offsets."""
    found = FolderReader(log.path)
    assert (found.name, found.exists(), FolderReader(tmp_path).exists()) == (str(log.path), True, False)
    assert found.newest_checkpoint() == newest_checkpoint(log.path)
    assert found.table_shapes() == table_shapes(log.path)
    for range_ in ((), (4, 9), (8,)):
        rows = [(table, version, rows.to_pylist()) for table, version, rows in found.read_rows(*range_)]
        assert rows == [(table, version, rows.to_pylist()) for table, version, rows in read_rows(log.path, *range_)]
        headers = [t.to_pylist() for t in found.read_transactions(*range_)]
        assert headers == [t.to_pylist() for t in read_transactions(log.path, *range_)]
    assert [table.id for table, _, _ in found.read_rows(tables=[PRODUCTS.id])] == [PRODUCTS.id] * 2
    assert found.check() == check(log.path)
    assert found.check(deep=True) == check(log.path, deep=True)
