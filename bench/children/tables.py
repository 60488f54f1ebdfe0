"""A party of the benches of tables: one warm Spark session that reads them (see `bench.children.merging`)."""

from __future__ import annotations

import json
import os
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.children.merging import KEPT, answer, jobs, merged

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def main() -> int:
    asked = json.loads(sys.argv[1])
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what Java prints is no answer
    from cdcflow.spark import session

    scratch = Path(asked["scratch"])
    spark = session(name="bench", scratch=scratch, memory="3g", settings=KEPT, table_formats=[asked["format"]])
    commands = {"merge": merged, "live": live, "scan": partial(scan, table_format=asked["format"])}
    answer(answers, {name: partial(run, spark) for name, run in commands.items()}, lambda: jobs(spark))
    spark.stop()
    return 0


def live(spark: SparkSession, log: str, warehouse: str, where: str) -> dict[str, Any]:
    """The live view, from the call to its last row."""
    from cdcflow.spark import read_live

    return read(read_live(spark, log, warehouse)["shop.large"], where)


def scan(spark: SparkSession, warehouse: str, where: str, table_format: str) -> dict[str, Any]:
    """The newest version of the table, as Spark reads it by itself."""
    from cdcflow.spark.formats import table_format as format_of

    name = format_of(table_format).table(spark, Path(warehouse), ("shop", "large")).sql
    return read(spark.table(name), where)


def read(frame: DataFrame, where: str) -> dict[str, Any]:
    """Have every column of every row worked out."""
    chosen = frame.where(where) if where else frame
    values = ", ".join(f"`{name}`" for name in chosen.columns if name != "_missing")
    row = chosen.selectExpr(f"xxhash64({values}) AS h").selectExpr("count(*) AS n", "max(h) AS h").collect()[0]
    return {"rows": row.n}


if __name__ == "__main__":
    sys.exit(main())
