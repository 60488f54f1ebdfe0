"""A party of the merge benches: one warm Spark session that executes requests, one line of JSON each.

Each answer has `seconds`, `cpu_s` (this process and its JVM) and `jobs` (Spark's). cdcflow is imported from the path
that this process was given, so an older checkout is measured by the same code.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_TICKS = os.sysconf("SC_CLK_TCK")
COLUMNS = "id", "qty", "price", "at", "note", "doc"


def merge_sql(target: str, view: str, order: str) -> str:
    """The MERGE of Debezium's events in a view (`id`, `op`, `after`): the latest of each key by a column `order`."""
    listed = ", ".join(f"t.{c} = s.after.{c}" for c in COLUMNS)
    latest = f"SELECT *, row_number() OVER (PARTITION BY id ORDER BY {order} DESC) AS n FROM {view}"
    return (
        f"MERGE INTO {target} t USING (SELECT * FROM ({latest}) WHERE n = 1) s ON t.id = s.id"
        f" WHEN MATCHED AND s.op = 'd' THEN DELETE WHEN MATCHED THEN UPDATE SET {listed}"
        f" WHEN NOT MATCHED AND s.op <> 'd' THEN INSERT ({', '.join(COLUMNS)})"
        f" VALUES ({', '.join(f's.after.{c}' for c in COLUMNS)})"
    )


def main() -> int:
    asked = json.loads(sys.argv[1])
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what Java prints is no answer
    if asked.get("engine") == "local":
        return _without_spark(answers, asked["format"])
    from cdcflow.spark import session

    more = {} if asked["format"] == "delta" else {"table_formats": [asked["format"]]}
    if asked.get("s3"):
        more["s3"] = True
    spark = session(
        name="bench",
        scratch=Path(asked["scratch"]),
        memory=asked.get("memory", "3g"),
        settings=asked.get("settings", {}),
        **more,
    )
    commands = {
        "merge": merged,
        "merge_auto": merged_by_auto,
        "bare": bare,
        "naive": naive,
        "write": written,
        "rows": counted,
        "published": published,
        "stream": streamed,
        "held": held_by_spark,
        "reduce": reduced,
        "merge_stored": merged_from_a_store,
        "merge_into_store": merged_into_a_store,
    }
    answer(answers, {name: partial(run, spark) for name, run in commands.items()}, lambda: jobs(spark))
    spark.stop()
    return 0


def _without_spark(answers: IO[str], table_format: str) -> int:
    from cdcflow import local

    def merged_here(log: str, warehouse: str) -> dict[str, Any]:
        return _told(local.merge(log, warehouse, table_format=table_format))

    engines: dict[str, Any] = {}

    def merged_again(log: str, warehouse: str, objects: dict[str, Any] | None = None) -> dict[str, Any]:
        """By an engine that stays, as `cdcflow merge --every` has it."""
        from cdcflow.tables.job.engines import Engines
        from cdcflow.tables.job.job import merge

        place = stored_warehouse(warehouse, objects)
        if warehouse not in engines:
            engines[warehouse] = Engines(local.local_engine(place, table_format))
        return _told(merge(engines[warehouse], log, place))

    answer(answers, {"merge": merged_here, "merge_again": merged_again, "held": held}, lambda: 0)
    return 0


def stored_warehouse(warehouse: str, objects: dict[str, Any] | None) -> Any:  # Any: cdcflow may be an older one
    """A warehouse in a folder, or with the settings of a store in a bucket."""
    from cdcflow.config import Objects
    from cdcflow.tables.paths import Warehouse

    found = Warehouse.of(warehouse)
    if objects is None or found.bucket is None:
        return found
    return Warehouse(found.root, Objects.model_validate(objects).address(found.bucket))


def answer(answers: IO[str], commands: Mapping[str, Callable[..., Any]], jobs: Callable[[], int]) -> None:
    for line in sys.stdin:
        command = json.loads(line)
        run = commands[command.pop("do")]
        cpu, before, began = _cpu_s(), jobs(), time.perf_counter()
        found = run(**command)
        seconds = time.perf_counter() - began
        told = {"seconds": seconds, "cpu_s": _cpu_s() - cpu, "jobs": jobs() - before, **(found or {})}
        answers.write(json.dumps(told) + "\n")
        answers.flush()


