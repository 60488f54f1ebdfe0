"""A daemon that runs by a settings file, in a separate process, and the commands that plan and apply the file."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml
from tests.servers.postgres import Database
from tests.support.polling import PATIENCE_S, wait_until
from typer.testing import CliRunner

from cdcflow.cli.app import app
from cdcflow.daemon.interfaces.control_socket import ask

CANARY = "c4n4ry-s3cret"
runner = CliRunner()


class DaemonFolder:
    """A folder with a settings file, and perhaps a daemon that runs by it. `table`: its first backfill is awaited."""

    def __init__(self, folder: Path, source: Mapping[str, Any], table: str) -> None:
        self.folder = folder
        self.table = table
        self.file = folder / "cdcflow.yaml"
        self.output = folder / "daemon.log"
        self.source: dict[str, Any] = {"tables": [table], **source}
        self.rest: dict[str, Any] = {
            "log": {"path": "log", "seal": {"age_max": "1s"}},
            "merge": {"spark": {"spark.hadoop.fs.s3a.secret.key": CANARY}},
        }
        self.daemon: subprocess.Popen[bytes] | None = None
        self.write()

    def write(self, **source: Any) -> None:
        self.source.update(source)
        self.file.write_text(yaml.safe_dump({"source": self.source, **self.rest}))

    def start(self, *options: str) -> None:
        command = [sys.executable, "-m", "cdcflow.cli", "run", "--json", *options]
        with self.output.open("ab") as file:
            self.daemon = subprocess.Popen(command, cwd=self.folder, stdout=file, stderr=subprocess.STDOUT)
        self.wait_until(lambda s: s.get("tables", {}).get(self.table, {}).get("state") == "done", self.table)

    def start_again(self) -> None:
        """Start a daemon, and wait until it captures."""
        with self.output.open("ab") as file:
            command = [sys.executable, "-m", "cdcflow.cli", "run", "--json"]
            self.daemon = subprocess.Popen(command, cwd=self.folder, stdout=file, stderr=subprocess.STDOUT)
        self.wait_until(lambda s: s.get("state") == "capturing", "the daemon to capture again")

    def wait_until(self, wished: Callable[[dict[str, Any]], bool], what: str) -> dict[str, Any]:
        def status() -> dict[str, Any] | None:
            assert self.daemon is not None
            assert self.daemon.poll() is None, self.output.read_text()
            found = ask(self.folder / "log", {"op": "status"})
            return dict(found) if found is not None and wished(found) else None

        return wait_until(status, what, more=self.output.read_text)

    def ask(self, op: str, **arguments: str) -> dict[str, Any]:
        answer = ask(self.folder / "log", {"op": op, **arguments}, timeout_s=PATIENCE_S)
        assert answer is not None
        return dict(answer)

    def events(self, name: str) -> list[dict[str, Any]]:
        whole, _, _ = self.output.read_text().rpartition("\n")  # the daemon may be writing the last line
        found = [json.loads(line) for line in whole.splitlines()]
        return [event for event in found if event["event"] == name]

    def end(self) -> None:
        if self.daemon is not None and self.daemon.poll() is None:
            self.daemon.send_signal(signal.SIGTERM)
            assert self.daemon.wait(PATIENCE_S) == 0, self.output.read_text()

    def hang_up(self) -> None:
        """SIGHUP: read the settings file again."""
        assert self.daemon is not None
        self.daemon.send_signal(signal.SIGHUP)

    def kill(self) -> None:
        """However it is: for the end of a test."""
        if self.daemon is not None:
            self.daemon.kill()
            self.daemon.wait()


class Shop(DaemonFolder):
    """A daemon on PostgreSQL with a table `orders`."""

    def __init__(self, folder: Path, database: Database) -> None:
        self.database = database
        super().__init__(folder, {"kind": "postgres", "url": database.url}, "public.orders")


def said(*arguments: str, code: int = 0, answer: str | None = None) -> str:
    result = runner.invoke(app, list(arguments), input=answer)
    assert result.exit_code == code, result.output
    assert CANARY not in result.output
    return result.output


def planned() -> dict[str, Any]:
    found = json.loads(said("plan", "--json"))
    found["actions"] = {table["name"]: table["action"] for table in found["tables"]}
    return dict(found)
