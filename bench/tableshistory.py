"""tables, history: many changes onto fewer keys, kept as versions, beside the same changes onto current rows.

Four million changes onto a million rows that are there, a half of which leave the longest column unchanged; each is a
transaction of its own.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from bench.harness import Budget, tell
from bench.mergelog import SealedLog, rows, table
from bench.mergeparties import Party, in_turn, ratio
from bench.results import Line, at_most

CHANGES_EACH = 4
"""Changes for each row that is there."""

AIM = 2.0
SEGMENTS = 4


def history(table_format: str, budget: Budget) -> list[Line]:
    """`budget.rows`: changes."""
    found = []
    for engine in ("local", "spark"):
        found += _by(engine, table_format, budget)
    return found


def _by(engine: str, table_format: str, budget: Budget) -> list[Line]:
    keys = budget.rows // CHANGES_EACH
    case = f"history, {budget.rows:,} changes onto {keys:,} keys, {engine}"
    tell(f"  tables: {case}")
    modes = ("history", "current")
    found: dict[str, list[dict[str, Any]]] = {mode: [] for mode in modes}
    with tempfile.TemporaryDirectory() as folder:
        room = Path(folder)
        party = Party("this checkout", None, room / "scratch", table_format, engine, module="modes")
        try:
            for number in range(budget.rounds + 1):
                log = SealedLog(room / f"log {number}", has_transactions=True)
                shape = table("large")
                given = {mode: {"log": str(log.root), "warehouse": str(room / mode / str(number))} for mode in modes}
                log.segment({shape: rows(np.arange(keys), number)}, "r")
                for mode in modes:
                    party.ask("merge", mode=mode, **given[mode])
                _change(log, keys, budget.rows, number)
                asked = {
                    mode: lambda mode=mode, given=given[mode]: party.ask("merge", mode=mode, **given) for mode in modes
                }
                for mode, figures in in_turn(number, **asked).items():
                    if number:
                        found[mode].append(figures)
        finally:
            party.close()
    return [ratio(case, "s", found["history"], found["current"], "current", at_most(AIM))]


def _change(log: SealedLog, keys: int, count: int, seed: int) -> None:
    chance, shape = np.random.default_rng(seed), table("large")
    for number in range(SEGMENTS):
        ids = chance.integers(0, keys, count // SEGMENTS)
        log.segment({shape: rows(ids, number)}, "u", unchanged=("doc",) if number % 2 else ())
