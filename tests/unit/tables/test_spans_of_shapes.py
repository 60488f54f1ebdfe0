"""The offsets between which each shape of a table was in force, by manifests alone."""

from __future__ import annotations

import pytest
from tests.support.merge.histories import make_table

from cdcflow.log.format.segment import Segment, SegmentFile
from cdcflow.model.table import Table
from cdcflow.tables.job.spans import shapes_over_time, spans_of
from cdcflow.tables.segments import InputFile

PLAIN, NOTED = make_table("t", id="int64"), make_table("t", id="int64", note="string")
MORE = make_table("t", id="int64", note="string", more="string")
NEXT = make_table("t", id="int64", incarnation=2)
NAMES = {PLAIN: "plain", NOTED: "noted", MORE: "more", NEXT: "next"}


def file(shape: Table, first: int, last: int, after: int = 0) -> InputFile:
    segment = Segment("log", 1, 99, 1, 1, 1, 1, (), {}, "", 1)
    return InputFile("", shape, SegmentFile("", 1, 1, "", first_offset=first, last_offset=last), segment, after)


def told(*files: InputFile) -> str:
    return " ".join(f"{NAMES[s.shape]}@{s.first}-{s.last}{'*' if s.is_cut else ''}" for s in spans_of(files))


@pytest.mark.parametrize(
    ("files", "spans"),
    [
        ([], ""),
        ([file(PLAIN, 1, 4)], "plain@1-4"),
        ([file(PLAIN, 1, 2), file(PLAIN, 3, 4), file(NOTED, 5, 6)], "plain@1-4 noted@5-6"),
        ([file(PLAIN, 1, 2), file(NOTED, 3, 4), file(PLAIN, 5, 6)], "plain@1-2* noted@3-4 plain@3-6*"),
        ([file(PLAIN, 1, 6), file(NOTED, 3, 4)], "plain@1-2* noted@3-4 plain@3-6*"),
        ([file(PLAIN, 1, 3), file(NOTED, 2, 4)], "plain@1-1* noted@2-3* plain@2-3* noted@4-4*"),
    ],
)
def test_a_shape_is_cut_where_another_shape_begins_inside_it(files: list[InputFile], spans: str) -> None:
    """A row that is older than a column got its default; a row from after it was dropped did not."""
    assert told(*files) == spans


def test_shapes_that_return_in_turn_have_a_span_for_each_time() -> None:
    found = told(file(PLAIN, 1, 20), file(NOTED, 5, 15), file(MORE, 9, 11))
    assert found == "plain@1-4* noted@5-8* plain@5-8* more@9-11 noted@9-15* plain@9-20*"


def test_the_span_with_the_latest_row_is_the_last_one() -> None:
    """Its names are the table's."""
    files = [file(PLAIN, 1, 9), file(NOTED, 3, 9), file(MORE, 5, 8), file(PLAIN, 10, 10)]
    assert shapes_over_time(files)[-1] is PLAIN
    assert shapes_over_time(files)[0] is PLAIN
    both = [*files, file(NOTED, 12, 12)]
    assert shapes_over_time(both)[-1] is NOTED
    assert shapes_over_time([*both, file(MORE, 13, 13)])[-1] is MORE


def test_rows_before_a_range_do_not_cut_a_shape() -> None:
    """Both had their first row there."""
    assert told(file(PLAIN, 1, 9, after=5), file(NOTED, 3, 8, after=5)) == "noted@6-8 plain@6-9"


def test_a_recreated_table_does_not_cut_a_shape() -> None:
    assert told(file(NEXT, 4, 9), file(PLAIN, 1, 3)) == "plain@1-3 next@4-9"


@pytest.mark.parametrize("last", range(1, 8))
def test_each_row_is_in_one_span_of_its_shape(last: int) -> None:
    """Whatever files there are: a row in none of them would be lost, one in two counted twice."""
    files = [file(PLAIN, 1, last), file(NOTED, 2, 6), file(MORE, 3, 5), file(PLAIN, 7, 8), file(NOTED, 9, 9)]
    for one in files:
        for offset in range(one.file.first_offset, one.file.last_offset + 1):
            (span,) = [s for s in spans_of(files) if s.has(one.shape, offset)]
            assert one in span.of(files)


def test_an_incarnation_has_the_same_spans_next_to_files_of_the_next_one() -> None:
    """A merge numbers the shapes of all its files, and reads those of one incarnation after another by the numbers."""
    taking_turns = [file(PLAIN, 1, 5), file(NOTED, 3, 9)]
    alone = spans_of(taking_turns)
    assert [span.shape for span in alone] == [PLAIN, NOTED, PLAIN, NOTED]
    assert [span for span in spans_of([*taking_turns, file(NEXT, 10, 12)]) if span.shape != NEXT] == alone
