"""A timeline as an SVG picture: one lane below another, readable in light and dark, without scripts.

Every shape has a title, which a browser shows for the pointer; what an operator looks for first (outages, gaps, schema
changes, failures) has a number, and its text is below the picture.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from html import escape

from cdcflow.reports.readable import plain
from cdcflow.wiring.timelines import Timeline, TimelineMark, TimelineSpan

WIDTH, LEFT, RIGHT = 1100, 110, 20
TOP, LANE, BAR, PLOT, LINE = 64, 34, 16, 70, 20
TABLES_MAX = 6
TICKS_MAX = 9
NOTABLE_MAX = 14
TEXT_CHARACTERS_MAX = 128
TITLES = {
    "capture": "Capture",
    "changes": "Rows/s",
    "backfill": "Backfill",
    "schema": "Schema",
    "merge": "Merges",
    "verify": "Verify",
    "commands": "Commands",
}
TONES = {
    **dict.fromkeys(("capturing", "merged", "done", "equal"), "good"),
    **dict.fromkeys(("outage", "halted", "failed", "different", "gap"), "bad"),
    **dict.fromkeys(("waiting", "paused", "cancelled"), "warn"),
    **dict.fromkeys(("reading", "changed", "command"), "note"),
}
"""The colour class of each state. States that are missing here are grey."""
_NOTABLE = {"outage", "halted", "failed", "different", "gap", "changed", "waiting"}
_STEPS_S = (1, 5, 10, 30, 60, 300, 600, 1_800, 3_600, 10_800, 21_600, 43_200, 86_400, 604_800, 2_592_000, 31_536_000)
_STYLE = """
    svg { color-scheme: light dark; --ground: #fff; --text: #1b2330; --quiet: #5b6675; --line: #d9dee5;
      --good: #2f8f57; --bad: #c43a31; --warn: #b97a12; --note: #0b5cad; --other: #8a95a5; }
    @media (prefers-color-scheme: dark) { svg { --ground: #10141a; --text: #e4e9f0; --quiet: #9aa6b6; --line: #2d3744;
      --good: #5cbf85; --bad: #ff8a80; --warn: #f2c063; --note: #7cb7ff; --other: #6d7888; } }
    .ground { fill: var(--ground); } text { fill: var(--text); font: 13px system-ui, "Segoe UI", Roboto, sans-serif; }
    .quiet { fill: var(--quiet); } .small { font-size: 11px; } .head { font-size: 16px; font-weight: 600; }
    .grid { stroke: var(--line); } .area { fill: var(--note); opacity: .35; }
    .rim { fill-opacity: 0; stroke: var(--note); }
    .good { fill: var(--good); } .bad { fill: var(--bad); } .warn { fill: var(--warn); } .note { fill: var(--note); }
    .other { fill: var(--other); } .hatch { fill: url(#hatch); stroke: var(--bad); }
    .stripe { stroke: var(--bad); stroke-width: 3; } .badge { fill: var(--text); } .badge-text { fill: var(--ground);
      font-size: 10px; font-weight: 700; text-anchor: middle; }
"""


class Picture:
    """The shapes of a picture, and where times are in it."""

    def __init__(self, found: Timeline) -> None:
        self._found = found
        self._length_s = max(found.end - found.begin, 1.0)
        self.shapes: list[str] = []
        self.notable = _notable(found)
        self._numbers = {one: number for number, one in enumerate(self.notable, 1)}

    def x(self, at: float) -> float:
        share = (at - self._found.begin) / self._length_s
        return round(LEFT + min(max(share, 0.0), 1.0) * (WIDTH - LEFT - RIGHT), 1)

    def label(self, y: float, text: str, kind: str = "") -> None:
        self.shapes.append(f'<text x="{LEFT - 10}" y="{y}" text-anchor="end" class="{kind}">{_safe(text)}</text>')

    def bar(self, one: TimelineSpan, y: float, height: float = BAR) -> None:
        kind = "hatch" if one.state == "outage" else TONES.get(one.state, "other")
        begin = self.x(one.begin)
        width = max(self.x(one.end) - begin, 2.0)
        title = _title(f"{_utc(one.begin)} to {_utc(one.end)}: {one.text}")
        self.shapes.append(
            f'<rect x="{begin}" y="{y}" width="{width:.1f}" height="{height}" rx="2" class="{kind}">{title}</rect>'
        )
        self._number(one, begin + width / 2, y + height / 2)

    def mark(self, one: TimelineMark, y: float) -> None:
        kind, x, title = TONES.get(one.state, "other"), self.x(one.at), _title(f"{_utc(one.at)}: {one.text}")
        if one.lane == "capture" and one.state == "start":
            self.shapes.append(f'<rect x="{x - 1}" y="{y - 13}" width="2" height="26" class="other">{title}</rect>')
        else:
            self.shapes.append(f'<path d="M{x} {y - 8}l6 8l-6 8l-6 -8z" class="{kind}">{title}</path>')
        self._number(one, x, y)

    def _number(self, one: TimelineSpan | TimelineMark, x: float, y: float) -> None:
        if (number := self._numbers.get(one)) is None:
            return
        self.shapes.append(f'<circle cx="{x:.1f}" cy="{y - 14:.1f}" r="7.5" class="badge"/>')
        self.shapes.append(f'<text x="{x:.1f}" y="{y - 10.5:.1f}" class="badge-text">{number}</text>')


def _notable(found: Timeline) -> list[TimelineSpan | TimelineMark]:
    """The outages, gaps, schema changes and failures, oldest first. If there are too many, only the latest."""
    events: list[TimelineSpan | TimelineMark] = [*found.spans, *found.marks]
    return sorted((one for one in events if one.state in _NOTABLE), key=_begin)[-NOTABLE_MAX:]


def _begin(one: TimelineSpan | TimelineMark) -> float:
    return one.begin if isinstance(one, TimelineSpan) else one.at


def svg_of(found: Timeline) -> str:
    """The picture's SVG."""
    picture = Picture(found)
    y = float(TOP)
    for lane in TITLES:
        y = _lane(picture, found, lane, y)
    grid = list(_grid(picture, found, y))
    listed = list(_list_lines(picture.notable, y + 34))
    height = y + 34 + LINE * len(listed) + 6
    head = f"{found.name}, {_utc(found.begin)} to {_utc(found.end)} (UTC)"
    return "\n".join(
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height:.0f}" '
            f'viewBox="0 0 {WIDTH} {height:.0f}" role="img" aria-label="{_safe(head)}">',
            f"<style>{_STYLE}</style>",
            '<defs><pattern id="hatch" width="8" height="8" patternUnits="userSpaceOnUse" '
            'patternTransform="rotate(45)"><rect width="8" height="8" class="ground"/>'
            '<path d="M0 0v8" class="stripe"/></pattern></defs>',
            f'<rect width="{WIDTH}" height="{height:.0f}" class="ground"/>',
            f'<text x="16" y="28" class="head">{_safe(head)}</text>',
            *grid,
            *picture.shapes,
            *listed,
            "</svg>",
        )
    )


def _lane(picture: Picture, found: Timeline, lane: str, y: float) -> float:
    """Draw a lane at this height; return the height of the next one."""
    spans = [one for one in found.spans if one.lane == lane]
    marks = [one for one in found.marks if one.lane == lane]
    if lane == "changes":
        return _plot(picture, found, y)
    if lane == "backfill":
        return _backfills(picture, spans, y)
    if not spans and not marks and lane in ("schema", "commands"):
        return y
    picture.label(y + BAR - 3, TITLES[lane])
    for one in spans:
        picture.bar(one, y)
    for mark in marks:
        picture.mark(mark, y + BAR / 2)
    if not spans and not marks:
        picture.shapes.append(f'<text x="{LEFT}" y="{y + BAR - 3}" class="quiet small">nothing is known</text>')
    return y + LANE


def _backfills(picture: Picture, spans: Sequence[TimelineSpan], y: float) -> float:
    """A line for each of the tables that were read the longest."""
    if not spans:
        return y
    by_table: dict[str, list[TimelineSpan]] = {}
    for one in spans:
        by_table.setdefault(one.text.partition(" ")[0], []).append(one)
    lengths = {name: sum(one.end - one.begin for one in some) for name, some in by_table.items()}
    shown = sorted(by_table, key=lambda name: (-lengths[name], name))[:TABLES_MAX]
    picture.label(y + BAR - 3, TITLES["backfill"])
    for name in shown:
        for one in by_table[name]:
            picture.bar(one, y + 3, BAR - 6)
        right = picture.x(max(one.end for one in by_table[name]))
        anchor, x = ("start", right + 6) if right < WIDTH - 240 else ("end", picture.x(by_table[name][0].begin) - 6)
        label = _shorten(name, 34)
        picture.shapes.append(
            f'<text x="{x}" y="{y + BAR - 4}" class="quiet small" text-anchor="{anchor}">{_safe(label)}</text>'
        )
        y += BAR + 4
    if len(by_table) > len(shown):
        more = f"{len(by_table) - len(shown)} more tables"
        picture.shapes.append(f'<text x="{LEFT}" y="{y + 10}" class="quiet small">{more}</text>')
        y += BAR
    return y + LANE - BAR - 4


def _plot(picture: Picture, found: Timeline, y: float) -> float:
    """Rows per second that were committed, as an area; each segment of the log is one step."""
    rates = [(one, one.rows / (one.end - one.begin)) for one in found.rates]
    highest = max((rate for _, rate in rates), default=0.0)
    picture.label(y + PLOT / 2 + 5, TITLES["changes"])
    if not highest:
        picture.shapes.append(f'<text x="{LEFT}" y="{y + PLOT / 2 + 5}" class="quiet small">no rows</text>')
        return y + PLOT + LANE - BAR
    base = y + PLOT
    points = [
        f"L{picture.x(at)} {base - PLOT * rate / highest:.1f}" for one, rate in rates for at in (one.begin, one.end)
    ]
    first, last = picture.x(rates[0][0].begin), picture.x(rates[-1][0].end)
    self_title = _title(f"at most {highest:,.0f} rows per second, over a segment of the log")
    picture.shapes.append(f'<path d="M{first} {base}{"".join(points)}L{last} {base}z" class="area">{self_title}</path>')
    picture.shapes.append(f'<path d="M{points[0][1:]}{"".join(points[1:])}" class="rim"/>')
    picture.shapes.append(
        f'<text x="{LEFT - 10}" y="{y + 10}" text-anchor="end" class="quiet small">{highest:,.0f}</text>'
    )
    return base + LANE - BAR


def _grid(picture: Picture, found: Timeline, bottom: float) -> Iterator[str]:
    """Vertical lines at round times, with their labels."""
    length_s = max(found.end - found.begin, 1.0)
    step_s = next((one for one in _STEPS_S if length_s / one <= TICKS_MAX), length_s / TICKS_MAX)
    at = math.ceil(found.begin / step_s) * step_s
    while at <= found.end:
        x = picture.x(at)
        yield f'<path d="M{x} {TOP - 12}V{bottom}" class="grid"/>'
        anchor = "middle" if x < WIDTH - 60 else "end"
        yield f'<text x="{x}" y="{TOP - 16}" class="quiet small" text-anchor="{anchor}">{_tick(at, step_s)}</text>'
        at += step_s


def _list_lines(notable: Sequence[TimelineSpan | TimelineMark], y: float) -> Iterator[str]:
    for number, one in enumerate(notable, 1):
        until = f" (until {_utc(one.end)})" if isinstance(one, TimelineSpan) else ""
        line = _shorten(f"{number}  {_utc(_begin(one))}  {one.text}{until}", TEXT_CHARACTERS_MAX)
        yield f'<text x="16" y="{y + LINE * (number - 1):.0f}">{_safe(line)}</text>'


def _tick(at: float, step_s: float) -> str:
    forms = ((86_400, "%Y-%m-%d"), (21_600, "%m-%d %H:%M"), (60, "%H:%M"), (0, "%H:%M:%S"))
    form = next(form for least_s, form in forms if step_s >= least_s)
    return f"{datetime.fromtimestamp(at, UTC):{form}}"


def _utc(at: float) -> str:
    return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M:%S}"


def _title(text: str) -> str:
    return f"<title>{_safe(text)}</title>"


def _safe(text: str) -> str:
    """A text of a source as text of the picture: no markup, and no characters that XML forbids."""
    return escape(plain(text).replace("\n", " ").replace("\ufffe", "?").replace("\uffff", "?"))


def _shorten(text: str, characters: int) -> str:
    return text if len(text) <= characters else f"{text[: characters - 2]} …"
