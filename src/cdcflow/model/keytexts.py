"""Keys that users give as text, converted to keys of a table."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from cdcflow.errors import ConfigurationError
from cdcflow.model.change import KeySet
from cdcflow.model.table import Table, word


def keys_of(table: Table, texts: Sequence[Sequence[str]], attempted: str) -> KeySet:
    """Convert keys given as text: for each key one text per column of the table's key, in its order. Bytes are written
    in hex: `\\x0af3`. Error messages start with `attempted`.

    Raises:
        ConfigurationError: the table has no key, or a text is not a valid value of its column; the message has no
            values.
    """
    if not table.key:
        raise ConfigurationError(
            f"{attempted}: it has no key to read them by", remedy=f"run `cdcflow table backfill {word(table.id)}`"
        )
    if wrong := [number for number, key in enumerate(texts, 1) if len(key) != len(table.key)]:
        raise ConfigurationError(
            f"{attempted}: key {wrong[0]} does not have as many values as the table's key",
            remedy=f"give a value for each of: {', '.join(table.key)}",
        )
    types = {c.name: c.type.arrow for c in table.columns}
    columns = {
        name: _column(f"{attempted}: column {name}", [key[at] for key in texts], types[name])
        for at, name in enumerate(table.key)
    }
    return KeySet(pa.table(columns)).distinct()


def values(texts: Sequence[str], of: pa.DataType) -> pa.Array:
    """Convert texts to values of a type. Bytes are written in hex.

    Raises:
        ValueError: a text is not a valid value of the type. The message does not contain the text, a row's value.
    """
    if pa.types.is_string(of) or pa.types.is_large_string(of):
        return pa.array(texts, of)
    try:
        if pa.types.is_binary(of) or pa.types.is_large_binary(of) or pa.types.is_fixed_size_binary(of):
            return pa.array([bytes.fromhex(text.removeprefix("\\x")) for text in texts], of)
        return pa.array(texts, pa.string()).cast(of)
    except (ValueError, pa.ArrowException):  # a new message: Arrow's own contains the value
        raise ValueError(f"a text is not a {of}") from None


def scalar_of(table: Table, name: str, text: str) -> pa.Scalar:
    """Convert a text to a value of a column.

    Raises:
        ConfigurationError: the text is not a valid value; the message does not contain it.
    """
    of = table.row_schema.field(name).type
    try:
        return values([text], of)[0]
    except ValueError:
        raise ConfigurationError(f"looking for a key of {table.id}: the text given for {name} is not a {of}") from None


def are_equal(columns: Sequence[pa.ChunkedArray], wanted: Sequence[pa.Scalar]) -> pa.ChunkedArray:
    """Return, for each row, whether it has these values; NULL equals none of them, and NaN itself, as a key does."""
    found: Any = True
    for column, value in zip(columns, wanted, strict=True):
        is_nan = pa.types.is_floating(value.type) and value.is_valid and math.isnan(value.as_py())
        same = pc.is_nan(column) if is_nan else pc.equal(column, value)
        found = pc.and_(found, pc.fill_null(same, False))
    return found


def texts_of(keys: KeySet) -> list[list[str]]:
    """Return each key as texts that `keys_of` reads.

    Raises:
        ValueError: a column's type (a list) has no such text.
    """
    columns = [_texts(keys.keys.column(name)) for name in keys.keys.column_names]
    return [list(key) for key in zip(*columns, strict=True)]


def _texts(column: pa.ChunkedArray) -> list[str]:
    of = column.type
    if pa.types.is_dictionary(of):
        return _texts(column.cast(of.value_type))
    if pa.types.is_binary(of) or pa.types.is_large_binary(of) or pa.types.is_fixed_size_binary(of):
        return [f"\\x{value.hex()}" for value in column.to_pylist()]
    try:
        return [str(text) for text in column.cast(pa.string()).to_pylist()]
    except pa.ArrowException:
        raise ValueError(f"a value of type {of} has no text that names a row") from None


def _column(attempted: str, texts: Sequence[str], of: pa.DataType) -> pa.Array:
    try:
        return values(texts, of)
    except ValueError:
        raise ConfigurationError(
            f"{attempted} is {of}, and a value is not", remedy="name the rows by a predicate (--where) instead"
        ) from None
