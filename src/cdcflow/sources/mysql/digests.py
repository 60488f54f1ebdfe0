"""Digests of rows that MySQL or MariaDB computes: the texts of `model.digest` in its SQL, column by column. Pure.

The family of each type (`types`) defines the text of its values:

    column               text                                        not supported
    integer, BIT         as a number, without the zeros of ZEROFILL
    DECIMAL              with all the decimals of its type           ZEROFILL beyond 38 digits (harmless: `row_digests`)
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

from __future__ import annotations

from collections.abc import Sequence

from cdcflow.model.digest import DIGEST_BITS, Buckets
from cdcflow.model.table import Identity, TableId
from cdcflow.sources.engine.row_digests import RowDigests, other_type
from cdcflow.sources.mysql.sql import quote_name
from cdcflow.sources.mysql.tables import DescribedTable, describe
from cdcflow.sources.mysql.types.columns import Policy, ServerColumn, TypeCode
from cdcflow.sources.mysql.types.family import RowText
from cdcflow.sources.mysql.types.numbers import decimal_metadata
from cdcflow.sources.mysql.types.registry import row_text_of

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
"""The result columns of `MySQLDigests.sums`."""


class MySQLDigests(RowDigests):
    def __init__(self, described: DescribedTable, buckets: Buckets) -> None:
        super().__init__(buckets)
        self._hash = buckets.hash
        self._columns = {c.name: (c, codec) for c, codec in zip(described.columns, described.codecs, strict=True)}

    def reason(self, name: str, copied: str) -> str:
        if name not in self._columns:
            return "it is gone"
        return other_type(self._columns[name][1].arrow, copied) or self._text(name).lacking

    def pieces(self, name: str) -> Sequence[str]:
        return self._text(name).pieces

    def _text(self, name: str) -> RowText:
        return row_text_of(*self._columns[name])

    def concat(self, pieces: Sequence[str]) -> str:
        return f"CONCAT({', '.join(pieces)})"

    def number(self, text: str) -> str:
        hashed = f"MD5({text})" if self._hash == "md5" else f"SHA2({text}, 256)"
        return f"CAST(CONV(LEFT({hashed}, {DIGEST_BITS // 4}), 16, 10) AS UNSIGNED)"

    def whole(self, name: str) -> str:
        return quote_name(name)

    def totals(self) -> str:
        # The sum is NULL if the digests of all rows are, because all rows were too large.
        return "CAST(b AS SIGNED), COUNT(*), CAST(IFNULL(SUM(d), 0) AS DECIMAL(38,0))"
