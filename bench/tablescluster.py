"""tables, cluster: a table whose rows were inserted in no order of their keys, maintained by Spark with
`merge.upkeep.cluster`, compared with the same without it.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from bench.harness import Budget, Failed, tell
from bench.mergelog import SealedLog, rows, table
from bench.mergeparties import Party, in_turn, ratio
from bench.results import Line

MERGES = 16
"""Each adds rows with keys from the whole range."""

UNHURRIED_S = 3600.0
LOOKS = {"one key": 1, "a thousand keys": 1000, "whole": 0}
"""How many consecutive keys are requested (0: no condition)."""


def clustered(table_format: str, budget: Budget) -> list[Line]:
    size = budget.rows
    case = f"cluster, {size:,} rows that came in no order"
    tell(f"  tables: {case}")
    upkept: dict[str, list[dict[str, Any]]] = {}
    read: dict[str, dict[str, list[dict[str, Any]]]] = {look: {} for look in LOOKS}
    with tempfile.TemporaryDirectory() as folder:
        room = Path(folder)
        party = Party("this checkout", None, room / "scratch", table_format, module="tables")
        warehouses = {name: str(room / name) for name in ("clustered", "compacted")}
        try:
            log, chance = SealedLog(room / "log"), np.random.default_rng(1)
            for number, ids in enumerate(np.array_split(chance.permutation(size), MERGES)):
                log.segment({table("large"): rows(np.sort(ids), number)}, "c")
                for warehouse in warehouses.values():
                    party.ask("merge", log=str(log.root), warehouse=warehouse)
            for name, warehouse in warehouses.items():
                told = party.ask("upkeep", warehouse=warehouse, budget_s=UNHURRIED_S, cluster=name == "clustered")
                tell(f"    {name}: {told['seconds']:.1f} s: {told['done']}")
                upkept[name] = [told]
            for number in range(budget.rounds + 1):
                for look, count in LOOKS.items():
                    first = int(chance.integers(0, size - max(LOOKS.values())))
                    where = f"id >= {first} AND id < {first + count}" if count else ""
                    found = _read(party, warehouses, number, where)
                    for name, figures in found.items() if number else ():
                        read[look].setdefault(name, []).append(figures)
        finally:
            party.close()
    lines = [ratio(f"{case}, {look}", "s", r["clustered"], r["compacted"], "not clustered") for look, r in read.items()]
    return [*lines, ratio(f"{case}, the upkeep", "s", upkept["clustered"], upkept["compacted"], "not clustered")]


def _read(party: Party, warehouses: dict[str, str], number: int, where: str) -> dict[str, dict[str, Any]]:
    """
    Raises:
        Failed: they do not have the same rows.
    """
    asked = {name: lambda to=to: party.ask("scan", warehouse=to, where=where) for name, to in warehouses.items()}
    found = in_turn(number, **asked)
    if len({(one["rows"], one["hash"]) for one in found.values()}) > 1:
        raise Failed(f"the tables differ: {found}")
    return found
