"""Positions in PostgreSQL's log and its clock: the server's 64-bit numbers, and the text that cdcflow stores.

The text has a fixed width, so that it sorts as the numbers do, and is a valid `pg_lsn`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from cdcflow.model.change import Int64s
from cdcflow.model.position import Position, own_kind
from cdcflow.sources.engine.buffers import fixed_text

EPOCH_US = 946_684_800_000_000  # 2000-01-01, where PostgreSQL begins to count, in microseconds since 1970
EPOCH_DAYS = 10_957
_HEX = np.frombuffer(b"0123456789ABCDEF", np.uint8)


@own_kind
@dataclass(frozen=True, slots=True, order=True)
class Lsn:
    """A position in the server's log: a number of bytes. Decoders keep many of them as numbers in columns."""

    value: int

    def __sub__(self, earlier: Lsn) -> int:
        """Return the bytes of log between two positions."""
        return self.value - earlier.value

    def __add__(self, length: int) -> Lsn:
        return Lsn(self.value + length)

    @classmethod
    def parse(cls, text: str) -> Lsn:
        """Parse cdcflow's text (`00000000/016B3748`) or the server's (`0/16B3748`)."""
        high, _, low = text.partition("/")
        return cls((int(high, 16) << 32) | int(low, 16))

    def __str__(self) -> str:
        return f"{self.value >> 32:08X}/{self.value & 0xFFFFFFFF:08X}"


START = Lsn(0)


def lsn_of(position: Position) -> Lsn:
    return Lsn.parse(position.text)


def position_of(lsn: Lsn) -> Position:
    return Position(str(lsn))


def positions(lsn: Int64s) -> pa.Array:
    """Return the texts of many positions."""
    digits = (lsn.view(np.uint64)[:, None] >> np.arange(60, -4, -4, dtype=np.uint64)) & np.uint64(15)
    text = np.empty((len(lsn), 17), np.uint8)
    text[:, :8] = _HEX[digits[:, :8]]
    text[:, 8] = ord("/")
    text[:, 9:] = _HEX[digits[:, 8:]]
    return fixed_text(text)
