"""Positions in PostgreSQL's log and its clock: the server's 64-bit numbers, and the text that cdcflow stores.

The text has a fixed width, so that it sorts as the numbers do, and is a valid `pg_lsn`.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from cdcflow.model.change import Int64s
from cdcflow.model.position import Position
from cdcflow.sources.buffers import fixed_text

EPOCH_US = 946_684_800_000_000  # 2000-01-01, where PostgreSQL begins to count, in microseconds since 1970
EPOCH_DAYS = 10_957
_HEX = np.frombuffer(b"0123456789ABCDEF", np.uint8)


def lsn_of(position: Position | str) -> int:
    """The number of a position given as text: cdcflow's (`00000000/016B3748`) or the server's (`0/16B3748`)."""
    high, _, low = position.partition("/")
    return (int(high, 16) << 32) | int(low, 16)


def position_of(lsn: int) -> Position:
    """The text of a position."""
    return Position(f"{lsn >> 32:08X}/{lsn & 0xFFFFFFFF:08X}")


def positions(lsn: Int64s) -> pa.Array:
    """The texts of many positions."""
    digits = (lsn.view(np.uint64)[:, None] >> np.arange(60, -4, -4, dtype=np.uint64)) & np.uint64(15)
    text = np.empty((len(lsn), 17), np.uint8)
    text[:, :8] = _HEX[digits[:, :8]]
    text[:, 8] = ord("/")
    text[:, 9:] = _HEX[digits[:, 8:]]
    return fixed_text(text)