def merged(spark: SparkSession, log: str, warehouse: str) -> dict[str, Any]:
    from cdcflow.spark import merge

    return _told(merge(spark, log, warehouse, **({} if _is_delta(spark) else {"table_format": "iceberg"})))


def merged_by_auto(spark: SparkSession, log: str, warehouse: str) -> dict[str, Any]:
    """As with `merge.engine: auto`: small tables without Spark, the others in this session."""
    from cdcflow import local
    from cdcflow.spark.engine import SparkEngine
    from cdcflow.tables.job.engines import Engines
    from cdcflow.tables.job.job import merge

    table_format = _format(spark)
    with contextlib.closing(local.local_engine(Path(warehouse), table_format, bounded=True)) as engine:
        report = merge(Engines(engine, lambda: SparkEngine(spark, warehouse, table_format)), log, warehouse)
    return _told(report) | {"engine": ",".join(sorted({t.engine for t in report.tables if t.engine}))}


def merged_from_a_store(spark: SparkSession, objects: dict[str, Any], room: str, warehouse: str) -> dict[str, Any]:
    """A log in a store. `read`: bytes that Spark has read there in that time, of any file."""
    from cdcflow.config import Objects
    from cdcflow.log.files.layout import Layout
    from cdcflow.sinks.objects.store import BucketStore
    from cdcflow.spark import merge
    from cdcflow.stores.bucket import Bucket

    bucket = Bucket(Objects.model_validate(objects))
    layout = Layout(Path(room), BucketStore(bucket, Path(room), 1 << 20))
    before = _bytes_from_stores(spark)
    more = {} if _is_delta(spark) else {"table_format": "iceberg"}
    return _told(merge(spark, layout, warehouse, **more)) | {"read": _bytes_from_stores(spark) - before}


def merged_into_a_store(spark: SparkSession, log: str, warehouse: str, objects: dict[str, Any]) -> dict[str, Any]:
    """A log in a folder, and tables in a store."""
    from cdcflow.spark import merge

    return _told(merge(spark, log, stored_warehouse(warehouse, objects)))


def _bytes_from_stores(spark: SparkSession) -> int:
    jvm: Any = spark._jvm
    found = jvm.org.apache.hadoop.fs.GlobalStorageStatistics.INSTANCE.get("s3a")
    return 0 if found is None else int(found.getLong("bytesRead") or 0)


def _told(report: Any) -> dict[str, Any]:
    return {"cut": report.cut, "changes": sum(t.changes for t in report.tables)}


def bare(spark: SparkSession, warehouse: str, tables: int) -> None:
    """As many commits that hold no row: the least that any writer of the format pays."""
    names = [table_name(spark, f"{warehouse}/t{number}") for number in range(tables)]
    for name in names:
        spark.sql(f"CREATE TABLE IF NOT EXISTS {name} (id bigint, qty int) USING {_format(spark)}")

    def commit(name: str) -> None:
        spark.sql(f"INSERT INTO {name} SELECT id, CAST(id AS int) FROM range(0)")

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(commit, names))


def naive(spark: SparkSession, files: list[str], target: str) -> None:
    """What is usually written first: the latest change of each key by a window, a MERGE by key alone, copy on write."""
    spark.read.parquet(*files).createOrReplaceTempView("changes")
    listed = ", ".join(f"t.{c} = s.{c}" for c in COLUMNS)
    names = ", ".join(COLUMNS)
    spark.sql(
        f"MERGE INTO {table_name(spark, target)} t USING (SELECT * FROM (SELECT *, row_number() OVER"
        " (PARTITION BY id ORDER BY _offset DESC) AS n FROM changes) WHERE n = 1) s ON t.id = s.id"
        f" WHEN MATCHED AND s._op = 'd' THEN DELETE WHEN MATCHED THEN UPDATE SET {listed}"
        f" WHEN NOT MATCHED AND s._op <> 'd' THEN INSERT ({names}) VALUES ({', '.join(f's.{c}' for c in COLUMNS)})"
    )


