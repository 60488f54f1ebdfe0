"""Scenarios of a daemon whose source is reached through an SSH server."""

from __future__ import annotations

import random
import subprocess
import time
from collections.abc import Callable

from tests.servers.sshd import SshServer
from tests.support.daemon.bank import Branch
from typer.testing import CliRunner

from cdcflow.cli.app import app

KILLS = 4


def survives_links_that_end(bank: Branch, ssh: SshServer, sessions: Callable[[], int], seed: int) -> None:
    """A daemon whose SSH connections are killed under load, at random times and during the backfill, and whose SSH
    server is then stopped for a while, continues by itself. `sessions`: how many the database has of cdcflow."""
    dice = random.Random(seed)
    bank.start_writing(seed)
    daemon = bank.daemon()

    def catch_up() -> None:
        fence = bank.fence()
        bank.wait_until(lambda: bank.has_reached(fence), "the log to pass the fence", daemon)

    try:
        bank.wait_until(bank.reader.exists, "a log", daemon)
        for _ in range(KILLS):
            time.sleep(dice.random())
            bank.wait_until(lambda: ssh.end_connections() > 0, "a connection to kill", daemon)
        catch_up()
        ssh.stop()
        before = len(bank.output())
        bank.wait_until(lambda: "through the SSH server" in bank.output()[before:], "the refusal", daemon)
        # The database answers here, too: whatever went around the SSH server would show.
        bank.wait_until(lambda: sessions() == 0, "no session", daemon)
        assert "through the SSH server" in _printed(bank, "doctor")
        assert sessions() == 0
        ssh.start()
        catch_up()
        bank.stop_writing()
        catch_up()
        bank.assert_verified(daemon)
        assert "through the SSH server" not in _printed(bank, "doctor")
        daemon.terminate()
        assert daemon.wait(60) == 0, bank.output()
        bank.wait_until(lambda: sessions() == 0 and not links(ssh), "every connection to end")
    finally:
        bank.stop_writing()
        daemon.kill()
        daemon.wait()
    bank.assert_log_equals_source()


def killed_daemon_leaves_nothing(bank: Branch, ssh: SshServer, sessions: Callable[[], int]) -> None:
    """The SSH connections of a daemon that is killed end, and so do its sessions, though the server sends changes."""
    bank.start_writing(3)
    daemon = bank.daemon()
    try:
        fence = bank.fence()
        bank.wait_until(lambda: bank.has_reached(fence), "the log to pass the fence", daemon)
        assert links(ssh)
        daemon.kill()
        daemon.wait()
        bank.wait_until(lambda: sessions() == 0 and not links(ssh), "every connection to end")
    finally:
        bank.stop_writing()
        daemon.kill()
        daemon.wait()


def links(ssh: SshServer) -> list[str]:
    """The processes of ssh that are connected to this server."""
    listed = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout.splitlines()
    return [line for line in listed if line.startswith("ssh ") and f" -p {ssh.port} " in line]


def _printed(bank: Branch, command: str) -> str:
    return CliRunner().invoke(app, [command, "--config", str(bank.config_path)]).output
