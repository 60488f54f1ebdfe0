"""A comparison repairs history that the source has lost: only the rows that differ are read again."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest
import yaml
from tests.servers.mysql import MySQLServer
from tests.support.polling import wait_until
from tests.support.verify.compared_shop import ComparedShop

from cdcflow import local
from cdcflow.log.read.reader import read_rows
from cdcflow.model.change import READ
from cdcflow.model.table import OP, TableId

ROWS = 500
CHANGED = [
    "UPDATE items SET name = 'unseen' WHERE id IN (5, 6)",
    "DELETE FROM items WHERE id IN (1, 2, 3)",
    f"INSERT INTO items VALUES ({ROWS}, 'unseen'), ({ROWS + 1}, 'unseen')",
    "UPDATE items SET id = 9000 WHERE id = 7",
]
DIFFERENT = 9
"""Rows: 2 changed, 3 deleted, 2 inserted, and both keys of one that moved."""


def make(shop: ComparedShop) -> None:
    rows = ", ".join(f"({n}, 'name {n}')" for n in range(ROWS))
    shop.execute("CREATE TABLE items (id int PRIMARY KEY, name varchar(40))", f"INSERT INTO items VALUES {rows}")
    shop.execute("CREATE TABLE notes (note varchar(40))", "INSERT INTO notes VALUES ('a'), ('b')")
    if shop.schema == "public":
        shop.execute("ALTER TABLE notes REPLICA IDENTITY FULL")
    shop.start("items", "notes")
    shop.merge_until("items", lambda found: found.num_rows == ROWS)


def entry(shop: ComparedShop, table: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(shop.said("status", "--json", code=None))["tables"][f"{shop.schema}.{table}"]
    return found


def read_into_the_log(shop: ComparedShop, table: str) -> int:
    """Rows of a table that a chunk has brought, deletes of repairs among them."""
    found = read_rows(shop.folder / "log", tables={TableId(shop.schema, table)})
    return sum(pc.sum(pc.equal(rows.column(OP), READ)).as_py() or 0 for _, _, rows in found)


def mended(shop: ComparedShop) -> None:
    """From a daemon that was stopped and whose source has lost its log since."""
    name = f"{shop.schema}.items"
    assert "--keep-rows" in shop.refused()
    before = read_into_the_log(shop, "items")
    shop.start("notes", options=["--accept-history-loss", "--keep-rows"])
    # A change after the gap: the merge continues, and reports the table as not whole.
    shop.execute("UPDATE items SET name = 'behind the gap' WHERE id = 10")
    wait_for(shop, "behind the gap")
    found = entry(shop, "items")
    assert found["state"] == "done"
    assert found["gap"]["proven"] is None
    assert (found["freshness"], "cdcflow repair" in found["freshness_reason"]) == ("not proven", True)
    assert f"cdcflow repair {name}" in " ".join(shop.said("status", code=None).split())
    assert entry(shop, "notes")["generation"] == 2, "without a key it is read again"
    assert local.read_cut(shop.folder / "warehouse").keys() == {f"{shop.schema}.notes"}
    seen = shop.verify("--against", "both", code=1)
    assert (seen["items/log"]["different"], seen["items/tables"]["different"]) == (DIFFERENT, DIFFERENT)
    assert entry(shop, "items")["gap"]["proven"] is None, "a comparison that found differences proves nothing"
    said = shop.said("repair", code=0)
    assert f"{name} is verified" in said
    assert f"{name}: {DIFFERENT} rows were read again" in said
    assert entry(shop, "items")["gap"]["proven"] is not None
    shop.verify("--against", "both", code=0)
    merged = shop.merge_until("items", lambda rows: rows.num_rows == ROWS - 1)
    assert 9000 in merged.column("id").to_pylist()
    shop.verify("--against", "both", code=0)
    assert read_into_the_log(shop, "items") - before == DIFFERENT - 4, "the four that are gone are deletes"
    [record] = [line for line in shop.said("log", "repairs").splitlines() if name in line]
    assert found["gap"]["before"].partition(";")[0] in record


def wait_for(shop: ComparedShop, name: str) -> None:
    """Merge until a change has reached the table, which no cut shows as whole."""

    def is_merged() -> bool:
        shop.merge()
        found = local.read_cut(shop.folder / "warehouse", incomplete=True).get(f"{shop.schema}.items")
        return found is not None and name in found.column("name").to_pylist()

    wait_until(is_merged, f"{name} to be merged")


def drop_the_slot(shop: ComparedShop) -> None:
    shop.execute(
        "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = current_database()"
    )


@pytest.mark.spread(1)
def test_rows_after_a_dropped_slot_in_postgres_are_compared_not_read_again(postgres_shop: ComparedShop) -> None:
    """P37: a slot that expires over a weekend need not cost the reading of a terabyte."""
    shop = postgres_shop
    make(shop)
    shop.stop()
    drop_the_slot(shop)
    shop.execute(*CHANGED)
    mended(shop)


@pytest.fixture
def purged_shop(own_mysql: MySQLServer, tmp_path: Path) -> Iterator[ComparedShop]:
    with ComparedShop.on_mysql(own_mysql.create_database("shop"), tmp_path) as shop:
        settings = yaml.safe_load(shop.file.read_text())
        settings["source"]["tables_without_key"] = "whole"
        shop.file.write_text(yaml.safe_dump(settings))
        yield shop


@pytest.mark.spread(1)
@pytest.mark.mysql
def test_rows_after_a_purged_binlog_are_compared_not_read_again(
    purged_shop: ComparedShop, own_mysql: MySQLServer
) -> None:
    """M14: the same, where nothing retains the log."""
    shop = purged_shop
    make(shop)
    shop.stop()
    own_mysql.execute("FLUSH BINARY LOGS")
    shop.execute(*CHANGED)
    own_mysql.execute("FLUSH BINARY LOGS")
    purge(own_mysql)
    mended(shop)


def purge(server: MySQLServer) -> None:
    """All files but the last. MariaDB silently keeps files that it may still need itself; if it keeps the second one,
    which has the changes, nothing is lost.
    """

    def is_purged() -> bool:
        newest = server.binlog()[0]
        server.execute(f"PURGE BINARY LOGS TO '{newest}'")
        return [row[0] for row in server.execute("SHOW BINARY LOGS")] == [newest]

    wait_until(is_purged, f"{server.flavor} to purge what is before its last file")
