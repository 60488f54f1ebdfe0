"""`make bench-docs`: the results into docs/performance.md and docs/plots, and a dated copy next to the latest.

Only the text between the two markers is generated; the words around it are written by hand.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from bench import plots, results
from bench.results import LATEST, RESULTS, Line, cells

PAGE = Path(__file__).parent.parent / "docs" / "performance.md"
BEGIN, END = "<!-- figures: written by make bench-docs -->", "<!-- end of figures -->"


def block(lines: Sequence[Line], pictures: Sequence[Path]) -> str:
    """The tables and pictures of a run, as Markdown."""
    if not lines:
        return "No results yet.\n"
    days = sorted({line.at[:10] for line in lines})
    met = [line.met for line in lines if line.met is not None]
    head = f"Measured on {', '.join(days)}: {'; '.join(sorted({line.machine for line in lines}))}. "
    parts = [f"{head}{sum(met)} of {len(met)} targets are met.\n"]
    for bench in dict.fromkeys(line.bench for line in lines):
        parts.append(f"### {bench}\n")
        shown = [p for p in pictures if p.stem.startswith(bench)]
        parts += [f"![{p.stem}](plots/{p.name})\n" for p in shown]
        here = [line for line in lines if line.bench == bench]
        parts.append(_table([line for line in here if line.target]))
        parts.append(_table([line for line in here if not line.target]))
    return "\n".join(part for part in parts if part)


def _table(lines: Sequence[Line]) -> str:
    if not lines:
        return ""
    rows = [
        "| case | cdcflow | beside | | ratio | target | | spread |",
        "| --- | ---: | ---: | --- | ---: | --- | --- | ---: |",
    ]
    rows += [f"| {' | '.join(cells(line, met='met', missed='**missed**'))} |" for line in lines]
    return "\n".join(rows) + "\n"


def written(page: str, text: str) -> str:
    """The page with `text` between its markers.

    Raises:
        ValueError: the page has no markers.
    """
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page has no place for the figures; it needs {BEGIN} and {END}")
    return f"{before}{BEGIN}\n\n{text}\n{END}{after}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=Path, default=LATEST, help="the file of results (bench/results/latest.json)")
    options = parser.parse_args()
    lines = results.load(options.results)
    if not lines:
        sys.exit(f"no results in {options.results}; run make bench first")
    pictures = plots.draw(lines)
    PAGE.write_text(written(PAGE.read_text(), block(lines, pictures)))
    dated = RESULTS / f"{max(line.at for line in lines)[:10]}.json"
    if options.results == LATEST:
        dated.write_bytes(LATEST.read_bytes())
    print(f"{PAGE.name}, {len(pictures)} plots and {dated.name} are written")
    return 0


if __name__ == "__main__":
    sys.exit(main())
