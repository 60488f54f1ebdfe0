"""Sessions for the tables of a merge, which are kept and reused from one table to the next.

A session setting marks a commit as cdcflow's, so each table needs its own session while it is merged. A new session per
table would cost a new planner, and in Iceberg a catalog whose connection stays open as long as the JVM runs.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from cdcflow.spark.runtime.verbatim import settle
from cdcflow.tables.paths import Warehouse

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_Properties = tuple[tuple[str, str], ...]

FAST_DELTA = "spark.cdcflow.fast_delta"
"""The session setting by which `merge.fast_delta` reaches the tables (see `private_delta`)."""

_lock = threading.Lock()
_idle: WeakKeyDictionary[SparkSession, dict[_Properties, list[SparkSession]]] = WeakKeyDictionary()


class Sessions:
    """Additional sessions for warehouses of one catalog, next to the program's own one. There are as many as were in
    use at the same time."""

    def __init__(self, spark: SparkSession, warehouse: Warehouse) -> None:
        self._spark = spark
        # A session keeps a catalog's first settings.
        self._settled = tuple(sorted((warehouse.catalog or {}).items()))

    def take(self) -> SparkSession:
        """Return a session that no other caller uses. The caller must `give` it back."""
        with _lock:
            there = self._there()
            found = there.pop() if there else None
        session = found or settle(self._spark.newSession())
        session.conf.set(FAST_DELTA, self._spark.conf.get(FAST_DELTA, "true") or "true")
        return session

    def give(self, session: SparkSession) -> None:
        """Give a session back, which may then serve another table."""
        with _lock:
            self._there().append(session)

    def _there(self) -> list[SparkSession]:
        return _idle.setdefault(self._spark, {}).setdefault(self._settled, [])
