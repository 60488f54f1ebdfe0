"""Passwords that a command prints."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from cdcflow.config import PasswordCommand
from cdcflow.errors import CdcflowError, ConfigurationError, SourceUnavailable
from cdcflow.sources.engine.errors import PasswordRefused
from cdcflow.sources.engine.passwords import PrintedPassword, secret_of
from cdcflow.sources.memory.chunks import MemoryConnector
from cdcflow.sources.memory_database import MemoryDatabase

CANARY = "c4n4ry-s3cret"


def shell(script: str, **settings: object) -> PasswordCommand:
    return PasswordCommand.model_validate({"command": ["/bin/sh", "-c", script], **settings})


def counted(folder: Path, printed: str = CANARY, **settings: object) -> tuple[PasswordCommand, Path]:
    """A command that appends a line to a file at each run."""
    runs = folder / "runs"
    runs.touch()
    return shell(f"echo run >> {runs}; echo {printed}$(wc -l < {runs})", **settings), runs


def run_count(runs: Path) -> int:
    return len(runs.read_text().splitlines())


def test_password_is_printed_once_and_used_until_it_expires(tmp_path: Path) -> None:
    """A token is paid for with a request to the cloud; an expired one would be refused."""
    now = [0.0]
    settings, runs = counted(tmp_path, expires="10m")
    password = PrintedPassword(settings, clock=lambda: now[0])
    assert {password() for _ in range(5)} == {f"{CANARY}1"}
    now[0] = 599.0
    assert password() == f"{CANARY}1"
    now[0] = 600.0
    assert password() == f"{CANARY}2"
    assert run_count(runs) == 2


def test_connections_at_the_same_time_run_the_command_once(tmp_path: Path) -> None:
    """A backfill opens several connections at once."""
    settings, runs = counted(tmp_path)
    password = PrintedPassword(settings)
    threads = [threading.Thread(target=password) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert run_count(runs) == 1


def test_equal_settings_share_what_was_printed(tmp_path: Path) -> None:
    """A capture opens its source again after each error, and the control table has another connection."""
    settings, runs = counted(tmp_path)
    assert secret_of(settings)() == secret_of(settings.model_copy())() == f"{CANARY}1"
    assert run_count(runs) == 1


def test_refused_password_is_replaced_once_and_never_tried_twice(tmp_path: Path) -> None:
    """P65: a rotated password works at once; one that stays wrong must not lock the account."""
    settings, runs = counted(tmp_path)
    connector = MemoryConnector(MemoryDatabase())
    tried: list[str | None] = []

    def only(accepted: str) -> Any:
        def open_with(password: str | None) -> Any:
            tried.append(password)
            if password != accepted:
                raise PasswordRefused("refused")
            return "connected"

        return open_with

    password = PrintedPassword(settings)
    connected: Any = connector.log_in(password, only(f"{CANARY}2"))
    assert connected == "connected"
    assert tried == [f"{CANARY}1", f"{CANARY}2"]
    unchanged = PrintedPassword(shell(f"echo {CANARY}"))
    tried.clear()
    with pytest.raises(PasswordRefused):
        connector.log_in(unchanged, only("another"))
    assert tried == [CANARY]
    with pytest.raises(PasswordRefused):
        connector.log_in(lambda: CANARY, only("another"))
    assert run_count(runs) == 2


def test_password_that_another_connection_renewed_is_used(tmp_path: Path) -> None:
    """Ten connections that are refused together are one rotation."""
    settings, runs = counted(tmp_path)
    password = PrintedPassword(settings)
    first = password()
    assert [password.after_refusal(first) for _ in range(3)] == [f"{CANARY}2"] * 3
    assert run_count(runs) == 2


FAILURES = {
    f"echo {CANARY} >&2; exit 3": "ended with exit code 3",
    f"echo {CANARY}; exit 1": "ended with exit code 1",
    "true": "printed nothing",
    f"echo {CANARY}; echo {CANARY}": "printed more than one line",
    r"printf '\377'": "printed bytes that are not UTF-8 text",
    "kill -9 $$": "was ended by signal 9",
    "exec yes": "printed more than 64 KiB",
    "sleep 1000": "did not end within 0.2 s",
    # What it started holds its output, in a session that no signal to the group reaches.
    f"{sys.executable} -c 'import os, time; os.setsid(); time.sleep(30)' & exit 0": "did not end within 0.2 s",
}


@pytest.mark.parametrize("script", FAILURES)
def test_failed_command_is_reported_without_what_it_printed(script: str) -> None:
    """S03: the message says what happened, and a person can run the command; its output may be the password."""
    timeout = "0.2s" if FAILURES[script].startswith("did not") else "30s"
    password = PrintedPassword(shell(script, timeout=timeout))
    with pytest.raises(SourceUnavailable) as failed:
        password()
    assert f"the command of source.password, /bin/sh, {FAILURES[script]}" in str(failed.value)
    assert failed.value.runbook == "password-command"
    assert CANARY not in f"{failed.value!r} {failed.value.__cause__!r} {failed.value.__context__!r}"


def test_command_that_does_not_exist_stops_with_its_name(tmp_path: Path) -> None:
    """A typing error is no outage: waiting would not help."""
    for program, reason in (
        (str(tmp_path / "none"), "No such file or directory"),
        (str(tmp_path), "Permission denied"),
    ):
        with pytest.raises(ConfigurationError, match=f"{program}, cannot be run: {reason}"):
            PrintedPassword(PasswordCommand(command=(program,)))()


def test_failure_is_not_remembered(tmp_path: Path) -> None:
    """The cloud was unreachable for a moment; the next try runs the command again."""
    file = tmp_path / "password"
    password = PrintedPassword(shell(f"cat {file}"))
    with pytest.raises(CdcflowError):
        password()
    file.write_text("there\r\n")
    assert password() == "there"


def test_command_gets_no_terminal_and_no_shell() -> None:
    """S01: arguments are not interpreted; a command that waits for input gets an end of file, and does not hang."""
    asks = 'import sys, os; print(sys.argv[1], sys.stdin.read() == "", os.getsid(0) == os.getpid())'
    printed = PrintedPassword(PasswordCommand(command=(sys.executable, "-c", asks, "$HOME; `id`")))
    assert printed() == "$HOME; `id` True True"
