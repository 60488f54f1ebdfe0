"""Delta tables in Unity Catalog: each is registered as an external table, by a merge without Spark."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.servers.gate import Answer, HttpGate
from tests.servers.unity import UnityCatalog
from tests.support.log.hand_log import HandLog
from tests.support.merge.histories import make_table
from tests.support.readers.shapes import COLUMNS, make_row
from tests.support.tables.hostile_texts import (
    EXPANDED,
    NAMES,
    hostile_columns,
    rows_by_key,
    with_defaults,
    write_defaults,
    write_rows,
)

from cdcflow import local
from cdcflow.errors import ConfigurationError, SinkUnavailable
from cdcflow.tables.formats.delta import metastore_name
from cdcflow.tables.job import unity
from cdcflow.tables.job.reports import MergeReport
from cdcflow.tables.paths import Unity, Warehouse, table_path

TOKEN = "not-to-be-printed"  # noqa: S105  of this test's server
ORDERS = make_table("orders", schema="shop", **COLUMNS)
PENS = make_table("Pens & ink", schema="shop", id="int64")


@pytest.fixture
def catalog(monkeypatch: pytest.MonkeyPatch) -> Iterator[UnityCatalog]:
    monkeypatch.setattr(unity, "CHECKED_EVERY_S", 0.0)
    with UnityCatalog(TOKEN) as server:
        yield server


@pytest.fixture
def lake(catalog: UnityCatalog, tmp_path: Path) -> Warehouse:
    return Warehouse(tmp_path / "lake", unity=Unity(catalog.uri, "main", TOKEN))


def merge(log: HandLog, lake: Warehouse) -> MergeReport:
    return local.merge(log.root, lake)


def left_out(report: MergeReport) -> dict[str, str]:
    return {table.name: table.left_out for table in report.tables if table.left_out is not None}


def types_of(entry: Any) -> dict[str, str]:
    return {column["name"]: column["type_text"] for column in entry["columns"]}


def test_tables_are_registered_with_their_location_and_columns(
    hand_log: HandLog, lake: Warehouse, catalog: UnityCatalog, tmp_path: Path
) -> None:
    """A reader of the catalog finds the table by its name, with nothing but that."""
    hand_log.segment([(ORDERS, "c", make_row(1)), (PENS, "c", {"id": 7})])
    assert left_out(merge(hand_log, lake)) == {}
    assert catalog.tables.keys() == {"main.shop.orders", "main.shop.pens__20__26__20ink"}
    entry = catalog.tables["main.shop.orders"]
    assert entry["storage_location"] == f"file://{tmp_path}/lake/shop/orders"
    assert types_of(entry) == {
        "id": "bigint",
        "amount": "decimal(12,2)",
        "note": "string",
        "paid": "boolean",
        "rate": "double",
        "day": "date",
        "at": "timestamp",
        "local": "timestamp_ntz",
        "raw": "binary",
        "small": "smallint",
        "_offset": "bigint",
        "_missing": "array<string>",
    }


def test_what_a_source_calls_things_is_registered_as_text(
    hand_log: HandLog, catalog: UnityCatalog, tmp_path: Path
) -> None:
    """Names, columns and defaults that a template, a shell or a format of texts would expand."""
    lake = Warehouse(tmp_path / "lake", unity=Unity(catalog.uri, "main", TOKEN, replace=True))
    tables = [hostile_columns(NAMES[0]), *(hostile_columns(name, name) for name in NAMES)]
    write_rows(hand_log, tables)
    assert left_out(merge(hand_log, lake)) == {}
    expected = write_defaults(hand_log, tables)
    assert left_out(merge(hand_log, lake)) == {}
    names = {".".join(("main", *metastore_name(table_path(table.id), ""))): table for table in tables}
    assert catalog.tables.keys() == names.keys()
    for name, table in names.items():
        entry = catalog.tables[name]
        columns = [column.name for column in with_defaults(table).columns]
        assert [column for column in types_of(entry) if column not in ("_offset", "_missing")] == columns
        assert entry["storage_location"] == f"file://{lake.location_of(table_path(table.id))}"
        assert rows_by_key(local.read_cut(lake)[str(table.id)].to_pylist()) == expected, name
    stored = [json.dumps([catalog.tables, catalog.schemas, catalog.requests]).encode()]
    stored += [path.read_bytes() for path in tmp_path.joinpath("lake").rglob("*") if path.is_file()]
    assert not [text for text in EXPANDED for content in stored if text in content]


def test_missing_entry_is_created_by_the_next_merge(hand_log: HandLog, lake: Warehouse, catalog: UnityCatalog) -> None:
    """Also for a warehouse that is older than its catalog, and by a merge with nothing new."""
    hand_log.segment([(ORDERS, "c", make_row(1))])
    assert merge(hand_log, Warehouse(lake.root)).published
    assert not catalog.requests
    assert not merge(hand_log, lake).published
    assert catalog.tables.keys() == {"main.shop.orders"}
    catalog.tables.clear()
    assert not merge(hand_log, lake).published
    assert catalog.tables.keys() == {"main.shop.orders"}


def test_entry_is_requested_once_in_a_while_only(
    hand_log: HandLog, lake: Warehouse, catalog: UnityCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A merge each second must not wait for the catalog each second."""
    monkeypatch.setattr(unity, "CHECKED_EVERY_S", 1e9)
    for n in range(3):
        hand_log.segment([(ORDERS, "c", make_row(n))])
        merge(hand_log, lake)
    assert [r for r in catalog.requests if r.endswith("orders")] == ["GET tables/main.shop.orders"] * 2


