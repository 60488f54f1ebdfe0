"""CHAR, VARCHAR and TEXT, BINARY, VARBINARY and BLOB; and MariaDB's COMPRESSED columns of these.

In a row image the length precedes each value, and a SELECT returns the same bytes: text in the column's own character
set, because a conversion would write `?` for characters that it cannot convert. `charsets` converts them to UTF-8.

Compiled kernels (`compiled/values.pxi`): the form `text …` has the kernel UTF8 if the character set is UTF-8, otherwise
ASCII, which leaves values with other bytes to the decoders here; `bytes` has BYTES, and `fixed` has FIXED. COMPRESSED
columns have none.
"""

from __future__ import annotations

import zlib
from functools import partial

import numpy as np
import pyarrow as pa

from cdcflow.sources.engine.buffers import Cells, binary_array, with_padding
from cdcflow.sources.mysql.sql import quote_name
from cdcflow.sources.mysql.types import charsets, row_texts
from cdcflow.sources.mysql.types.charsets import Charset, charset_of
from cdcflow.sources.mysql.types.columns import (
    BINARY_COLLATION,
    UTF8_COLLATION,
    CatalogColumn,
    ServerColumn,
    TypeCode,
)
from cdcflow.sources.mysql.types.family import Codec, Decoder, RowText, TypeFamily, Where, as_is, no_key, unreadable

_COMPRESSED = (TypeCode.VARCHAR_COMPRESSED, TypeCode.BLOB_COMPRESSED)
_BLOBS = {"tiny": 1, "": 2, "medium": 3, "long": 4}
_SIZES = ("tiny", "", "medium", "long")
_DEFLATED = 8


def raw(cells: Cells, where: Where) -> pa.Array:
    return cells.binary()


def decode_binary(width: int, cells: Cells, where: Where) -> pa.Array:
    """Decode a BINARY(n): the binary log omits zero bytes at the end, and this function restores them (hard
    case N11)."""
    if (cells.size[cells.present] > width).any():
        raise unreadable(where, f"at most {width} bytes")
    return binary_array(fixed_width(width, cells).reshape(-1), np.arange(len(cells) + 1) * width, cells.valid)


def fixed_width(width: int, cells: Cells) -> np.ndarray[tuple[int, int], np.dtype[np.uint8]]:
    """Return the values as one row of `width` bytes each, padded with zeros."""
    offsets = np.arange(width)
    there = offsets < np.where(cells.present, cells.size, 0)[:, None]
    at = np.minimum(cells.start[:, None] + offsets, len(cells.buffer.bytes) - 1)
    return np.where(there, cells.buffer.bytes[at], np.uint8(0))


def decode_compressed(decode: Decoder, cells: Cells, where: Where) -> pa.Array:
    """Decode MariaDB's COMPRESSED columns: a byte that names the method, the length, and the value."""
    # zlib cannot process columns: each value was deflated separately.
    values = [b"" if value is None else _inflate(value, where) for value in cells.binary().to_pylist()]
    size = np.fromiter(map(len, values), np.int64, len(values))
    return decode(Cells(with_padding(values), np.cumsum(size) - size, size, cells.valid), where)


def _inflate(value: bytes, where: Where) -> bytes:
    """Decompress a value of a COMPRESSED column. The first byte is 0 if the value is not compressed. Otherwise its high
    bits are 8 (zlib); bit 3 is set if zlib's header is omitted; and the low three bits are the size of the length that
    follows."""
    if not value:
        return b""
    first = value[0]
    if first == 0:
        return value[1:]
    size = first & 7
    length = int.from_bytes(value[1 : 1 + size], "big")
    if first >> 4 != _DEFLATED or not 0 < size <= 4:
        raise unreadable(where, "compressed in a way that is known")
    try:
        inflate = zlib.decompressobj(-15 if first & 8 else 15)
        found = inflate.decompress(value[1 + size :], length)
    except zlib.error:
        raise unreadable(where, "compressed text") from None
    if len(found) != length or (inflate.unconsumed_tail and inflate.decompress(inflate.unconsumed_tail, 1)):
        raise unreadable(where, "compressed text of the length in its header")
    return found


