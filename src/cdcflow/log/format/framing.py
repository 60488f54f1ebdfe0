"""Files of checksummed frames: the format that journals and spools share.

    ┌────────────┬───────┬───────┬───────┬─ ─ ─
    │ header     │ frame │ frame │ frame │          every part begins at a multiple of 8 bytes
    └────────────┴───────┴───────┴───────┴─ ─ ─
      JSON: whose   magic+kind │ length │ sequence │ crc │ payload │ padding

A length alone proves nothing after a crash: a file can have its full length and hold zeros, or the blocks of a file
deleted last year. So every frame has a checksum over its head and payload, and the checksum starts from the header's
own, which covers the log, the epoch and the first offset. A frame of another file, of another epoch, or at another
position in the sequence does not pass.
"""

from __future__ import annotations

import enum
import json
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO, NamedTuple

from cdcflow.errors import ConfigurationError, InvariantViolated
from cdcflow.model.checksum import crc32

FORMAT_VERSION = 3
OLDER_VERSIONS = (2,)
"""Older format versions that can be read, too. Version 2 has no frames of kind FILE."""
MAGIC = b"cdcflow\n"
FRAME_BYTES_MAX = 1 << 30
HEADER_BYTES_MAX = 64 << 20

_HEADER = struct.Struct("<8sHHI")  # magic, format version, kind of file, bytes of JSON
_FRAME = struct.Struct("<3sBIII")  # magic, kind, bytes of payload, sequence, crc
_CRC = struct.Struct("<I")
_FRAME_MAGIC = b"\xcdcf"
_PADDING = tuple(b"\0" * n for n in range(8))


Part = bytes | memoryview
"""A piece of a payload, in memory."""


class FileKind(enum.IntEnum):
    JOURNAL = 1
    SPOOL = 2


class FrameKind(enum.IntEnum):
    SCHEMA = 1
    ROWS = 2
    TRANSACTIONS = 3
    ATTACH = 4
    CUT = 5
    PIECE = 6
    PROGRESS = 7
    FILE = 8


_KIND_OF = {int(kind): kind for kind in FrameKind}


class Damaged(Exception):
    """The error for a frame that is not whole. `reason`: "torn" if the file ends inside the frame, otherwise
    "checksum". Never leaves this package."""

    def __init__(self, at: int, reason: str) -> None:
        super().__init__(f"{reason} at byte {at}")
        self.at = at
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Header:
    """The header of a file: `value` is its JSON, `seed` starts every frame's checksum, `end` is where frames begin."""

    value: dict[str, Any]
    seed: int
    end: int


class Frame(NamedTuple):
    """One whole frame. `at` and `end` are its bounds in the file, padding included."""

    kind: FrameKind
    payload: bytes
    at: int
    end: int


def other_version(name: str, found: str, version: int, ours: int) -> ConfigurationError:
    """Return the error for a file whose version (named as `found`) differs from `ours`, so that it cannot be read."""
    if version > ours:
        text, remedy = f"a newer cdcflow wrote it ({found}, this one reads {ours})", "install the newer cdcflow again"
    else:
        text = f"an older cdcflow wrote it ({found}, this one reads {ours})"
        remedy = "read it with the version that wrote it, or begin a new log with a backfill"
    return ConfigurationError(f"reading {name}: {text}", remedy=remedy, runbook="newer-format")


def encode_header(kind: FileKind, value: dict[str, object]) -> tuple[bytes, int]:
    """Return a file's header, and the seed for the frames that follow it."""
    text = json.dumps(value, separators=(",", ":")).encode()
    head = _HEADER.pack(MAGIC, FORMAT_VERSION, kind, len(text)) + text
    seed = crc32(head)
    head += _CRC.pack(seed)
    return head + _PADDING[-len(head) % 8], seed


def read_header(file: BinaryIO, kind: FileKind, name: str) -> Header:
    """Read the header of a file whose position is at its start.

    Raises:
        ConfigurationError: another version of cdcflow wrote it.
        Damaged: it is not whole.
    """
    head = file.read(_HEADER.size)
    if len(head) < _HEADER.size:
        raise Damaged(0, "torn")
    magic, version, found, length = _HEADER.unpack(head)
    if magic != MAGIC or length > HEADER_BYTES_MAX:
        raise Damaged(0, "checksum")
    if version not in (FORMAT_VERSION, *OLDER_VERSIONS):
        raise other_version(name, f"format {version}", version, FORMAT_VERSION)
    rest = file.read(length + _CRC.size)
    if len(rest) < length + _CRC.size:
        raise Damaged(0, "torn")
    (seed,) = _CRC.unpack_from(rest, length)
    if crc32(rest[:length], crc32(head)) != seed or found != kind:
        raise Damaged(0, "checksum")
    size = _HEADER.size + length + _CRC.size
    file.read(-size % 8)
    return Header(json.loads(rest[:length]), seed, size + (-size % 8))


