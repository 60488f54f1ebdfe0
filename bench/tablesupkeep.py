"""tables, upkeep: a large table after many small merges, with one maintenance run.

The merges are those of `merge.engine: auto`: small ones run without Spark. Cuts are kept for a second, so that all that
may expire does.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np

from bench.harness import Budget, tell
from bench.mergelog import SealedLog
from bench.mergeparties import Party, ratio
from bench.results import Line, at_most, compared
from bench.tablesscan import ENGINES, FRESH, QUICK, based, beside_fresh, change, scans
from cdcflow.tables.job.maintenance import UpkeepPolicy

TIMES = 5
"""The table has this many times the budget's rows: 10 million."""

MERGES = 200
SHARE = 0.0001
"""Of the table's rows change between two merges, on random keys."""

BUDGET_S = UpkeepPolicy().budget_s
UNHURRIED_S = 3600.0
KEEP_S = 1.0


def after_upkeep(table_format: str, budget: Budget) -> list[Line]:
    found = []
    for engine, said in ENGINES.items():
        found += _by(engine, said, table_format, budget)
    return found


def _by(engine: str, said: str, table_format: str, budget: Budget) -> list[Line]:
    size = budget.rows * TIMES
    merges = MERGES // QUICK if budget.quick else MERGES
    case = f"maintenance, {size:,} rows after {merges} merges, {said}"
    tell(f"  tables: {case}")
    with tempfile.TemporaryDirectory() as folder:
        room = Path(folder)
        party = Party("this checkout", None, room / "scratch", table_format, engine, module="tables")
        try:
            log = based(SealedLog(room / "log"), size)
            warehouses = {name: str(room / name) for name in ("merged", "fresh")}
            given = {"log": str(log.root), "warehouse": warehouses["merged"]}
            party.ask("merge_auto", **given)
            chance = np.random.default_rng(5)
            for number in range(1, merges + 1):
                change(log, size, max(1, int(size * SHARE)), number, chance)
                told = party.ask("merge_auto", **given)
                if not number % 50:
                    tell(f"    {number} merges; the last one by {told['engine']}: {told['seconds']:.2f} s")
            party.ask("merge", log=given["log"], warehouse=warehouses["fresh"])
            before = scans(party, warehouses, budget.rounds)
            seconds = _upkeep_s(party, warehouses["merged"])
            after = scans(party, warehouses, budget.rounds)
        finally:
            party.close()
    return [
        compared("tables", case, "s", [seconds], [BUDGET_S], "its time budget", at_most(1)),
        *beside_fresh(f"{case}, scan", after),
        ratio(f"{case}, scan before it", "s", before["merged"], before["fresh"], FRESH),
    ]


def _upkeep_s(party: Party, warehouse: str) -> float:
    """How long all of it took. The part for which the budget left no time is done all the same, and counts."""
    told = party.ask("upkeep", warehouse=warehouse, budget_s=BUDGET_S, keep_s=KEEP_S)
    tell(f"    {told['seconds']:.1f} s: {told['done']}, postponed: {told['skipped']}")
    found = [told]
    if told["is_late"]:
        found.append(party.ask("upkeep", warehouse=warehouse, budget_s=UNHURRIED_S, keep_s=KEEP_S))
        tell(f"    late; the rest: {found[-1]['seconds']:.1f} s: {found[-1]['done']}")
    return float(sum(one["seconds"] for one in found))
