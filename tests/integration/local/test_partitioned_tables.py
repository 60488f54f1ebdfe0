"""Iceberg tables that are partitioned and sorted (`merge.tables.partition_by`, `sort_by`), merged without Spark."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from datetime import date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.servers.readers import DuckDB, Question
from tests.support.log.hand_log import HandLog
from tests.support.merge.histories import make_table
from tests.support.tables.file_rows import places_of

from cdcflow import local
from cdcflow.errors import ConfigurationError
from cdcflow.model.file_layout import PartitionField, SortColumn
from cdcflow.model.table import Table
from cdcflow.tables.formats import iceberg
from cdcflow.tables.job.engines import Engines
from cdcflow.tables.job.maintenance import UpkeepPolicy, UpkeepReport, upkeep
from cdcflow.tables.job.reports import MergeReport
from cdcflow.tables.local import file_rewrites
from cdcflow.tables.local.engine import LocalEngine
from cdcflow.tables.local.iceberg import IcebergTable
from cdcflow.tables.local.iceberg_catalogs import embedded_catalog
from cdcflow.tables.merge.file_layouts import LAYOUT_PROPERTY, RecordedLayout
from cdcflow.tables.merge.policy import Policies, TablePolicy
from cdcflow.tables.paths import table_path

COLUMNS: dict[str, Any] = {"id": "int64", "created_at": "timestamp[us]", "region": "string", "v": "int32"}
ORDERS = make_table("orders", **COLUMNS)
OTHER = make_table("other", id="int64")


@pytest.fixture(autouse=True)
def marked_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """No file is too small to have its rows marked."""
    monkeypatch.setattr(file_rewrites, "TINY_BYTES", 0)
    monkeypatch.setattr(file_rewrites, "DEAD_SHARE_MAX", 0.9)


def day(number: int) -> datetime:
    return datetime(2024, 1, 1, 5) + timedelta(days=number)


class Orders:
    """A table with a row per number, and what is expected of it."""

    def __init__(self, log: HandLog, warehouse: Path) -> None:
        self.log = log
        self.warehouse = warehouse
        self.shape = ORDERS
        self.rows: dict[int, dict[str, Any]] = {}
        log.state(ORDERS)
        log.state(OTHER)

    def put(self, ids: Sequence[int], **values: Any) -> None:
        """Insert rows or update all of their values."""
        steps = []
        for n in ids:
            op = "u" if n in self.rows else "c"
            self.rows[n] = {"id": n, **{name: f(n) if callable(f) else f for name, f in values.items()}}
            steps.append((self.shape, op, self.rows[n]))
        self.log.segment([(OTHER, "c", {"id": self.log.next_offset}), *steps])

    def merge(self, *partitions: str, sort_by: Sequence[str] = (), table_format: str = "iceberg") -> MergeReport:
        return local.merge(
            self.log.root, self.warehouse, table_format=table_format, policies=settings(partitions, sort_by)
        )

    def check(self) -> None:
        found = local.read_cut(self.warehouse)["public.orders"].select([c.name for c in self.shape.columns]).to_pylist()
        assert sorted(found, key=lambda row: row["id"]) == [self.rows[n] for n in sorted(self.rows)]


def settings(partitions: Sequence[str], sort_by: Sequence[str] = ()) -> Policies:
    chosen = TablePolicy(
        partition_by=tuple(map(PartitionField.parse, partitions)), sort_by=tuple(map(SortColumn.parse, sort_by))
    )
    return Policies(each={"public.orders": chosen})


@pytest.fixture
def orders(hand_log: HandLog, tmp_path: Path) -> Orders:
    return Orders(hand_log, tmp_path / "warehouse")


def partitions_of(warehouse: Path) -> dict[tuple[int, tuple[Any, ...]], int]:
    """How many rows are in the files of each partition, by specification."""
    found: dict[tuple[int, tuple[Any, ...]], int] = {}
    with closing(LocalEngine(warehouse, "iceberg")) as engine:
        there = engine.table(table_path(ORDERS.id))
        there.snapshot()
        for file in there.files():
            touched = there.deletions(file)
            where = file.file.spec_id, tuple(file.file.partition)
            for delete in file.delete_files:  # other readers find it by these
                assert (delete.spec_id, tuple(delete.partition)) == where
            found[where] = found.get(where, 0) + touched.rows - touched.dead
    return {where: rows for where, rows in found.items() if rows}


DAY = 19723  # 2024-01-01


def test_rows_that_move_leave_their_partition_once(orders: Orders) -> None:
    """A row in two partitions would be two rows; one whose old partition is skipped would stay."""
    orders.put(range(30), created_at=lambda n: None if n < 10 else day(n % 2), region="eu", v=0)
    orders.merge("day(created_at)")
    assert partitions_of(orders.warehouse) == {(1, (None,)): 10, (1, (DAY,)): 10, (1, (DAY + 1,)): 10}
    orders.put([0, 1, 10, 11], created_at=day(5), region="eu", v=1)
    orders.put([12], created_at=None, region="us", v=1)
    orders.merge("day(created_at)")
    found = {(1, (None,)): 9, (1, (DAY,)): 8, (1, (DAY + 1,)): 9, (1, (DAY + 5,)): 4}
    assert partitions_of(orders.warehouse) == found
    orders.check()


def test_the_partition_of_a_table_changes_and_files_stay(orders: Orders) -> None:
    """Iceberg's specifications are kept: the rows of old files are found, marked and rewritten as before."""
    orders.put(range(20), created_at=day, region=lambda n: "eu" if n % 2 else "us", v=0)
    orders.merge("month(created_at)", sort_by=["v desc"])
    for number, chosen in enumerate((["region"], ["bucket(4, id)", "hour(created_at)"], ["month(created_at)"], []), 1):
        orders.put(range(number, 20, 5), created_at=day, region="it's / x", v=number)
        orders.merge(*chosen)
        orders.check()
    specs = {spec for spec, _ in partitions_of(orders.warehouse)}
    assert specs == {0, 1, 2, 3}, "a specification that returns keeps its number"
    with closing(embedded_catalog(orders.warehouse)) as catalog:
        table = catalog.load_table(iceberg.identifier(table_path(ORDERS.id)))
        assert table.spec().is_unpartitioned()
        assert not table.sort_order().fields


