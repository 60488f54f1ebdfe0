"""Spark as the engine of a merge."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from cdcflow.merge.format import Format
from cdcflow.spark.connect import refuse_connect
from cdcflow.spark.cuts import CutsTable
from cdcflow.spark.formats import table_format
from cdcflow.spark.sql import StatementTable
from cdcflow.warehouse.formats import rules_of
from cdcflow.warehouse.port import Snapshot
from cdcflow.warehouse.segments import InputFile

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class SparkEngine:
    """Implements `cdcflow.warehouse.port.Engine`. It merges whatever there is, in every format."""

    name = "spark"

    def __init__(self, spark: SparkSession, warehouse: Path, format_: str) -> None:
        """
        Raises:
            ConfigurationError: there is no such format, or the session is Spark Connect's.
        """
        refuse_connect(spark)
        self._spark = spark
        self._warehouse = warehouse
        self._format = table_format(format_)
        self.rules: Format = rules_of(format_)

    def cuts(self) -> CutsTable:
        return CutsTable(self._spark, self.rules.name, self._warehouse)

    def table(self, path: Sequence[str]) -> StatementTable:
        # A session of its own: what marks a commit as ours is a session's setting (see `formats.delta`).
        return self._format.table(self._spark.newSession(), self._warehouse, path)

    def declines(self, before: Snapshot | None, files: Sequence[InputFile]) -> str | None:
        return None

    def is_conflict(self, error: BaseException) -> bool:
        return self._format.is_conflict(error)
