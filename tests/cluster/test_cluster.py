"""The merge on a standalone cluster whose workers cannot access the driver's disk: log and warehouse in a store."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyspark
import pytest
import yaml
from tests.cluster.conftest import Lake
from tests.servers.kafka import KafkaBroker
from tests.servers.objects import SECRET_KEY, ObjectServer
from tests.servers.spark import SparkCluster
from tests.support.kafka.log_pairs import history_of_a_shop, into_topic, rows_of, topics_on
from tests.support.merge.histories import assert_as_folded, make_table, make_world, write_round
from tests.support.objects.logs import NO_SOURCE, put_away

import cdcflow.cli
from cdcflow.log.fold.fold import LogChange, fold
from cdcflow.log.read.log_reader import LogReader
from cdcflow.model.table import BEFORE, OFFSET, OP, UNCHANGED, Table
from cdcflow.sinks.kafka.reader import KafkaReader
from cdcflow.spark import read_cut
from cdcflow.spark.jars import ICEBERG_PLUGIN, folder, iceberg_jars, jars, log_store, s3_jars
from cdcflow.stores.bucket import Bucket

pytestmark = pytest.mark.long

SEED = 20261123


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[SparkCluster]:
    """Workers can access neither the driver's files, nor its jars, nor cdcflow itself."""
    hidden = [tmp_path, folder().parent, Path(cdcflow.cli.__file__).parents[2]]
    with SparkCluster(hidden=hidden) as started:
        yield started


def settings(lake: Lake, directory: Path, **spark: str) -> Path:
    """A settings file for a machine that has no local log."""
    log = {k: v for k, v in lake.objects.model_dump(mode="json").items() if v is not None}
    access = {k: log[k] for k in ("endpoint", "access_key", "secret_key")}
    merge = {"format": lake.format, "warehouse": str(lake.place), "objects": access, "engine": "auto"}
    if lake.place.catalog is not None:
        merge["catalog"] = dict(lake.place.catalog)
    merge["spark"] = {"spark.local.dir": str(directory), "spark.sql.shuffle.partitions": "2", **spark}
    log |= {"cache": str(directory / "cache")}
    file = directory / "cdcflow.yaml"
    source = {"kind": "postgres", "url": NO_SOURCE}
    file.write_text(yaml.safe_dump({"source": source, "log": {"objects": log}, "merge": merge}))
    return file


def merged(command: list[str], **environment: str) -> str:
    done = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout


def test_merges_on_a_cluster_are_the_fold(spark: Any, lake: Lake, cluster: SparkCluster, tmp_path: Path) -> None:
    """Through `cdcflow merge` with merge.spark, then through spark-submit. Executors read the log and write the tables
    in the store; the driver's disk holds manifests, no rows."""
    driver = tmp_path / "driver"
    lake.log.progress.clear()  # no backfill is reported as done: its rows may miss columns
    world = make_world(SEED, 20)
    wide = make_table("wide", id="int64", v=pa.decimal256(60, 4))  # one of cdcflow's functions converts it to text
    master = {"spark.master": cluster.url, "spark.executor.memory": "700m", "spark.executor.cores": "1"}
    file = settings(lake, driver, **master)
    for round_ in range(2):
        write_round(world, lake.log, round_)
        lake.log.segment([(wide, "c", {"id": round_, "v": None})])
        put_away(lake.log.root, Bucket(lake.objects))
        if round_ == 0:
            said = merged([sys.executable, "-m", "cdcflow.cli", "merge", "--once", "--config", str(file)])
        else:
            said = merged(submitted(lake, settings(lake, driver), cluster))
        assert "cut" in said
        assert "published" in said
        tables = read_cut(spark, lake.place, incomplete=True)
        assert_as_folded(world, rows_in(tables), f"seed {SEED}, round {round_}")
        assert tables["public.wide"].count() == round_ + 1
    assert not list(driver.rglob("*.parquet")), "rows are on the driver's disk"
    for number in range(2):
        printed = [p.read_text() for p in (cluster.directory / f"worker-{number}").glob("app-*/*/stderr")]
        assert printed, "a worker had nothing to do"
        assert lake.format != "iceberg" or all(f"executor component for plugin {ICEBERG_PLUGIN}" in s for s in printed)


@pytest.fixture
def installed_cluster(tmp_path: Path) -> Iterator[SparkCluster]:
    """Workers that have cdcflow, and cannot access the driver's disk."""
    with SparkCluster(hidden=[tmp_path, folder().parent]) as started:
        yield started


