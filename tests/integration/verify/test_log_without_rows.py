"""A log without a row is a whole copy of tables that have none."""

from __future__ import annotations

import pytest
from tests.support.verify.compared_shop import ComparedShop


def made(shop: ComparedShop) -> None:
    shop.execute("CREATE TABLE orders (id int PRIMARY KEY, price int)")
    shop.settings["log"]["seal"]["age_max"] = "1h"
    shop.write()
    shop.start("orders")


def equal_until_there_are_rows(shop: ComparedShop) -> None:
    made(shop)
    found = shop.verify("--against", "log", code=0)["orders/log"]
    assert (found["verdict"], found["rows"]) == ("equal", 0)
    shop.execute("INSERT INTO orders VALUES (1, 5)")
    found = shop.verify("--against", "log", code=1)["orders/log"]
    assert found["verdict"] == "not compared"
    assert "no sealed segment" in found["reason"]


def test_of_postgres(one_shop: ComparedShop) -> None:
    equal_until_there_are_rows(one_shop)


@pytest.mark.spread(1)
@pytest.mark.mysql
def test_of_mysql_and_mariadb(mysql_shop: ComparedShop) -> None:
    equal_until_there_are_rows(mysql_shop)


def test_rows_that_the_log_does_not_have_are_not_called_equal(one_shop: ComparedShop) -> None:
    """They were written while no capture ran: the log cannot know, and verify waits for it in vain."""
    made(one_shop)
    one_shop.stop()
    one_shop.execute("INSERT INTO orders VALUES (1, 5)")
    one_shop.start()
    found = one_shop.verify("--against", "log", code=1)["orders/log"]
    assert found["verdict"] == "not compared"
