"""The edge values of every type come into tables by Spark bit for bit, in every mode: -0.0 is not 0.0."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.support.log.hand_log import HandLog
from tests.support.values.edges import MODES, EdgeTables

from cdcflow.spark import job, read_cut, read_live
from cdcflow.tables.formats import FORMATS

pytestmark = pytest.mark.spark

TURNS = 4
"""Inserts, changes twice, changes once, and rows that are read again."""


@pytest.mark.long
@pytest.mark.parametrize("table_format", FORMATS)
def test_each_value_is_the_fold_s_bit_for_bit(
    spark: Any, hand_log: HandLog, warehouse: Path, table_format: str
) -> None:
    """Values that `cdcflow.local` changed silently must be exact here, too; structs and wide decimals are merged by
    Spark only.
    """
    made = EdgeTables(hand_log, by_spark=True)
    for turn in range(TURNS):
        made.write(turn)
        if turn == 2:
            live = read_live(spark, hand_log.root, warehouse, policies=made.policies)
            for mode, table in made.tables.items():
                found = made.differences(mode, live[str(table.id)].toArrow().to_pylist())
                assert not found[:5], f"live {mode}"
        if turn % 2:  # two of them come in one range
            report = job.merge(spark, hand_log.root, warehouse, table_format=table_format, policies=made.policies)
            assert [t.left_out for t in report.tables] == [None] * len(MODES)
            cut = read_cut(spark, warehouse)
            for mode, table in made.tables.items():
                found = made.differences(mode, cut[str(table.id)].toArrow().to_pylist())
                assert not found[:5], f"{mode}, turn {turn}"
