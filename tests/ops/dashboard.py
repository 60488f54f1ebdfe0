"""Grafana's dashboard without Grafana: a Prometheus answers its queries, and its panels are drawn as a page.

    docker/grafana/cdcflow.json ──▶ panels: place, kind, unit, thresholds, overrides
                                       │ queries, with the dashboard's variables filled in
                                       ▼
    Prometheus ──▶ series with their legends ──▶ HTML and SVG ──▶ (Chromium) a picture

Only what the dashboard uses is drawn; a kind of panel, a unit or an option that it begins to use raises an error here.
"""

from __future__ import annotations

import html
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.ops.prometheus import Prometheus

FILE = Path(__file__).parents[2] / "docker" / "grafana" / "cdcflow.json"
CELL_WIDTH, CELL_HEIGHT, GAP = 58, 36, 8
"""Pixels of a cell of the grid, and between panels."""
COLORS = ("#56a64b", "#d4a10a", "#3274d9", "#ff780a", "#e02f44", "#a352cc", "#37872d", "#8f3bb8")
NAMED = {"green": "#56a64b", "orange": "#ff780a", "red": "#e02f44", "blue": "#3274d9"}
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 64, 8, 20
"""The space around a plot, for the texts of its axes."""
Model = Mapping[str, Any]  # Any: JSON


@dataclass(frozen=True, slots=True)
class Series:
    """One line of a panel. `points`: seconds since 1970, and values."""

    ref: str
    legend: str
    points: tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True)
class Panel:
    """A panel with the series that Prometheus has for it."""

    model: Model
    series: tuple[Series, ...]

    @property
    def title(self) -> str:
        return str(self.model["title"])

    def of(self, ref: str) -> list[Series]:
        """The series of one of its queries."""
        return [one for one in self.series if one.ref == ref]

    def option(self, series: Series, name: str) -> Any:  # Any: JSON
        """A field option for a series: the last override that matches it, or the panel's own."""
        value: Any = self.model["fieldConfig"]["defaults"].get(name)
        for override in self.model["fieldConfig"]["overrides"]:
            if _matches(override["matcher"], series):
                value = next((p["value"] for p in override["properties"] if p["id"] == name), value)
        return value


def _matches(matcher: Model, series: Series) -> bool:
    match matcher["id"]:
        case "byFrameRefID":
            return bool(matcher["options"] == series.ref)
        case "byRegexp":
            return re.search(matcher["options"].strip("/"), series.legend) is not None
        case other:
            raise ValueError(f"the picture has no way to draw overrides of series {other}")


