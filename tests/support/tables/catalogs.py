"""Warehouses of Iceberg tables whose names are in a catalog server, for tests."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from moto.moto_api._internal.models import moto_api_backend
from moto.server import ThreadedMotoServer
from tests.servers.catalogs import HiveMetastore, RestCatalog
from tests.servers.objects import ACCESS_KEY, SECRET_KEY, ObjectServer
from tests.servers.postgres import PostgresServer
from tests.support.log.hand_log import HandLog

from cdcflow import local
from cdcflow.demo.servers.processes import free_port
from cdcflow.model.table import Table, TableId
from cdcflow.tables.formats.iceberg import identifier
from cdcflow.tables.local.engine import LocalEngine
from cdcflow.tables.local.iceberg_catalogs import TableCatalog
from cdcflow.tables.paths import Warehouse, table_path

TYPES = ("sql", "rest", "hive", "glue")


@contextmanager
def catalog_of(
    type_: str, root: Path | str, postgres: PostgresServer | None = None, hadoop: Mapping[str, str] | None = None
) -> Iterator[dict[str, str]]:
    """The properties of a new catalog of this type. `postgres`: the server for `sql`; `hadoop`: how a server in Java
    reaches the store of the files."""
    match type_:
        case "sql":
            assert postgres is not None
            made = postgres.create_database(f"catalog_{free_port()}")
            uri = f"jdbc:postgresql://127.0.0.1:{postgres.port}/{made.name}"
            yield {"type": "jdbc", "uri": uri, "jdbc.user": "postgres"}
            made.drop()
        case "rest":
            with RestCatalog(str(root), hadoop) as rest:
                yield {"type": "rest", "uri": rest.uri}
        case "hive":
            with HiveMetastore(hadoop) as hive:
                yield {"type": "hive", "uri": hive.uri}
        case _:
            server = ThreadedMotoServer("127.0.0.1", port := free_port(), verbose=False)
            server.start()
            moto_api_backend.reset()  # its state belongs to the process
            keys = {"glue.access-key-id": "test", "glue.secret-access-key": "test", "glue.region": "us-east-1"}
            try:
                yield {"type": "glue", "glue.endpoint": f"http://127.0.0.1:{port}", **keys}
            finally:
                server.stop()


def hadoop_of(server: ObjectServer) -> dict[str, str]:
    """How a server in Java reaches a store, as Hadoop names it."""
    return {
        "fs.s3a.endpoint": server.endpoint,
        "fs.s3a.access.key": ACCESS_KEY,
        "fs.s3a.secret.key": SECRET_KEY,
        "fs.s3a.path.style.access": "true",
        "fs.s3a.endpoint.region": "us-east-1",
        "fs.s3a.connection.ssl.enabled": "false",
    }


def rows_of(warehouse: Warehouse, table: TableId) -> list[dict[str, Any]]:
    """A table's current rows, without Spark."""
    with closing(LocalEngine(warehouse, "iceberg")) as engine, closing(engine.table(table_path(table))) as there:
        assert there.snapshot() is not None
        found: list[dict[str, Any]] = there.rows().to_pylist()
        return found


def sorted_rows(warehouse: Warehouse, table: Table, *columns: str, cut: int | None = None) -> list[tuple[Any, ...]]:
    """These columns of a table's rows as of a cut; by default the latest one."""
    found = local.read_cut(warehouse, cut, incomplete=True)[str(table.id)].select(list(columns)).to_pylist()
    return sorted(tuple(row.values()) for row in found)


@dataclass
class NamedTable:
    """A table in place of its folder: moving it away removes its name from the catalog."""

    warehouse: Warehouse
    table: TableId
    name: str = ""

    def with_name(self, name: str) -> NamedTable:
        return NamedTable(self.warehouse, self.table, name)

    def rename(self, to: NamedTable) -> None:
        with closing(TableCatalog(self.warehouse)) as catalog:
            catalog.remove_entry(identifier(table_path(self.table)))
        folder = Path(self.warehouse.location_of(table_path(self.table)))
        if folder.exists():
            os.rename(folder, folder.with_name(f"{folder.name} before {to.name}"))


def check_next_merge_resumes(log: HandLog, table: Table, warehouse: Warehouse) -> None:
    """Merge two segments of an empty log, and nothing after them: each merge continues from the catalog, and the
    rows as of each cut are right."""
    log.state(table)
    log.segment([(table, "c", {"id": n, "item": f"item {n}"}) for n in (1, 2, 3)])
    assert local.merge(log.root, warehouse, table_format="iceberg").published
    log.segment([(table, "u", {"id": 1, "item": "pen"}), (table, "d", {"id": 2})])
    assert local.merge(log.root, warehouse, table_format="iceberg").published
    assert not local.merge(log.root, warehouse, table_format="iceberg").published
    assert sorted_rows(warehouse, table, "id", "item") == [(1, "pen"), (3, "item 3")]
    assert sorted_rows(warehouse, table, "id", "item", cut=1) == [(n, f"item {n}") for n in (1, 2, 3)]
