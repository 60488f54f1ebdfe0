"""Which Arrow type each PostgreSQL type becomes, and who decodes its values: the one table of both.

Backfill and stream must give the same value for the same row, so both take their decoder from here. Every type has
a decoder for the server's text. Some have one for its binary format too; the stream may ask for binary when all
captured columns have one, and a chunk's COPY (always binary as a format) carries the others as `column::text`.

`docs/postgres_types.md` is this table for people.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import get_args

import pyarrow as pa

from cdcflow.config import Postgres, Special
from cdcflow.errors import ConfigurationError, InvariantViolated
from cdcflow.model.table import Column, Identity, Table, TableId
from cdcflow.model.types import ColumnType
from cdcflow.sources.buffers import Cells
from cdcflow.sources.engine.selection import check_columns
from cdcflow.sources.postgres import values_binary as binary
from cdcflow.sources.postgres import values_text as text
from cdcflow.sources.postgres.values import INTERVAL, MONEY, TIMESTAMP, TIMESTAMPTZ, Decoder, Where

_BOX = 603
_ENUM = "e"
_SPECIALS: tuple[str, ...] = get_args(Special)
_DECIMAL = re.compile(r"decimal\((\d+),\s*(\d+)\)")
_PRECISION_MAX = 76
_NOT_LISTS = frozenset({22, 30})  # int2vector, oidvector: they begin at 0 and print without braces


@dataclass(frozen=True, slots=True)
class AttributeInfo:
    """One column as the catalog describes it, domains and arrays looked through.

    `base_*` is the type under a domain (else the type itself), `kind` the base's `pg_type.typtype` (b e c d r m).
    `element_*` describe an array's elements, domains resolved (`element_oid` 0: not an array). `missing` is the text
    of the constant that rows older than the column have (`pg_attribute.attmissingval`). `in_key`: part of the key.
    """

    name: str
    number: int
    type_oid: int
    type_modifier: int
    type_text: str
    not_null: bool = False
    missing: str | None = None
    in_key: bool = False
    base_oid: int = 0
    base_modifier: int = -1
    kind: str = "b"
    element_oid: int = 0
    element_modifier: int = -1
    element_kind: str = "b"


@dataclass(frozen=True, slots=True)
class Policy:
    """What becomes of values that the Arrow type cannot hold, and of `numeric` without precision.

    Named as in `cdcflow.config.Postgres`. `columns` overrides either for one column by its full name.
    """

    special_values: Special = "stop"
    unconstrained_numeric: str = "text"
    columns: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, settings: Postgres) -> Policy:
        return cls(settings.special_values, settings.unconstrained_numeric, dict(settings.columns))


@dataclass(frozen=True, slots=True)
class Codec:
    """How one column's values become Arrow. `binary` None: only the server's text is understood."""

    where: Where
    text: Decoder
    binary: Decoder | None


@dataclass(frozen=True, slots=True)
class DescribedTable:
    """A table's shape with a codec for every column, in the order in which rows carry them.

    `has_binary`: every column has a binary decoder. `copy_expressions`: what a chunk's COPY selects, one a column.
    """

    table: Table
    codecs: tuple[Codec, ...]
    has_binary: bool
    copy_expressions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Plan:
    """What one type becomes, and by which decoders. `lossy`: it has values that `arrow` cannot hold."""

    arrow: pa.DataType
    text: Decoder
    binary: Decoder | None
    lossy: bool = False


_TEXT = _Plan(pa.string(), text.text, None)
_NUMERIC_TEXT = _Plan(pa.string(), text.text, binary.numeric)
_TEXT_BOTH = _Plan(pa.string(), text.text, text.text)

_PLANS: Mapping[int, _Plan] = {
    16: _Plan(pa.bool_(), text.boolean, binary.boolean),
    17: _Plan(pa.binary(), text.bytea, binary.bytea),
    19: _TEXT_BOTH,  # name
    20: _Plan(pa.int64(), partial(text.number, pa.int64()), binary.int8),
    21: _Plan(pa.int16(), partial(text.number, pa.int16()), binary.int2),
    23: _Plan(pa.int32(), partial(text.number, pa.int32()), binary.int4),
    25: _TEXT_BOTH,
    26: _Plan(pa.int64(), partial(text.number, pa.int64()), binary.oid),
    114: _TEXT_BOTH,  # json
    700: _Plan(pa.float32(), partial(text.number, pa.float32()), binary.float4),
    701: _Plan(pa.float64(), partial(text.number, pa.float64()), binary.float8),
    790: _Plan(MONEY, text.money, binary.money),
    1042: _TEXT_BOTH,  # char(n), with its padding
    1043: _TEXT_BOTH,  # varchar
    1082: _Plan(pa.date32(), text.date, binary.date, lossy=True),
    1083: _Plan(pa.string(), text.text, partial(binary.time, False)),
    1114: _Plan(TIMESTAMP, partial(text.timestamp, False), partial(binary.timestamp, False), lossy=True),
    1184: _Plan(TIMESTAMPTZ, partial(text.timestamp, True), partial(binary.timestamp, True), lossy=True),
    1186: _Plan(INTERVAL, text.interval_parts, binary.interval_parts, lossy=True),
    1266: _Plan(pa.string(), text.text, partial(binary.time, True)),
    1560: _Plan(pa.string(), text.text, binary.bits),
    1562: _Plan(pa.string(), text.text, binary.bits),
    2950: _Plan(pa.string(), text.text, binary.uuid),
    3802: _Plan(pa.string(), text.text, binary.jsonb),
}
_NUMERIC = 1700


def _column(attribute: AttributeInfo, plan: _Plan) -> Column:
    kind = ColumnType(attribute.type_text, plan.arrow)
    return Column(attribute.name, attribute.number, kind, not attribute.not_null, attribute.missing)


def _copy_expression(attribute: AttributeInfo, plan: _Plan) -> str:
    """What a chunk's COPY (FORMAT binary) selects for this column: the column, or its text.

    The text is made by `format`, which calls the type's own output function. A cast to text is something else for
    some types: it drops the padding of char(n) and adds a netmask to inet. A composite with a NULL field is neither
    NULL nor NOT NULL in SQL, hence DISTINCT.
    """
    name = quoted(attribute.name)
    if plan.binary is not None:
        return name
    return f"CASE WHEN {name} IS DISTINCT FROM NULL THEN pg_catalog.format('%s', {name}) END"


def quoted(name: str) -> str:
    """An identifier in SQL, whatever characters it has (hard case S01)."""
    return '"' + name.replace('"', '""') + '"'


def describe_table(
    table: TableId,
    oid: int,
    attributes: Sequence[AttributeInfo],
    identity: Identity,
    policy: Policy,
) -> DescribedTable:
    """The table's shape and codecs.

    `attributes` are the published columns in the order in which rows carry them; those with `in_key` are the key.

    Raises:
        ConfigurationError: the policy for a column is not one that its type knows, or would make keys of different
            rows one; or a column's name is taken.
    """
    check_columns(table, [a.name for a in attributes])
    plans = [_plan(a, table, policy) for a in attributes]
    for attribute, (plan, where) in zip(attributes, plans, strict=True):
        if attribute.in_key and plan.lossy and where.special in ("null", "clamp"):
            raise _one_key(where, policy)
    planned = [(a, plan) for a, (plan, _) in zip(attributes, plans, strict=True)]
    return DescribedTable(
        table=Table(
            id=table,
            incarnation=oid,
            columns=tuple(_column(a, plan) for a, plan in planned),
            key=tuple(a.name for a in attributes if a.in_key),
            identity=identity,
        ),
        codecs=tuple(Codec(where, plan.text, plan.binary) for plan, where in plans),
        has_binary=all(plan.binary is not None for plan, _ in plans),
        copy_expressions=tuple(_copy_expression(a, plan) for a, plan in planned),
    )


def _plan(attribute: AttributeInfo, table: TableId, policy: Policy) -> tuple[_Plan, Where]:
    name = f"{table}.{attribute.name}"
    own = policy.columns.get(name)
    special, numeric = policy.special_values, policy.unconstrained_numeric
    if own in _SPECIALS:
        special = own  # type: ignore[assignment]  # just tested; mypy does not narrow a str to a Literal by `in`
    elif own is not None:
        numeric = own
        if not (_is_unconstrained(attribute) and _DECIMAL.fullmatch(own)):
            raise ConfigurationError(
                f"column {name} is a {attribute.type_text}, for which source.columns does not know {own!r}",
                remedy=f"use one of {', '.join(_SPECIALS)}, or decimal(p,s) for a numeric without precision",
            )
    where = Where(name, attribute.type_text, special)
    if own == "text":
        return _TEXT, where
    oid = attribute.base_oid or attribute.type_oid
    if attribute.element_oid and oid not in _NOT_LISTS:
        return _list(attribute, special, numeric), where
    return _scalar(oid, attribute.base_modifier, attribute.kind, special, numeric), where


def _one_key(where: Where, policy: Policy) -> ConfigurationError:
    """The refusal of a policy that keys cannot bear: what it puts in place of two values is the same for both."""
    own = where.column in policy.columns
    setting = f"source.columns says {where.special} for it" if own else f"source.special_values is {where.special}"
    return ConfigurationError(
        f"{where} is part of the table's key, and {setting}: rows whose keys differ in such values only would become "
        "one row",
        remedy=f"in cdcflow.yaml set source.columns to {{{where.column}: text}}, or to {{{where.column}: stop}}",
    )


def _is_unconstrained(attribute: AttributeInfo) -> bool:
    if attribute.element_oid:
        return attribute.element_oid == _NUMERIC and attribute.element_modifier < 0
    return (attribute.base_oid or attribute.type_oid) == _NUMERIC and attribute.base_modifier < 0


def _list(attribute: AttributeInfo, special: str, numeric: str) -> _Plan:
    if special == "text":
        return _TEXT
    element = _scalar(attribute.element_oid, attribute.element_modifier, attribute.element_kind, special, numeric)
    arrow = pa.list_(pa.field("element", element.arrow))
    delimiter = ";" if attribute.element_oid == _BOX else ","
    in_binary = partial(binary.array, element.binary, arrow) if element.binary is not None else None
    return _Plan(arrow, partial(text.array, element.text, arrow, delimiter), in_binary, lossy=True)


def _scalar(oid: int, modifier: int, kind: str, special: str, numeric: str) -> _Plan:
    if kind == _ENUM:
        return _TEXT_BOTH
    plan = _numeric(modifier, numeric) if oid == _NUMERIC else _PLANS.get(oid, _TEXT)
    return _TEXT if plan.lossy and special == "text" else plan


def _numeric(modifier: int, unconstrained: str) -> _Plan:
    """numeric(p,s) as a decimal that holds every such value: a negative scale has zeros before the point instead,
    and a scale above the precision needs as many digits as the scale (hard case T02)."""
    if modifier < 0:
        chosen = _DECIMAL.fullmatch(unconstrained)
        if chosen is None:
            return _NUMERIC_TEXT
        arrow = _decimal(int(chosen[1]), int(chosen[2]))
        return _NUMERIC_TEXT if arrow is None else _Plan(arrow, partial(text.decimal, arrow), None, lossy=True)
    precision, scale = (modifier - 4) >> 16 & 0xFFFF, (((modifier - 4) & 0x7FF) ^ 1024) - 1024
    arrow = _decimal(precision - min(scale, 0) if scale <= precision else scale, max(scale, 0))
    if arrow is None:
        return _NUMERIC_TEXT
    return _Plan(arrow, partial(text.decimal, arrow), partial(binary.decimal, arrow), lossy=True)


def _decimal(precision: int, scale: int) -> pa.DataType | None:
    if precision > _PRECISION_MAX:
        return None
    return pa.decimal128(precision, scale) if precision <= 38 else pa.decimal256(precision, scale)


def decode(codec: Codec, cells: Cells, *, as_binary: bool) -> pa.Array:
    """One column's cells as Arrow, in the format in which they came."""
    if not as_binary:
        return codec.text(cells, codec.where)
    if codec.binary is None:
        raise InvariantViolated(f"decoding {codec.where}: values came in binary, which was not asked for")
    return codec.binary(cells, codec.where)
