"""Chooses the type of each column of a table, and so its decoders: a table's shape with a codec for every column.

Backfill and stream must give the same value for the same row, so both take their decoders from here. Every type has a
decoder for the server's text. Some have one for its binary format too; the stream may request binary values when all
captured columns have one, and a chunk's COPY (always binary as a format) carries the others as `column::text`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import get_args

import pyarrow as pa

from cdcflow.config import Postgres, Special
from cdcflow.errors import ConfigurationError, InvariantViolated
from cdcflow.model.table import Column, Identity, Table, TableId
from cdcflow.model.types import ColumnType
from cdcflow.sources.engine.buffers import Cells
from cdcflow.sources.engine.errors import policy_of_key
from cdcflow.sources.engine.policies import ColumnPolicy
from cdcflow.sources.engine.selection import check_columns
from cdcflow.sources.postgres.table_numbers import TableNumbers
from cdcflow.sources.postgres.types import bits, decimals, numbers, temporal, texts
from cdcflow.sources.postgres.types.arrays import NOT_LISTS, list_type
from cdcflow.sources.postgres.types.constants import is_readable
from cdcflow.sources.postgres.types.decimals import NUMERIC_OID, is_decimal_setting, numeric_type
from cdcflow.sources.postgres.types.row_texts import output_text
from cdcflow.sources.postgres.types.texts import TEXT_IN_BOTH, TEXT_ONLY
from cdcflow.sources.postgres.types.values import PostgresType, RowText, ValueDecoder, Where

_FAMILIES = (numbers, decimals, temporal, texts, bits)
_TYPES: Mapping[int, PostgresType] = {oid: known for family in _FAMILIES for oid, known in family.TYPES.items()}

_ENUM = "e"
_SPECIALS: tuple[str, ...] = get_args(Special)


@dataclass(frozen=True, slots=True)
class AttributeInfo:
    """One column as the catalog describes it, with domains and arrays resolved.

    `base_*` is the type that a domain is based on (or the type itself), `kind` its `pg_type.typtype` (b e c d r m).
    `element_*` describe an array's elements, domains resolved (`element_oid` 0: not an array); `element_delimiter` is
    `pg_type.typdelim`, which is not a comma for box and for some types of extensions. `missing` is the text
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
    element_delimiter: str = ","


@dataclass(frozen=True, slots=True)
class Policy:
    """How to treat values that the Arrow type cannot hold, and `numeric` without precision; and the tables' numbers.

    The fields are named as in `cdcflow.config.Postgres`. `columns` overrides the first two for one column by its full
    name. `numbers`: the numbers that the tables have in the log.
    """

    special_values: Special = "stop"
    unconstrained_numeric: str = "text"
    columns: Mapping[str, str] = field(default_factory=dict)
    numbers: TableNumbers = field(default_factory=TableNumbers)

    @classmethod
    def of(cls, settings: Postgres, numbers: TableNumbers | None = None) -> Policy:
        found = dict(settings.columns)
        return cls(settings.special_values, settings.unconstrained_numeric, found, numbers or TableNumbers())


_PLAIN = Policy()


@dataclass(frozen=True, slots=True)
class Codec:
    """How one column's values become Arrow. `binary` None: only the server's text is understood."""

    where: Where
    text: ValueDecoder
    binary: ValueDecoder | None
    digest: RowText | None = None


@dataclass(frozen=True, slots=True)
class DescribedTable:
    """A table's shape with a codec for every column, in the order in which rows carry them.

    `has_binary`: every column has a binary decoder. `copy_expressions`: the expressions that a chunk's COPY selects,
    one per column. `kept`: the policies of columns that a setting concerns, by column number.
    """

    table: Table
    codecs: tuple[Codec, ...]
    has_binary: bool
    copy_expressions: tuple[str, ...]
    kept: Mapping[int, ColumnPolicy] = field(default_factory=dict, compare=False)


def describe_table(
    table: TableId,
    oid: int,
    attributes: Sequence[AttributeInfo],
    identity: Identity,
    policy: Policy,
) -> DescribedTable:
    """Return the table's shape and codecs.

    `attributes` are the published columns in the order in which rows carry them; those with `in_key` are the key.

    Raises:
        ConfigurationError: the policy for a column is not one that its type knows, or would make keys of different
            rows equal; or a column's name is taken.
    """
    check_columns(table, [a.name for a in attributes])
    types = [_type_of(a, table, policy) for a in attributes]
    for attribute, (kind, where) in zip(attributes, types, strict=True):
        if attribute.in_key and kind.lossy and where.special in ("null", "clamp"):
            raise policy_of_key(
                where,
                where.column,
                "special_values",
                where.special,
                is_own=where.column in policy.columns,
                instead=("text", "stop"),
            )
    typed = [(a, kind) for a, (kind, _) in zip(attributes, types, strict=True)]
    return DescribedTable(
        table=Table(
            id=table,
            incarnation=policy.numbers.number(oid),
            columns=tuple(_column(a, kind) for a, kind in typed),
            key=tuple(a.name for a in attributes if a.in_key),
            identity=identity,
        ),
        codecs=tuple(Codec(where, kind.text, kind.binary, kind.digest) for kind, where in types),
        has_binary=all(kind.binary is not None for kind, _ in types),
        copy_expressions=tuple(_copy_expression(a, kind) for a, kind in typed),
        kept=_policies_by_column(table, attributes, types),
    )