class Dashboard:
    """The file's panels, filled in for a time range. `instances`: those that the variable selects, empty: all."""

    def __init__(self, prometheus: Prometheus, begin: float, end: float, instances: Sequence[str] = ()) -> None:
        self.model: Model = json.loads(FILE.read_text())
        self.begin, self.end = begin, end
        self._prometheus = prometheus
        (variable,) = [one for one in self.model["templating"]["list"] if one["name"] == "instance"]
        self.instances = prometheus.label_values(variable["query"]["query"])
        """All that the variable offers."""
        chosen = "|".join(re.escape(one) for one in instances) if instances else variable["allValue"]
        self._variables = {"instance": chosen, "__rate_interval": f"{4 * prometheus.scrape_s}s"}
        self.panels = [Panel(one, tuple(self.series_of(one))) for one in self.model["panels"]]
        self.annotations = [
            (at, one)
            for one in self.model["annotations"]["list"]
            for series in self._range(one["expr"])
            for at in _beginnings(series[1])
        ]

    def series_of(self, panel: Model) -> Iterable[Series]:
        """What Prometheus has for the queries of a panel."""
        for target in panel["targets"]:
            if target.get("instant"):
                found = self._prometheus.query(self.filled(target["expr"]), self.end)
            else:
                found = self._range(target["expr"])
            for labels, points in found:
                yield Series(target["refId"], _legend(target["legendFormat"], labels), points)

    def _range(self, expression: str) -> list[tuple[Mapping[str, str], tuple[tuple[float, float], ...]]]:
        return self._prometheus.query_range(self.filled(expression), self.begin, self.end)

    def filled(self, expression: str) -> str:
        """An expression with the values of the dashboard's variables, as Grafana sends it.

        Raises:
            KeyError: it uses a variable that the dashboard does not have.
        """
        return re.sub(r"\$(\w+)", lambda found: self._variables[found[1]], expression)

    def page(self) -> str:
        """The whole dashboard as one page without scripts."""
        place = {one["id"]: one["gridPos"] for one in self.model["panels"]}
        width = 24 * CELL_WIDTH + GAP
        height = max(at["y"] + at["h"] for at in place.values()) * CELL_HEIGHT + GAP
        panels = "".join(self._placed(panel) for panel in self.panels)
        return (
            f"<!doctype html><meta charset=utf-8><title>{html.escape(self.model['title'])}</title><style>{_STYLE}"
            f"body{{width:{width}px;height:{height}px}}</style><body>{panels}"
        )

    def _placed(self, panel: Panel) -> str:
        at = panel.model["gridPos"]
        box = (
            f"left:{at['x'] * CELL_WIDTH + GAP}px;top:{at['y'] * CELL_HEIGHT + GAP}px;"
            f"width:{at['w'] * CELL_WIDTH - GAP}px;height:{at['h'] * CELL_HEIGHT - GAP}px"
        )
        match panel.model["type"]:
            case "stat":
                inner = _stat(panel, self.begin, self.end)
            case "timeseries":
                inner = self._lines(panel)
            case other:
                raise ValueError(f"the picture has no way to draw panels of type {other}")
        return f"<section style='{box}'><h2>{html.escape(panel.title)}</h2>{inner}</section>"

    def _lines(self, panel: Panel) -> str:
        at = panel.model["gridPos"]
        width, height = at["w"] * CELL_WIDTH - GAP - 16, (at["h"] - 1.6) * CELL_HEIGHT - GAP
        sides = {one: panel.option(one, "custom.axisPlacement") == "right" for one in panel.series}
        right = _RIGHT if any(sides.values()) else 12
        area = (_LEFT, _TOP, width - _LEFT - right, height - _TOP - _BOTTOM)
        parts = [_times(self.begin, self.end, area)]
        for is_right in (False, True):
            shown = [one for one in panel.series if sides[one] == is_right]
            if shown:
                axis = Axis.over(panel, shown)
                parts.append(axis.drawn(area, right=is_right))
                for one in shown:
                    parts += _strokes(one, axis, area, self.begin, self.end, _color(panel, one), self._step * 2.5)
        for moment, annotation in self.annotations:
            x = _x(moment, self.begin, self.end, area)
            color = NAMED[annotation["iconColor"]]
            parts.append(f"<path d='M{x:.1f} {area[1]}v{area[3]:.1f}' stroke='{color}' stroke-dasharray='4 3'/>")
        legend = "".join(
            f"<li><i style='background:{_color(panel, one)}'></i>{html.escape(one.legend)}</li>" for one in panel.series
        )
        return f"<svg width={width} height={height:.0f}>{''.join(parts)}</svg><ul>{legend}</ul>"

    @property
    def _step(self) -> float:
        return self._prometheus.step_s(self.begin, self.end)


def _beginnings(points: Iterable[tuple[float, float]]) -> list[float]:
    """The first point of each run of points that follow each other closely: an annotation is shown once."""
    found: list[float] = []
    latest = -math.inf
    for at, _ in points:
        if at - latest > 60:
            found.append(at)
        latest = at
    return found


def _legend(pattern: str, labels: Mapping[str, str]) -> str:
    """The text of a legend. KeyError: the series lacks a label that the dashboard names."""
    return re.sub(r"\{\{(\w+)\}\}", lambda found: labels[found[1]], pattern)


def _color(panel: Panel, series: Series) -> str:
    fixed = panel.option(series, "color")
    return NAMED[fixed["fixedColor"]] if fixed else COLORS[panel.series.index(series) % len(COLORS)]


# ── values as text ─────────────────────────────────────────────────────────────────────────────────────────────

