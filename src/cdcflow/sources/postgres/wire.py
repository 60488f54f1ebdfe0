"""PostgreSQL's replication messages in one buffer: where each begins and ends, never what it means."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from cdcflow.errors import InvariantViolated
from cdcflow.model.change import Int64s
from cdcflow.sources.buffers import PAD, Buffer, Bytes, fixed_text, protocol_error

EPOCH_US = 946_684_800_000_000  # 2000-01-01, where PostgreSQL begins to count, in microseconds since 1970
EPOCH_DAYS = 10_957
_HEADER = 25  # XLogData: 'w', start, end and clock
_HEX = np.frombuffer(b"0123456789ABCDEF", np.uint8)


@dataclass(frozen=True, slots=True)
class Frames:
    """Messages in one buffer: `kind` is each one's type byte, which stands at `start`; it ends before `end`.

    `seen` has a bit for each type that may be among them: the letter less 64, and 63 for what is no such letter.
    """

    buffer: Buffer
    start: Int64s
    end: Int64s
    kind: Bytes
    seen: int = -1

    def __len__(self) -> int:
        return len(self.start)

    def part(self, a: int, b: int) -> Frames:
        return Frames(self.buffer, self.start[a:b], self.end[a:b], self.kind[a:b], self.seen)

    def raw(self) -> bytes:
        """The bytes from the first message's header to the last one's end."""
        return self.buffer.raw[int(self.start[0]) - _HEADER : int(self.end[-1])] if len(self) else b""

    @property
    def lengths(self) -> Int64s:
        """Each message's length, header included: what `frames_of` needs beside `raw`."""
        return self.end - self.start + _HEADER

    def one(self, i: int) -> bytes:
        """One message's bytes, for those that are read one by one."""
        return self.buffer.raw[int(self.start[i]) : int(self.end[i])]


@dataclass(frozen=True, slots=True)
class Joined:
    """Whole messages one after another, `lengths` bytes each, and `PAD` zero bytes behind them."""

    data: bytes
    lengths: Int64s

    def __len__(self) -> int:
        return len(self.lengths)


def joined(pieces: Sequence[bytes], lengths: Int64s | None = None) -> Joined:
    """Messages as one piece. `lengths` are those of the single messages where a piece holds several."""
    if lengths is None:
        lengths = np.fromiter(map(len, pieces), np.int64, len(pieces))
    return Joined(b"".join([*pieces, bytes(PAD)]), lengths)


def frames_of(messages: Joined) -> Frames:
    """XLogData messages, looked at one by one."""
    lengths, buffer = messages.lengths, Buffer(messages.data)
    end = np.cumsum(lengths)
    if (int(end[-1]) if len(end) else 0) != buffer.size or (lengths < 0).any():
        raise InvariantViolated("messages joined with lengths that are not theirs")
    header = end - lengths
    if len(lengths) and (int(lengths.min()) <= _HEADER or not (buffer.bytes[header] == ord("w")).all()):
        raise protocol_error("a message that is not XLogData")
    start = header + _HEADER
    return Frames(buffer, start, end, buffer.bytes[start])


def positions(lsn: Int64s) -> pa.Array:
    """Log positions as text of fixed width, which sorts as the positions do and is a valid `pg_lsn`."""
    digits = (lsn.view(np.uint64)[:, None] >> np.arange(60, -4, -4, dtype=np.uint64)) & np.uint64(15)
    text = np.empty((len(lsn), 17), np.uint8)
    text[:, :8] = _HEX[digits[:, :8]]
    text[:, 8] = ord("/")
    text[:, 9:] = _HEX[digits[:, 8:]]
    return fixed_text(text)
