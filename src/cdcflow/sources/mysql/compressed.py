"""Expands compressed events, and events that contain others in compressed form, before any other code reads them.

MySQL (`binlog_transaction_compression`) writes a whole transaction's events into one TRANSACTION_PAYLOAD event; MariaDB
(`log_bin_compress`) compresses the text of QUERY events and the rows of row events one by one (hard cases M01, M02).

Small events are expanded in place, so a batch remains one batch. A large payload is expanded piece by piece and is
never in memory as a whole. No event grows beyond `EXPANDED_BYTES_MAX`: a few hostile bytes can claim an enormous size.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from typing import Final

import numpy as np
import pyarrow as pa

from cdcflow.errors import ConfigurationError
from cdcflow.sources.mysql.events import EventType, length_at, table_of
from cdcflow.sources.mysql.wire import HEADER, Events, joined_events, protocol_error, with_padding

EXPANDED_BYTES_MAX: Final = 1 << 30
PIECE_BYTES: Final = 4 << 20

_PLAIN_TYPE: Final = {
    EventType.QUERY_COMPRESSED: EventType.QUERY,
    EventType.WRITE_ROWS_COMPRESSED_V1: EventType.WRITE_ROWS_V1,
    EventType.UPDATE_ROWS_COMPRESSED_V1: EventType.UPDATE_ROWS_V1,
    EventType.DELETE_ROWS_COMPRESSED_V1: EventType.DELETE_ROWS_V1,
    EventType.WRITE_ROWS_COMPRESSED: EventType.WRITE_ROWS,
    EventType.UPDATE_ROWS_COMPRESSED: EventType.UPDATE_ROWS,
    EventType.DELETE_ROWS_COMPRESSED: EventType.DELETE_ROWS,
}
_UPDATES: Final = frozenset((EventType.UPDATE_ROWS_V1, EventType.UPDATE_ROWS))
_V1: Final = frozenset((EventType.WRITE_ROWS_V1, EventType.UPDATE_ROWS_V1, EventType.DELETE_ROWS_V1))
_PAYLOAD: Final = EventType.TRANSACTION_PAYLOAD
_IS_COMPRESSED = table_of(_PAYLOAD, *_PLAIN_TYPE)
_ZSTD, _NONE = 0, 255


def expand(events: Events, bytes_max: int = EXPANDED_BYTES_MAX) -> Iterator[Events]:
    """Return the events with compressed ones expanded, in one part or several. The events of a payload get the
    payload's end in the file as their end.

    Raises:
        SourceUnavailable: compressed bytes that cannot be expanded.
        ConfigurationError: compressed bytes that would expand to more than `bytes_max`.
    """
    found = np.flatnonzero(_IS_COMPRESSED[events.type])
    if not len(found):
        yield events
        return
    parts: list[Events] = []
    size = begin = 0
    for at in found.tolist():
        if at > begin:
            parts.append(events.part(begin, at))
            size += parts[-1].bytes
        begin = at + 1
        for opened in _expand_event(events, at, bytes_max):
            if size and size + opened.bytes > PIECE_BYTES:
                yield joined_events(parts)
                parts, size = [], 0
            parts.append(opened)
            size += opened.bytes
    if begin < len(events):
        parts.append(events.part(begin, len(events)))
    yield joined_events(parts)


def _expand_event(events: Events, at: int, bytes_max: int) -> Iterator[Events]:
    event, reach = events.event_at(at), int(events.reach[at])
    if event[4] == _PAYLOAD:
        yield from _payload(event, reach, bytes_max)
        return
    plain = _decompress(event, bytes_max)
    yield _events(plain, [0], [len(plain)], reach)


def _decompress(event: bytes, bytes_max: int) -> bytes:
    """Return a MariaDB event in its uncompressed form."""
    kind = _PLAIN_TYPE[EventType(event[4])]
    begin = _compressed_at(event, kind)
    if begin >= len(event):
        raise protocol_error("a compressed event without content")
    mark = event[begin]
    size = mark & 7
    if (mark & 0xF8) != 0x80 or not 1 <= size <= 4 or begin + 1 + size > len(event):
        raise protocol_error("an event compressed in a way that is not known")
    length = int.from_bytes(event[begin + 1 : begin + 1 + size], "big")
    _check_size(length, bytes_max)
    content = _inflate(event[begin + 1 + size :], length)
    whole = begin + length
    head = event[:4] + bytes([kind]) + event[5:9] + struct.pack("<I", whole) + event[13:begin]
    return head + content


def _compressed_at(event: bytes, kind: EventType) -> int:
    """Return where the compressed part begins: a query's text, or the bytes after a row event's bitmaps."""
    if len(event) < HEADER + 13:
        raise protocol_error("a compressed event that ends early")
    if kind is EventType.QUERY:
        return HEADER + 13 + int.from_bytes(event[30:32], "little") + event[27] + 1
    at = HEADER + 8 + (0 if kind in _V1 else int.from_bytes(event[27:29], "little"))
    width, at = length_at(event, at)
    return at + (width + 7) // 8 * (2 if kind in _UPDATES else 1)


def _inflate(data: bytes, length: int) -> bytes:
    opener = zlib.decompressobj()
    try:
        out = opener.decompress(data, length + 1)
    except zlib.error:
        out = b""
    if len(out) != length:
        raise protocol_error("an event whose compressed content does not have the length in its header")
    return out


def _payload(event: bytes, reach: int, bytes_max: int) -> Iterator[Events]:
    """Return the events in a TRANSACTION_PAYLOAD event, in pieces."""
    fields, at = _fields(event)
    declared = fields.get(3, len(event))
    _check_size(declared, bytes_max)
    data = event[at : at + fields.get(1, len(event) - at)]
    if fields.get(2, _ZSTD) == _NONE:
        yield from _as_events([data], reach)
    elif fields.get(2, _ZSTD) == _ZSTD:
        yield from _as_events(_unpack_zstd(data, declared), reach)
    else:
        raise ConfigurationError(
            f"the binary log has a transaction compressed with method {fields[2]}, which cdcflow does not know",
            remedy="SET GLOBAL binlog_transaction_compression = OFF",
            runbook="binlog-unknown",
        )


def _fields(event: bytes) -> tuple[dict[int, int], int]:
    """Return the numbers before the payload (1 its size, 2 its compression, 3 its expanded size), and where the payload
    begins."""
    fields: dict[int, int] = {}
    at = HEADER
    while True:
        field, at = length_at(event, at)
        if not field:
            return fields, at
        size, at = length_at(event, at)
        fields[field] = length_at(event, at)[0]
        at += size


def _unpack_zstd(data: bytes, declared: int) -> Iterator[bytes]:
    total = 0
    try:
        with pa.CompressedInputStream(pa.BufferReader(data), "zstd") as stream:
            while piece := stream.read(PIECE_BYTES):
                total += len(piece)
                if total > declared:
                    break
                yield piece
    except OSError:
        raise protocol_error("a compressed transaction that cannot be opened") from None
    if total != declared:
        raise protocol_error("a compressed transaction that does not have the length in its header")


def _as_events(pieces: Iterator[bytes] | list[bytes], reach: int) -> Iterator[Events]:
    """Split bytes into events one after another, without packets and checksums."""
    data = b""
    for piece in pieces:
        data += piece
        starts: list[int] = []
        at = 0
        while at + HEADER <= len(data):
            size = int.from_bytes(data[at + 9 : at + 13], "little")
            if size < HEADER:
                raise protocol_error("a compressed transaction with an event that is too short")
            if at + size > len(data):
                break
            starts.append(at)
            at += size
        if starts:
            yield _events(data[:at], starts, [*starts[1:], at], reach)
            data = data[at:]
    if data:
        raise protocol_error("a compressed transaction that ends inside an event")


def _events(data: bytes, starts: list[int], ends: list[int], reach: int) -> Events:
    buffer = with_padding(data)
    start = np.array(starts, np.int64)
    return Events(
        buffer, start, np.array(ends, np.int64), buffer.bytes[start + 4], np.full(len(starts), reach, np.int64)
    )


def _check_size(size: int, bytes_max: int) -> None:
    if size > bytes_max:
        raise ConfigurationError(
            f"the binary log has an event of {size} bytes once it is decompressed; cdcflow decompresses at most "
            f"{bytes_max}",
            remedy="split the transaction, or SET GLOBAL binlog_transaction_compression = OFF (MariaDB: "
            "log_bin_compress = OFF), and read the tables again",
            runbook="binlog-unknown",
        )
