"""Spark's executors as workers on a log: one task for each piece of work. They see the log's folder; or it has an
object store, and they work there.

A task whose executor dies is started again by Spark, so a piece may be worked on twice; its worker writes under names
of its own, and only what it returns counts.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from cdcflow.errors import CdcflowError, ConfigurationError
from cdcflow.ports.workers import AwayLog
from cdcflow.spark.context import context, failed

if TYPE_CHECKING:
    from pyspark import SparkContext

A = TypeVar("A")
B = TypeVar("B")


@contextlib.contextmanager
def workers(
    master: str, folder: Path, settings: Mapping[str, str], name: str, away: AwayLog | None = None
) -> Iterator[SparkWorkers]:
    """Executors of the cluster at `master`, for a command that people know by `name`. They work in `folder`, the log's;
    or `away`, where nothing in a folder is needed.

    Raises:
        ConfigurationError: see `context`.
    """
    started = context(master, settings, name)
    try:
        with over(started, folder, name, away) as found:
            yield found
    finally:
        with contextlib.suppress(Exception):  # an executor that was lost a moment ago
            started.stop()


@contextlib.contextmanager
def over(started: SparkContext, folder: Path, name: str, away: AwayLog | None = None) -> Iterator[SparkWorkers]:
    """The executors of a context that is there."""
    if away is not None:
        # It goes with the function, keys and all: Spark writes functions into no plan, page or event log.
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
    """Implements `cdcflow.ports.workers.Workers`: as many at once as there are cores."""

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
        except Exception as error:  # noqa: BLE001  Spark's own kinds
            raise failed(error, self._name) from None
        for answer in answers:
            if answer.error is not None:
                raise answer.error
        return [answer.result for answer in answers]


@dataclass(frozen=True)
class _Probe:
    """A file in the log's folder: who sees it works on the same log."""

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
            remedy="put the log where executors have it under the same path, or run the same command without --on",
            runbook="settings",
        )


@dataclass(frozen=True)
class _Answer:
    result: Any = None
    error: CdcflowError | None = None


@dataclass(frozen=True)
class _Task:
    """What a task does with its piece."""

    work: Callable[[Any], Any]
    probe: _Probe | None

    def __call__(self, piece: Any) -> _Answer:
        try:
            if self.probe is not None:
                self.probe.check()
            return _Answer(self.work(piece))
        except CdcflowError as error:
            return _Answer(error=error)


__all__ = ["SparkWorkers", "over", "workers"]
