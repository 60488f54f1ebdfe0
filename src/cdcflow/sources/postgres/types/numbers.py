"""Decodes booleans, integers and floats, which have their own Arrow types."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cdcflow.sources.engine.buffers import Cells
from cdcflow.sources.postgres.types import row_texts
from cdcflow.sources.postgres.types.values import (
    Decode,
    PostgresType,
    ValueDecoder,
    Where,
    cast,
    check_size,
    unreadable,
)


def boolean_text(cells: Cells, where: Where) -> pa.Array:
    first = cells.byte(0)
    true = first == ord("t")
    if not (true | (first == ord("f")) | ~cells.present).all():
        raise unreadable(where, "t or f")
    return pa.array(true, mask=cells.mask)


def boolean(cells: Cells, where: Where) -> pa.Array:
    check_size(cells, 1, where)
    return pa.array(cells.byte(0) != 0, mask=cells.mask)


def number_text(arrow: pa.DataType, cells: Cells, where: Where) -> pa.Array:
    """Decode integers and floats from text. Arrow's float parser rounds to nearest, so the shortest text gives the same
    bits."""
    return cast(cells.binary(), arrow, where, f"a number that {arrow} holds")


def int2(cells: Cells, where: Where) -> pa.Array:
    check_size(cells, 2, where)
    return pa.array(cells.buffer.int16(cells.start).astype(np.int16), mask=cells.mask)


def int4(cells: Cells, where: Where) -> pa.Array:
    check_size(cells, 4, where)
    return pa.array(cells.buffer.int32(cells.start).astype(np.int32), mask=cells.mask)


def int8(cells: Cells, where: Where) -> pa.Array:
    check_size(cells, 8, where)
    return pa.array(cells.buffer.int64(cells.start), mask=cells.mask)


def oid(cells: Cells, where: Where) -> pa.Array:
    check_size(cells, 4, where)
    return pa.array(cells.buffer.uint32(cells.start), mask=cells.mask)


def float4(cells: Cells, where: Where) -> pa.Array:
    check_size(cells, 4, where)
    return _floats(cells.buffer.int32(cells.start).astype(np.int32).view(np.float32), cells)


def float8(cells: Cells, where: Where) -> pa.Array:
    check_size(cells, 8, where)
    return _floats(cells.buffer.int64(cells.start).view(np.float64), cells)


def _floats(values: npt.NDArray[np.float32] | npt.NDArray[np.float64], cells: Cells) -> pa.Array:
    """Return floats in which every NaN has the same bits, like the result of a conversion to text and back."""
    if np.isnan(values).any():
        values = np.where(np.isnan(values), values.dtype.type(np.nan), values)
    return pa.array(values, mask=cells.mask, from_pandas=False)


def _number(arrow: pa.DataType, binary: Decode, kernel: str) -> PostgresType:
    digest = None if pa.types.is_floating(arrow) else row_texts.number
    text = ValueDecoder(partial(number_text, arrow), "text.number")
    return PostgresType(arrow, text, ValueDecoder(binary, kernel), digest=digest)


TYPES: Mapping[int, PostgresType] = {
    16: PostgresType(
        pa.bool_(),
        ValueDecoder(boolean_text, "text.boolean"),
        ValueDecoder(boolean, "binary.boolean"),
        digest=row_texts.boolean,
    ),
    20: _number(pa.int64(), int8, "binary.int8"),
    21: _number(pa.int16(), int2, "binary.int2"),
    23: _number(pa.int32(), int4, "binary.int4"),
    26: _number(pa.int64(), oid, "binary.oid"),
    700: _number(pa.float32(), float4, "binary.float4"),
    701: _number(pa.float64(), float8, "binary.float8"),
}
