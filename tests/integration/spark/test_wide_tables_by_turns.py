"""Tables that every reader opens (`merge.tables.readable: wide`): both engines write them, each after the other."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import deltalake
import pytest
from tests.support.log.hand_log import HandLog

from cdcflow import local
from cdcflow.model.table import Table
from cdcflow.spark import job, read_cut
from cdcflow.tables.merge.policy import Policies, TablePolicy
from cdcflow.tables.paths import table_path


@pytest.mark.long
def test_engines_alternate_at_a_wide_table_before_and_after_it_is_mapped(
    spark: Any, make_table: Callable[..., Table], hand_log: HandLog, warehouse: Path
) -> None:
    """Spark gives columns ids when it maps them; were these others than their places, names would be mixed up when a
    merge died in the middle. And neither engine may bring in what readers do not know."""
    wide = Policies(TablePolicy(readable="wide"))
    by_spark = functools.partial(job.merge, spark, table_format="delta")
    orders = make_table("orders", id="int64", v="string")
    folder = warehouse.joinpath(*table_path(orders.id))
    hand_log.state(orders)
    rows: dict[int, tuple[Any, ...]] = {}
    for turn, merge in enumerate((by_spark, local.merge, by_spark)):
        ids = range(turn * 10, turn * 10 + 10)
        changes: list[Any] = [(orders, "c", {"id": n, "v": f"{n}"}) for n in ids]
        rows |= {n: (f"{n}",) for n in ids}
        if turn:
            changes.append((orders, "u", {"id": 1, "v": f"turn {turn}"}))
            rows[1] = (f"turn {turn}",)
        hand_log.segment(changes)
        assert merge(hand_log.root, warehouse, policies=wide).published  # type: ignore[operator]  # both are called so
        shown = deltalake.DeltaTable(folder).to_pyarrow_table().to_pylist()
        assert {row["id"]: (row["v"],) for row in shown} == rows
    assert deltalake.DeltaTable(folder).protocol().min_reader_version == 1

    added = make_table("orders", id="int64", v="string", w="string")
    swapped = make_table("orders", numbers={"id": 1, "w": 2, "v": 3}, id="int64", w="string", v="string")
    hand_log.segment([(added, "u", {"id": 2, "v": "v", "w": "w"}), (swapped, "u", {"id": 3, "w": "v", "v": "w"})])
    by_spark(hand_log.root, warehouse, policies=wide)
    hand_log.segment([(swapped, "u", {"id": 4, "w": "v", "v": "w"})])
    assert local.merge(hand_log.root, warehouse, policies=wide).tables[0].left_out is None
    hand_log.segment([(swapped, "u", {"id": 5, "w": "v", "v": "w"})])
    by_spark(hand_log.root, warehouse, policies=wide)
    frame = read_cut(spark, warehouse)["public.orders"]
    found = {row["id"]: (row["w"], row["v"]) for row in frame.collect()}
    assert found == {n: ("v", "w") if n in (2, 3, 4, 5) else (*v, None) for n, v in rows.items()}
    newest = spark.sql(f"DESCRIBE DETAIL delta.`{folder}`").first()
    assert "deletionVectors" not in newest["tableFeatures"]
