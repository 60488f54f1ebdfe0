"""One dump of a server's binary log: how to request it, how its packets become events, and what its end means.

A dump starts at a file and byte, or with the transactions that are not in a set of GTIDs. The session's variables are
those that the servers' own replicas set. cdcflow requests heartbeats, so that silence means a failure (hard case M60).
Checksums arrive as the files contain them.

The packets go to the decoder file by file, in parts of one file in which either all events have checksums or none do.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import pymysql

from cdcflow.capture.ports.stream import StreamEvent
from cdcflow.errors import CdcflowError, ConfigurationError, SourceUnavailable
from cdcflow.model.change import Int64s
from cdcflow.sources.engine.buffers import PAD
from cdcflow.sources.mysql import wire
from cdcflow.sources.mysql.connection import Connection, mapping_errors, query
from cdcflow.sources.mysql.errors import history_lost, map_error
from cdcflow.sources.mysql.events import format_of, rotate_of, said_error
from cdcflow.sources.mysql.gtids import Flavor, MysqlGtids
from cdcflow.sources.mysql.position import FIRST_EVENT, BinlogFile, BinlogPosition
from cdcflow.sources.mysql.sql import literal
from cdcflow.sources.mysql.wire import Events, Little, SplitFunction, protocol_error

# ── requesting the log ─────────────────────────────────────────────────────────────────────────────────────────

_COM_BINLOG_DUMP, _COM_BINLOG_DUMP_GTID = 0x12, 0x1E
_THROUGH_GTID = 0x04
_READING_FAILED = 1236
_READ_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Dump:
    """A request for the log after `position`, by file and byte, or `by_gtid` (then file and byte are ignored). The
    server distinguishes its readers by `server_id` and `replica` (a UUID); no other reader may have either."""

    flavor: Flavor
    position: BinlogPosition
    by_gtid: bool
    server_id: int
    replica: str
    heartbeat_s: float

    @property
    def start(self) -> tuple[BinlogFile, int]:
        """The file and byte at which the server begins to send.

        The command has 32 bits for the byte: beyond these, the file is read from its beginning, and transactions that
        were delivered are skipped (hard case M26).
        """
        start = self.position.start
        if self.by_gtid:
            return BinlogFile(""), FIRST_EVENT
        return start.file, start.pos if start.pos < 1 << 32 else FIRST_EVENT


def begin(connection: Connection, dump: Dump) -> None:
    """Prepare the session and send the command; after that the server only sends.

    Raises:
        SourceUnavailable, ConfigurationError: see `connection.mapping_errors`.
    """
    with mapping_errors("requesting the binary log"):
        query(connection, "SET " + ", ".join(f"@{name} = {value}" for name, value in _variables(dump).items()))
        command, text = _command(dump)
        connection._execute_command(command, text)  # pymysql has no public method for it


def _variables(dump: Dump) -> dict[str, str]:
    period = str(int(dump.heartbeat_s * 1e9))
    out = {"master_binlog_checksum": "@@GLOBAL.binlog_checksum", "master_heartbeat_period": period}
    if dump.flavor == "mysql":
        return out | {
            "source_binlog_checksum": "@@GLOBAL.binlog_checksum",
            "source_heartbeat_period": period,
            "replica_uuid": literal(dump.replica),
            "slave_uuid": literal(dump.replica),
        }
    out["mariadb_slave_capability"] = "4"
    if dump.by_gtid:
        out["slave_connect_state"] = literal(dump.position.start.gtids)
        out["slave_gtid_strict_mode"] = out["slave_gtid_ignore_duplicates"] = "0"
    return out


def _command(dump: Dump) -> tuple[int, bytes]:
    file, pos = dump.start
    if not dump.by_gtid or dump.flavor == "mariadb":
        return _COM_BINLOG_DUMP, struct.pack("<IHI", pos, 0, dump.server_id) + file.name.encode()
    known = encode_gtids(MysqlGtids.parse(dump.position.start.gtids))
    head = struct.pack("<HII", _THROUGH_GTID, dump.server_id, 0)
    return _COM_BINLOG_DUMP_GTID, head + struct.pack("<QI", FIRST_EVENT, len(known)) + known


def encode_gtids(gtids: MysqlGtids) -> bytes:
    """Encode a set for the command. Intervals end exclusively; tags are only present if the set has any."""
    sources = list(gtids.intervals())
    tagged = any(":" in source for source, _ in sources)
    out = [struct.pack("<Q", 1 << 56 | len(sources) << 8 | 1 if tagged else len(sources))]
    for source, intervals in sources:
        server, _, tag = source.partition(":")
        out.append(uuid.UUID(server).bytes)
        if tagged:
            out.append(bytes([len(tag) << 1]) + tag.encode())
        out.append(struct.pack("<Q", len(intervals)))
        out += [struct.pack("<QQ", first, last + 1) for first, last in intervals]
    return b"".join(out)


# ── packets ────────────────────────────────────────────────────────────────────────────────────────────────────


class EventDecoder(Protocol):
    """Receives the events of a dump (`BinlogDecoder`)."""

    def rotate(self, file: BinlogFile, pos: int) -> list[StreamEvent]: ...

    def file_began(self, seconds: int) -> None: ...

    def decode(self, events: Events) -> list[StreamEvent]: ...


class Packets:
    """Takes the data that arrives on one connection. `pos`: the byte of the file at which the server begins to send.

    `refusal` is the packet that ended the stream, once one did: an error packet, or the one at the end of the log.
    """

    def __init__(self, decoder: EventDecoder, *, flavor: Flavor, pos: int, split: SplitFunction = wire.split) -> None:
        self.refusal: bytes | None = None
        self._decoder = decoder
        self._flavor = flavor
        self._reach = pos
        self._checksum = False
        self._split = split

    def take(self, data: bytes, size: int) -> tuple[list[StreamEvent], int]:
        """Decode the whole events in `data[:size]`, which is followed by `buffers.PAD` bytes. Return the events that
        they complete, and how many bytes were taken.

        Raises as `BinlogDecoder.decode` does.
        """
        out: list[StreamEvent] = []
        at = 0
        while True:
            found = self._split(data, at, size, self._checksum)
            at = found.reached
            count = len(found.start) - (found.state == wire.FILE_EVENT)
            if count:
                out += self._decode(Little(data), found.start[:count], found.end[:count], found.type[:count])
            match found.state:
                case wire.FILE_EVENT:
                    out += self._file_event(data[int(found.start[-1]) : int(found.end[-1])])
                case wire.LONG_EVENT:
                    whole = wire.long_event(data, at, size)
                    if whole is None:
                        return out, at
                    out += self._long(whole[0])
                    at = whole[1]
                case wire.NEEDS_MORE:
                    return out, at
                case wire.ENDED | wire.REFUSED:
                    self.refusal = data[at + 4 : at + 4 + int.from_bytes(data[at : at + 3], "little")]
                    return out, at
                case wire.DAMAGED:
                    raise _checksum_error(self._reach)
                case _:
                    raise protocol_error("a packet that holds no event")

    def _decode(self, buffer: Little, start: Int64s, end: Int64s, types: wire.Types) -> list[StreamEvent]:
        reach = wire.reaches(buffer, start, self._reach)
        self._reach = int(reach[-1])
        return self._decoder.decode(Events(buffer, start, end, types, reach))

    def _long(self, event: bytes) -> list[StreamEvent]:
        """Decode an event of 16 MiB or more (hard case M28)."""
        end = len(event)
        if self._checksum:
            if not wire.has_checksum(event):
                raise _checksum_error(self._reach)
            end -= wire.CHECKSUM
        buffer = wire.with_padding(event)
        return self._decode(buffer, wire.offsets(0), wire.offsets(end), buffer.bytes[4:5])

    def _file_event(self, event: bytes) -> list[StreamEvent]:
        if event[4] == wire.ROTATE:
            rotate = rotate_of(event, self._checksum)
            self._reach = rotate.pos
            return self._decoder.rotate(rotate.file, rotate.pos)
        found = format_of(event)
        if ("MariaDB" in found.server_version) != (self._flavor == "mariadb"):
            raise ConfigurationError(
                f"source.kind is {self._flavor}, but the binary log was written by server {found.server_version}",
                remedy=f"set source.kind to {'mysql' if self._flavor == 'mariadb' else 'mariadb'}",
                runbook="server-version",
            )
        self._checksum = found.checksum
        self._decoder.file_began(found.began)
        self._reach = int(wire.reaches(wire.with_padding(event), wire.offsets(0), self._reach)[0])
        return []


def _checksum_error(reach: int) -> SourceUnavailable:
    return SourceUnavailable(
        f"reading the binary log: the event after byte {reach} does not fit its checksum, so it was damaged on "
        f"the way or on the server's disk; cdcflow reads it again"
    )


# ── the end ────────────────────────────────────────────────────────────────────────────────────────────────────


class ServerIdConflicts:
    """Counts how often the server ended cdcflow's stream because another reader connected with the same server_id. The
    source keeps it across its streams, since only repetition is significant: the first time, the other reader may be an
    earlier connection of cdcflow."""

    TIMES_MAX = 3

    def __init__(self) -> None:
        self._times = 0

    def another(self, dump: Dump, said: str) -> CdcflowError:
        """Count a conflict, and return the error for it: after `TIMES_MAX` conflicts one that stops the capture, since
        otherwise the two readers would disconnect each other indefinitely (M29)."""
        self._times += 1
        if self._times < self.TIMES_MAX:
            return SourceUnavailable(f"reading the binary log: {said}")
        return ConfigurationError(
            f"reading the binary log: another reader with server_id {dump.server_id} keeps connecting, and the "
            f"server disconnects one for the other",
            remedy="set source.server_id to a number that no replica and no other reader of this server has",
            runbook="server-id-taken",
        )

    def reset(self) -> None:
        """Forget the conflicts, because the stream has run for long enough."""
        self._times = 0


def refusal_of(packet: bytes, dump: Dump, conflicts: ServerIdConflicts, account: str = "") -> CdcflowError:
    """Return the error for the packet that ended the stream. `account`: as for `map_error`."""
    if packet[:1] == b"\xfe":
        return SourceUnavailable("reading the binary log: the server ended the stream, as it does when it shuts down")
    found = said_error(packet)
    if isinstance(found, CdcflowError):
        return found
    code, text = found
    said = " ".join(text.split())
    if "with the same server_uuid" in said or "with the same server_id" in said:
        return conflicts.another(dump, said)
    if code != _READING_FAILED:
        return map_error(pymysql.OperationalError(code, said), "reading the binary log", account)
    if "max_allowed_packet" in said:
        return ConfigurationError(
            f"reading the binary log: {said}",
            remedy="SET GLOBAL max_allowed_packet = 1073741824, then start again",
            runbook="binlog-unknown",
        )
    return history_lost(
        f"reading the binary log after {dump.position.text[:200]}: the server reports: {said}", runbook="binlog-purged"
    )


# ── reading a part of the log ──────────────────────────────────────────────────────────────────────────────────


def scan(
    connection: Connection, dump: Dump, decoder: EventDecoder, is_done: Callable[[], bool], account: str = ""
) -> None:
    """Pass the events of a dump to `decoder` until `is_done`. The connection cannot be used afterwards.

    Raises the errors of a stream if the server refuses, or ends the dump, before that.
    """
    begin(connection, dump)
    packets = Packets(decoder, flavor=dump.flavor, pos=dump.start[1])
    left = b""
    while not is_done() and packets.refusal is None:
        with mapping_errors("reading the binary log"):
            left += _read(connection)
        _, taken = packets.take(left + bytes(PAD), len(left))
        left = left[taken:]
    if packets.refusal is not None and not is_done():
        raise refusal_of(packets.refusal, dump, ServerIdConflicts(), account)


def _read(connection: Connection) -> bytes:
    try:
        found: bytes = connection._rfile.read1(_READ_BYTES)  # pymysql has no public method for it
    except OSError as error:
        raise pymysql.err.OperationalError(2013, f"Lost connection while the binary log was read ({error})") from None
    if not found:
        raise pymysql.err.OperationalError(2013, "Lost connection while the binary log was read")
    return found
