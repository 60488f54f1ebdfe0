"""Names and texts of a source, on their way through Spark: what looks like a variable stays as it is.

Spark replaces `${…}` by settings and the environment in each text of SQL (`spark.sql.variable.substitute`) and in the
values of its settings; Hadoop does the same with the schema that Parquet files are read with. A source's column may
have the name `${env:SECRET}`.

    SQL, in a session of ours        the substitution is off (`settle`)
    SQL, in a session of the caller  `${a}` is written `${spark.cdcflow.dollar}{a}`, and that setting is `$`
    a setting's value                the same: there it cannot be switched off
    a schema for Parquet             see `held_literal`
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from cdcflow.errors import ConfigurationError
from cdcflow.merge.types import name_sql, text_sql
from cdcflow.warehouse.formats.delta import ROW_INDEX

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

OFF = {"spark.sql.variable.substitute": "false"}
"""Of sessions that run nothing but statements of cdcflow's."""

_DOLLAR = "spark.cdcflow.dollar"
_BEGIN = "${"
_UNBOUND = "${cdcflow.no.such.setting}"


def settle(spark: SparkSession) -> SparkSession:
    """A session of cdcflow's, in which SQL means what it is written as."""
    for name, value in OFF.items():
        spark.conf.set(name, value)
    return spark


def as_written(spark: SparkSession, sql: str) -> str:
    """SQL, or a part of it, that means in this session what `sql` is written as."""
    if _BEGIN not in sql or spark.conf.get("spark.sql.variable.substitute") == "false":
        return sql
    return in_setting(spark, sql)


def all_as_written(spark: SparkSession, expressions: Sequence[str]) -> list[str]:
    """The same, of expressions."""
    return [as_written(spark, one) for one in expressions]


def in_setting(spark: SparkSession, text: str) -> str:
    """What a setting of this session is to be set to, so that it has this value."""
    if _BEGIN not in text:
        return text
    spark.conf.set(_DOLLAR, "$")
    return text.replace(_BEGIN, f"${{{_DOLLAR}}}{{")


def held_literal(schema: str, first: str) -> tuple[str, str | None]:
    """A schema to read Parquet files with (DDL) that Hadoop takes as it is, and what has to be asked of their rows then
    (None: nothing). `first`: the column at its beginning, which is in every row.

    Spark hands the schema over as the value of a Hadoop setting. Hadoop replaces variables from the first one on, and
    stops at one that nothing is known of: such a one is put into the comment of the first column, which is read in any
    case if rows are chosen by it.
    """
    if _BEGIN not in schema:
        return schema, None
    column, rest = schema.split(", ", 1)
    return f"{column} COMMENT {text_sql(_UNBOUND)}, {rest}", f"{first} IS NOT NULL"


def read_parquet(spark: SparkSession, schema: str, paths: Sequence[str], first: str) -> DataFrame:
    """Parquet files of a log, by a schema whose names mean themselves. `first` as of `held_literal`."""
    literal, asked = held_literal(_without_row_index(spark, schema), first)
    rows = spark.read.schema(literal).parquet(*map(literal_path, paths))
    return rows if asked is None else rows.where(asked)


def _without_row_index(spark: SparkSession, schema: str) -> str:
    """A column of that name Spark would fill with the rows' numbers in their file, whatever the file has. It looks for
    the name as it is, and finds columns in a file whatever their case is."""
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
    """Spark takes a path for a pattern; this one means itself."""
    return "".join(f"\\{c}" if c in "\\[]{}*?" else c for c in path)


__all__ = [
    "OFF",
    "all_as_written",
    "as_written",
    "held_literal",
    "in_setting",
    "literal_path",
    "read_parquet",
    "settle",
]
