"""merge: the costs of a hundred thousand changes in a table of ten times the rows."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from bench.harness import tell
from bench.mergelog import SealedLog, rows, table
from bench.mergeparties import Asked, Party, in_turn
from bench.results import Line, at_most, compared

CHANGES, TIMES = 100_000, 10
AIMS = {"recent": 1.3, "random": 3}


def growth(table_format: str, size: int, count: int) -> list[Line]:
    """By Spark, and as `merge.engine: auto` has it."""
    tell(f"  merge: {CHANGES:,} changes onto {size:,} and {size * TIMES:,} rows")
    seconds: dict[tuple[str, str, int], list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        room = Path(folder)
        shape = table("large")
        logs = {number: SealedLog(room / str(number) / "log") for number in (size, size * TIMES)}
        for number, log in logs.items():
            for first in range(0, number, 2_000_000):
                log.segment({shape: rows(np.arange(first, min(first + 2_000_000, number)), first)}, "r")
        party = Party("this checkout", None, room / "scratch", table_format)
        try:

            def ask(way: str, number: int) -> Asked:
                there = {"log": str(logs[number].root), "warehouse": str(room / str(number) / way)}
                return lambda: party.ask("merge" if way == "Spark" else "merge_auto", **there)

            asked = {f"{way} {number}": ask(way, number) for way in ("Spark", "auto") for number in logs}
            for first_load in asked.values():
                tell(f"    {first_load()['seconds']:.1f} s")
            chance = np.random.default_rng(23)
            for keys in AIMS:
                for cycle in range(count + 1):
                    for number, log in logs.items():
                        low = number - 2 * CHANGES if keys == "recent" else 0
                        ids = np.sort(chance.choice(np.arange(low, number), CHANGES, replace=False))
                        log.segment({shape: rows(ids, cycle)}, "u")
                    told: dict[str, dict[str, Any]] = in_turn(cycle, **asked)
                    for name, figures in told.items() if cycle else ():
                        way, rows_there = name.split()
                        seconds.setdefault((keys, way, int(rows_there)), []).append(figures["seconds"])
        finally:
            party.close()
    return [
        compared(
            "merge",
            f"{CHANGES:,} changes, {keys} keys, onto {size * TIMES:,} rows, {way}",
            "s",
            seconds[keys, way, size * TIMES],
            seconds[keys, way, size],
            f"onto {size:,}",
            at_most(aim),
        )
        for keys, aim in AIMS.items()
        for way in ("Spark", "auto")
    ]
