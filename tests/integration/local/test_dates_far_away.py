"""Dates and timestamps outside Python's range: the sources have them, and so have the tables."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.support.log.hand_log import HandLog
from tests.support.merge.histories import make_table

from cdcflow.tables.job.reports import MergeReport
from cdcflow.tables.local.engine import LocalEngine
from cdcflow.tables.merge.refusals import CannotFollow
from cdcflow.tables.paths import table_path

FIRST, LAST = -2_440_588, 2_145_031_948
"""PostgreSQL's first and last date (4713 BC, the year 5874897), in days since 1970."""
EARLY, LATE = -210_866_803_200_000_000, 2**63 - 2
"""Its first timestamp, and the last one in microseconds since 1970."""


def test_dates_beyond_the_calendars_of_most_come_through_exactly(
    format_name: str, merge: Callable[..., MergeReport], hand_log: HandLog, warehouse: Path
) -> None:
    """They would stop the merge of all tables, or become other dates. As keys they find their rows. What PyIceberg
    cannot write is delegated to Spark, or its table is skipped with an error that names it.
    """
    moment = pa.timestamp("us")
    table = make_table("far", key=("d",), d=pa.date32(), at=moment, zoned=pa.timestamp("us", "UTC"), v="int32")

    def row(day: int, micros: int, v: int) -> dict[str, Any]:
        at = pa.scalar(micros, pa.int64())
        return {"d": day, "at": at.cast(moment), "zoned": at.cast(pa.timestamp("us", "UTC")), "v": v}

    rows = [row(FIRST, EARLY, 1), row(LAST, LATE, 2), row(0, 0, 3)]
    hand_log.segment([(table, "c", one) for one in rows])
    if format_name == "iceberg":
        with pytest.raises(CannotFollow, match=r"its column d has dates before the year 1(?s:.*)merge\.engine to auto"):
            merge(hand_log.root, warehouse)
        return
    assert merge(hand_log.root, warehouse).tables[0].left_out is None
    hand_log.segment([(table, "u", row(LAST, EARLY, 20)), (table, "d", {"d": 0})])
    assert merge(hand_log.root, warehouse).tables[0].left_out is None
    with closing(LocalEngine(warehouse, format_name)) as engine:
        there = engine.table(table_path(table.id))
        assert there.snapshot() is not None
        found = there.rows().sort_by("v")
    assert found.column("d").cast(pa.int32()).to_pylist() == [FIRST, LAST]
    assert found.column("at").cast(pa.int64()).to_pylist() == [EARLY, EARLY]
    assert found.column("zoned").cast(pa.int64()).to_pylist() == [EARLY, EARLY]