def test_other_readers_read_a_partition(orders: Orders) -> None:
    """PyIceberg and DuckDB skip the files of other partitions, and find every row of those that remain."""
    orders.put(range(50), created_at=day, region="eu", v=0)
    orders.merge("month(created_at)", "truncate(20, id)")
    orders.put(range(0, 50, 3), created_at=lambda n: day(n + 1), region="us", v=1)
    orders.merge("month(created_at)", "truncate(20, id)")
    february = [n for n, row in orders.rows.items() if datetime(2024, 2, 1) <= row["created_at"] < datetime(2024, 3, 1)]
    with closing(embedded_catalog(orders.warehouse)) as catalog:
        table = catalog.load_table(iceberg.identifier(table_path(ORDERS.id)))
        begins, ends = "2024-02-01T00:00:00", "2024-03-01T00:00:00"
        scan = table.scan(f"created_at >= '{begins}' AND created_at < '{ends}'")
        assert sorted(scan.to_arrow()["id"].to_pylist()) == sorted(february)
        assert len(list(scan.plan_files())) < len(list(table.scan().plan_files()))
        place = table.metadata_location.removeprefix("file://")
    sql = (
        f"SELECT id FROM iceberg_scan('{place}')"
        " WHERE created_at >= '2024-02-01' AND created_at < '2024-03-01' ORDER BY id"
    )
    (found,) = DuckDB().read([Question("", sql=sql)])
    assert isinstance(found, pa.Table), found
    assert found["id"].to_pylist() == sorted(february)


def renamed(table: Table, **names: str) -> Table:
    """The same table where columns have other names."""
    return replace(table, columns=tuple(replace(c, name=names.get(c.name, c.name)) for c in table.columns))


def test_a_renamed_column_stays_that_of_the_partition(orders: Orders) -> None:
    """With unchanged settings, and with the new name in them."""
    orders.put(range(10), created_at=day, region="eu", v=0)
    orders.merge("day(created_at)", sort_by=["created_at desc"])
    orders.shape = renamed(ORDERS, created_at="made")
    orders.rows = {n: {"id": n, "made": day(n), "region": "eu", "v": 0} for n in orders.rows}
    for number, name in enumerate(("created_at", "made"), 1):
        orders.put([1, 2], made=lambda n, number=number: day(n + 20 * number), region="eu", v=number)
        report = orders.merge(f"day({name})", sort_by=[f"{name} desc"])
        assert [t.left_out for t in report.tables] == [None, None]
        orders.check()
        found = partitions_of(orders.warehouse)
        assert {spec for spec, _ in found} == {1}
        assert found[1, (DAY + 1 + 20 * number,)] == 1


