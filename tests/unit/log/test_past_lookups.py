"""What a writer looks up in its log's past at a start, and that it reads no more than the answer needs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cdcflow.errors import KeysUnknown
from cdcflow.log.files.layout import Layout
from cdcflow.log.read import lookup
from cdcflow.log.read.lookup import gather_keys
from cdcflow.model.change import KeySet, Run, reads
from cdcflow.model.position import Offset, Position, SourceIdentity
from cdcflow.model.table import Column, Table
from cdcflow.model.types import ColumnType
from cdcflow.sinks.files.log import FileLog
from cdcflow.testing.sinks import BIGINT, ORDERS, PRODUCTS, TEXT, Writer, changes, orders, transactions

PARTIAL = {"_op": "u", "_unchanged": ["note"]}


def backfilled(number: int) -> Run:
    rows = pa.RecordBatch.from_pylist([{"id": number, "note": None}], ORDERS.row_schema)
    return reads(ORDERS, [rows], Position("0/9"), 5)


class Story:
    """A log whose segments each have one run, and which of its files are opened."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.log = FileLog.open(path, SourceIdentity("postgres", "1", "shop"))
        self.writer = Writer.of(self.log)
        self.opened: list[int] = []
        self.manifests: list[int] = []
        manifest, file = Layout.manifest, Layout.file

        def manifest_read(layout: Layout, first: int, last: int) -> object:
            self.manifests.append(first)
            return manifest(layout, first, last)

        def file_read(layout: Layout, segment: object, *more: object, **named: object) -> object:
            self.opened.append(segment.first_offset)  # type: ignore[attr-defined]  # a manifest
            return file(layout, segment, *more, **named)  # type: ignore[arg-type]  # as it came

        monkeypatch.setattr(Layout, "manifest", manifest_read)
        monkeypatch.setattr(Layout, "file", file_read)

    def sealed(self, *runs: Run) -> None:
        self.writer.put(*runs)
        assert self.log.roll()
        self.log.seal_pending()

    def delivered(self, *xids: int) -> list[int]:
        self.opened.clear()
        self.manifests.clear()
        found: list[int] = self.log.delivered(np.array(xids, np.uint64)).tolist()
        return found

    def back_to(self, position: str) -> list[tuple[int, str]]:
        self.opened.clear()
        found = self.log.transactions_back(lambda at: at.text <= position)
        return [(row["xid"], row["position"]) for row in found.to_pylist()]

    def partial(self, table: Table, since: int) -> list[object] | None:
        self.opened.clear()
        found = self.log.partial_keys(table.id, Offset(since))
        return None if found is None else sorted(found.keys.column(0).to_pylist())