_STEPS: Mapping[str, Sequence[tuple[float, str]]] = {
    "short": ((1, ""), (1e3, " K"), (1e6, " Mil"), (1e9, " Bil")),
    "bytes": ((1, " B"), (1 << 10, " KiB"), (1 << 20, " MiB"), (1 << 30, " GiB"), (1 << 40, " TiB")),
    "Bps": ((1, " B/s"), (1e3, " kB/s"), (1e6, " MB/s"), (1e9, " GB/s")),
    "rowsps": ((1, " rows/s"), (1e3, "K rows/s"), (1e6, "M rows/s")),
    "ops": ((1, " ops/s"), (1e3, "K ops/s")),
    "s": ((1e-3, " ms"), (1, " s"), (60, " min"), (3600, " hours"), (86400, " days")),
    "percentunit": ((0.01, "%"),),
}


def scale(unit: str, largest: float) -> tuple[float, str]:
    """What a value of this size is divided by to be shown, and the text after it."""
    return next((s for s in reversed(_STEPS[unit]) if largest >= s[0]), _STEPS[unit][0])


def shown(value: float, unit: str) -> str:
    divisor, name = scale(unit, abs(value)) if value else next(step for step in _STEPS[unit] if step[0] in (1, 0.01))
    number = value / divisor
    return f"{number:.3g}{name}" if abs(number) < 1000 else f"{number:.0f}{name}"


@dataclass(frozen=True, slots=True)
class Axis:
    """From zero, or the lowest value, to above the highest one; `ticks` are multiples of 1, 2 or 5."""

    unit: str
    low: float
    high: float
    ticks: tuple[float, ...]

    @classmethod
    def over(cls, panel: Panel, series: Sequence[Series]) -> Axis:
        values = [value for one in series for _, value in one.points]
        least, greatest = panel.option(series[0], "min"), panel.option(series[0], "max")
        low = min(values) if least is None else float(least)
        high = max([*values, low]) if greatest is None else float(greatest)
        unit = str(panel.option(series[0], "unit"))
        divisor, _ = scale(unit, max(abs(high), abs(low)))
        span = (high - low) / divisor or 1.0
        rough = 10 ** math.floor(math.log10(span / 4))
        width = next(rough * n for n in (1, 2, 5, 10) if span / (rough * n) <= 4.5) * divisor
        count = math.ceil((high - low) / width - 1e-9) or 1
        ticks = tuple(low + width * number for number in range(count + 1))
        return cls(unit, low, ticks[-1] if greatest is None else high, ticks)

    def y(self, value: float, area: Sequence[float]) -> float:
        return area[1] + area[3] * (1 - (value - self.low) / (self.high - self.low))

    def drawn(self, area: Sequence[float], *, right: bool) -> str:
        left, _, width, _ = area
        parts: list[str] = []
        divisor, name = scale(self.unit, abs(self.ticks[-1]))
        for tick in self.ticks:
            y = self.y(tick, area)
            if not right:
                parts.append(f"<path d='M{left} {y:.1f}h{width}' class=grid />")
            x, anchor = (left + width + 6, "start") if right else (left - 6, "end")
            text = f"{tick / divisor:.4g}{name}" if tick else shown(0, self.unit)
            parts.append(f"<text x={x} y={y + 4:.1f} text-anchor={anchor}>{html.escape(text)}</text>")
        return "".join(parts)


# ── drawing ────────────────────────────────────────────────────────────────────────────────────────────────────


def _x(at: float, begin: float, end: float, area: Sequence[float]) -> float:
    return area[0] + area[2] * (at - begin) / (end - begin)


def _times(begin: float, end: float, area: Sequence[float]) -> str:
    """The axis of time, in UTC."""
    every = next(s for s in (5, 10, 15, 30, 60, 120, 300, 600, 1800, 3600) if (end - begin) / s <= 5)
    parts: list[str] = []
    for at in range(math.ceil(begin / every) * every, math.floor(end) + 1, every):
        x = _x(at, begin, end, area)
        text = datetime.fromtimestamp(at, UTC).strftime("%H:%M:%S" if every < 60 else "%H:%M")
        parts.append(f"<path d='M{x:.1f} {area[1]}v{area[3]:.1f}' class=grid />")
        parts.append(f"<text x={x:.1f} y={area[1] + area[3] + 15:.1f} text-anchor=middle>{text}</text>")
    return "".join(parts)


