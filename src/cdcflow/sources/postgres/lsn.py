"""Places in PostgreSQL's log: the server's 64-bit numbers, and the text of fixed width that cdcflow stores."""

from __future__ import annotations

from cdcflow.model.position import Position


def lsn_of(position: Position | str) -> int:
    """The number of a place given as text, ours (`00000000/016B3748`) or the server's (`0/16B3748`)."""
    high, _, low = position.partition("/")
    return (int(high, 16) << 32) | int(low, 16)


def position_of(lsn: int) -> Position:
    """The text of a place: fixed width, so that it sorts as the number does, and a valid `pg_lsn`."""
    return Position(f"{lsn >> 32:08X}/{lsn & 0xFFFFFFFF:08X}")
