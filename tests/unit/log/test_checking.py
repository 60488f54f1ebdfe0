"""Every fault that `cdcflow log check` can find in a log: it reports that fault, with the file's name, and nothing
else."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.support.log import empty_journals

from cdcflow.errors import ConfigurationError
from cdcflow.log.files.extents import counted_records
from cdcflow.log.files.inventory import inventory
from cdcflow.log.files.layout import Layout
from cdcflow.log.format.journal import CutMark, JournalHeader, Record
from cdcflow.log.format.rows import ShapeEntry, ShapeRows
from cdcflow.log.format.segment import Segment
from cdcflow.log.format.transactions import TransactionHeaders
from cdcflow.log.read import check as checking
from cdcflow.log.read.check import CheckReport, Seen, check
from cdcflow.model.change import Kind
from cdcflow.model.position import Checkpoint, Epoch, Offset, SourceIdentity
from cdcflow.sinks.files.log import FileLog
from cdcflow.testing.sinks import ORDERS, PRODUCTS, Writer, changes, orders, transactions

IDENTITY = SourceIdentity("postgres", "7301", "shop", "1")
SEGMENTS = ((1, 4), (5, 7), (8, 9))


def product(number: int, at: int, **more: object) -> Any:
    return changes(PRODUCTS, [{"id": number, **more}], [at])


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Segments of offsets 1-4, 5-7 and 8-9, a closed journal from 10 with a spool, and the latest journal from 13."""
    log = FileLog.open(tmp_path_factory.mktemp("checking") / "log", IDENTITY)
    writer = Writer.of(log)
    rows = changes(ORDERS, [{"id": 1, "_op": "u"}, {"id": 2}, {"id": 4, "_op": "d"}], [0, 1, 3])
    writer.put(transactions([1, 2, 3], [2, 2, 4], rows, product(3, 2)))
    log.roll()
    writer.put(orders(5, xid=4))
    writer.put(transactions([5], [2], changes(ORDERS, [{"id": 6}], [0]), product(7, 1)))
    log.roll()
    writer.put(orders(8, 9, xid=6))
    log.roll()
    log.seal_pending()
    spooled = writer.write_spool(
        7, [((changes(ORDERS, [{"id": n} for n in (10, 0, 11)]),), np.array([7, 8, 7]))], [8], 2
    )
    writer.put(spooled, orders(12, xid=8))
    log.roll()
    writer.put(orders(13, xid=9))
    return log.path


class Copy:
    """A copy of a log that no process has opened for writing: a fault in one part must not be refused because of
    another."""

    def __init__(self, written: Path, root: Path) -> None:
        self.root = shutil.copytree(written, root)
        self.layout = Layout(root)
        self.layout.epoch.unlink()

    def faults(self, *, deep: bool = False) -> list[tuple[str, str]]:
        found = check(self.root, deep=deep).faults
        return [(str(Path(f.where).relative_to(self.root)), f.text) for f in found]

    def manifest(self, number: int) -> Segment:
        return self.layout.manifest(*SEGMENTS[number])[0]

    def directory(self, number: int) -> Path:
        return self.layout.segment(*SEGMENTS[number])

    def name(self, number: int) -> str:
        return str(self.directory(number).relative_to(self.root))

    def rewrite(self, number: int, **changed: Any) -> None:
        """Change a manifest, and chain the ones after it to its new hash."""
        segment = replace(self.manifest(number), **changed)
        (self.directory(number) / "segment.json").write_text(segment.to_json())
        for later in range(number + 1, len(SEGMENTS)):
            text = (self.directory(later - 1) / "segment.json").read_bytes()
            after = replace(self.manifest(later), previous=hashlib.sha256(text).hexdigest())
            (self.directory(later) / "segment.json").write_text(after.to_json())

    def put(self, number: int, prefix: str, content: Callable[[pa.Table], pa.Table | bytes]) -> str:
        """Change a file of a segment, and seal that; its name below the log."""
        files = list(self.manifest(number).files)
        (at,) = (i for i, f in enumerate(files) if f.path.startswith(prefix))
        path = self.directory(number) / files[at].path
        made = content(pq.read_table(path))
        if isinstance(made, bytes):
            path.write_bytes(made)
        else:
            pq.write_table(made, path)
        text = path.read_bytes()
        files[at] = replace(files[at], bytes=len(text), sha256=hashlib.sha256(text).hexdigest())
        self.rewrite(number, files=tuple(files))
        return str(path.relative_to(self.root))


