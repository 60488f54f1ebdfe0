"""Where a table's fold begins, and whether the table has every row."""

from __future__ import annotations

import pytest

from cdcflow.log.fold.completeness import IN_DOUBT, WITHOUT_BASE, TableBackfill


def backfill(state: str, since: int, whole_since: int | None = None, generation: int = 2) -> TableBackfill:
    entry = {"state": state, "generation": generation, "since": since, "whole_since": whole_since, "plan": "p"}
    return TableBackfill.of(entry)


@pytest.mark.parametrize(
    ("known", "begun", "whole"),
    [
        (TableBackfill.of({}), 0, False),
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
def test_a_table_is_whole_from_the_last_backfill_on_that_was_done(
    known: TableBackfill, begun: int, whole: bool
) -> None:
    """A re-read that is in progress or was cancelled takes nothing away; an unfinished first one gave nothing."""
    assert known.is_whole(begun) is whole


@pytest.mark.parametrize(
    ("known", "beginnings"),
    [
        (TableBackfill.of({}), (0,)),
        (backfill("done", 40, 40), (40,)),
        (backfill("waiting", 90, 40), (40, 90)),
        (backfill("paused", 90), (0, 90)),
        (backfill("cancelled", 90, 40), (40,)),
        (backfill("failed", 90), (0,)),
        (backfill("reading", 40, 40), (40,)),
    ],
)
def test_new_table_begins_where_it_is_or_will_be_complete(known: TableBackfill, beginnings: tuple[int, ...]) -> None:
    """Nothing from before a finished backfill is needed: neither rows nor the shapes that they had."""
    assert known.beginnings() == beginnings


@pytest.mark.parametrize(
    ("known", "generation"),
    [
        (TableBackfill.of({}), 0),
        (backfill("reading", 90), 0),
        (backfill("done", 40, 40), 2),
        (backfill("done", 40), 2),
        (backfill("forgotten", 40, 40), 2),
        (backfill("reading", 90, 40), 1),
        (backfill("cancelled", 90, 40), 1),
    ],
)
def test_a_backfill_that_is_done_is_known_when_the_next_one_has_begun(known: TableBackfill, generation: int) -> None:
    """There may have been no merge in between, and the rows that it did not find must be deleted all the same."""
    assert known.finished_generation == generation


def test_value_that_is_not_a_number_is_not_read_as_one() -> None:
    """A log's entry is read from a file."""
    assert TableBackfill.of({}) == TableBackfill()
    assert TableBackfill.of({"state": None, "generation": "2", "since": None}) == TableBackfill("None")


def behind_a_gap(state: str, whole_since: int | None = 40, proven: str | None = None) -> TableBackfill:
    gap = {"offset": 70, "proven": proven, "until": 80 if proven else None}
    return TableBackfill.of({"state": state, "generation": 1, "since": 40, "whole_since": whole_since, "gap": gap})


@pytest.mark.parametrize(
    ("known", "begun", "whole", "state"),
    [
        (behind_a_gap("done"), 40, False, IN_DOUBT),
        (behind_a_gap("waiting"), 40, False, IN_DOUBT),
        (behind_a_gap("done"), 41, False, "done"),
        (behind_a_gap("reading", None), 40, False, "reading"),
        (behind_a_gap("done", proven="p"), 40, True, "done"),
    ],
)
def test_table_after_a_gap_is_not_whole_before_it_is_proven(
    known: TableBackfill, begun: int, whole: bool, state: str
) -> None:
    """Its rows may differ from the source's, and only its state shows that."""
    assert (known.is_whole(begun), known.state_of(begun)) == (whole, state)


@pytest.mark.parametrize(
    ("known", "before", "now"),
    [
        (behind_a_gap("done"), (True, "done"), (False, IN_DOUBT)),
        (behind_a_gap("done"), (False, IN_DOUBT), (False, IN_DOUBT)),
        (behind_a_gap("done"), (False, "reading"), (False, "done")),
        (behind_a_gap("done", proven="p"), (False, IN_DOUBT), (True, "done")),
        (behind_a_gap("reading", None), (True, "done"), (False, "reading")),
        (backfill("done", 40), (True, "done"), (True, "done")),
    ],
)
def test_table_without_changes_is_unverified_after_a_gap_and_verified_again_all_the_same(
    known: TableBackfill, before: tuple[bool, str], now: tuple[bool, str]
) -> None:
    """Most tables did not change in a short gap, nor later."""
    assert known.stays_whole(complete=before[0], state=before[1]) == now


def with_base(
    state: str, base: str = "b1", whole_since: int | None = None, proven: str | None = "0/9"
) -> TableBackfill:
    gap = {"offset": 50, "generation": 2, "before": "", "proven": proven, "until": 60, "base": base}
    return TableBackfill.of({"state": state, "generation": 2, "since": 50, "whole_since": whole_since, "gap": gap})


@pytest.mark.parametrize(
    ("known", "base", "whole", "state"),
    [
        (with_base("done"), "b1", True, "done"),
        (with_base("done", proven=None), "b1", False, IN_DOUBT),
        (with_base("done"), "", False, WITHOUT_BASE),
        (with_base("done"), "b2", False, WITHOUT_BASE),
        (with_base("reading"), "b1", True, "reading"),
        (with_base("reading"), "", False, "reading"),
    ],
)
def test_only_a_table_with_the_base_that_the_daemon_knows_is_whole(
    known: TableBackfill, base: str, whole: bool, state: str
) -> None:
    """From the log alone it would lack most of its rows, and with another base it would have different ones."""
    assert (known.is_whole(0, base), known.state_of(0, base)) == (whole, state)
    assert (known.floor, known.finished_generation) == (None, 0), "nothing of it is swept"


def test_a_table_with_a_base_needs_it_until_all_of_it_is_being_read() -> None:
    """A finished backfill builds the table from the log alone."""
    assert [with_base(state).needs_base for state in ("done", "cancelled", "forgotten")] == [True] * 3
    assert not with_base("reading").needs_base
    assert with_base("done").stays_whole(complete=True, state="done") == (True, "done")
    assert with_base("done", proven=None).stays_whole(complete=False, state=IN_DOUBT) == (False, IN_DOUBT)
