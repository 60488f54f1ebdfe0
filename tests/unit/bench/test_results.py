"""The figures' arithmetic: what a benchmark prints is only as true as this."""

from __future__ import annotations

from pathlib import Path

import pytest
from bench import results
from bench.document import BEGIN, END, block, written
from bench.results import Line, alone, at_least, at_most, compared


def test_a_ratio_is_the_median_of_each_rounds_own() -> None:
    """A machine that slows down for a while slows both; the rounds must be compared with themselves."""
    line = compared("drain", "c", "rows/s", [100, 50, 10], [200, 50, 10], "limit", at_least(0.9))
    assert (line.value, line.limit, line.ratio, line.met) == (50, 50, 1.0, True)


def test_rounds_of_unequal_number_are_compared_by_their_medians() -> None:
    """A slow peer skips some rounds."""
    line = compared("drain", "c", "rows/s", [100, 300, 200], [50], "peer", at_least(3.5))
    assert (line.ratio, line.met) == (4.0, True)


@pytest.mark.parametrize(("ratio", "met"), [(0.16, True), (0.17, False)])
def test_at_most_is_missed_above_its_bound(ratio: float, met: bool) -> None:
    """A target with the sign turned round would call the worst result a success."""
    assert at_most(1 / 6).met_by(ratio) is met
    assert at_least(1 / 6).met_by(ratio) is not met
    assert (str(at_most(1 / 6)), str(at_least(0.9)), str(at_least(8))) == ("≤ 1/6", "≥ 0.9", "≥ 8")


def test_spread_is_that_of_cdcflow_s_rounds() -> None:
    """(max - min) / median."""
    assert compared("b", "c", "u", [90, 100, 120], [1, 1, 1], "p").spread == 0.3
    assert alone("b", "c", "u", [0, 0]).spread == 0


def test_new_lines_replace_those_of_the_same_bench_only(tmp_path: Path) -> None:
    """`make bench-drain` must not lose yesterday's backfill."""
    path = tmp_path / "latest.json"
    results.keep([alone("drain", "old", "u", [1]), alone("backfill", "kept", "u", [2])], path)
    results.keep([alone("drain", "new", "u", [3])], path)
    assert [(line.bench, line.case) for line in results.load(path)] == [("drain", "new"), ("backfill", "kept")]


def test_results_of_an_earlier_form_count_as_none(tmp_path: Path) -> None:
    """A file of last month must not stop a run at its end."""
    path = tmp_path / "latest.json"
    path.write_text('[{"bench": "drain", "limit_name": "x"}]')
    assert results.load(path) == []


def test_a_page_keeps_the_words_around_its_figures() -> None:
    """The generator writes between its markers and nowhere else."""
    first, second = BEGIN.format(name=" stream"), BEGIN.format(name=" latency")
    page = f"before\n{first}\nold\n{END}\nbetween\n{second}\n{END}\nafter\n"
    new = written(page, "new", "latency")
    assert new == f"before\n{first}\nold\n{END}\nbetween\n{second}\n\nnew\n{END}\nafter\n"
    assert written(new, "new", "latency") == new
    with pytest.raises(ValueError, match="no place for the figures"):
        written(page, "new", "merge")


def test_a_missed_target_is_named_as_such() -> None:
    """The docs must not hide missed targets."""
    line = Line(
        "drain", "c", 1, "rows/s", 2, "limit", 0.5, "≥ 0.9", met=False, machine="2 cores", at="2026-01-01T00:00"
    )
    text = block([line])
    assert "**missed**" in text
    assert "0 of 1 targets are met" in text
