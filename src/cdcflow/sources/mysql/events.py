"""Parses events of the binary log one by one: what each type is, which ones are known, and their contents.

The formats are those of MySQL 8.0 to 9.x (its `libs/mysql/binlog/event`) and of MariaDB 10.11 and later (its
documentation's "Replication Protocol"). Every event that arrives must be listed here, or be flagged by the server as
ignorable; otherwise it stops the stream with an error that names it: an unknown event could hold rows.
"""

from __future__ import annotations

import enum
import struct
from dataclasses import dataclass
from typing import Final

import numpy as np

from cdcflow.errors import CdcflowError, ConfigurationError
from cdcflow.model.change import Int64s
from cdcflow.sources.mysql.errors import READ_ANEW, history_lost
from cdcflow.sources.mysql.gtids import Flavor
from cdcflow.sources.mysql.position import BinlogFile
from cdcflow.sources.mysql.statement_text import statement_text
from cdcflow.sources.mysql.status_variables import status_variables
from cdcflow.sources.mysql.wire import ARTIFICIAL, CHECKSUM, HEADER, IGNORABLE, Events, has_checksum, protocol_error


class EventType(enum.IntEnum):
    """Types of events; those of 160 and above are MariaDB's."""

    QUERY = 2
    STOP = 3
    ROTATE = 4
    INTVAR = 5
    APPEND_BLOCK = 9
    DELETE_FILE = 11
    RAND = 13
    USER_VAR = 14
    FORMAT_DESCRIPTION = 15
    XID = 16
    BEGIN_LOAD_QUERY = 17
    EXECUTE_LOAD_QUERY = 18
    TABLE_MAP = 19
    WRITE_ROWS_V1 = 23
    UPDATE_ROWS_V1 = 24
    DELETE_ROWS_V1 = 25
    INCIDENT = 26
    HEARTBEAT = 27
    IGNORABLE = 28
    ROWS_QUERY = 29
    WRITE_ROWS = 30
    UPDATE_ROWS = 31
    DELETE_ROWS = 32
    GTID = 33
    ANONYMOUS_GTID = 34
    PREVIOUS_GTIDS = 35
    TRANSACTION_CONTEXT = 36
    VIEW_CHANGE = 37
    XA_PREPARE = 38
    PARTIAL_UPDATE_ROWS = 39
    TRANSACTION_PAYLOAD = 40
    HEARTBEAT_V2 = 41
    GTID_TAGGED = 42
    ANNOTATE_ROWS = 160
    BINLOG_CHECKPOINT = 161
    MARIADB_GTID = 162
    GTID_LIST = 163
    START_ENCRYPTION = 164
    QUERY_COMPRESSED = 165
    WRITE_ROWS_COMPRESSED_V1 = 166
    UPDATE_ROWS_COMPRESSED_V1 = 167
    DELETE_ROWS_COMPRESSED_V1 = 168
    WRITE_ROWS_COMPRESSED = 169
    UPDATE_ROWS_COMPRESSED = 170
    DELETE_ROWS_COMPRESSED = 171
    PARTIAL_ROW_DATA = 172


_ROWS: Final = (
    EventType.WRITE_ROWS_V1,
    EventType.UPDATE_ROWS_V1,
    EventType.DELETE_ROWS_V1,
    EventType.WRITE_ROWS,
    EventType.UPDATE_ROWS,
    EventType.DELETE_ROWS,
    EventType.PARTIAL_UPDATE_ROWS,
)
OPENERS: Final = (EventType.GTID, EventType.ANONYMOUS_GTID, EventType.GTID_TAGGED, EventType.MARIADB_GTID)
"""Each group of events (a transaction, or a single statement) begins with one of these."""
BETWEEN_GROUPS: Final = (
    EventType.STOP,
    EventType.HEARTBEAT,
    EventType.HEARTBEAT_V2,
    EventType.PREVIOUS_GTIDS,
    EventType.BINLOG_CHECKPOINT,
    EventType.GTID_LIST,
    EventType.START_ENCRYPTION,
)
"""Events between groups, which contain nothing about rows."""


