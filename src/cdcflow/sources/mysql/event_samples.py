"""Row events that are kept for a second opinion: the bytes of one, and the rows that were decoded from it.

The stream's decoder offers row events, and one is kept at a time. A later event replaces it only if its table was
compared longer ago, so a busy table does not hide a quiet one. The kept event may be compared at any time, whatever
happened to its table since, because its table map is kept with it.

While no event is `wanted`, offering costs the decoder one comparison per group of row events.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from cdcflow.model.change import Int64s
from cdcflow.model.table import TableId
from cdcflow.sources.mysql.position import BinlogFile
from cdcflow.sources.mysql.tables import DescribedTable
from cdcflow.sources.mysql.wire import Events

EVENT_BYTES_MAX: Final = 1 << 20
"""A larger row event is not kept."""
CHANGES_MAX: Final = 100
"""At most this many changes of an event are compared, the first ones."""
_SPREAD: Final = 2654435761  # 2^32 divided by the golden ratio: consecutive multiples are far apart


@dataclass(frozen=True, slots=True)
class EventSample:
    """One row event. `table_map` is the body of the TABLE_MAP event in force, `event` the row event with its header;
    neither has a checksum, and both are decompressed. `rows` are the first changes that were decoded from it, and
    `is_whole` is True if there are no others. `position`: the file, and the byte after the event."""

    described: DescribedTable
    table_map: bytes
    event: bytes
    rows: pa.RecordBatch
    is_whole: bool
    position: str


@dataclass(frozen=True, slots=True)
class EventGroup:
    """Row events of one table shape that were decoded together: their numbers `at` among `events`, the `rows` of all of
    them, and `counts`: how many of the rows each event has."""

    events: Events
    at: Int64s
    described: DescribedTable
    table_map: bytes
    rows: pa.RecordBatch
    counts: Int64s
    file: BinlogFile


def sample_of(group: EventGroup, nth: int) -> EventSample | None:
    """Return the event of this number (from 0) in the group; None if it is too large."""
    events, number = group.events, int(group.at[nth])
    if events.end[number] - events.start[number] > EVENT_BYTES_MAX:
        return None
    first, count = int(group.counts[:nth].sum()), int(group.counts[nth])
    # A copy: a slice would keep all rows of the batch in memory.
    rows = group.rows.take(pa.array(np.arange(first, first + min(count, CHANGES_MAX))))
    position = f"{group.file}:{int(events.reach[number])}"
    is_whole = count <= CHANGES_MAX
    return EventSample(group.described, group.table_map, events.event_at(number), rows, is_whole, position)


class EventSamples:
    """Keeps one row event at a time. `wants` and `keep` are called by the stream's thread, the rest by any.

    `can_read` returns whether the other decoder can read rows of a table at all.
    """

    def __init__(self, can_read: Callable[[DescribedTable], bool]) -> None:
        self.wanted = False
        self._can_read = can_read
        self._lock = threading.Lock()
        self._kept: EventSample | None = None
        self._compared: dict[TableId, int] = {}  # when a table was compared last, as a count
        self._turn = 0

    def wants(self, described: DescribedTable) -> bool:
        """Whether a row event of this table would be kept now."""
        if not self.wanted:
            return False
        kept = self._kept
        if kept is not None and not self._is_before(described.table.id, kept.described.table.id):
            return False
        return self._can_read(described)

    def keep(self, group: EventGroup) -> None:
        """Keep one row event of this group, if it is not too large."""
        self._turn += 1
        sample = sample_of(group, self._turn * _SPREAD % len(group.at))
        if sample is not None:
            with self._lock:
                self._kept = sample

    def take(self) -> EventSample | None:
        """Remove and return the kept event, to compare it now; None if no event is kept."""
        with self._lock:
            kept, self._kept = self._kept, None
            if kept is not None:
                self._compared[kept.described.table.id] = max(self._compared.values(), default=0) + 1
            return kept

    def _is_before(self, table: TableId, other: TableId) -> bool:
        return self._compared.get(table, 0) < self._compared.get(other, 0)
