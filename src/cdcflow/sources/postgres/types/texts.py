"""Decodes text and bytes: the text family, enums, json, bytea, and every type that is kept as the server's text.

Among the latter are ranges, composites, network addresses, geometry and the types of extensions.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from cdcflow.errors import TableMisfit
from cdcflow.sources.engine.buffers import Bytes, Cells, binary_array, gather
from cdcflow.sources.postgres.types import row_texts
from cdcflow.sources.postgres.types.values import PostgresType, ValueDecoder, Where, unreadable

_NIBBLE: Bytes = np.full(256, 255, np.uint8)
_NIBBLE[np.frombuffer(b"0123456789abcdef", np.uint8)] = np.arange(16, dtype=np.uint8)


def text(cells: Cells, where: Where) -> pa.Array:
    """Decode text as the server prints it; the same in both formats for the text family, json and enums."""
    return utf8(cells.binary(), where)


def utf8(array: pa.Array, where: Where) -> pa.Array:
    """Return bytes as text.

    Raises:
        TableMisfit: some bytes are not UTF-8, which only a database with encoding SQL_ASCII sends.
    """
    try:
        return array.cast(pa.string())
    except pa.ArrowInvalid:
        raise TableMisfit(
            f"decoding {where}: a value is not UTF-8, so the meaning of its bytes is unknown",
            remedy="correct its rows at the source, or leave the table out of source.tables (write !schema.table), "
            "then start again",
            runbook="value-not-representable",
        ) from None


def jsonb(cells: Cells, where: Where) -> pa.Array:
    """Decode jsonb in the binary format: a version byte, then the text."""
    if not ((cells.byte(0) == 1) | ~cells.present).all():
        raise unreadable(where, "jsonb of version 1")
    return utf8(cells.without_prefix(1).binary(), where)


def bytea_text(cells: Cells, where: Where) -> pa.Array:
    present = cells.present
    if not ((cells.byte(0) == ord("\\")) & (cells.byte(1) == ord("x")) & (cells.size % 2 == 0) | ~present).all():
        raise unreadable(where, "bytea in hex (bytea_output must be hex)")
    digits, offsets = gather(cells.buffer.bytes, cells.start + 2, np.where(present, cells.size - 2, 0))
    nibbles = _NIBBLE[digits]
    if (nibbles == 255).any():
        raise unreadable(where, "bytea in hex (bytea_output must be hex)")
    return binary_array(nibbles[0::2] << np.uint8(4) | nibbles[1::2], offsets // 2, cells.valid)


def bytea(cells: Cells, where: Where) -> pa.Array:
    return cells.binary()


TEXT = ValueDecoder(text, "text.text")
TEXT_ONLY = PostgresType(pa.string(), TEXT, digest=row_texts.printed_text)
"""The type of values of every type that no family has: the server's text."""

TEXT_IN_BOTH = PostgresType(pa.string(), TEXT, TEXT, digest=row_texts.text)
"""Types whose binary format is their text: the text family, json and enums."""

TYPES: Mapping[int, PostgresType] = {
    17: PostgresType(
        pa.binary(),
        ValueDecoder(bytea_text, "text.bytea"),
        ValueDecoder(bytea, "binary.bytea"),
        digest=row_texts.hexadecimal,
    ),
    19: TEXT_IN_BOTH,  # name
    25: TEXT_IN_BOTH,
    114: TEXT_IN_BOTH,  # json
    1042: TEXT_IN_BOTH,  # char(n), with its padding
    1043: TEXT_IN_BOTH,  # varchar
    3802: PostgresType(pa.string(), TEXT, ValueDecoder(jsonb, "binary.jsonb"), digest=row_texts.with_length),
}