def table_of(*types: int) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Return a mask over all types of events, true for these."""
    out = np.zeros(256, np.bool_)
    out[list(types)] = True
    return out


IS_ROWS = table_of(*_ROWS)
IS_OPENER = table_of(*OPENERS)
IS_BETWEEN_GROUPS = table_of(*BETWEEN_GROUPS)
_MYSQL_ONLY = (33, 34, 35, 36, 37, 39, 40, 41, 42)
_KNOWN = {
    "mysql": table_of(*(t for t in EventType if t < EventType.ANNOTATE_ROWS)),
    "mariadb": table_of(*(t for t in EventType if t not in _MYSQL_ONLY)),
}


def check_types(events: Events, flavor: Flavor) -> Events:
    """Return these events without those that the server flags as ignorable.

    Raises:
        ConfigurationError: an event is of a type that cdcflow does not know (on this kind of server), or cannot read.
        HistoryLost: the server itself reports that its log has a hole here.
    """
    known = _KNOWN[flavor][events.type]
    if not known.all():
        known |= events.flags() & IGNORABLE != 0
        for at in np.flatnonzero(~known)[:1].tolist():
            raise ConfigurationError(
                f"the binary log has an event of type {int(events.type[at])} at byte {int(events.reach[at])}, which "
                f"cdcflow does not know on {flavor}; it may hold rows, so cdcflow stops before it",
                remedy="use a version of cdcflow that knows it, or turn off the server feature that writes it",
                runbook="binlog-unknown",
            )
        events = events.where(_KNOWN[flavor][events.type])
    if (events.type == EventType.INCIDENT).any():
        raise history_lost(
            "the server wrote an INCIDENT event into its binary log: it lost changes before it could log them",
            runbook="binlog-not-complete",
        )
    if (events.type == EventType.PARTIAL_ROW_DATA).any():
        raise ConfigurationError(
            "the binary log has a PARTIAL_ROW_DATA event, a row event that the server cut into fragments",
            remedy=f"run SET GLOBAL binlog_row_event_fragment_threshold = 1073741824, then {READ_ANEW}",
            runbook="binlog-not-complete",
        )
    return events


# ── where a file begins ───────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class FormatDescription:
    """The content of a FORMAT_DESCRIPTION event: which server wrote this file, whether its events end with a checksum,
    and when the server created the file (seconds since 1970)."""

    server_version: str
    checksum: bool
    began: int


_POST_HEADERS = {EventType.QUERY: (13,), EventType.TABLE_MAP: (8,), EventType.WRITE_ROWS_V1: (0, 8)}


def format_of(event: bytes) -> FormatDescription:
    """Parse a whole FORMAT_DESCRIPTION event. Raises ConfigurationError if the server is too old to be read."""
    if len(event) < HEADER + 57 + 20 + 1 + CHECKSUM:
        raise protocol_error("a FORMAT_DESCRIPTION event that ends early")
    version, header = struct.unpack_from("<H", event, HEADER)[0], event[HEADER + 56]
    server = event[HEADER + 2 : HEADER + 52].split(b"\0")[0].decode("ascii", "replace")
    sizes = event[HEADER + 57 : -1 - CHECKSUM]
    fits = all(len(sizes) >= t and sizes[t - 1] in allowed for t, allowed in _POST_HEADERS.items())
    if version != 4 or header != HEADER or not fits:
        raise ConfigurationError(
            f"the binary log was written by server {server} in a format that cdcflow does not read",
            remedy="use MySQL 8.0 or later, or MariaDB 10.11 or later",
            runbook="server-version",
        )
    algorithm = event[-1 - CHECKSUM]
    if algorithm > 1:
        raise ConfigurationError(
            f"the binary log of server {server} has checksums of unknown kind {algorithm}",
            remedy="SET GLOBAL binlog_checksum = CRC32",
            runbook="binlog-unknown",
        )
    # Servers that support checksums sign this event even in files without them; in files of other servers the field is
    # 0.
    if algorithm and not has_checksum(event):
        raise protocol_error("a FORMAT_DESCRIPTION event with a wrong checksum")
    return FormatDescription(server, bool(algorithm), int.from_bytes(event[:4], "little"))


@dataclass(frozen=True, slots=True)
class Rotate:
    """The file and the byte at which the next event begins. `made_up`: it is not an event of a file; the server only
    reports where it begins to read."""

    file: BinlogFile
    pos: int
    made_up: bool


def rotate_of(event: bytes, checksum: bool) -> Rotate:
    """Parse a whole ROTATE event.

    The event that the server makes up before a file's first event may have a checksum or not. A ROTATE event from a
    file has a checksum if the file's other events have one.
    """
    made_up = bool(struct.unpack_from("<H", event, 17)[0] & ARTIFICIAL) or event[13:17] == bytes(4)
    signed = has_checksum(event)
    if not signed and checksum and not made_up:
        raise protocol_error("a ROTATE event with a wrong checksum")
    body = event[HEADER : -CHECKSUM if signed else None]
    if len(body) < 9 or int.from_bytes(body[:8], "little") >= 1 << 40:
        raise protocol_error("a ROTATE event that names no position")
    try:
        return Rotate(BinlogFile(body[8:].decode()), int.from_bytes(body[:8], "little"), made_up)
    except UnicodeDecodeError:
        raise protocol_error("a ROTATE event with a malformed name, or a wrong checksum") from None


def length_at(data: bytes, at: int) -> tuple[int, int]:
    """Return a length-encoded number, and the offset after it."""
    if at < len(data):
        first = data[at]
        size = {252: 2, 253: 3, 254: 8}.get(first, 0)
        if first < 251:
            return first, at + 1
        if size and at + 1 + size <= len(data):
            return int.from_bytes(data[at + 1 : at + 1 + size], "little"), at + 1 + size
    raise protocol_error("a length that ends early")


# ── what is in a group ────────────────────────────────────────────────────────────────────────────────────────

Xid = tuple[int, bytes, bytes]
"""An XA transaction's name: format, global part, branch."""


