"""Iceberg tables in catalogs that are servers: Iceberg's own REST catalog, and Hive's metastore.

What the suites over the embedded catalog show of merges holds for any catalog that swaps a table's pointer atomically.
Here is what differs: properties of the client, names, errors that are conflicts, and sessions that share no file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog.rest import RestCatalog as RestClient
from tests.servers.catalogs import HiveMetastore, RestCatalog
from tests.support.log.hand_log import HandLog
from tests.support.merge.histories import make_table
from tests.support.tables.catalogs import sorted_rows
from tests.support.tables.hostile_texts import (
    EXPANDED,
    NAMES,
    hostile_columns,
    rows_by_key,
    write_defaults,
    write_rows,
)

from cdcflow import local
from cdcflow.errors import SinkUnavailable
from cdcflow.model.file_layout import PartitionField
from cdcflow.spark import engine, job, read_cut
from cdcflow.spark.formats import table_format
from cdcflow.spark.formats.iceberg import IcebergTable
from cdcflow.tables.formats.iceberg import identifier
from cdcflow.tables.local import file_rewrites
from cdcflow.tables.local.iceberg_catalogs import TableCatalog
from cdcflow.tables.merge.policy import Policies, TablePolicy
from cdcflow.tables.paths import Warehouse, table_path

pytestmark = pytest.mark.spark
LONG = pytest.mark.long

ORDERS = make_table("orders", schema="shop", id="int64", item="string")
APP = "cdcflow/log-a/shop.orders"


@pytest.fixture(params=["rest", "hive"])
def lake(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Warehouse]:
    """A warehouse whose tables are registered in a separate catalog server, configured by `merge.catalog`."""
    monkeypatch.setattr(engine, "folder_lease", lambda _: nullcontext())
    root = tmp_path / "lake"
    with RestCatalog(str(root)) if request.param == "rest" else HiveMetastore() as server:
        yield Warehouse(root, catalog={"type": request.param, "uri": server.uri})


def merged(spark: Any, log: HandLog, lake: Warehouse) -> tuple[bool, int, int]:
    """Whether a cut was published, the table's version, and the cut that its own commits name."""
    report = job.merge(spark, log.root, lake)
    there = table_format("iceberg").table(spark, lake, table_path(ORDERS.id)).snapshot()
    assert there is not None
    assert [t.version for t in report.tables] == [there.version]
    return report.published, there.version, there.transactions[APP]


def rows(spark: Any, lake: Warehouse, cut: int | None = None) -> list[tuple[Any, ...]]:
    shown = read_cut(spark, lake, cut)["shop.orders"]
    return sorted(tuple(row) for row in shown.select("id", "item").collect())


@pytest.mark.spread(1)
def test_another_session_resumes_where_the_first_ended(spark: Any, hand_log: HandLog, lake: Warehouse) -> None:
    """A catalog is chosen so that several machines merge and read: position, rows, cuts and tags are the catalog's."""
    hand_log.state(ORDERS)
    hand_log.segment([(ORDERS, "c", {"id": n, "item": f"item {n}"}) for n in (1, 2, 3)])
    published, first, cut = merged(spark, hand_log, lake)
    assert (published, cut) == (True, 1)
    hand_log.segment([(ORDERS, "u", {"id": 1, "item": "pen"}), (ORDERS, "d", {"id": 2})])
    published, second, cut = merged(spark.newSession(), hand_log, lake)
    assert (published, cut) == (True, 2)
    assert second > first
    assert merged(spark, hand_log, lake) == (False, second, 2)
    now, then = [(1, "pen"), (3, "item 3")], [(1, "item 1"), (2, "item 2"), (3, "item 3")]
    reader = spark.newSession()
    assert (rows(reader, lake), rows(reader, lake, 1)) == (now, then)

    table = table_format("iceberg").table(reader, lake, table_path(ORDERS.id)).sql
    catalog = table.partition(".")[0].strip("`")
    # 2100-01-01 is past every snapshot's age: only tags keep snapshots other than the latest.
    expire = f"CALL {catalog}.system.expire_snapshots('shop.orders', TIMESTAMP '2100-01-01 00:00:00', 1)"
    reader.sql(expire).collect()
    assert rows(reader, lake, 1) == then
    assert {row.name for row in reader.sql(f"SELECT name FROM {table}.refs").collect()} >= {
        "cdcflow_cut_1",
        "cdcflow_cut_2",
    }
    by_tag = reader.sql(f"SELECT id, item FROM {table} VERSION AS OF 'cdcflow_cut_1'").collect()
    assert sorted(map(tuple, by_tag)) == then
    if (lake.catalog or {})["type"] == "rest":
        found = RestClient("x", uri=(lake.catalog or {})["uri"]).load_table("shop.orders")
        tag = found.refs()["cdcflow_cut_1"].snapshot_id
        assert sorted((r["id"], r["item"]) for r in found.scan(snapshot_id=tag).to_arrow().to_pylist()) == then


