"""However the merge of one table by Spark ends: the others are merged, and the printed message helps."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.support.log.hand_log import HandLog
from tests.support.merge.histories import make_table
from tests.support.tables.damages import DAMAGES, damage

from cdcflow.spark import job, published_cut, read_cut
from cdcflow.spark.formats import table_format
from cdcflow.spark.formats.delta import DeltaTable
from cdcflow.spark.formats.iceberg import IcebergTable
from cdcflow.spark.runtime.failures import of_spark
from cdcflow.spark.sql import StatementTable
from cdcflow.tables.formats import FORMATS
from cdcflow.tables.job.reports import MergeReport
from cdcflow.tables.paths import Warehouse, table_path

pytestmark = pytest.mark.spark

ORDERS = make_table("orders", id="int64", v="int32")
FINE = make_table("fine", id="int64", v="int32")
WIDER = make_table("orders", id="int64", v="int32", added="string")
TABLES: Mapping[str, type[StatementTable]] = {"delta": DeltaTable, "iceberg": IcebergTable}
DAMAGED = [(name, what) for name, listed in DAMAGES.items() for what in listed]
STEPS = ("commit", "fold", "pin")

Merge = Callable[[str, HandLog, Path], MergeReport]


@pytest.fixture
def merged(spark: Any, hand_log: HandLog, warehouse: Path) -> Callable[[str], MergeReport]:
    """merged("delta"): a merge of two tables, by Spark."""
    for table in (ORDERS, FINE):
        hand_log.state(table)
    hand_log.segment([(t, "c", {"id": n, "v": n}) for t in (ORDERS, FINE) for n in range(20)])
    return lambda format_name: functools.partial(job.merge, spark, table_format=format_name)(hand_log.root, warehouse)


def left_out(report: MergeReport) -> dict[str, str]:
    return {t.name: t.left_out for t in report.tables if t.left_out is not None}


def rows(spark: Any, warehouse: Path, table: str) -> dict[int, int]:
    frame = read_cut(spark, warehouse, tables=[table])[table]
    return {row["id"]: row["v"] for row in frame.collect()}


@pytest.mark.spread(1)
@pytest.mark.parametrize(("format_name", "what"), DAMAGED)
def test_damaged_table_is_skipped_with_its_name_and_the_printed_remedy_helps(
    spark: Any, hand_log: HandLog, warehouse: Path, merged: Callable[[str], MergeReport], format_name: str, what: str
) -> None:
    """One damaged file of one table ended the merge of all, and neither was named."""
    merged(format_name)
    folder = warehouse / "public" / "orders"
    name = damage(folder, what)
    hand_log.segment([(ORDERS, "u", {"id": 1, "v": -1}), (FINE, "u", {"id": 1, "v": -1})])
    report = merged(format_name)
    assert report.published
    assert left_out(report).keys() == {"public.orders"}
    (why,) = left_out(report).values()
    assert name in why or str(folder) in why, why
    assert "move the table's folder away" in why
    assert rows(spark, warehouse, "public.fine")[1] == -1
    assert read_cut(spark, warehouse).keys() == {"public.fine"}

    folder.rename(warehouse.parent / "moved away")
    hand_log.state(ORDERS, generation=2, since=hand_log.next_offset)
    hand_log.segment([(ORDERS, "r", {"id": n, "v": 7}) for n in range(10)])  # what `cdcflow backfill` brings
    assert not left_out(merged(format_name))
    assert rows(spark, warehouse, "public.orders") == dict.fromkeys(range(10), 7)


@pytest.mark.spread(1)
@pytest.mark.parametrize("format_name", FORMATS)
def test_an_error_of_spark_in_any_step_is_of_that_table_alone(
    spark: Any,
    hand_log: HandLog,
    warehouse: Path,
    merged: Callable[[str], MergeReport],
    format_name: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Only the error's kind is reported: its text may contain a row's values."""
    merged(format_name)
    kind = TABLES[format_name]
    for number, step in enumerate(STEPS):
        right = getattr(kind, step)

        def fails(self: Any, *given: Any, right: Callable[..., Any] = right, **more: Any) -> Any:
            if "orders" in self.sql:
                spark.sql("SELECT raise_error('the value of a row')").collect()
            return right(self, *given, **more)

        moved = {"id": 30 + number, "_unchanged": ["v"], "_before": {"id": 2 + number}}
        hand_log.segment([(FINE, "u", {"id": 1, "v": number}), (WIDER, "u", {"id": 1, "v": number})])
        hand_log.segment([(WIDER, "d", {"id": 2 + number}), (WIDER, "c", moved)])
        with monkeypatch.context() as patch:
            patch.setattr(kind, step, fails)
            report = merged(format_name)
        assert report.published, step
        assert left_out(report).keys() == {"public.orders"}, step
        (why,) = left_out(report).values()
        assert why.startswith("table public.orders cannot be merged: the spark engine failed (USER_RAISED_EXCEPTION")
        assert "the value of a row" not in why
        assert published_cut(spark, warehouse).left_out == {"public.orders": why}
        assert rows(spark, warehouse, "public.fine")[1] == number
        assert not left_out(merged(format_name)), "merged again without any remedy"
        found = rows(spark, warehouse, "public.orders")
        assert (found[1], found[30 + number], 2 + number in found) == (number, 2 + number, False)


