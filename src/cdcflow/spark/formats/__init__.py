"""Table formats as Spark writes them: the session settings for each, its tables, and which errors are conflicts.

engine ──▶ SparkFormat ──▶ cdcflow.spark.sql.StatementTable
              ├── delta      Delta Lake
              └── iceberg    Apache Iceberg
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from cdcflow.spark.formats.delta import DeltaFormat
from cdcflow.spark.formats.iceberg import IcebergFormat
from cdcflow.spark.sql import StatementTable
from cdcflow.tables.formats import rules_of
from cdcflow.tables.paths import Warehouse

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class SparkFormat(Protocol):
    """A table format, as Spark reads and writes it."""

    settings: Mapping[str, str]
    """Settings of a session that writes such tables."""

    def table(
        self,
        spark: SparkSession,
        warehouse: Warehouse | Path,
        path: Sequence[str],
        *,
        own: bool = False,
        named: bool = False,
    ) -> StatementTable:
        """Return the table at a path (schema, name) of a warehouse; cdcflow's own tables have a path of one name.
        `own`: the session serves nothing else. `named`: the table stays registered by name, if the warehouse has a
        metastore."""

    def is_conflict(self, error: BaseException) -> bool:
        """Return whether a commit failed because another process committed first (see
        `tables.port.Engine.is_conflict`)."""


_FORMATS: dict[str, Callable[[], SparkFormat]] = {"delta": DeltaFormat, "iceberg": IcebergFormat}


def table_format(name: str) -> SparkFormat:
    """Return the format by its name.

    Raises:
        ConfigurationError: there is no such format.
    """
    return _FORMATS[rules_of(name).name]()