def _policies_by_column(
    table: TableId, attributes: Sequence[AttributeInfo], types: Sequence[tuple[PostgresType, Where]]
) -> dict[int, ColumnPolicy]:
    found = {}
    for attribute, (kind, where) in zip(attributes, types, strict=True):
        plain = _type_of(attribute, table, _PLAIN)[0]
        is_concerned = plain.lossy or _is_unconstrained(attribute)
        if is_concerned or plain.arrow != kind.arrow:
            chosen = "" if plain.arrow == kind.arrow else "text" if kind.arrow == pa.string() else str(kind.arrow)
            special = where.special if kind.lossy and where.special in ("null", "clamp") else ""
            found[attribute.number] = ColumnPolicy(chosen, special, by_name=not is_concerned)
    return found


def standing_in(arrow: pa.DataType) -> tuple[int, int] | None:
    """Return the oid of one of the server's own types whose values have this Arrow type, and its modifier.

    None for text: types that the log has as text have different binary formats.
    """
    if pa.types.is_decimal(arrow):
        return NUMERIC_OID, (arrow.precision << 16 | arrow.scale) + 4
    if pa.types.is_string(arrow):
        return None
    return next(((oid, -1) for oid, known in _TYPES.items() if known.arrow == arrow), None)


def arrow_type(attribute: AttributeInfo, table: TableId, policy: Policy) -> pa.DataType:
    """Return the Arrow type that a column's values have in the log.

    Raises:
        ConfigurationError: the policy for a column is not one that its type knows.
    """
    return _type_of(attribute, table, policy)[0].arrow


def decode(codec: Codec, cells: Cells, *, as_binary: bool) -> pa.Array:
    """Decode one column's cells to Arrow, in the format in which they arrived."""
    if not as_binary:
        return codec.text.decode(cells, codec.where)
    if codec.binary is None:
        raise InvariantViolated(
            f"decoding {codec.where}: values came in binary, which was not asked for", runbook="stream-not-understood"
        )
    return codec.binary.decode(cells, codec.where)


def _column(attribute: AttributeInfo, kind: PostgresType) -> Column:
    column_type = ColumnType(attribute.type_text, kind.arrow)
    # A constant that readers cannot make from its text is not kept: `RowVersions` has the table read again instead.
    missing = attribute.missing
    is_list = pa.types.is_list(kind.arrow)
    has_commas = attribute.element_delimiter == "," or not is_list
    is_kept = missing is not None and has_commas and is_readable(missing, kind.arrow)
    return Column(attribute.name, attribute.number, column_type, not attribute.not_null, missing if is_kept else None)


def _copy_expression(attribute: AttributeInfo, kind: PostgresType) -> str:
    """Return what a chunk's COPY (FORMAT binary) selects for this column: the column, or its text."""
    name = quote_name(attribute.name)
    return name if kind.binary is not None else output_text(name)


def quote_name(name: str) -> str:
    """Return an identifier in SQL, whatever characters it has (hard case S01)."""
    return '"' + name.replace('"', '""') + '"'


def _type_of(attribute: AttributeInfo, table: TableId, policy: Policy) -> tuple[PostgresType, Where]:
    name = f"{table}.{attribute.name}"
    own = policy.columns.get(name)
    special, numeric = policy.special_values, policy.unconstrained_numeric
    if own in _SPECIALS:
        special = own  # type: ignore[assignment]  # just tested; mypy does not narrow a str to a Literal by `in`
    elif own is not None:
        numeric = own
        if not (_is_unconstrained(attribute) and is_decimal_setting(own)):
            raise ConfigurationError(
                f"column {name} is a {attribute.type_text}, for which source.columns does not know {own!r}",
                remedy=f"use one of {', '.join(_SPECIALS)}, or decimal(p,s) for a numeric without precision",
                runbook="settings",
            )
    where = Where(name, attribute.type_text, special)
    if own == "text":
        return TEXT_ONLY, where
    oid = attribute.base_oid or attribute.type_oid
    if attribute.element_oid and oid not in NOT_LISTS:
        return _list(attribute, special, numeric), where
    return _scalar(oid, attribute.base_modifier, attribute.kind, special, numeric), where


def _is_unconstrained(attribute: AttributeInfo) -> bool:
    if attribute.element_oid:
        return attribute.element_oid == NUMERIC_OID and attribute.element_modifier < 0
    return (attribute.base_oid or attribute.type_oid) == NUMERIC_OID and attribute.base_modifier < 0


def _list(attribute: AttributeInfo, special: str, numeric: str) -> PostgresType:
    if special == "text":
        return TEXT_ONLY
    element = _scalar(attribute.element_oid, attribute.element_modifier, attribute.element_kind, special, numeric)
    return list_type(element, attribute.element_delimiter)


def _scalar(oid: int, modifier: int, kind: str, special: str, numeric: str) -> PostgresType:
    if kind == _ENUM:
        return TEXT_IN_BOTH
    found = numeric_type(modifier, numeric) if oid == NUMERIC_OID else _TYPES.get(oid, TEXT_ONLY)
    return TEXT_ONLY if found.lossy and special == "text" else found