def streamed(spark: SparkSession, events: str, target: str, tables: int) -> None:
    """What runs in most places: Debezium's JSON, read as a stream, each batch merged table by table by its latest
    changes. Its tables are in the folder `target`."""
    from pyspark.sql import functions

    fields = "id bigint, qty int, price double, at timestamp, note string, doc string"
    envelope = f"before struct<{fields}>, after struct<{fields}>, op string, source struct<table: string, lsn: bigint>"
    targets = {f"t{number}": table_name(spark, f"{target}/t{number}") for number in range(tables)}
    for name in targets.values():
        spark.sql(f"CREATE TABLE IF NOT EXISTS {name} ({fields}) USING {_format(spark)}")

    def merge(batch: DataFrame, _: int) -> None:
        batch.persist()
        for table, name in targets.items():
            view = f"events_{table}"
            batch.where(f"source.table = '{table}'").selectExpr(
                "coalesce(after.id, before.id) AS id", "op", "source.lsn AS lsn", "after"
            ).createOrReplaceTempView(view)
            batch.sparkSession.sql(merge_sql(name, view, "lsn"))
        batch.unpersist()

    lines = spark.readStream.format("text").load(events)
    parsed = lines.select(functions.from_json("value", envelope).alias("e")).select("e.*")
    writing = parsed.writeStream.foreachBatch(merge).option("checkpointLocation", f"{target}-checkpoint")
    writing.trigger(availableNow=True).start().awaitTermination()


def held() -> dict[str, Any]:
    """What this process and those below it hold: memory, threads, open files."""
    gc.collect()
    rss = threads = files = 0
    for pid in _processes():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
            if "VmRSS" not in status:
                continue  # it has ended, and its result was not queried
            rss += int(status["VmRSS"].split()[0]) << 10
            threads += int(status["Threads"])
            files += len(list(Path(f"/proc/{pid}/fd").iterdir()))
    return {"rss_bytes": rss, "threads": threads, "files": files}


def held_by_spark(spark: SparkSession) -> dict[str, Any]:
    """The same, with the size of Java's heap after a collection, and the views that the session has."""
    jvm: Any = spark._jvm
    gc.collect()
    for _ in range(3):  # sessions are released by a thread of Java's, after a collection
        jvm.java.lang.System.gc()
        time.sleep(0.3)
    heap = jvm.java.lang.management.ManagementFactory.getMemoryMXBean().getHeapMemoryUsage().getUsed()
    views = sum(table.isTemporary for table in spark.catalog.listTables())
    return {**held(), "heap_bytes": int(heap), "views": views}


def written(spark: SparkSession, files: list[str], target: str) -> None:
    """Spark's own read and write of the same rows, into a new table."""
    rows = spark.read.parquet(*files).selectExpr(*COLUMNS)
    if _is_delta(spark):
        shutil.rmtree(target, ignore_errors=True)
        rows.write.format("delta").save(target)
    else:
        rows.writeTo(table_name(spark, target)).using("iceberg").createOrReplace()


