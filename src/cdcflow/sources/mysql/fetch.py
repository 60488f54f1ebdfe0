"""Fetches large results in bulk: a query's row packets as bytes, read from the socket as they arrive, never a tuple per
row.

    packet   length(3) number(1) │ payload         a row: one packet; FE and less than 9 bytes: the end; FF: an error

A row of 16 MiB and more spans several packets, all but the last with the length FFFFFF; such rows are joined.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

import numpy as np
import pymysql
from pymysql.constants import COMMAND
from pymysql.protocol import MysqlPacket

from cdcflow.errors import ConfigurationError
from cdcflow.model.change import Int64s
from cdcflow.sources.engine.buffers import PAD, protocol_error
from cdcflow.sources.mysql.connection import Connection
from cdcflow.sources.mysql.decoders import row_packets
from cdcflow.sources.mysql.results import PACKET_HEADER, PACKET_MAX

READ_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Fetched:
    """Rows of a result: row i is `data[start[i]:end[i]]`, and `buffers.PAD` bytes follow the last one.

    `is_whole`: these are all rows; otherwise there may be more, and the connection is closed.
    """

    data: bytes
    start: Int64s
    end: Int64s
    is_whole: bool = True

    def __len__(self) -> int:
        return len(self.start)


def fetch(connection: Connection, statement: str, bytes_max: int | None = None) -> Fetched:
    """Run a SELECT and fetch all of its rows, or at least one and then as many as fit into about `bytes_max` bytes.
    Raises pymysql's errors unchanged.

    Raises:
        SourceUnavailable: the bytes cannot be an answer; the connection is closed.
    """
    try:
        connection._execute_command(COMMAND.COM_QUERY, statement)
        _read_columns(connection)
        return _ResultPackets(connection).take(bytes_max)
    except pymysql.Error:
        raise
    except BaseException:
        # Half an answer is still in transit: this connection must not be used again.
        with contextlib.suppress(Exception):
            connection._force_close()
        raise


def _read_columns(connection: Connection) -> None:
    first: MysqlPacket = connection._read_packet()
    if first.is_load_local_packet():
        # A server that requests a file of this machine must not be trusted (S05).
        raise ConfigurationError(
            "the server asked for a file of this machine in answer to a SELECT", runbook="server-asks-for-files"
        )
    if first.is_ok_packet():
        raise protocol_error("an answer without rows to a SELECT")
    for _ in range(first.read_length_encoded_integer()):
        connection._read_packet()
    if not connection._read_packet().is_eof_packet():
        raise protocol_error("a result set without an end of its columns")


class _ResultPackets:
    """The packets of one result set through its end."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._pieces: list[bytes] = []
        self._starts: list[Int64s] = []
        self._ends: list[Int64s] = []
        self._size = 0

    def take(self, bytes_max: int | None) -> Fetched:
        left = b""
        while bytes_max is None or self._size < bytes_max:
            # The remainder is less than one packet. A long packet is read to its end before it is parsed again.
            packet = int.from_bytes(left[:3], "little") + PACKET_HEADER
            left = self._take(self._with(left, packet) if packet > READ_BYTES else left + self._read(READ_BYTES))
            while left[:3] == b"\xff\xff\xff":
                left = self._take_long(left)
            if self._is_last_packet(left):
                return self._take_fetched(is_whole=True)
        self._connection._force_close()
        return self._take_fetched(is_whole=False)

    def _take_fetched(self, *, is_whole: bool) -> Fetched:
        joined = b"".join([*self._pieces, bytes(PAD)])
        return Fetched(joined, np.concatenate(self._starts), np.concatenate(self._ends), is_whole)

    def _take(self, data: bytes) -> bytes:
        """Keep the rows in `data`; returns the remaining bytes."""
        found = row_packets(data)
        self._keep(data[: found.reached], found.start, found.end)
        return data[found.reached :]

    def _take_long(self, data: bytes) -> bytes:
        """Keep the row whose packets begin `data`, reading the rest of it; returns the bytes after it."""
        payloads: list[bytes] = []
        at = 0
        while not payloads or len(payloads[-1]) == PACKET_MAX:
            data = self._with(data, at + PACKET_HEADER)
            length = int.from_bytes(data[at : at + 3], "little")
            data = self._with(data, at + PACKET_HEADER + length)
            payloads.append(data[at + PACKET_HEADER : at + PACKET_HEADER + length])
            at += PACKET_HEADER + length
        row = b"".join(payloads)
        self._keep(row, np.zeros(1, np.int64), np.full(1, len(row), np.int64))
        return self._take(data[at:])

    def _keep(self, piece: bytes, start: Int64s, end: Int64s) -> None:
        self._pieces.append(piece)
        self._starts.append(start + self._size)
        self._ends.append(end + self._size)
        self._size += len(piece)

    def _is_last_packet(self, left: bytes) -> bool:
        """Whether `left` is the packet that ends the result. Raises the error that ends it."""
        length = int.from_bytes(left[:3], "little")
        if len(left) <= PACKET_HEADER or len(left) < PACKET_HEADER + length or left[PACKET_HEADER] < 0xFE:
            return False
        if len(left) > PACKET_HEADER + length:
            raise protocol_error("bytes after the end of a result set")
        self._connection._next_seq_id = (left[3] + 1) & 0xFF
        if left[PACKET_HEADER] == 0xFF:
            MysqlPacket(left[PACKET_HEADER:], "utf8").raise_for_error()
        return True

    def _with(self, data: bytes, size: int) -> bytes:
        """Return `data`, extended from the socket until it has at least this many bytes."""
        pieces, have = [data], len(data)
        while have < size:
            pieces.append(self._read(size - have))
            have += len(pieces[-1])
        return b"".join(pieces) if len(pieces) > 1 else data

    def _read(self, size: int) -> bytes:
        try:
            arrived: bytes = self._connection._rfile.read1(size)
        except OSError as error:
            raise _connection_lost(self._connection, str(error)) from None
        if not arrived:
            raise _connection_lost(self._connection, "the server closed it")
        return arrived


def _connection_lost(connection: Connection, why: str) -> pymysql.Error:
    connection._force_close()
    return pymysql.err.OperationalError(2013, f"Lost connection while rows were read ({why})")
