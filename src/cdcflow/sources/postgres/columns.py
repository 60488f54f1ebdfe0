"""Columns in the catalog, and those of a dropped table as the change log has them. Pure.

For a table that was dropped the server still sends earlier changes: names, numbers of types and modifiers. Which column
each of them is, and what type it had if the type was dropped, too (DROP SCHEMA … CASCADE), is only in the change log.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import pyarrow as pa

from cdcflow.model.table import Table
from cdcflow.sources.postgres.types import AttributeInfo, standing_in


@dataclass(frozen=True, slots=True)
class Attribute:
    """One row of pg_attribute. A dropped column keeps its number and has no type."""

    number: int
    name: str
    type_oid: int
    type_modifier: int
    type_text: str
    not_null: bool
    generated: str
    dropped: bool
    missing: str | None


def as_attributes(logged: Table | None) -> tuple[Attribute, ...]:
    """Return the columns of a shape in the change log in the form of the catalog's, as far as possible: their types
    have no oid."""
    columns = sorted(logged.columns, key=lambda c: c.number) if logged is not None else ()
    return tuple(
        Attribute(c.number, c.name, 0, -1, c.type.source, not c.nullable, "", False, c.missing) for c in columns
    )


def as_logged(info: AttributeInfo, logged: Table, *, is_known: bool) -> AttributeInfo:
    """Return a column of a message, completed from the log's shape. `is_known`: the catalog still has its type."""
    column = next((c for c in logged.columns if c.number == info.number), None)
    if column is None or (is_known and column.type.source != info.type_text):
        return info
    info = replace(info, not_null=not column.nullable, missing=column.missing)
    return info if is_known else _as_known_type(replace(info, type_text=column.type.source), column.type.arrow)


def _as_known_type(info: AttributeInfo, arrow: pa.DataType) -> AttributeInfo:
    """Return a column of a type that is gone with one of the server's own types whose values are the same in
    the log."""
    of_one = arrow.value_type if pa.types.is_list(arrow) else arrow
    oid, modifier = standing_in(of_one) or (info.type_oid, -1)
    if pa.types.is_list(arrow):
        return replace(info, element_oid=oid, element_modifier=modifier, base_modifier=modifier)
    return replace(info, base_oid=oid, base_modifier=modifier)


def key_in(logged: Table, names: frozenset[str]) -> frozenset[str]:
    """Return the key of a shape in the change log; empty unless all of its columns are among the message's columns
    `names`."""
    return frozenset(logged.key) if names.issuperset(logged.key) else frozenset()
