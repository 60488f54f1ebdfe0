"""`cdcflow explain`: what a version of a table holds, and which change gave each value of a row."""

from __future__ import annotations

import json
from typing import Any

from tests.support.verify.compared_shop import ComparedShop

LONG = "x" * 20_000
"""So long that the server's log does not repeat it."""


def explained(shop: ComparedShop, *arguments: str) -> dict[str, Any]:
    return dict(json.loads(shop.said("explain", *arguments, "--json")))


def test_each_value_is_traced_to_the_change_that_gave_it(one_shop: ComparedShop) -> None:
    """A value that an update did not repeat was set by an earlier change than the others."""
    shop = one_shop
    shop.execute(
        "CREATE TABLE items (id int PRIMARY KEY, qty int, doc text)",
        "ALTER TABLE items ALTER COLUMN doc SET STORAGE EXTERNAL",
        f"INSERT INTO items VALUES (1, 1, '{LONG}'), (2, 2, 'b')",
    )
    shop.start("items")
    shop.merge_until("items", lambda rows: rows.num_rows == 2)
    first = explained(shop, "public.items", "--key", "1")
    assert {o["column"]: o["op"] for o in first["row"]} == {"id": "r", "qty": "r", "doc": "r"}
    assert (first["before"], first["changes"], first["row_state"]) == (None, 2, "in the table")
    shop.execute("UPDATE items SET qty = 7 WHERE id = 1", "INSERT INTO items VALUES (3, 3, 'c')")
    shop.merge_until("items", lambda rows: rows.num_rows == 3)
    second = explained(shop, "public.items", "--key", "1")
    assert {o["column"]: o["op"] for o in second["row"]} == {"id": "u", "qty": "u", "doc": "r"}
    assert {o["column"]: o["value"] for o in second["row"]}["qty"] == "7"
    assert second["before"] == first["version"]
    assert (second["first"], second["count"]) == (first["offset"] + 1, 2)
    assert [t["kind"] for t in second["transactions"]] == ["source", "source"]
    assert explained(shop, f"public.items@{first['version']}", "--key", "1")["row"] == first["row"]
    shop.execute("DELETE FROM items WHERE id = 2")
    shop.merge_until("items", lambda rows: rows.num_rows == 2)
    assert explained(shop, "public.items", "--key", "2")["row_state"] == "deleted"
    assert explained(shop, "public.items", "--key", "77")["row_state"] == "the log has no change of it"
    said = shop.said("explain", "public.items", "--key", "1")
    assert f"since version {second['version']}" in said
    assert "qty: 7\n" in said
    assert "no kept cut shows it" in shop.said_error("explain", "public.items@4711")
    assert "its key has 1 columns (id), 2 were named" in shop.said_error("explain", "public.items", "--key", "1,2")