@pytest.fixture
def copy(written: Path, tmp_path: Path) -> Copy:
    return Copy(written, tmp_path / "copy")


def with_column(name: str, values: list[Any]) -> Callable[[pa.Table], pa.Table]:
    def changed(table: pa.Table) -> pa.Table:
        at = table.schema.get_field_index(name)
        return table.set_column(at, table.schema.field(at), pa.array(values, table.schema.field(at).type))

    return changed


@pytest.mark.parametrize("deep", [False, True])
@pytest.mark.parametrize("never_opened", [False, True])
def test_a_whole_log_has_no_faults_and_everything_in_it_is_counted(
    written: Path, copy: Copy, deep: bool, never_opened: bool
) -> None:
    """An operator who restores a copy compares these counts with those of the lost log."""
    root = copy.root if never_opened else written
    layout = Layout(root)
    sealed = [f.stat().st_size for f in root.glob("segments/*/*.parquet")]
    journals = [layout.journal(first).stat().st_size for first in layout.journal_offsets()]
    found = check(root, deep=deep)
    assert found == CheckReport((), 3, 2, 9, 13, sum(sealed) + sum(journals), 1, 14)
    assert found.is_whole


def test_a_log_whose_oldest_part_has_expired_is_whole(tmp_path: Path) -> None:
    """It begins with another offset, transaction and cut than the first; nothing before them counts as missing."""
    log = FileLog.open(tmp_path / "log", IDENTITY)
    writer = Writer.of(log)
    for number in (1, 2, 3):
        writer.put(orders(number, xid=number))
        log.roll()
        log.seal_pending()
    log.expire(before_cut=2)
    found = check(log.path, deep=True)
    assert (found.faults, found.segments, found.rows, found.first_offset, found.next_offset) == ((), 2, 2, 2, 4)


def test_sealed_journal_that_still_exists_is_not_counted_twice(tmp_path: Path) -> None:
    """A crash between the two leaves both."""
    log = FileLog.open(tmp_path / "log", IDENTITY)
    writer = Writer.of(log)
    writer.put(orders(1, 2))
    log.roll()
    kept = log._layout.journal(1).read_bytes()
    writer.put(orders(3))
    log.seal_pending()
    log._layout.journal(1).write_bytes(kept)
    log._layout.epoch.unlink()
    found = check(log.path)
    assert (found.faults, found.segments, found.journals, found.rows, found.next_offset) == ((), 1, 1, 3, 4)


# ── manifests ───────────────────────────────────────────────────────────────────────────────────────────────


def test_segment_of_another_log_is_reported(copy: Copy) -> None:
    """For example, because it was restored into the wrong place."""
    copy.rewrite(1, log_id="another")
    assert copy.faults() == [(copy.name(1), "it belongs to another log")]


def test_manifest_that_was_changed_is_reported_at_the_next_one(copy: Copy) -> None:
    """The next manifest contains its hash, so a change is found there; no manifest contains the hash of the last
    one."""
    for number in (1, 2):
        path = copy.directory(number) / "segment.json"
        path.write_text(path.read_text() + " ")
    text = "the hash chain breaks here: the manifest before is not the one that was sealed"
    assert copy.faults() == [(copy.name(2), text)]


