"""Spark's executors as workers on a log, with one task for each piece of work. They either share the log's folder, or
work in the log's object store.

If the executor of a task dies, Spark starts the task again, so a piece may be worked on twice. A worker writes under
its own file names, and only the files that it returns count.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from cdcflow.errors import CdcflowError, ConfigurationError
from cdcflow.log.workers import AwayLog
from cdcflow.spark.runtime.context import context, task_error

if TYPE_CHECKING:
    from pyspark import SparkContext

A = TypeVar("A")
B = TypeVar("B")


@contextlib.contextmanager
def workers(
    master: str, folder: Path, settings: Mapping[str, str], name: str, away: AwayLog | None = None
) -> Iterator[SparkWorkers]:
    """Yield executors of the cluster at `master`, for a command called `name`. They work in `folder`, the log's folder;
    or in `away`, for which no folder is needed.

    Raises:
        ConfigurationError: see `context`.
    """
    started = context(master, settings, name)
    try:
        with over(started, folder, name, away) as found:
            yield found
    finally:
        with contextlib.suppress(Exception):  # an executor was just lost
            started.stop()


@contextlib.contextmanager
def over(started: SparkContext, folder: Path, name: str, away: AwayLog | None = None) -> Iterator[SparkWorkers]:
    """Yield the executors of an existing context."""
    if away is not None:
        # Sent with the function, including the keys: Spark writes functions into no plan, page or event log.
        yield SparkWorkers(started, None, name, away)
        return
    probe = folder / f".{secrets.token_hex(8)}.probe"
    text = secrets.token_hex(16)
    probe.write_text(text)
    try:
        yield SparkWorkers(started, _Probe(probe, text), name)
    finally:
        probe.unlink(missing_ok=True)


class SparkWorkers:
    """Implements `cdcflow.log.workers.Workers`: as many pieces at once as there are cores."""

    def __init__(self, started: SparkContext, probe: _Probe | None, name: str, away: AwayLog | None = None) -> None:
        self.away = away
        self._context = started
        self._probe = probe
        self._name = name

    @property
    def at_once(self) -> int:
        return max(1, self._context.defaultParallelism)

    def each(self, work: Callable[[A], B], given: Sequence[A]) -> list[B]:
        if not given:
            return []
        try:
            tasks = self._context.parallelize(list(given), len(given))
            answers: list[_Answer] = tasks.map(_Task(work, self._probe)).collect()
        except Exception as error:  # noqa: BLE001  Spark's own errors
            raise task_error(error, self._name) from None
        for answer in answers:
            if answer.error is not None:
                raise answer.error
        return [answer.result for answer in answers]


@dataclass(frozen=True)
class _Probe:
    """A file in the log's folder. An executor that can read it works on the same log."""

    path: Path
    text: str

    def check(self) -> None:
        try:
            if self.path.read_text() == self.text:
                return
        except OSError:
            pass
        raise ConfigurationError(
            f"working on the log {self.path.parent} with executors: one of them does not see this folder",
            remedy="store the log where executors have it under the same path, or run the same command without --on",
            runbook="settings",
        )


@dataclass(frozen=True)
class _Answer:
    result: Any = None
    error: CdcflowError | None = None


@dataclass(frozen=True)
class _Task:
    """The function of a task that works on one piece."""

    work: Callable[[Any], Any]
    probe: _Probe | None

    def __call__(self, piece: Any) -> _Answer:
        try:
            if self.probe is not None:
                self.probe.check()
            return _Answer(self.work(piece))
        except CdcflowError as error:
            return _Answer(error=error)
