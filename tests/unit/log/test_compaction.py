"""Which segments become one, and what its manifest contains."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import date
from io import BytesIO
from itertools import accumulate, pairwise
from pathlib import Path

import pytest

from cdcflow.errors import InvariantViolated
from cdcflow.log.files.compaction import CompactionRule, SealedSize, compact, groups
from cdcflow.log.files.layout import Layout, widest_segments
from cdcflow.log.format.segment import Segment
from cdcflow.log.maintenance.background_compaction import WHILE_SEALING
from cdcflow.log.maintenance.retention import ExpiryRule, LogRetention
from cdcflow.log.read.reader import check, list_segments, read_rows, read_transactions
from cdcflow.model.position import SourceIdentity
from cdcflow.model.table import BEFORE, UNCHANGED
from cdcflow.sinks.files.log import FileLog
from cdcflow.testing.sinks import ORDERS, ORDERS_WIDER, PRODUCTS, Writer, changes, orders, transactions

IDENTITY = SourceIdentity("postgres", "7301", "shop", "1")


def segments(*rows: int) -> list[SealedSize]:
    """Segments with this many rows of a byte."""
    ends = list(accumulate(rows))
    return [SealedSize(end - count + 1, end, count, 1) for count, end in zip(rows, ends, strict=True)]


def grouped(bytes_max: int, *rows: int) -> list[list[int]]:
    return [[s.rows for s in group] for group in groups(segments(*rows), CompactionRule(bytes_max))]


def test_small_neighbours_are_compacted_up_to_the_size() -> None:
    """The size bounds the time that a batch takes, and what an expiry can keep."""
    assert grouped(100, 10, 10, 10) == [[10, 10, 10]]
    assert grouped(25, 10, 10, 10, 10) == [[10, 10], [10, 10]]
    assert grouped(100, 10) == []
    assert grouped(100) == []
    assert grouped(5, 10, 10) == []


def test_large_segment_is_not_rewritten_for_a_few_small_ones() -> None:
    """Otherwise every run would rewrite the whole log: the cost per row must not depend on how often this runs."""
    assert grouped(1000, 500, 1, 1) == [[1, 1]]
    assert grouped(1000, 1, 1, 500, 1, 1) == [[1, 1], [1, 1]]
    assert grouped(1000, 2, 1, 1) == [[2, 1, 1]]
    log, written = grown(CompactionRule(1 << 20), 500, every=1)
    assert sum(s.rows for s in log) == 500
    assert written <= 500 * 9


def grown(rule: CompactionRule, count: int, every: int, overhead: int = 0) -> tuple[list[SealedSize], int]:
    """A log that grows by segments of one row, compacted each time it has `every` more: its segments, and how many rows
    were written again. Each segment has `overhead` bytes in addition, however many rows it has."""
    log: list[SealedSize] = []
    written = 0
    for offset in range(1, count + 1):
        log.append(SealedSize(offset, offset, 1 + overhead, 1))
        for group in groups(log, rule) if offset % every == 0 else ():
            rows, at = sum(s.rows for s in group), log.index(group[0])
            ends = sum(s.ends for s in group)
            joined = SealedSize(group[0].first_offset, group[-1].last_offset, rows + overhead, ends)
            log[at : at + len(group)] = [joined]
            written += rows
    return log, written


@pytest.mark.parametrize("overhead", [0, 40])
@pytest.mark.parametrize("every", [1, 5, 30])
def test_segments_of_a_day_become_few_and_each_row_is_rewritten_a_few_times(every: int, overhead: int) -> None:
    """A merge every two seconds seals 43,200 segments a day. Of a small Parquet file most bytes are not rows: by bytes,
    a joined file would never be larger than the next small one, and would be rewritten with each."""
    rule = replace(WHILE_SEALING, bytes_max=8000, ends_max=2000)
    log, written = grown(rule, 20_000, every, overhead)
    assert len(log) < 20_000 // 2000 * 3 + 60
    assert max(s.ends for s in log) <= 2000
    assert written < 20_000 * 9
    assert all(a.last_offset + 1 == b.first_offset for a, b in pairwise(log))


def test_wider_segment_covers_those_it_replaced() -> None:
    """For a while both exist: a reader that took both would read every row twice."""
    assert widest_segments([(1, 4), (1, 8), (5, 8), (9, 9)]) == [(1, 8), (9, 9)]
    assert widest_segments([(1, 8), (1, 4)]) == [(1, 8)]
    assert widest_segments([(1, 4), (5, 8), (5, 12), (9, 12)]) == [(1, 4), (5, 12)]


@pytest.fixture
def log(tmp_path: Path) -> FileLog:
    return FileLog.open(tmp_path / "log", IDENTITY)


def story(log: FileLog) -> None:
    """Five segments: a shape that is dropped and returns, partial rows, key changes, a table that is added late, an
    empty transaction, another run of the writer."""
    writer = Writer.of(log)

    def sealed(*runs: object) -> None:
        writer.put(*runs)  # type: ignore[arg-type]
        assert log.roll()
        log.seal_pending()

    sealed(orders(5, 6, xid=10))
    sealed(
        transactions([11], [1], changes(ORDERS_WIDER, [{"id": 7, "due": date(2024, 2, 29)}])),
        transactions([12], [1], changes(ORDERS, [{"id": 5, "_op": "u", UNCHANGED: ["note"]}])),
    )
    sealed(
        orders(-3, xid=13),
        transactions([14, 15], [1, 1], changes(PRODUCTS, [{"id": 1, BEFORE: {"id": 2}}])),
    )
    sealed(orders(8, xid=9, op="d"))
    sealed(orders(9, xid=16))


def rows_of(place: Path) -> list[tuple[object, ...]]:
    found = [
        (str(table.id), version, *row.items()) for table, version, rows in read_rows(place) for row in rows.to_pylist()
    ]
    return sorted(found, key=lambda row: dict(row[2:])["_offset"])


def test_compacted_log_has_the_same_rows_transactions_and_order(log: FileLog) -> None:
    """No reader downstream may see a difference."""
    story(log)
    rows = rows_of(log.path)
    headers = [h for t in read_transactions(log.path) for h in t.to_pylist()]
    delivered = log.delivered
    made = LogRetention(Layout(log.path), grace_s=0).compact()
    assert [count for _, count in made] == [4]
    assert [(s.first_offset, s.last_offset) for s in list_segments(log.path)] == [(1, 7), (8, 8)]
    assert rows_of(log.path) == rows
    assert [h for t in read_transactions(log.path) for h in t.to_pylist()] == headers
    assert check(log.path, deep=True).faults == ()
    import numpy as np

    assert delivered(np.array([9, 10, 15, 16, 17], np.uint64)).tolist() == [9, 10, 15, 16]
    keys = log.partial_keys(ORDERS.id, log.checkpoint.next_offset.__class__(1))
    assert keys is not None
    assert keys.keys.to_pylist() == [{"id": 5}]
    log.close()
    again = FileLog.open(log.path, IDENTITY)
    Writer.of(again).put(orders(10))
    again.close()
    assert check(log.path, deep=True).faults == ()


def test_manifest_records_what_the_old_ones_recorded_together(log: FileLog) -> None:
    """A merge prunes and decides by these numbers without opening a file."""
    story(log)
    old = list_segments(log.path)
    ((made, _),) = LogRetention(Layout(log.path), grace_s=0).compact()
    assert (made.first_cut, made.last_cut) == (old[0].first_cut, old[3].last_cut)
    assert (made.xid_min, made.xid_max, made.xid_newest) == (9, 15, 15)
    assert made.checkpoint == old[3].checkpoint
    assert made.seams == tuple((s.last_cut, s.last_offset) for s in old[:3])
    (file,) = [f for f in made.files if f.table is not None and f.table["name"] == "orders" and f.version == 1]
    assert (file.rows, file.key_min, file.key_max) == (5, "-3", "8")
    assert (file.ops, file.partial) == ({"c": 3, "d": 1, "u": 1}, 1)
    assert sum(f.moved for f in made.files) == 1
    assert made.offset_of(old[1].last_cut) == old[1].last_offset
    assert made.offset_of(made.last_cut) == made.last_offset
    assert Segment.from_json(made.to_json()) == made


def test_chain_holds_over_a_compacted_segment_and_breaks_where_a_manifest_was_changed(log: FileLog) -> None:
    """The next segment still names the hash of one that is gone; that must prove as much as before (hard case L19)."""
    story(log)
    LogRetention(Layout(log.path), grace_s=0).compact()
    layout = Layout(log.path)
    assert check(log.path).faults == ()
    made, text = layout.manifest(1, 7)
    (layout.segment(1, 7) / "segment.json").write_bytes(replace(made, stands_for="0" * 64).to_json().encode())
    assert any("hash chain" in fault.text for fault in check(log.path).faults)
    log.close()
    with pytest.raises(InvariantViolated, match="hash chain"):
        FileLog.open(log.path, IDENTITY)
    (layout.segment(1, 7) / "segment.json").write_bytes(text)
    FileLog.open(log.path, IDENTITY).close()


def test_segments_compacted_twice_keep_chain_and_seams(log: FileLog) -> None:
    """A log is compacted over and over for years."""
    for n in range(3):
        Writer.of(log).put(orders(n))
        log.roll()
        log.seal_pending()
    retention = LogRetention(Layout(log.path), grace_s=0)
    retention.compact()
    for n in range(3, 7):
        Writer.of(log).put(orders(n))
        log.roll()
        log.seal_pending()
    retention.compact()
    made, newest = list_segments(log.path)
    assert [offset for _, offset in made.seams] == [1, 2, 3, 4, 5]
    assert (made.last_offset, newest.first_offset) == (6, 7)
    assert check(log.path, deep=True).faults == ()
    log.close()


def test_replaced_segments_stay_for_their_readers(log: FileLog) -> None:
    """Spark lists files first and reads them minutes later: a file that vanishes in between fails the merge."""
    story(log)
    retention = LogRetention(Layout(log.path), grace_s=600)
    retention.compact()
    layout = Layout(log.path)
    assert len(layout.listed_segments()[0]) == 6
    assert len(layout.segment_offsets()) == 2
    assert check(log.path, deep=True).faults == ()
    log.close()
    FileLog.open(log.path, IDENTITY).close()
    assert len(layout.listed_segments()[0]) == 6, "a start is no reason to hurry"
    LogRetention(layout, grace_s=0).sweep()
    assert layout.listed_segments()[0] == [(1, 7), (8, 8)]
    assert check(log.path, deep=True).faults == ()


def test_compacted_segment_expires_whole(log: FileLog) -> None:
    """Expiry counts only valid segments, and the segments that they covered must not reappear."""
    story(log)
    retention = LogRetention(Layout(log.path), grace_s=600)
    retention.compact()
    gone = retention.expire(ExpiryRule(bytes_max=1))
    assert [(s.first_offset, s.last_offset) for s in gone] == [(1, 7)]
    assert Layout(log.path).listed_segments()[0] == [(8, 8)]
    assert [row[2] for row in rows_of_from(log.path, 8)] == [9]
    log.close()


def rows_of_from(place: Path, first: int) -> list[tuple[object, ...]]:
    return [(r["_offset"], r["_op"], r["id"]) for _, _, rows in read_rows(place, first) for r in rows.to_pylist()]


def test_segments_that_do_not_follow_each_other_are_not_compacted(log: FileLog) -> None:
    """Otherwise the hole would be sealed over permanently."""
    story(log)
    layout = Layout(log.path)
    first, third = list_segments(log.path)[0], list_segments(log.path)[2]
    pair = [layout.manifest(s.first_offset, s.last_offset) for s in (first, third)]
    with pytest.raises(InvariantViolated, match="does not continue"):
        compact(pair, layout.file, lambda name: pytest.fail(f"{name} was begun"))
    log.close()


def test_segments_of_an_older_cdcflow_are_compacted_into_one_of_today(log: FileLog) -> None:
    """A log is kept for years, and its beginning was written by a cdcflow that recorded nothing about keys."""
    story(log)
    layout = Layout(log.path)
    manifests = [layout.manifest(s.first_offset, s.last_offset) for s in list_segments(log.path)[:2]]
    older = [(as_of_version_2(segment), text) for segment, text in manifests]
    assert [Segment.from_json(text) for text, _ in older] == [without_runs(segment) for segment, _ in manifests]
    files: dict[str, BytesIO] = {}

    def open_target(name: str) -> BytesIO:
        files[name] = Kept()
        return files[name]

    made = compact([(Segment.from_json(text), said) for text, said in older], layout.file, open_target)
    assert json.loads(made.to_json())["version"] == 4
    assert [f.key_runs for f in made.files if f.version == 2] == [(("7", "7"),)]
    log.close()


class Kept(BytesIO):
    def close(self) -> None:
        pass


def as_of_version_2(segment: Segment) -> str:
    value = json.loads(segment.to_json())
    for file in value["files"]:
        del file["key_runs"]
    del value["stands_for"], value["seams"]
    return json.dumps({**value, "version": 2})


def without_runs(segment: Segment) -> Segment:
    return replace(segment, files=tuple(replace(f, key_runs=None) for f in segment.files))


def test_runs_of_keys_are_those_of_all_rows_together(log: FileLog) -> None:
    """Of two files in which a key appears once each, the joined file must not claim so: the next merge would trust
    it, and have the row twice."""
    writer = Writer.of(log)
    for keys in ((1, 2, 3), (9, 4, 8), (4, 20), (5,)):
        writer.put(orders(*keys))
        log.roll()
        log.seal_pending()

    def told() -> list[object]:
        return [f.key_runs for s in list_segments(log.path) for f in s.files if f.table is not None]

    apart = [(("1", "3"),), (("4", "4"), ("8", "9")), (("4", "4"), ("20", "20")), (("5", "5"),)]
    assert told() == apart
    layout = Layout(log.path)

    def together(count: int) -> object:
        chosen = [layout.manifest(s.first_offset, s.last_offset) for s in list_segments(log.path)[:count]]
        made = compact(chosen, layout.file, lambda _: Kept())
        return next(f.key_runs for f in made.files if f.table is not None)

    assert together(2) == (("1", "4"), ("8", "9"))
    assert together(3) is None
    log.close()
