"""Policies of how tables follow their source, in a merge: what is refused, and that its remedy works to the letter."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from tests.support.log.hand_log import HandLog
from tests.support.merge.histories import make_table

from cdcflow.model.table import Table
from cdcflow.tables.job.reports import MergeReport
from cdcflow.tables.local.engine import LocalEngine
from cdcflow.tables.merge.policy import Policies, TablePolicy
from cdcflow.tables.paths import table_path

Merge = Callable[..., MergeReport]


def rows_of(warehouse: Path, format_name: str, table: Table) -> list[dict[str, Any]]:
    with closing(LocalEngine(warehouse, format_name)) as engine:
        there = engine.table(table_path(table.id))
        assert there.snapshot() is not None
        found: list[dict[str, Any]] = there.rows().drop_columns(["_offset", "_missing"]).to_pylist()
        return sorted(found, key=lambda row: list(row.values()))


def as_the_remedy_says(left_out: str) -> Policies:
    """The settings that a message requests."""
    found = re.search(r"set merge\.tables\.each\.'([^']+)'\.(\w+) to (\w+)", left_out)
    assert found is not None, left_out
    return Policies(each={found[1]: TablePolicy(**{found[2]: found[3]})})  # type: ignore[arg-type]  # the field's type


def test_change_that_add_only_refuses_is_applied_when_its_remedy_is_followed(
    format_name: str, merge: Merge, hand_log: HandLog, warehouse: Path
) -> None:
    """The other tables are merged in the meantime, and afterwards the policy may be set back."""
    orders, beside = make_table("orders", id="int64", qty="int32"), make_table("beside", id="int64")
    policies = Policies(each={"public.orders": TablePolicy(evolve="add_only")})
    hand_log.segment([(orders, "c", {"id": 1, "qty": 1}), (beside, "c", {"id": 1})])
    merge(hand_log.root, warehouse, policies=policies)
    wider = make_table("orders", id="int64", qty="int32", note="string")
    hand_log.segment([(wider, "c", {"id": 2, "qty": 2, "note": "two"})])
    assert merge(hand_log.root, warehouse, policies=policies).tables[1].left_out is None

    renamed = make_table("orders", id="int64", amount="int32", note="string")
    hand_log.segment([(renamed, "u", {"id": 1, "amount": 10, "note": None}), (beside, "c", {"id": 2})])
    report = merge(hand_log.root, warehouse, policies=policies)
    assert report.published
    left_out = report.tables[1].left_out or ""
    assert "column qty was renamed to amount" in left_out
    assert [row["qty"] for row in rows_of(warehouse, format_name, orders)] == [1, 2], "the table is unchanged"

    assert merge(hand_log.root, warehouse, policies=as_the_remedy_says(left_out)).tables[1].left_out is None
    hand_log.segment([(renamed, "u", {"id": 2, "amount": 20, "note": "two"})])
    assert merge(hand_log.root, warehouse, policies=policies).tables[1].left_out is None
    assert rows_of(warehouse, format_name, orders) == [
        {"id": 1, "amount": 10, "note": None},
        {"id": 2, "amount": 20, "note": "two"},
    ]


def test_type_that_no_column_holds_gets_a_column_next_to_the_old_values_when_its_remedy_is_followed(
    format_name: str, merge: Merge, hand_log: HandLog, warehouse: Path
) -> None:
    """A value that was not sent again stays in the old column, and has NULL in the new one."""
    orders, beside = make_table("orders", id="int64", amount="int32"), make_table("beside", id="int64")
    hand_log.segment([*((orders, "c", {"id": n, "amount": n}) for n in (1, 2)), (beside, "c", {"id": 1})])
    merge(hand_log.root, warehouse)
    retyped = make_table("orders", id="int64", amount="string")
    changes: list[Any] = [(orders, "u", {"id": 1, "amount": 7}), (retyped, "u", {"id": 1, "amount": "seven"})]
    hand_log.segment([*changes, (retyped, "c", {"id": 3, "amount": "three"})])
    left_out = merge(hand_log.root, warehouse).tables[1].left_out or ""
    assert merge(hand_log.root, warehouse, policies=as_the_remedy_says(left_out)).tables[1].left_out is None
    wanted = [
        {"id": 1, "amount": 7, "amount__2": "seven"},
        {"id": 2, "amount": 2, "amount__2": None},
        {"id": 3, "amount": None, "amount__2": "three"},
    ]
    assert rows_of(warehouse, format_name, orders) == wanted
    hand_log.segment([(retyped, "u", {"id": 2, "amount": "two"})])
    merge(hand_log.root, warehouse)
    assert rows_of(warehouse, format_name, orders)[1] == {"id": 2, "amount": 2, "amount__2": "two"}
