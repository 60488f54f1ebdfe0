"""From journal records to Parquet."""

from __future__ import annotations

import errno
import io
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cdcflow.errors import ConfigurationError, InvariantViolated
from cdcflow.log.files import parquet, segment_writer
from cdcflow.log.files.segment_writer import file_name, seal
from cdcflow.log.format.journal import AttachedSpool, CutMark, Record
from cdcflow.log.format.rows import ShapeEntry, ShapeRows
from cdcflow.log.format.schema_history import SchemaHistory
from cdcflow.log.format.segment import Segment, newest_xid
from cdcflow.log.format.transactions import TransactionHeaders
from cdcflow.model.position import Checkpoint, Epoch, Offset
from cdcflow.model.table import Column, Identity, Table, TableId
from cdcflow.model.types import ColumnType
from cdcflow.testing.sinks import ORDERS, ORDERS_WIDER, PRODUCTS, changes, transactions


class Targets(dict[str, bytes]):
    """Files in memory, there once they are closed."""

    def open(self, name: str) -> Target:
        return Target(self, name)


class Target:
    def __init__(self, targets: Targets, name: str) -> None:
        self._content = io.BytesIO()
        self._targets, self._name = targets, name

    def write(self, content: bytes) -> int:
        return self._content.write(content)

    def close(self) -> None:
        self._targets[self._name] = self._content.getvalue()


def nothing_spooled(_: AttachedSpool) -> Iterator[ShapeRows]:
    yield from ()


def sealed(records: list[Record], targets: Targets) -> Segment:
    return seal(
        iter(records), nothing_spooled, targets.open, log_id="x", base=Checkpoint(), epoch=Epoch(1), previous=""
    )


def runs(count: int) -> list[Record]:
    """One transaction of two rows each, in two tables, then a cut."""
    orders_shape, products_shape = ShapeEntry(ORDERS, 1), ShapeEntry(PRODUCTS, 4)
    found: list[Record] = [orders_shape, products_shape]
    for number in range(count):
        a = changes(ORDERS, [{"id": 500 - number, "_op": "cud"[number % 3]}])
        b = changes(PRODUCTS, [{"id": number, "_op": "u", "_unchanged": ["tags"]}])
        head = TransactionHeaders.of(transactions([number], [2], a, b), 2 * number + 1, number + 1, np.array([number]))
        found += [
            head,
            ShapeRows(orders_shape, np.array([2 * number + 1]), a.rows),
            ShapeRows(products_shape, np.array([2 * number + 2]), b.rows),
        ]
    cut = Checkpoint(next_offset=Offset(2 * count + 1), next_transaction=count + 1, cut=9)
    return [*found, CutMark(replace(cut, cut=7, next_offset=Offset(1)), 0), CutMark(cut, 0)]


def test_manifest_records_what_the_files_contain() -> None:
    """The merge decides from the manifest which files it reads and which path it takes."""
    targets = Targets()
    segment = sealed(runs(300), targets)
    assert (segment.first_offset, segment.last_offset, segment.first_cut, segment.last_cut) == (1, 600, 7, 9)
    assert (segment.first_transaction, segment.last_transaction) == (1, 300)
    heads, orders, products = segment.files
    assert (heads.path, heads.rows, heads.table) == ("transactions.parquet", 300, None)
    assert (orders.rows, orders.ops, orders.partial, orders.version) == (300, {"c": 100, "d": 100, "u": 100}, 0, 1)
    assert (orders.key_min, orders.key_max) == ("201", "500")
    assert (orders.first_offset, orders.last_offset) == (1, 599)
    assert (products.partial, products.version, products.ops) == (300, 4, {"u": 300})
    assert Segment.from_json(segment.to_json()) == segment
    table = pq.read_table(io.BytesIO(targets[orders.path]))
    assert table.schema.equals(ORDERS.log_schema)
    assert table.column("_offset").to_pylist() == list(range(1, 600, 2))
    assert table.column("_txn").to_pylist() == list(range(1, 301))


