"""Which files of a log count when it is opened: the journals to continue, what was sealed, and the journals of
replaced writers."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from cdcflow.errors import InvariantViolated
from cdcflow.log.files.inventory import Inventory, inventory
from cdcflow.log.files.layout import Layout
from cdcflow.log.format.journal import JournalHeader
from cdcflow.model.position import Checkpoint, Epoch, Offset, SourceIdentity
from cdcflow.sinks.files.log import FileLog
from cdcflow.testing.sinks import ORDERS, PRODUCTS, Writer, changes, orders, transactions

IDENTITY = SourceIdentity("postgres", "7301", "shop", "1")


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Segments from 1 and 2, a closed journal from 3 and the latest from 5; journal 2 was kept next to its segment."""
    log = FileLog.open(tmp_path_factory.mktemp("inventory") / "log", IDENTITY)
    writer, layout = Writer.of(log), Layout(log.path)
    writer.put(orders(1))
    log.roll()
    writer.put(orders(2))
    log.roll()
    log.sync()
    kept = layout.journal(2).read_bytes()
    log.seal_pending()
    layout.journal(2).write_bytes(kept)
    writer.put(orders(3, 4))
    log.roll()
    writer.put(orders(5), transactions([9], [1], changes(PRODUCTS, [{"id": 6}])))
    return log.path


@pytest.fixture
def layout(written: Path, tmp_path: Path) -> Layout:
    return Layout(shutil.copytree(written, tmp_path / "log"))


def found(layout: Layout) -> Inventory:
    return inventory(layout, layout.log_file())


def test_unsealed_journals_are_found_and_sealed_ones_are_skipped(layout: Layout) -> None:
    """A journal whose segment exists would be read and sealed a second time."""
    seen = found(layout)
    assert [w.header.first_offset for w in seen.journals] == [3, 5]
    assert [w.checkpoint.next_offset for w in seen.journals] == [5, 7]
    assert seen.sealed is not None
    assert (seen.sealed.first_offset, seen.sealed.last_offset) == (2, 2)
    assert (seen.stale, seen.left) == ((), (layout.journal(2),))
    assert seen.last_manifest
    assert len(seen.history) == 2
    assert seen.history.number(ORDERS) == seen.history.number(PRODUCTS) == 1
    assert seen.schemas_saved == 1, "the latest shape is in a journal only"


def test_log_that_was_just_made_has_nothing_and_is_whole(tmp_path: Path) -> None:
    """A crash before the first journal has its name is no loss."""
    log = FileLog.open(tmp_path / "log", IDENTITY)
    log.close()
    layout = Layout(log.path)
    for first in layout.journal_offsets():
        layout.journal(first).unlink()
    layout.schemas.unlink(missing_ok=True)
    layout.newest.unlink()  # it is written after the journal has its name
    seen = found(layout)
    assert (seen.journals, seen.sealed, seen.last_manifest, len(seen.history)) == ((), None, "", 0)
    layout.schemas.write_text('{"version": 1, "shapes": []}')
    with pytest.raises(InvariantViolated, match="from offset 1 is missing"):
        found(layout)


@pytest.mark.parametrize(
    ("gone", "missing"), [(["3"], 3), (["5"], 5), (["3", "5"], 5), (["2", "3", "5"], 5), (["2-2"], None)]
)
def test_what_is_missing_between_the_others_is_named(layout: Layout, gone: list[str], missing: int | None) -> None:
    """Without the check its rows would be skipped. No other file shows that the last journals are missing, so they
    are noted: they were acknowledged to the source."""
    for name in gone:
        first, _, last = name.partition("-")
        if last:
            shutil.rmtree(layout.segment(int(first), int(last)))
        else:
            layout.journal(int(first)).unlink()
    if missing is None:
        assert found(layout).journals
    else:
        with pytest.raises(InvariantViolated, match=f"from offset {missing} is missing"):
            found(layout)


def test_journal_and_segment_that_are_both_gone_are_named(layout: Layout) -> None:
    """The next journal records where they began."""
    shutil.rmtree(layout.segment(2, 2))
    layout.journal(2).unlink()
    with pytest.raises(InvariantViolated, match="from offset 2 is missing"):
        found(layout)


def test_note_of_a_writer_that_was_replaced_is_no_loss(layout: Layout) -> None:
    """The writer checked the epoch, was suspended, and then noted a journal that never counted; the log continues
    without it."""
    layout.newest.write_text("0 9\n")
    assert [w.header.first_offset for w in found(layout).journals] == [3, 5]