@pytest.mark.kafka
@pytest.mark.parametrize("lake", ["delta"], indirect=True)
def test_a_log_in_kafka_is_merged_on_a_cluster_without_a_common_disk(
    spark: Any, lake: Lake, server: ObjectServer, installed_cluster: SparkCluster, tmp_path: Path
) -> None:
    """Log in Kafka, its history and the warehouse in the store: a worker seals, workers merge, and the driver's disk
    has no row. After each round the tables are the fold of all rows of the log, and the keys are in no event log."""
    driver, events = tmp_path / "driver", tmp_path / "events"
    events.mkdir()
    source = str(Path(cdcflow.cli.__file__).parents[2])
    master = {"spark.master": installed_cluster.url, "spark.executor.memory": "700m", "spark.executor.cores": "1"}
    master |= {"spark.executorEnv.PYTHONPATH": source}
    master |= {"spark.eventLog.enabled": "true", "spark.eventLog.dir": events.as_uri()}
    master |= {"spark.eventLog.compress": "false"}
    written = yaml.safe_load((file := settings(lake, driver, **master)).read_text())
    steps = history_of_a_shop()
    with KafkaBroker() as broker:
        topics = topics_on(broker.address)
        access = {k: written["log"]["objects"][k] for k in ("endpoint", "access_key", "secret_key")}
        kafka = {"brokers": topics.brokers, "topic": topics.name, "work": str(driver / "work"), "objects": access}
        written["log"] = {"kafka": kafka | {"history": server.objects("histories", topics.name).url}}
        file.write_text(yaml.safe_dump(written))
        for half in (steps[:4], steps[4:]):
            into_topic(topics, half)
            said = merged([sys.executable, "-m", "cdcflow.cli", "merge", "--once", "--config", str(file)])
            assert "published" in said
            tables = read_cut(spark, lake.place, incomplete=True)
            for table, rows in folded(KafkaReader(topics)).items():
                found = [{k: v for k, v in row.asDict().items() if k in rows[0]} for row in tables[table].collect()]
                assert sorted(found, key=by_id) == sorted(rows, key=by_id)
    assert not list(driver.rglob("*.parquet")), "rows are on the driver's disk"
    assert not list(Path(source).rglob("*.parquet"))
    logs = [path.read_bytes() for path in events.rglob("*") if path.is_file()]
    assert any(b"MapInArrow" in text for text in logs)
    assert not any(SECRET_KEY.encode() in text for text in logs)


def by_id(row: Mapping[str, Any]) -> int:
    return int(row["id"])


def folded(log: LogReader) -> dict[str, list[dict[str, Any]]]:
    """The rows that the tables must have, of all rows that the log has."""
    shapes: dict[str, Table] = {}
    changes: dict[str, list[LogChange]] = {}
    for name, row in rows_of(log):
        table = name.rpartition(".")[0]
        shapes[table] = list(next(s for t, s in log.table_shapes().items() if str(t) == table).values())[-1]
        unchanged = frozenset(row[UNCHANGED] or ())
        values = {c.name: row.get(c.name) for c in shapes[table].columns if c.name not in unchanged}
        changes.setdefault(table, []).append(LogChange(row[OFFSET], row[OP], values, unchanged, row[BEFORE]))
    return {
        table: [dict(row.values) for row in fold({}, found, shapes[table].key_columns, keyed=True).values()]
        for table, found in changes.items()
    }


def rows_in(tables: dict[str, Any]) -> Callable[[Table], list[Any]]:
    return lambda table: list(tables[str(table.id)].collect())


def submitted(lake: Lake, file: Path, cluster: SparkCluster) -> list[str]:
    """The same command, as spark-submit starts it: Spark's master, jars and extensions are the submitter's."""
    home = Path(pyspark.__file__).parent
    listed = [*(jars() if lake.format == "delta" else iceberg_jars()), *s3_jars()]
    extensions = {
        "delta": "io.delta.sql.DeltaSparkSessionExtension",
        "iceberg": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
    }
    conf = {
        "spark.sql.extensions": extensions[lake.format],
        "spark.executor.memory": "700m",
        "spark.executor.cores": "1",
    }
    if lake.format == "delta":
        conf["spark.sql.catalog.spark_catalog"] = "org.apache.spark.sql.delta.catalog.DeltaCatalog"
        conf |= dict([log_store("s3a")])
    else:
        conf["spark.plugins"] = ICEBERG_PLUGIN
    words = [word for key, value in conf.items() for word in ("--conf", f"{key}={value}")]
    main = Path(cdcflow.cli.__file__).parent / "__main__.py"
    how = [str(home / "bin" / "spark-submit"), "--master", cluster.url, "--jars", ",".join(listed), *words]
    return [*how, str(main), "merge", "--once", "--config", str(file)]
