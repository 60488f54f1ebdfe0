"""Classifies defaults and types in PostgreSQL's statements: the values that old rows get for a new column, and the
effect of a new type. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

from cdcflow.sources.engine.statement_rules import unknown_statement
from cdcflow.sources.postgres.ddl_tokens import DdlToken, text_of_tokens
from cdcflow.sources.postgres.types.names import TypeName, type_name

_STABLE = frozenset(
    (
        *("NOW", "CURRENT_TIMESTAMP", "CURRENT_DATE", "CURRENT_TIME", "LOCALTIMESTAMP", "LOCALTIME"),
        *("TRANSACTION_TIMESTAMP", "STATEMENT_TIMESTAMP", "CURRENT_USER", "SESSION_USER", "USER", "CURRENT_ROLE"),
        *("CURRENT_SCHEMA", "CURRENT_DATABASE", "CURRENT_CATALOG", "UPPER", "LOWER", "LENGTH", "ABS", "COALESCE"),
        *("MAKE_INTERVAL", "MAKE_DATE", "TO_DATE", "TO_TIMESTAMP", "ROUND", "JSONB_BUILD_OBJECT", "TIMEZONE"),
    )
)
"""Functions that are computed once for all rows of a statement."""
_VOLATILE = frozenset(
    ("RANDOM", "CLOCK_TIMESTAMP", "TIMEOFDAY", "NEXTVAL", "GEN_RANDOM_UUID", "UUIDV4", "UUIDV7", "UUID_GENERATE_V4")
)
_CONSTANT = frozenset(
    ("TRUE", "FALSE", "NULL", "ARRAY", "AT", "TIME", "ZONE", "INTERVAL", "DATE", "TIMESTAMP", "CAST", "AS")
)

DefaultKind = Literal["add_null", "add_constant", "add_volatile"]


def default_kind(tokens: Sequence[DdlToken]) -> DefaultKind:
    """Return the rule for a column with this default.

    Raises:
        ConfigurationError: the expression contains something that cdcflow does not know, so it may differ between rows.
    """
    words = set()
    is_type = False
    for token in tokens:
        if token.kind in ("word", "quoted") and not is_type:
            words.add(token.word or token.text)
        is_type = token.text == "::" or (is_type and token.kind in ("word", "quoted"))
    if words & _VOLATILE:
        return "add_volatile"
    if strange := sorted(words - _STABLE - _CONSTANT):
        raise unknown_statement(
            f"the default {text_of_tokens(tokens)!r} has {strange[0]}, and cdcflow does not know whether that gives"
            " every row the same value",
            "add the column without a default, and set the default and the values in later statements",
        )
    if [t.word for t in tokens[:1]] == ["NULL"]:
        return "add_null"
    return "add_constant"


_INFINITE = re.compile(r"inf|nan|\bbc\b|\d{5,}-", re.IGNORECASE)
_NESTED = re.compile(r"\s*(?:\[|\{\s*\{)")
_TIMES = ("date", "timestamp without time zone", "timestamp with time zone")


def has_unkept_constant(type_text: str, tokens: Sequence[DdlToken]) -> bool:
    """Whether the log may not keep the constant of a column of this type, which is among these tokens (see
    `types.constants`)."""
    found = type_name(type_text)
    if found is None or found.base == "interval":
        return found is not None
    is_bounded = found.base in _TIMES or (found.base == "numeric" and bool(found.modifiers))
    texts = [token.name for token in tokens if token.kind == "string"]
    return any((is_bounded and _INFINITE.search(text)) or (found.brackets and _NESTED.match(text)) for text in texts)


# ── types ───────────────────────────────────────────────────────────────────────────────────────────────────

_TEXTS = ("text", "character varying")
_ODD = frozenset(("xml", "bit", "bit varying", "oid", "citext", "name", "money", "character"))
"""Types whose conversions depend on more than their names."""


def retype_kind(before: str, after: str) -> Literal["retype_values", "retype_meaning", "retype_name"]:
    """Return the rule for what `ALTER COLUMN … TYPE` without another value does to stored rows.

    Raises:
        ConfigurationError: cdcflow does not know one of the types, or the conversion.
    """
    old, new = type_name(before), type_name(after)
    if old is None or new is None:
        raise unknown_statement(
            f"cdcflow does not know what a change from type {before} to {after} does to stored rows",
            "write the change with USING and an expression: then the table is read again",
        )
    if old == new:
        return "retype_name"
    if (old.base, new.base) in (("cidr", "inet"), ("timestamp without time zone", "timestamp with time zone")):
        return "retype_meaning"
    if (old.base in _ODD or new.base in _ODD or old.brackets) and old.base != new.base:
        is_text = {old.base, new.base} & set(_TEXTS) and not ({old.base, new.base} & {"xml", "citext", "name"})
        if old.brackets or new.brackets or not is_text:
            raise unknown_statement(f"cdcflow does not know what a change from type {before} to {after} does to rows")
    return "retype_name" if _keeps_bytes(old, new) else "retype_values"


def _keeps_bytes(old: TypeName, new: TypeName) -> bool:
    if old.brackets or new.brackets:
        return False
    if old.base in _TEXTS and new.base in _TEXTS:
        return not new.modifiers or (bool(old.modifiers) and old.base == new.base and new.modifiers >= old.modifiers)
    if old.base != new.base or old.base == "character":
        return False
    if not new.modifiers:
        return True
    is_time = "time" in old.base or old.base == "interval"
    if is_time and new.modifiers[0] >= _FRACTION_MAX:
        return True
    if not old.modifiers:
        return False
    if old.base == "numeric":
        (precision, scale), (wider, same) = old.digits, new.digits
        return scale == same and wider >= precision
    return (is_time or old.base == "bit varying") and new.modifiers >= old.modifiers


_FRACTION_MAX = 6
"""The most digits that a second's fraction can have."""
