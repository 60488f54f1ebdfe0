"""merge-latency: what a merge process costs the capture, from a commit's answer to the row on disk in the log.

An open-loop writer commits single-row transactions at a fixed rate. The same capture runs twice in each round: alone,
and with the merge process of `cdcflow run`, which merges into a Delta table every second. Both seal every second.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from bench import latency
from bench.drain import US
from bench.harness import Budget, Failed, Outcome, Party, rounds, tell
from bench.latency import Bench
from bench.results import Line, alone, at_most, compared
from bench.server import Server
from bench.shapes import NARROW

ROWS = 40_000
SECONDS = 20
RATES = (500, 2_000)
MERGING = "cdcflow that merges every second"
SEAL = {"age_max": "1s"}


def run(budget: Budget, transport: str) -> list[Line]:
    lines: list[Line] = []
    with tempfile.TemporaryDirectory() as folder, Server(transport) as server:
        server.execute(NARROW.create)
        for rate in RATES[1:] if budget.quick else RATES:
            rows = min(budget.rows, rate * SECONDS)
            case = f"{rate:,} single-row commits/s"
            tell(f"  merge-latency: {case}, {transport}")
            lines += _lines(case, _measure(Bench(server, Path(folder), rate, rows), budget))
    return lines


def _measure(bench: Bench, budget: Budget) -> dict[str, list[Outcome]]:
    def with_merges() -> Outcome:
        warehouse = bench.folder / "warehouse"
        shutil.rmtree(warehouse, ignore_errors=True)
        merge = {"engine": "local", "warehouse": str(warehouse), "every": "1s"}
        outcome = latency.captured(bench, seal=SEAL, merge=merge)
        if not outcome.found["merged_cut"]:
            raise Failed("nothing was merged")
        return outcome

    parties: dict[str, Party] = {US: lambda: latency.captured(bench, seal=SEAL), MERGING: with_merges}
    return rounds(parties, budget.rounds, postmaster=bench.server.postmaster)


def _lines(case: str, measured: dict[str, list[Outcome]]) -> list[Line]:
    lines = []
    for part in ("p50", "p99"):
        ours, theirs = ([float(str(o.found[part])) for o in measured[name]] for name in (MERGING, US))
        target = at_most(1.2) if part == "p99" else None
        lines.append(compared("merge-latency", case, f"ms {part}", ours, theirs, US, target))
    merges = [float(str(o.found["merged_cut"])) for o in measured[MERGING]]
    return [*lines, alone("merge-latency", case, "last cut merged", merges)]
