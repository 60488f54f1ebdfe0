"""Keys that are dropped, moved and added again: REPLICA IDENTITY FULL does not reveal which key a row had when it was
written.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from tests.integration.daemon.test_rewritten_rows import Ledger, wait_for
from tests.servers.postgres import Database, PostgresServer

from cdcflow import wiring
from cdcflow.capture.attempt import LoopIntervals

pytestmark = pytest.mark.postgres

FULL = {
    "again": ("{drop}; INSERT INTO {t} VALUES (1, 100, 0)", "DELETE FROM {t} WHERE v = 100; {add} (id)"),
    "by_index": (
        "{drop}; INSERT INTO {t} VALUES (2, 100, 0); DELETE FROM {t} WHERE v = 100",
        "CREATE UNIQUE INDEX {t}_i ON {t} (id); {add} USING INDEX {t}_i",
    ),
    "elsewhere": (
        "{drop}; {add} (v); INSERT INTO {t} VALUES (3, 100, 0); UPDATE {t} SET w = 7 WHERE id = 3",
        "DELETE FROM {t} WHERE v = 100; {drop}; {add} (id)",
    ),
    "moved": ("{drop}; INSERT INTO {t} VALUES (1, 100, 0); UPDATE {t} SET w = 5 WHERE id = 1", "{add} (v)"),
    "deferrable": (
        "{drop}; {add} (id) DEFERRABLE; BEGIN; SET CONSTRAINTS ALL DEFERRED; INSERT INTO {t} VALUES (1, 100, 0); "
        "DELETE FROM {t} WHERE v = 100; COMMIT",
        "{drop}; {add} (id)",
    ),
    "column": (
        "ALTER TABLE {t} DROP COLUMN id, ADD COLUMN id int; UPDATE {t} SET id = 1; DELETE FROM {t} WHERE v = 3",
        "UPDATE {t} SET id = v; {add} (id)",
    ),
    "one_transaction": (
        "",
        "BEGIN; {drop}; INSERT INTO {t} VALUES (4, 100, 0); DELETE FROM {t} WHERE v = 100; {add} (id); COMMIT",
    ),
}
"""What happens to the key of {t} (id int PRIMARY KEY, v int NOT NULL, w int), which has REPLICA IDENTITY FULL: before
the daemon is stopped, and after.
"""

FOR_A_MOMENT = {
    "full": (
        "ALTER TABLE {t} REPLICA IDENTITY FULL; {drop}; INSERT INTO {t} VALUES (1, 100, 0)",
        "DELETE FROM {t} WHERE v = 100; {add} (id); ALTER TABLE {t} REPLICA IDENTITY DEFAULT",
    ),
}
"""The same of a table whose identity is DEFAULT."""

ONE_STEP = {
    "without": "BEGIN; {drop}; INSERT INTO {t} VALUES (9, 9, 0); {add} (id); COMMIT",
    "other": "BEGIN; {drop}; INSERT INTO {t} VALUES (4, 100, 0); {add} (v); COMMIT",
    "new_column": "BEGIN; {drop}; INSERT INTO {t} VALUES (4, 100, 0); ALTER TABLE {t} ADD COLUMN n serial; "
    "{add} (n); COMMIT",
    "to_full": "BEGIN; {drop}; INSERT INTO {t} VALUES (4, 100, 0); ALTER TABLE {t} REPLICA IDENTITY FULL; COMMIT",
    "index": "CREATE UNIQUE INDEX {t}_i ON {t} (v); ALTER TABLE {t} REPLICA IDENTITY USING INDEX {t}_i; BEGIN; "
    "DROP INDEX {t}_i; INSERT INTO {t} VALUES (9, 9, 0); CREATE UNIQUE INDEX {t}_i ON {t} (v); "
    "ALTER TABLE {t} REPLICA IDENTITY USING INDEX {t}_i; COMMIT",
}
"""Steps of a migration after which a table of identity DEFAULT has a key, or another identity: in between an INSERT is
written with none."""

SAME = {
    "renamed": "ALTER TABLE {t} RENAME id TO k; ALTER TABLE {t} RENAME k TO id",
    "reindexed": "REINDEX TABLE CONCURRENTLY {t}",
    "constraint": "ALTER TABLE {t} RENAME CONSTRAINT {t}_pkey TO {t}_other",
    "rewritten": "VACUUM FULL {t}",
    "clustered": "CLUSTER {t} USING {t}_pkey",
    "nothing": "BEGIN; ALTER TABLE {t} REPLICA IDENTITY NOTHING; INSERT INTO {t} VALUES (9, 9, 0); "
    "ALTER TABLE {t} REPLICA IDENTITY DEFAULT; COMMIT",
    "told": "{drop}; {add} (id); UPDATE {t} SET w = 7",
}
"""What leaves the key what it is, of a table with REPLICA IDENTITY FULL, and two of one with DEFAULT."""

WAYS = ("running", "half", "stopped")


def filled(statements: str, table: str) -> str:
    drop = f"ALTER TABLE {table} DROP CONSTRAINT IF EXISTS {table}_pkey"
    return statements.format(t=table, drop=drop, add=f"ALTER TABLE {table} ADD CONSTRAINT {table}_pkey PRIMARY KEY")


def execute(database: Database, table: str, statements: str) -> None:
    with database.connect(autocommit=True) as session:
        for statement in filter(None, filled(statements, table).split("; ")):
            session.execute(statement)


def create(database: Database, table: str, *, full: bool) -> None:
    database.execute(
        f"CREATE TABLE {table} (id int PRIMARY KEY, v int NOT NULL, w int);"
        f"INSERT INTO {table} SELECT i, i, i FROM generate_series(1, 4) i"
    )
    if full:
        database.execute(f"ALTER TABLE {table} REPLICA IDENTITY FULL")


@pytest.fixture
def database(wheel_server: PostgresServer) -> Iterator[Database]:
    made = wheel_server.create_database("keys")
    yield made
    made.drop()


def test_rows_are_right_whatever_happened_to_their_key(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two rows have the same key, and one is deleted while there is no key: the other is lost if that delete is taken
    for one of all rows with the current key. And an INSERT without a key stops the capture only until the key is back.
    """
    monkeypatch.setattr(wiring.captures, "LoopIntervals", partial(LoopIntervals, tables_look_s=1.0))
    halves = {f"{way}_{name}": steps for way in WAYS for name, steps in {**FULL, **FOR_A_MOMENT}.items()}
    whole = {f"{way}_{name}": step for way in ("running", "stopped") for name, step in ONE_STEP.items()}
    same = {f"{way}_{name}": step for way in ("running", "stopped") for name, step in SAME.items()}
    for table in (*halves, *whole, *same):
        case = table.partition("_")[2]
        create(database, table, full=case in {*FULL, *SAME} - {"nothing", "told"})
    ledger = Ledger(database, tmp_path, (*halves, *whole, *same))
    with ledger.capturing():
        ledger.wait_until(lambda: ledger.has_reached(""), "the first backfill")
        for table, (before, after) in halves.items():
            execute(database, table, before if not table.startswith("stopped") else "")
            execute(database, table, after if table.startswith("running") else "")
        for table, step in (*whole.items(), *same.items()):
            execute(database, table, step if table.startswith("running") else "")
        wait_for(ledger, lambda name: name.startswith("running"), {*halves, *whole})
    for table, (before, after) in halves.items():
        execute(database, table, before if table.startswith("stopped") else "")
        execute(database, table, after if not table.startswith("running") else "")
    for table, step in (*whole.items(), *same.items()):
        execute(database, table, step if table.startswith("stopped") else "")
    for table in same:
        database.execute(f"UPDATE {table} SET v = 50 WHERE v = 1")
    with ledger.capturing():
        wait_for(ledger, lambda name: True, {*halves, *whole})
    assert ledger.differing() == {}
    progress = ledger.progress()
    assert {table: progress[table].generation for table in same} == dict.fromkeys(same, 1)
