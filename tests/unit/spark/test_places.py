"""Where a warehouse is, and how it is reached: from text, from settings, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from cdcflow import wiring
from cdcflow.config import load
from cdcflow.errors import ConfigurationError
from cdcflow.model.stores import StoreAddress
from cdcflow.model.table import TableId
from cdcflow.tables.formats import format_for
from cdcflow.tables.formats.delta import metastore_name
from cdcflow.tables.paths import Metastore, Warehouse, table_path

SETTINGS = """
source: {kind: postgres, url: "postgresql://cdc@localhost/shop"}
log: {path: ./log}
"""


@pytest.mark.parametrize(
    ("given", "root"),
    [
        ("s3://shop/lake/", "s3a://shop/lake"),
        ("s3a://shop", "s3a://shop"),
        ("hdfs://name:9000/lake", "hdfs://name:9000/lake"),
        ("file:///data/my%20lake", Path("/data/my lake")),
        ("./lake", Path("lake")),
        (Path("lake"), Path("lake")),
    ],
)
def test_a_place_is_a_folder_or_a_url(given: Path | str, root: Path | str) -> None:
    found = Warehouse.of(given)
    assert found.root == root
    assert found.is_local is isinstance(root, Path)
    assert Warehouse.of(found) is found


@pytest.mark.parametrize("given", [Path("s3a://shop/lake"), "s3a:/shop/lake", "hdfs:/lake"])
def test_a_url_that_lost_a_slash_is_refused(given: Path | str) -> None:
    """A folder of that name would be created, where it would not be found."""
    with pytest.raises(ConfigurationError, match="s3a://bucket/path"):
        Warehouse.of(given)


def test_contents_of_a_warehouse_have_a_whole_path(tmp_path: Path) -> None:
    assert Warehouse(tmp_path).location_of(("public", "orders")) == f"{tmp_path}/public/orders"
    assert Warehouse("s3a://shop/lake").location_of(("public", "orders")) == "s3a://shop/lake/public/orders"
    assert Warehouse("s3a://shop/lake").bucket == "shop"
    assert Warehouse("hdfs://name/lake").bucket is None
    with pytest.raises(ConfigurationError, match=r"set merge\.engine to spark or auto"):
        _ = Warehouse("s3a://shop/lake").folder


def test_format_of_a_place_that_is_no_folder_is_known_from_its_catalog(tmp_path: Path) -> None:
    lake = Warehouse("s3a://shop/lake")
    known = Warehouse("s3a://shop/lake", catalog={"type": "rest", "uri": "http://127.0.0.1"})
    assert format_for(lake, None) == "delta"
    assert format_for(known, None) == format_for(known, "iceberg") == "iceberg"
    with pytest.raises(ConfigurationError, match=r"set merge\.catalog"):
        format_for(lake, "iceberg")
    with pytest.raises(ConfigurationError, match="its tables are iceberg tables"):
        format_for(known, "delta")


def test_the_configured_place_has_its_keys_and_shows_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEY", "the key")
    (tmp_path / "secret").write_text("the secret")
    (tmp_path / "secret").chmod(0o600)
    file = tmp_path / "cdcflow.yaml"
    objects = 'objects: {endpoint: "http://127.0.0.1:1", access_key: "${env:KEY}", secret_key: "${file:secret}"}'
    catalog = 'catalog: {type: jdbc, uri: "jdbc:postgresql://db/c", jdbc.password: "${env:KEY}"}'
    file.write_text(f"{SETTINGS}merge: {{format: iceberg, warehouse: 's3://shop/lake', {objects}, {catalog}}}\n")
    found = wiring.warehouse(load(file))
    assert found.root == "s3a://shop/lake"
    assert found.store == StoreAddress("shop", "http://127.0.0.1:1", "us-east-1", "the key", "the secret")
    assert found.catalog == {"type": "jdbc", "uri": "jdbc:postgresql://db/c", "jdbc.password": "the key"}
    assert "the " not in repr(found)


def test_the_configured_metastore_is_that_of_delta_tables_alone(tmp_path: Path) -> None:
    """Iceberg has a type of that name, too, whose properties are passed to Iceberg unchanged."""
    file = tmp_path / "cdcflow.yaml"
    catalog = 'catalog: {type: hive, uri: "thrift://one:9083,thrift://two:9083", prefix: lake_}'
    file.write_text(f"{SETTINGS}merge: {{{catalog}}}\n")
    found = wiring.warehouse(load(file))
    assert (found.metastore, found.catalog) == (Metastore("thrift://one:9083,thrift://two:9083", "lake_"), None)
    assert format_for(found, None) == "delta"
    file.write_text(f"{SETTINGS}merge: {{format: iceberg, {catalog}}}\n")
    found = wiring.warehouse(load(file))
    assert found.metastore is None
    assert found.catalog == {"type": "hive", "uri": "thrift://one:9083,thrift://two:9083", "prefix": "lake_"}
    file.write_text(f"{SETTINGS}merge: {{catalog: {{type: hive}}}}\n")
    assert wiring.warehouse(load(file)).metastore == Metastore()


@pytest.mark.parametrize(
    ("path", "name"),
    [
        (("shop", "order_items"), ("lake_shop", "order_items")),
        (("My~20shop", "Order.Items"), ("lake_my__20shop", "order__2eitems")),
        (("~5Fx", "2024~2Fa"), ("lake__x", "2024__2fa")),
        (("_cdcflow_cuts",), ("lake__cdcflow", "_cdcflow_cuts")),
    ],
)
def test_a_table_has_a_name_that_a_metastore_allows(path: tuple[str, ...], name: tuple[str, str]) -> None:
    assert metastore_name(path, "lake_") == name


def test_long_names_of_a_metastore_differ_where_the_tables_do() -> None:
    """A metastore's database has 128 characters for a name; one character of a source's name may need 12."""
    names = [metastore_name(table_path(TableId("shop", "表" * 62 + last)), "")[1] for last in "一二"]
    assert len(set(names)) == 2
    assert all(len(name) <= 128 and name.startswith("__e8__a1__a8") for name in names)


def test_the_log_of_a_cluster_is_what_the_store_has_of_it(tmp_path: Path) -> None:
    """Executors on other machines cannot read this machine's disk; Spark on this machine can."""
    file = tmp_path / "cdcflow.yaml"
    file.write_text(SETTINGS.replace("path: ./log", 'path: ./log, objects: {url: "s3://shop/log"}'))
    log = load(file).log
    (tmp_path / "log").mkdir()
    (tmp_path / "log" / "log.json").write_text("{}")
    for master in (None, "local[*]"):
        assert wiring.merge_layout(log, master).is_home  # type: ignore[arg-type]  # it is in files
    assert not wiring.merge_layout(log, "spark://host:7077").is_home  # type: ignore[arg-type]
