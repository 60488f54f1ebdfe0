"""A party of the benches of tables: one warm session that writes and reads them (see `bench.children.merging`).

With `engine` local there is no Spark in it (`bench.children.tableslocal`).
"""

from __future__ import annotations

import json
import os
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.children import versions
from bench.children.lookedafter import looked_after
from bench.children.merging import COLUMNS, answer, jobs, merged_by_auto, table_name

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

APPENDED = *COLUMNS, "_op", "_offset", "_txn", "_commit_ts", "_unchanged"
"""The rows of a table of mode `append`."""


def main() -> int:
    asked = json.loads(sys.argv[1])
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what Java prints is no answer
    table_format = asked["format"]
    if asked["engine"] == "local":
        from bench.children import tableslocal

        answer(answers, tableslocal.commands(table_format), lambda: 0)
        return 0
    from cdcflow.spark import session

    scratch = Path(asked["scratch"])
    spark = session(name="bench", scratch=scratch, memory="3g", table_formats=[table_format])
    commands = {
        "merge": partial(merged, table_format=table_format),
        "merge_auto": merged_by_auto,
        "upkeep": partial(upkept, table_format=table_format),
        "live": live,
        "scan": partial(scan, table_format=table_format),
        "by_hand": partial(by_hand, table_format=table_format),
        "log_source": log_source,
        "log_plan": log_plan,
        "log_parquet": log_parquet,
        "write": partial(written, table_format=table_format),
        "count": counted,
        "delta_with_feed": delta_with_feed,
        "delta_feed": delta_feed,
        "versions": versions.merged,
        "versions_streamed": versions.streamed,
        "debezium": versions.as_debezium,
    }
    answer(answers, {name: partial(run, spark) for name, run in commands.items()}, lambda: jobs(spark))
    spark.stop()
    return 0


def merged(spark: SparkSession, log: str, warehouse: str, table_format: str, mode: Any = None) -> dict[str, Any]:
    from cdcflow.spark import merge
    from cdcflow.tables.merge.policy import Policies, TablePolicy

    report = merge(spark, log, warehouse, table_format=table_format, policies=Policies(TablePolicy(mode)))
    return {"cut": report.cut}


def upkept(spark: SparkSession, warehouse: str, table_format: str, **policy: float) -> dict[str, Any]:
    """All that a maintenance run does; what it did, and what it skipped."""
    from cdcflow.spark.engine import SparkEngine
    from cdcflow.tables.job.engines import Engines

    return looked_after(Engines(SparkEngine(spark, warehouse, table_format)), policy)


def live(spark: SparkSession, log: str, warehouse: str, where: str) -> dict[str, Any]:
    """The live view, from the call to its last row."""
    from cdcflow.spark import read_live

    return read(read_live(spark, log, warehouse)["shop.large"], where)


def scan(spark: SparkSession, warehouse: str, table_format: str, where: str = "") -> dict[str, Any]:
    """The latest version of the table, as Spark reads it by itself."""
    return read(large(spark, warehouse, table_format), where)


def large(spark: SparkSession, warehouse: str, table_format: str) -> DataFrame:
    from cdcflow.spark.formats import table_format as format_of

    name = format_of(table_format).table(spark, Path(warehouse), ("shop", "large")).sql
    return spark.table(name)


def by_hand(spark: SparkSession, warehouse: str, table_format: str, changes: str, where: str) -> dict[str, Any]:
    """A table with changes above it that are known to be whole rows of different keys, none a delete."""
    newer = spark.read.parquet(changes)
    older = large(spark, warehouse, table_format).join(newer.select("id").hint("broadcast"), "id", "left_anti")
    columns = [*COLUMNS, "_offset"]
    return read(older.select(columns).union(newer.select(columns)), where)


def read(frame: DataFrame, where: str) -> dict[str, Any]:
    """Have every column of every row computed. `hash` tells two tables apart."""
    chosen = frame.where(where) if where else frame
    values = ", ".join(f"`{name}`" for name in chosen.columns if name != "_missing")
    row = chosen.selectExpr(f"xxhash64({values}) AS h").selectExpr("count(*) AS n", "max(h) AS h").collect()[0]
    return {"rows": row.n, "hash": str(row.h)}


def log_source(spark: SparkSession, log: str, shape: str, columns: str) -> dict[str, Any]:
    """The log's changes of a table, as the data source gives them."""
    from cdcflow.spark import register

    register(spark)
    reader = spark.read.format("cdcflow").options(log=log, table="shop.large", shape=shape)
    return read(chosen_of(reader.load(), columns), "")


def log_plan(spark: SparkSession, log: str, shape: str, columns: str) -> dict[str, Any]:
    """The same as a plan over Spark's own reader."""
    from cdcflow.spark import read_log

    return read(chosen_of(read_log(spark, log, "shop.large", shape=shape), columns), "")


def log_parquet(spark: SparkSession, files: list[str], columns: str) -> dict[str, Any]:
    """The same files, as a reader without knowledge of the log reads them."""
    return read(chosen_of(spark.read.parquet(*files), columns), "")


def chosen_of(frame: DataFrame, columns: str) -> DataFrame:
    return frame.selectExpr(*columns.split(", ")) if columns else frame


def written(spark: SparkSession, files: list[str], target: str, table_format: str, *, is_new: bool) -> None:
    """Spark's own read and write of the changes of a log: into a new table, or appended to one."""
    rows = spark.read.parquet(*files).selectExpr(*APPENDED)
    if table_format == "delta":
        rows.write.format("delta").mode("append").save(target)
    elif is_new:
        rows.writeTo(table_name(spark, target)).using("iceberg").create()
    else:
        rows.writeTo(table_name(spark, target)).append()


def delta_with_feed(spark: SparkSession, target: str, inserts: list[str], updates: list[str]) -> None:
    """A Delta table that keeps its changes: inserts in one commit, updates in the next."""
    fields = "id bigint, qty int, price double, at timestamp, note string, doc string"
    name = table_name(spark, target)
    spark.sql(f"CREATE TABLE {name} ({fields}) USING delta TBLPROPERTIES (delta.enableChangeDataFeed = true)")
    spark.read.parquet(*inserts).selectExpr(*COLUMNS).write.format("delta").mode("append").save(target)
    spark.read.parquet(*updates).selectExpr(*COLUMNS).createOrReplaceTempView("updates")
    spark.sql(f"MERGE INTO {name} t USING updates s ON t.id = s.id WHEN MATCHED THEN UPDATE SET *")


def delta_feed(spark: SparkSession, target: str) -> dict[str, Any]:
    """Its inserts, and what its rows were after each update."""
    feed = spark.read.format("delta").option("readChangeFeed", "true").option("startingVersion", 1).load(target)
    return read(feed, "_change_type != 'update_preimage'")


def counted(spark: SparkSession, table: str) -> dict[str, Any]:
    return {"rows": spark.table(table_name(spark, table)).count()}


if __name__ == "__main__":
    sys.exit(main())
