"""A Spark in another process, started with given settings: some can be set only once per process, at the start."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from cdcflow.config import load
from cdcflow.errors import CdcflowError
from cdcflow.spark import job
from cdcflow.spark.session import session_for
from cdcflow.tables.job.reports import MergeReport
from cdcflow.tables.paths import Warehouse

_Answer = TypeVar("_Answer")

_spark: Any = None


class OtherSpark:
    """A process with the Spark that a settings file specifies. A context manager."""

    def __init__(self, settings: Path) -> None:
        self._process = ProcessPoolExecutor(
            1, mp_context=multiprocessing.get_context("spawn"), initializer=_begin, initargs=(settings,)
        )

    def __enter__(self) -> OtherSpark:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._process.submit(_end).result()
        self._process.shutdown()

    def merge(self, log: Path, warehouse: Warehouse) -> MergeReport:
        return self._process.submit(_merged, log, warehouse).result()

    def sql(self, text: str) -> list[tuple[Any, ...]]:
        """The rows of a statement, in a session that no other statement has used."""
        return self._process.submit(_rows, text).result()


def _begin(settings: Path) -> None:
    global _spark
    _spark = session_for(load(settings))


def _end() -> None:
    _spark.stop()


def _merged(log: Path, warehouse: Warehouse) -> MergeReport:
    return _plain(lambda: job.merge(_spark, log, warehouse))


def _rows(text: str) -> list[tuple[Any, ...]]:
    return _plain(lambda: [tuple(row) for row in _spark.newSession().sql(text).collect()])


def _plain(ask: Callable[[], _Answer]) -> _Answer:
    """Its answer, or an error that another process can read."""
    try:
        return ask()
    except CdcflowError:
        raise
    except Exception as error:  # noqa: BLE001  Java's do not cross
        raise RuntimeError(f"{type(error).__name__}: {error}") from None


__all__ = ["OtherSpark"]
