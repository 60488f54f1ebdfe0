"""merge: one worker of one core compared with two of them, on a standalone master."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from tests.servers.spark import SparkCluster

from bench.harness import tell
from bench.mergelog import SealedLog, rows, table
from bench.mergeparties import Party, in_turn
from bench.results import Line, at_least, compared

MEMORY = "3g"


def two_workers(table_format: str, size: int, count: int) -> list[Line]:
    """A first load and 1 % of random keys. Driver, both workers and their executors share this machine."""
    tell(f"  merge: {size:,} rows by one worker and by two")
    found: dict[str, tuple[list[float], list[float]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        room = Path(folder)
        shape, log = table("large"), SealedLog(room / "log")
        for first in range(0, size, 2_000_000):
            log.segment({shape: rows(np.arange(first, min(first + 2_000_000, size)), first)}, "r")
        chance = np.random.default_rng(19)
        with (
            SparkCluster(hidden=[], workers=1, memory=MEMORY) as one,
            SparkCluster(hidden=[], workers=2, memory=MEMORY) as two,
        ):
            settings = {
                "spark.executor.memory": MEMORY,
                "spark.executor.cores": "1",
                "spark.sql.shuffle.partitions": "4",
            }
            parties = {
                name: Party(name, None, room / name, table_format, settings={**settings, "spark.master": cluster.url})
                for name, cluster in (("one", one), ("two", two))
            }
            try:
                for number in range(count + 2):
                    case = "first load" if number < 2 else "1 % changed, random keys"
                    warehouses = room / ("warm" if not number else "lakes")
                    if number > 1:
                        ids = np.sort(chance.choice(size, size // 100, replace=False))
                        log.segment({shape: rows(ids, number)}, "u")
                    told: dict[str, dict[str, Any]] = in_turn(
                        number,
                        **{
                            name: lambda p=party, name=name, there=warehouses: p.ask(
                                "merge", log=str(log.root), warehouse=str(there / name)
                            )
                            for name, party in parties.items()
                        },
                    )
                    if number:
                        ours, theirs = found.setdefault(case, ([], []))
                        ours.append(told["two"]["changes"] / told["two"]["seconds"])
                        theirs.append(told["one"]["changes"] / told["one"]["seconds"])
            finally:
                for party in parties.values():
                    party.close()
    return [
        compared("merge", f"{size:,} rows, {case}, two workers", "rows/s", ours, theirs, "one worker", at_least(1.6))
        for case, (ours, theirs) in found.items()
    ]
