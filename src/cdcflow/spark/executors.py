"""Spark's executors as readers of chunks: one task for each, which stays as long as the capture wants it.

The tasks are given what they need with their function, the source's password among it: Spark writes functions into no
plan, no page and no event log.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from cdcflow.errors import ConfigurationError, SourceUnavailable
from cdcflow.ports.readers import PartReader
from cdcflow.spark.held import Invitation, serve
from cdcflow.spark.java import quiet_start
from cdcflow.spark.readers import Processes
from cdcflow.spark.session import holding_interrupts

if TYPE_CHECKING:
    from pyspark import SparkContext

NAME = "cdcflow backfill"
COME_WITHIN_S = 180.0
AGAIN_AFTER_S = 1.0
_SETTINGS = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false", "spark.speculation": "false"}


@contextlib.contextmanager
def executors(
    master: str, number: int, folder: Path, open_reader: Callable[[], PartReader], settings: Mapping[str, str]
) -> Iterator[Processes]:
    """Executors of the cluster at `master` that read parts of chunks, as many as `number`, and write into `folder`.

    `open_reader` goes to them; `settings` are Spark's.

    Raises:
        ConfigurationError: pyspark or Java is not installed; there is no such cluster; executors cannot load cdcflow,
            or do not see the folder.
        SourceUnavailable: none of them has come.
    """
    context = _context(master, settings)
    try:
        host = "127.0.0.1" if master.startswith("local") else str(context.getConf().get("spark.driver.host"))
        with Processes(number, host, folder) as found:
            jobs = threading.Thread(
                target=_run_jobs, args=(context, found, found.invitation(open_reader)), name="cdcflow-job", daemon=True
            )
            jobs.start()
            found.wait(COME_WITHIN_S)
            yield found
    finally:
        with contextlib.suppress(Exception):  # an executor that was lost a moment ago; nothing is written any more
            context.stop()


def _context(master: str, settings: Mapping[str, str]) -> SparkContext:
    try:
        from pyspark import SparkConf, SparkContext
    except ImportError as error:
        raise ConfigurationError(
            "reading with Spark's executors needs pyspark, which is not installed",
            remedy="run `pip install 'cdcflow[spark]'`, or the same command without --on",
            runbook="package-missing",
        ) from error
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    given = {k: v for k, v in settings.items() if k not in ("spark.master", "spark.jars", "spark.jars.packages")}
    conf = {**_SETTINGS, **given, "spark.master": master, "spark.app.name": NAME}
    with holding_interrupts(), quiet_start(conf):
        try:
            context = SparkContext(conf=SparkConf().setAll(list(conf.items())))
        except Exception as error:
            raise ConfigurationError(
                f"starting Spark for a backfill on {master}: {type(error).__name__}",
                remedy="write --on spark://host:port, local[2], or what else spark.master may be",
                runbook="settings",
            ) from error
    context.setLogLevel("OFF")
    return context


def _run_jobs(context: SparkContext, processes: Processes, invitation: Invitation) -> None:
    """One job after another: Spark itself starts a task again that was lost, some times."""
    tasks = context.parallelize(range(processes.count), processes.count)
    while not processes.closed:
        before = processes.answered
        try:
            tasks.foreachPartition(_Serving(invitation))
        except Exception as error:  # noqa: BLE001  Spark's own kinds; their texts are pages of Java
            if processes.answered == before:  # none of them did anything
                gone = _cannot(error)
                if processes.answered:
                    sys.stderr.write(f"{gone}\n  this process reads on by itself\n")
                processes.fail(gone)
                return
        threading.Event().wait(AGAIN_AFTER_S)


class _Serving:
    """What a task does."""

    def __init__(self, invitation: Invitation) -> None:
        self._invitation = invitation

    def __call__(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            serve(number, self._invitation)


def _cannot(error: Exception) -> ConfigurationError | SourceUnavailable:
    if "ModuleNotFoundError" in str(error):
        return ConfigurationError(
            "reading with executors: they cannot load cdcflow, or what it needs to read this source",
            remedy="install this cdcflow on the machines where executors run, or set spark.executorEnv.PYTHONPATH in "
            "merge.spark",
            runbook="package-missing",
        )
    return SourceUnavailable(
        f"reading with executors: their tasks end without an answer ({type(error).__name__})",
        remedy="look into the executors' stderr on the cluster's page",
    )


__all__ = ["executors"]
