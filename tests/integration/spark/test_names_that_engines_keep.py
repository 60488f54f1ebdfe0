"""Columns of names that Spark, Delta, Iceberg, Parquet or DuckDB keep for themselves."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cdcflow.model.table import Table
from cdcflow.spark import read_cut, read_live, read_log
from cdcflow.spark.engine import KEPT_NAMES
from cdcflow.spark.job import MergeReport

pytestmark = pytest.mark.spark

NAMES = (
    "_tmp_metadata_row_index",  # Spark numbers rows in it, whatever the file has
    "_change_type",  # Delta's change feed
    "file_row_number",  # DuckDB
)
KEPT = {"delta": "_metadata", "iceberg": "_file"}


@pytest.mark.spread(1)
def test_a_column_has_the_sources_values_whatever_it_is_called(
    spark: Any,
    make_table: Callable[..., Table],
    hand_log: Any,
    warehouse: Path,
    merge: Callable[..., MergeReport],
    merged_by: str,
    format_name: str,
) -> None:
    """Such a column ended the merge of all tables, or had the numbers of its rows in a file in place of its values. A
    table that Spark has no room for is skipped with an error that names it; the others are merged, and the printed
    message helps.
    """
    names = [name for name in NAMES if merged_by != "delta by spark" or name not in KEPT_NAMES["delta"]]
    tables = {name: make_table(f"t{n}", id="int64", **{name: "int64"}, other="string") for n, name in enumerate(names)}
    fine = make_table("fine", id="int64")
    bad = make_table("bad", id="int64", **{KEPT[format_name]: "int64"})
    is_refused = merged_by.endswith("spark")
    for table in (*tables.values(), fine, *([bad] if is_refused else [])):
        hand_log.state(table)
    hand_log.segment(
        [(t, "c", {"id": n, name: 70 + n, "other": "a"}) for name, t in tables.items() for n in range(3)]
        + [(fine, "c", {"id": 1})]
        + ([(bad, "c", {"id": 1, KEPT[format_name]: 1})] if is_refused else [])
    )
    merge(hand_log.root, warehouse)
    hand_log.segment(
        [(t, "u", {"id": 1, name: 90, "_unchanged": ["other"]}) for name, t in tables.items()]
        + [(t, "d", {"id": 2}) for t in tables.values()]
        + [(fine, "c", {"id": 2})]
    )
    report = merge(hand_log.root, warehouse)
    assert report.published
    left_out = {t.name: t.left_out for t in report.tables if t.left_out is not None}
    assert left_out.keys() == ({"public.bad"} if is_refused else set())
    shown = read_cut(spark, warehouse)
    live = read_live(spark, hand_log.root, warehouse, [str(t.id) for t in tables.values()])
    for name, table in tables.items():
        expected = [(0, 70, "a"), (1, 90, "a")]
        for frames in (shown, live):
            rows = frames[str(table.id)].select("id", f"`{name}`", "other").collect()
            assert sorted(map(tuple, rows)) == expected, name
        log = read_log(spark, hand_log.root, str(table.id), from_offset=1)
        assert sorted(row[0] for row in log.select(f"`{name}`").collect() if row[0] is not None) == [70, 71, 72, 90]
    assert shown["public.fine"].count() == 2
    if not is_refused:
        return
    (why,) = left_out.values()
    assert f"its column {KEPT[format_name]} has a name that {format_name} keeps for itself" in why
    assert "rename the column at the source, then run `cdcflow backfill public.bad` and `cdcflow merge`" in why
    renamed = make_table("bad", id="int64", other="int64")
    hand_log.state(renamed, generation=2, since=hand_log.next_offset)
    hand_log.segment([(renamed, "r", {"id": 1, "other": 5})])
    assert not [t for t in merge(hand_log.root, warehouse).tables if t.left_out is not None]
    found = read_cut(spark, warehouse, tables=["public.bad"])["public.bad"].select("id", "other").collect()
    assert list(map(tuple, found)) == [(1, 5)]
