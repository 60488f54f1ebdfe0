"""Policies of how tables follow their source, of tables whose rows are deleted ones too, changes or versions."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.support.log.hand_log import HandLog
from tests.support.merge.histories import Step, make_table

from cdcflow.tables.job.reports import MergeReport
from cdcflow.tables.job.table_merge import TableMerge
from cdcflow.tables.local.engine import LocalEngine
from cdcflow.tables.merge.policy import Mode, Policies, TablePolicy
from cdcflow.tables.paths import table_path

Merge = Callable[..., MergeReport]

MODES: tuple[Mode, ...] = ("soft_delete", "append", "history")
ORDERS, BESIDE = make_table("orders", id="int64", amount="int32"), make_table("beside", id="int64")
RETYPED = make_table("orders", id="int64", amount="string")
BACK = make_table("orders", id="int64", amount="int64")


@pytest.fixture
def hand_log(tmp_path: Path) -> HandLog:
    return HandLog(tmp_path / "log", has_transactions=True)


def rows_of(warehouse: Path, format_name: str, *columns: str) -> list[tuple[Any, ...]]:
    """The rows of `orders`, in order of their offsets."""
    with closing(LocalEngine(warehouse, format_name)) as engine:
        there = engine.table(table_path(ORDERS.id))
        assert there.snapshot() is not None
        found = there.rows().to_pylist()
    order = "_valid_from" if "_valid_from" in columns else "_offset"
    return [tuple(row[c] for c in columns) for row in sorted(found, key=lambda row: int(row[order]))]


def one_table(**policy: Any) -> Policies:
    return Policies(each={str(ORDERS.id): TablePolicy(**policy)})


SEGMENTS: list[list[Step]] = [
    [(ORDERS, "c", {"id": 1, "amount": 1}), (ORDERS, "c", {"id": 2, "amount": 2})],
    [
        (ORDERS, "u", {"id": 1, "amount": 7}),
        (RETYPED, "u", {"id": 1, "amount": "seven"}),
        (RETYPED, "u", {"id": 1, "_unchanged": ["amount"]}),
        (RETYPED, "d", {"id": 2}),
    ],
    [(BACK, "u", {"id": 1, "amount": 9})],
]
MADE_AGAIN: list[Step] = [(replace(RETYPED, incarnation=2), "c", {"id": 3, "amount": "three"})]
COLUMNS: dict[str, tuple[str, ...]] = {
    "soft_delete": ("id", "amount", "amount__2", "_is_deleted"),
    "append": ("_op", "id", "amount", "amount__2", "_unchanged"),
    "history": ("_valid_from", "_valid_to", "id", "amount", "amount__2"),
}
BEFORE: dict[str, list[tuple[Any, ...]]] = {
    "soft_delete": [(2, 2, None, True), (1, 9, "seven", False)],
    "append": [
        ("c", 1, 1, None, None),
        ("c", 2, 2, None, None),
        ("u", 1, 7, None, None),
        ("u", 1, None, "seven", None),
        ("u", 1, None, None, ["amount__2"]),
        ("d", 2, None, None, None),
        ("u", 1, 9, None, None),
    ],
    "history": [
        (1, 3, 1, 1, None),
        (2, 6, 2, 2, None),
        (3, 4, 1, 7, None),
        (4, 5, 1, None, "seven"),
        (5, 7, 1, None, "seven"),
        (7, None, 1, 9, None),
    ],
}
AFTER: dict[str, list[tuple[Any, ...]]] = {
    "soft_delete": [(3, None, "three", False)],
    "append": [*BEFORE["append"], ("c", 3, None, "three", None)],
    "history": [*BEFORE["history"][:-1], (7, 8, 1, 9, None), (8, None, 3, None, "three")],
}


@pytest.mark.spread(4)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("in_one_go", [False, True])
def test_column_is_added_next_to_the_one_of_another_type_in_every_mode(
    mode: Mode, format_name: str, merge: Merge, hand_log: HandLog, warehouse: Path, *, in_one_go: bool
) -> None:
    """Each value is in the column of its type, however merges cut the log, also when the table is recreated."""
    policies = one_table(mode=mode, incompatible="new_column")
    for segment in SEGMENTS:
        hand_log.segment(segment)
        if not in_one_go:
            assert merge(hand_log.root, warehouse, policies=policies).tables[0].left_out is None
    if in_one_go and mode != "soft_delete":  # otherwise it would have rows of the new table only
        hand_log.segment(MADE_AGAIN)
        merge(hand_log.root, warehouse, policies=policies)
    else:
        merge(hand_log.root, warehouse, policies=policies)
        assert rows_of(warehouse, format_name, *COLUMNS[mode]) == BEFORE[mode]
        hand_log.segment(MADE_AGAIN)
        merge(hand_log.root, warehouse, policies=policies)
    assert rows_of(warehouse, format_name, *COLUMNS[mode]) == AFTER[mode]


@pytest.mark.spread(2)
@pytest.mark.parametrize("mode", MODES)
def test_what_a_policy_does_not_allow_is_refused_in_every_mode(
    mode: Mode, merge: Merge, hand_log: HandLog, warehouse: Path
) -> None:
    """It breaks a reader of changes or of versions as well."""
    hand_log.segment([*SEGMENTS[0], (BESIDE, "c", {"id": 1})])
    frozen = one_table(mode=mode, evolve="freeze")
    merge(hand_log.root, warehouse, policies=frozen)
    wider = make_table("orders", id="int64", amount="int32", note="string")
    hand_log.segment([(wider, "c", {"id": 3, "amount": 3, "note": "three"}), (BESIDE, "c", {"id": 2})])
    left_out = merge(hand_log.root, warehouse, policies=frozen).tables[1].left_out or ""
    assert "column note was added" in left_out
    assert merge(hand_log.root, warehouse, policies=one_table(mode=mode)).tables[1].left_out is None


@pytest.mark.parametrize("mode", ["append", "history"])
def test_ddl_before_the_first_merge_of_a_table_is_not_one_of_its_changes(
    mode: Mode, merge: Merge, hand_log: HandLog, warehouse: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such a table comes through several shapes before anybody reads it, also in a second merge after one that died."""
    again = replace(make_table("orders", id="int64", amount="int64", note="string"), incarnation=2)
    hand_log.segment([*SEGMENTS[0], (again, "c", {"id": 3, "amount": 3, "note": "three"})])
    frozen = one_table(mode=mode, evolve="freeze")
    with monkeypatch.context() as patch:
        patch.setattr(TableMerge, "_looked_at_again", dies)
        with pytest.raises(KeyboardInterrupt):
            merge(hand_log.root, warehouse, policies=frozen)
    assert warehouse.joinpath(*table_path(ORDERS.id)).exists()
    assert merge(hand_log.root, warehouse, policies=frozen).tables[0].left_out is None


