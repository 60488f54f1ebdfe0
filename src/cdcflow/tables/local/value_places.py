"""The rows of files by the values of a column, kept by a process that derives tables.

`file_keys` has the keys of a merge with their offsets. To find the rows of a unit, only their numbers are needed. A row
is then one whole number, with the value in the upper bits and the row's number in the lower ones:

    value - least value | number

Sorting such numbers is many times as fast as sorting values together with their numbers. NULL is in no index.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cdcflow.tables.local.file_keys import IN_MEMORY_BYTES_MAX, KnownColumns, pack_with_indexes
from cdcflow.tables.local.mapped_memory import MappedMemory
from cdcflow.tables.local.scan import NONE, Int64s, Numbers, ScannedFile, is_among

BYTES_MAX = 1 << 30
"""At most about this many bytes of indexes are kept."""

_ROW_BYTES = 8


class ValuePlaces:
    """The numbers of the rows of a file, in the order of their values in a column of whole numbers."""

    def __init__(self, packed: Int64s, least: int, bits: int, memory: MappedMemory | None = None) -> None:
        """`packed`: one number for each row that has a value, ascending; `bits`: how many of its bits are the row's
        number; `least`: the value whose upper bits are 0."""
        self._packed, self._least, self._bits, self._memory = packed, least, bits, memory
        self.bytes = packed.nbytes
        self.is_mapped = memory is not None

    def find(self, values: Int64s, deleted: Numbers) -> Numbers:
        """Return the numbers, ascending, of the rows with one of these values, which are ascending and unique, without
        the deleted rows."""
        if not len(self._packed):
            return NONE
        last = int(self._packed[-1]) >> self._bits
        among = values[np.searchsorted(values, self._least) : np.searchsorted(values, self._least + last, "right")]
        found = self._find(among - self._least, last)
        if self._memory is not None:
            self._memory.give_back()
        return found[~is_among(found, deleted)]

    def _find(self, upper: Int64s, last: int) -> Numbers:
        first = np.searchsorted(self._packed, upper << self._bits)
        # The last value has no next one: with all bits in use, that would not be a number of 64 bits.
        end = np.searchsorted(self._packed, np.minimum(upper + 1, last) << self._bits)
        end[upper == last] = len(self._packed)
        counts = end - first
        places = np.repeat(first - (np.cumsum(counts) - counts), counts) + np.arange(counts.sum())
        return np.sort(self._packed[places] & ((1 << self._bits) - 1))


PLACES: KnownColumns[ValuePlaces] = KnownColumns(BYTES_MAX, row_bytes=_ROW_BYTES)
"""The indexes of this process."""


def read_places(file: ScannedFile, column: str) -> ValuePlaces | None:
    """Read the places of a file's values; `None` if they differ too much to be packed."""
    return pack_values(len(file), (file.read([group], [column]).column(0) for group in file.groups))


def pack_values(rows: int, parts: Iterable[pa.ChunkedArray]) -> ValuePlaces | None:
    """Return the places of the values of `parts`, which have this number of rows; `None` if the values differ too much
    to be packed."""
    memory = MappedMemory.of_size(_ROW_BYTES * rows) if _ROW_BYTES * rows > IN_MEMORY_BYTES_MAX else None
    values = np.empty(rows, np.int64) if memory is None else np.frombuffer(memory.buffer, np.int64, rows)
    nulls = [NONE]
    first = 0
    for part in parts:
        known = part.cast(pa.int64())
        nulls.append(first + pc.indices_nonzero(known.is_null()).to_numpy().astype(np.int64))
        values[first : first + len(part)] = (known.fill_null(0) if part.null_count else known).to_numpy()
        first += len(part)
    without = np.concatenate(nulls)
    has_value = np.ones(rows, bool)
    has_value[without] = False
    if len(without) == rows:
        return ValuePlaces(NONE, 0, 1)
    least, greatest = (int(f(values, where=has_value, initial=values[has_value.argmax()])) for f in (np.min, np.max))
    bits = pack_with_indexes(values, least, greatest)
    if bits is None:
        return None
    # Rows without a value get the greatest numbers, which are then cut off.
    values[without] = np.iinfo(np.int64).max
    values.sort()
    return ValuePlaces(values[: rows - len(without)], least, bits, memory)
