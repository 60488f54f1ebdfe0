"""MySQL and MariaDB purge a binary log by themselves: the daemon warns before, and repairs the tables after."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from tests.servers.mysql import MySQLServer
from tests.support.polling import wait_until
from tests.support.verify.compared_shop import ComparedShop

pytestmark = [pytest.mark.mysql, pytest.mark.long]
ROWS = 500


@pytest.fixture
def shop(own_mysql: MySQLServer, tmp_path: Path) -> Iterator[ComparedShop]:
    with ComparedShop.on_mysql(own_mysql.create_database("shop"), tmp_path) as shop:
        shop.settings["source"] |= {"log_budget_then": "release", "tables_without_key": "whole"}
        shop.file.write_text(yaml.safe_dump(shop.settings))
        rows = ", ".join(f"({n}, 'name {n}')" for n in range(ROWS))
        shop.execute("CREATE TABLE items (id int PRIMARY KEY, name varchar(40))", f"INSERT INTO items VALUES {rows}")
        shop.execute("CREATE TABLE notes (note varchar(40))", "INSERT INTO notes VALUES ('a'), ('b')")
        shop.start("items", "notes")
        yield shop


def purge(server: MySQLServer) -> None:
    """All files but the last. MariaDB silently keeps files that it may still need itself."""

    def is_purged() -> bool:
        newest = server.binlog()[0]
        server.execute(f"PURGE BINARY LOGS TO '{newest}'")
        return [row[0] for row in server.execute("SHOW BINARY LOGS")] == [newest]

    wait_until(is_purged, f"{server.flavor} to purge what is before its last file")


def test_tables_are_repaired_after_a_purge_without_a_person(shop: ComparedShop, own_mysql: MySQLServer) -> None:
    """M14: deletes in the purged files are found as well."""
    shop.stop()
    own_mysql.execute("FLUSH BINARY LOGS")
    shop.execute(
        "UPDATE items SET name = 'unseen' WHERE id IN (5, 6)",
        "DELETE FROM items WHERE id IN (1, 2, 3)",
        f"INSERT INTO items VALUES ({ROWS}, 'unseen')",
        "INSERT INTO notes VALUES ('c')",
    )
    own_mysql.execute("FLUSH BINARY LOGS")
    purge(own_mysql)
    shop.start("items", "notes")

    def is_repaired(status: dict[str, object]) -> bool:
        tables = status["tables"]
        assert isinstance(tables, dict)
        items, notes = (tables[f"{shop.schema}.{name}"] for name in ("items", "notes"))
        return bool(items["gap"]["proven"] is not None and notes["generation"] == 2 and notes["state"] == "done")

    shop.wait_until(is_repaired, "every table to be compared or read again")
    shop.assert_copies_equal_source("items", ["id", "name"])
    shop.assert_copies_equal_source("notes", ["note"])
    shop.verify("--against", "log", code=0)


def test_log_that_was_begun_again_still_stops(shop: ComparedShop, own_mysql: MySQLServer) -> None:
    """Unknown means stop: RESET is no purge, and what happened before it is nowhere."""
    shop.execute("UPDATE items SET name = 'seen' WHERE id = 4")
    shop.stop()
    own_mysql.execute("FLUSH BINARY LOGS")
    version = own_mysql.execute("SELECT VERSION()")[0][0]
    old = "MariaDB" in str(version) or str(version).startswith("8.0")
    own_mysql.execute("RESET MASTER" if old else "RESET BINARY LOGS AND GTIDS")
    shop.refused()


def test_purge_is_foreseen(shop: ComparedShop, own_mysql: MySQLServer) -> None:
    """A warning after the purge is none: the used part is the age of what was not read, by the server's own limit."""
    shop.stop()
    own_mysql.execute("SET GLOBAL binlog_expire_logs_seconds = 30")
    shop.execute("UPDATE items SET name = 'late' WHERE id = 8")
    own_mysql.execute("FLUSH BINARY LOGS")
    shop.settings["source"]["tables"] = [f"{shop.schema}.items"]
    shop.start("items")
    shop.wait_until(lambda status: status["log_budget"]["budget_age_seconds"] == 30, "the server's limit")
    shop.wait_until(lambda status: status["log_budget"]["percent"] == 0, "a capture that has caught up")
