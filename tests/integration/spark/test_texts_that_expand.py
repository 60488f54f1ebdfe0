"""Texts of a source that something on the way could expand: each of them stays text."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from cdcflow.model.table import Column, Table
from cdcflow.model.types import ColumnType
from cdcflow.spark import read_cut, read_live, read_log
from cdcflow.spark.cuts import published_cut
from cdcflow.spark.job import MergeReport

pytestmark = pytest.mark.spark

Merge = Callable[..., MergeReport]

HADOOP, SPARK = "${java.version}", "${env:PATH}"
TEXTS = (
    HADOOP,  # a setting of Hadoop's; first, for what is not known ends its search
    "${env.PATH}",
    SPARK,  # Spark's SQL
    "${system:java.version}",
    "${spark.app.name}",
    "$PATH `id` $(id)",  # a shell
    "{{ 7 * 7 }} {0} %s %(name)s",  # templates
    "{}",  # a default of many a JSON column
    "[red]red[/red] :smile: [/]",  # a terminal
)


def hostile_table(make_table: Callable[..., Table], *, nested: bool) -> Table:
    """A table whose names are all of these. `nested`: in a column, too, which only Spark can merge."""
    inner = pa.struct([(SPARK, pa.int64()), (HADOOP, pa.int64())]) if nested else pa.string()
    columns: dict[str, Any] = dict.fromkeys(TEXTS, "string")
    return make_table("${env:PATH} ${java.version}", schema="${env:PATH}", key=(HADOOP,), **columns, inner=inner)


@pytest.fixture(autouse=True)
def replaces(spark: Any) -> Iterator[None]:
    """The caller's session replaces variables, as Spark's own default is."""
    before = spark.conf.get("spark.sql.variable.substitute")
    spark.conf.set("spark.sql.variable.substitute", "true")
    yield
    spark.conf.set("spark.sql.variable.substitute", before)


@pytest.mark.parametrize(
    "merged_by",
    [
        "iceberg by local",
        *(
            pytest.param(name, marks=pytest.mark.long)
            for name in ("delta by local", "delta by spark", "iceberg by spark")
        ),
    ],
    indirect=True,
)
def test_what_a_source_calls_things_stays_as_it_calls_them(
    spark: Any, make_table: Callable[..., Table], hand_log: Any, warehouse: Path, merge: Merge, merged_by: str
) -> None:
    """A name or default of the source must never become the driver's environment, or end the merge."""
    nested = merged_by.endswith("spark")
    first = hostile_table(make_table, nested=nested)
    name = str(first.id)
    value: dict[str, Any] = {text: text for text in TEXTS} | {"inner": {SPARK: 1, HADOOP: 2} if nested else "x"}
    hand_log.state(first)
    hand_log.segment([(first, "c", value), (first, "c", value | {HADOOP: "b"})])
    merge(hand_log.root, warehouse)
    added = [
        Column(f"added {n} {text}", 100 + n, ColumnType(f"enum('{text}')", pa.string()), missing=text)
        for n, text in enumerate(TEXTS)
    ]
    second = replace(first, columns=(*first.columns, *added))
    new: dict[str, Any] = {column.name: column.missing for column in added}
    hand_log.segment([(second, "u", value | new | {SPARK: "changed"})])
    (report,) = merge(hand_log.root, warehouse).tables
    assert report.left_out is None
    expected = {
        value[HADOOP]: value | new | {SPARK: "changed"},
        "b": value | {HADOOP: "b"} | new,
    }

    def rows(frame: Any) -> dict[Any, Any]:
        listed = frame.drop("_offset", "_missing").collect()
        return {row[HADOOP]: row.asDict(recursive=True) for row in listed}

    assert rows(read_cut(spark, warehouse)[name]) == expected
    assert set(published_cut(spark, warehouse).tables) == {name}
    hand_log.segment([(second, "u", value | new)])
    live = read_live(spark, hand_log.root, warehouse)[name]
    expected[HADOOP] = value | new
    assert rows(live) == expected
    read = read_log(spark, hand_log.root, name, from_offset=1).orderBy("_offset").collect()
    assert [row[SPARK] for row in read] == [SPARK, SPARK, "changed", SPARK]
    assert read[-1].asDict(recursive=True)["inner"] == value["inner"]
    merge(hand_log.root, warehouse)
    assert rows(read_cut(spark, warehouse)[name]) == expected
    for statement in (warehouse / "_cdcflow_views/latest.sql").read_text().split(";\n"):
        code = "\n".join(line for line in statement.splitlines() if not line.startswith("--"))
        if code and not (merged_by.startswith("iceberg") and "VIEW" in code):  # of Iceberg the reader names a catalog
            spark.sql(code)
    if merged_by.startswith("delta"):
        assert rows(spark.table(f"`{name}`")) == expected, "the SQL for readers without cdcflow"
    environment = os.environ["PATH"].encode()
    assert not [p for p in warehouse.rglob("*") if p.is_file() and environment in p.read_bytes()]
