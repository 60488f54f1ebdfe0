"""Compare source and target: row count and content hash, computed by each engine from its own table.

Both sides write every row as one canonical text, take its SHA-256, and add up two 60-bit numbers of it over all rows. A
sum does not depend on the order of rows and, unlike XOR, detects a duplicated row. Canonical means: every value with
its length in front, so that no two rows can give the same text by accident; NULL different from everything else; no
engine's own format for numbers, floats or times.

    value        both sides write
    NULL         -
    integers     decimal digits
    numeric      decimal digits with the column's scale
    float        sign, whole part, and two times 40 bits of the fraction: exact down to 2^-80
    timestamptz  microseconds since 1970 UTC
    date         days since 1970
    text         itself
    bytes        hexadecimal digits
    boolean      true, false
"""

# ruff: noqa: S608 - names are the demo's own
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import sql

from cdcflow.demo.databases import Columns, DemoSource, Digest

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Connection = psycopg.Connection[tuple[Any, ...]]
_SPLIT = 1 << 40

OF_MYSQL: Mapping[str, str] = {
    "smallint": "smallint",
    "int": "integer",
    "bigint": "bigint",
    "decimal": "numeric",
    "float": "real",
    "double": "double precision",
    "char": "text",
    "varchar": "text",
    "text": "text",
    "timestamp": "timestamp with time zone",
    "date": "date",
    "varbinary": "bytea",
}
"""The kinds of MySQL's and MariaDB's types, by their names in the catalog."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The comparison of one table. `target` is None if the cut does not have the table."""

    table: str
    source: Digest
    target: Digest | None

    @property
    def equal(self) -> bool:
        return self.source == self.target


def columns_of(connection: Connection, table: str) -> list[tuple[str, str]]:
    """Name and type (`format_type`) of each column of a table in schema public."""
    rows = connection.execute(
        "SELECT attname, format_type(atttypid, NULL) FROM pg_attribute"
        " WHERE attrelid = format('public.%%I', %s::text)::regclass AND attnum > 0 AND NOT attisdropped"
        " ORDER BY attnum",
        (table,),
    )
    return [(name, kind) for name, kind in rows]


def source_digest(connection: Connection, table: str, columns: Sequence[tuple[str, str]]) -> Digest:
    """Return the digest as PostgreSQL computes it."""
    query = sql.SQL(
        "SELECT count(*), coalesce(sum(('x' || substr(h, 1, 15))::bit(60)::bigint), 0),"
        " coalesce(sum(('x' || substr(h, 16, 15))::bit(60)::bigint), 0)"
        " FROM (SELECT encode(sha256(convert_to({}, 'UTF8')), 'hex') AS h FROM {}) r"
    )
    text = sql.SQL(_in_postgres(columns))
    row = connection.execute(query.format(text, sql.Identifier("public", table))).fetchone()
    assert row is not None  # noqa: S101 - an aggregate always has a row
    return Digest(row[0], f"{int(row[1]):x}.{int(row[2]):x}")


def target_digest(frame: DataFrame, columns: Sequence[tuple[str, str]]) -> Digest:
    """Return the digest as Spark computes it."""
    row = (
        target_hashes(frame, columns)
        .selectExpr(
            "count(*) AS n",
            "coalesce(sum(cast(conv(substr(h, 1, 15), 16, 10) AS decimal(20, 0))), 0) AS a",
            "coalesce(sum(cast(conv(substr(h, 16, 15), 16, 10) AS decimal(20, 0))), 0) AS b",
        )
        .collect()[0]
    )
    return Digest(row["n"], f"{int(row['a']):x}.{int(row['b']):x}")


def target_hashes(frame: DataFrame, columns: Sequence[tuple[str, str]]) -> DataFrame:
    """One column `h`: the SHA-256 of each row's canonical text."""
    return frame.selectExpr(f"sha2(cast({_in_spark(columns)} AS binary), 256) AS h")


def in_mysql(table: str, columns: Columns) -> str:
    """Return the query with which MySQL or MariaDB computes a table's digest: rows, and the two sums. For a UTC
    session."""
    quoted = [(_quote(name, "`"), kind) for name, kind in columns]
    texts = ", ".join(_with_length(column, _mysql_text(column, kind), "char_length") for column, kind in quoted)
    first, second = (f"coalesce(sum(cast(conv(substr(h, {at}, 15), 16, 10) AS unsigned)), 0)" for at in (1, 16))
    return f"SELECT count(*), {first}, {second} FROM (SELECT sha2(concat({texts}), 256) AS h FROM `{table}`) r"


