"""What a cut shows of tables that are read again, empty, dropped at the source, or removed by an operator."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from tests.support.log.hand_log import HandLog
from tests.support.merge.histories import make_table

from cdcflow.log.files.layout import Layout
from cdcflow.model.table import Table
from cdcflow.tables.cut import Cut
from cdcflow.tables.job.reports import MergeReport
from cdcflow.tables.local.engine import LocalEngine
from cdcflow.tables.paths import table_path

Merge = Callable[..., MergeReport]


def newest_cut(warehouse: Path, format_name: str) -> Cut:
    with closing(LocalEngine(warehouse, format_name)) as engine:
        found = engine.cuts().newest()
        assert found is not None
        return found


def rows_of(warehouse: Path, format_name: str, table: Table) -> list[dict[str, Any]]:
    with closing(LocalEngine(warehouse, format_name)) as engine:
        there = engine.table(table_path(table.id))
        assert there.snapshot() is not None
        found: list[dict[str, Any]] = there.rows().drop_columns(["_offset", "_missing"]).to_pylist()
        return sorted(found, key=lambda row: list(row.values()))


def captured(log: HandLog, table: Table, state: str = "done", **more: Any) -> None:
    """A table without any row that was read: its shape is stored next to its progress."""
    log.state(table, state, **more)
    log.progress[str(table.id)] |= {"schema": table.id.schema, "name": table.id.name, "shape": table.to_text()}


def test_a_whole_table_stays_in_cuts_while_it_is_read_again_and_once_it_is_no_longer_captured(
    format_name: str, merge: Merge, hand_log: HandLog, warehouse: Path
) -> None:
    """A reader's query would fail for hours, because of a backfill that takes nothing away from the table."""
    orders, beside = make_table("orders", id="int64"), make_table("beside", id="int64")
    hand_log.state(orders, whole_since=1)
    hand_log.segment([(orders, "c", {"id": 1}), (beside, "c", {"id": 1})])
    merge(hand_log.root, warehouse)
    for state in ("waiting", "reading", "paused", "cancelled", "failed", "forgotten"):
        hand_log.state(orders, state, 2, since=hand_log.next_offset, whole_since=1)
        hand_log.segment([(beside, "c", {"id": hand_log.next_offset})])
        merge(hand_log.root, warehouse)
        shown = newest_cut(warehouse, format_name).tables["public.orders"]
        assert (shown.state, shown.complete) == (state, True)
    assert rows_of(warehouse, format_name, orders) == [{"id": 1}]


def test_empty_table_exists_and_stays_right_when_rows_arrive_and_older_segments_have_expired(
    format_name: str, merge: Merge, hand_log: HandLog, warehouse: Path
) -> None:
    """A query over a new schema must not fail because a table has no row yet."""
    orders, beside = make_table("orders", id="int64", v="string"), make_table("beside", id="int64")
    captured(hand_log, orders, "waiting")
    hand_log.segment([(beside, "c", {"id": 1})])
    (_, report) = merge(hand_log.root, warehouse).tables
    assert (report.name, report.complete, report.left_out) == ("public.orders", False, None)
    captured(hand_log, orders)
    hand_log.segment([(beside, "c", {"id": 2})])
    (_, report) = merge(hand_log.root, warehouse).tables
    assert (report.complete, report.state) == (True, "done")
    assert newest_cut(warehouse, format_name).tables["public.orders"].complete
    assert rows_of(warehouse, format_name, orders) == []
    assert not merge(hand_log.root, warehouse).published, "nothing is new"

    first = Layout(hand_log.root).segment_offsets()[0]
    shutil.rmtree(Layout(hand_log.root).segment(*first))  # as retention does
    wider = make_table("orders", id="int64", v="string", w="int32", missing={"w": "7"})
    hand_log.segment([(orders, "c", {"id": 1, "v": "a"}), (wider, "c", {"id": 2, "v": "b", "w": 2})])
    assert merge(hand_log.root, warehouse).tables[1].complete
    assert rows_of(warehouse, format_name, orders) == [{"id": 1, "v": "a", "w": 7}, {"id": 2, "v": "b", "w": 2}]


def test_table_whose_rows_have_expired_is_not_mistaken_for_an_empty_one(
    format_name: str, merge: Merge, hand_log: HandLog, warehouse: Path
) -> None:
    """It would be shown whole, and without its rows. It returns with the backfill that the message requests."""
    orders, beside = make_table("orders", id="int64"), make_table("beside", id="int64")
    captured(hand_log, orders, since=1)
    hand_log.segment([(beside, "c", {"id": 1}), (orders, "c", {"id": 1})])
    hand_log.state(beside, since=3)
    hand_log.segment([(beside, "c", {"id": 2})])
    shutil.rmtree(Layout(hand_log.root).segment(*Layout(hand_log.root).segment_offsets()[0]))
    (_, report) = merge(hand_log.root, warehouse).tables
    assert "cdcflow backfill public.orders" in (report.left_out or "")
    assert "public.orders" not in newest_cut(warehouse, format_name).tables

    hand_log.state(orders, "done", 2, since=hand_log.next_offset)
    hand_log.segment([(orders, "r", {"id": 1})])
    assert merge(hand_log.root, warehouse).tables[1].complete
    assert rows_of(warehouse, format_name, orders) == [{"id": 1}]


def test_table_that_was_dropped_at_the_source_stays_until_an_operator_moves_its_folder_away(
    format_name: str, merge: Merge, hand_log: HandLog, warehouse: Path
) -> None:
    """A DROP TABLE must not break a report; and an operator who has moved the table away must not find it recreated, or
    every later cut unreadable. Captured again it returns.
    """
    orders, beside = make_table("orders", id="int64"), make_table("beside", id="int64")
    floats = make_table("floats", key=("f",), f="float64")  # skipped: segments are then scanned for tables
    hand_log.state(orders, whole_since=1)
    hand_log.segment([(orders, "c", {"id": 1}), (beside, "c", {"id": 1}), (floats, "c", {"f": 1.5})])
    merge(hand_log.root, warehouse)
    hand_log.state(orders, "forgotten", whole_since=1)
    hand_log.segment([(beside, "c", {"id": 2})])
    merge(hand_log.root, warehouse)
    assert newest_cut(warehouse, format_name).tables["public.orders"].state == "forgotten"

    warehouse.joinpath(*table_path(orders.id)).rename(warehouse.parent / "away")
    for n in (3, 4):
        merge(hand_log.root, warehouse)
        shown = newest_cut(warehouse, format_name)
        assert "public.orders" not in shown.tables.keys() | shown.left_out.keys()
        assert not warehouse.joinpath(*table_path(orders.id)).exists()
        hand_log.segment([(beside, "c", {"id": n})])

    hand_log.state(orders, "done", 2, since=hand_log.next_offset, whole_since=hand_log.next_offset)
    hand_log.segment([(orders, "r", {"id": 9})])
    merge(hand_log.root, warehouse)
    assert newest_cut(warehouse, format_name).tables["public.orders"].complete
    assert rows_of(warehouse, format_name, orders) == [{"id": 9}]
