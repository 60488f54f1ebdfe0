"""A pipeline in a folder, operated by the commands of a cdcflow of any version."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

PATIENCE_S = 600.0
BUSY = 74
"""The exit code when a daemon works on the segments just then."""
TOKEN = "a token of sixteen letters"  # noqa: S105  of a service that runs for a second
FIXED = Path("/tmp/cdcflow-stored/warehouses")  # noqa: S108  the same on each machine, and a lock is held for it
_WORKER = """
import json, sys
from typer.testing import CliRunner
from cdcflow.cli.app import app
for line in sys.stdin:
    done = CliRunner().invoke(app, json.loads(line))
    print(json.dumps([done.exit_code, done.stdout, f"{done.stderr} {done.exception or ''}"]), flush=True)
"""
"""Imports everything once: a command is then some milliseconds."""
Execute = Callable[[Sequence[str]], object]


@dataclass
class Pipeline:
    """A folder with a settings file. `program`: the command line of the cdcflow that works in it."""

    folder: Path
    program: Sequence[str]
    settings: dict[str, Any]
    execute: Execute = lambda statements: None
    steps: int = 0
    answers: list[dict[str, Any]] = field(default_factory=list)
    executed: list[str] = field(default_factory=list)
    answer: Any = None
    _worker: subprocess.Popen[str] | None = None
    _daemon: subprocess.Popen[bytes] | None = None

    def configure(self, file: str = "cdcflow.yaml", **sections: dict[str, Any]) -> None:
        """Write a settings file: the pipeline's own, with these sections changed."""
        whole = {**self.settings, **{name: {**self.settings.get(name, {}), **own} for name, own in sections.items()}}
        (self.folder / file).write_text(yaml.safe_dump(whole, sort_keys=False))

    def run(self, *arguments: str) -> str:
        """Run a command to its end in the pipeline's process, and return what it prints on stdout."""
        until = time.monotonic() + PATIENCE_S
        code, printed, error = self._run(arguments)
        while code == BUSY and time.monotonic() < until:
            time.sleep(0.3)
            code, printed, error = self._run(arguments)
        if code != 0:
            raise RuntimeError(f"{arguments}: exit code {code}\n{printed}\n{error}")
        return printed

    def _run(self, arguments: Sequence[str]) -> tuple[int, str, str]:
        if self._worker is None:
            self._worker = subprocess.Popen(
                [self.program[0], "-c", _WORKER],
                cwd=self.folder,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        assert self._worker.stdin is not None
        assert self._worker.stdout is not None
        self._worker.stdin.write(json.dumps(arguments) + "\n")
        self._worker.stdin.flush()
        code, printed, error = json.loads(self._worker.stdout.readline())
        return code, printed, error

    def run_alone(self, *arguments: str) -> None:
        """Run a command in a separate process."""
        subprocess.run([*self.program, *arguments], cwd=self.folder, check=True, stdout=subprocess.DEVNULL)

    def ask(self, *arguments: str) -> None:
        """Run a command and keep what it prints, and its exit code: what has expired is refused."""
        code, printed, _ = self._run(arguments)
        self.answers.append({"command": list(arguments), "code": code, "stdout": printed})

    @contextlib.contextmanager
    def daemon(self, command: str = "run") -> Iterator[None]:
        """Inside, a daemon runs; at the end it is killed, which leaves its journal unsealed."""
        output = self.folder.parent / f"{self.folder.name} daemon.log"
        with output.open("ab") as file:
            self._daemon = subprocess.Popen(
                [*self.program, command, "--json"],
                cwd=self.folder,
                env={**os.environ, "CDCFLOW_STORED_TOKEN": TOKEN},
                stdout=file,
                stderr=subprocess.STDOUT,
            )
        try:
            yield
            self._daemon.send_signal(signal.SIGKILL)
            self._daemon.wait(30)
        except BaseException:
            self._daemon.kill()
            print(output.read_text()[-6000:])
            raise

    def until(self, what: str, is_reached: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not is_reached():
            if time.monotonic() > deadline or (self._daemon is not None and self._daemon.poll() is not None):
                raise RuntimeError(f"waited for {what} in vain")
            time.sleep(0.3)

    def accepts(self, operations: list[dict[str, Any]], key: str) -> bool:
        """Send operations to the collection `orders`; False: nothing answers yet. `answer` is the answer."""
        request = urllib.request.Request(
            f"http://{self.settings['serve']['listen']}/api/v1/collections/orders",
            data=json.dumps(operations).encode(),
            headers={"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json", "Idempotency-Key": key},
        )
        try:
            with urllib.request.urlopen(request, timeout=30) as response:  # noqa: S310  loopback
                self.answer = json.loads(response.read())
        except urllib.error.HTTPError as error:
            raise RuntimeError(f"{error.code}: {error.read().decode()}") from None
        except OSError:
            return False
        return True

    def close(self) -> None:
        if self._worker is not None:
            self._worker.communicate(timeout=60)

    def until_read(self) -> None:
        """Wait until the daemon has read all tables."""

        def is_read() -> bool:
            tables = json.loads(self.run("status", "--json")).get("tables") or {}
            return bool(tables) and all(table["state"] == "done" for table in tables.values())

        self.until("the tables to be read", is_read)

    def at_source(self, statements: Sequence[str]) -> None:
        """Run statements at the source. `executed` keeps them."""
        self.execute(statements)
        self.executed += statements

    def change(self, statements: Sequence[str]) -> None:
        """Run statements at the source, and wait until the log has their changes."""
        self.steps += 1
        self.at_source([*statements, f"INSERT INTO shop.steps VALUES ({self.steps})"])

        def has_step() -> bool:
            # An earlier version refuses this when the last step has expired.
            code, shown, _ = self._run(["log", "show", "--json", "--table", "shop.steps", "--limit", "1"])
            return code == 0 and bool(shown) and json.loads(shown.splitlines()[-1])["id"] == self.steps

        self.until(f"step {self.steps}", has_step)

    def until_shown(self, table: str, values: dict[str, Any]) -> None:
        """Wait until the log's last row of a table has these values."""

        def is_shown() -> bool:
            shown = self.run("log", "show", "--json", "--table", table, "--limit", "1").splitlines()
            return bool(shown) and values.items() <= json.loads(shown[-1]).items()

        self.until(f"{table} to have {values}", is_shown)

    def last(self) -> dict[str, Any]:
        """The log's last row."""
        return dict(json.loads(self.run("log", "show", "--json", "--limit", "1").splitlines()[-1]))

    def seal(self) -> None:
        """Wait until the log has a sealed segment that ends where it ends now."""

        def is_sealed() -> bool:
            sealed = json.loads(self.run("log", "ls", "--json"))
            return bool(sealed) and sealed[-1]["last_offset"] >= self.last()["_offset"]

        self.until("the journal to be sealed", is_sealed)


def own_program(tree: Path) -> list[str]:
    """The command line of a checkout with its own environment."""
    return [str(tree / ".venv" / "bin" / "python"), "-m", "cdcflow.cli"]
