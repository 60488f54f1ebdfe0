"""Rows as digests that PostgreSQL computes: the texts of `model.digest` in its SQL, column by column. Pure.

    column         text                                              not
    whole number   as `concat` prints it
    boolean        as 0 or 1
    numeric        as printed: as many digits after the decimal      without precision, kept as a decimal
                   point as its type has
    text, others   its length in bytes, a colon, as printed          in a database that is not UTF-8
    bytea          hexadecimal
    date           days since 1970
    timestamp      microseconds since 1970
                                                                     floats, intervals, arrays; what a policy changes

`concat` skips NULL, which is the text of NULL. A value that no copy can have (infinity) has its own text, so that it
differs. If a text ever differed from the copy's although the value is the same, its bucket would differ, and its rows
would be read: that is harmless. What must never happen is one text for two values.
"""

# ruff: noqa: S608 - names go through `quote_name`
from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from cdcflow.capture.ports.comparison import NoText
from cdcflow.model.digest import DIGEST_BITS, FOLDS, WHOLE_NUMBERS, Buckets, is_portable
from cdcflow.model.sqltypes import stored_type
from cdcflow.model.table import Identity, TableId
from cdcflow.sources.postgres.types import DescribedTable
from cdcflow.sources.postgres.types.describe import AttributeInfo, Codec, Policy, describe_table, quote_name

_ARGUMENTS_MAX = 100
"""FUNC_MAX_ARGS: a call takes no more."""
_PRINTED = ("binary.uuid", "binary.numeric", "binary.jsonb", "binary.time", "binary.timetz", "binary.bits")
"""Kernels of types that a cast to text prints as their output function does."""

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
"""What `sums` selects."""


def sums(described: DescribedTable, buckets: Buckets, source: str, condition: str, *, is_utf8: bool) -> str:
    """A query: a table's rows added up by bucket. `source` is a table in a FROM, with a condition on it as `t`.

    Raises:
        NoText: some columns have none.
    """
    number = _digest(_row_text(described, [name for name, _ in buckets.columns], buckets, is_utf8))
    each = f"SELECT {_bucket(described, buckets, is_utf8)} AS b, {number} AS d FROM {source} AS t WHERE {condition}"
    return f"SELECT b::bigint, count(*), sum(d)::numeric(38,0) FROM ({each}) AS each GROUP BY b"


def among(described: DescribedTable, buckets: Buckets, *, is_utf8: bool) -> str:
    """A condition: a row is in some of the buckets."""
    listed = ",".join(map(str, buckets.only or ()))
    return f"({_bucket(described, buckets, is_utf8)}) = ANY ('{{{listed}}}'::bigint[])"


def _bucket(described: DescribedTable, buckets: Buckets, is_utf8: bool) -> str:
    mask = buckets.count - 1
    if not buckets.is_of_number:
        return f"{_digest(_row_text(described, buckets.key, buckets, is_utf8))} & {mask}"
    _row_text(described, buckets.key, buckets, is_utf8)  # or it has none
    number = f"{quote_name(buckets.key[0])}::bigint"
    shifted = [f"({number} >> {bits} & {mask})" for bits in FOLDS]
    return f"({' + '.join([f'({number} & {mask})', *shifted])}) & {mask}"


def _digest(text: str) -> str:
    return f"('x' || pg_catalog.left(pg_catalog.md5({text}), {DIGEST_BITS // 4}))::bit({DIGEST_BITS})::bigint"


def _row_text(described: DescribedTable, names: Sequence[str], buckets: Buckets, is_utf8: bool) -> str:
    types = dict(buckets.columns)
    found, wrong = {}, {}
    columns = zip(described.table.columns, described.codecs, described.copy_expressions, strict=True)
    for column, codec, expression in columns:
        if column.name in names:
            text = _text(column.name, column.type.source, column.type.arrow, codec, expression, is_utf8)
            why = text[1] if text[0] is None else _other_type(column.type.arrow, types[column.name])
            found[column.name], wrong[column.name] = text[0] or "", why
    if wrong := {name: why for name, why in wrong.items() if why} | {
        name: "it no longer exists" for name in names if name not in found
    }:
        raise NoText(wrong)
    return _concat([piece for name in names for piece in (found[name], "'|'")])


def _concat(pieces: Sequence[str]) -> str:
    if len(pieces) > _ARGUMENTS_MAX:
        parts = [pieces[at : at + _ARGUMENTS_MAX] for at in range(0, len(pieces), _ARGUMENTS_MAX)]
        return _concat([_concat(part) for part in parts])
    return f"pg_catalog.concat({', '.join(pieces)})"


def _other_type(arrow: pa.DataType, copied: str) -> str:
    if not is_portable(copied):
        return f"{copied} has no text that is the same everywhere"
    if copied == stored_type(arrow).table or (pa.types.is_integer(arrow) and copied in WHOLE_NUMBERS):
        return ""
    return f"the copy holds it as {copied}"


def _text(
    name: str, source: str, arrow: pa.DataType, codec: Codec, expression: str, is_utf8: bool
) -> tuple[str | None, str]:
    """A column's text in SQL; or None, and why it has no text."""
    kernel = codec.binary.kernel if codec.binary is not None else ""
    value = f"t.{quote_name(name)}"
    if codec.where.special in ("null", "clamp") and _is_lossy(arrow):
        return None, f"special_values is {codec.where.special}"
    if pa.types.is_integer(arrow):
        return value, ""
    if arrow == pa.bool_():
        return f"{value}::int", ""
    if arrow == pa.binary():
        return f"""pg_catalog.upper(pg_catalog.encode({value}, 'hex') COLLATE "C")""", ""
    if arrow == pa.date32():
        days = f"({value} - '1970-01-01'::date)::text"
        return f"CASE WHEN pg_catalog.isfinite({value}) THEN {days} ELSE {value}::text END", ""
    if pa.types.is_timestamp(arrow):
        return f"pg_catalog.trim_scale(extract(epoch FROM {value}) * 1000000)", ""
    if kernel == "binary.money":
        return f"{value}::numeric", ""
    if pa.types.is_decimal(arrow):
        if not kernel:
            return None, "its numbers have more or fewer digits at the source"
        return (value, "") if arrow.precision <= 38 else (_with_length(f"{value}::text"), "")
    if arrow != pa.string():
        return None, f"{source} has no text that is the same everywhere"
    if not is_utf8:
        return None, "the database's encoding is not UTF8"
    if kernel in _PRINTED or (kernel and source in ("text", "json")) or source.startswith("character varying"):
        return _with_length(f"{value}::text"), ""
    # As a chunk's COPY has them printed: a cast would drop the padding of char(n), and add a netmask to inet.
    printed = expression if not kernel else f"CASE WHEN {value} IS NOT NULL THEN pg_catalog.format('%s', {value}) END"
    return _with_length(printed), ""


def _with_length(text: str) -> str:
    return f"pg_catalog.octet_length({text}) || ':' || {text}"


def _is_lossy(arrow: pa.DataType) -> bool:
    return bool(pa.types.is_decimal(arrow) or pa.types.is_temporal(arrow))
