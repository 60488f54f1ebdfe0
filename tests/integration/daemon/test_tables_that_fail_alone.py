"""Captured tables that a statement makes uncapturable: each fails with its remedy, and the others continue."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from tests.integration.daemon.test_rewritten_rows import Ledger
from tests.servers.postgres import Database, PostgresServer

from cdcflow import wiring
from cdcflow.capture.attempt import LoopIntervals

pytestmark = pytest.mark.postgres

NEW = "{t}_3 PARTITION OF {t} FOR VALUES FROM (200) TO (300)"

CASES = {
    "unlogged": f"CREATE UNLOGGED TABLE {NEW}; INSERT INTO {{t}} VALUES (250, 1); DELETE FROM {{t}} WHERE id = 2",
    "set_unlogged": "ALTER TABLE {t}_2 SET UNLOGGED; INSERT INTO {t} VALUES (160, 1); DELETE FROM {t} WHERE id = 150",
    "nothing": "ALTER TABLE {t}_1 REPLICA IDENTITY NOTHING; INSERT INTO {t} VALUES (9, 1); "
    "DELETE FROM {t} WHERE id = 150",
    "other_index": "CREATE UNIQUE INDEX {t}_i ON {t}_1 (v); ALTER TABLE {t}_1 REPLICA IDENTITY USING INDEX {t}_i; "
    "DELETE FROM {t} WHERE id = 2; UPDATE {t} SET v = 77 WHERE id = 1",
    "by_index": f"CREATE TABLE {NEW}; INSERT INTO {{t}} VALUES (250, 1); DELETE FROM {{t}} WHERE id = 2",
    "plain": "ALTER TABLE {t} DROP CONSTRAINT {t}_pkey; INSERT INTO {t} VALUES (9, 1)",
    "plain_nothing": "ALTER TABLE {t} REPLICA IDENTITY NOTHING; INSERT INTO {t} VALUES (9, 1)",
    "plain_name": "ALTER TABLE {t} RENAME v TO _op; INSERT INTO {t} VALUES (9, 1); DELETE FROM {t} WHERE id = 2",
}
"""Statements after which {t} (id int, v int) cannot be captured, with rows that the log may not get."""


def create(database: Database, case: str, table: str) -> None:
    rows = f"INSERT INTO {table} SELECT i, i FROM generate_series(1, 4) i; INSERT INTO {table} VALUES (150, 150)"
    if case.startswith("plain"):
        execute(database, f"CREATE TABLE {table} (id int PRIMARY KEY, v int NOT NULL); {rows}")
        return
    key = "NOT NULL" if case == "by_index" else "PRIMARY KEY"
    execute(
        database,
        f"CREATE TABLE {table} (id int {key}, v int NOT NULL) PARTITION BY RANGE (id);"
        f"CREATE TABLE {table}_1 PARTITION OF {table} FOR VALUES FROM (0) TO (100);"
        f"CREATE TABLE {table}_2 PARTITION OF {table} FOR VALUES FROM (100) TO (200)",
    )
    if case == "by_index":
        execute(database, f"CREATE UNIQUE INDEX {table}_k ON {table} (id)")
        for part in ("", "_1", "_2"):
            index = f"{table}_k" if not part else f"{table}{part}_id_idx"
            execute(database, f"ALTER TABLE {table}{part} REPLICA IDENTITY USING INDEX {index}")
    execute(database, rows)


def execute(database: Database, statements: str) -> None:
    with database.connect(autocommit=True) as session:
        for statement in filter(str.strip, statements.split(";")):
            session.execute(statement.encode())


def follow(database: Database, reason: str) -> None:
    """Do what a reason says: run the statements between `run` and the last part.

    A backfill that began before the check of the tables fails with the same statement, and names itself as the last
    part; the next check starts it.
    """
    found = re.search(r"\brun (ALTER .*); (the table is then read again|then run `cdcflow backfill .*`)$", reason)
    assert found is not None, reason
    first = found[1].split(", or else ")[0]
    execute(database, first.replace("(…)", "(id)").replace("TO …", "TO v"))


@pytest.fixture
def database(wheel_server: PostgresServer) -> Iterator[Database]:
    made = wheel_server.create_database("failing")
    yield made
    made.drop()


@pytest.mark.spread(1)
@pytest.mark.parametrize("way", ["running", "stopped"])
def test_table_that_cannot_be_captured_fails_alone_until_its_remedy_was_followed(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """P05, P07, P11: one table without its key, or with a partition that is not logged, stopped the capture of all."""
    monkeypatch.setattr(wiring.captures, "LoopIntervals", partial(LoopIntervals, tables_look_s=0.5))
    tables = {case: f"t_{case}" for case in CASES}
    for case, table in tables.items():
        create(database, case, table)
    execute(database, "CREATE TABLE fine (id int PRIMARY KEY, v int); INSERT INTO fine VALUES (1, 1)")
    ledger = Ledger(database, tmp_path, (*tables.values(), "fine"))

    def break_all() -> None:
        for case, table in tables.items():
            execute(database, CASES[case].format(t=table))

    def states() -> dict[str, str]:
        return {table: ledger.progress()[table].state for table in tables.values()}

    with ledger.capturing():
        ledger.wait_until(lambda: ledger.has_reached(""), "the first backfill")
        if way == "running":
            break_all()
    if way == "stopped":
        break_all()
    with ledger.capturing():
        execute(database, "INSERT INTO fine VALUES (2, 2)")
        fence = ledger.fence()
        ledger.wait_until(lambda: ledger.has_passed(fence), "the other table's change")
        ledger.wait_until(lambda: set(states().values()) == {"failed"}, "the tables to fail")
        assert ledger.progress()["fine"].state == "done"
        assert all(ledger.progress()[table].lacks_changes for table in tables.values())
    with ledger.capturing():  # a start while they cannot be captured
        execute(database, "INSERT INTO fine VALUES (3, 3)")
        fence = ledger.fence()
        ledger.wait_until(lambda: ledger.has_passed(fence), "the other table's change after a start")
        assert set(states().values()) == {"failed"}
        for table in tables.values():
            follow(database, ledger.progress()[table].reason)
        ledger.wait_until(lambda: set(states().values()) == {"done"}, "the tables to be read again")
        for table in tables.values():
            execute(database, f"INSERT INTO {table} VALUES (19, 19); UPDATE {table} SET v = 34 WHERE id = 3")
        fence = ledger.fence()
        ledger.wait_until(lambda: ledger.has_reached(fence), "the last changes")
    assert ledger.differing() == {}
