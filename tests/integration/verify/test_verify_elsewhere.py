"""Comparisons with a log whose segments are in an object store."""

from __future__ import annotations

import pytest
from tests.servers.objects import ObjectServer
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
