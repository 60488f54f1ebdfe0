"""Reads the heads of the records in the server's log, to find out what happened between two positions.

A server sends its log to any reader that may replicate, byte for byte (START_REPLICATION PHYSICAL). The log consists of
pages of 8 KiB, each with a head; a record begins at a multiple of 8 and may continue in the next pages. Heads have the
same layout in PostgreSQL 14 to 19 (access/xlog_internal.h, access/xlogrecord.h).
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Iterator
from dataclasses import dataclass

import psycopg
from psycopg import pq

from cdcflow.errors import SourceUnavailable
from cdcflow.sources.postgres.connection import Connector, map_error
from cdcflow.sources.postgres.lsn import Lsn

PAGE = 8192
_LONG_HEAD, _HEAD = 40, 24
_RECORD = struct.Struct("<IIQBBxxI")
"""Length, transaction, position of the record before (0: first), information, resource manager, checksum."""
_DATA = struct.Struct(">xQQq")
"""The head of a piece that the server sends: where it begins, the end of the log, the time."""
_XLOG, _CHECKPOINT_SHUTDOWN, _INFO_MASK = 0, 0x00, 0xF0


@dataclass(frozen=True, slots=True)
class WalRecord:
    """The head of a record that begins at `lsn`. `transaction`: the id of the transaction that wrote it, 0 if none did.
    `before`: where the record before it begins, 0 if the log begins with it."""

    lsn: Lsn
    transaction: int
    before: int
    manager: int
    information: int

    @property
    def is_shutdown(self) -> bool:
        """Whether this record is the checkpoint of an orderly shutdown, or the checkpoint with which a log begins."""
        return self.manager == _XLOG and self.information & _INFO_MASK == _CHECKPOINT_SHUTDOWN


def records(connector: Connector, begin: Lsn, end: Lsn, timeline: int) -> Iterator[WalRecord]:
    """Return the records from `begin`, where a segment begins, up to about `end`, which the server has written.

    Raises:
        SourceUnavailable: the server does not send this part of its log, or no longer has it.
        ValueError: the bytes are not laid out as described at the top of this module.
    """
    return parse_records(_log_bytes(connector, begin, end, timeline), begin)


def parse_records(data: bytes, begin: Lsn) -> Iterator[WalRecord]:
    """Return the records in a log's bytes, which begin at a page. An incomplete head at the end is skipped."""
    at = _LONG_HEAD
    while (head := _bytes_at(data, at, _RECORD.size)) is not None:
        length, transaction, before, information, manager, _ = _RECORD.unpack(head)
        if length < _RECORD.size:
            return  # zeros: nothing was written here yet
        yield WalRecord(begin + at, transaction, before, manager, information)
        at = _after(at, length)


def _bytes_at(data: bytes, at: int, length: int) -> bytes | None:
    """Return bytes of a record, without the heads of pages between them; None if the data ends before."""
    found = b""
    while len(found) < length:
        if at % PAGE == 0:
            at += _HEAD
        size = min(length - len(found), PAGE - at % PAGE)
        if at + size > len(data):
            return None
        found += data[at : at + size]
        at += size
    return found


def _after(at: int, length: int) -> int:
    """Return where the next record begins after one of `length` bytes at `at`."""
    while length > (room := PAGE - at % PAGE):
        length -= room
        at += room + _HEAD
    at = (at + length + 7) & ~7
    return at + _HEAD if at % PAGE == 0 else at


def _log_bytes(connector: Connector, begin: Lsn, end: Lsn, timeline: int) -> bytes:
    connection = connector.replicate()
    attempted = f"reading the log of {connector.address} from {begin}"
    try:
        return b"".join(_pieces(connection.pgconn, begin, end, timeline, attempted))
    except psycopg.Error as error:
        raise map_error(error, attempted) from None
    finally:
        with contextlib.suppress(psycopg.Error):
            connector.discard(connection)


def _pieces(connection: pq.abc.PGconn, begin: Lsn, end: Lsn, timeline: int, attempted: str) -> Iterator[bytes]:
    started = connection.exec_(f"START_REPLICATION PHYSICAL {begin} TIMELINE {timeline}".encode())
    if started.status != pq.ExecStatus.COPY_BOTH:
        raise SourceUnavailable(f"{attempted}: {started.get_error_message()}")
    reached = begin.value
    while reached < end.value:
        size, data = connection.get_copy_data(0)
        if size < 0:
            raise SourceUnavailable(f"{attempted}: the server ended at {Lsn(reached)}")
        piece = bytes(data)
        if piece[:1] == b"w":
            yield piece[_DATA.size :]
            reached += len(piece) - _DATA.size
