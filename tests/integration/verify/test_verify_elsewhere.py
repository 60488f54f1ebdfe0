"""Comparisons with a log whose segments are in an object store, and with tables in one."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from tests.servers.objects import ObjectServer
from tests.servers.postgres import PostgresServer
from tests.support.tables.catalogs import catalog_of
from tests.support.verify.compared_shop import ComparedShop


@pytest.mark.spread(1)
def test_tables_merged_from_an_object_store_are_compared(
    postgres_shop: ComparedShop, own_object_server: ObjectServer
) -> None:
    """The store has the segments, this machine the journal."""
    shop = postgres_shop
    shop.settings["log"]["objects"] = own_object_server.objects("shop", "log", keep_local="0s").model_dump(
        mode="json", exclude_none=True
    )
    shop.write()
    shop.execute(
        "CREATE TABLE items (id int PRIMARY KEY, name text)",
        "INSERT INTO items SELECT n, 'name ' || n FROM generate_series(1, 100) n",
    )
    shop.start("items")
    shop.merge_until("items", lambda rows: rows.num_rows == 100)
    shop.execute("UPDATE items SET name = 'newer' WHERE id = 5", "DELETE FROM items WHERE id = 6")
    found = shop.verify("--against", "both", code=0)
    assert {name: table["rows"] for name, table in found.items()} == {"items/log": 99, "items/tables": 99}


@pytest.mark.parametrize("table_format", ["delta", pytest.param("iceberg", marks=pytest.mark.long)])
def test_tables_in_an_object_store_are_compared(
    one_shop: ComparedShop, one_server: PostgresServer, own_object_server: ObjectServer, table_format: str
) -> None:
    """Without Spark: equal ones are equal, and a row that a merge lost is named."""
    shop = one_shop
    objects = own_object_server.objects("ware").model_dump(mode="json", exclude_none=True)
    access = {name: objects[name] for name in ("endpoint", "access_key", "secret_key")}
    with catalog_of("sql", "", one_server) as catalog:
        shop.settings["merge"] |= {"warehouse": "s3://ware/lake", "objects": access, "format": table_format}
        shop.settings["merge"] |= {"catalog": catalog} if table_format == "iceberg" else {}
        shop.write()
        shop.execute(
            "CREATE TABLE items (id int PRIMARY KEY, name text)",
            "INSERT INTO items SELECT n, 'name ' || n FROM generate_series(1, 100) n",
        )
        shop.start("items")
        shop.merge_until("items", lambda rows: rows.num_rows == 100)
        shop.execute("UPDATE items SET name = 'newer' WHERE id = 5", "DELETE FROM items WHERE id = 6")
        assert {name: table["rows"] for name, table in shop.verify("--against", "both", code=0).items()} == {
            "items/log": 99,
            "items/tables": 99,
        }
        shop.edit("items", lambda rows: rows.filter(pc.not_equal(rows["id"], pa.scalar(7))))
        shop.execute("INSERT INTO items VALUES (101, 'next')")
        shop.merge_until("items", lambda rows: 101 in rows["id"].to_pylist())
        found = shop.verify("--against", "tables", code=1)["items/tables"]
        assert [(one["key"], one["what"]) for one in found["differences"]] == [({"id": 7}, "missing")]


def test_partitioned_tables_in_an_object_store_are_compared(
    one_shop: ComparedShop, one_server: PostgresServer, own_object_server: ObjectServer
) -> None:
    """A row that moves to another partition would appear twice if its old one were skipped, and be lost if the new one
    were."""
    shop = one_shop
    objects = own_object_server.objects("ware").model_dump(mode="json", exclude_none=True)
    access = {name: objects[name] for name in ("endpoint", "access_key", "secret_key")}
    with catalog_of("sql", "", one_server) as catalog:
        shop.settings["merge"] |= {"warehouse": "s3://ware/lake", "objects": access, "format": "iceberg"}
        shop.settings["merge"] |= {"catalog": catalog}
        shop.settings["merge"]["tables"] = {"each": {"public.items": {"partition_by": ["region", "bucket(4, id)"]}}}
        shop.write()
        shop.execute(
            "CREATE TABLE items (id int PRIMARY KEY, region text)",
            "INSERT INTO items SELECT n, (ARRAY['eu', 'us', NULL])[n % 3 + 1] FROM generate_series(1, 100) n",
        )
        shop.start("items")
        shop.merge_until("items", lambda rows: rows.num_rows == 100)
        folder = own_object_server.directory / "buckets/ware/lake/public/items/data"
        regions = {path.name for path in folder.iterdir()}
        assert regions == {"region_identity=eu", "region_identity=us", "region_identity=null"}
        shop.execute(
            "UPDATE items SET region = 'as' WHERE id < 10",
            "UPDATE items SET region = NULL WHERE id BETWEEN 10 AND 14",
            "DELETE FROM items WHERE id = 20",
            "UPDATE items SET id = 200, region = 'us' WHERE id = 30",
        )
        rows = {f"items/{copy}": 99 for copy in ("log", "tables")}
        assert {name: table["rows"] for name, table in shop.verify("--against", "both", code=0).items()} == rows
        shop.merge_until("items", lambda found: 200 in found["id"].to_pylist())
        assert {name: table["rows"] for name, table in shop.verify("--against", "both", code=0).items()} == rows
        # As if a merge had left the old row in its old partition.
        shop.edit("items", lambda found: pa.concat_tables([found, _elsewhere(found, 3)]))
        shop.execute("INSERT INTO items VALUES (101, 'as')")
        shop.merge_until("items", lambda found: 101 in found["id"].to_pylist())
        found = shop.verify("--against", "tables", code=1)["items/tables"]
        assert [(one["key"], one["what"]) for one in found["differences"]] == [({"id": 3}, "doubled")]


def _elsewhere(rows: pa.Table, key: int) -> pa.Table:
    """A row, in a different partition."""
    found = rows.filter(pc.equal(rows["id"], pa.scalar(key)))
    return found.set_column(found.column_names.index("region"), "region", pa.array(["eu"]).cast(rows["region"].type))
