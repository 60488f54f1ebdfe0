"""What every benchmark here shares: a server, rounds, ratios, and a table at the end.

The machines that run this are noisy, so nothing is reported alone: each case measures a physical limit and cdcflow in
the same round, several rounds, and prints medians, the spread, and the ratio.
"""

from __future__ import annotations

import json
import statistics
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True)
class Result:
    """One line: `value` in `unit`, beside the `limit` of the same rounds. `spread` is (max - min) / median of value."""

    bench: str
    case: str
    value: float
    unit: str
    limit: float
    limit_name: str
    ratio: float
    spread: float


def result(bench: str, case: str, unit: str, values: list[float], limits: list[float], limit_name: str) -> Result:
    """Medians over rounds; the ratio is the median of each round's own ratio."""
    value, limit = statistics.median(values), statistics.median(limits)
    ratio = statistics.median(v / m for v, m in zip(values, limits, strict=True))
    spread = (max(values) - min(values)) / value
    return Result(bench, case, round(value), unit, round(limit), limit_name, round(ratio, 3), round(spread, 3))


def report(results: list[Result]) -> None:
    """Print the table, and keep the figures in results/latest.json."""
    table = Table(title="cdcflow beside the physical limit, same rounds")
    for heading in ("bench", "case", "cdcflow", "limit", "", "ratio", "spread"):
        table.add_column(heading, justify="left" if heading in ("bench", "case", "") else "right")
    for r in results:
        table.add_row(
            r.bench,
            r.case,
            f"{r.value:,} {r.unit}",
            f"{r.limit:,} {r.unit}",
            r.limit_name,
            f"{r.ratio:.2f}",
            f"{r.spread:.0%}",
        )
    Console(width=140).print(table)
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "latest.json").write_text(json.dumps([asdict(r) for r in results], indent=1) + "\n")
