"""A source that is reached through an SSH server, whose connections end while the daemon runs."""

from __future__ import annotations

import subprocess
import sys
from functools import partial

import pytest
from tests.servers.sshd import SshServer
from tests.support.daemon.bank import Bank
from tests.support.daemon.budget_outages import LOAD, repeated
from tests.support.daemon.lease_takeovers import Member
from tests.support.daemon.through_ssh import killed_daemon_leaves_nothing, survives_links_that_end
from tests.support.polling import PATIENCE_S, wait_until

from cdcflow import wiring
from cdcflow.errors import ConfigurationError

pytestmark = pytest.mark.postgres
SESSIONS = "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'cdcflow%%' AND datname = %s"


def _sessions(bank: Bank) -> int:
    with bank.database.server.connect() as connection:
        return int((connection.execute(SESSIONS, (bank.database.name,)).fetchone() or (0,))[0])


@pytest.mark.long
def test_capture_continues_when_its_ssh_connections_end(bank: Bank, ssh_server: SshServer) -> None:
    """P70: an SSH server restarts, idles connections out, and is replaced; a person at night cannot help with that."""
    bank.configure(ssh=ssh_server.settings, log_budget="1GiB")
    survives_links_that_end(bank, ssh_server, lambda: _sessions(bank), seed=1)


def test_killed_daemon_leaves_no_ssh_connection(bank: Bank, ssh_server: SshServer) -> None:
    """A slot that a dead daemon keeps in use excludes the next daemon."""
    bank.configure(ssh=ssh_server.settings)
    killed_daemon_leaves_nothing(bank, ssh_server, lambda: _sessions(bank))


@pytest.mark.long
def test_guard_and_control_table_use_the_ssh_server(bank: Bank, ssh_server: SshServer) -> None:
    """P70: where only a bastion reaches the database, that is true of commands, and of what must drop the slot, too."""
    config = bank.configure(
        ssh=ssh_server.settings,
        slot="tunneled",
        log_budget=16 << 20,
        log_budget_then="release",
        control_table="public.commands",
    )
    table = wiring.control_table(config)
    assert table is not None
    with pytest.raises(ConfigurationError) as missing:
        table.check()
    table.close()
    bank.database.execute(str(missing.value.remedy).removeprefix("run "))
    daemon = Member(bank.config_path, bank.folder / "daemon.out")
    daemon.start()
    try:
        wait_until(lambda: bank.reader.exists() and bank.has_reached(""), "the first backfill", more=daemon.text)
        bank.database.execute("INSERT INTO commands (operation) VALUES ('stop')")
        wait_until(lambda: not daemon.runs, "the command to end the daemon", more=daemon.text)
    finally:
        daemon.end()
    assert bank.database.execute("SELECT state FROM commands") == [("done",)]
    kept = f"SELECT pg_current_wal_lsn() - restart_lsn > {20 << 20} FROM pg_replication_slots"
    with repeated(partial(bank.database.execute, LOAD), 0.02):
        wait_until(
            lambda: bank.database.execute(f"{kept} WHERE slot_name = 'tunneled'") == [(True,)],
            "more log than the budget",
        )
    slots = "SELECT count(*) FROM pg_replication_slots WHERE slot_name = 'tunneled'"
    ssh_server.stop()
    assert "through the SSH server" in _guard(bank)
    assert _sessions(bank) == 0
    assert bank.database.execute(slots) == [(1,)], "the database answers here: the guard went around the SSH server"
    ssh_server.start()
    _guard(bank)
    assert bank.database.execute(slots) == [(0,)]


def _guard(bank: Bank) -> str:
    """What `cdcflow guard` prints for one check."""
    command = [sys.executable, "-m", "cdcflow", "guard", "--once", "--config", str(bank.config_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    return done.stdout + done.stderr