@pytest.mark.long
@pytest.mark.spread(1)
def test_each_engine_resumes_where_the_other_ended(spark: Any, hand_log: HandLog, lake: Warehouse) -> None:
    """The same names, positions, tags and marks of rows, by both clients of one catalog; no edit is reported."""
    hand_log.state(ORDERS)
    expected: dict[int, str] = {}
    for number, engine_name in enumerate(("spark", "local", "local", "spark", "local")):
        before = dict(expected)
        expected |= {n: f"{n} by {engine_name} {number}" for n in range(number, 40, 3)}
        steps = [(ORDERS, "u" if n in before else "c", {"id": n, "item": v}) for n, v in expected.items()]
        gone = 3 * number
        if gone in before:
            steps.append((ORDERS, "d", {"id": gone}))
            del expected[gone]
        hand_log.segment(steps)
        if engine_name == "spark":
            report = job.merge(spark, hand_log.root, lake)
        else:
            report = local.merge(hand_log.root, lake, table_format="iceberg")
        assert report.published
        assert [(table.engine, table.edits) for table in report.tables] == [(engine_name, ())]
        assert rows(spark.newSession(), lake) == sorted(expected.items())
        here = local.read_cut(lake)["shop.orders"].select(["id", "item"]).to_pylist()
        assert sorted((row["id"], row["item"]) for row in here) == sorted(expected.items())
    first = local.read_cut(lake, 1)["shop.orders"].select(["id", "item"]).to_pylist()
    assert sorted((row["id"], row["item"]) for row in first) == rows(spark.newSession(), lake, 1)