# ── the family ──────────────────────────────────────────────────────────────────────────────────────────────────


def prefix_of(column: ServerColumn) -> int:
    """Return how many bytes the length in front of a value has in a row image."""
    if column.type_code in (TypeCode.BLOB, TypeCode.BLOB_COMPRESSED):
        return column.metadata
    return 1 if column.metadata < 256 else 2


def _from_catalog(column: CatalogColumn) -> ServerColumn:
    kind, octets = column.type, column.octets or 0
    is_compressed = "COMPRESSED" in column.full_type
    if kind in ("char", "binary"):
        code, metadata = TypeCode.CHAR, octets
    elif kind in ("varchar", "varbinary"):
        # The byte that names the compression method counts as a byte of the value.
        code, metadata = (TypeCode.VARCHAR_COMPRESSED, octets + 1) if is_compressed else (TypeCode.VARCHAR, octets)
    else:
        code, metadata = TypeCode.BLOB_COMPRESSED if is_compressed else TypeCode.BLOB, _BLOBS[kind[:-4]]
    return column.stored_as(code, metadata, collation=BINARY_COLLATION)


def _charset(column: ServerColumn) -> Charset | None:
    """Return the character set of a text column; None for a column of bytes."""
    return None if column.collation in (None, BINARY_COLLATION) else charset_of(column.collation or 0)


def _type_text(column: ServerColumn) -> str:
    code, size, charset = column.type_code, column.metadata, _charset(column)
    if code in (TypeCode.BLOB, TypeCode.BLOB_COMPRESSED):
        return f"{_SIZES[(size - 1) & 3]}{'text' if charset else 'blob'}"
    if code == TypeCode.VARCHAR_COMPRESSED:
        size -= 1
    kind = "" if code == TypeCode.CHAR else "var"
    return f"{kind}char({size // charset.bytes_max})" if charset else f"{kind}binary({size})"


def _codec(column: ServerColumn, where: Where) -> Codec:
    charset = _charset(column)
    arrow, form, width = (pa.string(), f"text {charset.name}", 0) if charset else (pa.binary(), "bytes", 0)
    plain: Decoder = partial(charsets.text, charset) if charset else raw
    if charset is None and column.type_code == TypeCode.CHAR:
        plain, form, width = partial(decode_binary, column.metadata), "fixed", column.metadata
    image = plain
    if column.type_code in _COMPRESSED:
        image, form = partial(decode_compressed, plain), ""
    return Codec(where, arrow, 0, prefix_of(column), image, plain, form, width)


def _select(column: ServerColumn) -> str:
    is_other = _charset(column) not in (None, charset_of(UTF8_COLLATION))
    return f"CONVERT({quote_name(column.name)} USING binary)" if is_other else as_is(column)


def _cell_literal(column: ServerColumn, cell: bytes) -> str:
    if column.type_code in _COMPRESSED:
        raise no_key(column)
    charset = _charset(column)
    # A SELECT returned the stored bytes; for text in utf8mb4 these are the session's character set anyway.
    return f"X'{cell.hex()}'" if charset is None else f"_{charset.name} X'{cell.hex()}'"


def _row_text(column: ServerColumn, codec: Codec) -> RowText:
    return (row_texts.text if codec.arrow == pa.string() else row_texts.hexadecimal)(column, codec)


FAMILY = TypeFamily(
    codes={
        **dict.fromkeys((TypeCode.BLOB, TypeCode.BLOB_COMPRESSED), 1),
        **dict.fromkeys((TypeCode.CHAR, TypeCode.VARCHAR, TypeCode.VARCHAR_COMPRESSED), 2),
    },
    names=frozenset(
        (
            *("char", "binary", "varchar", "varbinary"),
            *(f"{size}{kind}" for size in _BLOBS for kind in ("text", "blob")),
        )
    ),
    collated=frozenset((TypeCode.CHAR, TypeCode.VARCHAR, TypeCode.BLOB, *_COMPRESSED)),
    from_catalog=_from_catalog,
    type_text=_type_text,
    codec=_codec,
    row_text=_row_text,
    setting=lambda column: None if _charset(column) is None else "bad_text",
    select=_select,
    cell_literal=_cell_literal,
)
