"""The lines of a run: each compares one figure of cdcflow with the limit's or a peer's in the same rounds.

A line is `{bench, case, value, unit, limit, peer, ratio, target, met, spread}`: cdcflow's `value`, the `limit` that
`peer` set in the same rounds, their `ratio` (the median of each round's own), what it should be (`target`), whether it
is (`met`), and the `spread` of value, (max - min) / median. A figure without a comparison has no peer, limit or target.
`rounds`, `at` (UTC) and `machine` record how it was measured.
"""

from __future__ import annotations

import datetime
import json
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from rich.console import Console
from rich.table import Table

RESULTS = Path(__file__).parent / "results"
LATEST = RESULTS / "latest.json"
BENCHES = (
    *(
        "drain",
        "catch-up",
        "backfill",
        "load",
        "governed",
        "latency",
        "transaction",
        "growth",
        "restart",
        "writer",
        "kafka",
        "publish",
        "to-kafka",
        "kafka-latency",
    ),
    *("mysql.drain", "mysql.backfill", "mysql.memory", "merge", "fresh", "fresh-rate", "tables", "verify", "log"),
)
"""The order in which results are shown."""


@dataclass(frozen=True, slots=True)
class Target:
    """The target of a ratio: at least (`>=`) or at most (`<=`) a bound."""

    kind: str
    bound: float

    def met_by(self, ratio: float) -> bool:
        return ratio >= self.bound if self.kind == ">=" else ratio <= self.bound

    def __str__(self) -> str:
        parts = round(1 / self.bound)
        is_part = parts > 2 and abs(parts * self.bound - 1) < 1e-9
        return f"{'≥' if self.kind == '>=' else '≤'} {f'1/{parts}' if is_part else f'{self.bound:g}'}"


def at_least(bound: float) -> Target:
    return Target(">=", bound)


def at_most(bound: float) -> Target:
    return Target("<=", bound)


@dataclass(frozen=True, slots=True)
class Line:
    """One comparison; see the module."""

    bench: str
    case: str
    value: float
    unit: str
    limit: float | None = None
    peer: str | None = None
    ratio: float | None = None
    target: str | None = None
    met: bool | None = None
    spread: float = 0.0
    rounds: int = 1
    at: str = field(default_factory=lambda: datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"))
    machine: str = ""


def compared(
    bench: str,
    case: str,
    unit: str,
    ours: Sequence[float],
    theirs: Sequence[float],
    peer: str,
    target: Target | None = None,
) -> Line:
    """cdcflow's figure next to another party's, both measured in the same rounds."""
    value, limit = statistics.median(ours), statistics.median(theirs)
    paired = len(ours) == len(theirs) and all(theirs)
    if paired:
        ratio = statistics.median(a / b for a, b in zip(ours, theirs, strict=True))
    else:
        ratio = value / limit if limit else 0.0
    return Line(
        bench=bench,
        case=case,
        value=_rounded(value),
        unit=unit,
        limit=_rounded(limit),
        peer=peer,
        ratio=_rounded(ratio),
        target=None if target is None else str(target),
        met=None if target is None else target.met_by(ratio),
        spread=_spread(ours),
        rounds=len(ours),
    )


def alone(bench: str, case: str, unit: str, values: Sequence[float]) -> Line:
    """A figure that is compared with nothing."""
    value = _rounded(statistics.median(values))
    return Line(bench, case, value, unit, spread=_spread(values), rounds=len(values))


def _spread(values: Sequence[float]) -> float:
    middle = statistics.median(values)
    return _rounded((max(values) - min(values)) / abs(middle)) if middle else 0.0


def _rounded(value: float) -> float:
    """Four significant digits: more would claim what no machine can repeat."""
    return float(f"{value:.4g}")


# ── keeping and showing ─────────────────────────────────────────────────────────────────────────────────────


RECORDED = RESULTS / "recorded.json"
"""Figures of single runs, of benches that take hours as a whole."""


def keep(lines: Sequence[Line], path: Path = LATEST, *, by_case: bool = False) -> None:
    """Write these lines into the file; they replace earlier ones of the same benches (`by_case`: of the same cases)."""
    of = (lambda line: (line.bench, line.case)) if by_case else (lambda line: line.bench)
    renewed = {of(line) for line in lines}
    kept = [line for line in load(path) if of(line) not in renewed]
    path.parent.mkdir(exist_ok=True)
    order = {bench: place for place, bench in enumerate(BENCHES)}
    together = sorted((*kept, *lines), key=lambda line: order.get(line.bench, len(order)))
    text = json.dumps([asdict(line) for line in together], indent=1, ensure_ascii=False)
    temporary = path.with_suffix(".tmp")
    temporary.write_text(text + "\n")
    temporary.replace(path)


def load(path: Path = LATEST) -> list[Line]:
    """The lines of a file; none where there is no file, or one of an earlier form."""
    try:
        return [Line(**line) for line in json.loads(path.read_text())] if path.exists() else []
    except TypeError:
        return []


def show(lines: Sequence[Line]) -> None:
    """Print the table."""
    table = Table(title="cdcflow compared with the limit and the peers of the same rounds")
    for heading in ("bench", "case", "cdcflow", "compared with", "its figure", "ratio", "target", "met", "spread"):
        is_number = heading in ("cdcflow", "its figure", "ratio", "spread")
        table.add_column(heading, justify="right" if is_number else "left")
    before = ""
    for line in lines:
        if before and line.bench != before:
            table.add_section()
        before = line.bench
        table.add_row(line.bench, *cells(line, met="yes", missed="no"))
    Console(width=170).print(table)


def cells(line: Line, *, met: str, missed: str) -> list[str]:
    """A line's texts from its case to its spread, for a table."""
    return [
        line.case,
        f"{figure(line.value)} {line.unit}",
        line.peer or "",
        "" if line.limit is None else figure(line.limit),
        "" if line.ratio is None else f"{line.ratio:.3g}",
        line.target or "",
        {None: "", True: met, False: missed}[line.met],
        f"{line.spread:.0%}",
    ]


def figure(value: float) -> str:
    """A number as one reads it: 183,400 or 0.42."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
