"""mysql.memory: one transaction of a few thousand to some million rows; cdcflow's memory must not follow it."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

from tests.servers.mysql import FLAVORS

from bench import contents
from bench.harness import Budget, Child, tell
from bench.mysql.server import Server, machine, settings
from bench.results import Line, alone, at_most, compared
from bench.shapes import NARROW

ROWS = 5_000_000


def run(budget: Budget, transport: str) -> list[Line]:
    if transport != "tcp":
        return []
    lines: list[Line] = []
    sizes = [budget.rows // part for part in (100, 10, 1)]
    for flavor in FLAVORS:
        memory = {}
        for rows in sizes:
            tell(f"  mysql.memory: {flavor}, {rows:,} rows in one transaction")
            with tempfile.TemporaryDirectory() as folder, Server(flavor) as server:
                server.make()
                log = Path(folder) / "log"
                config = settings(server, log)
                Child.of("capture", {"config": config, "once": True}).outcome()
                server.insert(1, rows)
                outcome = Child.of("capture", {"config": config, "until_rows": rows}).outcome()
                contents.verify(log, NARROW, server.source_rows(), rows)
                memory[rows] = (outcome.rss_bytes or 0) / 1e6
                case = f"{flavor}, a transaction of {rows:,} rows"
                found = [alone("mysql.memory", case, "client CPU s/M rows", [outcome.cpu_s_per_million])]
                if rows > sizes[0]:
                    less = [memory[sizes[0]]]
                    name = f"{sizes[0]:,} rows"
                    found.append(
                        compared("mysql.memory", case, "peak RSS MB", [memory[rows]], less, name, at_most(1.1))
                    )
                lines += [replace(line, machine=machine(server)) for line in found]
    return lines
