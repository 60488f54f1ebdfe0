"""A column of the source that the copy lacks is not compared, so its table is not called equal."""

from __future__ import annotations

import pyarrow.compute as pc
import pytest
from tests.support.verify.compared_shop import ComparedShop

NO_ROW_FOLLOWS = "ALTER TABLE orders ADD COLUMN note text"
"""The stream does not report it until a row arrives, and there is no default to detect."""


def test_equal_but_for_a_column_until_the_printed_command_was_run(one_shop: ComparedShop) -> None:
    """Fifteen rows were wrong in a column that no comparison had covered, and verify ended with 0."""
    shop = one_shop
    shop.execute("CREATE TABLE orders (id int, price int)", "INSERT INTO orders VALUES (1, 5), (2, 6)")
    shop.execute("ALTER TABLE orders REPLICA IDENTITY FULL")
    shop.start("orders")
    shop.merge_until_there("orders")
    assert shop.verify("--against", "both", code=0)["orders/log"]["verdict"] == "equal"

    shop.execute(NO_ROW_FOLLOWS)
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


def test_the_daemon_reads_the_shape_again_of_a_table_with_a_key(one_shop: ComparedShop) -> None:
    """The comparison that missed the column requests it; a row of the table brings it."""
    shop = one_shop
    shop.execute("CREATE TABLE orders (id int PRIMARY KEY, price int)", "INSERT INTO orders VALUES (1, 5), (2, 6)")
    shop.start("orders")
    shop.merge_until_there("orders")
    shop.execute(NO_ROW_FOLLOWS)
    told = shop.said("verify", "--against", "log", code=1)
    assert "equal but for" in told
    assert "the daemon now reads the table's shape again, which brings note" in told
    shop.merge_until("orders", lambda rows: "note" in rows.column_names)
    assert {one["verdict"] for one in shop.verify("--against", "both", code=0).values()} == {"equal"}


@pytest.mark.spread(1)
@pytest.mark.mysql
def test_column_values_changed_by_an_unlogged_statement_are_found_and_repaired(mysql_shop: ComparedShop) -> None:
    """The statement is in no log: the comparison finds its column missing first, then its values, and then
    repairs it.
    """
    shop = mysql_shop
    shop.execute("CREATE TABLE orders (id int PRIMARY KEY, price int)", "INSERT INTO orders VALUES (1, 5), (2, 6)")
    shop.start("orders")
    shop.merge_until_there("orders")
    shop.execute("SET sql_log_bin = 0", "ALTER TABLE orders ADD COLUMN d int NOT NULL DEFAULT 7", "SET sql_log_bin = 1")
    assert "which brings d" in shop.said("verify", "--against", "log", code=1)
    shop.merge_until("orders", lambda rows: "d" in rows.column_names)
    found = shop.verify("--against", "tables", code=1)["orders/tables"]
    assert (found["verdict"], found["different"], found["left_out"]) == (
        "different",
        1,
        {},
    )  # the row that was read has it
    shop.said("repair", f"{shop.schema}.orders", code=None)  # of the log, which the tables follow
    shop.merge_until("orders", lambda rows: rows["d"].to_pylist() == [7, 7])
    assert shop.verify("--against", "both", code=0)["orders/tables"]["verdict"] == "equal"


def test_differing_row_is_reported_before_a_missing_column(one_shop: ComparedShop) -> None:
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
