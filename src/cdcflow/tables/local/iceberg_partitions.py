"""Partitions of an Iceberg table: their specification, and the rows of each.

    rows ──▶ values      a column for each field of the specification, computed for all rows at once
         └─▶ split       the rows of each partition, in the order that they have

PyIceberg computes the values with a separate package in Rust; here they are a few operations on columns. Source:
https://iceberg.apache.org/spec/#partition-transforms, and Appendix B for the hash of buckets.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyiceberg.partitioning import PartitionField as SpecField
from pyiceberg.partitioning import PartitionKey, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table, Transaction
from pyiceberg.table.sorting import NullOrder
from pyiceberg.transforms import (
    BucketTransform,
    DayTransform,
    HourTransform,
    IdentityTransform,
    MonthTransform,
    Transform,
    TruncateTransform,
    YearTransform,
)
from pyiceberg.typedef import Record

from cdcflow.model.file_layout import FileLayout, PartitionField
from cdcflow.tables.formats import iceberg
from cdcflow.tables.port import HandOver

_TIMES: Mapping[str, Transform[Any, Any]] = {
    "year": YearTransform(),
    "month": MonthTransform(),
    "day": DayTransform(),
    "hour": HourTransform(),
}
_UNITS = {"year": "Y", "month": "M", "day": "D", "hour": "h"}
_KNOWN = (IdentityTransform, BucketTransform, TruncateTransform, *map(type, _TIMES.values()))

Bytes = NDArray[np.uint8]
Words = NDArray[np.uint32]


def set_layout(change: Transaction, table: Table, layout: FileLayout) -> None:
    """Change the partitions and the order of new files, as far as they differ from the current ones."""
    schema = table.schema()
    wanted = {(schema.find_field(p.column).field_id, repr(_transform(p))): p for p in layout.partitions}
    there = {(f.source_id, repr(f.transform)): f for f in table.spec().fields}
    if wanted.keys() != there.keys():
        earlier = {field.name.lower() for spec in table.specs().values() for field in spec.fields}
        taken = {name.lower() for name in schema.column_names} | earlier
        with change.update_spec() as update:
            for what, gone in there.items():
                if what not in wanted:
                    update.remove_field(gone.name)
            for what, field in wanted.items():
                if what not in there:
                    name = _earlier_name(table, what) or iceberg.partition_name(field, taken)
                    taken.add(name.lower())
                    update.add_field(field.column, _transform(field), name)
    order = [(schema.find_field(one.column).field_id, one.descending) for one in layout.order]
    if order != [(f.source_id, f.direction.name == "DESC") for f in table.sort_order().fields]:
        with change.update_sort_order() as sort:
            for one in layout.order:
                add, nulls = (sort.desc, NullOrder.NULLS_LAST) if one.descending else (sort.asc, NullOrder.NULLS_FIRST)
                add(one.column, IdentityTransform(), nulls)


def _earlier_name(table: Table, what: tuple[int, str]) -> str | None:
    """Return the name that a partition field had in an earlier specification; `None` if there was no such field. The
    format gives it the same id again."""
    fields = (f for spec in table.specs().values() for f in spec.fields)
    return next((f.name for f in fields if (f.source_id, repr(f.transform)) == what), None)


def _transform(field: PartitionField) -> Transform[Any, Any]:
    match field.transform:
        case "identity":
            return IdentityTransform()
        case "bucket":
            return BucketTransform(field.number)
        case "truncate":
            return TruncateTransform(field.number)
        case time:
            return _TIMES[time]


def check_known(table: Table) -> None:
    """Check that the partitions of new files can be computed here.

    Raises:
        HandOver: they cannot be.
    """
    schema = table.schema()
    for field in table.spec().fields:
        if not _is_known(field, schema):
            type_ = schema.find_field(field.source_id).field_type
            raise HandOver(f"it is partitioned by {field.transform} of a column of type {type_}")


def _is_known(field: SpecField, schema: Schema) -> bool:
    type_ = str(schema.find_field(field.source_id).field_type)
    is_odd = isinstance(field.transform, TruncateTransform) and type_.startswith("decimal")
    is_odd = is_odd or type_.startswith("fixed") or type_ in ("float", "double", "uuid", "time")
    return isinstance(field.transform, _KNOWN) and not is_odd


@dataclass(frozen=True)
class PartitionRows(PartitionKey):
    """The rows of one partition."""

    rows: pa.Table
    values: Record

    @cached_property
    def partition(self) -> Record:
        return self.values

    def to_path(self) -> str:
        """Return the name of a folder for the partition's files. It is for operators: no reader takes values
        from it."""
        values = [self.values[n] for n in range(len(self.partition_spec.fields))]
        return "/".join(f"{f.name}={_in_path(f, v)}" for f, v in zip(self.partition_spec.fields, values, strict=True))


def _in_path(field: SpecField, value: Any) -> str:  # Any: a value of a partition
    if value is None:
        return "null"
    if isinstance(field.transform, DayTransform):
        text = str(np.datetime64(int(value), "D"))
    elif isinstance(field.transform, MonthTransform):
        text = str(np.datetime64(int(value), "M"))
    elif isinstance(field.transform, YearTransform):
        text = str(np.datetime64(int(value), "Y"))
    elif isinstance(field.transform, HourTransform):
        text = str(np.datetime64(int(value), "h")).replace("T", "-")
    else:
        text = str(value)
    return re.sub(r"[^A-Za-z0-9.-]", "_", text)[:40]


def split(rows: pa.Table, spec: PartitionSpec, schema: Schema) -> Iterator[PartitionRows]:
    """Yield the rows of each partition, in the order in which the partitions first appear."""
    values = [value_of(rows, field, schema) for field in spec.fields]
    groups = _group(values, len(rows))
    order = np.argsort(groups, kind="stable")
    ends = np.flatnonzero(np.diff(groups[order], append=-1)) + 1
    for begin, end in zip([0, *ends[:-1]], ends, strict=True):
        numbers = order[begin:end]
        first = int(numbers[0])
        found = Record(*(value[first].as_py() for value in values))
        yield PartitionRows([], spec, schema, rows.take(pa.array(numbers)), found)


def _group(values: Sequence[pa.Array], count: int) -> NDArray[np.int64]:
    """Return a number for each row; rows with the same values get the same number."""
    found = np.zeros(count, np.int64)
    for value in values:
        codes = value.dictionary_encode(null_encoding="encode")
        found = found * (len(codes.dictionary) + 1) + codes.indices.to_numpy(zero_copy_only=False).astype(np.int64)
        found = np.unique(found, return_inverse=True)[1].astype(np.int64)  # so that it never grows too large
    return found


def of_keys(
    table: Table, specs: Iterable[int], key: Collection[str], keys: Callable[[], pa.Table]
) -> dict[int, set[Record]]:
    """Return the partitions of the rows with some keys, by specification. Only specifications that are computed from
    the key are included: a row with a key is then in one partition, before and after a change."""
    schema, found = table.schema(), {}
    for id_ in specs:
        spec = table.specs()[id_]
        sources = {schema.find_field(field.source_id).name for field in spec.fields}
        if sources and sources <= set(key) and all(_is_known(f, schema) for f in spec.fields):
            found[id_] = _partitions_of(keys(), spec, schema)
    return found


def _partitions_of(rows: pa.Table, spec: PartitionSpec, schema: Schema) -> set[Record]:
    values = [value_of(rows, field, schema) for field in spec.fields]
    names = [f"v{n}" for n in range(len(values))]
    distinct = pa.table(dict(zip(names, values, strict=True))).group_by(names).aggregate([])
    return {Record(*(row[name] for name in names)) for row in distinct.to_pylist()}


def value_of(rows: pa.Table, field: SpecField, schema: Schema) -> pa.Array:
    """Return the value of a field of a specification for each row, as the format stores it: days, hours and timestamps
    as numbers."""
    name = schema.find_field(field.source_id).name
    column = rows.column(name)
    parts = [_value(part, field.transform) for part in column.chunks]
    return pa.concat_arrays(parts) if parts else _value(pa.array([], column.type), field.transform)


def _value(column: pa.Array, transform: Transform[Any, Any]) -> pa.Array:
    match transform:
        case IdentityTransform():
            return _as_number(column)
        case BucketTransform():
            hashes = _hash(column) & np.uint32(0x7FFFFFFF)
            return _with_nulls(hashes.astype(np.int64) % transform.num_buckets, column, pa.int32())
        case TruncateTransform():
            return _truncate(column, transform.width)
        case _:
            unit = next(name for name, time in _TIMES.items() if time == transform)
            of = "D" if pa.types.is_date(column.type) else "us"
            moments = _numbers(column).view(f"datetime64[{of}]").astype(f"datetime64[{_UNITS[unit]}]")
            return _with_nulls(moments.view(np.int64), column, pa.int32())


def _as_number(column: pa.Array) -> pa.Array:
    """Return dates as days and timestamps as microseconds since 1970; other values unchanged."""
    if pa.types.is_date(column.type):
        return column.cast(pa.int32())
    if pa.types.is_timestamp(column.type):
        return column.cast(pa.int64())
    return column


def _numbers(column: pa.Array) -> NDArray[np.int64]:
    """Return whole numbers, dates or timestamps as 64 bits each; NULL becomes 0."""
    found: NDArray[np.int64] = pc.fill_null(_as_number(column).cast(pa.int64()), 0).to_numpy(zero_copy_only=False)
    return np.ascontiguousarray(found)


def _with_nulls(values: NDArray[Any], column: pa.Array, type_: pa.DataType) -> pa.Array:
    return pa.array(values, type_, mask=column.is_null().to_numpy(zero_copy_only=False))


def _truncate(column: pa.Array, width: int) -> pa.Array:
    if pa.types.is_integer(column.type):
        numbers = _numbers(column).astype(column.type.to_pandas_dtype())
        return _with_nulls(numbers - np.mod(numbers, width), column, column.type)
    if _is_text(column.type):
        return pc.utf8_slice_codeunits(column, 0, width)
    return pc.binary_slice(column, 0, width)


def _is_text(type_: pa.DataType) -> bool:
    return bool(pa.types.is_string(type_) or pa.types.is_large_string(type_))


def _hash(column: pa.Array) -> Words:
    """Return Iceberg's 32-bit hash of each value; the hash of NULL is arbitrary."""
    if pa.types.is_decimal(column.type):
        return _murmur3(*_decimal_bytes(column))
    if _is_text(column.type) or pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type):
        return _murmur3(*_value_bytes(column))
    numbers = _numbers(column)
    return _murmur3(numbers.astype("<i8").view(np.uint8), np.arange(len(numbers) + 1) * 8)