def test_memory_is_bounded_by_handing_on_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """A journal is read frame by frame; many small frames must become few row groups, and large ones must not pile
    up."""
    monkeypatch.setattr(segment_writer, "HAND_ON_ROWS", 50)
    monkeypatch.setattr(parquet, "GROUP_ROWS_MAX", 100)
    targets = Targets()
    segment = sealed(runs(500), targets)
    groups = pq.ParquetFile(io.BytesIO(targets[segment.files[1].path])).metadata.num_row_groups
    assert groups == 5
    monkeypatch.setattr(segment_writer, "GATHERED_BYTES_MAX", 1)
    targets = Targets()
    segment = sealed(runs(100), targets)
    assert pq.ParquetFile(io.BytesIO(targets[segment.files[1].path])).metadata.num_row_groups == 100


def test_encoding_in_the_background_writes_the_same_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Row groups of several files are written in another thread, in the order in which they became full."""
    monkeypatch.setattr(segment_writer, "HAND_ON_ROWS", 10)
    monkeypatch.setattr(parquet, "GROUP_ROWS_MAX", 20)
    encoded_by: set[str] = set()
    encode = parquet.Parquet._encode

    def watched(file: parquet.Parquet, rows: pa.Table) -> None:
        encoded_by.add(threading.current_thread().name)
        time.sleep(0.002)
        encode(file, rows)

    monkeypatch.setattr(parquet.Parquet, "_encode", watched)
    found = Targets()
    segment = sealed(runs(100), found)
    assert encoded_by == {threading.current_thread().name, "cdcflow-encode_0"}
    monkeypatch.setattr(parquet.TaskThread, "do", lambda _self, work: work())
    alone = Targets()
    assert sealed(runs(100), alone) == segment
    assert found == alone


class Full(Target):
    """A disk that is full after the first kilobyte."""

    def write(self, content: bytes) -> int:
        if self._content.tell() > 1000:
            raise OSError(errno.ENOSPC, "no room")
        return super().write(content)


def test_error_of_the_encoding_thread_ends_the_sealing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The journal stays and is sealed later; nothing writes or waits once the error was raised."""
    monkeypatch.setattr(segment_writer, "HAND_ON_ROWS", 10)
    monkeypatch.setattr(parquet, "GROUP_ROWS_MAX", 20)
    targets = Targets()
    with pytest.raises(OSError, match="no room"):
        seal(
            iter(runs(200)),
            nothing_spooled,
            lambda name: Full(targets, name),
            log_id="x",
            base=Checkpoint(),
            epoch=Epoch(1),
            previous="",
        )
    assert len(targets) == 3, "every file is closed"
    assert not [t for t in threading.enumerate() if t.name.startswith("cdcflow-encode")]


