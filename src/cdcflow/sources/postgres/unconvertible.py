"""Finds the table of a text that the server could not convert to UTF-8, once the server has ended a stream for it.

The server converts a text before it sends it, and its error names no table. But it has the position of the change in
the server's log, and a session that requests no conversion gets the same changes. The change at that position has the
number of its table. Nothing else that this session receives is used: without the conversion, the meaning of its texts
is unknown.
"""

from __future__ import annotations

import contextlib
import re
import time

import psycopg

from cdcflow.errors import CdcflowError, ConfigurationError
from cdcflow.model.table import TableId
from cdcflow.sources.engine.descriptors import READABLE, wait_until
from cdcflow.sources.postgres.catalog_entries import relid
from cdcflow.sources.postgres.connection import Connector, map_error
from cdcflow.sources.postgres.copy_reader import CopyReader, begin_copy
from cdcflow.sources.postgres.lsn import Lsn

SQLSTATES = ("22021", "22P05")
READ_MAX_S = 20.0
_BYTES_MAX, _MESSAGES_MAX = 8 << 20, 20_000
_KIND = 25  # where an XLogData's own message begins: 'w' and three int64
_POSITION = re.compile(r"\b[0-9A-F]{1,8}/[0-9A-F]{1,8}\b")
_ROWS, _START, _STOP = b"IUD", ord("S"), ord("E")


def unconvertible(connector: Connector, command: str, error: psycopg.Error, attempted: str) -> CdcflowError:
    """Return the error for a stream that the server ended because it cannot convert a text. `command` began the
    stream."""
    found = map_error(error, attempted)
    table = _changed_table(connector, command, error)
    if table is None:
        return found
    return ConfigurationError(
        f"{attempted}: the server cannot send a text of table {table} as UTF-8, because it has bytes that are no "
        f"character in the encoding of its database (SQLSTATE {error.sqlstate}), and ends the stream of all tables",
        remedy=found.remedy,
        runbook=found.runbook,
    )


def _changed_table(connector: Connector, command: str, error: psycopg.Error) -> TableId | None:
    """Return the table of the change in which the server's error occurred; None if it cannot be determined."""
    positions = _POSITION.findall(error.diag.context or "")
    if not positions:
        return None
    with contextlib.suppress(psycopg.Error, CdcflowError):
        oid = _changed_relation(connector, command, Lsn.parse(positions[-1]))
        connection = None if oid is None else connector.connect("catalog", statement_timeout="10s")
        if connection is not None and oid is not None:
            try:
                found = relid(connection, oid)
                return None if found is None else found.id
            finally:
                connector.discard(connection)
    return None


def _changed_relation(connector: Connector, command: str, position: Lsn) -> int | None:
    """Return the oid of the relation of the row message at this position; None if it does not arrive in time."""
    deadline = time.monotonic() + READ_MAX_S
    connection = connector.replicate()
    try:
        connection.execute(b"SET client_encoding = 'SQL_ASCII'")
        while True:
            try:
                begin_copy(connection.pgconn, command)
                break
            except psycopg.errors.ObjectInUse:  # the ended stream still holds the slot
                if time.monotonic() > deadline:
                    return None
                time.sleep(0.1)
        reader = CopyReader(connection.pgconn, "stream")
        is_in_block = is_ended = False
        while not is_ended and time.monotonic() < deadline:
            taken = reader.take(_BYTES_MAX, _MESSAGES_MAX)
            is_ended = taken.ended
            begin = 0
            for size in taken.messages.lengths.tolist():
                message = taken.messages.data[begin : begin + size]
                begin += size
                kind = message[_KIND] if size > _KIND else 0
                if kind in (_START, _STOP):
                    is_in_block = kind == _START
                elif kind in _ROWS and int.from_bytes(message[1:9]) == position.value:
                    at = _KIND + (5 if is_in_block else 1)
                    return int.from_bytes(message[at : at + 4])
            if not (taken.more or is_ended):
                wait_until(READABLE, connection.pgconn.socket, 1.0)
    finally:
        connector.discard(connection)
    return None
