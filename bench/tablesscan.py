"""tables, scan: a table after many merges and their maintenance, compared with the same rows written by one merge."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from bench.harness import Budget, Failed, tell
from bench.mergelog import SealedLog, rows, table
from bench.mergeparties import Party, in_turn, ratio
from bench.results import Line, at_most

MERGES, UPKEEP_EACH = 50, 10
"""Merges, and after how many of them the tables are maintained; always after the last one."""

QUICK = 5
"""A quick run divides the number of merges by this."""

SHARE = 0.001
"""Of the table's rows change between two merges, on random keys."""

AIM = 1.25
STEP = 500_000
"""Rows of a segment that a backfill read."""

ENGINES = {"spark": "Spark", "local": "without Spark"}
FRESH = "the same rows written by one merge"


def after_merges(table_format: str, budget: Budget) -> list[Line]:
    found = []
    for engine, said in ENGINES.items():
        found += _by(engine, said, table_format, budget)
    return found


def _by(engine: str, said: str, table_format: str, budget: Budget) -> list[Line]:
    merges = MERGES // QUICK if budget.quick else MERGES
    case = f"scan, {budget.rows:,} rows after {merges} merges with maintenance, {said}"
    tell(f"  tables: {case}")
    with tempfile.TemporaryDirectory() as folder:
        room = Path(folder)
        party = Party("this checkout", None, room / "scratch", table_format, engine, module="tables")
        try:
            log = based(SealedLog(room / "log"), budget.rows)
            given = {"log": str(log.root), "warehouse": str(room / "merged")}
            party.ask("merge", **given)
            chance = np.random.default_rng(5)
            for number in range(1, merges + 1):
                change(log, budget.rows, max(1, int(budget.rows * SHARE)), number, chance)
                party.ask("merge", **given)
                if not number % UPKEEP_EACH:
                    tell(
                        f"    {number} merges; maintenance: {party.ask('upkeep', warehouse=given['warehouse'])['done']}"
                    )
            party.ask("merge", log=str(log.root), warehouse=str(room / "fresh"))
            found = scans(party, {name: str(room / name) for name in ("merged", "fresh")}, budget.rounds)
        finally:
            party.close()
    return beside_fresh(case, found)


def beside_fresh(case: str, found: dict[str, list[dict[str, Any]]]) -> list[Line]:
    """A table's scans relative to those of a fresh one: their time, and their CPU seconds, which a busy machine
    distorts less."""
    seconds = ratio(case, "s", found["merged"], found["fresh"], FRESH, at_most(AIM))
    return [seconds, ratio(case, "CPU s", found["merged"], found["fresh"], FRESH)]


def based(log: SealedLog, size: int) -> SealedLog:
    """The log with the rows of a table that a backfill read."""
    for first in range(0, size, STEP):
        log.segment({table("large"): rows(np.arange(first, min(first + STEP, size)), first)}, "r")
    return log


def change(log: SealedLog, size: int, count: int, seed: int, chance: np.random.Generator) -> None:
    """A segment more, of whole rows on random keys."""
    log.segment({table("large"): rows(np.sort(chance.choice(size, count, replace=False)), seed)}, "u")


def scans(party: Party, warehouses: dict[str, str], count: int) -> dict[str, list[dict[str, Any]]]:
    """Full scans of the same table in several warehouses, after one that warms up.

    Raises:
        Failed: they do not have the same rows.
    """
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in warehouses}
    for number in range(count + 1):
        asked = {name: lambda there=there: party.ask("scan", warehouse=there) for name, there in warehouses.items()}
        told = in_turn(number, **asked)
        if len({(one["rows"], one["hash"]) for one in told.values()}) > 1:
            raise Failed(f"the tables differ: {told}")
        for name, figures in told.items() if number else ():
            found[name].append(figures)
    return found
