"""Rows of large chunks in separate files: the same log as without, whatever is lost, killed or changed."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pytest
from tests.servers.disks import Failing, Unsynced
from tests.support.kill.abandoned_logs import gone
from tests.support.kill.disk_layer import DyingLayer, Killed

from cdcflow.config import Seal
from cdcflow.errors import ConfigurationError, InvariantViolated, SinkUnavailable, SyncFailed
from cdcflow.log.disk.layer import FileLayer
from cdcflow.log.files.attached import with_attached_rows
from cdcflow.log.files.compaction import CompactionRule
from cdcflow.log.files.layout import Layout
from cdcflow.log.format import framing
from cdcflow.log.format.journal import AttachedFile
from cdcflow.log.format.rows import ShapeEntry, ShapeRows
from cdcflow.log.format.segment import SegmentFile
from cdcflow.log.maintenance.retention import LogRetention
from cdcflow.log.read.journal_follower import Following
from cdcflow.log.read.reader import check, list_segments, newest_checkpoint, read_rows, read_transactions
from cdcflow.model.change import Run, reads
from cdcflow.model.position import Checkpoint, Position, SourceIdentity
from cdcflow.model.table import OFFSET
from cdcflow.sinks.files import log as files
from cdcflow.sinks.files.log import FileLog
from cdcflow.testing.folded import folded_log
from cdcflow.testing.sinks import COMMIT_TS, ORDERS, ORDERS_WIDER, PRODUCTS, Writer, changes, transactions

IDENTITY = SourceIdentity("postgres", "7301", "shop", "1")
NEVER = 1 << 60
NEVER_S = 36_500 * 86_400
SEEDS = range(6)


def opened(path: Path, *, in_files: bool = True, layer: FileLayer | None = None) -> FileLog:
    log = FileLog.open(path, IDENTITY, Seal(bytes_max=NEVER, age_max=NEVER_S), layer=layer or Unsynced())
    log.file_bytes_min = 1 if in_files else NEVER
    return log


def chunk(first: int, rows: int, *, wide: bool = False) -> Run:
    """Rows of orders as a backfill reads them, in several pieces."""
    table = ORDERS_WIDER if wide else ORDERS
    columns = {"id": range(first, first + rows), "note": [f"n{o}" for o in range(first, first + rows)]}
    found = pa.RecordBatch.from_pylist(pa.table(columns).to_pylist(), table.row_schema)
    half = rows // 2
    return reads(table, [found.slice(0, half), found.slice(half)], Position(f"0/{first:X}"), COMMIT_TS)


def live(chance: random.Random, xid: int) -> Run:
    """A transaction over two tables."""
    ids = [chance.randrange(60) for _ in range(chance.randint(1, 4))]
    rows = [{"id": i, "note": f"x{xid}", "_op": chance.choice("cud")} for i in ids]
    return transactions([xid], [len(ids) + 1], changes(ORDERS, rows), changes(PRODUCTS, [{"id": xid}], [len(ids)]))


def told(path: Path, seed: int, *, in_files: bool) -> Checkpoint:
    """A history that follows from its seed, in one log or the other."""
    chance = random.Random(seed)
    log = opened(path, in_files=in_files)
    writer = Writer.of(log)
    for step in range(1, 26):
        match chance.randrange(6):
            case 0 | 1:
                writer.append(chunk(chance.randrange(40), chance.randint(1, 30), wide=chance.random() < 0.2))
            case 2 | 3:
                writer.append(live(chance, step))
            case 4:
                writer.cut()
            case _:
                writer.put(live(chance, step))
                if log.roll() and chance.random() < 0.7:
                    log.seal_pending()
    checkpoint = writer.put(live(chance, 98), chunk(7, 30), live(chance, 99))
    gone(log)  # as a killed process leaves it
    return checkpoint


def rows_of(location: Path) -> list[tuple[int, str, dict[str, object]]]:
    found = [
        (row.pop(OFFSET), f"{table.id} {version}", row)
        for table, version, rows in read_rows(location)
        for row in rows.to_pylist()
    ]
    return sorted(found, key=lambda row: row[0])


def headers_of(location: Path) -> list[dict[str, object]]:
    return [row for headers in read_transactions(location) for row in headers.to_pylist()]


@pytest.mark.spread(2)
@pytest.mark.parametrize("seed", SEEDS)
def test_a_log_with_files_shows_what_one_without_them_shows(tmp_path: Path, seed: int) -> None:
    """In the tail, sealed, compacted: only the log depends on where its rows are stored."""
    with_files, without = tmp_path / "files", tmp_path / "frames"
    assert told(with_files, seed, in_files=True).next_offset == told(without, seed, in_files=False).next_offset
    assert list(Layout(with_files).spools.glob("*.parquet"))
    assert not list(Layout(without).spools.glob("*.parquet"))
    expected, headers = rows_of(without), headers_of(without)
    assert rows_of(with_files) == expected
    for sealing in (False, True):
        if sealing:
            opened(with_files).close()
        assert rows_of(with_files) == expected
        assert headers_of(with_files) == headers
        report = check(with_files, deep=True)
        assert report.is_whole, report.faults
        assert report.rows == len(expected)
    assert not list(Layout(with_files).spools.iterdir())
    LogRetention(Layout(with_files), None, layer=Unsynced()).compact(CompactionRule(NEVER))
    assert rows_of(with_files) == expected
    assert check(with_files, deep=True).is_whole


def test_files_of_a_shape_in_a_segment_follow_each_other(tmp_path: Path) -> None:
    """A reader concatenates them, and holds one row group of them."""
    log = opened(tmp_path / "log")
    writer = Writer.of(log)
    for first in range(1, 40, 10):
        writer.put(live(random.Random(first), first), chunk(first, 10))
    log.close()
    (segment,) = list_segments(log.path)
    of_orders = [f for f in segment.files if f.table is not None and f.table["name"] == "orders"]
    bounds = sorted((f.first_offset, f.last_offset) for f in of_orders)
    assert len(bounds) == 8
    assert all(last < first for (_, last), (first, _) in pairwise(bounds))


def test_compaction_writes_one_file_for_each_shape(tmp_path: Path) -> None:
    """Otherwise a segment of a day's chunks has as many files as there were chunks."""
    log = opened(tmp_path / "log")
    writer = Writer.of(log)
    for first in range(1, 60, 10):
        writer.put(live(random.Random(first), first), chunk(first, 10))
        if first % 20 == 1:
            log.roll()
            log.seal_pending()
    log.close()
    expected = rows_of(log.path)
    LogRetention(Layout(log.path), None, layer=Unsynced()).compact(CompactionRule(NEVER))
    compacted = list_segments(log.path)[0]
    assert compacted.stands_for
    assert sorted(str(f.table["name"]) for f in compacted.files if f.table) == sorted(["orders", PRODUCTS.id.name])
    assert rows_of(log.path) == expected
    assert check(log.path, deep=True).is_whole