def reduced(spark: SparkSession, log: str, way: str) -> dict[str, Any]:
    """One row for each key of a log's only table: by our SQL, by windows, or by whole rows, which is wrong where
    changes leave columns unchanged. `sum` distinguishes the results, and has all of it computed."""
    from cdcflow.log.files.layout import Layout as LogLayout
    from cdcflow.spark.sql import SparkSql
    from cdcflow.tables.job import changes
    from cdcflow.tables.job.spans import shapes_over_time
    from cdcflow.tables.merge.evolution import evolve
    from cdcflow.tables.merge.reduce import ColumnLayout, families, reduction
    from cdcflow.tables.segments import sealed_range

    whole = sealed_range(LogLayout(Path(log)))
    (table,) = whole.tables(None).values()
    files = whole.files(table, 0)
    shapes = shapes_over_time(files)
    layout = ColumnLayout.of(evolve(None, shapes, 0), shapes)
    with changes.view(SparkSql(spark), layout, files, 0, None) as found:
        others = [f"c{i}" for i in layout.others]
        if way == "ours":
            rows = reduction(layout, families(layout, found.masks), found.name, emptied=False, sweep_before=0)
        elif way == "window":
            of = "OVER (PARTITION BY c0 ORDER BY o ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING)"
            sent = "CASE WHEN NOT coalesce(array_contains(m, {}), false) THEN struct({}) END"
            newest = [f"last({sent.format(c[1:], c)}, true) {of}.{c} AS {c}" for c in others]
            number = "row_number() OVER (PARTITION BY c0 ORDER BY o DESC) AS n"
            listed = ", ".join(["c0", "o", *newest, number])
            rows = f"SELECT * FROM (SELECT {listed} FROM {found.name}) WHERE n = 1"
        else:
            values = ", ".join(others)
            newest = f"SELECT c0, max(o) AS o, max_by(struct({values}), o) AS s FROM {found.name} GROUP BY c0"
            rows = f"SELECT c0, o, s.* FROM ({newest})"
        said = spark.sql(f"SELECT count(*) n, sum(hash(c0, o, {', '.join(others)})) s FROM ({rows})").collect()[0]
    return {"sum": f"{said.n} {said.s}"}


def counted(spark: SparkSession, table: str) -> dict[str, Any]:
    """Rows, and a sum that tells two tables apart."""
    row = spark.sql(
        f"SELECT count(*) n, sum(CAST(id AS decimal(38)) * qty) s FROM {table_name(spark, table)}"
    ).collect()[0]
    return {"rows": row.n, "sum": str(row.s)}


def published(spark: SparkSession, warehouse: str, cuts: int) -> None:
    """A number of further, older cuts: copies of the latest with smaller numbers."""
    from pyspark.sql import functions

    table = table_name(spark, f"{warehouse}/_cdcflow_cuts")
    newest = spark.table(table).orderBy("cut", ascending=False).limit(1)
    older = newest.crossJoin(spark.range(1, cuts + 1).withColumnRenamed("id", "back"))
    older = older.withColumn("cut", functions.expr("cut - back")).drop("back")
    older.repartition(min(cuts, 200)).createOrReplaceTempView("older")
    spark.sql(f"INSERT INTO {table} SELECT * FROM older")


def _is_delta(spark: SparkSession) -> bool:
    return "delta" in str(spark.conf.get("spark.sql.extensions"))


def _format(spark: SparkSession) -> str:
    return "delta" if _is_delta(spark) else "iceberg"


def table_name(spark: SparkSession, path: str) -> str:
    """A table's name in SQL: in Delta it is its path, in Iceberg a name in the catalog of the warehouse above it."""
    if _is_delta(spark):
        return f"delta.`{path}`"
    from cdcflow.spark.formats import table_format

    place = Path(path)
    if place.parent.name == "shop" or place.name.startswith("_"):
        above = place.parent if place.name.startswith("_") else place.parent.parent
        parts = place.relative_to(above).parts
    else:  # one of a peer's
        above, parts = place.parent, ("bench", place.name)
        above.mkdir(exist_ok=True)
    table = table_format("iceberg").table(spark, above, parts)
    if len(parts) > 1:
        catalog, namespace, _ = table.sql.split(".")
        spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {catalog}.{namespace}")
    return table.sql


def jobs(spark: SparkSession) -> int:
    """That this Spark has begun so far: it forgets old ones, and counts all."""
    context: Any = spark.sparkContext._jsc
    return int(context.sc().dagScheduler().numTotalJobs())


def _cpu_s() -> float:
    """CPU seconds of this process and its children (the JVM and its workers), up to now."""
    total = 0
    for pid in _processes():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has ended
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            total += sum(int(n) for n in fields[11:15])
    return total / _TICKS


def _processes() -> Iterator[int]:
    """This process and all below it."""
    wanted = [os.getpid()]
    while wanted:
        pid = wanted.pop()
        yield pid
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            for thread in Path(f"/proc/{pid}/task").iterdir():
                with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                    wanted += map(int, (thread / "children").read_text().split())


if __name__ == "__main__":
    sys.exit(main())
