"""Decodes uuid and bit strings, in the binary format, to the text that the server prints."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from cdcflow.sources.engine.buffers import Cells, binary_array, fixed_text, gather, protocol_error
from cdcflow.sources.postgres.types import row_texts
from cdcflow.sources.postgres.types.texts import TEXT
from cdcflow.sources.postgres.types.values import PostgresType, ValueDecoder, Where, check_size

_HEX = np.frombuffer(b"0123456789abcdef", np.uint8)
_ZERO = ord("0")


def uuid(cells: Cells, where: Where) -> pa.Array:
    check_size(cells, 16, where)
    digits = _HEX[np.repeat(cells.matrix(16), 2, axis=1) >> np.tile(np.array([4, 0], np.uint8), 16) & 15]
    out = np.full((len(cells), 36), ord("-"), np.uint8)
    for a, b, shift in ((0, 8, 0), (8, 12, 1), (12, 16, 2), (16, 20, 3), (20, 32, 4)):
        out[:, a + shift : b + shift] = digits[:, a:b]
    return fixed_text(out, cells.valid)


def bits(cells: Cells, where: Where) -> pa.Array:
    """Decode bit strings in the binary format: a count of bits, then the bits from the left."""
    present = cells.present
    count = np.where(present, cells.buffer.int32(cells.start), 0)
    if not ((cells.size - 4 == (count + 7) // 8) & (count >= 0) | ~present).all():
        raise protocol_error(f"a value of {where} has a wrong length")
    packed, offsets = gather(cells.buffer.bytes, cells.start + 4, (count + 7) // 8)
    data, ends = gather(np.unpackbits(packed) + np.uint8(_ZERO), offsets[:-1] * 8, count)
    return binary_array(data, ends, cells.valid).cast(pa.string())


_BITS = PostgresType(pa.string(), TEXT, ValueDecoder(bits, "binary.bits"), digest=row_texts.with_length)

TYPES: Mapping[int, PostgresType] = {
    1560: _BITS,  # bit(n)
    1562: _BITS,  # bit varying
    2950: PostgresType(pa.string(), TEXT, ValueDecoder(uuid, "binary.uuid"), digest=row_texts.with_length),
}