def test_a_chunk_is_encoded_once(tmp_path: Path) -> None:
    """The segment has the very file; the journal has its name, and not its rows."""
    log = opened(tmp_path / "log")
    writer = Writer.of(log)
    before = log._journal.bytes
    writer.put(chunk(1, 50_000))
    assert log._journal.bytes - before < 10_000
    (file,) = Layout(log.path).spools.iterdir()
    inode = file.stat().st_ino
    log.close()
    (segment,) = list_segments(tmp_path / "log")
    (entry,) = [f for f in segment.files if f.table is not None]
    kept = Layout(log.path).segment(segment.first_offset, segment.last_offset) / entry.path
    assert kept.stat().st_ino == inode
    assert (entry.path, entry.rows, entry.ops) == ("shop.orders.1.parquet", 50_000, {"r": 50_000})
    assert (entry.key_min, entry.key_max, entry.key_runs) == ("1", "50000", (("1", "50000"),))


def test_only_large_chunks_of_one_shape_go_into_files(tmp_path: Path) -> None:
    """Small chunks are cheaper in the journal, and later commits wait for nothing."""
    log = FileLog.open(tmp_path / "log", IDENTITY, layer=Unsynced())
    assert log.file_bytes_min == files.FILE_BYTES_MIN
    writer = Writer.of(log)
    writer.put(chunk(1, 1000))
    log.file_bytes_min = 1
    writer.put(live(random.Random(1), 7))
    assert not list(Layout(log.path).spools.iterdir())
    writer.put(chunk(1, 1))
    assert len(list(Layout(log.path).spools.iterdir())) == 1
    log.close()


