"""What a column holds that the source has dropped, in every mode, however often is merged and read again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.support.log.hand_log import HandLog
from tests.support.merge.histories import make_table

from cdcflow import local
from cdcflow.model.table import Table
from cdcflow.tables.job.reports import MergeReport
from cdcflow.tables.merge.policy import Mode, Policies, TablePolicy

BEFORE = make_table("orders", id="int64", qty="int32", note="string")
AFTER = make_table("orders", id="int64", qty="int32")


@pytest.fixture
def merged(hand_log: HandLog, warehouse: Path, merge: Callable[..., MergeReport]) -> Callable[..., list[Any]]:
    """merged(mode): the rows after a merge, by key and age, without what does not matter here."""

    def rows(mode: Mode) -> list[Any]:
        merge(hand_log.root, warehouse, policies=Policies(TablePolicy(mode=mode)))
        found = local.read_cut(warehouse, incomplete=True)["public.orders"].to_pylist()
        ends = ("_valid_from", "_valid_to") if mode == "history" else ("_offset",)
        return sorted(
            (tuple(row.get(name) for name in ("id", *ends, "qty", "note", "_missing")) for row in found), key=repr
        )

    return rows


def backfill(log: HandLog, shape: Table, *rows: dict[str, Any]) -> None:
    """A backfill that finds these rows, and is done."""
    generation = int(log.progress.get("public.orders", {}).get("generation", 0)) + 1
    log.state(shape, generation=generation, since=log.next_offset, whole_since=log.next_offset)
    log.segment([(shape, "r", row) for row in rows])


@pytest.mark.parametrize("often", [True, False])
def test_a_version_that_begins_later_has_nothing_of_a_dropped_column(
    hand_log: HandLog, merged: Callable[..., list[Any]], often: bool
) -> None:
    """As in docs/tables.md. It kept the value, and the next backfill gave each unchanged row a second version, because
    a row that is read has no such value.
    """
    hand_log.has_transactions = True
    backfill(hand_log, BEFORE, {"id": 1, "qty": 1, "note": "a"}, {"id": 2, "qty": 1, "note": "b"})
    if often:
        merged("history")
    hand_log.segment([(AFTER, "u", {"id": 2, "qty": 2}), (AFTER, "c", {"id": 3, "qty": 3})])
    if often:
        merged("history")
    backfill(hand_log, AFTER, *({"id": n, "qty": n} for n in (1, 2, 3)))
    if often:
        merged("history")
    hand_log.segment([(AFTER, "u", {"id": 1, "qty": 7})])
    assert merged("history") == [
        (1, 1, 8, 1, "a", None),
        (1, 8, None, 7, None, None),
        (2, 2, 3, 1, "b", None),
        (2, 3, None, 2, None, None),
        (3, 4, None, 3, None, None),
    ]


def test_a_column_that_is_missed_and_dropped_is_missed_no_longer(
    hand_log: HandLog, merged: Callable[..., list[Any]]
) -> None:
    """The version that lacks it was read again at each backfill, and became a new one each time."""
    hand_log.has_transactions = True
    hand_log.state(BEFORE, "reading", since=1)
    hand_log.segment([(BEFORE, "u", {"id": 1, "qty": 1, "_unchanged": ["note"]})])
    merged("history")
    for _ in range(2):
        backfill(hand_log, AFTER, {"id": 1, "qty": 1})
        assert merged("history") == [(1, 1, None, 1, None, ["note"])]
    hand_log.segment([(AFTER, "u", {"id": 1, "qty": 2})])
    assert merged("history")[1:] == [(1, 4, None, 2, None, None)]


@pytest.mark.parametrize("often", [True, False])
@pytest.mark.parametrize("mode", ["current", "soft_delete"])
def test_row_inserted_after_a_column_was_dropped_has_null_in_it(
    hand_log: HandLog, merged: Callable[..., list[Any]], mode: Mode, often: bool
) -> None:
    """A column that is added with a default and dropped in one range gave it to rows that were inserted later."""
    added = make_table("orders", id="int64", qty="int32", note="string", missing={"note": "'x'"})
    hand_log.has_transactions = True
    backfill(hand_log, AFTER, {"id": 1, "qty": 1}, {"id": 2, "qty": 1})
    for shape, row in ((added, {"id": 2, "qty": 2, "note": "n"}), (AFTER, {"id": 3, "qty": 3})):
        if often:
            merged(mode)
        hand_log.segment([(shape, "u" if row["id"] == 2 else "c", row)])
    assert [(row[0], row[3]) for row in merged(mode)][2:] == [(3, None)]