@pytest.mark.parametrize("replace", [False, True])
def test_changed_columns_are_registered_if_the_settings_allow_it(
    replace: bool, hand_log: HandLog, catalog: UnityCatalog, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The API changes no entry, and a new one has lost the rights that were granted on the old one."""
    lake = Warehouse(tmp_path / "lake", unity=Unity(catalog.uri, "main", TOKEN, replace=replace))
    hand_log.segment([(PENS, "c", {"id": 1})])
    merge(hand_log, lake)
    grown = make_table("Pens & ink", schema="shop", id="int64", price="int32")
    hand_log.segment([(grown, "c", {"id": 2, "price": 3})])
    assert left_out(merge(hand_log, lake)) == {}
    (entry,) = catalog.tables.values()
    assert ("price" in types_of(entry)) == replace
    assert ("has other columns than the table" in capsys.readouterr().out) == (not replace)


def test_of_two_names_that_differ_in_case_the_second_is_excluded(
    hand_log: HandLog, lake: Warehouse, catalog: UnityCatalog
) -> None:
    """To the catalog they are one; neither shows the rows of the other."""
    hand_log.segment([(ORDERS, "c", make_row(1))])
    merge(hand_log, lake)
    capital = make_table("Orders", schema="shop", id="int64")
    hand_log.segment([(capital, "c", {"id": 2}), (ORDERS, "c", make_row(3))])
    why = left_out(merge(hand_log, lake))
    assert why.keys() == {"shop.Orders"}
    assert "leave one of the two tables out of source.tables" in why["shop.Orders"]
    assert catalog.tables["main.shop.orders"]["storage_location"].endswith("/shop/orders")


def test_name_of_another_table_is_not_changed(
    hand_log: HandLog, lake: Warehouse, catalog: UnityCatalog, tmp_path: Path
) -> None:
    """Its readers keep their table; cdcflow's is excluded until one of the remedies is done."""
    catalog.tables["main.shop.orders"] = {"name": "orders", "storage_location": "s3://theirs/orders"}
    hand_log.segment([(ORDERS, "c", make_row(1)), (PENS, "c", {"id": 7})])
    (why,) = left_out(merge(hand_log, lake)).values()
    assert "main.shop.orders is another table's, at s3://theirs/orders" in why
    assert "set merge.catalog.prefix" in why
    assert not (tmp_path / "lake" / "shop" / "orders").exists()
    prefixed = Warehouse(lake.root, unity=Unity(catalog.uri, "main", TOKEN, prefix="lake_"))
    assert left_out(merge(hand_log, prefixed)) == {}
    assert catalog.tables["main.shop.orders"]["storage_location"] == "s3://theirs/orders"
    assert "main.lake_shop.orders" in catalog.tables


@pytest.mark.parametrize(
    ("answer", "error", "text"),
    [
        ((401, {"error_code": "UNAUTHENTICATED", "message": TOKEN}), ConfigurationError, "denies access"),
        ((403, {"error_code": "PERMISSION_DENIED", "message": TOKEN}), ConfigurationError, r"grant its owner"),
        ((404, {"error_code": TOKEN}), ConfigurationError, "catalog main exists"),
        ((503, {"message": TOKEN}), SinkUnavailable, "answered 503"),
    ],
)
def test_catalog_that_refuses_is_named_and_nothing_secret_is_printed(
    answer: Any,
    error: type[Exception],
    text: str,
    hand_log: HandLog,
    lake: Warehouse,
    catalog: UnityCatalog,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Errors are copied into tickets, and the answer of a server may repeat the token."""
    hand_log.segment([(ORDERS, "c", make_row(1))])
    catalog.fails = answer
    with pytest.raises(error, match=text) as raised:
        merge(hand_log, lake)
    assert TOKEN not in str(raised.value) + repr(lake) + capsys.readouterr().out
    catalog.fails = None
    assert merge(hand_log, lake).published
    assert catalog.tables.keys() == {"main.shop.orders"}


def test_unavailable_catalog_ends_the_merge_and_nothing_is_lost(
    hand_log: HandLog, lake: Warehouse, catalog: UnityCatalog
) -> None:
    hand_log.segment([(ORDERS, "c", make_row(1))])
    away = Warehouse(lake.root, unity=Unity("http://127.0.0.1:1", "main", TOKEN))
    with pytest.raises(SinkUnavailable, match=r"http://127.0.0.1:1 does not answer(?s:.*)merge again"):
        merge(hand_log, away)
    assert merge(hand_log, lake).published


def test_redirection_sends_the_token_nowhere(hand_log: HandLog, catalog: UnityCatalog, tmp_path: Path) -> None:
    """A proxy on the way could otherwise collect it."""
    hand_log.segment([(ORDERS, "c", make_row(1))])
    with HttpGate(catalog.port) as gate, HttpGate(catalog.port) as elsewhere:
        gate.rule = lambda request: Answer(302, headers={"Location": f"{elsewhere.uri}{request.path}"})
        lake = Warehouse(tmp_path / "lake", unity=Unity(gate.uri, "main", TOKEN))
        with pytest.raises(ConfigurationError, match="refuses GET"):
            merge(hand_log, lake)
        assert gate.requests
        assert not elsewhere.requests
