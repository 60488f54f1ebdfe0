"""Spark Connect: what needs the driver itself says so."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cdcflow.errors import ConfigurationError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def refuse_connect(spark: SparkSession) -> None:
    """Refuse a session of Spark Connect: it has no way into the driver's JVM, where a table's newest commit is read.

    Raises:
        ConfigurationError: it is one.
    """
    # By name: importing it would ask for packages that nobody else needs.
    if any(kind.__module__.startswith("pyspark.sql.connect.") for kind in type(spark).__mro__):
        raise ConfigurationError(
            "this is a Spark Connect session, and cdcflow merges and reads cuts only in Spark's driver",
            remedy="use cdcflow.spark.session(), `cdcflow merge`, or spark-submit; through Spark Connect the tables are"
            " read with SQL (see docs/merge.md)",
            runbook="merge-session",
        )


__all__ = ["refuse_connect"]
