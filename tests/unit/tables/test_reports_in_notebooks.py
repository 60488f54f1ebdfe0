"""What a notebook shows of a cut, a merge and a comparison."""

from __future__ import annotations

from typing import Protocol
from xml.etree import ElementTree

import pytest

from cdcflow.tables.cut import Cut, CutTable
from cdcflow.tables.job.reports import MergeReport, SeveralReport, TableMergeReport
from cdcflow.tables.verify.report import Report, TableReport

HOSTILE = "public.<script>alert(1)</script>"
CUT = Cut(7, "log", 90, "00/AB", 0, {HOSTILE: CutTable("p", 3, True, state="done")}, {"public.b": "it has failed"})
MERGED = TableMergeReport(HOSTILE, 12, 3, True, 0.5, state="done")


class Shown(Protocol):
    def _repr_html_(self) -> str: ...


def cells(shown: Shown) -> list[list[str]]:
    """The texts of all rows, the head first. Anything that is not well-formed is an error."""
    found = ElementTree.fromstring(f"<div>{shown._repr_html_()}</div>")  # noqa: S314  the text of this program
    assert not found.findall(".//script")
    return [[cell.text or "" for cell in row] for row in found.iter("tr")]


@pytest.mark.parametrize(
    ("shown", "rows"),
    [
        (CUT, [[HOSTILE, "3", "True", "done", ""], ["public.b", "", "", "", "it has failed"]]),
        (MergeReport(7, 90, True, 0.5, (MERGED,), CUT), [[HOSTILE, "12", "3", "done", ""]]),
        (SeveralReport(7, True, 0.5, (MERGED,), {"a": 1}, "a", {}), [[HOSTILE, "12", "3", "done", ""]]),
        (
            Report((TableReport(HOSTILE, "log", "different", rows=5, different=2),), 0.1),
            [[HOSTILE, "log", "different", "5", "2", ""]],
        ),
    ],
    ids=["cut", "merge", "merge of several logs", "comparison"],
)
def test_notebook_shows_a_row_for_each_table(shown: Shown, rows: list[list[str]]) -> None:
    assert cells(shown)[1:] == rows
