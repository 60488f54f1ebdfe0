"""One text for each value, and one number for each row, the same wherever they are worked out.

    value     text                          of
    NULL      (nothing)
    17        17                            whole numbers, decimals with all of their digits
    true      1                             true and false: 1 and 0
    héllo     6:héllo                       text, behind its length in bytes of UTF-8
    x'00ff'   00FF                          bytes
    a day     18263                         days since 1970
    a moment  1577923200000000              microseconds since 1970, with a time zone (UTC) or without
    a row     17|6:héllo||1|                its columns' texts, each with a bar behind it
    digest    the first 60 bits of the MD5 of that text, as a whole number

No two rows have the same text: only a text can have a bar in it, and it says how long it is. Digests are added up, as
whole numbers and without overflow: a row that is there twice counts twice, where an exclusive or would cancel it.

Of a floating-point number, a list and a struct engines and servers do not print the same text. `LOCAL_ONLY` types have
one within one engine; rows of such tables are compared where they were read.

SQL is in Spark's words, as everywhere in `merge`.
"""

from __future__ import annotations

from collections.abc import Sequence

from cdcflow.merge.types import name_sql

LOCAL_ONLY = ("float", "double", "array<", "struct<", "map<")
"""Types whose values have a text that is the same within one engine only."""

DIGEST_BITS = 60


def is_portable(table_type: str) -> bool:
    """Whether a value of this type (Spark's text for it) has the same text on every side."""
    return not table_type.startswith(LOCAL_ONLY)


def text_of(value: str, table_type: str) -> str:
    """SQL of a value's text; NULL of a NULL."""
    if table_type == "boolean":
        return f"CASE WHEN {value} THEN '1' WHEN NOT {value} THEN '0' END"
    if table_type == "string":
        return f"concat(CAST(octet_length({value}) AS string), ':', {value})"
    if table_type == "binary":
        return f"hex({value})"
    if table_type == "date":
        return f"CAST(unix_date({value}) AS string)"
    if table_type in ("timestamp", "timestamp_ntz"):
        return f"CAST(unix_micros({value}) AS string)"
    if table_type.startswith(("array<", "struct<", "map<")):
        return f"CAST(to_json({value}) AS string)"
    return f"CAST({value} AS string)"


def row_text(columns: Sequence[tuple[str, str]]) -> str:
    """SQL of a row's text. `columns`: each column's value as SQL, and its type."""
    pieces = [
        piece
        for value, type_ in columns
        for piece in (
            # What is NULL has no text at all, and no value has an empty one.
            f"CASE WHEN {value} IS NOT NULL THEN {text_of(value, type_)} ELSE '' END",
            "'|'",
        )
    ]
    return f"concat({', '.join(pieces)})"


def digest(text: str) -> str:
    """SQL of the number of a text."""
    return f"CAST(conv(substring(md5({text}), 1, {DIGEST_BITS // 4}), 16, 10) AS bigint)"


def digests(rows: str, key: Sequence[str], columns: Sequence[tuple[str, str]]) -> str:
    """A query: of each row of a view its key, as columns `k0`, `k1`, …, and its digest, as `d`.

    `columns`: the names of those that are compared, with their types, in an order that is the same on both sides.
    """
    keys = [f"{name_sql(name)} AS k{i}" for i, name in enumerate(key)]
    number = digest(row_text([(name_sql(name), type_) for name, type_ in columns]))
    return f"SELECT {', '.join([*keys, f'{number} AS d'])} FROM {rows}"  # noqa: S608  names go through name_sql
