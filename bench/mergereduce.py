"""merge: many changes of a key become one. How the SQL is written costs more than what it does.

Four million changes on a million keys; half of the changes leave the longest column unchanged.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from bench.harness import Failed, tell
from bench.mergelog import SealedLog, rows, table
from bench.mergeparties import Party, in_turn, ratio
from bench.results import Line, at_least, at_most

CHANGES, KEYS = 4_000_000, 1_000_000


def reduced(party: Party, count: int) -> list[Line]:
    """cdcflow's reduction, a window's `last(…, ignoring nulls)` for each column, and whole rows by `max_by`."""
    case = f"reduce, {CHANGES:,} changes on {KEYS:,} keys"
    tell(f"  merge: {case}")
    found: dict[str, list[dict[str, Any]]] = {"ours": [], "window": [], "whole rows": []}
    with tempfile.TemporaryDirectory() as folder:
        log = SealedLog(Path(folder) / "log")
        shape = table("large")
        chance = np.random.default_rng(13)
        for number in range(4):
            ids = chance.integers(0, KEYS, CHANGES // 4)
            log.segment({shape: rows(ids, number)}, "u", unchanged=("doc",) if number % 2 else ())
        sums: dict[str, str] = {}
        for number in range(count + 1):
            asked = {way: lambda way=way: party.ask("reduce", log=str(log.root), way=way) for way in found}
            for way, figures in in_turn(number, **asked).items():
                sums[way] = figures["sum"]
                if number:
                    found[way].append(figures)
    if sums["ours"] != sums["window"]:
        raise Failed(f"the reductions differ: {sums}")
    return [
        ratio(case, "rows/s", found["ours"], found["window"], "a window", at_least(2.5), rows=CHANGES),
        ratio(case, "s", found["ours"], found["whole rows"], "whole rows by max_by", at_most(1.25)),
    ]