def test_who_follows_a_log_gets_rows_in_files_too(tmp_path: Path) -> None:
    """Publishing, for one, reads a journal once, as it grows."""
    log = opened(tmp_path / "log")
    writer = Writer.of(log)
    writer.put(live(random.Random(1), 7))
    begins = int(writer.checkpoint.next_offset)
    following = Following(Layout(log.path), begins)
    list(following.read())
    writer.put(chunk(1, 7))
    offsets = [o for r in following.read() if isinstance(r, ShapeRows) for o in r.offsets.tolist()]
    assert offsets == list(range(begins, begins + 7))
    log.close()


# ── killed ──────────────────────────────────────────────────────────────────────────────────────────────────


class Dying(DyingLayer, Unsynced):
    """Files of a process that is killed, and of a machine that keeps running."""


def deaths(path: Path, stride: int) -> Iterator[tuple[Path, list[Checkpoint]]]:
    """A process that is killed before its first act, its second, …: where, and what was durable. With a `stride`
    acts in between are skipped, other ones in each run."""
    first = random.randrange(stride)
    print(f"killed before act {first}, {first + stride}, …")
    for acts in range(first, 500, stride):
        durable: list[Checkpoint] = [Checkpoint()]
        place = path / str(acts)
        try:
            log = opened(place, layer=Dying(acts))
        except Killed:
            continue
        try:
            writer = Writer.of(log)
            durable.append(writer.put(chunk(1, 5), live(random.Random(2), 8)))
            log.roll()
            durable.append(writer.put(chunk(6, 3)))
            log.seal_pending()
        except Killed:
            gone(log)
            yield place, durable
        else:
            gone(log)
            return
    raise AssertionError("the story is longer")


@pytest.mark.parametrize("stride", [3, pytest.param(1, marks=pytest.mark.long)])
def test_process_that_is_killed_at_any_step_leaves_a_whole_log(tmp_path: Path, stride: int) -> None:
    """L17: around the file, its name, the frame that names it, the sync, the link into the segment, the removal."""
    for place, durable in deaths(tmp_path, stride):
        found = newest_checkpoint(place)
        assert found.cut >= durable[-1].cut
        before = rows_of(place)
        log = opened(place)
        assert log.checkpoint.cut == found.cut
        assert rows_of(place) == before
        log.close()
        assert rows_of(place) == before
        assert [offset for offset, _, _ in before] == list(range(1, int(found.next_offset)))
        assert check(place).is_whole
        assert not list(Layout(place).spools.iterdir())


def test_files_that_no_journal_names_are_removed_at_a_start(tmp_path: Path) -> None:
    """A file that was written, and whose frame was not, has offsets that others get."""
    log = opened(tmp_path / "log")
    Writer.of(log).put(chunk(1, 5))
    orphan = Layout(log.path).spools / "0000000001-000009.parquet"
    orphan.write_bytes(b"PAR1")
    gone(log)
    assert not [row for row in rows_of(log.path) if row[0] > 5]
    again = opened(log.path)
    assert again.recovered.spools == 1
    assert not orphan.exists()
    again.close()


# ── lost and changed ────────────────────────────────────────────────────────────────────────────────────────


def lose(path: Path) -> None:
    path.unlink()


def tear(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 8)