def verdicts(
    source: DemoSource, cut: Mapping[str, Any], tables: Sequence[str], digest: Callable[[Any, Columns], Digest]
) -> list[Verdict]:
    """Compare each current table of the source with the same table of a published cut.

    `digest`: computes a digest in the engine that read the cut.
    """
    found: list[Verdict] = []
    for table in tables:
        columns = source.columns(table)
        name = f"{source.schema}.{table}"
        frame = cut.get(name)
        target = None if frame is None else digest(frame, columns)
        found.append(Verdict(name, source.digest(table, columns), target))
    return found


def _in_postgres(columns: Sequence[tuple[str, str]]) -> str:
    quoted = [(_quote(name, '"'), kind) for name, kind in columns]
    return " || ".join(_with_length(column, _postgres_text(column, kind)) for column, kind in quoted)


def _in_spark(columns: Sequence[tuple[str, str]]) -> str:
    quoted = [(_quote(name, "`"), kind) for name, kind in columns]
    return " || ".join(_with_length(column, _spark_text(column, kind)) for column, kind in quoted)


def _with_length(column: str, text: str, length: str = "length") -> str:
    return f"CASE WHEN {column} IS NULL THEN '-' ELSE concat('+', {length}({text}), ':', {text}) END"


def _quote(name: str, quote: str) -> str:
    return f"{quote}{name.replace(quote, quote * 2)}{quote}"


def _postgres_text(column: str, kind: str) -> str:
    match kind:
        case "smallint" | "integer" | "bigint" | "numeric" | "text" | "boolean" | "character varying" | "uuid":
            return f"{column}::text"
        case "character":
            # A cast to text would drop the padding, which belongs to the value.
            return f"concat({column})"
        case "real" | "double precision":
            whole, first, second = _float_parts(f"abs({column}::float8)", f"{_SPLIT}::float8")
            parts = f"{whole}::bigint || '.' || {first}::bigint || '.' || {second}::bigint"
            return (
                f"CASE WHEN {column} = 'NaN' THEN 'NaN' WHEN abs({column}::float8) > 9e18 THEN 'huge'"
                f" ELSE CASE WHEN {column} < 0 THEN '-' ELSE '' END || {parts} END"
            )
        case "timestamp with time zone":
            return f"(extract(epoch FROM {column}) * 1000000)::bigint::text"
        case "date":
            return f"({column} - date '1970-01-01')::text"
        case "bytea":
            return f"encode({column}, 'hex')"
    raise ValueError(f"the proof has no canonical text for type {kind}")


def _mysql_text(column: str, kind: str) -> str:
    match kind:
        case "real" | "double precision":
            whole, first, second = _float_parts(f"abs({column} + 0e0)", f"{_SPLIT}e0")
            numbers = ", '.', ".join(f"cast(cast({part} AS decimal(30)) AS char)" for part in (whole, first, second))
            sign = f"CASE WHEN {column} < 0 THEN '-' ELSE '' END"
            return f"CASE WHEN abs({column} + 0e0) > 9e18 THEN 'huge' ELSE concat({sign}, {numbers}) END"
        case "timestamp with time zone":
            return f"cast(timestampdiff(MICROSECOND, timestamp '1970-01-01 00:00:00', {column}) AS char)"
        case "date":
            return f"cast(datediff({column}, date '1970-01-01') AS char)"
        case "bytea":
            return f"lower(hex({column}))"
    return f"cast({column} AS char)"


def _spark_text(column: str, kind: str) -> str:
    match kind:
        case "real" | "double precision":
            whole, first, second = _float_parts(f"abs(cast({column} AS double))", f"cast({_SPLIT} AS double)")
            parts = f"cast({whole} AS bigint) || '.' || cast({first} AS bigint) || '.' || cast({second} AS bigint)"
            return (
                f"CASE WHEN isnan({column}) THEN 'NaN' WHEN abs(cast({column} AS double)) > 9e18D THEN 'huge'"
                f" ELSE CASE WHEN {column} < 0 THEN '-' ELSE '' END || {parts} END"
            )
        case "timestamp with time zone":
            return f"cast(unix_micros({column}) AS string)"
        case "date":
            return f"cast(unix_date({column}) AS string)"
        case "bytea":
            return f"lower(hex({column}))"
    return f"cast({column} AS string)"


def _float_parts(size: str, split: str) -> tuple[str, str, str]:
    """Return the whole part of a non-negative float, 40 bits of its fraction, and 40 more.

    Every step is exact: a multiplication by a power of two, and a subtraction of the part above the point.
    """
    fraction = f"({size} - floor({size})) * {split}"
    return f"floor({size})", f"floor({fraction})", f"floor((({fraction}) - floor({fraction})) * {split})"