def frame_bytes(length: int) -> int:
    """Return the bytes of a frame with a payload of this length. Raises InvariantViolated if the payload exceeds the
    limit for a frame."""
    if length > FRAME_BYTES_MAX:
        raise InvariantViolated(f"framing {length} bytes: the most is {FRAME_BYTES_MAX}")
    return _FRAME.size + length + (-length % 8)


class Framer:
    """Wraps payloads in frames, one after another. Each file that is written has one."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._sequence = 0

    def frame(self, kind: FrameKind, *parts: Part) -> list[Part]:
        """Return one frame around `parts`, which are not copied."""
        length = sum(map(len, parts))
        crc = crc32(_FRAME.pack(_FRAME_MAGIC, kind, length, self._sequence, 0), self._seed)
        for part in parts:
            crc = crc32(part, crc)
        head = _FRAME.pack(_FRAME_MAGIC, kind, length, self._sequence, crc)
        self._sequence += 1
        pad = -length % 8
        return [head, *parts, _PADDING[pad]] if pad else [head, *parts]


def frames(
    file: BinaryIO, header: Header, *, end: int | None = None, skip: Iterable[FrameKind] = (), sequence: int = 0
) -> Iterator[Frame]:
    """Yield the frames of a file whose header has just been read, up to byte `end` (`None`: the end of the file).

    Frames of the kinds in `skip` have an empty payload and are not verified. If the file ends between two frames, the
    iteration ends.

    Raises:
        Damaged: at the first frame that is not whole.
    """
    skipped = frozenset(skip)
    at = header.end
    while end is None or at < end:
        head = file.read(_FRAME.size)
        if not head:
            break
        if len(head) < _FRAME.size:
            raise Damaged(at, "torn")
        magic, kind, length, number, crc = _FRAME.unpack(head)
        if magic != _FRAME_MAGIC or number != sequence or length > FRAME_BYTES_MAX or kind not in _KIND_OF:
            raise Damaged(at, "checksum")
        pad = -length % 8
        whole = _FRAME.size + length + pad
        if end is not None and at + whole > end:
            raise Damaged(at, "torn")
        if kind in skipped:
            file.seek(at + whole)
            yield Frame(_KIND_OF[kind], b"", at, at + whole)
        else:
            payload = file.read(length)
            if len(payload) < length:
                raise Damaged(at, "torn")
            if _checksum(head, payload, header.seed) != crc:
                raise Damaged(at, "checksum")
            if len(file.read(pad)) < pad:
                raise Damaged(at, "torn")
            yield Frame(_KIND_OF[kind], payload, at, at + whole)
        at += whole
        sequence += 1


def frames_beyond(file: BinaryIO, header: Header, start: int, kind: FrameKind) -> Iterator[Frame]:
    """Yield whole frames of one kind anywhere after byte `start`, whatever is between them. They are used to judge
    damage."""
    needle = _FRAME_MAGIC + bytes([kind])
    at = start + (-start % 8)
    window = b""
    base = at
    file.seek(at)
    while block := file.read(1 << 20):
        window += block
        found = window.find(needle)
        while found >= 0:
            resume = file.tell()
            whole = _whole_at(file, header, base + found) if (base + found) % 8 == 0 else None
            file.seek(resume)
            if whole is not None:
                yield whole
                file.seek(resume)
            found = window.find(needle, found + 1)
        passed = max(0, len(window) - len(needle) + 1)
        base += passed
        window = window[passed:]


def _whole_at(file: BinaryIO, header: Header, at: int) -> Frame | None:
    file.seek(at)
    head = file.read(_FRAME.size)
    if len(head) < _FRAME.size:
        return None
    _, kind, length, _, crc = _FRAME.unpack(head)
    if length > FRAME_BYTES_MAX or kind not in _KIND_OF:
        return None
    payload = file.read(length)
    if len(payload) < length or _checksum(head, payload, header.seed) != crc:
        return None
    return Frame(FrameKind(kind), payload, at, at + _FRAME.size + length + (-length % 8))


def _checksum(head: bytes, payload: bytes, seed: int) -> int:
    return crc32(payload, crc32(head[: -_CRC.size] + bytes(_CRC.size), seed))