@dataclass(frozen=True, slots=True)
class Query:
    """A statement in the log, the schema in which it was executed, and the bits of the session's sql_mode.

    `raw`, `is_single` and `is_readable` are those of its `StatementText`, `is_done` that of its `StatusVariables`.
    `is_of_session`: it uses what only its session has, such as a temporary table. `schemas`: see `StatusVariables`.
    """

    schema: str
    text: str
    sql_mode: int = 0
    flavor: Flavor = "mariadb"
    raw: bytes = b""
    is_single: bool = False
    is_readable: bool = True
    is_done: bool = True
    is_of_session: bool = False
    schemas: tuple[str, ...] | None = None


def query_texts(events: Events, at: Int64s) -> Int64s:
    """Return where the text of each of these QUERY events begins; it extends to the event's end."""
    start, end = events.start[at], events.end[at]
    if (end - start < HEADER + 13).any():
        raise protocol_error("a QUERY event that ends early")
    schema = events.buffer.bytes[start + 27].astype(np.int64)
    text = start + HEADER + 13 + events.buffer.le16(start + 30) + schema + 1
    if (text > end).any():
        raise protocol_error("a QUERY event that ends before its text")
    return text


_THREAD_SPECIFIC = 4
"""A flag in an event's header."""


def query_of(event: bytes, flavor: Flavor = "mariadb") -> Query:
    """Parse a QUERY or EXECUTE_LOAD_QUERY event.

    The schema is always in UTF-8, the statement in the character set that the event names; `readings` covers the other
    possibilities.
    """
    fixed = HEADER + (13 if event[4] == EventType.QUERY else 26)
    if len(event) < fixed:
        raise protocol_error("a QUERY event that ends early")
    schema = fixed + struct.unpack_from("<H", event, 30)[0]
    text = schema + event[27] + 1
    if text > len(event):
        raise protocol_error("a QUERY event that ends before its text")
    told = status_variables(event[fixed:schema])
    found = statement_text(event[text:], told.client)
    return Query(
        event[schema : text - 1].decode(errors="replace"),
        found.text,
        told.sql_mode,
        flavor,
        found.raw,
        found.is_single,
        found.is_readable,
        told.is_done,
        bool(event[17] & _THREAD_SPECIFIC),
        told.schemas,
    )


def prepared_xid(event: bytes) -> tuple[Xid, bool]:
    """Parse an XA_PREPARE event: return its transaction, and whether the transaction is committed at once (ONE
    PHASE)."""
    body = event[HEADER:]
    if len(body) < 13:
        raise protocol_error("an XA_PREPARE event that ends early")
    one_phase, form, first, second = struct.unpack_from("<BIII", body)
    if len(body) < 13 + first + second:
        raise protocol_error("an XA_PREPARE event that ends early")
    return (form, body[13 : 13 + first], body[13 + first : 13 + first + second]), bool(one_phase)


def said_error(packet: bytes) -> CdcflowError | tuple[int, str]:
    """Return the code and text of an error packet (without its header), or an error if the bytes are not an error
    packet."""
    if len(packet) < 3:
        return protocol_error("an error packet that ends early")
    code = struct.unpack_from("<H", packet, 1)[0]
    text = packet[9:] if packet[3:4] == b"#" else packet[3:]
    return int(code), text.decode(errors="replace")
