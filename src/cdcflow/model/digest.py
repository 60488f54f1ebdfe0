"""Computes one text for each value and one number for each row, the same on every server and engine.

    value     text                          of
    NULL      (nothing)
    17        17                            whole numbers, decimals with all of their digits
    true      1                             true and false: 1 and 0
    héllo     6:héllo                       text, after its length in bytes of UTF-8
    x'00ff'   00FF                          bytes
    a day     18263                         days since 1970
    a time    1577923200000000              microseconds since 1970, with a time zone (UTC) or without
    a row     17|6:héllo||1|                its columns' texts, each followed by a bar
    digest    the first 60 bits of the MD5 of that text, as a whole number
    bucket    of a key: a number below a power of two

No two rows have the same text: only a text can contain a bar, and its length precedes it. Digests are added up, as
whole numbers and without overflow: a row that exists twice counts twice, where an exclusive or would cancel it.

Rows are assigned to buckets by their keys, so that a row stays in its bucket whatever else of it changes. If the key
is one whole number, the bucket is computed from its bits, otherwise from the digest of its text. For each bucket the
source and the copy each return the number of rows and the sum of their digests; only the buckets in which the two
differ are inspected.

A server may have no MD5 (MySQL since 9.6); then the source and the copy both use SHA-256 (`Hash`).

Engines and servers print floating-point numbers, lists and structs differently. `LOCAL_ONLY` types have one text within
one engine; rows of such tables are compared where they were read.

The functions return SQL in Spark's dialect.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import pyarrow as pa

from cdcflow.model.sqltypes import name_sql

LOCAL_ONLY = ("float", "double", "array<", "struct<", "map<")
"""Types whose values have a text that is the same within one engine only."""

DIGEST_BITS = 60

SUM = pa.decimal128(38, 0)
"""The type of a sum of digests. Each digest is below 2^60, so 38 digits hold the sum over any table."""

BUCKETS_MAX = 1 << 20
"""The most buckets. With more of them, a negative key's bucket would depend on whether a server's right shift keeps the
sign."""
FOLDS = (11, 23, 37)
"""A key's bucket is the sum of the key and of the key shifted right by each of these numbers of bits, so that keys that
differ only in their high bits are in different buckets."""

WHOLE_NUMBERS = ("tinyint", "smallint", "int", "bigint")

Hash = Literal["md5", "sha256"]

Typed = tuple[tuple[str, str], ...]
"""Columns: for each, its name and its type in the copy (Spark's text for the type)."""


@dataclass(frozen=True, slots=True)
class Buckets:
    """How a table's rows are assigned to buckets and added up, the same for the source and the copy.

    `columns`: the columns that are compared. `key`: the names of the key's columns, in their order. `count`: the number
    of buckets, a power of two up to `BUCKETS_MAX`. `only`: the buckets whose rows are requested; None for all.
    """

    columns: Typed
    key: tuple[str, ...]
    count: int
    hash: Hash = "md5"
    only: tuple[int, ...] | None = None

    @property
    def key_columns(self) -> Typed:
        types = dict(self.columns)
        return tuple((name, types[name]) for name in self.key)

    @property
    def is_of_number(self) -> bool:
        """Whether the key is one whole number."""
        return len(self.key) == 1 and self.key_columns[0][1] in WHOLE_NUMBERS

    def among(self, only: Sequence[int]) -> Buckets:
        """Return these buckets, restricted to those in `only`."""
        return replace(self, only=tuple(only))


def is_portable(table_type: str) -> bool:
    """Whether a value of this type (Spark's text for the type) has the same text on every server and engine."""
    return not table_type.startswith((*LOCAL_ONLY, "decimal(38,38)"))


def text_of(value: str, table_type: str) -> str:
    """Return the SQL of a value's text, which is NULL for NULL."""
    if table_type == "boolean":
        return f"CASE WHEN {value} THEN '1' WHEN NOT {value} THEN '0' END"
    if table_type == "string":
        return f"CAST(octet_length({value}) AS string) || ':' || {value}"
    if table_type == "binary":
        return f"hex({value})"
    if table_type == "date":
        return f"CAST(unix_date({value}) AS string)"
    if table_type.startswith("decimal("):
        precision, scale = table_type[len("decimal(") : -1].split(",")
        # If a type has no digit before the point, DuckDB prints none and Spark prints 0. (38 digits cannot be widened:
        # `is_portable` excludes them.)
        if precision == scale and int(precision) < 38:
            return f"CAST(CAST({value} AS decimal({int(precision) + 1},{scale})) AS string)"
    if table_type == "timestamp":
        return f"CAST(unix_micros({value}) AS string)"
    if table_type == "timestamp_ntz":  # a session of Spark's whose time zone is UTC
        return f"CAST(unix_micros(CAST({value} AS timestamp)) AS string)"
    if table_type.startswith(("array<", "struct<", "map<")):
        return f"CAST(to_json({value}) AS string)"
    return f"CAST({value} AS string)"


def row_text(columns: Sequence[tuple[str, str]]) -> str:
    """Return the SQL of a row's text. `columns`: each column's value as SQL, and its type."""
    # concat_ws skips a NULL, so it becomes empty between its bars; no other value has an empty text.
    pieces = [piece for value, type_ in columns for piece in (text_of(value, type_), "'|'")]
    return f"concat_ws('', {', '.join(pieces)})"


def digest(text: str, hash_: Hash = "md5") -> str:
    """Return the SQL of a text's digest."""
    hashed = f"md5({text})" if hash_ == "md5" else f"sha2({text}, 256)"
    return f"CAST(conv(substring({hashed}, 1, {DIGEST_BITS // 4}), 16, 10) AS bigint)"


def digests(
    rows: str,
    key: Sequence[str],
    columns: Sequence[tuple[str, str]],
    buckets: Buckets | None = None,
) -> str:
    """Return a query for the key of each row of a view, as columns `k0`, `k1`, …, and its digest, as `d`.

    `columns`: the names of the columns that are compared, with their types, in the same order on both sides. `buckets`:
    only rows of the buckets in `buckets.only`; None for all rows.
    """
    keys = [f"{name_sql(name)} AS k{i}" for i, name in enumerate(key)]
    number = digest(row_text([(name_sql(name), type_) for name, type_ in columns]))
    where = ""
    if buckets is not None and buckets.only is not None:
        where = f" WHERE {bucket(buckets)} IN ({', '.join(map(str, buckets.only))})"
    return f"SELECT {', '.join([*keys, f'{number} AS d'])} FROM {rows}{where}"  # noqa: S608  names go through name_sql


def bucket(buckets: Buckets) -> str:
    """Return the SQL of the number of a row's bucket."""
    key = [(name_sql(name), type_) for name, type_ in buckets.key_columns]
    mask = buckets.count - 1
    if not buckets.is_of_number:
        return f"{digest(row_text(key), buckets.hash)} & {mask}"
    number = f"CAST({key[0][0]} AS bigint)"
    shifted = [f"(shiftright({number}, {bits}) & {mask})" for bits in FOLDS]
    return f"({' + '.join([f'({number} & {mask})', *shifted])}) & {mask}"


def sums(rows: str, buckets: Buckets) -> str:
    """Return a query for each bucket that has rows: its number `b`, its number of rows `n`, and the sum `t` of their
    digests."""
    number = digest(row_text([(name_sql(name), type_) for name, type_ in buckets.columns]), buckets.hash)
    each = f"SELECT {bucket(buckets)} AS b, CAST({number} AS decimal(38,0)) AS d FROM {rows}"  # noqa: S608  as above
    told = "CAST(b AS bigint) AS b, CAST(count(*) AS bigint) AS n, CAST(sum(d) AS decimal(38,0)) AS t"
    return f"SELECT {told} FROM ({each}) GROUP BY b"  # noqa: S608  as above
