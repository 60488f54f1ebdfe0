"""A server that is restored to a copy of its files, and then diverges."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tests.servers.postgres import PostgresServer
from tests.support.daemon.bank import Bank

from cdcflow.errors import HistoryLost

pytestmark = pytest.mark.postgres


def copied(server: PostgresServer, source: Path, target: Path) -> None:
    """Copy the files of a server that is stopped, with their owner."""
    owner = source.stat()
    shutil.copytree(source, target, symlinks=True)
    for path in (target, *target.rglob("*")):
        shutil.chown(path, owner.st_uid, owner.st_gid)


def grow(bank: Bank, mib: int) -> None:
    """Advance the server's log without a change of a captured table."""
    bank.database.execute(
        f"SELECT pg_logical_emit_message(false, 'test', repeat('x', 1 << 20)) FROM generate_series(1, {mib})"
    )


@pytest.mark.spread(1)
@pytest.mark.parametrize("original_wrote", [True, False], ids=["both wrote", "only the copy wrote"])
def test_copy_that_has_passed_our_position_is_not_captured_on(
    own_postgres: PostgresServer, tmp_path: Path, original_wrote: bool
) -> None:
    """Same identity, timeline, slot and names, and its log extends past cdcflow's: two histories would be in
    one log.
    """
    bank = Bank(own_postgres.create_database("copied"), tmp_path)
    with bank.capturing():
        bank.wait_until(lambda: bank.has_reached(""), "the first backfill")
    own_postgres.stop()
    kept = own_postgres.directory / "copy"
    copied(own_postgres, own_postgres.data, kept)
    own_postgres.start()
    with bank.capturing():
        if original_wrote:
            bank.write(seed=1, transactions=20)
        grow(bank, 4)
        fence = bank.fence()
        bank.wait_until(lambda: bank.has_reached(fence), "the original's changes")
    own_postgres.stop()
    shutil.rmtree(own_postgres.data)
    kept.rename(own_postgres.data)
    own_postgres.start()
    bank.database.execute("UPDATE accounts SET owner = 'another history' WHERE id < 300")
    grow(bank, 8)
    assert bank.is_past(bank.fence(), fence)
    with pytest.raises(HistoryLost, match=r"restored from a copy(.|\n)*cdcflow run --accept-history-loss"):
        bank.capture_to_its_end()
    with bank.capturing(accept_history_loss=True):
        fence = bank.fence()
        bank.wait_until(lambda: bank.has_reached(fence), "the new backfill")
    bank.assert_log_equals_source()


def test_crash_of_daemon_and_server_is_no_other_history(own_postgres: PostgresServer, tmp_path: Path) -> None:
    """P40: the slot goes back to a position before cdcflow's log ends, and sends what the log has: so begins every
    restart.
    """
    bank = Bank(own_postgres.create_database("crashed"), tmp_path)
    daemon = bank.daemon()
    bank.wait_until(lambda: bank.has_reached(""), "the first backfill", daemon)
    bank.database.execute("CHECKPOINT")
    bank.write(seed=2, transactions=60)
    fence = bank.fence()
    bank.wait_until(lambda: bank.has_reached(fence), "the log to pass the fence", daemon)
    daemon.kill()
    daemon.wait()
    own_postgres.restart(immediate=True)
    behind = f"SELECT confirmed_flush_lsn < '{fence}'::pg_lsn FROM pg_replication_slots"
    assert own_postgres.execute(behind) == [(True,)]
    bank.catch_up_and_stop(bank.daemon())
    bank.assert_log_equals_source()
