"""The messages between a writer and its peers: a head of 32 bytes, a file's name, a payload. Pure.

A request that changes a file names it by its path in the log's folder. Bytes to append carry the size that the file has
before them, so that a message that was lost or doubled is detected instead of applied.
"""

from __future__ import annotations

import enum
import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cdcflow.errors import ConfigurationError, InvariantViolated

VERSION = 1
HEAD = struct.Struct("<4sBBHIQQI")  # magic, kind, version, bytes of name, bytes of payload, epoch, number, zeros
PAYLOAD_BYTES_MAX = 1 << 30
_MAGIC = b"cdcq"


class MessageKind(enum.IntEnum):
    # requests with an answer (OK or REFUSED)
    STATE = 1
    FOUND = 2
    FENCE = 3
    REPORT = 4
    LIST = 5
    FETCH = 6
    INSTALL = 7
    INSTALLED = 8
    # changes of files, without an answer
    CONTENT = 16
    CREATE = 17
    APPEND = 18
    TRUNCATE = 19
    RENAME = 20
    UNLINK = 21
    SYNC = 22
    # answers
    OK = 32
    REFUSED = 33
    DURABLE = 34


@dataclass(frozen=True, slots=True)
class Head:
    """The head of a message. `number`: the number of a sync (SYNC, DURABLE), a file's new size (TRUNCATE), or its
    size before the bytes (APPEND)."""

    kind: MessageKind
    name_bytes: int
    payload_bytes: int
    epoch: int
    number: int


def encode(kind: MessageKind, name: str = "", payload: bytes = b"", *, epoch: int = 0, number: int = 0) -> bytes:
    """Encode a message up to its payload; the payload follows it unchanged."""
    text = name.encode()
    return HEAD.pack(_MAGIC, kind, VERSION, len(text), len(payload), epoch, number, 0) + text


def decode(head: bytes | memoryview, name: str) -> Head:
    """Decode the head of a message. `name`: the other side, for errors.

    Raises:
        ConfigurationError: it speaks another version.
        InvariantViolated: it does not speak this protocol.
    """
    magic, kind, version, name_bytes, payload_bytes, epoch, number, _ = HEAD.unpack(head)
    if magic != _MAGIC or payload_bytes > PAYLOAD_BYTES_MAX:
        raise InvariantViolated(f"receiving from {name}: it does not speak cdcflow's protocol of journal peers")
    if version != VERSION:
        raise ConfigurationError(
            f"receiving from {name}: it speaks version {version} of the protocol of journal peers, this cdcflow "
            f"{VERSION}",
            remedy="install the same cdcflow on the peers and on the daemon's machine",
            runbook="newer-format",
        )
    return Head(MessageKind(kind), name_bytes, payload_bytes, epoch, number)


def as_json(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
