"""Rows sent in columns: an Arrow stream as the columns of a collection, without an object per row."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from cdcflow.push.operations import OperationFailure
from cdcflow.push.schemas import CollectionShape, Property, Wrong

CONTENT_TYPE = "application/vnd.apache.arrow.stream"
FAILURES_MAX = 100
"""How many invalid rows are reported at most."""
_AS_JSON = ("object", "array")


def read(shape: CollectionShape, body: bytes) -> tuple[pa.RecordBatch, list[OperationFailure]]:
    """Return the rows of a stream in `shape.table.row_schema`, and those that the schema does not accept.

    A missing column is NULL; one of a narrower type is widened.

    Raises:
        Wrong: the body is not such a stream, or its columns are not the collection's.
    """
    try:
        with pa.ipc.open_stream(body) as stream:
            found = stream.read_all()
        found.validate(full=True)  # offsets that point outside of a buffer would be read
    except (pa.ArrowException, OSError, ValueError):
        raise Wrong("the body is no Arrow stream") from None
    if not found.num_rows:
        raise Wrong("the stream has no rows")
    rows = _fit(shape, found)
    failures: dict[int, list[str]] = {}
    for known in shape.properties.values():
        for reason, is_wrong in _violations(known, rows.column(known.name)):
            for at in pc.indices_nonzero(is_wrong).to_pylist()[:FAILURES_MAX]:
                failures.setdefault(at + 1, []).append(reason)
    listed = [OperationFailure(number, "invalid", "; ".join(failures[number])) for number in sorted(failures)]
    return rows.combine_chunks().to_batches()[0], listed[:FAILURES_MAX]


def _fit(shape: CollectionShape, found: pa.Table) -> pa.Table:
    names = found.column_names
    if len(set(names)) < len(names) or set(names) - shape.properties.keys():
        raise Wrong("the stream has a column twice, or one that the schema does not have")
    if missing := sorted(shape.required - set(names)):
        raise Wrong(f"{', '.join(missing)}: missing in the stream")
    if nested := [name for name in names if shape.properties[name].kind in _AS_JSON]:
        raise Wrong(f"{', '.join(nested)}: objects and arrays are sent as JSON, not in a stream")
    columns = []
    for of in shape.table.row_schema:
        if of.name not in names:
            columns.append(pa.nulls(found.num_rows, of.type))
            continue
        try:
            columns.append(_widen(found.column(of.name), of.type))
        except pa.ArrowException:
            given = found.column(of.name).type
            raise Wrong(f"{of.name}: {given} does not become {of.type} without loss") from None
    return pa.table(columns, schema=shape.table.row_schema)


def _widen(column: pa.ChunkedArray, of: pa.DataType) -> pa.ChunkedArray:
    given = column.type
    if pa.types.is_dictionary(given):
        return _widen(column.cast(given.value_type), of)
    is_same_kind = (
        given == of
        or (pa.types.is_integer(given) and pa.types.is_integer(of))
        or (pa.types.is_floating(given) and pa.types.is_floating(of))
        or (pa.types.is_integer(given) and pa.types.is_floating(of))
        or (pa.types.is_large_string(given) and pa.types.is_string(of))
        or (pa.types.is_timestamp(given) and pa.types.is_timestamp(of) and given.tz is not None)
        or (pa.types.is_date(given) and pa.types.is_date(of))
    )
    if not is_same_kind:
        raise pa.ArrowInvalid("another kind of type")
    return column.cast(of)


def _violations(known: Property, column: pa.ChunkedArray) -> Iterator[tuple[str, Any]]:
    """Yield the rules of a column, each with the rows that violate it."""
    if not known.nullable:
        yield f"{known.name}: null is not taken", column.is_null()
    if known.kind == "number":
        yield f"{known.name}: not a number", pc.invert(pc.fill_null(pc.is_finite(column), True))
    for check, limit in known.checks.items():
        holds = pc.fill_null(_HOLDS[check](column, limit), True)
        yield f"{known.name}: {check} of the schema is not kept", pc.invert(holds)


_HOLDS: Mapping[str, Any] = {
    "minLength": lambda column, limit: pc.greater_equal(pc.utf8_length(column), limit),
    "maxLength": lambda column, limit: pc.less_equal(pc.utf8_length(column), limit),
    "minimum": lambda column, limit: pc.greater_equal(column, limit),
    "maximum": lambda column, limit: pc.less_equal(column, limit),
    "enum": lambda column, limit: pc.or_(column.is_null(), pc.is_in(column, pa.array(limit, column.type))),
}
