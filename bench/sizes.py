"""`python -m bench.sizes`: CPU, memory and disk of a pipeline at steady rates, for docs/sizes.md.

For each number of tables and each rate: a daemon that captures and merges without Spark every 10 s, and a writer that
changes rows evenly, half inserts and half updates. The beginning does not count. Prints the rows of the page's table.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psycopg

from bench.harness import Failed, tell
from bench.server import Server

CASES = ((1, 0), (10, 100), (10, 1_000), (10, 10_000), (100, 1_000), (1_000, 1_000))
"""Tables, and changes per second in all of them."""
WARM_S, MEASURED_S = 20.0, 60.0
ROWS = 1_000
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(slots=True)
class Use:
    """Of a process and its children: CPU seconds, and the highest memory that the kernel cannot take back, in MB."""

    cpu_s: float = 0.0
    highest_mb: float = 0.0
    _before: dict[int, float] = field(default_factory=dict)

    def add(self, pids: list[int]) -> None:
        memory = 0.0
        for pid in pids:
            with contextlib.suppress(OSError, IndexError):
                fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                cpu = (int(fields[11]) + int(fields[12])) / _TICKS
                self.cpu_s += cpu - self._before.get(pid, cpu)
                self._before[pid] = cpu
                status = Path(f"/proc/{pid}/status").read_text()
                memory += sum(int(line.split()[1]) for line in status.splitlines() if line.startswith("RssAnon")) / 1024
        self.highest_mb = max(self.highest_mb, memory)


def children(pid: int) -> list[int]:
    found = []
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            found += [int(child) for child in (task / "children").read_text().split()]
    return [each for child in found for each in (child, *children(child))]


@contextlib.contextmanager
def written(server: Server, tables: int, rate: int) -> Iterator[list[int]]:
    """Changes at a fixed rate while the block runs: their number so far, in a list of one."""
    count, ending = [0], threading.Event()

    def write() -> None:
        each = min(100.0, rate / 10)
        with psycopg.connect(server.dsn, autocommit=True) as connection:
            began, number = time.monotonic(), 0
            while not ending.is_set():
                if (early := began + number / each - time.monotonic()) > 0:
                    time.sleep(early)
                table, rows = f"t{number % tables}", max(1, round(rate / each / 2))
                connection.execute(
                    f"WITH made AS (INSERT INTO {table} (note) SELECT 'row' FROM generate_series(1, {rows}))"
                    f" UPDATE {table} SET qty = qty + 1 WHERE id BETWEEN {1 + number % (ROWS // 2)}"
                    f" AND {rows + number % (ROWS // 2)}"
                )
                number += 1
                count[0] += 2 * rows

    thread = threading.Thread(target=write, daemon=True)
    if rate:
        thread.start()
    try:
        yield count
    finally:
        ending.set()
        if rate:
            thread.join()


def measure(server: Server, tables: int, rate: int) -> str:
    """A row of the table."""
    for number in range(tables):
        server.execute(f"DROP TABLE IF EXISTS t{number}")
        server.execute(
            f"CREATE TABLE t{number} (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, qty int NOT NULL DEFAULT 0,"
            " price numeric(10,2) DEFAULT 9.99, at timestamptz DEFAULT now(), note text)"
        )
        server.execute(f"INSERT INTO t{number} (note) SELECT 'row' FROM generate_series(1, {ROWS})")
    with tempfile.TemporaryDirectory() as name, written(server, tables, rate) as count:
        folder = Path(name)
        settings = {
            "source": {"kind": "postgres", "url": server.dsn, "tables": [f"public.t{n}" for n in range(tables)]},
            "log": {"path": "log"},
            "merge": {"engine": "local", "warehouse": "warehouse", "every": "10s"},
        }
        (folder / "cdcflow.yaml").write_text(json.dumps(settings))
        command = [sys.executable, "-m", "cdcflow", "run", "-c", str(folder / "cdcflow.yaml")]
        daemon = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            wait_until_read(daemon, folder, tables)
            time.sleep(WARM_S)
            capture, merges = Use(), Use()
            began, changes, log = time.monotonic(), count[0], size(folder / "log")
            while time.monotonic() - began < MEASURED_S:
                capture.add([daemon.pid])
                merges.add(children(daemon.pid))
                time.sleep(0.2)
            took, changes, log = time.monotonic() - began, count[0] - changes, size(folder / "log") - log
        finally:
            daemon.terminate()
            daemon.wait(60)
            subprocess.run([*command[:3], "drop", "--yes", *command[4:]], check=True, capture_output=True)
    cells = (
        f"{tables:,}",
        f"{changes / took:,.0f}",
        f"{100 * capture.cpu_s / took:.1f} %",
        f"{capture.highest_mb:.0f} MB",
        f"{100 * merges.cpu_s / took:.1f} %",
        f"{merges.highest_mb:.0f} MB",
        f"{log / changes:.0f}" if changes else "",
    )
    return f"| {' | '.join(cells)} |"


def wait_until_read(daemon: subprocess.Popen[bytes], folder: Path, tables: int) -> None:
    """Wait until the existing rows are in the log and the first cut is published."""
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        if daemon.poll() is not None:
            raise Failed("the daemon has ended")
        command = [sys.executable, "-m", "cdcflow", "status", "--json", "-c", str(folder / "cdcflow.yaml")]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        with contextlib.suppress(ValueError):
            states = [table.get("state") for table in json.loads(done.stdout).get("tables", {}).values()]
            if len(states) == tables and set(states) == {"done"} and (folder / "warehouse" / "_cdcflow_cuts").exists():
                return
        time.sleep(1)
    raise Failed("the tables were not read within five minutes")


def size(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):
            total += path.stat().st_size if path.is_file() else 0
    return total


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench.sizes", description=__doc__)
    parser.add_argument("cases", nargs="*", metavar="TABLES:RATE", help="such as 10:1000 (none: all)")
    chosen = [tuple(map(int, case.split(":"))) for case in parser.parse_args().cases] or CASES
    for tables, rate in chosen:
        with Server("tcp") as server:
            try:
                print(measure(server, tables, rate), flush=True)
            except Failed as error:
                tell(f"{tables} tables, {rate} changes/s failed, and prints no number: {error}")
                return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
