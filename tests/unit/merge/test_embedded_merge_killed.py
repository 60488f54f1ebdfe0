"""Schema changes in the merge's own SQL on an embedded engine, with the job killed at each of its commits."""

from __future__ import annotations

import itertools

import pytest
from tests.support.merge.embedded_engine import Died, EmbeddedWarehouse
from tests.support.merge.histories import State, Written, make_table

from cdcflow.log.fold.fold import LogChange
from cdcflow.model.table import Table

BEFORE = make_table("orders", id="int64", a="string", b="string", c="int32")
SWAPPED = make_table(
    "orders",
    numbers={"id": 1, "b": 2, "a": 3, "c": 4, "d": 5},
    missing={"d": "7"},
    id="int64",
    b="string",
    a="string",
    c="int64",
    d="int32",
)
AGAIN = make_table(
    "orders", incarnation=2, numbers={"id": 1, "b": 2, "e": 3, "c": 4}, id="int64", b="string", e="string", c="int64"
)

FIRST: list[Written] = [
    (BEFORE, LogChange(1, "c", {"id": 1, "a": "a1", "b": "b1", "c": 1})),
    (BEFORE, LogChange(2, "u", {"id": 2, "b": "b2", "c": 2}, frozenset({"a"}))),
]
SECOND: list[Written] = [
    (SWAPPED, LogChange(3, "c", {"id": 3, "b": "new a", "a": "new b", "c": 2**40, "d": None})),
    (SWAPPED, LogChange(4, "u", {"id": 4, "b": "x", "c": 4, "d": 4}, frozenset({"a"}))),
]
THIRD: list[Written] = [(AGAIN, LogChange(5, "c", {"id": 5, "b": "b5", "e": "e5", "c": 5}))]

SHOWN = {
    (1,): ({"id": 1, "b": "a1", "a": "b1", "c": 1, "d": 7}, frozenset(), 1, 1),
    (2,): ({"id": 2, "a": "b2", "c": 2, "d": 7}, frozenset({"b"}), 2, 1),
    (3,): ({"id": 3, "b": "new a", "a": "new b", "c": 2**40, "d": None}, frozenset(), 3, 1),
    (4,): ({"id": 4, "b": "x", "c": 4, "d": 4}, frozenset({"a"}), 4, 1),
}


def after_a_death(commit: int, written: list[Written], shape: Table) -> State | None:
    """The table after the run that follows a merge which died at this commit, or did not die (`None`)."""
    warehouse = EmbeddedWarehouse()
    warehouse.merge("orders", FIRST, at=0)
    warehouse.commits_left = commit
    try:
        warehouse.merge("orders", written, at=1)
        return None
    except Died:
        warehouse.commits_left = None
        warehouse.merge("orders", written, at=1)
        return warehouse.state("orders", shape)
    finally:
        warehouse.close()


@pytest.mark.spread(1)
@pytest.mark.parametrize(
    ("written", "shape", "expected"),
    [
        (SECOND, SWAPPED, SHOWN),
        (THIRD, AGAIN, {(5,): ({"id": 5, "b": "b5", "e": "e5", "c": 5}, frozenset(), 5, 1)}),
    ],
    ids=["names swapped, a type widened, a column added", "made again"],
)
def test_a_schema_change_that_was_cut_off_is_finished(written: list[Written], shape: Table, expected: State) -> None:
    """G10, G25: each statement may have been the last of its run, and rows that miss a column know which it is now."""
    deaths = 0
    for commit in itertools.count():
        found = after_a_death(commit, written, shape)
        if found is None:
            break
        assert found == expected, f"killed at commit {commit}"
        deaths += 1
    assert deaths > 4