def test_missing_segment_is_reported_with_its_offsets(copy: Copy) -> None:
    """The finding names the offsets to restore; the chain of manifests is broken there."""
    shutil.rmtree(copy.directory(1))
    assert [f for f in copy.faults() if "journal" not in f[0]] == [
        (copy.name(2), "offsets 5 to 7 before it are missing"),
        (copy.name(2), "the hash chain breaks here: the manifest before is not the one that was sealed"),
        (copy.name(2), "it begins with transaction 6, not 4"),
    ]


@pytest.mark.parametrize(
    ("changed", "texts"),
    [
        ({"first_transaction": 5}, ["it begins with transaction 5, not 4", "transaction numbers have gaps"]),
        ({"first_cut": 1}, ["its cuts 1-3 do not follow cut 1"]),
        ({"last_cut": 1}, ["its cuts 2-1 do not follow cut 1", "its checkpoint does not match its last cut"]),
    ],
)
def test_numbers_that_do_not_follow_the_segment_before_are_reported(
    copy: Copy, changed: dict[str, int], texts: list[str]
) -> None:
    """Merges go by cuts, and readers by transactions."""
    copy.rewrite(1, **changed)
    assert [f for f in copy.faults() if f[0] == copy.name(1)] == [(copy.name(1), text) for text in texts]


def test_a_segment_of_one_cut_is_fine_and_the_one_after_it_begins_with_a_higher_one(copy: Copy) -> None:
    """The first and the last cut are the same there; no two segments share one."""
    assert (copy.manifest(0).first_cut, copy.manifest(0).last_cut) == (1, 1)
    assert copy.faults() == []
    copy.rewrite(2, first_cut=3)
    assert copy.faults() == [(copy.name(2), "its cuts 3-4 do not follow cut 3")]


@pytest.mark.parametrize("field", ["next_offset", "cut"])
def test_checkpoint_with_another_position_is_reported(copy: Copy, field: str) -> None:
    """A daemon that starts at the segment's end would resume from that position."""
    checkpoint: dict[str, Any] = dict(copy.manifest(1).checkpoint)
    copy.rewrite(1, checkpoint={**checkpoint, field: checkpoint[field] + 1})
    assert copy.faults() == [(copy.name(1), "its checkpoint does not match its last cut")]


# ── what the files hold ─────────────────────────────────────────────────────────────────────────────────────


def test_file_with_other_bytes_is_reported_with_its_size(copy: Copy) -> None:
    """One flipped bit is enough, even in a value that is never read; so are bytes appended to the file."""
    path = next(copy.directory(1).glob("shop.orders*.parquet"))
    content = path.read_bytes()
    path.write_bytes(content[:4] + bytes([content[4] ^ 1]) + content[5:])
    size = len(content)
    wrong = f"its content differs from what was sealed ({size} bytes, {size} were sealed)"
    assert (str(path.relative_to(copy.root)), wrong) in copy.faults()
    path.write_bytes(content + b"x")
    assert any(f"({size + 1} bytes, {size} were sealed)" in text for _, text in copy.faults())


def test_missing_file_is_reported_with_the_offsets_that_are_lost(copy: Copy) -> None:
    """And the segments after it are still checked."""
    path = next(copy.directory(0).glob("shop.orders*.parquet"))
    path.unlink()
    name = str(path.relative_to(copy.root))
    lost = "a file is missing: offsets 1 to 4 cannot be read"
    assert copy.faults() == [(name, "it is missing"), (copy.name(0), lost)]
    assert check(copy.root).next_offset == 14
    manifest = copy.directory(2) / "segment.json"
    manifest.unlink()
    assert copy.faults()[2:] == [(copy.name(2), f"{manifest} is missing: offsets 8 to 9 cannot be read")]


def test_unreadable_file_is_reported_without_its_content(copy: Copy) -> None:
    """Its hash may be right: then it was sealed so. Arrow's message could quote it."""
    copy.put(1, "shop.orders", lambda table: b"secret" * 9)
    assert copy.faults() == [(copy.name(1), "cannot be read (ArrowInvalid)")]


GAPS = "transactions do not follow each other without gaps"
OWNERS = "rows name transactions whose offsets do not include them"


