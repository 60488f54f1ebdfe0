"""Sessions for the tables of a merge, kept from one to the next.

What marks a commit as ours is a session's setting, so each table that is being merged has a session to itself. A new
one for each would cost its planner, and in Iceberg a catalog whose connection stays open for as long as the JVM lives.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from cdcflow.spark.verbatim import settle
from cdcflow.warehouse.paths import Warehouse

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_Properties = tuple[tuple[str, str], ...]

_lock = threading.Lock()
_idle: WeakKeyDictionary[SparkSession, dict[_Properties, list[SparkSession]]] = WeakKeyDictionary()


class Sessions:
    """Sessions beside a program's own one, for warehouses of one catalog. There are as many as were in use at once."""

    def __init__(self, spark: SparkSession, warehouse: Warehouse) -> None:
        self._spark = spark
        # A session keeps a catalog as it was first told.
        self._settled = tuple(sorted((warehouse.catalog or {}).items()))

    def take(self) -> SparkSession:
        """One that nobody else uses. `give` it back."""
        with _lock:
            there = self._there()
            if there:
                return there.pop()
        return settle(self._spark.newSession())

    def give(self, session: SparkSession) -> None:
        """It serves another table from now on."""
        with _lock:
            self._there().append(session)

    def _there(self) -> list[SparkSession]:
        return _idle.setdefault(self._spark, {}).setdefault(self._settled, [])
