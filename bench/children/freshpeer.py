"""The peer of `fresh`: Debezium's JSON in Kafka, merged into Delta or Iceberg tables by streams of one Spark session.

    a topic per table ──Spark's Kafka source──▶ foreachBatch: the latest event of each key ──MERGE by key──▶ its table

Argument: `format`, `scratch`, `brokers`, `topics` and `target` (one folder), `rows` (of each table at the beginning).
Deleted rows are marked (deletion vectors, merge on read), as is best for small changes. Each table has its own stream;
the streams run at the same time. Requests are those of `merging`: `load`, `start` with `trigger_s`, `stop`, `check`.
"""

from __future__ import annotations

import json
import os
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.children.merging import answer, jobs, merge_sql, table_name

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FIELDS = "id bigint, qty int, price double, at timestamp, note string, doc string"
ENVELOPE = f"before struct<id bigint>, after struct<{FIELDS}>, op string"
MARKED = {
    "delta": {"delta.enableDeletionVectors": "true"},
    "iceberg": {f"write.{act}.mode": "merge-on-read" for act in ("merge", "update", "delete")},
}
CORES = 2


def main() -> int:
    asked = json.loads(sys.argv[1])
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what Java prints is no answer
    from cdcflow.spark import session

    spark = session(
        name="peer",
        cores=CORES,
        scratch=Path(asked["scratch"]),
        memory="4g",
        kafka=True,
        table_formats=[asked["format"]],
        settings={"spark.sql.shuffle.partitions": str(CORES)},
    )
    peer = Peer(spark, asked)
    commands = {"load": peer.load, "start": peer.start, "stop": peer.stop, "check": peer.check}
    answer(answers, commands, lambda: jobs(spark))
    peer.stop()
    spark.stop()
    return 0


class Peer:
    """The tables and their streams."""

    def __init__(self, spark: SparkSession, asked: dict[str, Any]) -> None:
        self._spark = spark
        self._asked = asked
        target = Path(asked["target"])
        self._checkpoints = target.parent / "checkpoints"
        self._targets = {topic: table_name(spark, f"{target}/{topic.rpartition('.')[2]}") for topic in asked["topics"]}
        self._streams: list[Any] = []

    def load(self) -> None:
        """Create the tables with the rows that the source has."""
        rows = self._spark.range(1, self._asked["rows"] + 1).selectExpr(
            "id",
            "CAST(id % 1000 AS int) AS qty",
            "id * CAST(0.25 AS double) AS price",
            "timestamp_micros(1767225600000000 + id * 1000000) AS at",
            "md5(CAST(CAST(id % 4096 AS string) AS binary)) AS note",
            "md5(CAST(CAST(id * 7 % 4096 AS string) AS binary)) AS doc",
        )
        marked = ", ".join(f"'{name}' = '{value}'" for name, value in MARKED[self._asked["format"]].items())
        for name in self._targets.values():
            self._spark.sql(f"CREATE TABLE {name} ({FIELDS}) USING {self._asked['format']} TBLPROPERTIES ({marked})")
            if self._asked["format"] == "delta":
                rows.write.format("delta").mode("append").save(name.removeprefix("delta.").strip("`"))
            else:
                rows.writeTo(name).append()

    def start(self, trigger_s: float) -> None:
        """Start the streams: a batch begins when this time has passed since the previous one began, and has ended."""
        for topic, name in self._targets.items():
            events = (
                self._spark.readStream.format("kafka")
                .option("kafka.bootstrap.servers", self._asked["brokers"])
                .option("subscribe", topic)
                .option("startingOffsets", "earliest")
                .load()
            )
            writing = events.writeStream.foreachBatch(partial(merge, name, topic.replace(".", "_")))
            writing = writing.option("checkpointLocation", str(self._checkpoints / topic))
            self._streams.append(writing.trigger(processingTime=f"{trigger_s:g} seconds").start())

    def stop(self) -> None:
        """Stop the streams; a batch that was not finished is repeated when they start again."""
        for stream in self._streams:
            stream.stop()
        self._streams = []

    def check(self) -> dict[str, Any]:
        """The first stream's error, if one has ended; and how long the latest batches took, in seconds."""
        failed = [str(error)[:1000] for stream in self._streams if (error := stream.exception()) is not None]
        took = [p["durationMs"]["triggerExecution"] / 1e3 for s in self._streams if (p := s.lastProgress) is not None]
        return {"failed": next(iter(failed), None), "batch_s": max(took, default=0.0)}


def merge(target: str, view: str, batch: DataFrame, _: int) -> None:
    """Merge one batch of a table: the latest event of each key, in the order of the topic's only partition."""
    from pyspark.sql import functions

    event = functions.from_json(functions.col("value").cast("string"), ENVELOPE)
    batch.where("value IS NOT NULL").select("offset", event.alias("e")).selectExpr(
        "coalesce(e.after.id, e.before.id) AS id", "e.op AS op", "offset", "e.after AS after"
    ).createOrReplaceTempView(view)
    batch.sparkSession.sql(merge_sql(target, view, "offset"))


if __name__ == "__main__":
    sys.exit(main())
