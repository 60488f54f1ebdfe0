"""A column of the source that the copy lacks is not compared, so its table is not called equal."""

from __future__ import annotations

import pyarrow.compute as pc
from comparedshop import ComparedShop


def test_equal_but_for_a_column_until_the_printed_command_was_run(one_shop: ComparedShop) -> None:
    """Fifteen rows were wrong in a column that no comparison had looked at, and verify ended with 0."""
    shop = one_shop
    shop.execute("CREATE TABLE orders (id int PRIMARY KEY, price int)", "INSERT INTO orders VALUES (1, 5), (2, 6)")
    shop.start("orders")
    shop.merge_until_there("orders")
    assert shop.verify("--against", "both", code=0)["orders/log"]["verdict"] == "equal"

    # No row follows, so the stream says nothing of it, and there is no default to look for.
    shop.execute("ALTER TABLE orders ADD COLUMN note text")
    for against in ("log", "tables"):
        found = shop.verify("--against", against, code=1)[f"orders/{against}"]
        assert (found["verdict"], list(found["left_out"])) == ("equal but for", ["note"])
    told = shop.said("verify", "--against", "log", code=1)
    assert "equal but for" in told
    assert "source and copy agree" not in told
    assert "run `cdcflow backfill public.orders`" in told
    assert "note not compared" in shop.said("status")

    shop.said("backfill", "public.orders")
    shop.merge_until("orders", lambda rows: "note" in rows.column_names)
    assert {one["verdict"] for one in shop.verify("--against", "both", code=0).values()} == {"equal"}
    assert "note not compared" not in shop.said("status")


def test_a_row_that_differs_is_told_before_a_column_that_is_missing(one_shop: ComparedShop) -> None:
    """The worse verdict is the one to act on; the column is named all the same."""
    shop = one_shop
    shop.execute("CREATE TABLE orders (id int PRIMARY KEY, price int)", "INSERT INTO orders VALUES (1, 5), (2, 6)")
    shop.start("orders")
    shop.merge_until_there("orders")
    shop.edit("orders", lambda rows: rows.filter(pc.not_equal(rows["id"], 2)))
    shop.execute("UPDATE orders SET price = 7 WHERE id = 1")
    shop.merge_until("orders", lambda rows: rows["price"].to_pylist() == [7])
    shop.execute("ALTER TABLE orders ADD COLUMN note text")
    found = shop.verify("--against", "tables", code=1)["orders/tables"]
    assert found["verdict"] == "different"
    assert list(found["left_out"]) == ["note"]
