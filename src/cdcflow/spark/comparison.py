"""Comparisons by Spark: the live view of a copy whose rows would not fit into a single process.

Spark computes digests and sums, and only those are collected, as Arrow. For types whose text is the same only within
one engine (`model.digest.LOCAL_ONLY`), all rows are collected, and digested in the same place as the source's.

Implements `cdcflow.tables.verify.port.Copy`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from cdcflow.log.files.layout import Layout
from cdcflow.model import digest
from cdcflow.model.sqltypes import name_sql
from cdcflow.model.table import TableId
from cdcflow.spark.live import SparkReader
from cdcflow.spark.runtime.verbatim import as_written
from cdcflow.spark.runtime.views import name_view
from cdcflow.tables.merge.policy import DEFAULTS, Policies
from cdcflow.tables.merge.target import Target
from cdcflow.tables.paths import Warehouse
from cdcflow.tables.verify.live_copy import CopyParts, ask_copy, check, matching
from cdcflow.tables.verify.port import At, Columns, Comparer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class SparkCopy:
    """Implements `cdcflow.tables.verify.port.Copy`. `comparer` digests rows that Spark cannot digest."""

    def __init__(
        self,
        spark: SparkSession,
        layout: Layout,
        warehouse: Warehouse,
        table_format: str,
        comparer: Comparer,
        *,
        of_log: bool,
        policies: Policies = DEFAULTS,
    ) -> None:
        self._spark = spark
        self._reader = SparkReader(spark, warehouse, table_format)
        self._place = CopyParts(layout, warehouse, of_log, policies)
        self._comparer = comparer

    def describe(self, table: TableId) -> Target:
        return ask_copy(self._reader, self._place, table, lambda _table, _query, target: target)[1]

    def digests(self, columns: Columns, buckets: digest.Buckets | None = None) -> tuple[At, pa.Table]:
        if not _is_portable(columns):
            at, rows = self._arrow(columns, lambda query: _all(columns, query))
            return at, self._comparer.digest_rows(columns, rows)
        key = columns.key if columns.has_key else ()
        return self._arrow(columns, lambda query: digest.digests(f"({query})", key, columns.columns, buckets))

    def buckets(self, columns: Columns, buckets: digest.Buckets) -> tuple[At, pa.Table]:
        return self._arrow(columns, lambda query: digest.sums(f"({query})", buckets))

    def rows(self, columns: Columns, keys: pa.Table) -> tuple[At, pa.Table]:
        if not columns.has_key and not _is_portable(columns):
            at, rows = self._arrow(columns, lambda query: _all(columns, query))
        else:
            with self._keys_view(columns, keys) as wanted:
                at, rows = self._arrow(columns, lambda query: matching(columns, f"({query})", wanted))
        # Values as in the source's rows, not as Spark sends them.
        return at, self._comparer.matching(columns, rows, keys)

    def _arrow(self, columns: Columns, question: Callable[[str], str]) -> tuple[At, pa.Table]:
        def ask(_table: Any, query: str, target: Target) -> pa.Table:
            check(columns, target)
            return self._spark.sql(as_written(self._spark, question(query))).toArrow()

        return ask_copy(self._reader, self._place, columns.table, ask)

    @contextmanager
    def _keys_view(self, columns: Columns, keys: pa.Table) -> Iterator[str]:
        """Yield the name of a view of these keys."""
        types = {f"k{i}": columns.type_of(name) for i, name in enumerate(columns.key)}
        # A timestamp without a zone would get the session's zone.
        listed = [f"CAST({name} AS {types.get(name, 'bigint')}) AS {name}" for name in keys.column_names]
        name = name_view(self._spark.createDataFrame(keys).selectExpr(*listed), "wanted")
        try:
            yield name
        finally:
            self._spark.catalog.dropTempView(name)


def _is_portable(columns: Columns) -> bool:
    return all(digest.is_portable(type_) for _, type_ in columns.columns)


def _all(columns: Columns, query: str) -> str:
    return f"SELECT {', '.join(name_sql(name) for name, _ in columns.columns)} FROM ({query})"  # noqa: S608  name_sql
