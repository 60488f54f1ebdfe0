"""`make bench-docs`: the results into pages and plots, and a dated copy next to the latest.

docs/performance.md gets one table and one plot for each area (`areas`), bench/results/NAME.md all lines.
Only the text between two markers is generated; the words around it are written by hand.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from bench import areas, plots, results
from bench.areas import AREAS
from bench.results import LATEST, RECORDED, RESULTS, Line, cells

PAGE = Path(__file__).parent.parent / "docs" / "performance.md"
BEGIN, END = "<!-- figures{name}: written by make bench-docs -->", "<!-- end of figures -->"
TOGETHER = {
    "fresh": ("fresh", "fresh-rate"),
    "load": ("load", "governed"),
    "kafka": ("kafka", "publish", "to-kafka", "kafka-latency"),
    "mysql": ("mysql.drain", "mysql.backfill", "mysql.memory"),
}
"""Pages of bench/results with several benches; each other bench has its own page."""


def stored() -> list[Line]:
    """The results that the pages show: the latest copy that is kept with its date."""
    return results.load(max(RESULTS.glob("2*.json")))


def of_areas(lines: Sequence[Line]) -> list[Line]:
    """These results, with the recorded ones of benches that they do not have: those run in their own time, and the
    figures of a run are in `bench/results/recorded.json` if its results were not stored."""
    have = {line.bench for line in lines}
    return [*lines, *(line for line in results.load(RECORDED) if line.bench not in have)]


def pages(lines: Sequence[Line]) -> dict[Path, str]:
    """Each page that the results change, with its new text.

    Raises:
        ValueError: docs/performance.md has no place for an area.
    """
    short = PAGE.read_text()
    for area in AREAS:
        short = written(short, areas.table(area, of_areas(lines)), area.name)
    changed = {PAGE: short}
    for name, benches in _of_results(lines).items():
        path = RESULTS / f"{name}.md"
        text = path.read_text() if path.exists() else f"# {name}\n\n{BEGIN.format(name='')}\n{END}\n"
        changed[path] = written(text, block([line for line in lines if line.bench in benches]))
    return changed


def _of_results(lines: Sequence[Line]) -> dict[str, tuple[str, ...]]:
    """The pages of bench/results with their benches, for those that were run."""
    page = {bench: name for name, benches in TOGETHER.items() for bench in benches}
    names = dict.fromkeys(page.get(line.bench, line.bench) for line in lines)
    return {name: TOGETHER.get(name, (name,)) for name in names}


def block(lines: Sequence[Line]) -> str:
    """The plots and tables of a page of bench/results, as Markdown."""
    if not lines:
        return "No results yet.\n"
    days = sorted({line.at[:10] for line in lines})
    met = [line.met for line in lines if line.met is not None]
    head = f"Measured on {', '.join(days)}: {'; '.join(sorted({line.machine for line in lines}))}."
    parts = [f"{head} {sum(met)} of {len(met)} targets are met.\n" if met else f"{head}\n"]
    for bench in dict.fromkeys(line.bench for line in lines):
        parts.append(f"## {bench}\n")
        parts += [f"![{plot.alt}](plots/{plot.name}.svg)\n" for plot in plots.of(lines) if plot.bench == bench]
        parts += [f"![{alt}](plots/{path.name})\n" for path, alt in plots.over_time(bench).items()]
        here = [line for line in lines if line.bench == bench]
        parts.append(_table([line for line in here if line.target]))
        parts.append(_table([line for line in here if not line.target]))
    return "\n".join(part for part in parts if part)


def _table(lines: Sequence[Line]) -> str:
    if not lines:
        return ""
    rows = [
        "| case | cdcflow | compared with | its figure | ratio | target | met | spread |",
        "| --- | ---: | --- | ---: | ---: | --- | --- | ---: |",
    ]
    rows += [f"| {' | '.join(cells(line, met='yes', missed='**missed**'))} |" for line in lines]
    return "\n".join(rows) + "\n"


def written(page: str, text: str, name: str = "") -> str:
    """The page with `text` between its markers; a page with several places names each.

    Raises:
        ValueError: the page has no such markers.
    """
    begin = BEGIN.format(name=f" {name}" if name else "")
    found = re.search(rf"{re.escape(begin)}\n.*?{re.escape(END)}", page, re.DOTALL)
    if found is None:
        raise ValueError(f"the page has no place for the figures; it needs {begin} and {END}")
    return f"{page[: found.start()]}{begin}\n\n{text}\n{END}{page[found.end() :]}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=Path, default=LATEST, help="the file of results (bench/results/latest.json)")
    options = parser.parse_args()
    lines = results.load(options.results)
    if not lines:
        sys.exit(f"no results in {options.results}; run make bench first")
    drawn = [*plots.draw(lines), *plots.draw_areas(of_areas(lines))]
    changed = pages(lines)
    for path, text in changed.items():
        path.write_text(text)
    dated = RESULTS / f"{max(line.at for line in lines)[:10]}.json"
    if options.results == LATEST:
        dated.write_bytes(LATEST.read_bytes())
    print(f"{len(changed)} pages, {len(drawn)} plots and {dated.name} are written")
    return 0


if __name__ == "__main__":
    sys.exit(main())
