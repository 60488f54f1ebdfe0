"""Packets of a dump to the decoder: file by file, in parts whose events are checked and counted alike."""

from __future__ import annotations

from typing import Protocol

from cdcflow.errors import ConfigurationError, SourceUnavailable
from cdcflow.model.change import Int64s
from cdcflow.ports import StreamEvent
from cdcflow.sources.mysql import wire
from cdcflow.sources.mysql.events import format_of, rotate_of
from cdcflow.sources.mysql.gtids import Flavor
from cdcflow.sources.mysql.wire import Events, Little, SplitFunction, protocol_error


class EventDecoder(Protocol):
    """What becomes of the events (`BinlogDecoder`)."""

    def rotated(self, file: str, pos: int) -> list[StreamEvent]: ...

    def decode(self, events: Events) -> list[StreamEvent]: ...


class Packets:
    """Takes what arrives on one connection. `pos`: the byte of the file at which the server begins to send.

    `refusal` is the packet that ended the stream, once there was one: an error's, or the end of the log's.
    """

    def __init__(self, decoder: EventDecoder, *, flavor: Flavor, pos: int, split: SplitFunction = wire.split) -> None:
        self.refusal: bytes | None = None
        self._decoder = decoder
        self._flavor = flavor
        self._reach = pos
        self._checksum = False
        self._split = split

    def take(self, data: bytes, size: int) -> tuple[list[StreamEvent], int]:
        """Decode the whole events in `data[:size]`, which `buffers.PAD` bytes follow: what they complete, and how many
        bytes were taken. Raises as `BinlogDecoder.decode` does."""
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
                    raise _damaged(self._reach)
                case _:
                    raise protocol_error("a packet that holds no event")

    def _decode(self, buffer: Little, start: Int64s, end: Int64s, types: wire.Types) -> list[StreamEvent]:
        reach = wire.reaches(buffer, start, self._reach)
        self._reach = int(reach[-1])
        return self._decoder.decode(Events(buffer, start, end, types, reach))

    def _long(self, event: bytes) -> list[StreamEvent]:
        """An event of 16 MiB and more (hard case M28)."""
        end = len(event)
        if self._checksum:
            if not wire.has_checksum(event):
                raise _damaged(self._reach)
            end -= wire.CHECKSUM
        buffer = wire.padded(event)
        return self._decode(buffer, wire.places(0), wire.places(end), buffer.bytes[4:5])

    def _file_event(self, event: bytes) -> list[StreamEvent]:
        if event[4] == wire.ROTATE:
            rotate = rotate_of(event, self._checksum)
            self._reach = rotate.pos
            return self._decoder.rotated(rotate.file, rotate.pos)
        found = format_of(event)
        if ("MariaDB" in found.server_version) != (self._flavor == "mariadb"):
            raise ConfigurationError(
                f"source.kind is {self._flavor}, but the binary log was written by server {found.server_version}",
                remedy=f"set source.kind to {'mysql' if self._flavor == 'mariadb' else 'mariadb'}",
            )
        self._checksum = found.checksum
        self._reach = int(wire.reaches(wire.padded(event), wire.places(0), self._reach)[0])
        return []


def _damaged(reach: int) -> SourceUnavailable:
    return SourceUnavailable(
        f"reading the binary log: the event after byte {reach} does not fit its checksum, so it was damaged on the way "
        "or on the server's disk; it is read again"
    )