def change(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(bytes(content))


@pytest.mark.parametrize("harm", [lose, tear, change])
def test_a_durable_file_that_is_harmed_stops_everybody(tmp_path: Path, harm: Callable[[Path], None]) -> None:
    """The source no longer has these rows: a log without them would silently produce wrong tables (L05)."""
    log = opened(tmp_path / "log")
    writer = Writer.of(log)
    writer.put(chunk(1, 5000))
    writer.put(live(random.Random(1), 7))  # its cut records that the file was durable
    gone(log)
    (file,) = Layout(log.path).spools.iterdir()
    harm(file)
    with pytest.raises(InvariantViolated, match=r"damaged \(file\) at byte") as refused:
        opened(log.path)
    assert refused.value.runbook == "log-damaged"
    assert not check(log.path).is_whole


def test_a_file_that_was_never_durable_takes_its_tail_with_it(tmp_path: Path) -> None:
    """What the disk had of a journal's end does not count; what a later cut declares durable does."""
    log = opened(tmp_path / "log")
    writer = Writer.of(log)
    kept = writer.put(live(random.Random(1), 7))
    writer.append(chunk(1, 5))
    writer.cut()
    log._write()
    gone(log)
    (file,) = Layout(log.path).spools.iterdir()
    tear(file)
    again = opened(log.path)
    assert again.checkpoint.cut == kept.cut
    assert again.recovered.reason == "file"
    assert not file.exists()
    again.close()


def test_a_file_with_other_rows_is_not_read_as_these(tmp_path: Path) -> None:
    """A reader without the writer's lock does not compute a hash, and checks the offsets."""
    log = opened(tmp_path / "log")
    writer = Writer.of(log)
    writer.put(chunk(1, 5))
    writer.put(chunk(6, 5))
    first, second = sorted(Layout(log.path).spools.iterdir())
    second.write_bytes(first.read_bytes())
    with pytest.raises(InvariantViolated, match="its offsets are not those that were attached"):
        rows_of(log.path)
    second.write_bytes(b"PAR1 and nothing that is Parquet PAR1")
    with pytest.raises(InvariantViolated, match="it cannot be read") as stopped:
        list(with_attached_rows(Layout(log.path), [_record(second.name)]))
    assert "log check" in (stopped.value.remedy or "")
    gone(log)


def _record(name: str) -> AttachedFile:
    return AttachedFile(ShapeEntry(ORDERS, 1), SegmentFile(name, 5, 10, "", first_offset=6, last_offset=10))


@pytest.mark.parametrize("call", ["create", "write", "fsync"])
def test_a_file_that_cannot_be_written_ends_the_log(tmp_path: Path, call: str) -> None:
    """Rows after it already have their offsets: nothing after the last durable cut counts."""
    disk = Failing()
    log = opened(tmp_path / "log", layer=disk)
    writer = Writer.of(log)
    kept = writer.put(live(random.Random(1), 7))
    disk.fails = lambda made, path: OSError(28, "no room") if made == call and path.suffix == ".parquet" else None
    writer.append(chunk(1, 5))
    writer.append(live(random.Random(2), 8))
    writer.cut()
    with pytest.raises(SyncFailed if call == "fsync" else SinkUnavailable):
        log.sync()
    with pytest.raises((SyncFailed, SinkUnavailable), match="closed after an error"):
        writer.put(live(random.Random(3), 9))
    log.close()
    again = opened(log.path)
    assert again.checkpoint.cut == kept.cut
    again.close()
    assert [offset for offset, _, _ in rows_of(log.path)] == list(range(1, int(kept.next_offset)))


def test_a_file_system_without_links_gets_a_copy(tmp_path: Path) -> None:
    """Some network file systems and FAT have none."""
    disk = Failing(fails=lambda made, _: OSError(1, "not permitted") if made == "link" else None)
    log = opened(tmp_path / "log", layer=disk)
    Writer.of(log).put(chunk(1, 50))
    log.close()
    assert [offset for offset, _, _ in rows_of(log.path)] == list(range(1, 51))
    assert check(log.path, deep=True).is_whole
    assert not list(Layout(log.path).spools.iterdir())


# ── versions, and what it means ─────────────────────────────────────────────────────────────────────────────


def test_a_journal_of_the_version_before_is_read_and_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """L24: an upgrade finds what the older cdcflow left unsealed."""
    monkeypatch.setattr(framing, "FORMAT_VERSION", 2)
    log = opened(tmp_path / "log", in_files=False)
    kept = Writer.of(log).put(chunk(1, 5))
    gone(log)
    monkeypatch.undo()
    again = opened(tmp_path / "log")
    assert again.checkpoint.cut == kept.cut
    Writer.of(again).put(chunk(6, 5))
    again.close()
    assert [offset for offset, _, _ in rows_of(log.path)] == list(range(1, 11))


def test_cdcflow_without_support_for_such_files_refuses_the_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """L24: it would take the frame for a torn end, and cut off durable data."""
    log = opened(tmp_path / "log")
    Writer.of(log).put(chunk(1, 5))
    gone(log)
    monkeypatch.setattr(framing, "FORMAT_VERSION", 2)
    monkeypatch.setattr(framing, "OLDER_VERSIONS", ())
    with pytest.raises(ConfigurationError, match="a newer cdcflow wrote it"):
        opened(tmp_path / "log")


@pytest.mark.parametrize("seed", SEEDS[:2])
def test_the_fold_of_both_logs_is_the_same(tmp_path: Path, seed: int) -> None:
    """Current rows follow from rows in offset order alone."""
    for in_files in (True, False):
        told(tmp_path / str(in_files), seed, in_files=in_files)
        opened(tmp_path / str(in_files)).close()
    assert folded_log(tmp_path / "True") == folded_log(tmp_path / "False")
