"""Versions of rows made without cdcflow: one MERGE of staged changes, as the guides of Delta and Iceberg have it.

Each change is staged as a row to insert, which no key matches. The first change of each key is staged once more, with
its key: it ends the version that is open. Where a key changes several times in a batch, each version ends where the
next one begins. Columns that a change omits are NULL in its version: the guides do not cover them.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from bench.children.merging import COLUMNS, table_name

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FIELDS = "id bigint, qty int, price double, at timestamp, note string, doc string"


def merged(spark: SparkSession, files: list[str], target: str, table_format: str) -> None:
    """From the log's own files."""
    changes = spark.read.parquet(*files).selectExpr(*COLUMNS, "_op", "_offset")
    _merge(changes, _made(spark, target, table_format))


def streamed(spark: SparkSession, events: str, target: str, table_format: str) -> None:
    """From Debezium's JSON, read as a stream, all new messages as one batch."""
    from pyspark.sql import functions

    name = _made(spark, target, table_format)
    envelope = f"before struct<{FIELDS}>, after struct<{FIELDS}>, op string, source struct<table: string, lsn: bigint>"
    event = functions.from_json("value", envelope).alias("e")
    changes = (
        spark.readStream.format("text")
        .load(f"{events}/*")
        .select(event)
        .selectExpr("e.after.*", "e.op AS _op", "e.source.lsn AS _offset")
    )
    writing = changes.writeStream.foreachBatch(lambda batch, _: _merge(batch, name))
    writing.option("checkpointLocation", f"{target}-checkpoint").trigger(availableNow=True).start().awaitTermination()


def as_debezium(spark: SparkSession, files: list[str], target: str) -> None:
    """What Debezium's JSON converter writes for the changes, one line each, into a new folder."""
    after = f"named_struct({', '.join(f'{c!r}, {c}' for c in COLUMNS)})"
    source = "named_struct('table', 'large', 'lsn', _offset)"
    event = f"to_json(named_struct('after', {after}, 'op', _op, 'source', {source})) AS value"
    spark.read.parquet(*files).selectExpr(event).write.text(target)


def _made(spark: SparkSession, target: str, table_format: str) -> str:
    """The table's name; the table is created if it is missing."""
    Path(target).parent.mkdir(exist_ok=True)
    name = table_name(spark, target)
    fields = f"{FIELDS}, valid_from bigint, valid_to bigint"
    spark.sql(f"CREATE TABLE IF NOT EXISTS {name} ({fields}) USING {table_format}")
    return name


def _merge(changes: DataFrame, name: str) -> None:
    spark = changes.sparkSession
    changes.createOrReplaceTempView("changes")
    order = "OVER (PARTITION BY id ORDER BY _offset)"
    numbered = f"SELECT *, row_number() {order} AS n, lead(_offset) {order} AS next FROM changes"
    staged = f"SELECT id AS k, * FROM ({numbered}) WHERE n = 1 UNION ALL SELECT NULL AS k, * FROM ({numbered})"
    spark.sql(
        f"MERGE INTO {name} t USING ({staged}) s ON t.id = s.k AND t.valid_to IS NULL"
        " WHEN MATCHED THEN UPDATE SET t.valid_to = s._offset"
        f" WHEN NOT MATCHED AND s.k IS NULL AND s._op <> 'd' THEN INSERT ({', '.join(COLUMNS)}, valid_from, valid_to)"
        f" VALUES ({', '.join(f's.{c}' for c in COLUMNS)}, s._offset, s.next)"
    )