def _value_bytes(column: pa.Array) -> tuple[Bytes, NDArray[np.int64]]:
    """Return the bytes of texts or binary values, and the offsets where each begins and the last ends."""
    binary = pc.fill_null(column.cast(pa.large_binary()), b"")
    _, offsets, content = binary.buffers()
    ends = np.frombuffer(offsets, np.int64, len(binary) + 1, binary.offset * 8)
    held = np.zeros(0, np.uint8) if content is None else np.frombuffer(content, np.uint8)
    return held, ends


def _decimal_bytes(column: pa.Array) -> tuple[Bytes, NDArray[np.int64]]:
    """Return each decimal's digits as a number, in as few bytes as hold it, the most significant byte first."""
    zero = pa.scalar(Decimal(0), column.type)
    filled = pc.fill_null(column, zero)
    held = np.frombuffer(filled.buffers()[1], np.uint8, 16 * len(filled), 16 * filled.offset)
    held = held.reshape(-1, 16)[:, ::-1]
    sign = np.where(held[:, :1] >= 128, 255, 0).astype(np.uint8)
    # A leading byte is not needed if it repeats the sign, and the next one has the sign's highest bit.
    spare = (held[:, :-1] == sign) & ((held[:, 1:] >= 128) == (sign == 255))
    length = 16 - np.cumprod(spare, axis=1).sum(axis=1)
    chosen = np.arange(16) >= (16 - length)[:, None]
    return held[chosen], np.concatenate([[0], np.cumsum(length)])


