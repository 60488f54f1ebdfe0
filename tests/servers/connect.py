"""A real Spark Connect server on loopback, from the jars of pyspark and Delta."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from tests.servers import ivy
from tests.servers.processes import Server

from cdcflow.spark.jars import jars


class ConnectServer(Server):
    """A server whose sessions read Delta tables. `url` is what a client's builder gets as `remote`."""

    @property
    def url(self) -> str:
        return f"sc://127.0.0.1:{self.port}"

    def command(self) -> Sequence[str]:
        settings = {
            "spark.connect.grpc.binding.address": "127.0.0.1",
            "spark.connect.grpc.binding.port": str(self.port),
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.memory": "1g",
            "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
            "spark.local.dir": str(self.folder),
            "spark.ui.enabled": "false",
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.warehouse.dir": str(self.folder / "warehouse"),
            "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
            "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        }
        program = str(ivy.pyspark_jars().parent / "bin" / "spark-submit")
        options = [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
        started = ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "spark-internal"]
        return [program, "--master", "local[2]", "--jars", ",".join(jars()), *options, *started]

    def environment(self) -> Mapping[str, str]:
        return {**os.environ, "SPARK_HOME": str(ivy.pyspark_jars().parent)}


__all__ = ["ConnectServer"]