def test_a_dropped_column_stops_its_table_only_and_the_remedy_works(orders: Orders) -> None:
    """New rows would all be in the partition of NULL, without anybody noticing."""
    orders.put(range(10), created_at=day, region="eu", v=0)
    orders.merge("day(created_at)")
    left = make_table("orders", id="int64", region="string", v="int32")
    numbers = {c.name: c.number for c in ORDERS.columns}
    orders.shape = replace(left, columns=tuple(replace(c, number=numbers[c.name]) for c in left.columns))
    orders.rows = {n: {"id": n, "region": "eu", "v": 0} for n in orders.rows}
    orders.put([3], region="us", v=1)
    for chosen in (settings(["day(created_at)"]), Policies()):
        report = local.merge(orders.log.root, orders.warehouse, table_format="iceberg", policies=chosen)
        stopped = {t.name: t.left_out for t in report.tables if t.left_out is not None}
        assert list(stopped) == ["public.orders"]
        assert "the source no longer has column created_at" in str(stopped["public.orders"])
        assert "set merge.tables.each.'public.orders'.partition_by to other columns, or to []" in str(
            stopped["public.orders"]
        )
    assert orders.merge("region").published
    orders.check()


def test_a_column_that_is_widened_stays_that_of_the_partition(orders: Orders) -> None:
    """An int that becomes a bigint has the same buckets."""
    orders.put(range(20), created_at=day, region="eu", v=lambda n: n)
    orders.merge("bucket(4, v)", "truncate(5, v)")
    wide = make_table("orders", **{**COLUMNS, "v": "int64"})
    orders.shape = wide
    orders.put([1, 7, 8], created_at=day, region="eu", v=lambda n: n + 2**40)
    assert orders.merge("bucket(4, v)", "truncate(5, v)").published
    orders.check()


@pytest.mark.parametrize(
    ("partitions", "sort_by", "says"),
    [
        (["day(region)"], [], "day takes no column of type string"),
        (["hour(v)"], [], "choose a column whose type is one of timestamp, timestamp_ntz"),
        (["day(made)"], [], "it has no column made"),
        (["_is_deleted"], [], "it has no column _is_deleted"),
        ([], ["nothing"], "it has no column nothing"),
        ([], ["_missing"], "rows cannot be sorted by a column of type array"),
    ],
)
def test_what_a_table_cannot_have_stops_it_before_its_first_commit(
    orders: Orders, partitions: list[str], sort_by: list[str], says: str
) -> None:
    """With its name, and what to do."""
    orders.put(range(3), created_at=day, region="eu", v=0)
    report = orders.merge(*partitions, sort_by=sort_by)
    (stopped,) = [t.left_out for t in report.tables if t.left_out is not None]
    assert says in stopped
    assert not (orders.warehouse / "public/orders").exists()


def test_delta_tables_are_sorted_and_not_partitioned(orders: Orders) -> None:
    """The message names what can be done instead."""
    orders.put(range(30), created_at=day, region="eu", v=lambda n: n * 7 % 30)
    report = orders.merge("region", table_format="delta")
    (stopped,) = [t.left_out for t in report.tables if t.left_out is not None]
    assert "cdcflow partitions Iceberg tables only" in stopped
    assert orders.merge(sort_by=["v desc"], table_format="delta").published
    orders.put(range(0, 30, 4), created_at=day, region="eu", v=lambda n: n)
    orders.merge(sort_by=["v desc"], table_format="delta")
    for rows in places_of(orders.warehouse, "delta", "public.orders", ("v",)):
        assert rows == sorted(rows, reverse=True)
    orders.check()


def test_rows_of_files_are_in_their_order_and_nulls_come_last_if_it_descends(orders: Orders) -> None:
    """Files of a first merge, of a change, and of maintenance, in the order that the table's metadata contain."""
    order = ["region desc", "v"]
    orders.put(range(40), created_at=day, region=lambda n: ["a", "b", None][n % 3], v=lambda n: n * 7 % 40)
    orders.merge("month(created_at)", sort_by=order)
    for number in range(4):
        orders.put(range(number, 40, 9), created_at=day, region="c", v=lambda n: -n)
        orders.merge("month(created_at)", sort_by=order)
    check_order(orders.warehouse)
    before = local.read_cut(orders.warehouse, 2)["public.orders"].sort_by("id")
    report = maintained(orders.warehouse)
    assert any("in order" in what for table in report.tables for what in table.done)
    check_order(orders.warehouse)
    months = [where for (_, where) in partitions_of(orders.warehouse)]
    assert len(months) == len(set(months)) == 2
    assert local.read_cut(orders.warehouse, 2)["public.orders"].sort_by("id").equals(before)
    orders.check()
    with closing(embedded_catalog(orders.warehouse)) as catalog:
        found = catalog.load_table(iceberg.identifier(table_path(ORDERS.id))).sort_order()
        assert [field.direction.name for field in found.fields] == ["DESC", "ASC"]


