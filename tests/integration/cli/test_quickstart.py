"""The quickstart page as printed: each block is run, in order, against a real server."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from tests.servers.postgres import PostgresServer
from tests.support.docs.pages import DOCS, ROOT, Block, blocks, commands
from tests.support.polling import wait_until

from cdcflow.daemon.interfaces.control_socket import ask

pytestmark = pytest.mark.postgres
WAIT_S = 90.0
ROLE = "cdcflow"


@pytest.fixture
def server(own_postgres: PostgresServer) -> PostgresServer:
    """A server with the page's database, which requires a password of the page's role."""
    own_postgres.create_database("mydatabase")
    own_postgres.write_hba(
        "local all postgres trust", "host all postgres 127.0.0.1/32 trust", "host all all 127.0.0.1/32 scram-sha-256"
    )
    return own_postgres


class Terminal:
    """Runs the page's lines as a shell does, in one folder, with one environment."""

    def __init__(self, folder: Path, programs: Path | None = None) -> None:
        """`programs`: those of another environment, with a different installation of cdcflow."""
        self.folder = folder
        self._is_ours = programs is None
        programs = programs or Path(sys.executable).parent
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
        output = self.folder / "daemon.log"

        def is_read() -> bool:
            assert self.daemon is not None
            assert self.daemon.poll() is None, output.read_text()
            status = ask(self.folder / "cdcflow-log", {"op": "status"}) or {}
            tables = status.get("tables", {})
            return bool(tables) and all(table["state"] == "done" for table in tables.values())

        wait_until(is_read, "all tables to be read", patience_s=WAIT_S, more=output.read_text)

    def wait_until_merged(self) -> None:
        def is_merged() -> bool:
            status = ask(self.folder / "cdcflow-log", {"op": "status"}) or {}
            return "cut" in status.get("merge", {})

        wait_until(is_merged, "a merge", patience_s=WAIT_S, more=(self.folder / "daemon.log").read_text)

    def stop(self) -> int:
        assert self.daemon is not None
        self.daemon.send_signal(signal.SIGINT)
        return self.daemon.wait(WAIT_S)

    def _own(self, words: list[str]) -> list[str]:
        """`cdcflow` is this checkout, not an installed version, unless an environment is given."""
        if not self._is_ours:
            return words
        return [sys.executable, "-m", "cdcflow.cli", *words[1:]] if words[0] == "cdcflow" else words


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    made = Terminal(tmp_path)
    yield made
    if made.daemon is not None and made.daemon.poll() is None:
        made.daemon.kill()
        made.daemon.wait()


INSTALLATION = [["python3", "-m", "venv", ".venv"], [".", ".venv/bin/activate"], ["pip", "install", ".[local]"]]


@pytest.fixture
def installed(tmp_path: Path) -> Iterator[Terminal]:
    """A copy of the checkout in which the page's lines have installed it."""
    checkout = tmp_path / "checkout"
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, tracked.split("\0")):
        if name.startswith(("src/", "pyproject.toml", "setup.py", "README.md", "LICENSE", "docs/runbook/errors.md")):
            (checkout / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, checkout / name)
    text = next(block.text for block in page("bash") if "pip install" in block.text)
    # tests/wheels tests whether it compiles, which takes minutes.
    environment = {**os.environ, "PIP_CONSTRAINT": str(ROOT / "constraints.txt"), "CDCFLOW_PLAIN": "1"}
    subprocess.run(["bash", "-ec", text], cwd=checkout, env=environment, check=True, timeout=600)
    made = Terminal(tmp_path, checkout / ".venv" / "bin")
    yield made
    if made.daemon is not None and made.daemon.poll() is None:
        made.daemon.kill()
        made.daemon.wait()


def page(language: str) -> list[Block]:
    return [block for block in blocks(DOCS / "quickstart.md") if block.language == language]


def test_quickstart_works_exactly_as_written(server: PostgresServer, terminal: Terminal) -> None:
    """Nothing but the server's address is changed: what a newcomer copies gives the table that the page promises."""
    follow(server, terminal)


@pytest.mark.long
def test_quickstart_works_in_a_fresh_environment(server: PostgresServer, installed: Terminal) -> None:
    """What the page installs is enough, and nothing that only a developer's machine has."""
    follow(server, installed)


def test_the_readme_installs_it_in_the_same_way() -> None:
    """Its instructions worked for no user before there was a release."""
    shell = [block for block in blocks(ROOT / "README.md") if block.language == "bash"]
    assert list(commands(shell[0]))[:3] == INSTALLATION
    assert [words for block in page("bash") for words in commands(block)][:3] == INSTALLATION


def _shows_change(terminal: Terminal, words: list[str]) -> bool:
    return "paid" in terminal.run(words)


def follow(server: PostgresServer, terminal: Terminal) -> None:
    """Run the page's commands, in order."""
    other = "cdcflow_of_another_pipeline"
    server.psql(f"SELECT pg_create_logical_replication_slot('{other}', 'pgoutput')", "mydatabase")
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
        if words in INSTALLATION:
            continue  # it is installed
        ran.append(" ".join(words[:2]))
        if words == ["cdcflow", "run"]:
            terminal.start(words)
            terminal.wait_until_read()
            terminal.wait_until_merged()
        elif words[0] == "python":
            shown = terminal.run(words)
            server.psql("UPDATE shop.orders SET status = 'paid' WHERE id = 1", "mydatabase")
            wait_until(partial(_shows_change, terminal, words), "the change in the table", patience_s=WAIT_S)
        elif words[:2] == ["cdcflow", "drop"]:
            assert terminal.stop() == 0
            terminal.run(words)
        else:
            terminal.run(words)
    assert shown == "[{'id': 1, 'status': 'new'}, {'id': 2, 'status': 'new'}]\n"
    assert ran[1:] == [
        "cdcflow doctor",
        "cdcflow run",
        "cdcflow status",
        "cdcflow log",
        "python -c",
        "cdcflow drop",
    ]
    slots = server.psql("SELECT slot_name FROM pg_replication_slots", "mydatabase")
    assert slots.split() == [other], "the trial's slot is gone, and no other pipeline's"
