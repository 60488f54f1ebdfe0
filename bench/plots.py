"""Pictures of the results, as SVG for the docs: how fast, at which cost, how late.

Every picture shows absolute figures of the same rounds side by side; the ratios and targets are in the table.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.areas import AREAS, figures
from bench.results import RESULTS, Line, figure

PLOTS = Path(__file__).parent.parent / "docs" / "plots"
"""Those of docs/performance.md, one for each area."""
ALL = RESULTS / "plots"
"""Those of bench/results, with every case."""

_OURS = "#0b6e4f"
_SHADES = ("#8a8f98", "#5b8fb9", "#7a6ea5", "#b08d57", "#b9b9b9")
_KNOWN = {"Debezium": "#c26a5a", "Go pglogrepl": "#6fb1a0", "go-mysql": "#6fb1a0", "pg_recvlogical": "#8a8f98"}


@dataclass(frozen=True, slots=True)
class Plot:
    """A picture of all lines of a bench that have one unit."""

    name: str
    bench: str
    unit: str
    title: str
    is_logarithmic: bool = False

    @property
    def note(self) -> str:
        """How to read it."""
        better = "higher" if self.unit == "rows/s" else "lower"
        return f"{better} is better; {'logarithmic' if self.is_logarithmic else 'linear'} scale"

    @property
    def alt(self) -> str:
        return f"{self.title}; {self.note}"


_COSTS = "CPU seconds of the client per million rows"
_PLOTS = (
    *(Plot(bench, bench, "rows/s", f"{bench}: rows per second") for bench in ("drain", "catch-up", "backfill")),
    *(
        Plot(f"{bench}-cpu", bench, "client CPU s/M rows", f"{bench}: {_COSTS}", is_logarithmic=True)
        for bench in ("drain", "catch-up", "backfill")
    ),
    Plot("merge-s", "merge", "s", "merge: seconds per cycle", is_logarithmic=True),
    Plot("merge-rows-s", "merge", "rows/s", "merge: rows per second", is_logarithmic=True),
    *(
        Plot(f"latency-{part}", "latency", f"ms {part}", f"commit to durable, {part} in milliseconds", True)
        for part in ("p50", "p99")
    ),
)


def of(lines: Sequence[Line]) -> list[Plot]:
    """The plots for which there are lines with a peer."""
    return [plot for plot in _PLOTS if _of(plot, lines)]


def over_time(bench: str) -> dict[Path, str]:
    """The plots that a bench draws itself while it runs, with a text for each: figures over the minutes of a run."""
    if bench != "fresh":
        return {}
    return {
        path: f"{path.stem.replace('-', ', ')}: seconds from commit to seen over time; lower is better; linear scale"
        for path in sorted(ALL.glob("fresh-*.svg"))
    }


def draw(lines: Sequence[Line], directory: Path = ALL) -> list[Path]:
    """Draw every case of the lines that have figures; returns the written files."""
    directory.mkdir(parents=True, exist_ok=True)
    written = []
    for plot in of(lines):
        found = _of(plot, lines)
        bars: dict[tuple[str, str], float] = {}
        for line in found:
            bars[line.case, "cdcflow"] = line.value
            bars[line.case, line.peer or ""] = line.limit or 0
        path = directory / f"{plot.name}.svg"
        names = ["cdcflow", *dict.fromkeys(line.peer or "" for line in found)]
        cases = list(dict.fromkeys(line.case for line in found))
        _draw(cases, names, bars, f"{plot.title}\n{plot.note}", path, log=plot.is_logarithmic)
        written.append(path)
    return written


def draw_areas(lines: Sequence[Line], directory: Path = PLOTS) -> list[Path]:
    """Draw the areas of docs/performance.md; returns the written files."""
    directory.mkdir(parents=True, exist_ok=True)
    written = []
    for area in AREAS:
        bars = figures(area, lines)
        if not bars:
            continue
        names = [c.title for c in area.columns if any(title == c.title for _, title in bars)]
        cases = [case.label for case in area.cases if any(label == case.label for label, _ in bars)]
        path = directory / f"{area.name}.svg"
        _draw(cases, names, bars, f"{area.title}\n{area.note}", path, log=area.is_logarithmic)
        written.append(path)
    return written


def _of(plot: Plot, lines: Sequence[Line]) -> list[Line]:
    return [line for line in lines if (line.bench, line.unit) == (plot.bench, plot.unit) and line.peer]


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
    colors = {name: _color(name, names) for name in names}
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


def _color(name: str, names: Sequence[str]) -> str:
    """cdcflow's colour for its figures, and the same colour for the same peer in every picture."""
    if name == names[0]:
        return _OURS
    return _KNOWN.get(name) or _SHADES[list(names).index(name) % len(_SHADES)]


def _swatch(color: str) -> Any:
    from matplotlib.patches import Patch

    return Patch(color=color)


def _folded(case: str) -> str:
    """A case over two or three short lines."""
    parts = case.split(", ")
    return "\n".join(", ".join(parts[n : n + 2]) for n in range(0, len(parts), 2))