def counted(there: int, rows: int, all_: int = 4) -> str:
    return f"it should have {all_} offsets once each; it has {there}, in {rows} rows"


@pytest.mark.parametrize(
    ("column", "values", "texts"),
    [
        ("number", [1, 2, 4], ["transaction numbers have gaps"]),
        ("number", [2, 3, 4], ["transaction numbers have gaps"]),
        ("number", [1, 2, 2], ["transaction numbers have gaps"]),
        ("first_offset", [2, 3, 3], [GAPS]),
        ("first_offset", [1, 3, 4], [GAPS]),
        ("first_offset", [1, 4, 3], [GAPS]),
        ("commit_clock", [5, 5, 6], ["the commit clock does not increase"]),
        ("commit_clock", [5, 6, 5], ["the commit clock does not increase"]),
    ],
)
def test_transactions_that_do_not_follow_each_other_are_reported(
    copy: Copy, column: str, values: list[int], texts: list[str]
) -> None:
    """In transactions 1 to 3 of offsets 1-2, none, 3-4. A reader of a range would miss some rows, or read one twice."""
    copy.put(0, "transactions", with_column(column, values))
    faults = [text for where, text in copy.faults() if where == copy.name(0)]
    assert faults == texts


def test_transactions_that_have_no_rows_end_before_they_begin_and_no_further(copy: Copy) -> None:
    """Transaction 2 has none: its last offset is the one before its first."""
    assert copy.faults() == []
    copy.put(0, "transactions", with_column("last_offset", [2, 1, 4]))
    assert (copy.name(0), GAPS) in copy.faults()


@pytest.mark.parametrize(
    ("column", "values", "texts"),
    [
        ("_offset", [1, 4, 2], ["offsets are not in ascending order", OWNERS]),
        ("_offset", [1, 1, 4], ["offsets are not in ascending order", counted(3, 4)]),
        ("_offset", [1, 2, 3], [counted(3, 4)]),
        ("_offset", [0, 2, 4], ["offsets are not in ascending order", "it has offsets that are not the segment's"]),
        ("_offset", [1, 2, 5], ["it has offsets that are not the segment's"]),
        ("_txn", [1, 2, 3], [OWNERS]),
        ("_txn", [2, 1, 3], [OWNERS]),
    ],
)
def test_missing_duplicate_or_unordered_rows_are_reported(
    copy: Copy, column: str, values: list[int], texts: list[str]
) -> None:
    """In rows of offsets 1, 2 and 4. The last row of a key is the one that counts: a wrong order is a wrong table."""
    copy.put(0, "shop.orders", with_column(column, values))
    assert [text for _, text in copy.faults()] == texts


def test_missing_row_is_reported(copy: Copy) -> None:
    """Also where the manifest's own row count does not show it."""
    copy.put(0, "shop.orders", lambda table: table.slice(0, 2))
    assert copy.faults() == [(copy.name(0), counted(3, 3))]


def test_rows_of_a_second_batch_continue_those_of_the_first(tmp_path: Path) -> None:
    """A file is read in batches; its offsets ascend over all of them."""
    log = FileLog.open(tmp_path / "log", IDENTITY)
    ids = np.arange(1, (1 << 17) + 3)
    rows = pa.RecordBatch.from_pydict(
        {
            "id": ids,
            "note": pa.nulls(len(ids), pa.string()),
            "_op": ["c"] * len(ids),
            "_unchanged": pa.nulls(len(ids), ORDERS.change_schema.field("_unchanged").type),
            "_before": pa.nulls(len(ids), ORDERS.before_type),
        },
        ORDERS.change_schema,
    )
    batch = replace(orders(1).batches[0], index=ids - 1, rows=rows)
    Writer.of(log).put(transactions([1], [len(ids)], batch))
    log.roll()
    log.seal_pending()
    assert check(log.path).is_whole
    (path,) = log.path.glob("segments/*/shop.orders*.parquet")
    whole = pq.read_table(path)
    at = 1 << 17
    offsets = [*range(1, at + 1), at, at + 2]
    pq.write_table(with_column("_offset", offsets)(whole), path)
    assert "offsets are not in ascending order" in [f.text for f in check(log.path).faults]


