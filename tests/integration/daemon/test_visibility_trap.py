"""The visibility trap on a real server: delivered by the log, not yet visible to a chunk (hard cases W01, W13, E1)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import LiteralString

import pytest
from tests.servers.postgres import PostgresServer
from tests.support.daemon.bank import Bank

from cdcflow.model.change import Uint64s
from cdcflow.sources.postgres.xid_snapshot import XidSnapshot


@pytest.fixture
def ghost_bank(own_postgres: PostgresServer, tmp_path: Path) -> Bank:
    bank = Bank(own_postgres.create_database("ghost"), tmp_path)
    bank.database.execute("UPDATE accounts SET owner = 'before' WHERE id IN (1, 2)")
    return bank


CHANGES = ("UPDATE accounts SET owner = 'after' WHERE id = 1", "DELETE FROM accounts WHERE id = 2")


@contextlib.contextmanager
def hanging_commit(bank: Bank, server: PostgresServer, *statements: LiteralString) -> Iterator[None]:
    """Inside, a transaction's commit record is in the WAL, and it waits for a standby that does not exist."""

    def commit() -> None:
        with bank.database.connect() as conn:
            conn.execute("SET synchronous_commit = on")
            with conn.transaction():
                for statement in statements or CHANGES:
                    conn.execute(statement)

    def waits() -> bool:
        found = bank.database.execute("SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'")
        return bool(found[0][0])

    with ThreadPoolExecutor(1) as committing, server.holding_commits():
        committed = committing.submit(commit)
        bank.wait_until(waits, "the commit to hang")
        yield
    committed.result()


def owners(bank: Bank) -> list[tuple[object, ...]]:
    return [row for row in bank.logged_rows("accounts") if row[0] in (1, 2)]


def backfill_beside_a_hanging_commit(bank: Bank, server: PostgresServer, closed: bool) -> None:
    """Deliver a hanging commit, then request a backfill of its table; release the commit, and let everything settle."""
    bank.configure()
    with bank.capturing() as capture:
        bank.wait_until(lambda: bank.has_reached(""), "the first backfill")
        with hanging_commit(bank, server):
            bank.wait_until(lambda: "'after'" in repr(bank.logged_rows("accounts")), "the hanging change in the log")
            capture.request("backfill", ["public.accounts"])
            if closed:
                bank.wait_until(lambda: given_up(capture.status()), "the fence to refuse a chunk")
            else:
                bank.wait_until(lambda: generation_done(capture.status()), "the backfill to end")
        fence = bank.fence()
        bank.wait_until(lambda: generation_done(capture.status()) and bank.has_reached(fence), "the backfill to end")


def generation_done(status: dict[str, object]) -> bool:
    tables = status.get("tables")
    if not isinstance(tables, dict):
        return False
    table = tables["public.accounts"]
    return bool(table["generation"] == 2 and table["state"] == "done")


def given_up(status: dict[str, object]) -> bool:
    events = status.get("events")
    return isinstance(events, dict) and int(events.get("chunk given up", 0)) > 0


@pytest.mark.postgres
def test_chunk_never_overwrites_what_was_delivered_before_it_was_visible(
    ghost_bank: Bank, own_postgres: PostgresServer
) -> None:
    """W01, W13: with the fence, the chunk is read again until it sees the delivered transaction."""
    backfill_beside_a_hanging_commit(ghost_bank, own_postgres, closed=True)
    assert [row[1] for row in owners(ghost_bank)] == ["after"]
    ghost_bank.assert_log_equals_source()


@pytest.mark.postgres
def test_trap_is_real_without_the_fence(
    ghost_bank: Bank, own_postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same with a blind fence: the old value reappears, and the deleted row too. The recipe does reproduce the
    fault.
    """
    monkeypatch.setattr(XidSnapshot, "hidden", sees_everything)
    backfill_beside_a_hanging_commit(ghost_bank, own_postgres, closed=False)
    assert [row[1] for row in owners(ghost_bank)] == ["before", "before"]


def sees_everything(_snapshot: XidSnapshot, xids: Uint64s) -> Uint64s:
    return xids[:0]


@pytest.mark.postgres
def test_restart_remembers_what_an_earlier_epoch_delivered(ghost_bank: Bank, own_postgres: PostgresServer) -> None:
    """W01 over a restart: the new epoch's machine never saw the delivery, so the log must tell it."""
    bank = ghost_bank
    with bank.capturing():
        bank.wait_until(lambda: bank.has_reached(""), "the first backfill")
    with hanging_commit(bank, own_postgres):
        with bank.capturing():
            bank.wait_until(lambda: "'after'" in repr(bank.logged_rows("accounts")), "the hanging change in the log")
        with bank.capturing() as capture:
            bank.wait_until(lambda: capture.status()["state"] == "capturing", "the second epoch")
            capture.request("backfill", ["public.accounts"])
            bank.wait_until(lambda: given_up(capture.status()), "the fence to refuse a chunk")
    with bank.capturing() as capture:
        fence = bank.fence()
        bank.wait_until(lambda: generation_done(capture.status()) and bank.has_reached(fence), "the backfill to end")
    bank.assert_log_equals_source()


NEW_KEY = "ALTER TABLE accounts DROP CONSTRAINT accounts_pkey"
SAME_KEY = "ALTER TABLE accounts ADD PRIMARY KEY (id)"
SECOND_ROW = "INSERT INTO accounts (id, owner, balance) SELECT id, 'second', balance FROM accounts WHERE id = 1"
FIRST_ROW_GOES = "DELETE FROM accounts WHERE id = 1 AND owner = 'before'"


@pytest.mark.spread(1)
@pytest.mark.postgres
@pytest.mark.parametrize("is_stopped", [True, False], ids=["stopped", "running"])
def test_key_that_changes_in_a_transaction_that_is_not_visible_yet(
    ghost_bank: Bank, own_postgres: PostgresServer, is_stopped: bool
) -> None:
    """The messages do not contain the key, and the catalog still has the old one. One of two rows with the same key is
    deleted: both were missing from the log if the daemon was stopped before the commit was visible."""
    full = "ALTER TABLE accounts REPLICA IDENTITY FULL"
    default = "ALTER TABLE accounts REPLICA IDENTITY DEFAULT"
    statements = (full, NEW_KEY, SECOND_ROW, FIRST_ROW_GOES, SAME_KEY, default)
    ghost_bank.configure()
    with contextlib.ExitStack() as commit, ghost_bank.capturing():
        ghost_bank.wait_until(lambda: ghost_bank.has_reached(""), "the first backfill")
        commit.enter_context(hanging_commit(ghost_bank, own_postgres, *statements))
        fence = ghost_bank.fence()
        ghost_bank.wait_until(lambda: has_position(ghost_bank, fence), "the changes to be in the log")
        if not is_stopped:
            commit.close()
            settle(ghost_bank)
    if is_stopped:
        with ghost_bank.capturing():
            settle(ghost_bank)
    assert [row[1] for row in owners(ghost_bank)] == ["second", "before"]
    ghost_bank.assert_log_equals_source()


def has_position(bank: Bank, position: str) -> bool:
    """Whether the log's latest cut is after a position; tables may still have to be read."""
    checkpoint = bank.reader.newest_checkpoint()
    return checkpoint.position is not None and bank.is_past(checkpoint.position.text, position)


def settle(bank: Bank) -> None:
    """Wait until the log has all that is committed, and the table is read again."""
    bank.database.execute("UPDATE accounts SET owner = 'touched' WHERE id = 3")
    fence = bank.fence()
    bank.wait_until(lambda: bank.has_reached(fence) and len(owners(bank)) == 2, "the table to be read again")
