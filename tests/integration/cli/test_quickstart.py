"""The quickstart, as its page has it: each block is run, in order, against a real server."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from bookpages import DOCS, Block, blocks, commands
from tests.servers.postgres import PostgresServer

from cdcflow.service.control import ask

pytestmark = pytest.mark.postgres
WAIT_S = 90.0
ROLE = "cdcflow"


@pytest.fixture
def server(own_postgres: PostgresServer) -> PostgresServer:
    """A server with the page's database, which asks the page's role for a password."""
    own_postgres.create_database("mydatabase")
    own_postgres.write_hba(
        "local all postgres trust", "host all postgres 127.0.0.1/32 trust", "host all all 127.0.0.1/32 scram-sha-256"
    )
    return own_postgres


class Terminal:
    """Runs the page's lines as a shell does, in one folder, with one environment."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        programs = Path(sys.executable).parent
        self.environment = {**os.environ, "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"}
        self.daemon: subprocess.Popen[bytes] | None = None

    def run(self, words: list[str]) -> str:
        if words[0] == "export":
            name, _, value = words[1].partition("=")
            self.environment[name] = value
            return ""
        done = subprocess.run(
            self._own(words), cwd=self.folder, env=self.environment, capture_output=True, text=True, timeout=WAIT_S
        )
        assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
        return done.stdout

    def start(self, words: list[str]) -> None:
        with (self.folder / "daemon.log").open("ab") as output:
            self.daemon = subprocess.Popen(
                self._own(words), cwd=self.folder, env=self.environment, stdout=output, stderr=output
            )

    def wait_until_read(self) -> None:
        deadline = time.monotonic() + WAIT_S
        while time.monotonic() < deadline:
            assert self.daemon is not None
            assert self.daemon.poll() is None, (self.folder / "daemon.log").read_text()
            status = ask(self.folder / "cdcflow-log", {"op": "status"}) or {}
            tables = status.get("tables", {})
            if tables and all(table["state"] == "done" for table in tables.values()):
                return
            time.sleep(0.05)
        raise AssertionError((self.folder / "daemon.log").read_text())

    def stop(self) -> int:
        assert self.daemon is not None
        self.daemon.send_signal(signal.SIGINT)
        return self.daemon.wait(WAIT_S)

    @staticmethod
    def _own(words: list[str]) -> list[str]:
        """`cdcflow` is this checkout, whichever one is installed."""
        return [sys.executable, "-m", "cdcflow.cli", *words[1:]] if words[0] == "cdcflow" else words


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    made = Terminal(tmp_path)
    yield made
    if made.daemon is not None and made.daemon.poll() is None:
        made.daemon.kill()
        made.daemon.wait()


def page(language: str) -> list[Block]:
    return [block for block in blocks(DOCS / "quickstart.md") if block.language == language]


def test_quickstart_works_as_it_is_written(server: PostgresServer, terminal: Terminal) -> None:
    """Nothing but the server's address is changed: what a newcomer copies gives the table that the page promises."""
    (sql,) = page("sql")
    server.psql(sql.text, "mydatabase")
    (settings,) = page("yaml")
    address = urlsplit(server.url("mydatabase", ROLE))
    assert "localhost:5432" in settings.text
    text = settings.text.replace("localhost:5432", f"{address.hostname}:{address.port}")
    (terminal.folder / "cdcflow.yaml").write_text(text)
    ran: list[str] = []
    shown = ""
    for words in [words for block in page("bash") for words in commands(block)]:
        if words[0] == "pip":
            continue  # it is installed
        ran.append(" ".join(words[:2]))
        if words == ["cdcflow", "run"]:
            terminal.start(words)
            terminal.wait_until_read()
        elif words == ["cdcflow", "merge"]:
            assert terminal.stop() == 0  # seals what there is, instead of a wait for log.seal.age_max
            shown = terminal.run(words)
        else:
            shown = terminal.run(words)
    assert shown == "[{'id': 1, 'status': 'new'}, {'id': 2, 'status': 'new'}]\n"
    assert ran[1:] == ["cdcflow doctor", "cdcflow run", "cdcflow status", "cdcflow log", "cdcflow merge", "python -c"]
