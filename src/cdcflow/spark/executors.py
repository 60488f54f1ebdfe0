"""Spark's executors as readers of chunks: one task for each, which stays as long as the capture wants it.

The tasks are given what they need with their function, the source's password among it: Spark writes functions into no
plan, no page and no event log.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from cdcflow.ports.readers import PartReader
from cdcflow.spark.context import context, failed
from cdcflow.spark.held import Invitation, serve
from cdcflow.spark.masters import runs_here
from cdcflow.spark.readers import Processes

if TYPE_CHECKING:
    from pyspark import SparkContext

NAME = "cdcflow backfill"
COME_WITHIN_S = 180.0
AGAIN_AFTER_S = 1.0


@contextlib.contextmanager
def executors(
    master: str, number: int, folder: Path, open_reader: Callable[[], PartReader], settings: Mapping[str, str]
) -> Iterator[Processes]:
    """Executors of the cluster at `master` that read parts of chunks, as many as `number`, and write into `folder`, or
    send what they would write if they do not see it.

    `open_reader` goes to them; `settings` are Spark's.

    Raises:
        ConfigurationError: pyspark or Java is not installed; there is no such cluster; executors cannot load cdcflow.
        SourceUnavailable: none of them has come.
    """
    started = context(master, settings, NAME)
    try:
        host = "127.0.0.1" if runs_here(master) else str(started.getConf().get("spark.driver.host"))
        with Processes(number, host, folder) as found:
            jobs = threading.Thread(
                target=_run_jobs, args=(started, found, found.invitation(open_reader)), name="cdcflow-job", daemon=True
            )
            jobs.start()
            found.wait(COME_WITHIN_S)
            yield found
    finally:
        with contextlib.suppress(Exception):  # an executor that was lost a moment ago; nothing is written any more
            started.stop()


def _run_jobs(started: SparkContext, processes: Processes, invitation: Invitation) -> None:
    """One job after another: Spark itself starts a task again that was lost, some times."""
    tasks = started.parallelize(range(processes.count), processes.count)
    while not processes.closed:
        before = processes.answered
        try:
            tasks.foreachPartition(_Serving(invitation))
        except Exception as error:  # noqa: BLE001  Spark's own kinds; their texts are pages of Java
            if processes.answered == before:  # none of them did anything
                gone = failed(error, "reading")
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


__all__ = ["executors"]
