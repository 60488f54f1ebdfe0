"""Columns that change in a transaction whose rows arrive before the catalog shows it.

Its commit waits for a standby, or it is so large that the server sends it before its commit.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any, LiteralString

import pytest
from tests.ddlfuzz.oracle import current, differences, read
from tests.integration.daemon.test_visibility_trap import hanging_commit, has_position
from tests.servers.postgres import Database, PostgresServer
from tests.support.daemon.bank import Bank

from cdcflow.capture.capture import Capture
from cdcflow.model.table import TableId

CHANGES: dict[str, tuple[LiteralString, LiteralString]] = {
    "recreated": (
        "ALTER TABLE accounts DROP COLUMN body, ADD COLUMN body text",
        "UPDATE accounts SET body = 'new', owner = {} WHERE id <= 700",
    ),
    "added": (
        "ALTER TABLE accounts ADD COLUMN extra int",
        "UPDATE accounts SET extra = 7, owner = {} WHERE id <= 700",
    ),
}
LONG: LiteralString = "repeat(md5(id::text), 100)"


@pytest.mark.spread(1)
@pytest.mark.postgres
@pytest.mark.parametrize(("change", "is_stopped"), [("recreated", True), ("added", False)])
def test_columns_that_change_in_a_transaction_that_is_not_visible_yet(
    own_postgres: PostgresServer, tmp_path: Path, change: str, is_stopped: bool
) -> None:
    """The values were in a column of the log that the table does not have, or in the dropped one."""
    bank = Bank(own_postgres.create_database("hidden"), tmp_path)
    alter, update = CHANGES[change]
    with contextlib.ExitStack() as commit, bank.capturing():
        bank.wait_until(lambda: bank.has_reached(""), "the first backfill")
        commit.enter_context(hanging_commit(bank, own_postgres, alter, update.format("'wide'")))
        fence = bank.fence()
        bank.wait_until(lambda: has_position(bank, fence), "the changes to be in the log")
        if not is_stopped:
            commit.close()
            settle(bank)
    if is_stopped:
        with bank.capturing():
            settle(bank)
    assert_equal(bank)


@pytest.mark.postgres
@pytest.mark.spread(2)
@pytest.mark.parametrize("change", [*CHANGES, "emptied"])
def test_columns_that_change_in_a_transaction_that_is_sent_before_its_commit(
    database: Database, tmp_path: Path, change: str
) -> None:
    """The same. One that only empties the table locks it, too, and is no reason to read it again."""
    bank = Bank(database, tmp_path)
    bank.database.execute("ALTER TABLE accounts ALTER owner SET STORAGE EXTERNAL")
    alter, update = CHANGES.get(change, ("CREATE TABLE other AS SELECT * FROM accounts; TRUNCATE accounts", ""))
    bank.database.execute(f"ALTER DATABASE {bank.database.name} SET logical_decoding_work_mem = '64kB'")
    with bank.capturing() as capture:
        bank.wait_until(lambda: bank.has_reached(""), "the first backfill")
        with bank.database.connect(autocommit=True) as connection, connection.transaction():
            connection.execute(alter)
            if update:
                connection.execute(update.format(LONG))
            else:
                connection.execute(f"INSERT INTO accounts SELECT id, {LONG}, balance, body FROM other WHERE id <= 700")
            bank.wait_until(lambda: any(bank.log.rglob("*.spool")), "the first rows of the transaction")
        settle(bank)
        assert generation(capture) == (2 if update else 1)
    assert_equal(bank)


def settle(bank: Bank) -> None:
    """Change the table once more, and wait until the log has that, and the table is read."""
    bank.database.execute("UPDATE accounts SET owner = 'touched' WHERE id = 3")
    fence = bank.fence()
    bank.wait_until(lambda: bank.has_reached(fence), "the log to pass the fence")


def generation(capture: Capture) -> int:
    tables: Any = capture.status()["tables"]
    return int(tables["public.accounts"]["generation"])


def assert_equal(bank: Bank) -> None:
    """The columns are compared by their numbers, as the merge does."""
    found, progress = read(bank.reader)
    table = TableId("public", "accounts")
    _, rows = current(found[table], progress.tables[table])
    assert not differences(rows, bank.source_rows("accounts"), bank.columns("accounts"))
