"""Dates and timestamps outside the years 1 to 9999, merged by each engine into each format and read by Spark."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.support.log.hand_log import HandLog

from cdcflow.model.table import Table
from cdcflow.spark.job import MergeReport

FIRST, LAST = -2_440_588, 2_145_031_948
"""PostgreSQL's first and last date (4713 BC, the year 5874897), in days since 1970."""
EARLY, LATE = -210_866_803_200_000_000, 2**63 - 2
"""Its first timestamp, and the last one in microseconds since 1970."""


@pytest.mark.spread(1)
def test_dates_beyond_the_calendars_of_most_come_through_exactly(
    spark: Any,
    make_table: Callable[..., Table],
    hand_log: HandLog,
    warehouse: Path,
    merge: Callable[..., MergeReport],
    sql_of: Callable[[Table], str],
) -> None:
    """They would stop the merge, or be other dates: Spark has had two calendars."""
    moment = pa.timestamp("us")
    table = make_table("far", id="int64", d=pa.date32(), at=moment, zoned=pa.timestamp("us", "UTC"))

    def row(id_: int, day: int, micros: int) -> dict[str, Any]:
        at = pa.scalar(micros, pa.int64())
        return {"id": id_, "d": day, "at": at.cast(moment), "zoned": at.cast(pa.timestamp("us", "UTC"))}

    hand_log.segment([(table, "c", row(1, FIRST, EARLY)), (table, "c", row(2, LAST, LATE)), (table, "c", row(3, 0, 0))])
    merge(hand_log.root, warehouse)
    hand_log.segment([(table, "u", row(3, LAST, EARLY))])
    assert merge(hand_log.root, warehouse).tables[0].left_out is None
    columns = ("id", "unix_date(d)", "unix_micros(zoned)", "unix_micros(CAST(at AS timestamp))")
    found = sorted(tuple(r) for r in spark.table(sql_of(table)).selectExpr(*columns).collect())
    assert found == [(1, FIRST, EARLY, EARLY), (2, LAST, LATE, LATE), (3, LAST, EARLY, EARLY)]
