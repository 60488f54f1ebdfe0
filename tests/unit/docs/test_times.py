"""CONTRIBUTING.md lists what the targets do in the Makefile's words, and `make times` changes only what it measured."""

from __future__ import annotations

from tests import times

TABLE = "| `make lint` | an old text | 2.5 |\n| `make unit` | the same | 3.0 |\n"
PAGE = f"before\n{times.BEGIN}{times.HEAD}{TABLE}{times.END}\nafter\n"


def test_only_measured_minutes_change() -> None:
    described = {"lint": "a new text", "unit": "the same"}
    rows = "| `make lint` | a new text | 1.2 |\n| `make unit` | the same | 3.0 |\n"
    assert times.with_times(PAGE, described, {"lint": "1.2"}) == PAGE.replace(TABLE, rows)


def test_target_that_is_new_gets_a_row() -> None:
    described = {"lint": "an old text", "unit": "the same", "docs": "build the book"}
    added = times.with_times(PAGE, described, {"docs": "0.4"})
    assert times.read_table(added) == {"lint": "2.5", "unit": "3.0", "docs": "0.4"}


def test_the_page_describes_each_target_as_the_makefile_does() -> None:
    page = times.PAGE.read_text(encoding="utf-8")
    assert times.with_times(page, times.described_targets(), {}) == page, "run `make times`"
