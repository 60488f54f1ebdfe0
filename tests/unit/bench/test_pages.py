"""docs/performance.md and bench/results/*.md equal what `make bench-docs` writes from the stored results."""

from __future__ import annotations

import re

from bench import areas, document, plots
from bench.areas import AREAS
from bench.results import RESULTS, Line

STORED = document.stored()


def test_the_pages_are_those_of_the_stored_results() -> None:
    """A figure that was edited by hand, or that is of another run, misleads its readers."""
    differing = [path.name for path, text in document.pages(STORED).items() if path.read_text() != text]
    assert differing == []


def test_a_figure_that_changed_is_noticed() -> None:
    """The check above can fail."""
    changed = [line if line.bench != "latency" else _twice(line) for line in STORED]
    differing = {path.name for path, text in document.pages(changed).items() if path.read_text() != text}
    assert differing == {"performance.md", "latency.md"}


def _twice(line: Line) -> Line:
    import dataclasses

    return dataclasses.replace(line, value=2 * line.value)


def test_every_result_is_on_a_page() -> None:
    """A bench whose lines no page shows is forgotten."""
    shown = "".join(text for path, text in document.pages(STORED).items() if path != document.PAGE)
    missing = {line.bench for line in STORED if f"| {line.case} | " not in shown or f"## {line.bench}\n" not in shown}
    assert missing == set()


def test_the_short_page_is_short_and_counts_the_targets_rightly() -> None:
    """A verdict is read if it fits on a few screens, and believed if it is true."""
    page = document.PAGE.read_text()
    assert len(page.split()) <= 2500
    met = [line.met for line in STORED if line.met is not None]
    assert f"{sum(met)} of {len(met)} are met" in page


def test_every_area_has_all_its_figures() -> None:
    """A case that was renamed in a bench would silently leave an empty row."""
    lines = document.of_areas(STORED)
    benches = {line.bench for line in lines}
    assert [a.name for a in AREAS if {c.bench for c in a.cases} & benches] == [a.name for a in areas.measured(lines)]
    for area in areas.measured(lines):
        values = areas.figures(area, lines)
        assert {case.label for case in area.cases} == {case for case, _ in values}
        assert {column.title for column in area.columns} == {title for _, title in values}


def test_every_plot_is_shown_and_explains_how_to_read_it() -> None:
    """Whether a long bar is good, and whether it is twice as long as another, is not guessed."""
    measured = areas.measured(document.of_areas(STORED))
    shown = {document.PAGE.parent / "plots" / f"{area.name}.svg": document.PAGE for area in measured}
    shown |= {plots.ALL / f"{plot.name}.svg": RESULTS / f"{plot.bench}.md" for plot in plots.of(STORED)}
    shown |= dict.fromkeys(plots.over_time("fresh"), RESULTS / "fresh.md")
    assert {*plots.PLOTS.glob("*"), *plots.ALL.glob("*")} == set(shown)
    for plot, page in shown.items():
        assert f"](plots/{plot.name})" in page.read_text()
        assert re.search(r"(higher|lower) is better; (linear|logarithmic) scale", plot.read_text()), plot.name