@pytest.mark.long
@pytest.mark.spread(1)
def test_each_engine_moves_rows_between_partitions_that_the_other_wrote(
    spark: Any, hand_log: HandLog, lake: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row of a partition that one client skips would appear twice. The specification changes on the
    way, and each engine finds the rows of both."""
    monkeypatch.setattr(file_rewrites, "TINY_BYTES", 0)
    hand_log.state(ORDERS)
    rows_now: dict[int, str] = {}
    fields = (
        ["item"],
        ["item"],
        ["item"],
        ["bucket(4, id)", "truncate(1, item)"],
        ["bucket(4, id)"],
        ["bucket(4, id)"],
    )
    for number, chosen in enumerate(fields):
        changed = {n: f"{'abc'[(n + number) % 3]}{n % 2}" for n in range(20) if not number or n % 3 == number % 3}
        steps = [(ORDERS, "u" if n in rows_now else "c", {"id": n, "item": v}) for n, v in changed.items()]
        rows_now |= changed
        if number:
            steps.append((ORDERS, "d", {"id": number}))
            rows_now.pop(number, None)
        hand_log.segment(steps)
        layout = TablePolicy(partition_by=tuple(map(PartitionField.parse, chosen)))
        policies = Policies(each={str(ORDERS.id): layout})
        if number % 2:
            report = job.merge(spark, hand_log.root, lake, policies=policies)
        else:
            report = local.merge(hand_log.root, lake, table_format="iceberg", policies=policies)
        assert [(table.left_out, table.edits) for table in report.tables] == [(None, ())]
        assert rows(spark.newSession(), lake) == sorted(rows_now.items()), number
        assert sorted_rows(lake, ORDERS, "id", "item") == sorted(rows_now.items()), number
    with closing(TableCatalog(lake)) as catalog:
        found = catalog.load(identifier(table_path(ORDERS.id)))
    assert found is not None
    assert [[field.name for field in spec.fields] for spec in found.specs().values()] == [
        [],
        ["item_identity"],
        ["id_bucket_4", "item_truncate_1"],
        ["id_bucket_4"],
    ]


@pytest.mark.long
def test_what_a_source_calls_things_stays_text(spark: Any, hand_log: HandLog, lake: Warehouse) -> None:
    """Spark, Iceberg's clients and the servers each could replace variables. A name that the catalog cannot hold
    excludes that table alone."""
    plain = hostile_columns("plain")
    named = [hostile_columns(name, name) for name in NAMES]
    before = spark.conf.get("spark.sql.variable.substitute")
    spark.conf.set("spark.sql.variable.substitute", "true")
    try:
        write_rows(hand_log, [plain, *named])
        job.merge(spark, hand_log.root, lake)
        expected = write_defaults(hand_log, [plain, *named])
        report = job.merge(spark, hand_log.root, lake)
        assert report.published
        left = {table.name: table.left_out for table in report.tables if table.left_out is not None}
        shown = read_cut(spark, lake)
        rows = {name: [row.asDict() for row in frame.collect()] for name, frame in shown.items()}
    finally:
        spark.conf.set("spark.sql.variable.substitute", before)
    refuses = (lake.catalog or {})["type"] == "hive"
    assert left.keys() == ({str(table.id) for table in named} if refuses else set())
    for why in left.values():
        assert "has no names with other characters than letters, digits and _" in why
        assert "rename the table at the source, exclude it from the capture, or use another kind" in why
    assert {name: rows_by_key(found) for name, found in rows.items()} == {
        str(table.id): expected for table in [plain, *named] if str(table.id) not in left
    }
    assert {name: rows_by_key(found.to_pylist()) for name, found in local.read_cut(lake).items()} == dict.fromkeys(
        rows, expected
    )
    files = [path.read_bytes() for path in lake.folder.rglob("*") if path.is_file()]
    assert not [text for text in EXPANDED for content in files if text in content]


@pytest.mark.parametrize(
    "kind", [{"catalog-impl": "org.apache.iceberg.hive.HiveCatalog"}, pytest.param({"type": "Hive"}, marks=LONG)]
)
def test_name_that_a_catalog_named_by_its_class_cannot_have_excludes_that_table_alone(
    kind: dict[str, str], spark: Any, hand_log: HandLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole merge failed, and reported that another process was changing the table."""
    monkeypatch.setattr(engine, "folder_lease", lambda _: nullcontext())
    other = make_table("order-lines", schema="shop", id="int64", item="string")
    hand_log.state(ORDERS)
    hand_log.segment([(ORDERS, "c", {"id": 1, "item": "pen"}), (other, "c", {"id": 2, "item": "ink"})])
    with HiveMetastore() as server:
        lake = Warehouse(tmp_path / "lake", catalog={**kind, "uri": server.uri})
        report = job.merge(spark, hand_log.root, lake)
        left = {table.name: table.left_out for table in report.tables if table.left_out is not None}
        assert left.keys() == {str(other.id)}
        assert "a hive catalog has no names with other characters than letters, digits and _" in left[str(other.id)]
        assert rows(spark, lake) == [(1, "pen")]


@pytest.mark.long
def test_commit_that_another_session_has_overtaken_is_refused_by_the_catalog(
    spark: Any, hand_log: HandLog, lake: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The merge that was halted in the middle of its commit gets an error; nothing of its commit is visible."""
    table = make_table("bills", schema="shop", id="int64", item="string")
    hand_log.state(table)
    hand_log.segment([(table, "c", {"id": 1, "item": "one"})])
    job.merge(spark, hand_log.root, lake)
    hand_log.segment([(table, "u", {"id": 1, "item": "two"})])
    halted = halt(monkeypatch, lambda: overtake(spark, hand_log, lake, table))
    with pytest.raises(SinkUnavailable, match="another merge brought it to cut 3"):
        job.merge(spark, hand_log.root, lake)
    assert halted == ["gone on"]
    there = table_format("iceberg").table(spark, lake, table_path(table.id)).snapshot()
    assert there is not None
    assert there.transactions["cdcflow/log-a/shop.bills"] == 3
    assert [r.item for r in read_cut(spark, lake)["shop.bills"].collect()] == ["three"]
    assert not job.merge(spark, hand_log.root, lake).published


def test_catalog_that_cannot_commit_is_named(spark: Any, hand_log: HandLog, tmp_path: Path) -> None:
    """Spark takes the error for a table that another process has just created, and continues silently."""
    hand_log.segment([(ORDERS, "c", {"id": 1, "item": "pen"})])
    patience = {f"hadoop.iceberg.hive.lock-{name}timeout-ms": "500" for name in ("", "creation-")}
    with HiveMetastore(locks=False) as server:
        lake = Warehouse(tmp_path / "lake", catalog={"type": "hive", "uri": server.uri, **patience})
        with pytest.raises(SinkUnavailable, match=r"creating .*orders.*has no such table\n.*the catalog's log"):
            job.merge(spark, hand_log.root, lake)


def halt(monkeypatch: pytest.MonkeyPatch, meanwhile: Callable[[], None]) -> list[str]:
    """The next commit stops between its last check of the table and its statement."""
    check, told = IcebergTable._check_same, []

    def halted(table: IcebergTable, found: Any) -> None:
        check(table, found)
        monkeypatch.setattr(IcebergTable, "_check_same", check)
        meanwhile()
        told.append("gone on")

    monkeypatch.setattr(IcebergTable, "_check_same", halted)
    return told


def overtake(spark: Any, log: HandLog, lake: Warehouse, table: Any) -> None:
    log.segment([(table, "u", {"id": 1, "item": "three"})])
    assert job.merge(spark.newSession(), log.root, lake).published
