"""Which family a column's type belongs to, and what its family determines for each column.

Backfill and stream must return the same value for the same row, so both take their decoder from here. A chunk's SELECT
uses an expression that preserves the whole value, so that both paths decode the same bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from cdcflow.errors import ConfigurationError
from cdcflow.model.table import TableId
from cdcflow.sources.engine.errors import policy_of_key
from cdcflow.sources.engine.policies import ColumnPolicy
from cdcflow.sources.mysql.types import json, labels, numbers, special, temporal, text
from cdcflow.sources.mysql.types.columns import BINARY_COLLATION, CatalogColumn, Policy, ServerColumn, not_captured
from cdcflow.sources.mysql.types.family import Codec, RowText, TypeFamily, Where, as_is

FAMILIES: tuple[TypeFamily, ...] = (
    numbers.FAMILY,
    temporal.FAMILY,
    labels.FAMILY,
    text.FAMILY,
    json.FAMILY,
    *special.FAMILIES,
)

_BY_CODE: Mapping[int, TypeFamily] = {code: family for family in FAMILIES for code in family.codes}
_BY_EXTRA: Mapping[str, TypeFamily] = {extra: family for family in FAMILIES for extra in family.extras}
_BY_NAME: Mapping[str, TypeFamily] = {name: family for family in FAMILIES for name in family.names}
_OLD: Mapping[int, str] = {code: name for family in FAMILIES for code, name in family.old.items()}

# Codes that servers use only in memory (NULL, NEWDATE, the sizes of BLOB, VAR_STRING). A table map that contains one is
# parsed to its end, so that the error names the column.
_INTERNAL: Mapping[int, int] = {6: 0, 14: 0, 249: 1, 250: 1, 251: 1, 253: 2}

METADATA_BYTES: Mapping[int, int] = {
    **_INTERNAL,
    **dict.fromkeys(_OLD, 0),
    **{code: size for family in FAMILIES for code, size in family.codes.items()},
}
"""How many bytes of metadata a table map has for a column, by type code."""
SIGNED = frozenset(code for family in FAMILIES for code in family.signed)
COLLATED = frozenset((249, 250, 251, 253, *(code for family in FAMILIES for code in family.collated)))

_SETTINGS: Mapping[str, tuple[str, ...]] = {"zero_dates": ("stop", "null", "text"), "bad_text": ("stop", "replace")}


def family_of(column: ServerColumn) -> TypeFamily | None:
    """Return the family of a column's type; None if the type is not captured."""
    return _BY_EXTRA.get(column.extra) or _BY_CODE.get(column.type_code)


def server_column(column: CatalogColumn, collations: Mapping[str, int], *, is_mariadb: bool = False) -> ServerColumn:
    """Return the column as a table map describes it. `collations` maps each collation to its number.

    Raises:
        ConfigurationError: cdcflow does not know the column's type, or the server does not list its collation.
    """
    family = _BY_NAME.get(column.type)
    if family is None:
        raise not_captured(column, f"has the type {column.type}, which is not captured", "ALTER TABLE … MODIFY …")
    is_vector = is_mariadb and family is special.VECTORS
    found = special.mariadb_vector(column) if is_vector else family.from_catalog(column)
    if column.collation is None:
        return found
    collation = collations.get(column.collation)
    if collation is None:
        raise not_captured(column, f"has the collation {column.collation}, which the server does not list", "…")
    return replace(found, collation=collation)


def extra_of(column: ServerColumn, type_text: str) -> str:
    """Return `type_text`, the column's type in the change log, if it is a type that only the catalog knows and the
    column is stored as that type is; otherwise ""."""
    code, width = special.STORED.get(type_text, (None, None))
    fits = column.type_code == code and column.collation == BINARY_COLLATION and width in (None, column.metadata)
    return type_text if fits else ""


def codec_of(column: ServerColumn, table: TableId, policy: Policy) -> Codec:
    """Return the codec of a column.

    Raises:
        ConfigurationError: the type is not captured, or does not support the policy.
    """
    name = f"{table}.{column.name}"
    if column.type_code in _OLD:
        raise ConfigurationError(
            f"column {name} is {_OLD[column.type_code]} in the format of servers before 5.6.4",
            remedy=f"run ALTER TABLE {table} FORCE, which writes it in today's format, then start again",
            runbook="table-not-capturable",
        )
    family = family_of(column)
    if family is None:
        raise ConfigurationError(
            f"column {name} has the type number {column.type_code}, which cdcflow does not know",
            remedy="leave the table out of source.tables",
            runbook="table-not-capturable",
        )
    return family.codec(column, _where(family, column, name, policy))


def kept_as(column: ServerColumn, codec: Codec) -> ColumnPolicy | None:
    """Return the policy for the column's values, if a setting concerns its type.

    None if no setting does, or if the setting is to stop while the type stays the same.
    """
    family = family_of(column)
    setting = family.setting(column) if family is not None else None
    if family is None or setting is None:
        return None
    if setting == "bad_text":
        return ColumnPolicy(special="replace") if codec.where.bad_text == "replace" else None
    plain = family.codec(column, replace(codec.where, zero_dates="stop"))
    special = "null" if codec.where.zero_dates == "null" else ""
    return ColumnPolicy("" if plain.arrow == codec.arrow else "text", special)


def check_key(column: ServerColumn, where: Where, policy: Policy) -> None:
    """Refuse a column of a key whose policy would make keys of different rows equal.

    Raises:
        ConfigurationError: the policy would do that; the remedy names one that does not.
    """
    family = family_of(column)
    setting = family.setting(column) if family is not None else None
    if setting == "zero_dates" and where.zero_dates == "null":
        found, instead = "null", "text"
    elif setting == "bad_text" and where.bad_text == "replace":
        found, instead = "replace", "stop"
    else:
        return
    is_own = where.column in policy.columns
    raise policy_of_key(where, where.column, setting, found, is_own=is_own, instead=(instead,))


def select_expression(column: ServerColumn) -> str:
    """Return the expression in a chunk's SELECT that preserves every bit of this column's values."""
    family = family_of(column)
    return as_is(column) if family is None else family.select(column)


def row_text_of(column: ServerColumn, codec: Codec) -> RowText:
    """Return the column's text in a row's digest."""
    family = family_of(column)
    assert family is not None  # noqa: S101  the column has a codec
    return family.row_text(column, codec)


def _where(family: TypeFamily, column: ServerColumn, name: str, policy: Policy) -> Where:
    where = Where(name, family.type_text(column), policy.zero_dates, policy.bad_text)
    own, setting = policy.columns.get(name), family.setting(column)
    if own is None:
        return where
    if setting is None or own not in _SETTINGS[setting]:
        if policy.of_another_type:
            return where
        raise ConfigurationError(
            f"column {name} is a {where.type_text}, for which source.columns does not know {own!r}",
            remedy=(
                f"in cdcflow.yaml remove {name} from source.columns"
                if setting is None
                else f"in cdcflow.yaml set source.columns to {{{name}: stop}}, or use one of"
                f" {', '.join(_SETTINGS[setting])}"
            ),
            runbook="settings",
        )
    return replace(where, **{setting: own})  # type: ignore[arg-type]  # tested above
