"""Row rules (`where`, `computed`) while nothing reads the source: a gap that the daemon repairs by itself, and a column
that gets another name."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.integration.daemon.test_log_budgets import BUDGET, fill, kept
from tests.integration.daemon.test_log_budgets_of_binlogs import purge
from tests.servers.mysql import MySQLServer
from tests.servers.postgres import Database, PostgresServer
from tests.support.polling import wait_until
from tests.support.verify.compared_shop import ComparedShop

from cdcflow.cli.guard import procedure

pytestmark = pytest.mark.long
RULES = {"where": "name <> 'hidden'", "computed": {"size": "char_length(name)"}}
BOTH_NAMES = {
    "where": "coalesce(title, name) <> 'hidden'",
    "computed": {"size": "char_length(coalesce(title, name))"},
    "optional": ["name", "title"],
}
ROWS = 200
CHANGED = (
    "UPDATE items SET name = 'hidden' WHERE id IN (5, 6)",
    "UPDATE items SET name = 'shown' WHERE id IN (10, 11)",
    "DELETE FROM items WHERE id IN (1, 2, 3, 12)",
    f"INSERT INTO items VALUES ({ROWS}, 'unseen'), ({ROWS + 1}, 'hidden')",
    "UPDATE items SET id = 9000 WHERE id = 7",
    "UPDATE items SET id = 9001, name = 'hidden' WHERE id = 8",
)
"""Rows that leave the filter, enter it, and get other keys in it."""


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with PostgresServer() as made:
        yield made


@pytest.fixture
def database(server: PostgresServer) -> Iterator[Database]:
    made = server.create_database("rules")
    yield made
    made.drop()


@pytest.fixture
def postgres_shop(database: Database, tmp_path: Path) -> Iterator[ComparedShop]:
    with ComparedShop.on_postgres(database, tmp_path) as shop:
        shop.settings["source"] |= {"log_budget": BUDGET, "log_budget_then": "release", "slot": "budgeted"}
        begin(shop)
        yield shop


@pytest.fixture
def mysql_shop(own_mysql: MySQLServer, tmp_path: Path) -> Iterator[ComparedShop]:
    with ComparedShop.on_mysql(own_mysql.create_database("shop"), tmp_path) as shop:
        shop.settings["source"] |= {"log_budget_then": "release"}
        begin(shop)
        yield shop


def begin(shop: ComparedShop) -> None:
    """Two tables, one with rules, both read; the daemon is stopped."""
    use_rules(shop, RULES)
    rows = ", ".join(f"({n}, '{'hidden' if n in (10, 11, 12) else f'name {n}'}')" for n in range(ROWS))
    for table in ("items", "others"):
        shop.execute(
            f"CREATE TABLE {table} (id int PRIMARY KEY, name varchar(40))", f"INSERT INTO {table} VALUES {rows}"
        )
    shop.start("items", "others")
    shop.stop()


def use_rules(shop: ComparedShop, rules: dict[str, Any]) -> None:
    shop.settings["tables"] = {f"{shop.schema}.items": rules}
    shop.write()


def assert_exact(shop: ComparedShop, name: str = "name") -> None:
    """The copies have the rows that fit, as computed from the source's present ones."""
    query = f"SELECT id, {name}, char_length({name}) FROM items WHERE {name} <> 'hidden'"
    if name == "name":
        shop.assert_copies_equal_source("items", ["id", name, "size"], query)
    else:  # rows of the log keep the name that they were written with
        shop.assert_table_equals("items", ["id", name, "size"], sorted(shop.execute(query)))
    shop.verify("--against", "log", code=0)


def lose_history_of_postgres(shop: ComparedShop) -> None:
    """The server's log grows beyond the budget, and the slot is dropped."""
    shop.execute(procedure())
    fill(shop, BUDGET + (4 << 20))
    shop.execute(f"CALL cdcflow.guard('budgeted', {BUDGET})")
    wait_until(lambda: kept(shop) is None, "the slot to be released")


