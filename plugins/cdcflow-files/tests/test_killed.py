"""A daemon that captures files and is killed at random: at the end each row is in the log exactly once."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cdcflow.errors import CdcflowError
from cdcflow.log.read.reader import newest_checkpoint, read_rows
from cdcflow.ports import TableId
from cdcflow.testing.folded import folded_log

PROJECT = Path(__file__).parents[1]
PATIENCE_S = 90.0
SETTINGS = """
source:
  kind: files
  folder: landing
  state: state
  poll_every: 100ms
  heartbeat: 1s
  keys: {files.orders: [id]}
log: {path: log}
merge: {engine: local}
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A folder with a settings file, a landing folder, and the package as pip installs it."""
    (tmp_path / "landing" / "events").mkdir(parents=True)
    (tmp_path / "cdcflow.yaml").write_text(SETTINGS)
    about = tmp_path / "packages" / "cdcflow_files-0.1.0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: cdcflow-files\nVersion: 0.1.0\n")
    (about / "entry_points.txt").write_text("[cdcflow.sources]\nfiles = cdcflow_files:plugin\n")
    return tmp_path


def cdcflow(home: Path, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "cdcflow", *arguments, "-c", str(home / "cdcflow.yaml")]


def environment(home: Path) -> dict[str, str]:
    paths = (str(home / "packages"), str(PROJECT / "src"), os.environ.get("PYTHONPATH", ""))
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}


class Writer:
    """Changes files at random, and knows what must be in the log."""

    def __init__(self, landing: Path, seed: int) -> None:
        self._landing = landing
        self._random = random.Random(seed)
        self.orders: dict[int, int] = {}
        self.events: Counter[int] = Counter()
        self._numbers = iter(range(1, 1_000_000))
        self._grown: list[str] = ["n"]
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Writer:
        self._thread.start()
        return self

    def __exit__(self, *failure: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(self._random.uniform(0.02, 0.25)):
            self._random.choice([self._write_orders, self._write_events, self._append_events])()

    def _write_orders(self) -> None:
        for _ in range(self._random.randrange(1, 40)):
            key = self._random.randrange(200)
            if self._random.random() < 0.3:
                self.orders.pop(key, None)
            else:
                self.orders[key] = self._random.randrange(1000)
        lines = ["id,total", *(f"{key},{total}" for key, total in self.orders.items())]
        self._rename("orders.csv", "\n".join(lines) + "\n")

    def _write_events(self) -> None:
        """A new file, renamed into place."""
        numbers = [next(self._numbers) for _ in range(self._random.randrange(1, 50))]
        self.events.update(numbers)
        self._rename(f"events/{numbers[0]}.jsonl", "".join(f'{{"n": {n}}}\n' for n in numbers))

    def _append_events(self) -> None:
        """A file that grows in place; a poll may find it between two writes, and never between two halves of a row."""
        numbers = [next(self._numbers) for _ in range(self._random.randrange(1, 20))]
        self.events.update(numbers)
        self._grown += map(str, numbers)
        with (self._landing / "events" / "grown.csv").open("w") as file:
            for line in self._grown:
                file.write(f"{line}\n")

    def _rename(self, name: str, text: str) -> None:
        unfinished = self._landing / f"{name}.tmp"
        unfinished.write_text(text)
        os.replace(unfinished, self._landing / name)


@contextlib.contextmanager
def daemon(home: Path) -> Iterator[subprocess.Popen[bytes]]:
    with (home / "daemon.txt").open("ab") as output:
        running = subprocess.Popen(cdcflow(home, "run"), env=environment(home), stdout=output, stderr=output)
        try:
            yield running
        finally:
            if running.poll() is None:
                running.kill()
            running.wait()


def in_log(home: Path) -> tuple[dict[int, int], Counter[int]]:
    """The rows of both tables at the log's latest cut."""
    try:
        found = folded_log(home / "log")
    except (CdcflowError, FileNotFoundError):
        return {}, Counter()
    orders = found.get(TableId("files", "orders"), {})
    events: Counter[int] = Counter()
    for row in found.get(TableId("files", "events"), {}).values():
        events[_number(row.values["n"])] += row.count
    return {_number(row.values["id"]): _number(row.values["total"]) for row in orders.values()}, events


def _number(value: Any) -> int:  # Any: a value of a folded row
    return int(value)


