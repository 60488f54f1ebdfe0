"""Types that Spark or DuckDB represent as another type: merged by Spark, compared, and repaired."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.servers.postgres import Database
from tests.support.polling import wait_for
from tests.support.verify.compared_shop import ComparedShop

from cdcflow.spark import read_cut
from cdcflow.tables.verify.job import _Verification

pytestmark = [pytest.mark.spark, pytest.mark.postgres]

WIDE = "123456789012345678901234567890123456789012345678.125"
VALUES = f"""
    (1, '1 mon -2 days 03:04:05.000006', ARRAY[interval '1 day', NULL], 0.{"1" * 38}, {WIDE},
     ARRAY[{WIDE}, NULL, -0.001]),
    (2, NULL, NULL, NULL, NULL, NULL),
    (3, '-1 year', '{{}}', -0.{"0" * 37}1, -0.001, '{{}}'),
    (4, '0', ARRAY[NULL::interval], 0, 0, ARRAY[NULL::numeric])
"""
COLUMNS = "i interval, is_ interval[], n numeric(38,38), w numeric(51,3), ws numeric(51,3)[]"


@pytest.fixture
def shop(database: Database, tmp_path: Path, spark: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[ComparedShop]:
    """A shop whose tables Spark merges and reads, by the session of the tests."""
    monkeypatch.setattr(importlib.import_module("cdcflow.spark.session"), "session_for", lambda config: spark)
    with ComparedShop.on_postgres(database, tmp_path) as made:
        made.settings["merge"]["engine"] = "spark"
        made.write()
        yield made


def merged(shop: ComparedShop, spark: Any, table: str, count: int) -> dict[int, dict[str, Any]]:
    """A table's rows, merged until this many exist."""

    def rows() -> list[Any]:
        shop.said("merge", code=None)
        if not (shop.folder / "warehouse" / "_cdcflow_cuts").exists():
            return []
        frame = read_cut(spark, shop.folder / "warehouse").get(f"public.{table}")
        return [] if frame is None else list(frame.drop("_offset", "_missing").collect())

    found = wait_for(rows, lambda rows: len(rows) == count, f"{count} rows of {table}", patience_s=120)
    return {row["id"]: row.asDict(recursive=True) for row in found}


@pytest.mark.long
def test_intervals_and_wide_numbers_are_merged_compared_and_repaired(shop: ComparedShop, spark: Any) -> None:
    """`verify` and `repair` ended as a fault in cdcflow at such a table, and the tables after it were not compared; a
    list of wide numbers ended the merge of all tables."""
    shop.execute(
        f"CREATE TABLE odd (id int PRIMARY KEY, {COLUMNS})",
        f"INSERT INTO odd VALUES {VALUES}",
        "CREATE TABLE plain (id int PRIMARY KEY)",
        "INSERT INTO plain VALUES (1)",
    )
    shop.start("odd", "plain")
    rows = merged(shop, spark, "odd", 4)
    assert rows[1]["ws"] == [WIDE, None, "-0.001"]
    assert (rows[2]["ws"], rows[3]["ws"], rows[4]["ws"]) == (None, [], [None])
    assert rows[1]["w"] == WIDE
    found = shop.verify("--against", "both", code=0)
    assert {name: table["verdict"] for name, table in found.items()} == dict.fromkeys(
        ["odd/log", "odd/tables", "plain/log", "plain/tables"], "equal"
    )
    place = f"delta.`{shop.folder}/warehouse/public/odd`"
    spark.sql(f"UPDATE {place} SET ws = array('{WIDE}', NULL, '-0.002') WHERE id = 1")
    spark.sql(f"UPDATE {place} SET i.days = 5 WHERE id = 3")
    shop.execute("INSERT INTO odd (id) VALUES (5)")
    merged(shop, spark, "odd", 5)
    (one, other) = sorted(shop.verify(code=1)["odd/tables"]["differences"], key=lambda d: int(d["key"]["id"]))
    assert (one["columns"], other["columns"]) == (["ws"], ["i"])
    shop.said("repair", "public.odd", code=None)
    merged(shop, spark, "odd", 5)
    assert shop.verify(code=0)["odd/tables"]["verdict"] == "equal"


@pytest.mark.spread(1)
def test_a_table_that_cannot_be_compared_does_not_end_the_comparison_of_the_others(
    shop: ComparedShop, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the error is: the report names the table, without the error's text, which may contain a row's values."""
    shop.execute("CREATE TABLE bad (id int PRIMARY KEY)", "CREATE TABLE plain (id int PRIMARY KEY)")
    shop.execute("INSERT INTO bad VALUES (1)", "INSERT INTO plain VALUES (1)")
    shop.start("bad", "plain")
    merged(shop, spark, "plain", 1)
    right = _Verification._compare_table

    def fails(self: Any, report: Any) -> Any:
        if report.table == "public.bad":
            raise ValueError("the value of a row")
        return right(self, report)

    monkeypatch.setattr(_Verification, "_compare_table", fails)
    found = shop.verify(code=None)
    assert {name: table["verdict"] for name, table in found.items()} == {
        "bad/tables": "not compared",
        "plain/tables": "equal",
    }
    reason = found["bad/tables"]["reason"]
    assert reason.startswith("the comparison failed (ValueError")
    assert "the value of a row" not in reason