def test_error_while_a_row_group_is_under_way_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files are abandoned only when no other thread writes to them."""
    monkeypatch.setattr(segment_writer, "HAND_ON_ROWS", 10)
    monkeypatch.setattr(parquet, "GROUP_ROWS_MAX", 20)
    under_way: list[int] = []
    given_up_beside: list[int] = []
    do, give_up = parquet.TaskThread.do, parquet.Parquet.give_up

    def slow(beside: parquet.TaskThread, work: Callable[[], None]) -> None:
        def slowly() -> None:
            time.sleep(0.05)
            work()
            under_way.pop()

        under_way.append(1)
        do(beside, slowly)

    def watched(file: parquet.Parquet) -> None:
        given_up_beside.extend(under_way)
        give_up(file)

    monkeypatch.setattr(parquet.TaskThread, "do", slow)
    monkeypatch.setattr(parquet.Parquet, "give_up", watched)
    records = runs(30)
    records[3 * 22], records[3 * 23] = records[3 * 23], records[3 * 22]  # right after the first full row groups
    with pytest.raises(InvariantViolated, match="comes after"):
        sealed(records, Targets())
    assert given_up_beside == []


@pytest.mark.parametrize("earlier", [3, 6])
def test_decreasing_or_repeated_offsets_are_not_sealed(earlier: int) -> None:
    """Readers skip by offset bounds: a file that is not in order would lose rows silently."""
    records = runs(2)
    records[3], records[6] = records[earlier], records[3]
    with pytest.raises(InvariantViolated, match="comes after"):
        sealed(records, Targets())


@pytest.mark.parametrize(
    ("schema", "name"),
    [
        ("..", ".."),
        ("a/b", "../../etc/passwd"),
        ("a\0b", "\n"),
        ("a.b", "c"),
        ("a", "b.c"),
        ("_a", "b"),
        ("é" * 31, "ü" * 31),
    ],
)
def test_no_table_name_reaches_outside_or_collides(schema: str, name: str) -> None:
    """Any user who may create tables at the source chooses a table's name (hard cases S01, S11)."""
    found = file_name(replace(ORDERS, id=TableId(schema, name)), 1)
    assert "/" not in found
    assert "\0" not in found
    assert not found.startswith((".", "_")), "Spark would take it for hidden and read nothing"
    assert len(found.encode()) <= 255
    other = [("a.b", "c"), ("a", "b.c"), ("é" * 31, "ü" * 30 + "u"), ("shop", "orders")]
    names = {file_name(replace(ORDERS, id=TableId(*o)), 1) for o in other if o != (schema, name)}
    assert found not in names


def test_shape_that_reappears_has_its_old_number() -> None:
    """The number names the file; the same shape under two numbers would be two schemas for the warehouse."""
    history = SchemaHistory()
    assert [history.number(t) for t in (ORDERS, ORDERS_WIDER, ORDERS, PRODUCTS)] == [1, 2, 1, 1]
    again = SchemaHistory.from_json(history.to_json())
    assert again.shapes() == history.shapes() == {ORDERS.id: {1: ORDERS, 2: ORDERS_WIDER}, PRODUCTS.id: {1: PRODUCTS}}
    assert again.newest(ORDERS.id) == ORDERS_WIDER
    with pytest.raises(ConfigurationError, match="newer"):
        SchemaHistory.from_json(history.to_json().replace('"version": 1', '"version": 2', 1))


@pytest.mark.parametrize(
    ("known", "ids", "newest"),
    [
        (None, [5, 9, 7], 9),
        (100, [5, 9], 100),
        (2**32 - 10, [2**32 - 20, 4], 4),
        (4, [2**32 - 10], 4),
        (0, [2**31 - 1], 2**31 - 1),
    ],
)
def test_latest_transaction_id_wraps_around(known: int | None, ids: list[int], newest: int) -> None:
    """A start uses it to decide what it need not read; after four thousand million transactions it is small again."""
    assert newest_xid(known, np.array(ids, np.uint32)) == newest


def test_manifest_bounds_the_transaction_ids_of_the_source() -> None:
    """An id that may have been delivered is searched for where it can be, and nowhere else."""
    segment = sealed(runs(300), Targets())
    assert (segment.xid_min, segment.xid_max, segment.xid_newest) == (0, 299, 299)
    assert segment.before is None
    assert replace(segment, previous_offset=1, first_offset=9).before == (1, 8)


def test_encoding_of_a_column_depends_on_its_values() -> None:
    """Repeating texts get a dictionary, numbers steps; bounds only for what readers skip by."""
    shape = ShapeEntry(ORDERS, 1)
    batch = changes(ORDERS, [{"id": i, "note": ("a", "b")[i % 2]} for i in range(2000)])
    head = TransactionHeaders.of(transactions([1], [2000], batch), 1, 1, np.array([1]))
    targets = Targets()
    sealed(
        [
            shape,
            head,
            ShapeRows(shape, np.arange(1, 2001), batch.rows),
            CutMark(Checkpoint(None, Offset(2001), 2, 1), 0),
        ],
        targets,
    )
    group = pq.ParquetFile(io.BytesIO(targets["shop.orders.1.parquet"])).metadata.row_group(0)
    columns = {group.column(i).path_in_schema: group.column(i) for i in range(group.num_columns)}
    assert "DELTA_BINARY_PACKED" in columns["id"].encodings
    assert "RLE_DICTIONARY" in columns["note"].encodings
    assert [name for name, column in columns.items() if column.statistics is not None] == ["_offset", "id"]


