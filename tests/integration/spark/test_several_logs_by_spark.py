"""Several logs merged by Spark, by turns with the local engine: both make and read the same cuts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.support.merge.several_logs import check_cut, pair, roots

from cdcflow import local
from cdcflow import spark as by_spark

pytestmark = pytest.mark.spark


@pytest.mark.long
@pytest.mark.parametrize("format_name", ["delta", pytest.param("iceberg", marks=pytest.mark.long)])
def test_engines_alternate_with_cuts_of_several_logs(spark: Any, tmp_path: Path, format_name: str) -> None:
    """G34: `merge.engine` may be changed at any time; a reader of a cut need not know which engine wrote it."""
    crm, shop = branches = pair(tmp_path)
    warehouse, logs = tmp_path / "warehouse", roots(*branches)

    def read() -> dict[str, set[int]]:
        found = by_spark.read_cut(spark, warehouse)
        return {name: {row.id for row in frame.select("id").collect()} for name, frame in found.items()}

    crm.insert(10, 3)
    shop.insert(10, 2)
    for branch in branches:
        branch.seal()
    crm.beat(20)
    shop.beat(20)
    assert by_spark.merge_logs(spark, logs, warehouse, table_format=format_name).published
    check_cut(by_spark.published_cut(spark, warehouse), read(), *branches)
    shop.insert(30, 4)
    shop.seal()
    crm.beat(40)
    assert local.merge_logs(logs, warehouse).cut == 2
    found = {name: set(table.column("id").to_pylist()) for name, table in local.read_cut(warehouse).items()}
    assert read() == found == {"people.orders": {1, 2, 3}, "trade.orders": {1, 2, 3, 4, 5, 6}}
    crm.insert(50)
    crm.seal()
    shop.beat(60)
    assert by_spark.merge_logs(spark, logs, warehouse).cut == 3
    for cut in (by_spark.published_cut(spark, warehouse), local.published_cut(warehouse, 3)):
        check_cut(cut, read(), *branches)
    assert by_spark.published_cut(spark, warehouse, 2) == local.published_cut(warehouse, 2)
    assert not by_spark.merge_logs(spark, logs, warehouse).published
    for branch in branches:
        branch.log.close()
