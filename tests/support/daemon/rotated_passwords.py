"""Scenarios of passwords that a command prints and that rotate under a running daemon."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.support.daemon.bank import Branch
from typer.testing import CliRunner

from cdcflow.cli.app import app

FIRST, SECOND, THIRD = "f1rst-c4nary", "s3cond-c4nary", "th1rd-c4nary"
_SCRIPT = """echo run >> "$1"; echo "a warning with $(cat "$2")" >&2; cat "$2" """


class RotatedPassword:
    """A command that prints what is in a file, and counts how often it ran."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "password-of-now"
        self._runs = folder / "runs"
        self.print(FIRST)

    def print(self, password: str) -> None:
        self._file.write_text(f"{password}\n")

    @property
    def runs(self) -> int:
        return len(self._runs.read_text().splitlines()) if self._runs.exists() else 0

    @property
    def setting(self) -> dict[str, object]:
        command = ["/bin/sh", "-c", _SCRIPT, "password", str(self._runs), str(self._file)]
        return {"command": command, "expires": "1h"}


def rotates_under_a_daemon(
    bank: Branch, password: RotatedPassword, rotate: Callable[[str], object], hang_up: Callable[[], object]
) -> None:
    """A daemon that runs by `password`, and whose connections `hang_up` ends after `rotate` changed it: it continues by
    itself. The command runs again only when the server refuses what it printed before."""
    bank.start_writing(seed=5)
    daemon = bank.daemon()

    def catch_up() -> None:
        fence = bank.fence()
        bank.wait_until(lambda: bank.has_reached(fence), "the log to pass the fence", daemon)

    try:
        catch_up()
        assert password.runs == 1, "all connections use what was printed once"
        hang_up()
        catch_up()
        assert password.runs == 1, "new connections, too"
        password.print(SECOND)
        rotate(SECOND)
        hang_up()
        catch_up()
        assert password.runs == 2, "the server refused the first password"
        # The other way round: the server refuses what the command still prints.
        rotate(THIRD)
        hang_up()
        bank.wait_until(lambda: "is refused" in bank.output(), "the refusal", daemon)
        password.print(THIRD)
        catch_up()
        bank.stop_writing()
        catch_up()
        bank.assert_verified(daemon)
        for pid in (daemon.pid, *_children(daemon.pid)):
            for file in ("cmdline", "environ"):
                assert "c4nary" not in Path(f"/proc/{pid}/{file}").read_text(errors="replace")
    finally:
        bank.stop_writing()
        daemon.terminate()
        daemon.wait()
    bank.assert_log_equals_source()
    found = CliRunner().invoke(app, ["doctor", "--config", str(bank.config_path)])
    for text in (bank.output(), found.output):
        assert "c4nary" not in text


def _children(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return [int(child) for task in tasks for child in (task / "children").read_text().split()]