def check_order(warehouse: Path) -> None:
    for rows in places_of(warehouse, "iceberg", "public.orders", ("region", "v")):
        expected = sorted(rows, key=lambda row: row[1])
        expected.sort(key=lambda row: row[0] or "", reverse=True)
        assert rows == expected


def maintained(warehouse: Path, keep_s: float | None = None, now: Callable[[], float] = time.time) -> UpkeepReport:
    with closing(LocalEngine(warehouse, "iceberg")) as engine:
        return upkeep(Engines(engine), UpkeepPolicy(keep_s=keep_s), now)


def test_small_files_of_each_partition_become_one(orders: Orders, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of two partitions cannot: a merge that tried would write as many small files again, each time."""
    monkeypatch.setattr(file_rewrites, "SMALL_FILES_MAX", 3)
    written: list[int] = []
    right = IcebergTable.replace

    def counted(table: Any, old: Any, *given: Any) -> None:
        written.append(len(old) * table.name.endswith("orders"))
        right(table, old, *given)

    monkeypatch.setattr(IcebergTable, "replace", counted)
    orders.put(range(60), created_at=day, region="eu", v=0)
    orders.merge("day(created_at)")
    for number in range(8):
        orders.put([100 + number], created_at=day(1), region="eu", v=number)
        orders.merge("day(created_at)")
    assert [count for count in written if count] == [4, 4], "60 small files of 60 days are not small and many"
    orders.check()


def test_expiry_keeps_the_files_of_kept_cuts_in_folders_of_partitions(orders: Orders) -> None:
    """Their files are in folders below `data`, and so are those that no cut needs."""
    for number in range(5):
        orders.put(range(20), created_at=day, region=f"r{number}", v=number)
        orders.merge("region", "day(created_at)")
    files = list(orders.warehouse.rglob("*.parquet"))
    later = time.time() + 10 * 86_400
    maintained(orders.warehouse, keep_s=0.0, now=lambda: later)
    orders.check()
    left = list(orders.warehouse.rglob("*.parquet"))
    assert len(left) < len(files) / 2


def test_live_rows_are_those_of_the_log(orders: Orders) -> None:
    """The live view folds what is not merged over a partitioned table."""
    orders.put(range(20), created_at=day, region="eu", v=0)
    orders.merge("day(created_at)")
    orders.put(range(5, 25), created_at=lambda n: None, region="us", v=1)
    found = local.read_live(orders.log.root, orders.warehouse)["public.orders"].select(list(COLUMNS)).to_pylist()
    assert sorted(found, key=lambda row: row["id"]) == [orders.rows[n] for n in sorted(orders.rows)]


KEYED = make_table(
    "orders", key=("id", "at", "amount"), id="string", at="date32[day]", amount=pa.decimal128(8, 2), v="int32"
)


IN_KEY = ("at", "month(at)", "bucket(8, id)", "truncate(1, id)", "amount", "bucket(5, amount)")


@pytest.mark.parametrize("partition", IN_KEY)
def test_files_of_other_partitions_are_not_opened_if_the_key_has_the_partition(
    partition: str, hand_log: HandLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Random keys are within the bounds of every file, and a merge of a few read the keys of all rows."""
    hand_log.state(KEYED)

    def row(n: int) -> dict[str, Any]:
        return {"id": f"{n % 7}-{n}", "at": date(2024, 1 + n % 12, 3), "amount": Decimal(n % 11) / 4, "v": 0}

    rows = {n: row(n) for n in range(200)}
    hand_log.segment([(KEYED, "c", row) for row in rows.values()])
    local.merge(hand_log.root, tmp_path / "w", table_format="iceberg", policies=settings([partition]))
    opened: list[str] = []
    right = IcebergTable.open_file

    def counted(table: Any, file: Any) -> Any:
        opened.append(file.file.file_path)
        return right(table, file)

    monkeypatch.setattr(IcebergTable, "open_file", counted)
    rows[3]["v"] = rows[4]["v"] = 1
    hand_log.segment([(KEYED, "u", rows[3]), (KEYED, "u", rows[4])])
    local.merge(hand_log.root, tmp_path / "w", table_format="iceberg", policies=settings([partition]))
    assert 1 <= len(set(opened)) <= 2
    found = local.read_cut(tmp_path / "w")["public.orders"].to_pylist()
    assert sorted((r["id"], r["v"]) for r in found) == sorted((r["id"], r["v"]) for r in rows.values())


def test_a_table_of_a_newer_layout_is_left_alone() -> None:
    """What it means is not known here."""
    with pytest.raises(ConfigurationError, match="newer cdcflow"):
        RecordedLayout.of({LAYOUT_PROPERTY: '{"version": 2}'})
