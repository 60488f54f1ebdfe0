"""A log of MySQL or MariaDB that moves to another server: a promoted replica, a restored dump, a renamed schema."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.servers.mysql import MySQLDatabase, MySQLServer
from tests.support.kill.killed_move import kill_move_at
from tests.support.mysql import replication
from tests.support.verify.compared_shop import ComparedShop

pytestmark = [pytest.mark.mysql, pytest.mark.long]

ROWS = 400
COLUMNS = ["id", "name"]
CREATE = "CREATE TABLE items (id int PRIMARY KEY, name varchar(40))"


@pytest.fixture
def replica(own_mysql: MySQLServer) -> Iterator[MySQLServer]:
    with replication.replica_of(own_mysql) as server:
        replication.follow(server, own_mysql)
        yield server


@pytest.fixture
def shop(own_mysql: MySQLServer, tmp_path: Path) -> Iterator[ComparedShop]:
    """A shop whose table is read and whose changes are captured; its daemon is stopped."""
    with ComparedShop.on_mysql(own_mysql.create_database("shop"), tmp_path) as shop:
        rows = ", ".join(f"({n}, 'name {n}')" for n in range(ROWS))
        shop.execute(CREATE, f"INSERT INTO items VALUES {rows}")
        shop.start("items")
        shop.execute("UPDATE items SET name = 'captured' WHERE id = 1")
        shop.assert_copies_equal_source("items", COLUMNS)
        shop.stop()
        yield shop


def move(shop: ComparedShop, to: MySQLServer, *options: str, code: int = 0) -> str:
    """The output of `cdcflow move`."""
    yes = [] if "--dry-run" in options else ["--yes"]
    return shop.said_both("move", "--to", to.url(), *yes, *options, code=code)


def continued_at(shop: ComparedShop, to: MySQLServer, said: str) -> None:
    """Do what the command prints, start the daemon, and compare once every table is proven."""
    found = re.search(r"set source\.url: (\S+) in", said)
    assert found is not None, said
    shop.settings["source"]["url"] = found[1]
    shop.write()
    shop.execute = MySQLDatabase(to, "shop").execute
    shop.execute("UPDATE items SET name = 'before the start' WHERE id = 7", "DELETE FROM items WHERE id = 8")
    shop.start("items")
    shop.execute("INSERT INTO items VALUES (100000, 'after the start')")

    def is_proven(status: dict[str, Any]) -> bool:
        gap = status["tables"]["shop.items"].get("gap")
        return gap is None or gap["proven"] is not None

    shop.wait_until(is_proven, "the table to be proven")
    shop.assert_copies_equal_source("items", COLUMNS)
    shop.verify("--against", "log", code=0)


def generation(shop: ComparedShop) -> object:
    status = json.loads(shop.said("status", "--json", code=None).splitlines()[-1])
    return status["tables"]["shop.items"]["generation"]


def gaps(shop: ComparedShop) -> list[object]:
    return list(json.loads(shop.said("log", "gaps", "--json")))


def restored(shop: ComparedShop, other: MySQLServer) -> None:
    """Restore a dump of the shop at a server, where some rows have changed since."""
    there = other.create_database("shop")
    rows = ", ".join(f"({number}, '{name}')" for number, name in shop.execute("SELECT id, name FROM items"))
    there.execute(CREATE, f"INSERT INTO items VALUES {rows}")
    there.execute("UPDATE items SET name = 'elsewhere' WHERE id IN (2, 3)", "DELETE FROM items WHERE id IN (4, 5)")
    there.execute("INSERT INTO items VALUES (9000, 'only there')")


def test_log_moves_to_a_promoted_replica_without_a_gap(
    shop: ComparedShop, own_mysql: MySQLServer, replica: MySQLServer
) -> None:
    """The plan changes nothing, and shows what the move then does."""
    shop.execute("INSERT INTO items VALUES (5000, 'not captured yet')")
    replication.wait_until_caught_up(replica, own_mysql)
    own_mysql.kill()
    replication.promote(replica)
    before = shop.said("log", "ls", "--json")
    said = move(shop, replica, "--dry-run")
    assert "missing:   nothing" in said
    assert "by GTID" in said, "file and byte may be the same by coincidence"
    assert shop.said("log", "ls", "--json") == before
    continued_at(shop, replica, move(shop, replica))
    assert generation(shop) == 1
    assert not gaps(shop)


def test_log_moves_to_a_restored_dump_and_only_differing_rows_are_read(shop: ComparedShop) -> None:
    """No GTID in common: a new position, a gap, kept rows, and the daemon's own repair."""
    with MySQLServer(shop_flavor(shop), {"server_id": "9"}) as other:
        restored(shop, other)
        said = move(shop, other, "--dry-run")
        assert "another server with the same tables" in said
        assert "there will be a gap" in said
        continued_at(shop, other, move(shop, other))
        assert generation(shop) == 1
        assert len(gaps(shop)) == 1


def test_server_that_lacks_transactions_is_refused_unless_the_tables_are_compared(
    shop: ComparedShop, own_mysql: MySQLServer, replica: MySQLServer
) -> None:
    """The message names `--compare`, which takes the lost changes out of the log."""
    replication.wait_until_caught_up(replica, own_mysql)
    replication.stop(replica)
    shop.execute("INSERT INTO items VALUES (6000, 'never replicated')")
    shop.start()
    shop.merge_until("items", lambda rows: 6000 in rows.column("id").to_pylist())
    shop.stop()
    own_mysql.kill()
    replication.promote(replica)
    said = shop.said_error("move", "--to", replica.url(), "--yes")
    assert "lacks transactions that the change log has" in " ".join(said.split())
    assert "--compare" in said
    continued_at(shop, replica, move(shop, replica, "--compare"))


@pytest.mark.parametrize("point", ["after:marks", "before:cut", "after:cut", "after:sync", "after:identity of MySQL"])
def test_move_that_was_killed_is_repeated(shop: ComparedShop, point: str) -> None:
    """Before the cut the log continues where it did; after it at the new server. The same command ends it."""
    with MySQLServer(shop_flavor(shop), {"server_id": "9"}) as other:
        restored(shop, other)
        kill_move_at(point, "--to", other.url(), "--yes", "--config", str(shop.file))
        continued_at(shop, other, move(shop, other))


def test_schema_is_renamed_by_moving_its_tables(shop: ComparedShop) -> None:
    """There is no RENAME DATABASE: the tables of the new schema are new tables, and are read."""
    shop.execute("CREATE DATABASE store", "RENAME TABLE shop.items TO store.items")
    shop.execute("INSERT INTO store.items VALUES (7000, 'in the new schema')")
    shop.settings["source"]["tables"] = ["store.*"]
    shop.write()
    shop.schema = "store"
    shop.start("items")
    shop.execute("USE store", "DELETE FROM items WHERE id = 9")
    execute = shop.execute
    shop.execute = lambda *statements: execute("USE store", *statements)
    shop.assert_copies_equal_source("items", COLUMNS)
    shop.verify("--against", "log", code=0)


def shop_flavor(shop: ComparedShop) -> Any:
    return shop.settings["source"]["kind"]
