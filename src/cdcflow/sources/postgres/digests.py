"""Digests of rows that PostgreSQL computes: the texts of `model.digest` in its SQL, column by column. Pure.

Each type's entry in `types` defines the text of its values:

    column         text                                              not supported
    whole number   as `concat` prints it
    boolean        as 0 or 1
    numeric        as printed: as many digits after the decimal      without precision, kept as a decimal
                   point as its type has
    text, others   its length in bytes, a colon, as printed          in a database that is not UTF-8
    bytea          hexadecimal
    date           days since 1970
    timestamp      microseconds since 1970
                                                                     floats, intervals, arrays; what a policy changes

`concat` skips NULL, so the text of NULL is empty. A value that no copy can have (infinity) has its own text, so that it
differs.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from cdcflow.model.digest import DIGEST_BITS, Buckets
from cdcflow.model.table import Column, Identity, TableId
from cdcflow.sources.engine.row_digests import RowDigests, other_type
from cdcflow.sources.postgres.types import DescribedTable
from cdcflow.sources.postgres.types.describe import AttributeInfo, Codec, Policy, describe_table, quote_name

_ARGUMENTS_MAX = 100
"""The most arguments that a function call can have (the server's FUNC_MAX_ARGS)."""

SUMS: DescribedTable = describe_table(
    TableId("", "sums"),
    0,
    [
        AttributeInfo("b", 1, 20, -1, "bigint"),
        AttributeInfo("n", 2, 20, -1, "bigint"),
        AttributeInfo("t", 3, 1700, (38 << 16) + 4, "numeric(38,0)", base_modifier=(38 << 16) + 4),
    ],
    Identity.NOTHING,
    Policy(),
)
"""The result columns of `PostgresDigests.sums`."""


class PostgresDigests(RowDigests):
    def __init__(self, described: DescribedTable, buckets: Buckets, *, is_utf8: bool) -> None:
        super().__init__(buckets)
        self._is_utf8 = is_utf8
        self._columns = {c.name: (c, codec) for c, codec in zip(described.table.columns, described.codecs, strict=True)}

    def reason(self, name: str, copied: str) -> str:
        if name not in self._columns:
            return "it no longer exists"
        return self._text(name)[1] or other_type(self._columns[name][0].type.arrow, copied)

    def pieces(self, name: str) -> Sequence[str]:
        return (self._text(name)[0] or "",)

    def _text(self, name: str) -> tuple[str | None, str]:
        return _text(*self._columns[name], self._is_utf8)

    def concat(self, pieces: Sequence[str]) -> str:
        if len(pieces) > _ARGUMENTS_MAX:
            parts = [pieces[at : at + _ARGUMENTS_MAX] for at in range(0, len(pieces), _ARGUMENTS_MAX)]
            return self.concat([self.concat(part) for part in parts])
        return f"pg_catalog.concat({', '.join(pieces)})"

    def number(self, text: str) -> str:
        return f"('x' || pg_catalog.left(pg_catalog.md5({text}), {DIGEST_BITS // 4}))::bit({DIGEST_BITS})::bigint"

    def whole(self, name: str) -> str:
        return f"{quote_name(name)}::bigint"

    def totals(self) -> str:
        return "b::bigint, count(*), sum(d)::numeric(38,0)"


def _text(column: Column, codec: Codec, is_utf8: bool) -> tuple[str | None, str]:
    """Return a column's text in SQL and ""; or None, and why the column has no text."""
    source, arrow = column.type.source, column.type.arrow
    if codec.where.special in ("null", "clamp") and (pa.types.is_decimal(arrow) or pa.types.is_temporal(arrow)):
        return None, f"special_values is {codec.where.special}"
    if codec.digest is None and pa.types.is_decimal(arrow):
        return None, "its numbers have more or fewer digits at the source"
    if codec.digest is None:
        return None, f"{source} has no text that is the same everywhere"
    if arrow == pa.string() and not is_utf8:
        return None, "the database's encoding is not UTF8"
    return codec.digest(quote_name(column.name), source), ""
