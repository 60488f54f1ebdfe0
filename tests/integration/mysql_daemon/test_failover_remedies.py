"""Failovers that lost something, or gained something: the daemon stops, and its remedy corrects the tables."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.servers.mysql import MySQLDatabase, MySQLServer
from tests.support.mysql import replication
from tests.support.verify.compared_shop import ComparedShop

pytestmark = [pytest.mark.mysql, pytest.mark.long]

ROWS = 400


@pytest.fixture
def replica(own_mysql: MySQLServer) -> Iterator[MySQLServer]:
    with replication.replica_of(own_mysql) as server:
        replication.follow(server, own_mysql)
        yield server


@pytest.fixture
def shop(own_mysql: MySQLServer, tmp_path: Path) -> Iterator[ComparedShop]:
    with ComparedShop.on_mysql(own_mysql.create_database("shop"), tmp_path) as shop:
        rows = ", ".join(f"({n}, 'name {n}')" for n in range(ROWS))
        shop.execute("CREATE TABLE items (id int PRIMARY KEY, name varchar(40))", f"INSERT INTO items VALUES {rows}")
        shop.start("items")
        yield shop


def captured(shop: ComparedShop, name: str) -> None:
    """Wait until a row with this name has arrived."""
    shop.merge_until("items", lambda rows: name in rows.column("name").to_pylist())


def promoted(shop: ComparedShop, primary: MySQLServer, replica: MySQLServer) -> None:
    """The primary is gone, the settings name the replica, and an application writes there."""
    shop.stop()
    primary.kill()
    replication.promote(replica)
    shop.execute = MySQLDatabase(replica, "shop").execute
    shop.settings["source"]["url"] = replica.url()
    shop.write()
    shop.execute("UPDATE items SET name = 'promoted' WHERE id = 7", "DELETE FROM items WHERE id = 8")


def corrected(shop: ComparedShop) -> None:
    """The way that the message names, to the letter."""
    shop.start("items", options=["--accept-history-loss", "--keep-rows"])
    shop.said("repair", code=0)
    shop.verify("--against", "log", code=0)
    shop.assert_copies_equal_source("items", ["id", "name"])
    shop.execute("INSERT INTO items VALUES (100000, 'afterwards')")
    captured(shop, "afterwards")


def test_commits_that_died_with_the_primary_are_taken_out_again(
    shop: ComparedShop, own_mysql: MySQLServer, replica: MySQLServer
) -> None:
    """P43: asynchronous replication loses the last commits of a primary, and the log may have them."""
    replication.wait_until_caught_up(replica, own_mysql)
    replication.stop(replica)
    shop.execute(
        "INSERT INTO items VALUES (200000, 'never replicated')",
        "UPDATE items SET name = 'lost' WHERE id = 3",
        "DELETE FROM items WHERE id = 4",
        "INSERT INTO items VALUES (200001, 'last')",
    )
    captured(shop, "last")
    promoted(shop, own_mysql, replica)
    said = shop.refused()
    assert "lacks transactions that the change log has" in said
    assert "--keep-rows" in said
    corrected(shop)


def test_writes_to_a_replica_are_corrected_by_the_remedy(
    shop: ComparedShop, own_mysql: MySQLServer, replica: MySQLServer
) -> None:
    """Which of the two was meant is unknown: the new primary's rows count."""
    replication.wait_until_caught_up(replica, own_mysql)
    replication.stop(replica)
    MySQLDatabase(replica, "shop").execute("UPDATE items SET name = 'at the replica' WHERE id IN (5, 6)")
    replication.start(replica)
    shop.execute("UPDATE items SET name = 'at the primary' WHERE id = 6", "INSERT INTO items VALUES (200001, 'last')")
    captured(shop, "last")
    replication.wait_until_caught_up(replica, own_mysql)
    promoted(shop, own_mysql, replica)
    said = " ".join(shop.refused().split())
    assert "before ones that it has" in said
    assert "shop.items" in said
    assert "--keep-rows" in said
    corrected(shop)
