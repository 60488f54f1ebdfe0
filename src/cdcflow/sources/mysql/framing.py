"""Row packets of a result set: where the rows are in bytes as they came. Pure.

packet   length(3) number(1) │ payload         a row: one packet; FE and less than 9 bytes: the end; FF: an error
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cdcflow.model.change import Int64s

LONG = 0xFFFFFF
"""So long is every packet but the last of a row of 16 MiB and more."""
HEADER = 4
NEEDS_MORE, ENDED, OTHER = 0, 1, 2
"""OTHER: a packet that is no whole row of its own: a part of a long one, or an error."""


@dataclass(frozen=True, slots=True)
class Framed:
    """Row packets found in bytes: their payloads, the place of the first packet that was not taken, and why not."""

    start: Int64s
    end: Int64s
    reached: int
    state: int


def row_packets(data: bytes) -> Framed:
    """The row packets at the beginning of `data`."""
    starts: list[int] = []
    at, size, state = 0, len(data), NEEDS_MORE
    ends: list[int] = []
    while at + HEADER <= size:
        length = data[at] | data[at + 1] << 8 | data[at + 2] << 16
        stop = at + HEADER + length
        if stop > size:
            break
        first = data[at + HEADER] if length else 0
        if first >= 0xFE or length == LONG:
            state = ENDED if first == 0xFE and length < 9 else OTHER
            if state == ENDED or first == 0xFF or length == LONG:
                break
        starts.append(at + HEADER)
        ends.append(stop)
        at = stop
    return Framed(np.array(starts, np.int64), np.array(ends, np.int64), at, state)