def test_log_without_a_note_is_opened_and_gets_one(layout: Layout) -> None:
    """Written by an earlier version, which noted nothing."""
    layout.newest.unlink()
    assert found(layout).journals
    FileLog.open(layout.root, IDENTITY).close()
    assert layout.newest_journal() == (2, 7)


def test_empty_note_is_refused(layout: Layout) -> None:
    """Whether the end of the log exists is then unknown."""
    layout.newest.write_text("soon\n")
    with pytest.raises(InvariantViolated, match="not an epoch and an offset"):
        found(layout)


def test_manifest_that_is_not_the_one_its_successor_saw_breaks_the_chain(layout: Layout) -> None:
    """Another segment replaced it; its rows are not those that were acknowledged."""
    manifest = layout.segment(1, 1) / "segment.json"
    manifest.write_text(manifest.read_text() + " ")
    with pytest.raises(InvariantViolated, match="hash chain breaks at segment 1-1"):
        found(layout)


@pytest.mark.parametrize("where", ["journal", "segment"])
def test_files_of_another_log_are_refused(layout: Layout, where: str, tmp_path: Path) -> None:
    """The same source captured twice has the same offsets with other rows."""
    other = FileLog.open(tmp_path / "other", IDENTITY)
    writer, theirs = Writer.of(other), Layout(other.path)
    for number in (1, 2, 3):
        writer.put(orders(number, number + 10) if number == 3 else orders(number))
        other.roll()
    other.sync()
    if where == "journal":
        shutil.copy(theirs.journal(3), layout.journal(3))
        with pytest.raises(InvariantViolated, match="another log's journal"):
            found(layout)
    else:
        other.seal_pending()
        shutil.rmtree(layout.segment(2, 2))
        shutil.copytree(theirs.segment(2, 2), layout.segment(2, 2))
        with pytest.raises(InvariantViolated, match="segment 2-2 is another log's"):
            found(layout)


def test_a_journal_that_does_not_begin_where_the_one_before_it_ends_is_refused(layout: Layout) -> None:
    """Its head may be intact and wrong; the offsets in between would belong to no row."""
    before = layout.journal(3)
    base = Checkpoint(next_offset=Offset(6), next_transaction=5, cut=4, epoch=Epoch(1))
    head = JournalHeader(layout.log_file().log_id, Epoch(1), base, 3, before.stat().st_size)
    layout.journal(5).unlink()
    layout.journal(6).write_bytes(head.encode()[0])
    with pytest.raises(InvariantViolated, match="from offset 5 is missing"):
        found(layout)


@pytest.mark.parametrize(("what", "missing"), [("segments", 3), ("expired", 2), ("shapes", 1), ("note", 3)])
def test_log_that_has_lost_its_latest_journal_is_not_a_new_one(tmp_path: Path, what: str, missing: int) -> None:
    """Each of these alone proves that a journal existed: a segment, an expired offset, a list of shapes, the note of
    the latest journal."""
    log = FileLog.open(tmp_path / "log", IDENTITY)
    layout, writer = Layout(log.path), Writer.of(log)
    for number in (1, 2):
        writer.put(orders(number))
        log.roll()
        log.seal_pending()
    log.close()
    for first in layout.journal_offsets():
        layout.journal(first).unlink()
    if what != "shapes":
        layout.schemas.unlink()
    if what != "note":
        layout.newest.unlink()
    if what != "segments":
        shutil.rmtree(layout.segments)
    if what == "expired":
        layout.log_json.write_text(replace(layout.log_file(), first_offset=2).to_json())
    with pytest.raises(InvariantViolated, match=f"from offset {missing} is missing"):
        found(layout)


def test_a_log_whose_oldest_part_is_missing_is_refused(tmp_path: Path) -> None:
    """A journal without a predecessor must begin where the log does; a later beginning means a hole."""
    log = FileLog.open(tmp_path / "log", IDENTITY)
    layout = Layout(log.path)
    log.close()
    (first,) = layout.journal_offsets()
    head = JournalHeader(layout.log_file().log_id, Epoch(1), Checkpoint(next_offset=Offset(6), cut=4))
    layout.journal(first).unlink()
    layout.journal(6).write_bytes(head.encode()[0])
    with pytest.raises(InvariantViolated, match="from offset 1 is missing"):
        found(layout)
    layout.log_json.write_text(replace(layout.log_file(), first_offset=6).to_json())
    assert [w.header.first_offset for w in found(layout).journals] == [6]
