"""Refuse sessions of Spark Connect for operations that need the driver itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cdcflow.errors import ConfigurationError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def refuse_connect(spark: SparkSession) -> None:
    """Refuse a session of Spark Connect: it has no access to the driver's JVM, where a table's latest commit is read.

    Raises:
        ConfigurationError: it is such a session.
    """
    # Compared as text: importing the class would require packages that nothing else needs.
    if any(kind.__module__.startswith("pyspark.sql.connect.") for kind in type(spark).__mro__):
        raise ConfigurationError(
            "this is a Spark Connect session, and cdcflow merges and reads cuts only in Spark's driver",
            remedy="use cdcflow.spark.session(), `cdcflow merge`, or spark-submit; through Spark Connect the tables are"
            " read with SQL (see docs/merge.md)",
            runbook="merge-session",
        )
