"""Texts of a source that a catalog, its client or its server could expand: each of them stays text."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import boto3  # type: ignore[import-untyped]  # it has no types
import psycopg
import pytest
from pyiceberg.catalog import Catalog, load_catalog
from tests.servers.catalogs import HiveMetastore, RestCatalog
from tests.servers.postgres import PostgresServer
from tests.support.log.hand_log import HandLog
from tests.support.tables.catalogs import catalog_of
from tests.support.tables.hostile_texts import (
    EXPANDED,
    NAMES,
    hostile_columns,
    rows_by_key,
    write_defaults,
    write_rows,
)

from cdcflow import local
from cdcflow.tables.formats.iceberg import catalog_name, identifier
from cdcflow.tables.paths import Warehouse, table_path

Content = Callable[[], bytes]

PLAIN = hostile_columns("plain")
NAMED = [hostile_columns(NAMES[0]), *(hostile_columns(name, name) for name in NAMES[1:])]


def files_below(folder: Path) -> bytes:
    return b"\n".join(path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file())


@contextmanager
def catalog_with_content(type_: str, root: Path, postgres: PostgresServer) -> Iterator[tuple[dict[str, str], Content]]:
    """A new catalog's properties, and all that it has stored and logged."""
    match type_:
        case "sqlite":
            file = root.parent / "catalog.db"
            yield {"type": "jdbc", "uri": f"jdbc:sqlite:{file}"}, file.read_bytes
        case "rest" | "hive":
            with RestCatalog(str(root)) if type_ == "rest" else HiveMetastore() as server:
                yield {"type": type_, "uri": server.uri}, lambda: files_below(server.folder)
        case _:
            with catalog_of(type_, root, postgres) as found:
                yield found, lambda: (_in_postgres if type_ == "sql" else _in_glue)(found)


def _in_postgres(properties: dict[str, str]) -> bytes:
    with psycopg.connect(properties["uri"].removeprefix("jdbc:"), user=properties["jdbc.user"]) as connection:
        found = [connection.execute(f"TABLE iceberg_{name}").fetchall() for name in ("tables", "namespace_properties")]
    assert all(found)
    return repr(found).encode()


def _in_glue(properties: dict[str, str]) -> bytes:
    keys = {"aws_access_key_id": "test", "aws_secret_access_key": "test", "region_name": "us-east-1"}
    glue = boto3.client("glue", endpoint_url=properties["glue.endpoint"], **keys)
    listed = glue.get_databases()["DatabaseList"]
    assert listed
    return repr([(one, glue.get_tables(DatabaseName=one["Name"])["TableList"]) for one in listed]).encode()


def client_of(lake: Warehouse) -> Catalog:
    """PyIceberg's own client."""
    given: dict[str, Any] = dict(lake.catalog or {})
    if given["type"] == "jdbc":
        uri = given["uri"].removeprefix("jdbc:").replace("sqlite:", "sqlite:///")
        given = {"type": "sql", "uri": uri.replace("postgresql://", "postgresql+psycopg://postgres@")}
    return load_catalog(catalog_name(lake), **given)


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgresServer]:
    with PostgresServer() as server:
        yield server


@pytest.mark.spread(1)
@pytest.mark.parametrize("type_", ["sqlite", "sql", "rest", "glue", pytest.param("hive", marks=pytest.mark.long)])
def test_what_a_source_calls_things_stays_text_in_each_catalog(
    type_: str, hand_log: HandLog, tmp_path: Path, postgres: PostgresServer
) -> None:
    """A catalog's client builds addresses and statements from names, and its server may replace variables. A name that
    the catalog cannot hold excludes that table alone."""
    refuses = type_ in ("hive", "glue")
    root = tmp_path / "lake"
    tables = [PLAIN, *NAMED]
    with catalog_with_content(type_, root, postgres) as (properties, content):
        lake = Warehouse(root, catalog=properties)
        write_rows(hand_log, tables)
        local.merge(hand_log.root, lake, table_format="iceberg")
        expected = write_defaults(hand_log, tables)
        report = local.merge(hand_log.root, lake, table_format="iceberg")
        assert report.published

        left_out = {table.name: table.left_out for table in report.tables if table.left_out is not None}
        assert left_out.keys() == ({str(table.id) for table in NAMED} if refuses else set())
        for why in left_out.values():
            assert f"a {type_} catalog has no names with other characters than letters, digits and _" in why
            assert "rename the table at the source, exclude it from the capture, or use another kind" in why
        published = [table for table in tables if str(table.id) not in left_out]

        names = {identifier(table_path(table.id)): table for table in published}
        with closing(client_of(lake)) as client, warnings.catch_warnings(action="ignore"):
            spaces = [space for space in client.list_namespaces() if space != ("_cdcflow",)]
            assert {name for space in spaces for name in client.list_tables(space)} == names.keys()
            for name, table in names.items():
                rows = client.load_table(name).scan().to_arrow().to_pylist()
                assert rows_by_key(rows) == expected, name
                assert rows_by_key(local.read_cut(lake)[str(table.id)].to_pylist()) == expected, name
        stored = content() + files_below(root)
        assert not [text for text in EXPANDED if text in stored]
