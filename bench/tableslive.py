"""tables, live: a table with one percent of its rows in the log's tail, compared with a plain scan of what is merged,
and with a query written by hand that overlays the newer rows.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from bench.harness import Budget, Failed, tell
from bench.mergelog import SealedLog, rows, table
from bench.mergeparties import Party, files_of, in_turn, ratio
from bench.results import Line, at_most

SHARE = 0.01
"""Of the table's rows these are in the tail, on random keys."""

STEP = 500_000
"""Rows of a segment."""

BY_HAND = "an anti join and a union"
"""The query of a user who knows that the changes are whole rows of different keys, and none of them a delete."""

LOOKS = {"whole": 2.0, "one key": 1.5, "a thousand keys": 1.5}
"""What is read, and the aim relative to a plain scan."""


def read_live(table_format: str, budget: Budget) -> list[Line]:
    size = budget.rows
    with tempfile.TemporaryDirectory() as folder:
        room = Path(folder)
        party = Party("this checkout", None, room / "scratch", table_format, module="tables")
        try:
            return _beside(party, SealedLog(room / "log"), str(room / "warehouse"), size, budget.rounds)
        finally:
            party.close()


def _beside(party: Party, log: SealedLog, warehouse: str, size: int, rounds: int) -> list[Line]:
    shape = table("large")
    given = {"log": str(log.root), "warehouse": warehouse}
    for first in range(0, size, STEP):
        log.segment({shape: rows(np.arange(first, min(first + STEP, size)), first)}, "r")
        party.ask("merge", **given)
    changed = int(size * SHARE)
    log.segment({shape: rows(np.sort(np.random.default_rng(3).choice(size, changed, replace=False)), 1)}, "u")
    wheres = {
        "whole": "",
        "one key": f"id = {size // 2}",
        "a thousand keys": f"id >= {size // 2} AND id < {size // 2 + 1000}",
    }
    newest = files_of(log)[-1]
    parties = ("live", "scan", "by_hand")
    found: dict[str, dict[str, list[dict[str, Any]]]] = {look: {name: [] for name in parties} for look in LOOKS}
    for number in range(rounds + 1):
        for look, where in wheres.items():
            tell(f"  tables: {size:,} rows, {SHARE:.0%} of them in the tail, {look}")
            asked = in_turn(
                number,
                live=lambda where=where: party.ask("live", **given, where=where),
                scan=lambda where=where: party.ask("scan", warehouse=warehouse, where=where),
                by_hand=lambda where=where: party.ask("by_hand", warehouse=warehouse, changes=newest, where=where),
            )
            if asked["live"]["rows"] != asked["scan"]["rows"]:
                raise Failed(f"the live view has {asked['live']['rows']} rows, the table {asked['scan']['rows']}")
            if asked["live"]["hash"] != asked["by_hand"]["hash"]:
                raise Failed(f"the live view has other rows than the same by hand: {asked}")
            for name, figures in asked.items() if number else ():
                found[look][name].append(figures)
    lines = []
    for look, told in found.items():
        case = f"read_live, {size:,} rows, {SHARE:.0%} of them in the tail, {look}"
        lines += [
            ratio(case, "s", told["live"], told["scan"], "a plain scan", at_most(LOOKS[look])),
            ratio(case, "s", told["live"], told["by_hand"], BY_HAND),
        ]
    return lines
