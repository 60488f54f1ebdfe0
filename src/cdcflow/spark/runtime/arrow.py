"""Convert Arrow columns of the log to those that Spark accepts, with the same values as `model.sqltypes` in SQL."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc

from cdcflow.model.sqltypes import name_sql, stored_type

_SECOND_US = 1_000_000


def ddl_of(arrow: pa.DataType) -> str:
    """Return Spark's type for an Arrow type, as DDL: that of `model.sqltypes`, also for a struct with converted fields.

    Raises:
        ConfigurationError: Spark has no type that holds its values exactly.
    """
    if pa.types.is_struct(arrow):
        return f"struct<{', '.join(f'{name_sql(f.name)}: {ddl_of(f.type)}' for f in arrow)}>"
    return stored_type(arrow).table


def for_spark(rows: pa.Table, schema: pa.Schema) -> list[pa.RecordBatch]:
    """Return rows in the columns of an Arrow schema that Spark derived from its own (`to_arrow_schema`), matched by
    position."""
    columns = [_convert(column, field.type) for column, field in zip(rows.columns, schema, strict=True)]
    batches: list[pa.RecordBatch] = pa.Table.from_arrays(columns, schema=schema).combine_chunks().to_batches()
    return batches


# ── inside ──────────────────────────────────────────────────────────────────────────────────────────────────


def _convert(column: pa.Array | pa.ChunkedArray, wanted: pa.DataType) -> pa.Array | pa.ChunkedArray:
    own = column.type
    if own == wanted:
        return column
    if pa.types.is_dictionary(own):
        return _convert(column.cast(own.value_type), wanted)
    if pa.types.is_struct(own):
        return _parts(column, lambda part: _struct(part, wanted))
    if pa.types.is_list(own) or pa.types.is_large_list(own):
        return _parts(column, lambda part: _list(part, wanted))
    if pa.types.is_string(wanted):
        if pa.types.is_time64(own) or pa.types.is_duration(own):
            return _clock_text(column)
        if pa.types.is_decimal(own):
            return _parts(column, _decimal_text)
    return column.cast(wanted)


def _parts(column: pa.Array | pa.ChunkedArray, convert: Callable[[pa.Array], pa.Array]) -> pa.Array:
    """Convert the whole column as one chunk."""
    one = column
    if isinstance(column, pa.ChunkedArray):
        one = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    return convert(one)


def _struct(array: pa.StructArray, wanted: pa.StructType) -> pa.Array:
    parts = [_convert(array.field(at), wanted.field(at).type) for at in range(wanted.num_fields)]
    return pa.StructArray.from_arrays(parts, fields=list(wanted), mask=array.is_null())


def _list(array: pa.Array, wanted: pa.DataType) -> pa.Array:
    lengths = pc.fill_null(pc.list_value_length(array), 0).cast(pa.int32())
    ends = pc.cumulative_sum(lengths)
    offsets = pa.concat_arrays([pa.array([0], pa.int32()), ends.cast(pa.int32())])
    items = _convert(pc.list_flatten(array), wanted.value_type)
    return pa.ListArray.from_arrays(offsets, items, type=wanted, mask=array.is_null())


def _clock_text(column: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """Format microseconds as hours (at least two digits), minutes, seconds and microseconds, with a sign if
    negative."""
    whole = column.cast(pa.int64())
    rest = pc.abs_checked(whole)
    parts = []
    for unit, digits in ((1, 6), (_SECOND_US, 2), (60 * _SECOND_US, 2)):
        upto = unit * (10**6 if unit == 1 else 60)
        parts.append(_digits(pc.divide(_modulo(rest, upto), unit), digits))
    micros, seconds, minutes = parts
    hours = _digits(pc.divide(rest, 3600 * _SECOND_US), 2)
    sign = pc.if_else(pc.less(whole, 0), "-", "")
    clock = pc.binary_join_element_wise(hours, minutes, seconds, ":")
    return pc.binary_join_element_wise(pc.binary_join_element_wise(sign, clock, ""), micros, ".")


def _modulo(column: pa.Array | pa.ChunkedArray, by: int) -> pa.Array | pa.ChunkedArray:
    return pc.subtract(column, pc.multiply(pc.divide(column, by), by))


def _digits(column: pa.Array | pa.ChunkedArray, count: int) -> pa.Array | pa.ChunkedArray:
    return pc.utf8_lpad(column.cast(pa.string()), count, "0")


def _decimal_text(array: pa.Array) -> pa.Array:
    """Format decimals with all their digits; Arrow's own text has an exponent for small numbers."""
    found = array.dictionary_encode()
    texts = pa.array([format(value, "f") for value in found.dictionary.to_pylist()], pa.string())
    return texts.take(found.indices)
