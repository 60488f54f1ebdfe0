"""Binary logs that real servers wrote, stored as text together with what was decoded from them.

A recording has one line per event: its type's name and its bytes in base64, under the file's name; then a line
`decoded`, and what is decoded: one line per transaction, and one per row.
"""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass

from tests.support.mysql.binlog_bytes import packet
from tests.support.mysql.binlog_decoder import reader
from tests.support.postgres.wire import transactions

from cdcflow.capture.interleave.messages import Advanced, MarkSeen
from cdcflow.sources.mysql.events import EventType
from cdcflow.sources.mysql.gtids import Flavor

_MAGIC = b"\xfebin"


@dataclass(frozen=True)
class Recording:
    """A server's files with their events, and their meaning, in lines."""

    flavor: Flavor
    files: dict[str, list[bytes]]
    told: list[str]

    def dump(self) -> bytes:
        """Packets as the server would send them from the first file's beginning."""
        out = []
        for name, events in self.files.items():
            body = struct.pack("<Q", 4) + name.encode()
            out.append(packet(struct.pack("<IBIIIH", 0, 4, 1, 19 + len(body), 0, 0x20) + body))
            out += [packet(event) for event in events]
        return b"".join(out)

    def decoded(self, spool_bytes_max: int) -> list[str]:
        """The current decoders' output for the bytes."""
        first = next(iter(self.files))
        found = reader(self.flavor, f"{first}:4;", spool_bytes_max=spool_bytes_max)
        found.feed(self.dump())
        return lines(found.events, found.spools)

    def text(self) -> str:
        out: list[str] = [self.flavor]
        for name, events in self.files.items():
            out.append(f"file {name}")
            out += [f"{_name(event[4])} {base64.b64encode(event).decode()}" for event in events]
        return "\n".join([*out, "decoded", *self.told, ""])


def _name(kind: int) -> str:
    return EventType(kind).name if kind in set(EventType) else str(kind)


def read(text: str) -> Recording:
    flavor, *rest = text.splitlines()
    files: dict[str, list[bytes]] = {}
    at = rest.index("decoded")
    for line in rest[:at]:
        word, _, value = line.partition(" ")
        if word == "file":
            files[value] = []
        else:
            list(files.values())[-1].append(base64.b64decode(value))
    return Recording("mysql" if flavor == "mysql" else "mariadb", files, rest[at + 1 :])


def events_of(data: bytes) -> list[bytes]:
    """The events in a file of a server's binary log."""
    assert data.startswith(_MAGIC)
    out: list[bytes] = []
    at = len(_MAGIC)
    while at < len(data):
        size = int.from_bytes(data[at + 9 : at + 13], "little")
        event = data[at : at + size]
        if event[4] == EventType.FORMAT_DESCRIPTION:
            event = event[:17] + bytes([event[17] & 0xFE]) + event[18:]  # as in a dump: no longer in use
        out.append(event)
        at += size
    return out


def lines(events: Sequence[object], spools: object) -> list[str]:
    """Events as text. Marks and advances are distinguished from transactions, in their order."""
    out: list[str] = []
    for event in events:
        if isinstance(event, MarkSeen):
            out.append(f"mark {event.token} {event.position}")
        elif not isinstance(event, Advanced):
            for xid, position, rows in transactions([event], spools):  # type: ignore[list-item, arg-type]  # as it came
                out.append(f"transaction {xid} {position}")
                out += [f"  {table} {op} {json.dumps(row, default=_plain, sort_keys=True)}" for table, op, row in rows]
    return out


def _plain(value: object) -> str:
    return value.hex() if isinstance(value, bytes) else str(value)
