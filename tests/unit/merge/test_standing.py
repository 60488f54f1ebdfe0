"""Where a table's fold begins, and whether every row of it is there."""

from __future__ import annotations

import pytest

from cdcflow.merge.standing import Backfill


def backfill(state: str, since: int, whole_since: int | None = None, generation: int = 2) -> Backfill:
    entry = {"state": state, "generation": generation, "since": since, "whole_since": whole_since, "plan": "p"}
    return Backfill.of(entry)


@pytest.mark.parametrize(
    ("known", "begun", "whole"),
    [
        (Backfill.of({}), 0, False),
        (backfill("done", 40), 0, True),
        (backfill("done", 40), 40, True),
        (backfill("done", 40), 41, False),
        (backfill("reading", 90, 40), 40, True),
        (backfill("reading", 90, 40), 41, False),
        (backfill("cancelled", 90, 40), 0, True),
        (backfill("forgotten", 90, 40), 0, True),
        (backfill("reading", 90), 0, False),
        (backfill("cancelled", 1), 1, False),
    ],
)
def test_a_table_is_whole_from_the_last_backfill_on_that_was_done(known: Backfill, begun: int, whole: bool) -> None:
    """A re-read that is under way or was given up takes nothing away; a first one that is not done gave nothing."""
    assert known.is_whole(begun) is whole


@pytest.mark.parametrize(
    ("known", "beginnings"),
    [
        (Backfill.of({}), (0,)),
        (backfill("done", 40, 40), (40,)),
        (backfill("waiting", 90, 40), (40, 90)),
        (backfill("paused", 90), (0, 90)),
        (backfill("cancelled", 90, 40), (40,)),
        (backfill("failed", 90), (0,)),
        (backfill("reading", 40, 40), (40,)),
    ],
)
def test_a_new_table_begins_where_it_is_whole_or_else_where_it_will_be(
    known: Backfill, beginnings: tuple[int, ...]
) -> None:
    """Nothing of before a backfill that is done is needed: neither rows nor the shapes that they had."""
    assert known.beginnings() == beginnings


@pytest.mark.parametrize(
    ("known", "generation"),
    [
        (Backfill.of({}), 0),
        (backfill("reading", 90), 0),
        (backfill("done", 40, 40), 2),
        (backfill("done", 40), 2),
        (backfill("forgotten", 40, 40), 2),
        (backfill("reading", 90, 40), 1),
        (backfill("cancelled", 90, 40), 1),
    ],
)
def test_a_backfill_that_is_done_is_known_when_the_next_one_has_begun(known: Backfill, generation: int) -> None:
    """No merge may have come in between, and what it did not find is to go all the same."""
    assert known.finished == generation


def test_what_is_no_number_is_not_taken_for_one() -> None:
    """A log's entry comes from a file."""
    assert Backfill.of({}) == Backfill()
    assert Backfill.of({"state": None, "generation": "2", "since": None}) == Backfill("None")
