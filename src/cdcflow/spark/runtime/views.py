"""Temporary views of a Spark session, under names that no other view has."""

from __future__ import annotations

import itertools
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_numbers = itertools.count(1)


def new_name(what: str) -> str:
    """Return a name for a new view, which no other view has."""
    return f"cdcflow_{what}_{next(_numbers)}"


def name_view(frame: DataFrame, what: str) -> str:
    """Create a temporary view of rows and return its name."""
    name = new_name(what)
    frame.createOrReplaceTempView(name)
    return name


class Views:
    """Temporary views of a session, and rows that are stored while they are needed."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._names: list[str] = []
        self._kept: list[DataFrame] = []

    def of(self, frame: DataFrame, what: str, *, keep: bool = False) -> str:
        """Create a view of rows and return its name. `keep`: the rows are computed only once, when they are first
        needed."""
        if keep:
            self._kept.append(frame.persist())
        self._names.append(name_view(frame, what))
        return self._names[-1]

    def __enter__(self) -> Views:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for frame in self._kept:
            frame.unpersist()
        for name in self._names:
            self._spark.catalog.dropTempView(name)