def is_repaired(shop: ComparedShop, status: dict[str, Any], table: str) -> bool:
    known = status["tables"][f"{shop.schema}.{table}"]
    proven = known.get("gap") is not None and known["gap"]["proven"] is not None
    return bool(known["state"] == "done" and (proven or known["generation"] > 1))


def has_failed(shop: ComparedShop, status: dict[str, Any]) -> bool:
    """Only the table with rules; the other one is read."""
    items, others = (status["tables"][f"{shop.schema}.{name}"] for name in ("items", "others"))
    return bool(items["state"] == "failed" and others["state"] == "done")


@pytest.mark.postgres
@pytest.mark.parametrize("name", ["name", "title"])
def test_gap_of_postgres_is_repaired_by_the_rules(postgres_shop: ComparedShop, name: str) -> None:
    """Rows that left the filter in the lost part of the log are deleted from the copies, and those that entered it are
    inserted; also if the column has another name since."""
    shop = postgres_shop
    shop.execute(*CHANGED)
    if name != "name":
        shop.execute(f"ALTER TABLE items RENAME COLUMN name TO {name}")
    lose_history_of_postgres(shop)
    shop.start()
    for table in ("items", "others"):
        shop.wait_until(lambda status, table=table: is_repaired(shop, status, table), f"{table} to be repaired")  # type: ignore[misc]
    assert_exact(shop, name)


@pytest.mark.mysql
def test_gap_of_mysql_is_repaired_by_the_rules(mysql_shop: ComparedShop, own_mysql: MySQLServer) -> None:
    """The same after a purge."""
    shop = mysql_shop
    own_mysql.execute("FLUSH BINARY LOGS")
    shop.execute(*CHANGED)
    own_mysql.execute("FLUSH BINARY LOGS")
    purge(own_mysql)
    shop.start()
    for table in ("items", "others"):
        shop.wait_until(lambda status, table=table: is_repaired(shop, status, table), f"{table} to be repaired")  # type: ignore[misc]
    assert_exact(shop)


@pytest.mark.postgres
def test_column_of_postgres_that_is_renamed_while_nothing_reads(postgres_shop: ComparedShop) -> None:
    """The expression is still about the same column, in rows from before and after the statement."""
    shop = postgres_shop
    shop.execute(
        *CHANGED,
        "ALTER TABLE items RENAME COLUMN name TO title",
        "UPDATE items SET title = 'hidden' WHERE id IN (20, 21)",
        "UPDATE items SET title = 'shown' WHERE id IN (5, 9001)",
        f"INSERT INTO items VALUES ({ROWS + 2}, 'unseen'), ({ROWS + 3}, 'hidden')",
    )
    shop.start("items", "others")
    assert_exact(shop, "title")


@pytest.mark.mysql
def test_column_of_mysql_that_is_renamed_while_nothing_reads(mysql_shop: ComparedShop, own_mysql: MySQLServer) -> None:
    """The table fails alone and names the column. With both names in the rules it is read again, exactly."""
    shop = mysql_shop
    own_mysql.execute("FLUSH BINARY LOGS")
    shop.execute(*CHANGED, "ALTER TABLE items RENAME COLUMN name TO title")
    shop.execute(
        "UPDATE items SET title = 'hidden' WHERE id IN (20, 21)",
        "UPDATE items SET title = 'shown' WHERE id IN (5, 9001)",
        f"INSERT INTO items VALUES ({ROWS + 2}, 'unseen'), ({ROWS + 3}, 'hidden')",
    )
    shop.start()
    shop.wait_until(lambda status: has_failed(shop, status), "the table with rules to fail, alone")
    told = " ".join(shop.said("status", code=None).split())
    assert f"{shop.schema}.items" in told
    assert "name" in told.partition("failed")[2]
    shop.stop()
    use_rules(shop, BOTH_NAMES)
    shop.start("items", "others")
    assert_exact(shop, "title")
