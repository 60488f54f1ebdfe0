"""Published cuts as text: a list of them, and the tables of one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from cdcflow.reports.parts import Part, TextTable
from cdcflow.reports.readable import number, utc_time

if TYPE_CHECKING:
    from cdcflow.tables.cut import Cut, ListedCut


def cut_parts(cut: Cut) -> Iterator[Part]:
    """The tables of a cut, and those that are excluded from it."""
    yield f"cut {cut.cut}, as of {utc_time(cut.commit_clock)}"
    rows = [(name, one.version, "yes" if one.complete else "no", one.path) for name, one in sorted(cut.tables.items())]
    yield TextTable(("table", "version", "whole", "path"), rows)
    yield from (f"{name} is not in the cut: {why}" for name, why in sorted(cut.left_out.items()))


def cuts_table(listed: Sequence[ListedCut]) -> TextTable:
    """One row for each cut."""
    rows = [
        (
            cut.cut,
            cut.position.partition(";")[0],  # without the GTIDs of a binary log, which are long
            utc_time(cut.commit_clock),
            utc_time(cut.published),
            number(cut.offset),
            cut.tables,
        )
        for cut in listed
    ]
    return TextTable(("cut", "position", "committed", "published", "offset", "tables"), rows, 2)