def _strokes(
    series: Series, axis: Axis, area: Sequence[float], begin: float, end: float, color: str, gap_s: float
) -> list[str]:
    """The line of a series, interrupted where it has no points."""
    runs: list[list[tuple[float, float]]] = []
    for at, value in series.points:
        if not runs or at - runs[-1][-1][0] > gap_s:
            runs.append([])
        runs[-1].append((at, value))
    paths: list[str] = []
    for run in runs:
        points = [f"{_x(at, begin, end, area):.1f} {axis.y(value, area):.1f}" for at, value in run]
        paths.append(f"<path d='M{'L'.join(points)}h.1' stroke='{color}' class=line />")
    return paths


def _stat(panel: Panel, begin: float, end: float) -> str:
    """One value for each series: the last one, coloured by the thresholds; below it the values before."""
    names = panel.model["options"]["textMode"] == "name"
    has_area = panel.model["options"]["graphMode"] == "area"
    parts: list[str] = []
    for one in panel.series:
        value = one.points[-1][1]
        text = one.legend if names else shown(value, str(panel.option(one, "unit")))
        label = "" if names or len(panel.series) == 1 else f"<small>{html.escape(one.legend)}</small>"
        area = _area(one, begin, end) if has_area else ""
        color = _stat_color(panel, one, value)
        parts.append(f"<p style='color:{color}'>{area}{label}<b>{html.escape(text)}</b></p>")
    return f"<div class={'names' if names else 'values'}>{''.join(parts)}</div>"


def _area(series: Series, begin: float, end: float) -> str:
    highest = max(value for _, value in series.points) or 1.0
    points = [f"{100 * (at - begin) / (end - begin):.1f} {30 - 28 * v / highest:.1f}" for at, v in series.points]
    first, last = points[0].split()[0], points[-1].split()[0]
    outline = f"M{first} 30L{'L'.join(points)}L{last} 30z"
    return f"<svg viewBox='0 0 100 30' preserveAspectRatio=none><path d='{outline}' fill=currentColor /></svg>"


def _stat_color(panel: Panel, series: Series, value: float) -> str:
    if fixed := panel.option(series, "color"):
        return NAMED[fixed["fixedColor"]]
    steps = (panel.option(series, "thresholds") or {"steps": [{"color": "green", "value": None}]})["steps"]
    return NAMED[[step["color"] for step in steps if step["value"] is None or value >= step["value"]][-1]]


_STYLE = """
body{margin:0;position:relative;background:#f4f5f5;font:12px sans-serif;color:#24292e}
section{position:absolute;box-sizing:border-box;background:#fff;padding:6px 8px}
section{border:1px solid #e1e3e5;border-radius:2px}
h2{font-size:13px;font-weight:500;margin:0 0 4px}
svg{display:block}svg text{font-size:11px;fill:#555b61}
.grid{stroke:#e4e6e8}.line{fill:none;stroke-width:1.5;stroke-linejoin:round;stroke-linecap:round}
ul{list-style:none;margin:2px 0 0;padding:0;display:flex;flex-wrap:wrap;gap:0 14px;font-size:11px}
ul i{display:inline-block;width:14px;height:3px;margin:0 5px 3px 0}
div{display:flex;height:calc(100% - 20px);align-items:center;justify-content:space-around;gap:8px}
p{margin:0;text-align:center;font-size:26px;white-space:nowrap;position:relative;flex:1;padding:14px 0 26px}
p small{display:block;font-size:12px;color:#24292e}
.names{flex-direction:column;justify-content:center;gap:2px}.names p{flex:none;padding:0;font-size:18px}
p svg{position:absolute;left:0;bottom:0;width:100%;height:30px;opacity:.2}
"""
