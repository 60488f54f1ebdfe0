"""A transaction that is in the source's log, and cannot be seen at the source yet, is no difference (W03)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.servers.mysql import MySQLServer
from tests.servers.postgres import Database, PostgresServer
from tests.support.verify.compared_shop import ComparedShop

from cdcflow import wiring
from cdcflow.config import load
from cdcflow.tables.verify.job import Pace
from cdcflow.tables.verify.report import TableReport


def compared(shop: ComparedShop) -> TableReport:
    [found] = wiring.run_verification(
        load(shop.file), against=["log"], differences_max=5, pace=Pace(seal_wait_s=0.01)
    ).tables
    return found


def make(shop: ComparedShop) -> None:
    shop.execute(
        "CREATE TABLE items (id int PRIMARY KEY, name varchar(20))",
        "INSERT INTO items VALUES (1, 'before'), (2, 'before'), (3, 'before')",
    )
    shop.start("items")
    shop.merge_until("items", lambda rows: rows.num_rows == 3)
    assert compared(shop).verdict == "equal"


def see(shop: ComparedShop) -> None:
    """What a comparison says while row 1 is changed in the log alone."""
    shop.merge_until("items", lambda rows: "after" in rows.column("name").to_pylist())
    found = compared(shop)
    assert (found.verdict, found.unsettled, found.differences) == ("unsettled", 1, ())


def elsewhere(shop: ComparedShop, *statements: str) -> None:
    """The source advances, in a table that is not captured, and the daemon's next heartbeat is an hour away."""
    shop.settings["source"] |= {"heartbeat": "1h", "tables": [f"{shop.schema}.items"]}
    shop.write()
    make(shop)
    shop.execute(*statements)
    assert compared(shop).verdict == "equal"


def test_log_reaches_the_position_at_which_an_idle_postgres_was_read(one_shop: ComparedShop) -> None:
    elsewhere(one_shop, "CREATE TABLE other (id int PRIMARY KEY)", "INSERT INTO other VALUES (1)")


@pytest.mark.spread(1)
@pytest.mark.mysql
def test_log_reaches_the_position_at_which_an_idle_mysql_or_mariadb_was_read(mysql_shop: ComparedShop) -> None:
    """Also after a mark of another pipeline, which an idle log does not record."""
    marks = "INSERT INTO cdcflow.cdcflow_marks (slot, token, at) VALUES ('another', 'verify 1', NOW(6))"
    elsewhere(mysql_shop, "CREATE TABLE other (id int PRIMARY KEY)", "INSERT INTO other VALUES (1)", marks)


@contextlib.contextmanager
def hanging(database: Database, server: PostgresServer) -> Iterator[None]:
    def commit() -> None:
        with database.session() as connection:
            connection.execute("SET synchronous_commit = on")
            connection.execute("UPDATE items SET name = 'after' WHERE id = 1")

    with ThreadPoolExecutor(1) as committing, server.holding_commits():
        committed = committing.submit(commit)
        yield
    committed.result()


def test_change_that_postgres_does_not_show_yet_is_no_difference(own_postgres: PostgresServer, tmp_path: Path) -> None:
    """Its commit waits for a standby; the log has it already."""
    database = own_postgres.create_database("ghost")
    with ComparedShop.on_postgres(database, tmp_path) as shop:
        make(shop)
        with hanging(database, own_postgres):
            see(shop)
        assert compared(shop).verdict == "equal"


@pytest.mark.spread(1)
@pytest.mark.mysql
def test_change_that_mysql_and_mariadb_do_not_show_yet_is_no_difference(own_mysql: MySQLServer, tmp_path: Path) -> None:
    """Its commit waits for a replica, and every other commit queues after it: so does any mark."""
    database = own_mysql.create_database("ghost")
    with ComparedShop.on_mysql(database, tmp_path) as shop:
        shop.settings["source"]["heartbeat"] = "1h"  # one that commits first would be held in the statement's place
        shop.write()
        make(shop)
        with database.holding_commit("UPDATE items SET name = 'after' WHERE id = 1"):
            see(shop)
        assert compared(shop).verdict == "equal"
