"""Shards in one table, and deletes that purge, from a server to its tables, compared as `cdcflow verify` does."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.servers.postgres import PostgresServer
from tests.support.daemon.bank import Bank

from cdcflow import local, wiring
from cdcflow.config import load
from cdcflow.tables.merge.modes import DELETED
from cdcflow.tables.verify.job import Pace

pytestmark = pytest.mark.postgres

TABLES = ("shard_1.orders", "shard_2.orders", "public.people")
MADE = """
CREATE SCHEMA shard_1;
CREATE SCHEMA shard_2;
CREATE TABLE shard_1.orders (id int PRIMARY KEY, item text);
CREATE TABLE shard_2.orders (id int PRIMARY KEY, item text, price numeric(9,2));
CREATE TABLE people (id int PRIMARY KEY, name text);
INSERT INTO shard_1.orders SELECT i, 'first ' || i FROM generate_series(1, 50) i;
INSERT INTO shard_2.orders SELECT i, 'second ' || i, i FROM generate_series(1, 50) i;
INSERT INTO people SELECT i, 'name ' || i FROM generate_series(1, 9) i;
SELECT pg_replication_origin_create('purge of routes');
"""
CHANGED = """
TRUNCATE shard_1.orders;
INSERT INTO shard_1.orders VALUES (7, 'after');
UPDATE shard_2.orders SET price = 0 WHERE id <= 10;
ALTER TABLE shard_1.orders ADD price numeric(9,2) DEFAULT 1;
INSERT INTO shard_1.orders VALUES (8, 'later', 2);
DELETE FROM people WHERE id = 1;
"""
PURGE = "SELECT pg_replication_origin_session_setup('purge of routes'); DELETE FROM people WHERE id = 2;"


def test_shards_and_purges_arrive_in_their_tables(wheel_server: PostgresServer, tmp_path: Path) -> None:
    """Starting at the server's own messages: the origin of a transaction is in the log, and a truncate empties one
    shard only."""
    database = wheel_server.create_database("routes")
    with database.connect(autocommit=True) as conn:
        conn.execute(MADE)
    bank = Bank(database, tmp_path, create=False)
    bank.other_settings = {
        "merge": {
            "warehouse": str(tmp_path / "warehouse"),
            "engine": "local",
            "tables": {
                "routes": {r"shard_(?P<shard>\d+)\.orders": "shop.orders"},
                "each": {"public.people": {"mode": "soft_delete", "purge_origins": ["purge of routes"]}},
            },
        }
    }
    bank.configure(tables=["shard_*.*", "public.*"])
    settings = load(bank.config_path)

    def merge() -> None:
        newest = bank.reader.newest_checkpoint().next_offset - 1
        bank.wait_until(lambda: bank.sealed_offset() >= newest, f"offset {newest} to be sealed")
        local.merge(bank.log, tmp_path / "warehouse", policies=wiring.policies(settings))

    try:
        with bank.capturing():
            bank.wait_until(lambda: bank.has_reached(bank.fence()), "the backfills to be done")
            merge()
            with database.connect(autocommit=True) as conn:
                conn.execute(CHANGED)
            with database.connect(autocommit=True) as conn:
                conn.execute(PURGE)
            fence = bank.fence()
            bank.wait_until(lambda: bank.has_reached(fence), "the log to pass the fence")
            merge()
            report = wiring.run_verification(
                settings, against=["tables"], differences_max=3, pace=Pace(seal_wait_s=0.5)
            )
    finally:
        with database.connect(autocommit=True) as conn:
            conn.execute("SELECT pg_replication_origin_drop('purge of routes')")
        database.drop()
    assert {table.table: table.verdict for table in report.tables} == dict.fromkeys(TABLES, "equal")
    cut = local.read_cut(tmp_path / "warehouse")
    orders = cut["shop.orders"].select(["shard", "id", "item", "price"]).to_pylist()
    assert len(orders) == 52
    assert {(row["shard"], row["id"], row["item"], str(row["price"])) for row in orders if row["shard"] == "1"} == {
        ("1", 7, "after", "1.00"),
        ("1", 8, "later", "2.00"),
    }
    people = {row["id"]: row[DELETED] for row in cut["public.people"].to_pylist()}
    assert people == {1: True, **dict.fromkeys(range(3, 10), False)}
