"""fresh: from a commit at the source until a plain reader of the tables sees it, with merges by the daemon.

    PostgreSQL ◀── a writer: changes of five tables, open loop
        └──▶ cdcflow run, with merge.every ──▶ Delta or Iceberg tables, folder or store ◀── delta-rs, PyIceberg

Every transaction changes every table and inserts a row that shows its number, so the time at which a reader first sees
that number is known for each transaction and table. The reader polls, and its query counts. Tables are maintained as by
default.

`python -m bench.fresh` has options for one run of any length, of cdcflow or of the peer of `freshrate`; `make
bench-fresh` runs the cases of `run`. `CDCFLOW_BENCH_FORMATS=delta` skips Iceberg.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from bench import freshparties, freshrun, results
from bench.freshrun import TABLES, Run
from bench.harness import Budget, tell
from bench.mergeparties import FORMATS
from bench.results import Line, alone, at_most, compared
from bench.server import machine

ROWS = 5_000_000
"""Of each table."""
RATE = 10_000
SECONDS, QUICK_SECONDS = 1800, 180
QUICK_ROWS = 200_000
LIMITS = {"folder": 1.0, "store": 2.0}
"""What p99 should be at most, in seconds."""
PLOTS = results.RESULTS / "plots"


@dataclass(frozen=True, slots=True)
class Case:
    """What is measured. `merge` and `log`: settings in addition to those that it needs."""

    table_format: str = "delta"
    place: str = "folder"
    rows: int = ROWS
    rate: float = RATE
    seconds: float = SECONDS
    merge: Mapping[str, object] = field(default_factory=lambda: {"every": "200ms"})
    log: Mapping[str, object] = field(default_factory=dict)

    @property
    def name(self) -> str:
        size = f"{self.rows / 1e6:g} M" if self.rows >= 1_000_000 else f"{self.rows:,}"
        where = "a folder" if self.place == "folder" else "a store"
        lasts = f"{self.seconds / 60:g} min"
        return f"{self.table_format} in {where}, {TABLES} tables of {size} rows, {self.rate:,.0f} changes/s, {lasts}"


def run(budget: Budget, transport: str) -> list[Line]:
    seconds = QUICK_SECONDS if budget.quick else SECONDS
    rows = min(budget.rows, QUICK_ROWS) if budget.quick else budget.rows
    lines = []
    for table_format in FORMATS:
        for place in ("folder", "store"):
            case = Case(table_format, place, rows, seconds=seconds)
            found = measured(case, transport)
            lines += lines_of(case, found)
            draw(case, found)
    return lines


def measured(case: Case, transport: str = "tcp") -> Run:
    tell(f"  fresh: {case.name}")
    with freshparties.cdcflow(case.table_format, case.place, case.rows, case.merge, case.log, transport) as party:
        return freshrun.run(party, case.rate, case.seconds)


def lines_of(case: Case, found: Run) -> list[Line]:
    """The figures of a run. Those of the fifth minute exist only if the run was long enough to compare them."""
    name, end = case.name, case.seconds
    limit = LIMITS[case.place]
    lines = [
        compared("fresh", name, "s p99", [found.p(99)], [limit], "the aim", at_most(1)),
        alone("fresh", name, "s p50", [found.p(50)]),
        alone("fresh", name, "s, the greatest", [float(found.took.max())]),
        alone("fresh", name, "changes/s captured", [found.changes_per_second]),
    ]
    for unit, key in (("CPU s/s", "cpu_rate"), ("memory MB", "memory_mb"), ("s/merge", "cycle_s")):
        last = found.between(key, end - 60, end)
        if end >= 360:
            fifth = found.between(key, 240, 300)
            aim = at_most(1.2) if key != "cpu_rate" else None
            lines.append(compared("fresh", name, unit, [last], [fifth], "the fifth minute", aim))
        else:
            lines.append(alone("fresh", name, unit, [last]))
    return lines


# ── the plot ────────────────────────────────────────────────────────────────────────────────────────────────


def draw(case: Case, found: Run, directory: Path = PLOTS) -> Path:
    """Freshness over time: of each second the median and the greatest."""
    import matplotlib as mpl  # only who draws needs it

    mpl.use("svg")
    mpl.rcParams.update({"svg.hashsalt": "cdcflow", "svg.fonttype": "none", "font.size": 9})
    from matplotlib import pyplot

    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"fresh-{case.table_format}-{case.place}.svg"
    seconds = np.arange(int(found.at.max()) + 1)
    which = found.at.astype(int)
    groups = [found.took[which == second] for second in seconds]
    canvas, axes = pyplot.subplots(figsize=(8.5, 3), layout="constrained")
    axes.plot(seconds / 60, [np.median(g) if len(g) else np.nan for g in groups], color="#0b6e4f", label="median")
    axes.plot(seconds / 60, [g.max() if len(g) else np.nan for g in groups], color="#5b8fb9", lw=0.7, label="greatest")
    axes.axhline(LIMITS[case.place], color="#8a8f98", lw=0.8, ls="--", label="the aim of p99")
    axes.set_title(f"{case.name}\nseconds from commit to seen; lower is better; linear scale", loc="left", fontsize=9)
    axes.set_xlabel("minutes")
    axes.set_ylim(bottom=0)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8, ncols=3)
    canvas.savefig(path, bbox_inches="tight", metadata={"Date": None})
    pyplot.close(canvas)
    return path


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="bench.fresh", description="One run of the bench `fresh`.")
    parser.add_argument("--format", choices=["delta", "iceberg"], default="delta")
    parser.add_argument("--place", choices=["folder", "store"], default="folder")
    parser.add_argument("--rows", type=int, default=QUICK_ROWS, help=f"of each table ({QUICK_ROWS:,})")
    parser.add_argument("--rate", type=float, default=RATE, help=f"changes a second ({RATE:,})")
    parser.add_argument("--seconds", type=float, default=QUICK_SECONDS, help=f"({QUICK_SECONDS})")
    parser.add_argument("--merge", type=json.loads, default={"every": "200ms"}, help="settings of merge, as JSON")
    parser.add_argument("--log", type=json.loads, default={}, help="settings of log, as JSON")
    parser.add_argument("--peer", type=float, metavar="SECONDS", help="the peer instead of cdcflow, with this trigger")
    parser.add_argument("--plot", type=Path, help="a folder for the plot")
    parser.add_argument("--record", action="store_true", help="keep the figures and the plot, for `make bench-docs`")
    options = parser.parse_args(arguments)
    case = Case(options.format, options.place, options.rows, options.rate, options.seconds, options.merge, options.log)
    if options.peer is not None:
        tell(f"  fresh: {freshparties.STREAM}: {case.name}")
        with freshparties.stream(case.table_format, case.rows) as peer:
            if peer is None:
                return 1
            peer.begin(options.peer)
            freshrun.run(peer.party, case.rate, case.seconds)
        return 0
    found = measured(case)
    lines = [replace(line, machine=machine("tcp")) for line in lines_of(case, found)]
    if options.record:
        results.keep(lines, results.RECORDED, by_case=True)
    if (folder := options.plot or (PLOTS if options.record else None)) is not None:
        tell(str(draw(case, found, folder)))
    results.show(lines)
    print(machine("tcp"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