def test_counts_in_the_manifest_are_verified_by_a_deep_check(copy: Copy) -> None:
    """The merge chooses its way by these counts: of updates, deletes and inserts."""
    files = list(copy.manifest(0).files)
    (at,) = (i for i, f in enumerate(files) if f.path.startswith("shop.orders"))
    assert files[at].ops == {"u": 1, "c": 1, "d": 1}
    files[at] = replace(files[at], ops={"u": 1, "c": 2})
    copy.rewrite(0, files=tuple(files))
    assert copy.faults() == []
    name = f"{copy.name(0)}/{files[at].path}"
    assert copy.faults(deep=True) == [(name, "the number of changes differs from the manifest")]


@pytest.mark.parametrize("runs", [(("6", "6"),), (("5", "5"),), (("8", "9"),), ()])
def test_keys_that_do_not_match_the_manifest_are_reported_by_a_deep_check(copy: Copy, runs: Any) -> None:
    """A first merge trusts it, and reduces nothing."""
    files = list(copy.manifest(1).files)
    (at,) = (i for i, f in enumerate(files) if f.path.startswith("shop.orders"))
    assert files[at].key_runs == (("5", "6"),)
    files[at] = replace(files[at], key_runs=runs)
    copy.rewrite(1, files=tuple(files))
    assert copy.faults() == []
    name = f"{copy.name(1)}/{files[at].path}"
    assert copy.faults(deep=True) == [(name, "its keys are not in the ranges of the manifest, or not exactly once")]


def test_columns_that_do_not_match_the_shape_are_reported_by_a_deep_check(copy: Copy) -> None:
    """A merge would cast them, or fail during the night."""
    name = copy.put(0, "shop.orders", lambda table: table.drop_columns(["note"]))
    assert copy.faults(deep=True) == [(name, "its columns differ from the shape in the manifest")]


def test_rows_without_a_commit_time_are_reported_by_a_deep_check(copy: Copy) -> None:
    """A reader would assume that the file exists."""

    def without(table: pa.Table) -> pa.Table:
        at = table.schema.get_field_index("_commit_ts")
        field = table.schema.field(at).with_nullable(True)
        return table.set_column(at, field, pa.array([None, 5, 6], field.type))

    name = copy.put(0, "shop.orders", without)
    assert (name, "rows have no commit time") in copy.faults(deep=True)
    assert copy.faults() == []


# ── journals ────────────────────────────────────────────────────────────────────────────────────────────────

BASE = Checkpoint(next_offset=Offset(10), next_transaction=5, cut=3, epoch=Epoch(1))


def run(first: int = 10, number: int = 5, ends: tuple[int, ...] = (2, 3), clock: tuple[int, ...] = (8, 9)) -> Record:
    count = len(ends)
    ids = np.arange(count, dtype=np.uint64)
    ts = np.array(clock, np.int64)
    text = pa.array(["p"] * count)
    return TransactionHeaders(first, number, Kind.SOURCE, np.array(ends, np.int64), ids, text, ts, ts)


def rows(*offsets: int) -> Record:
    stored = changes(ORDERS, [{"id": o} for o in offsets]).rows
    return ShapeRows(ShapeEntry(ORDERS, 1), np.array(offsets, np.int64), stored)


def cut(offset: int = 13, transaction: int = 7, number: int = 4, clock: int = 9) -> Record:
    moved = replace(BASE, next_offset=Offset(offset), next_transaction=transaction, cut=number, commit_clock=clock)
    return CutMark(moved, 0)


