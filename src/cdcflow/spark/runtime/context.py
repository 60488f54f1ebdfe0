"""The executors of a cluster for work that is not a query: the Spark context, and the errors when it cannot start or
run tasks."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from cdcflow.errors import ConfigurationError, SourceUnavailable
from cdcflow.spark.runtime.java import quiet_start
from cdcflow.spark.session import holding_interrupts

if TYPE_CHECKING:
    from pyspark import SparkContext

_SETTINGS = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false", "spark.speculation": "false"}


def context(master: str, settings: Mapping[str, str], name: str) -> SparkContext:
    """Return a context for the cluster at `master`, for a command called `name`. `settings` are Spark's.

    Raises:
        ConfigurationError: pyspark or Java is not installed; there is no such cluster; Spark already runs in this
            process.
    """
    try:
        from pyspark import SparkConf, SparkContext
    except ImportError as error:
        raise ConfigurationError(
            f"{name} with Spark's executors needs pyspark, which is not installed",
            remedy="run `pip install 'cdcflow[spark]'`, or the same command without --on",
            runbook="package-missing",
        ) from error
    if SparkContext._active_spark_context is not None:
        raise ConfigurationError(
            f"{name} with Spark's executors: this process already has a Spark session, and Spark allows one",
            remedy="run it as a command, in a separate process",
            runbook="settings",
        )
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    given = {k: v for k, v in settings.items() if k not in ("spark.master", "spark.jars", "spark.jars.packages")}
    conf = {**_SETTINGS, **given, "spark.master": master, "spark.app.name": name}
    with holding_interrupts(), quiet_start(conf):
        try:
            started = SparkContext(conf=SparkConf().setAll(list(conf.items())))
        except Exception as error:
            raise ConfigurationError(
                f"starting Spark for {name} on {master}: {type(error).__name__}",
                remedy="write --on spark://host:port, local[2], or what else spark.master may be",
                runbook="settings",
            ) from error
    started.setLogLevel("OFF")
    return started


def task_error(error: Exception, doing: str) -> ConfigurationError | SourceUnavailable:
    """Return the error for tasks that end without an answer. It does not contain Spark's own texts, which are pages of
    Java."""
    if "ModuleNotFoundError" in str(error):
        return ConfigurationError(
            f"{doing} with executors: they cannot load cdcflow, or what it needs for that",
            remedy="install this cdcflow on the machines where executors run, or set spark.executorEnv.PYTHONPATH in "
            "merge.spark",
            runbook="package-missing",
        )
    return SourceUnavailable(
        f"{doing} with executors: their tasks end without an answer ({type(error).__name__})",
        remedy="read the executors' stderr on the cluster's page",
    )