@pytest.mark.long
@pytest.mark.parametrize("format_name", ["delta", pytest.param("iceberg", marks=pytest.mark.long)])
def test_rows_that_another_program_removed_return_by_a_backfill(
    spark: Any, hand_log: HandLog, warehouse: Path, merged: Callable[[str], MergeReport], format_name: str
) -> None:
    """The log has only some columns of such a row; the other table is published all the same."""
    merged(format_name)
    table = table_format(format_name).table(spark, Warehouse.of(warehouse), table_path(ORDERS.id)).sql
    spark.sql(f"DELETE FROM {table} WHERE id = 3")
    for number in range(2):
        hand_log.segment([(ORDERS, "u", {"id": 3, "_unchanged": ["v"]}), (FINE, "u", {"id": 3, "v": 90 + number})])
        report = merged(format_name)
        assert report.published
        assert left_out(report).keys() == {"public.orders"}
        assert rows(spark, warehouse, "public.fine")[3] == 90 + number
        assert read_cut(spark, warehouse).keys() == {"public.fine"}
    (why,) = left_out(report).values()
    assert "1 rows miss columns" in why
    assert "run `cdcflow backfill public.orders`, then `cdcflow merge`" in why
    assert published_cut(spark, warehouse).left_out == {"public.orders": why}

    hand_log.state(ORDERS, generation=2, since=hand_log.next_offset)
    hand_log.segment([(ORDERS, "r", {"id": n, "v": 7}) for n in range(10)])  # what `cdcflow backfill` brings
    assert not left_out(merged(format_name))
    assert rows(spark, warehouse, "public.orders") == dict.fromkeys(range(10), 7)


@pytest.mark.parametrize(
    ("text", "kind", "place"),
    [
        ("java.io.IOException: No space left on device", "full", ""),
        ("/w/public/orders/x.parquet (Permission denied)", "refused", "/w/public/orders/x.parquet"),
        ("file:///w/public/orders/a%20b.parquet is not a Parquet file", "damaged", "/w/public/orders/a b.parquet"),
        ("the value of a row", "fault", ""),
    ],
)
def test_what_an_error_of_sparks_means(spark: Any, text: str, kind: str, place: str) -> None:
    """A full disk and a damaged file need different remedies."""
    with pytest.raises(Exception, match="USER_RAISED") as caught:
        spark.sql(f"SELECT raise_error('{text}')").collect()
    found = of_spark(caught.value)
    assert found is not None
    assert (found.kind, found.place) == (kind, place)
    assert "value" not in found.what


def test_ended_session_is_not_a_fault_of_a_table() -> None:
    """Otherwise each table would be skipped, and the cut would be empty."""

    class Py4JNetworkError(Exception):
        """As py4j's."""

    assert of_spark(Py4JNetworkError("Answer from Java side is empty")) is None
