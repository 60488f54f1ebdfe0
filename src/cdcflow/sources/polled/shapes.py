"""Determines which columns a table has, and fits an item's content to them. Pure.

The first item of a table determines its columns; later ones must fit. A column that only a later item has is added, and
rows without it have NULL there. A value that does not fit is an error: it is never rounded, cut or dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc

from cdcflow.model.table import LOG_COLUMNS, MERGE_COLUMNS, Column, Table, TableId
from cdcflow.model.types import ColumnType
from cdcflow.sources.polled.items import Unfit

_SMALL_INTEGERS = {pa.uint8(): pa.int16(), pa.uint16(): pa.int32(), pa.uint32(): pa.int64()}
_KEPT: tuple[Callable[[pa.DataType], bool], ...] = (
    pa.types.is_boolean,
    pa.types.is_signed_integer,
    pa.types.is_float32,
    pa.types.is_float64,
    pa.types.is_decimal128,
    pa.types.is_date32,
)


def log_type(found: pa.DataType) -> pa.DataType | None:
    """Return the type in the log of values with this type; None if the log cannot hold them."""
    if pa.types.is_dictionary(found):
        return log_type(found.value_type)
    if any(is_kept(found) for is_kept in _KEPT):
        return found
    if pa.types.is_null(found) or pa.types.is_large_string(found) or pa.types.is_string(found):
        return pa.string()
    if pa.types.is_large_binary(found) or pa.types.is_binary(found) or pa.types.is_fixed_size_binary(found):
        return pa.binary()
    if pa.types.is_timestamp(found):
        return pa.timestamp("us", tz="UTC" if found.tz else None)
    if pa.types.is_time(found):
        return pa.time64("us")
    if pa.types.is_date64(found):
        return pa.date32()
    if pa.types.is_float16(found):
        return pa.float32()
    if pa.types.is_uint64(found):
        return pa.decimal128(20, 0)
    return _SMALL_INTEGERS.get(found)


def column_types(table: Table | None, given: Mapping[str, pa.DataType]) -> dict[str, pa.DataType]:
    """Return the types of the columns that are known before an item is read."""
    known = {} if table is None else {c.name: c.type.arrow for c in table.columns}
    return {**given, **known}


def fit_rows(
    content: pa.Table,
    table: Table | None,
    identifier: TableId,
    key: tuple[str, ...],
    given: Mapping[str, pa.DataType],
) -> tuple[Table, pa.Table]:
    """Return the table's shape with this content, and the content in the shape's columns. `table`: its shape before.

    Raises:
        Unfit: the content does not fit.
    """
    _check_names(content.column_names)
    if table is None:
        table = Table(identifier, 1, (), key)
    if table.key != key:
        raise Unfit(
            f"its key was {_names_of(table.key)} and is {_names_of(key)} now",
            "set the key back; another key needs a new log and a new state folder",
        )
    shape = _with_columns(table, content, given)
    missing = [name for name in key if name not in content.column_names]
    if missing:
        raise Unfit(f"column {missing[0]} of its key is missing", "add the column, or correct the key in the settings")
    rows = pa.table([_column(content, c) for c in shape.columns], schema=shape.row_schema)
    _check_key(rows, key)
    return shape, rows


def _check_names(names: list[str]) -> None:
    for name in names:
        if name in (*LOG_COLUMNS, *MERGE_COLUMNS):
            raise Unfit(f"column {name} has a name that cdcflow uses itself", "rename the column")
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise Unfit(f"two columns are named {twice}", "rename one of them")
    if not names:
        raise Unfit("it has no column", "give it columns, or remove it")


def _with_columns(table: Table, content: pa.Table, given: Mapping[str, pa.DataType]) -> Table:
    known = {c.name for c in table.columns}
    number = max((c.number for c in table.columns), default=0)
    added: list[Column] = []
    for field in content.schema:
        if field.name in known:
            continue
        kept = log_type(given.get(field.name, field.type))
        if kept is None:
            raise Unfit(
                f"column {field.name} has type {field.type}, which a table cannot hold",
                "leave the column out, or write it as text",
            )
        number += 1
        added.append(
            Column(field.name, number, ColumnType(str(field.type), kept), nullable=field.name not in table.key)
        )
    return replace(table, columns=(*table.columns, *added)) if added else table


def _column(content: pa.Table, column: Column) -> pa.ChunkedArray:
    if column.name not in content.column_names:
        return pa.chunked_array([pa.nulls(content.num_rows, column.type.arrow)])
    found = content.column(column.name)
    try:
        return found.cast(column.type.arrow)
    except pa.ArrowException:
        raise Unfit(
            f"column {column.name} has values of type {found.type} that do not fit its type {column.type.arrow}",
            "correct the values; the table continues when what holds them has changed or is gone",
        ) from None


def _check_key(rows: pa.Table, key: tuple[str, ...]) -> None:
    for name in key:
        if rows.column(name).null_count:
            raise Unfit(f"column {name} of its key has NULL", "give each row a key")
    if key and rows.num_rows and rows.select(key).group_by(list(key)).aggregate([]).num_rows < rows.num_rows:
        raise Unfit("two rows have the same key", "keep one of them, or correct the key in the settings")


def _names_of(key: tuple[str, ...]) -> str:
    return ", ".join(key) or "none"


def is_same(a: pa.ChunkedArray, b: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return, for each row, whether both columns have the same value; NULL equals NULL.

    Floats are compared by their bits: NaN equals itself, and the two zeros differ.
    """
    both_null = pc.and_(pc.is_null(a), pc.is_null(b))
    return pc.or_(pc.fill_null(pc.equal(_bits(a), _bits(b)), fill_value=False), both_null)


def _bits(values: pa.ChunkedArray) -> pa.ChunkedArray:
    if not pa.types.is_floating(values.type):
        return values
    bits = pa.int32() if values.type.bit_width == 32 else pa.int64()
    return pa.chunked_array([chunk.view(bits) for chunk in values.chunks], bits)
