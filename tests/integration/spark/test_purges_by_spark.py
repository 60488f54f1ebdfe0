"""Deletes that remove rows of mode soft_delete, merged by Spark."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.support.tables.purged_histories import first_difference

from cdcflow import spark as by_spark

pytestmark = [pytest.mark.spark, pytest.mark.long]


@pytest.mark.parametrize("format_name", ["delta", "iceberg"])
def test_spark_removes_purged_rows_and_keeps_deleted_ones(spark: Any, tmp_path: Path, format_name: str) -> None:
    """As without Spark: no other way of changing rows may only mark them."""
    merge = partial(by_spark.merge, spark, table_format=format_name)
    assert first_difference(tmp_path, 1, merge) == ""
