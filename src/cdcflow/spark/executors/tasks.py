"""Spark's executors as readers of chunks: one task for each, which runs as long as the capture needs it.

The tasks get everything they need with their function, including the source's password: Spark writes functions into no
plan, no page and no event log.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from cdcflow.capture.ports.part_readers import PartReader
from cdcflow.errors import CdcflowError
from cdcflow.spark.executors.chunk_reader_process import Invitation, serve
from cdcflow.spark.executors.readers import Processes
from cdcflow.spark.runtime.context import context, task_error
from cdcflow.spark.runtime.masters import runs_here

if TYPE_CHECKING:
    from pyspark import SparkContext

OpenReader = Callable[[], PartReader]
NAME = "cdcflow backfill"
COME_WITHIN_S = 180.0
AGAIN_AFTER_S = 1.0


@contextlib.contextmanager
def executors(
    master: str, number: int, folder: Path, opener: Callable[[], OpenReader], settings: Mapping[str, str]
) -> Iterator[Processes]:
    """Yield executors of the cluster at `master`, up to `number`, that read parts of chunks. They write into `folder`,
    or send the files if they cannot see it.

    The result of `opener` is sent to them. It contains a password, which may expire, so `opener` is called again for
    each job. `settings` are Spark's.

    Raises:
        ConfigurationError: pyspark or Java is not installed; there is no such cluster; executors cannot load cdcflow.
        SourceUnavailable: no executor has connected.
    """
    started = context(master, settings, NAME)
    try:
        host = "127.0.0.1" if runs_here(master) else str(started.getConf().get("spark.driver.host"))
        with Processes(number, host, folder) as found:
            jobs = threading.Thread(target=_run_jobs, args=(started, found, opener), name="cdcflow-job", daemon=True)
            jobs.start()
            found.wait(COME_WITHIN_S)
            yield found
    finally:
        with contextlib.suppress(Exception):  # an executor was just lost; nothing is written now
            started.stop()


def _run_jobs(started: SparkContext, processes: Processes, opener: Callable[[], OpenReader]) -> None:
    """Run one job after another. Spark itself restarts a lost task only a limited number of times."""
    tasks = started.parallelize(range(processes.count), processes.count)
    while not processes.closed:
        before = processes.answered
        try:
            tasks.foreachPartition(_Serving(processes.invitation(opener())))
        except Exception as error:  # noqa: BLE001  Spark's own errors; their texts are pages of Java
            if processes.answered == before:  # no executor did anything
                gone = error if isinstance(error, CdcflowError) else task_error(error, "reading")
                if processes.answered:
                    sys.stderr.write(f"{gone}\n  this process continues reading alone\n")
                processes.fail(gone)
                return
        threading.Event().wait(AGAIN_AFTER_S)


class _Serving:
    """The function of a task that serves requests."""

    def __init__(self, invitation: Invitation) -> None:
        self._invitation = invitation

    def __call__(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            serve(number, self._invitation)