def survives_kills(home: Path, seed: int, kills: int) -> None:
    chance = random.Random(seed)
    with Writer(home / "landing", seed) as writer:
        for _ in range(kills):
            with daemon(home) as running:
                wait_for(home, running, lambda: captured(home), captured(home))
                time.sleep(chance.uniform(0.0, 1.0))
                wait_for(home, running, lambda: records(home), records(home))
                time.sleep(chance.choice([0.0, 0.0, 0.005, 0.02, 0.2]))
                running.send_signal(signal.SIGKILL)
    with daemon(home) as running:
        deadline = time.monotonic() + PATIENCE_S
        while in_log(home) != (writer.orders, writer.events):
            assert running.poll() is None, (home / "daemon.txt").read_text()
            assert time.monotonic() < deadline, f"seed {seed}: {difference(home, writer)}"
            time.sleep(0.3)
    assert writer.orders
    assert writer.events


def wait_for(home: Path, running: subprocess.Popen[bytes], number: Callable[[], int], before: int) -> None:
    """Wait until a number has grown."""
    deadline = time.monotonic() + PATIENCE_S
    while number() <= before:
        assert running.poll() is None, (home / "daemon.txt").read_text()
        assert time.monotonic() < deadline, "nothing was captured"
        time.sleep(0.001)


def captured(home: Path) -> int:
    """The number of the record that the change log has reached."""
    try:
        position = newest_checkpoint(home / "log").position
    except (CdcflowError, FileNotFoundError):
        return 0
    return 0 if position is None else int(position.text)


def records(home: Path) -> int:
    """The number of the ledger's last record with changes, which the change log gets a moment later."""
    try:
        with contextlib.closing(sqlite3.connect(f"file:{home / 'state' / 'ledger.db'}?mode=ro", uri=True)) as database:
            (found,) = database.execute("SELECT max(number) FROM records WHERE changes IS NOT NULL").fetchone()
    except sqlite3.OperationalError:
        return 0
    return found or 0


def difference(home: Path, writer: Writer) -> str:
    orders, events = in_log(home)
    return (
        f"orders {sorted(orders.items() ^ writer.orders.items())[:5]}, missing {sorted(writer.events - events)[:5]},"
        f" twice {sorted(events - writer.events)[:5]}"
    )


def test_each_row_is_in_the_log_exactly_once_after_kills(home: Path) -> None:
    """A row that is lost or doubled by a restart is what makes such a source useless."""
    survives_kills(home, 1, 3)
    assert sum(rows.num_rows for _, _, rows in read_rows(home / "log")) > 0


@pytest.mark.long
@pytest.mark.parametrize("seed", range(2, 8))
def test_each_row_is_in_the_log_exactly_once_after_many_kills(home: Path, seed: int) -> None:
    """The same with more restarts."""
    survives_kills(home, seed, 8)


def test_commands_work_as_for_other_sources(home: Path) -> None:
    """Operators use the same commands whatever the source is."""

    def run(*arguments: str) -> str:
        done = subprocess.run(cdcflow(home, *arguments), env=environment(home), capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    (home / "landing" / "orders.csv").write_text("id,total\n1,10\n2,20\n")
    assert "can be read" in run("doctor")
    assert "files.orders" in run("plan")
    assert not (home / "state").exists(), "a plan and a check of settings change nothing"
    run("backfill")
    assert in_log(home)[0] == {1: 10, 2: 20}
    assert "files.orders" in run("status")
    assert "10" in run("get", "files.orders", "1")
    assert "files.orders" in run("merge")
    assert "equal" in run("verify").lower()
    assert "slot" in run("drop", "--yes")


def test_column_policies_hold_for_files(home: Path) -> None:
    """Whatever the source is, the log has masked values only. The ledger has what the files have."""
    with (home / "cdcflow.yaml").open("a") as file:
        file.write("tables: {files.users: {columns: {email: mask}}}\n")
    (home / "landing" / "users.csv").write_text("id,email\n1,ada@example.com\n")
    done = subprocess.run(cdcflow(home, "backfill"), env=environment(home), capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    ((table, _, rows),) = read_rows(home / "log")
    # A table without a key is read after a truncate, which has no values.
    assert (str(table.id), rows.column("email").to_pylist()) == ("files.users", [None, "****"])
