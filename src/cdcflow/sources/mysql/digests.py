"""Rows as digests that MySQL or MariaDB computes: the texts of `model.digest` in its SQL, column by column. Pure.

    column               text                                        not supported
    integer, BIT         as a number, without the zeros of ZEROFILL
    DECIMAL              with all the decimals of its type           beyond 38 digits with ZEROFILL: no harm, see below
    text, ENUM, SET      its length in bytes of UTF-8, a colon,      in a character set in which not every byte is
                         as UTF-8                                    valid; `bad_text: replace`
    JSON                 the same, as the server prints it
    BINARY, BLOB         hexadecimal
    DATE                 days since 1970
    DATETIME, TIMESTAMP  microseconds since 1970
    TIME                 text like -838:59:59.000000
                                                                     FLOAT, DOUBLE, geometry, VECTOR

A date that does not exist in the calendar is NULL if `zero_dates` is null; otherwise it has a distinct text that no
copy has. The digest of a row whose text is larger than `max_allowed_packet` is NULL, and is missing in the sum.
"""

# ruff: noqa: S608 - names go through `quote_name`
from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from cdcflow.model.digest import DIGEST_BITS, Buckets
from cdcflow.model.table import Identity, TableId
from cdcflow.sources.engine.row_digests import RowDigests, other_type
from cdcflow.sources.mysql.sql import quote_name
from cdcflow.sources.mysql.tables import DescribedTable, describe
from cdcflow.sources.mysql.types.charsets import charset_of
from cdcflow.sources.mysql.types.columns import BINARY_COLLATION, Policy, ServerColumn, TypeCode
from cdcflow.sources.mysql.types.family import Codec
from cdcflow.sources.mysql.types.numbers import decimal_metadata

_WHOLE_SETS = ("utf8mb4", "utf8mb3", "ascii", "latin1")
"""Character sets in which every value means the same to the server and to cdcflow."""
_EPOCH_DAYS = 719_528
"""TO_DAYS('1970-01-01')."""
_DATES = (TypeCode.DATE, TypeCode.DATETIME, TypeCode.TIMESTAMP)

SUMS: DescribedTable = describe(
    TableId("", "sums"),
    [
        ServerColumn("b", TypeCode.LONGLONG, 0, nullable=False),
        ServerColumn("n", TypeCode.LONGLONG, 0, nullable=False),
        ServerColumn("t", TypeCode.DECIMAL, decimal_metadata(38, 0), nullable=False),
    ],
    (),
    Identity.NOTHING,
    Policy(),
)
"""The result columns of `sums`."""


def sums(described: DescribedTable, buckets: Buckets, rows: str) -> str:
    """A query that adds up a table's rows by bucket. `rows`: the SQL after FROM.

    Raises:
        NoText: some columns have no portable text.
    """
    found = MySQLDigests(described, buckets)
    each = f"SELECT ({found.bucket}) AS b, {found.digest} AS d FROM {rows}"
    # The sum is NULL if all values are: if all rows were too large.
    total = "CAST(IFNULL(SUM(d), 0) AS DECIMAL(38,0))"
    return f"SELECT CAST(b AS SIGNED), COUNT(*), {total} FROM ({each}) AS each_row GROUP BY b"


def among(described: DescribedTable, buckets: Buckets) -> str:
    """A condition: a row is in one of the buckets."""
    return f"(({MySQLDigests(described, buckets).bucket})) IN ({', '.join(map(str, buckets.only or (-1,)))})"


class MySQLDigests(RowDigests):
    def __init__(self, described: DescribedTable, buckets: Buckets) -> None:
        super().__init__(buckets)
        self._hash = buckets.hash
        self._columns = {c.name: (c, codec) for c, codec in zip(described.columns, described.codecs, strict=True)}

    def reason(self, name: str, copied: str) -> str:
        if name not in self._columns:
            return "it is gone"
        return _no_text(*self._columns[name], copied)

    def pieces(self, name: str) -> Sequence[str]:
        return _pieces(*self._columns[name])

    def concat(self, pieces: Sequence[str]) -> str:
        return f"CONCAT({', '.join(pieces)})"

    def number(self, text: str) -> str:
        hashed = f"MD5({text})" if self._hash == "md5" else f"SHA2({text}, 256)"
        return f"CAST(CONV(LEFT({hashed}, {DIGEST_BITS // 4}), 16, 10) AS UNSIGNED)"

    def whole(self, name: str) -> str:
        return quote_name(name)


def _no_text(column: ServerColumn, codec: Codec, copied: str) -> str:
    """Why a column's values have no portable text; empty if they have one."""
    arrow = codec.arrow
    if why := other_type(arrow, copied):
        return why
    if pa.types.is_floating(arrow) or column.type_code in (TypeCode.GEOMETRY, TypeCode.VECTOR):
        return f"{codec.where.type_text} has no text that is the same everywhere"
    if arrow == pa.string() and column.collation not in (None, BINARY_COLLATION):
        charset = charset_of(column.collation or 0).name
        if charset not in _WHOLE_SETS:
            return f"its character set is {charset}"
        if codec.where.bad_text == "replace":
            return "bad_text is replace"
    return ""


def _pieces(column: ServerColumn, codec: Codec) -> list[str]:
    """A column's text, in pieces to be concatenated."""
    if codec.arrow == pa.string():
        text = _string(column)
        measured = [f"OCTET_LENGTH({text})", "':'", text]
        return [f"IFNULL(CONCAT({', '.join(measured)}), '')"] if column.nullable else measured
    if column.type_code in _DATES:
        return [_moment(column, codec)]
    text = _plain(column, codec.arrow)
    return [f"IFNULL({text}, '')"] if column.nullable else [text]


def _string(column: ServerColumn) -> str:
    name = quote_name(column.name)
    if column.type_code == TypeCode.JSON or column.collation in (None, BINARY_COLLATION):
        return f"CAST({name} AS CHAR)"
    is_plain = column.type_code in (TypeCode.CHAR, TypeCode.VARCHAR, TypeCode.BLOB)
    charset = charset_of(column.collation or 0).name
    return name if is_plain and charset == "utf8mb4" else f"CONVERT({name} USING utf8mb4)"


def _plain(column: ServerColumn, arrow: pa.DataType) -> str:
    name = quote_name(column.name)
    if arrow == pa.binary():
        return f"HEX({name})"
    if pa.types.is_duration(arrow):
        return f"CONCAT(OCTET_LENGTH(CAST({name} AS TIME(6))), ':', CAST({name} AS TIME(6)))"
    if pa.types.is_decimal(arrow) and arrow.precision > 38:
        return f"CONCAT(OCTET_LENGTH({name}), ':', {name})"
    return f"{name} + 0"


def _moment(column: ServerColumn, codec: Codec) -> str:
    """Days or microseconds since 1970."""
    name = quote_name(column.name)
    # For a day that its month does not have, TO_DAYS returns a day of the next month.
    number = f"TO_DAYS({name}) - {_EPOCH_DAYS}"
    if column.type_code != TypeCode.DATE:
        number = f"TIMESTAMPDIFF(MICROSECOND, '1970-01-01', {name})"
    is_day = f"FROM_DAYS(TO_DAYS({name})) <=> DATE({name})"
    other = "''" if codec.where.zero_dates == "null" else f"CONCAT('?', {name})"
    return f"IF({is_day}, IFNULL({number}, ''), {other})"