def dies(_: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("mode", MODES)
def test_an_empty_table_is_one_of_its_mode(
    mode: Mode, format_name: str, merge: Merge, hand_log: HandLog, warehouse: Path
) -> None:
    """It has its columns before its first row, and the first rows are merged as into any other table."""
    policies = one_table(mode=mode)
    hand_log.state(ORDERS)
    hand_log.progress[str(ORDERS.id)] |= {"schema": "public", "name": "orders", "shape": ORDERS.to_text()}
    hand_log.segment([(BESIDE, "c", {"id": 1})])
    report = merge(hand_log.root, warehouse, policies=policies).tables[1]
    assert (report.name, report.complete, report.left_out) == ("public.orders", True, None)
    columns = {"soft_delete": ["_is_deleted"], "append": ["_op"], "history": ["_valid_from"]}[mode]
    assert rows_of(warehouse, format_name, "id", "amount", *columns) == []
    hand_log.segment([(ORDERS, "c", {"id": 1, "amount": 1}), (ORDERS, "d", {"id": 1})])
    merge(hand_log.root, warehouse, policies=policies)
    expected = {"soft_delete": [(1, True)], "append": [(1, "c"), (1, "d")], "history": [(1, 2)]}[mode]
    assert rows_of(warehouse, format_name, "id", *columns) == expected