def _murmur3(content: Bytes, ends: NDArray[np.int64]) -> Words:
    """Return the 32-bit Murmur3 hash (x86, seed 0) of each value. Value n is in bytes ends[n] to ends[n + 1]."""
    begins, lengths = ends[:-1], np.diff(ends)
    found = np.zeros(len(begins), np.uint32)
    whole = lengths // 4
    padded = np.concatenate([content, np.zeros(4, np.uint8)])
    for block in range(int(whole.max(initial=0))):
        has = np.flatnonzero(whole > block)
        found[has] = _mix(found[has], _words(padded, begins[has] + 4 * block, 4))
    for left in (1, 2, 3):
        has = np.flatnonzero(lengths % 4 == left)
        found[has] ^= _scramble(_words(padded, begins[has] + 4 * whole[has], left))
    found ^= lengths.astype(np.uint32)
    found ^= found >> np.uint32(16)
    found *= np.uint32(0x85EBCA6B)
    found ^= found >> np.uint32(13)
    found *= np.uint32(0xC2B2AE35)
    return found ^ (found >> np.uint32(16))


def _words(content: Bytes, begins: NDArray[np.int64], count: int) -> Words:
    """Return numbers that are stored in `count` bytes each, the least significant byte first."""
    found = np.zeros(len(begins), np.uint32)
    for n in range(count):
        found |= content[begins + n].astype(np.uint32) << np.uint32(8 * n)
    return found


def _scramble(words: Words) -> Words:
    words = words * np.uint32(0xCC9E2D51)
    return _rotate(words, 15) * np.uint32(0x1B873593)


def _mix(state: Words, words: Words) -> Words:
    return _rotate(state ^ _scramble(words), 13) * np.uint32(5) + np.uint32(0xE6546B64)


def _rotate(words: Words, bits: int) -> Words:
    return (words << np.uint32(bits)) | (words >> np.uint32(32 - bits))
