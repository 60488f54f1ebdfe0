"""Pictures of the results, as SVG for the docs: how fast, at which cost, how late.

Every picture shows absolute figures of the same rounds side by side; the ratios and targets are in the table.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.results import Line, figure

PLOTS = Path(__file__).parent.parent / "docs" / "plots"

_OURS = "#0b6e4f"
_SHADES = ("#8a8f98", "#5b8fb9", "#7a6ea5", "#b08d57", "#b9b9b9")
_KNOWN = {"Debezium": "#c26a5a", "Go pglogrepl": "#6fb1a0", "pg_recvlogical": "#8a8f98"}


def draw(lines: Sequence[Line], directory: Path = PLOTS) -> list[Path]:
    """Draw the lines that have figures; returns the written files."""
    directory.mkdir(parents=True, exist_ok=True)
    written = []
    for bench in ("drain", "catch-up", "backfill"):
        written += _bars(lines, bench, "rows/s", f"{bench}: rows a second", directory / f"{bench}.svg", log=False)
        cost = f"{bench}: CPU seconds of the client for a million rows"
        written += _bars(lines, bench, "client CPU s/M rows", cost, directory / f"{bench}-cpu.svg", log=True)
    for unit, title in (("s", "merge: seconds of a cycle"), ("rows/s", "merge: rows a second")):
        path = directory / f"merge-{unit.replace('/', '-')}.svg"
        written += _bars(lines, "merge", unit, title, path, log=True)
    for part in ("p50", "p99"):
        title = f"commit to durable, {part} in milliseconds"
        written += _bars(lines, "latency", f"ms {part}", title, directory / f"latency-{part}.svg", log=True)
    return written


def _bars(lines: Sequence[Line], bench: str, unit: str, title: str, path: Path, *, log: bool) -> list[Path]:
    found = [line for line in lines if (line.bench, line.unit) == (bench, unit) and line.peer]
    if not found:
        return []
    cases = list(dict.fromkeys(line.case for line in found))
    names = ["cdcflow", *dict.fromkeys(line.peer or "" for line in found)]
    figures: dict[tuple[str, str], float] = {}
    for line in found:
        figures[line.case, "cdcflow"] = line.value
        figures[line.case, line.peer or ""] = line.limit or 0
    better = "longer" if unit == "rows/s" else "shorter"
    _draw(
        cases, names, figures, f"{title}\n{better} is better; {'logarithmic' if log else 'linear'} scale", path, log=log
    )
    return [path]


def _draw(
    cases: Sequence[str],
    names: Sequence[str],
    figures: dict[tuple[str, str], float],
    title: str,
    path: Path,
    *,
    log: bool,
) -> None:
    import matplotlib as mpl  # only who draws needs it

    mpl.use("svg")
    mpl.rcParams.update(
        {"svg.hashsalt": "cdcflow", "svg.fonttype": "none", "font.size": 9, "font.family": "sans-serif"}
    )
    from matplotlib import pyplot

    shown = [[name for name in names if figures.get((case, name))] for case in cases]
    height = sum(len(s) for s in shown) * 0.22 + len(cases) * 0.25 + 1.1
    canvas, axes = pyplot.subplots(figsize=(8.5, height), layout="constrained")
    at, ticks = 0.0, []
    colors = {name: _OURS if name == "cdcflow" else _shade(name, names) for name in names}
    for case, there in zip(cases, shown, strict=True):
        begun = at
        for name in there:
            value = figures[case, name]
            axes.barh(at, value, height=0.82, color=colors[name])
            axes.annotate(f" {figure(value)}", (value, at), va="center", fontsize=8)
            at += 1
        ticks.append((begun + (len(there) - 1) / 2, case))
        at += 1
    _dress(axes, ticks, colors, names, title, log=log)
    if log:
        axes.set_xlim(left=min(value for value in figures.values() if value) / 3)
    canvas.savefig(path, bbox_inches="tight", metadata={"Date": None})
    pyplot.close(canvas)


def _dress(  # Any: matplotlib's axes
    axes: Any,
    ticks: Sequence[tuple[float, str]],
    colors: dict[str, str],
    names: Sequence[str],
    title: str,
    *,
    log: bool,
) -> None:
    axes.set_yticks([t for t, _ in ticks], [_folded(case) for _, case in ticks])
    axes.invert_yaxis()
    axes.set_title(title, loc="left", fontsize=10)
    if log:
        axes.set_xscale("log")
    axes.margins(x=0.12)
    axes.spines[["top", "right"]].set_visible(False)
    axes.xaxis.set_major_formatter(lambda value, _: figure(value))
    handles = [_swatch(colors[name]) for name in names]
    axes.figure.legend(handles, names, frameon=False, fontsize=8, loc="outside lower left", ncols=min(len(names), 4))


def _shade(name: str, names: Sequence[str]) -> str:
    """The same colour for the same peer in every picture."""
    return _KNOWN.get(name) or _SHADES[list(names).index(name) % len(_SHADES)]


def _swatch(color: str) -> Any:
    from matplotlib.patches import Patch

    return Patch(color=color)


def _folded(case: str) -> str:
    """A case over two or three short lines."""
    parts = case.split(", ")
    return "\n".join(", ".join(parts[n : n + 2]) for n in range(0, len(parts), 2))