@pytest.fixture
def story(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Story:
    """Segments of transactions 10 and 14, 20, a backfill, 30; then 40 and 41 in journals."""
    found = Story(tmp_path / "log", monkeypatch)
    found.sealed(orders(1, xid=10), orders(2, xid=14))
    found.sealed(orders(3, xid=20))
    found.sealed(backfilled(4))
    found.sealed(orders(5, xid=30))
    found.writer.put(orders(6, xid=40))
    found.log.roll()
    found.writer.put(orders(7, xid=41), backfilled(8))
    return found


@pytest.mark.parametrize(
    ("asked", "found", "opened"),
    [
        ((40, 41), [40, 41], []),
        ((42, 43), [], []),
        ((40, 30), [40, 30], [5]),
        ((20, 10), [20, 10], [3, 1]),
        ((14,), [14], [1]),
        ((11, 12), [], [1]),
        ((15, 16), [], []),
        ((9,), [], []),
        ((25,), [], []),
        ((9, 20, 99), [20], [3]),
        ((), [], []),
    ],
)
def test_transactions_are_searched_only_in_segments_that_may_have_them(
    story: Story, asked: tuple[int, ...], found: list[int], opened: list[int]
) -> None:
    """A wrong answer costs a commit that is applied twice, or never; a careless start reads the whole log. Manifests
    bound what each segment has."""
    assert story.delivered(*asked) == found
    assert story.opened == opened


def test_no_manifest_is_read_once_all_are_found_or_all_are_newer(story: Story) -> None:
    """From the latest back: most lookups concern the last seconds."""
    assert story.delivered(41, 40) == [41, 40]
    assert story.manifests in ([], [5])
    assert story.delivered(35) == []
    assert story.manifests == [5]


def test_ids_are_compared_by_their_low_bits_and_go_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """P31: the log has 32 bits, a snapshot 64; after 2^32 they begin again."""
    story = Story(tmp_path / "log", monkeypatch)
    story.sealed(orders(1, xid=(1 << 32) - 2))
    story.sealed(orders(2, xid=3))
    epoch = 5 << 32
    assert story.delivered(epoch + 3, epoch - 2, epoch + 4) == [epoch + 3, epoch - 2]
    assert story.delivered(epoch + 4) == []
    assert story.opened == []


def test_positions_are_found_back_to_the_one_that_is_enough(story: Story) -> None:
    """A source compares them with the server's after a failover; backfills do not have any source transaction."""
    assert story.back_to("0/29") == [(41, "0/29")]
    assert story.opened == []
    assert story.back_to("0/28") == [(40, "0/28"), (41, "0/29")]
    assert story.back_to("0/14") == [(20, "0/14"), (30, "0/1E"), (40, "0/28"), (41, "0/29")]
    assert story.opened == [5, 3], "the backfill's is not opened, and none before what is enough"
    assert story.back_to("0/0") == [(10, "0/A"), (14, "0/E"), (20, "0/14"), (30, "0/1E"), (40, "0/28"), (41, "0/29")]


def test_a_log_of_backfills_only_has_no_transactions_to_compare(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing before them has any either: a single manifest shows that."""
    story = Story(tmp_path / "log", monkeypatch)
    for number in (1, 2, 3):
        story.sealed(backfilled(number))
    assert story.back_to("0/0") == []
    assert story.delivered(1) == []
    assert story.manifests == [3]


# ── keys of partial rows ────────────────────────────────────────────────────────────────────────────────────


def partial(*keys: int, table: Table = ORDERS, xid: int = 9) -> Run:
    return transactions([xid], [len(keys)], changes(table, [{"id": key, **PARTIAL} for key in keys]))


@pytest.fixture
def partials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Story:
    """Partial rows at offsets 1, 2, 4 and, in journals, 6 and 7; a whole one, a deleted one, another table's."""
    found = Story(tmp_path / "log", monkeypatch)
    found.sealed(partial(1, 2, 1))
    found.sealed(partial(4))
    found.sealed(orders(50), transactions([9], [1], changes(ORDERS, [{"id": 5, "_op": "d", "_unchanged": ["note"]}])))
    found.sealed(transactions([9], [1], changes(PRODUCTS, [{"id": 60, "_op": "u", "_unchanged": ["tags"]}])))
    found.writer.put(partial(6, 7))
    found.log.roll()
    found.writer.put(partial(8), orders(51))
    return found


@pytest.mark.parametrize(
    ("since", "keys", "opened"),
    [
        (1, [1, 2, 4, 6, 7, 8], {1, 4}),
        (2, [1, 2, 4, 6, 7, 8], {1, 4}),
        (3, [1, 4, 6, 7, 8], {1, 4}),
        (4, [4, 6, 7, 8], {4}),
        (5, [6, 7, 8], set()),
        (8, [6, 7, 8], set()),
        (9, [7, 8], set()),
        (10, [8], set()),
        (11, None, set()),
    ],
)
def test_keys_of_partial_rows_start_at_an_offset(
    partials: Story, since: int, keys: list[int] | None, opened: set[int]
) -> None:
    """W11: rows whose values are to be read again after a restart. Only files that have some are read."""
    assert partials.partial(ORDERS, since) == keys
    assert set(partials.opened) == opened


def test_keys_are_those_of_the_latest_shape_whatever_a_column_was_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The source is queried by today's name and type; another key cannot be queried."""
    wide = ColumnType("numeric", pa.decimal128(20, 0))
    renamed = replace(ORDERS, columns=(Column("number", 1, wide), Column("note", 2, TEXT)), key=("number",))
    story = Story(tmp_path / "log", monkeypatch)
    story.sealed(partial(1))
    story.writer.put(partial(2))
    row = {"number": 3, "_op": "u", "_unchanged": ["note"]}
    story.writer.put(transactions([10], [1], changes(renamed, [row])))
    found = story.log.partial_keys(ORDERS.id, Offset(1))
    assert found is not None
    assert found.keys.schema == pa.schema([("number", wide.arrow)])
    assert sorted(found.keys.column("number").cast(pa.int64()).to_pylist()) == [1, 2, 3]
    other = replace(ORDERS, columns=(*ORDERS.columns, Column("other", 3, BIGINT)), key=("other",))
    story.writer.put(transactions([11], [1], changes(other, [{"id": 4, "other": 4, **PARTIAL}])))
    with pytest.raises(KeysUnknown, match="its key has changed"):
        story.log.partial_keys(ORDERS.id, Offset(1))


def keys(*values: int) -> pa.Table:
    return pa.table({"id": pa.array(values, pa.int64())})


def listed(found: KeySet | None) -> list[object] | None:
    return None if found is None else sorted(found.keys.column("id").to_pylist())


def test_keys_are_deduplicated_on_arrival_and_too_many_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hot row of a wide table appears a million times: it is one key, and must not be a million in memory."""
    assert gather_keys(ORDERS.id, []) is None
    assert gather_keys(ORDERS.id, [keys(), keys()]) is None
    monkeypatch.setattr(lookup, "GATHERED_ROWS_MAX", 3)
    monkeypatch.setattr(lookup, "PARTIAL_KEYS_MAX", 4)
    assert listed(gather_keys(ORDERS.id, [keys(1, 2), keys(), keys(2, 3), keys(3), keys(1, 4)])) == [1, 2, 3, 4]
    most: list[int] = []
    distinct = KeySet.distinct

    def counted(found: KeySet) -> KeySet:
        most.append(len(found))
        return distinct(found)

    monkeypatch.setattr(KeySet, "distinct", counted)
    assert listed(gather_keys(ORDERS.id, [keys(1, 1, 1)] * 4)) == [1]
    assert most == [6, 7, 1], "the limit is exceeded at first, and again by the keys added since then"
    with pytest.raises(KeysUnknown, match="more than 4"):
        gather_keys(ORDERS.id, [keys(1, 2), keys(3, 4), keys(5)] * 2)


def test_files_are_read_by_the_columns_that_are_needed(partials: Story, monkeypatch: pytest.MonkeyPatch) -> None:
    """The values of a wide table are most of its bytes."""
    read: list[list[str]] = []
    iter_batches: Callable[..., object] = pq.ParquetFile.iter_batches

    def noted(file: object, *more: object, columns: list[str], **named: object) -> object:
        read.append(columns)
        return iter_batches(file, *more, columns=columns, **named)

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", noted)
    partials.partial(ORDERS, 1)
    assert read == [["_offset", "_op", "_unchanged", "id"]] * 2