def seen_in(*records: Record, log_id: str = "mine", deep: bool = False, **seen: Any) -> Seen:
    found = Seen(**{"next_offset": 10, **seen})
    checking.journal("the journal", "mine", JournalHeader(log_id, Epoch(1), BASE), records, found, deep=deep)
    assert {f.where for f in found.faults} <= {"the journal"}
    return found


def texts(found: Seen) -> list[str]:
    return [f.text for f in found.faults]


def test_whole_journal_is_counted_and_leaves_the_state_for_the_next_file() -> None:
    """The next file must continue there."""
    found = seen_in(ShapeEntry(ORDERS, 1), run(), rows(10, 12), rows(11), cut())
    assert texts(found) == []
    assert (found.journals, found.transactions, found.rows) == (1, 2, 3)
    assert (found.next_offset, found.next_transaction, found.cut) == (13, 7, 4)


def test_a_clock_that_a_heartbeat_moved_is_whole() -> None:
    """Cuts without rows carry the time of an idle source, and every later cut has a later time."""
    late = run(number=7, first=13, clock=(31, 32)), rows(13, 14, 15), cut(16, 9, 7, clock=40)
    found = seen_in(run(), rows(10, 11, 12), cut(), cut(number=5, clock=20), cut(number=6, clock=30), *late)
    assert (texts(found), found.clock) == ([], 40)


@pytest.mark.parametrize(
    ("records", "words"),
    [
        ([run(first=11), rows(11, 12, 13), cut(14)], "offset 11 and transaction 5 come where offset 10"),
        ([run(number=6), rows(10, 11, 12), cut(13, 8)], "offset 10 and transaction 6 come where"),
        ([run(), rows(10, 11), cut()], "is incomplete: 1 of its rows are missing"),
        ([run(), rows(10, 11)], "is incomplete: 1 of its rows are missing"),
        ([run(), rows(10, 11, 12), cut(14)], "cut 4 is at offset 14"),
        ([run(), rows(10, 11, 12), cut(number=3)], "cut 3 comes after cut 3"),
        ([run(clock=(9, 9)), rows(10, 11, 12), cut()], "the commit clock does not increase"),
        ([run(), rows(10, 11, 12), cut(clock=8)], "the commit clock goes back at a cut"),
        ([cut(10, 5, clock=8), run(), rows(10, 11, 12), cut(number=5)], "the commit clock does not increase"),
    ],
)
def test_frame_that_cannot_follow_in_a_journal_is_reported(records: list[Record], words: str) -> None:
    """Its checksums may be right: only a fault in cdcflow writes such a frame."""
    (text,) = texts(seen_in(*records))
    assert words in text


def test_journal_that_is_not_the_next_one_is_reported() -> None:
    """It belongs to another log, begins at another offset, or repeats an earlier cut."""
    assert texts(seen_in(log_id="other")) == ["it belongs to another log"]
    assert texts(seen_in(next_offset=9)) == ["it begins at offset 10, and offset 9 was expected"]
    (text,) = texts(seen_in(run(), rows(10, 11, 12), cut(number=5), cut=5))
    assert text == "cut 5 comes after cut 5"


def test_values_of_a_journal_are_checked_by_a_deep_check() -> None:
    """For example, an offset of a text that points past the end of its bytes."""
    whole = changes(ORDERS, [{"id": n, "note": "abc"} for n in (10, 11, 12)]).rows
    offsets = pa.py_buffer(np.array([0, 3, 2, 9], np.int32))
    note = pa.Array.from_buffers(pa.string(), 3, [None, offsets, pa.py_buffer(b"abcabcabc")])
    columns = [note if name == "note" else whole.column(name) for name in whole.schema.names]
    damaged = pa.RecordBatch.from_arrays(columns, schema=whole.schema)
    found = ShapeRows(ShapeEntry(ORDERS, 1), np.array([10, 11, 12], np.int64), damaged)
    assert texts(seen_in(run(), found, cut())) == []
    with pytest.raises(pa.ArrowInvalid):
        seen_in(run(), found, cut(), deep=True)


