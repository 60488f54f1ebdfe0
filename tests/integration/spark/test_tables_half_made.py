"""Delta tables that another driver had only begun to make."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.support.log.hand_log import HandLog

from cdcflow.model.table import Table
from cdcflow.spark import job, read_cut

pytestmark = pytest.mark.spark


def test_empty_folders_of_a_driver_that_died_are_no_table_and_foreign_files_are_kept(
    spark: Any, make_table: Callable[..., Table], hand_log: HandLog, warehouse: Path
) -> None:
    """Delta creates folders before its first commit, and then takes them for another program's data."""
    orders, items = make_table("orders", id="int64"), make_table("items", id="int64")
    for table in (orders, items):
        hand_log.state(table)
    (warehouse / "public" / "orders" / "_delta_log" / "_staged_commits").mkdir(parents=True)
    hand_log.segment([(orders, "c", {"id": 1})])
    assert job.merge(spark, hand_log.root, warehouse, table_format="delta").published
    assert [row["id"] for row in read_cut(spark, warehouse)["public.orders"].collect()] == [1]

    theirs = warehouse / "public" / "items" / "notes" / "of-somebody.txt"
    theirs.parent.mkdir(parents=True)
    theirs.write_text("mine")
    hand_log.segment([(items, "c", {"id": 1})])
    (left_out,) = (t for t in job.merge(spark, hand_log.root, warehouse).tables if t.left_out)
    assert "move that folder away, and merge again" in (left_out.left_out or "")
    assert theirs.read_text() == "mine"
    # The remedy, to the letter.
    (warehouse / "public" / "items").rename(warehouse.parent / "away")
    assert not [t for t in job.merge(spark, hand_log.root, warehouse).tables if t.left_out]
    assert [row["id"] for row in read_cut(spark, warehouse)["public.items"].collect()] == [1]