@pytest.mark.parametrize(
    "arrow",
    [pa.int8(), pa.uint64(), pa.date32(), pa.timestamp("us"), pa.timestamp("us", tz="UTC"), pa.string(), pa.binary()],
    ids=str,
)
def test_keys_of_every_kind_are_bounded_over_many_hand_ons(arrow: pa.DataType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bounds grow from one hand-on to the next; Arrow cannot compare all that it can bound. Texts get none: their
    order is the server's."""
    monkeypatch.setattr(segment_writer, "HAND_ON_ROWS", 2)
    table = Table(TableId("public", "t"), 1, (Column("key", 1, ColumnType("x", arrow)),), ("key",))
    shape = ShapeEntry(table, 1)
    keys = pa.array([7, 3, 5, 9, 4, 6], pa.int32())
    values = keys.cast(arrow if pa.types.is_integer(arrow) or arrow == pa.date32() else pa.int64())
    values = values.cast(arrow) if pa.types.is_timestamp(arrow) or arrow == pa.string() else values
    values = values.cast(pa.string()).cast(arrow) if arrow == pa.binary() else values
    found: list[Record] = [shape]
    for number, value in enumerate(values):
        batch = changes(table, [{"key": value}])
        head = TransactionHeaders.of(transactions([number], [1], batch), number + 1, number + 1, np.array([number]))
        found += [head, ShapeRows(shape, np.array([number + 1]), batch.rows)]
    cut = Checkpoint(next_offset=Offset(len(keys) + 1), next_transaction=len(keys) + 1, cut=1)
    file = sealed([*found, CutMark(cut, 0)], Targets()).files[1]
    bounded = arrow not in (pa.string(), pa.binary())
    expected = [str(values[1].cast(pa.string())), str(values[3].cast(pa.string()))] if bounded else [None, None]
    assert [file.key_min, file.key_max] == expected


def test_ranges_that_a_backfill_reads_in_turn_are_runs_of_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """For any rows passed at once: chunks of two ranges, and rows that are inserted in between."""
    monkeypatch.setattr(segment_writer, "HAND_ON_ROWS", 7)
    shape = ShapeEntry(ORDERS, 1)
    found: list[Record] = [shape]
    offset, number = 1, 0
    for first in range(0, 100, 5):
        for op, keys in (("r", range(first, first + 5)), ("r", range(500 + first, 505 + first)), ("c", [900 + first])):
            number += 1
            batch = changes(ORDERS, [{"id": key, "_op": op} for key in keys])
            head = TransactionHeaders.of(transactions([0], [len(keys)], batch), offset, number, np.array([number]))
            found += [head, ShapeRows(shape, np.arange(offset, offset + len(keys)), batch.rows)]
            offset += len(keys)
    cut = Checkpoint(next_offset=Offset(offset), next_transaction=number + 1, cut=1)
    file = sealed([*found, CutMark(cut, 0)], Targets()).files[1]
    late = [(str(900 + n), str(900 + n)) for n in range(0, 100, 5)]
    assert file.key_runs == (("0", "99"), ("500", "599"), *late)


def test_table_without_columns_is_refused_before_a_row_of_it_is_in_a_journal() -> None:
    """Parquet has no struct without fields, which its old row would be: the journal could never be sealed."""
    with pytest.raises(ConfigurationError, match=r"storing shop\.bare: Parquet has no type for column _before"):
        segment_writer.check_storable(Table(TableId("shop", "bare"), 1, (), (), Identity.FULL))
