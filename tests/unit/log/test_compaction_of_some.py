"""Neighbours in the middle of a log become one: what its manifest records, where the segment is stored, and what
prevents it."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cdcflow.errors import InvariantViolated
from cdcflow.log.files.compaction import Manifest, compact
from cdcflow.log.files.layout import Layout
from cdcflow.log.format.segment import Segment, manifest_hash
from cdcflow.model.change import reads
from cdcflow.model.position import Position, SourceIdentity
from cdcflow.sinks.files.log import FileLog
from cdcflow.testing.sinks import ORDERS, PRODUCTS, Writer, changes, orders, transactions


class Target(io.BytesIO):
    """A file of the new segment; what is in it when it is closed stays."""

    def __init__(self, made: dict[str, Target], name: str) -> None:
        super().__init__()
        self.content: bytes | None = None
        made[name] = self

    def close(self) -> None:
        if self.content is None:
            self.content = self.getvalue()
        super().close()


@pytest.fixture(scope="module")
def layout(tmp_path_factory: pytest.TempPathFactory) -> Layout:
    """Segments of offsets 1, 2-3, 4 (a backfill's), 5-6 and 7."""
    log = FileLog.open(tmp_path_factory.mktemp("compaction") / "log", SourceIdentity("postgres", "7301", "shop", "1"))
    writer = Writer.of(log)
    product = transactions([12], [1], changes(PRODUCTS, [{"id": 1}]))
    backfilled = reads(
        ORDERS, [pa.RecordBatch.from_pylist([{"id": 4, "note": None}], ORDERS.row_schema)], Position("p"), 0
    )
    for runs in (
        (orders(1, xid=10),),
        (orders(2, xid=11), product),
        (backfilled,),
        (orders(5, 6, xid=9),),
        (orders(7),),
    ):
        writer.put(*runs)
        log.roll()
        log.seal_pending()
    log.close()
    return Layout(log.path)


def manifests(layout: Layout, first: int, last: int) -> list[Manifest]:
    return [layout.manifest(*bounds) for bounds in layout.segment_offsets()[first:last]]


def compacted(layout: Layout, of: Sequence[Manifest]) -> tuple[Segment, dict[str, Target]]:
    made: dict[str, Target] = {}
    return compact(of, layout.file, lambda name: Target(made, name)), made


def rows_in(target: Target) -> pa.Table:
    assert target.content is not None
    return pq.read_table(io.BytesIO(target.content))


def test_compacted_neighbours_in_the_middle_keep_the_chain_intact(layout: Layout) -> None:
    """When the chain is walked back from the latest segment, it must continue before the oldest of them."""
    old = manifests(layout, 1, 4)
    (first, _), (newest, text) = old[0], old[-1]
    made, files = compacted(layout, old)
    assert (made.first_offset, made.last_offset) == (2, 6)
    assert (made.first_transaction, made.last_transaction) == (first.first_transaction, newest.last_transaction)
    assert (made.first_cut, made.last_cut) == (first.first_cut, newest.last_cut) == (2, 4)
    assert (made.previous, made.previous_offset) == (first.previous, 1)
    assert made.before == (1, 1)
    assert made.stands_for == manifest_hash(text)
    assert made.seams == ((2, 3), (3, 4))
    assert (made.xid_min, made.xid_max, made.xid_newest) == (9, 12, newest.xid_newest)
    assert sorted(files) == sorted(f.path for f in made.files)
    assert rows_in(files["transactions.parquet"]).column("number").to_pylist() == [2, 3, 4, 5]
    assert rows_in(files["shop.orders.1.parquet"]).column("_offset").to_pylist() == [2, 4, 5, 6]
    entry = next(f for f in made.files if f.path == "shop.orders.1.parquet")
    assert (entry.rows, entry.first_offset, entry.last_offset) == (4, 2, 6)
    assert made.transactions_file.rows == 4


def test_segments_of_a_backfill_have_no_bounds_of_transactions(layout: Layout) -> None:
    """`None` differs from 0: with 0, an id would be searched for in them."""
    alone, _ = compacted(layout, manifests(layout, 2, 3))
    assert (alone.xid_min, alone.xid_max) == (None, None)
    both, _ = compacted(layout, manifests(layout, 2, 4))
    assert (both.xid_min, both.xid_max) == (9, 9)


def test_compacted_segment_still_represents_the_ones_that_it_replaced(layout: Layout) -> None:
    """The segment after it contains the hash of the oldest one."""
    ((newest, text),) = manifests(layout, 3, 4)
    before = replace(newest, stands_for="f" * 64, seams=((4, 5),))
    made, _ = compacted(layout, [*manifests(layout, 2, 3), (before, text)])
    assert made.stands_for == "f" * 64
    assert made.seams == ((3, 4), (4, 5))


@pytest.mark.parametrize("changed", [{"first_offset": 6}, {"previous": "0" * 64}, {"previous": ""}])
def test_what_does_not_continue_the_one_before_is_not_compacted(layout: Layout, changed: dict[str, Any]) -> None:
    """By its offsets, and by the hash of the segment that was sealed there."""
    (first, (second, text)) = manifests(layout, 2, 4)
    with pytest.raises(InvariantViolated, match="does not continue 4-4"):
        compacted(layout, [first, (replace(second, **changed), text)])


@pytest.mark.parametrize("path", ["transactions.parquet", "shop.orders.1.parquet"])
@pytest.mark.parametrize("by", [-1, 1])
def test_file_with_other_rows_than_in_its_manifest_ends_the_compaction(layout: Layout, path: str, by: int) -> None:
    """And closes the file that it began: it would stay open otherwise, and never be read."""
    (first, (second, text)) = manifests(layout, 2, 4)
    files = tuple(replace(f, rows=f.rows + by) if f.path == path else f for f in second.files)
    lying = replace(second, files=files)
    made: dict[str, Target] = {}
    with pytest.raises(InvariantViolated, match=f"{path} has . rows, its manifest has") as stopped:
        compact([first, (lying, text)], layout.file, lambda name: Target(made, name))
    assert "compacting segment 5-6" in str(stopped.value)
    assert "log check" in (stopped.value.remedy or "")
    assert made[path].closed
    content = made[path].content
    assert content is not None
    assert not content.endswith(b"PAR1"), "the file is complete"


def test_two_shapes_under_one_name_end_it(layout: Layout) -> None:
    """One of them would be read as the other."""
    (first, (second, text)) = manifests(layout, 2, 4)
    files = tuple(replace(f, version=7) if f.table is not None else f for f in second.files)
    with pytest.raises(InvariantViolated, match=r"compacting shop\.orders: two shapes of it have the file name"):
        compacted(layout, [first, (replace(second, files=files), text)])


def test_large_file_is_written_in_groups(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is gathered is bounded; and batches of another schema are brought to the one that is written."""
    monkeypatch.setattr("cdcflow.log.files.compaction.GATHERED_BYTES_MAX", 0)
    made, files = compacted(layout, manifests(layout, 1, 4))
    content = files["shop.orders.1.parquet"].content
    assert content is not None
    assert pq.ParquetFile(io.BytesIO(content)).num_row_groups == 3
    assert made.last_offset == 6
