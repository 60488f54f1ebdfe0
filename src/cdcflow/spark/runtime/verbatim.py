"""Pass names and texts of a source through Spark unchanged, even if they resemble a variable.

Spark replaces `${…}` by settings and environment variables in each text of SQL (`spark.sql.variable.substitute`) and in
the values of its settings; Hadoop does the same with the schema with which Parquet files are read. A source's column
may be named `${env:SECRET}`.

    SQL, in cdcflow's session        the substitution is off (`settle`)
    SQL, in the caller's session     `${a}` is written `${spark.cdcflow.dollar}{a}`, and that setting is `$`
    a setting's value                the same: there it cannot be switched off
    a schema for Parquet             see `held_literal`
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from cdcflow.errors import ConfigurationError
from cdcflow.model.sqltypes import name_sql, text_sql
from cdcflow.tables.formats.delta import ROW_INDEX

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

OFF = {"spark.sql.variable.substitute": "false"}
"""Settings for sessions that run only cdcflow's statements."""

_DOLLAR = "spark.cdcflow.dollar"
_BEGIN = "${"
_UNBOUND = "${cdcflow.no.such.setting}"


def settle(spark: SparkSession) -> SparkSession:
    """Prepare one of cdcflow's sessions, in which SQL is taken literally."""
    for name, value in OFF.items():
        spark.conf.set(name, value)
    return spark


def as_written(spark: SparkSession, sql: str) -> str:
    """Return a text of SQL that this session interprets as `sql` is written, without substitution."""
    if _BEGIN not in sql or spark.conf.get("spark.sql.variable.substitute") == "false":
        return sql
    return in_setting(spark, sql)


def all_as_written(spark: SparkSession, expressions: Sequence[str]) -> list[str]:
    """Return `as_written` of each expression."""
    return [as_written(spark, one) for one in expressions]


def in_setting(spark: SparkSession, text: str) -> str:
    """Return the text to which a setting of this session must be set so that the setting's value is `text`."""
    if _BEGIN not in text:
        return text
    spark.conf.set(_DOLLAR, "$")
    return text.replace(_BEGIN, f"${{{_DOLLAR}}}{{")


def held_literal(schema: str, first: str) -> tuple[str, str | None]:
    """Return a schema to read Parquet files with (DDL) that Hadoop does not change, and the condition by which their
    rows must then be filtered (`None`: no condition). `first`: the first column, which has a value in every row.

    Spark passes the schema as the value of a Hadoop setting. Hadoop replaces variables from left to right, and stops at
    an unknown one. So an unknown variable is added in the comment of the first column, which is read in any case if
    rows are filtered by it.
    """
    if _BEGIN not in schema:
        return schema, None
    column, rest = schema.split(", ", 1)
    return f"{column} COMMENT {text_sql(_UNBOUND)}, {rest}", f"{first} IS NOT NULL"


def read_parquet(spark: SparkSession, schema: str, paths: Sequence[str], first: str) -> DataFrame:
    """Read Parquet files of a log, by a schema whose names are taken literally. `first`: as in `held_literal`."""
    literal, asked = held_literal(_without_row_index(spark, schema), first)
    rows = spark.read.schema(literal).parquet(*map(literal_path, paths))
    return rows if asked is None else rows.where(asked)


def _without_row_index(spark: SparkSession, schema: str) -> str:
    """Return the schema with another name for a column that has the name of Spark's row index. Spark would fill such a
    column with the rows' numbers in their file, whatever the file contains. Spark matches the special name exactly, but
    finds columns in a file regardless of case."""
    mine = f"{name_sql(ROW_INDEX)} "
    if mine not in schema:
        return schema
    if str(spark.conf.get("spark.sql.caseSensitive")).lower() == "true":
        raise ConfigurationError(
            f"reading a log by Spark: the session tells names apart by their case, and a column is called {ROW_INDEX},"
            " which Spark keeps for itself",
            remedy="set spark.sql.caseSensitive to false in this session",
            runbook="merge-session",
        )
    return schema.replace(mine, mine.upper())


def literal_path(path: str) -> str:
    """Return a path with its special characters escaped, because Spark interprets paths as patterns."""
    return "".join(f"\\{c}" if c in "\\[]{}*?" else c for c in path)
