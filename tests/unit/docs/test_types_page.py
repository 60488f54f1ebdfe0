"""The page of types matches what the code does."""

from __future__ import annotations

from pathlib import Path

import typetable

from cdcflow.merge.types import stored

PAGE = Path(__file__).parents[3] / "docs/tables.md"


def test_table_of_types_is_generated_from_the_code() -> None:
    """A hand-written one is wrong after the first change. To update it, run `python tests/support/typetable.py`, and
    copy its output between the marks."""
    page = PAGE.read_text()
    begin, end = page.index(typetable.BEGIN), page.index(typetable.END) + len(typetable.END)
    assert page[begin:end] == typetable.markdown()


def test_differences_are_described_for_each_type_that_is_kept_as_another() -> None:
    """Nothing is converted to text, or to a decimal, silently."""
    for line in (*typetable.postgres(), *typetable.mysql()):
        if stored(line.arrow).convert is not None or stored(line.arrow).table == "decimal(20,0)":
            assert line.cells()[-1], line