def test_spool_s_rows_are_checked_where_it_is_attached(copy: Copy) -> None:
    """They are rows like any others; without the spool they are missing."""
    assert check(copy.root).rows == 13
    (spool,) = copy.layout.spools.iterdir()
    spool.write_bytes(spool.read_bytes()[:-8])
    assert copy.faults() != []


def test_journal_that_is_damaged_before_a_cut_is_reported(copy: Copy) -> None:
    """And damage before that cut is reported all the same."""
    path = copy.layout.journal(10)
    content = bytearray(path.read_bytes())
    content[-60] ^= 1
    path.write_bytes(bytes(content))
    ((where, text),) = copy.faults()
    assert where == "journal"
    assert f"reading {path}" in text
    assert (check(copy.root).segments, check(copy.root).next_offset) == (3, 10)


def test_damage_that_a_start_would_refuse_is_reported(written: Path, tmp_path: Path) -> None:
    """`log check` and the daemon must agree about a log."""
    layout = Layout(shutil.copytree(written, tmp_path / "log"))
    layout.journal(10).unlink()
    found = check(layout)
    assert [(f.where, "the journal or segment from offset 10 is missing" in f.text) for f in found.faults] == [
        (str(layout.journals), True)
    ]
    assert (found.segments, found.journals) == (3, 0)


def test_log_that_is_sealed_during_the_check_is_checked_in_its_segment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A running daemon seals journals while they are checked: no fault is reported, and nothing is counted twice."""
    log = FileLog.open(tmp_path / "log", IDENTITY)
    writer = Writer.of(log)
    writer.put(orders(1, 2))
    log.roll()
    writer.put(orders(3))
    sealed = list[bool]()

    def seals(layout: Layout, extent: Any) -> Any:
        if not sealed:
            log.seal_pending()
            sealed.append(True)
        return counted_records(layout, extent)

    monkeypatch.setattr(checking, "counted_records", seals)
    found = check(log.path, deep=True)
    assert (found.faults, found.segments, found.journals, found.rows, found.transactions) == ((), 1, 1, 3, 2)
    assert found.next_offset == 4


def test_empty_journal_that_a_restart_replaces_during_the_check_is_no_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A daemon that starts next to the check writes another journal under the name of one that holds no rows."""
    root = empty_journals.write_log(tmp_path / "log", IDENTITY)
    restarted = list[FileLog]()

    def restarts(layout: Layout, extent: Any) -> Any:
        if extent.header.first_offset == 3 and not restarted:
            restarted.append(_restarted(root))
        return counted_records(layout, extent)

    monkeypatch.setattr(checking, "counted_records", restarts)
    found = check(root, deep=True)
    assert (found.faults, found.rows, found.next_offset) == ((), 2, 3)
    assert restarted


def _restarted(path: Path) -> FileLog:
    """A log opened again, with a cut whose progress is larger than what the journal held before."""
    log = FileLog.open(path, IDENTITY)
    writer = Writer.of(log)
    writer.checkpoint = replace(writer.checkpoint, progress={"tables": {"shop.orders": {"state": "x" * 500}}})
    writer.put()
    return log


def test_file_that_vanishes_during_the_check_is_searched_again(written: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A daemon that seals during the check is no fault; one that never lets the log be read whole is."""
    gone = [FileNotFoundError(2, "gone", "journal"), FileNotFoundError(2, "gone", "journal")]

    def vanishes(*given: Any) -> Any:
        if gone:
            raise gone.pop()
        return inventory(*given)

    monkeypatch.setattr(checking, "inventory", vanishes)
    assert check(written).is_whole
    gone += [FileNotFoundError(2, "gone", "journal")] * 3
    found = check(written)
    assert [f.where for f in found.faults] == [str(Layout(written).journals)]
    assert found.journals == 0


def test_check_of_a_missing_log_is_refused(tmp_path: Path) -> None:
    """A wrong path must not look like a log without faults."""
    with pytest.raises(ConfigurationError, match="there is no log here"):
        check(tmp_path)
