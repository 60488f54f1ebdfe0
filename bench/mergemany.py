"""merge, many times: many tables in one merge, and many merges in one session.

`CDCFLOW_BENCH_TABLES` sets how many tables (in Delta fewer: a cycle of hundreds takes an hour), `CDCFLOW_BENCH_CYCLES`
how many merges.
"""

from __future__ import annotations

import os
import statistics
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from bench.harness import tell
from bench.mergelog import SealedLog, rows, table
from bench.mergeparties import CHANGES, FORMATS, SMALL_TABLES, Party, in_turn
from bench.results import Line, alone, at_most, compared

TABLES = [int(n) for n in os.environ.get("CDCFLOW_BENCH_TABLES", "50 500" if FORMATS == ["iceberg"] else "50").split()]
CYCLES = int(os.environ.get("CDCFLOW_BENCH_CYCLES", "500"))
WARM = 50
"""The cycle with which the last one is compared."""

BASE = 2000
"""Rows of each table before its changes."""


class Tables:
    """A number of small tables in a log, and the warehouse that they are merged into."""

    def __init__(self, room: Path, count: int) -> None:
        self.shapes = [table(f"t{n}") for n in range(count)]
        self.log = SealedLog(room / "log")
        self.warehouse = room / "warehouse"
        self.log.segment({shape: rows(np.arange(BASE), 1) for shape in self.shapes}, "r")
        self._chance = np.random.default_rng(5)

    def change(self, number: int, count: int) -> None:
        """A segment with a number of changes of each table."""
        ids = np.sort(self._chance.choice(BASE, count, replace=False))
        self.log.segment({shape: rows(ids, number) for shape in self.shapes}, "u")

    def merge(self, party: Party) -> dict[str, Any]:
        return party.ask("merge", log=str(self.log.root), warehouse=str(self.warehouse))


def many_tables(party: Party, count: int) -> list[Line]:
    """The time of a table, among few and among many."""
    with tempfile.TemporaryDirectory() as folder:
        tables = {number: Tables(Path(folder) / str(number), number) for number in (SMALL_TABLES, *TABLES)}
        seconds: dict[int, list[float]] = {number: [] for number in tables}
        for cycle in range(count + 2):  # the first load, then one that warms up
            tell(f"  merge: {', '.join(map(str, tables))} tables, {party.name}, cycle {cycle}")
            for there in tables.values():
                if cycle:
                    there.change(cycle, CHANGES)
            asked = {str(n): lambda there=there: there.merge(party) for n, there in tables.items()}
            for name, figures in in_turn(cycle, **asked).items() if cycle > 1 else _first(asked):
                seconds[int(name)].append(figures["seconds"] / int(name))
    few = seconds.pop(SMALL_TABLES)
    return [
        compared(
            "merge",
            f"{number} tables, {CHANGES:,} changes each, {party.name}",
            "s a table",
            found,
            few,
            f"{SMALL_TABLES} tables",
            at_most(1),
        )
        for number, found in seconds.items()
    ]


def _first(asked: Any) -> list[Any]:
    for name, ask in asked.items():
        tell(f"    {name}: {ask()['seconds']:.2f} s")
    return []


def many_cycles(party: Party) -> list[Line]:
    """What a session holds after many merges, compared with what it held when it was warm."""
    tell(f"  merge: {CYCLES} cycles, {party.name}")
    seconds: list[float] = []
    held: dict[int, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as folder:
        tables = Tables(Path(folder), 2)
        for cycle in range(1, CYCLES + 1):
            seconds.append(tables.merge(party)["seconds"])
            if cycle in (WARM, CYCLES):
                held[cycle] = party.ask("held")
                tell(f"    cycle {cycle}: {held[cycle]}")
            tables.change(cycle, 100)
    case = f"{CYCLES} merges of 2 tables, {party.name}"
    then, now = held[WARM], held[CYCLES]
    beside = f"cycle {WARM}"

    def line(name: str, unit: str, by: int = 1) -> Line:
        return compared("merge", case, unit, [now[name] / by], [then[name] / by], beside, at_most(1.1))

    lines = [line("rss_bytes", "RSS MB", 1 << 20), line("threads", "threads"), line("files", "open files")]
    if "heap_bytes" in now:
        lines.append(line("heap_bytes", "heap MB", 1 << 20))
        lines.append(alone("merge", case, "views", [now["views"]]))
    early, late = (statistics.median(part) for part in (seconds[WARM - 20 : WARM], seconds[-20:]))
    return [*lines, compared("merge", case, "s", [late], [early], beside)]
