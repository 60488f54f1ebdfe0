"""The rows of files by the values of a column, kept by a process that derives tables.

`file_keys` has the keys of a merge with their offsets. To find the rows of a unit, only their numbers are needed. A row
is then one whole number, with the value in the upper bits and the row's number in the lower ones:

    value - least value | number          hash of the value | number

Sorting such numbers is many times as fast as sorting values together with their numbers. Values that are no whole
numbers (texts, UUIDs, decimals, dates) are found by the upper bits of a hash; the rows found have to be compared with
the values. Rows with NULL are listed before all others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from cdcflow.tables.local.file_keys import IN_MEMORY_BYTES_MAX, KnownColumns, pack_with_indexes
from cdcflow.tables.local.mapped_memory import MappedMemory
from cdcflow.tables.local.scan import NONE, Int64s, Numbers, is_among
from cdcflow.tables.local.stored_columns import MappedArrays, StoredPlace, open_or_store

BYTES_MAX = 1 << 30
"""At most about this many bytes of indexes are kept."""

BY_HASH = f"places by hash of DuckDB {duckdb.__version__}"
"""What is stored for values that are found by a hash. It may be a different hash in another version."""

BY_VALUE = "places by value"

_ROW_BYTES = 8

Hashes = NDArray[np.uint64]
HashOf = Callable[[pa.ChunkedArray], Hashes]
"""A function that returns a hash of each value. What it returns for NULL is not used."""


class ValuePlaces:
    """The numbers of the rows of a file, in the order of their values in a column, or of hashes of these."""

    def __init__(
        self, packed: Int64s, least: int, bits: int, nulls: Numbers = NONE, memory: MappedMemory | None = None
    ) -> None:
        """`packed`: one number for each row that has a value, ascending; `bits`: how many of its bits are the row's
        number; `least`: the value whose upper bits are 0; `nulls`: the numbers of the rows without a value."""
        self._packed, self._least, self._bits, self._nulls, self._memory = packed, least, bits, nulls, memory
        self.bytes = packed.nbytes + nulls.nbytes
        self.is_mapped = memory is not None

    def find(self, values: Int64s, deleted: Numbers, *, null: bool = False) -> Numbers:
        """Return the numbers, ascending, of the rows with one of these values, which are ascending and unique, without
        the deleted rows. `null`: also return the rows without a value."""
        found = self._find_among(values)
        if null:
            found = np.sort(np.concatenate([found, self._nulls]))
        if self._memory is not None:
            self._memory.give_back()
        return found[~is_among(found, deleted)]

    def find_hashes(self, hashes: Hashes, deleted: Numbers, *, null: bool = False) -> Numbers:
        """Return the numbers, ascending, of the rows whose values may have one of these hashes: some have others."""
        return self.find(np.unique(_upper(hashes, self._bits)), deleted, null=null)

    def _find_among(self, values: Int64s) -> Numbers:
        if not len(self._packed):
            return NONE
        last = int(self._packed[-1]) >> self._bits
        among = values[np.searchsorted(values, self._least) : np.searchsorted(values, self._least + last, "right")]
        return self._find(among - self._least, last)

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


@dataclass(frozen=True, slots=True)
class _Packed:
    """A computed index. `values` begins with the numbers of the rows without a value."""

    values: Int64s
    nulls: int
    least: int
    bits: int

    @property
    def notes(self) -> tuple[int, ...]:
        return self.nulls, self.least, self.bits


def open_places(
    place: StoredPlace | None, rows: int, parts: Callable[[], Iterable[pa.ChunkedArray]], hash_of: HashOf | None = None
) -> ValuePlaces | None:
    """Return the index of a column that has this number of rows; `None` if its values differ too much to be packed.
    `parts`: the column; `place`: where its index is stored; `hash_of`: the hash by which values are found that are no
    whole numbers."""
    if _ROW_BYTES * rows <= IN_MEMORY_BYTES_MAX:
        found = _pack(rows, parts(), hash_of)
        return None if found is None else _places(found.values, found.notes)

    def compute() -> tuple[pa.DataType, Iterable[pa.Array], tuple[int, ...]]:
        packed = _pack(rows, parts(), hash_of)
        # An index that does not exist is stored as well: it has no notes.
        return pa.int64(), () if packed is None else (pa.array(packed.values),), () if packed is None else packed.notes

    return _stored_places(open_or_store(place, compute))


def _stored_places(stored: MappedArrays) -> ValuePlaces | None:
    if not stored.notes:
        return None
    values = stored.parts[0].to_numpy() if stored.parts else NONE
    return _places(values, stored.notes, stored.memory)


def _places(values: Int64s, notes: tuple[int, ...], memory: MappedMemory | None = None) -> ValuePlaces:
    nulls, least, bits = notes
    return ValuePlaces(values[nulls:], least, bits, values[:nulls], memory)


def _pack(rows: int, parts: Iterable[pa.ChunkedArray], hash_of: HashOf | None) -> _Packed | None:
    memory = MappedMemory.of_size(_ROW_BYTES * rows) if _ROW_BYTES * rows > IN_MEMORY_BYTES_MAX else None
    values = np.empty(rows, np.int64) if memory is None else np.frombuffer(memory.buffer, np.int64, rows)
    nulls = [NONE]
    first = 0
    for part in parts:
        values[first : first + len(part)] = _whole_numbers(part) if hash_of is None else hash_of(part).view(np.int64)
        nulls.append(first + pc.indices_nonzero(part.is_null()).to_numpy().astype(np.int64))
        first += len(part)
    without = np.concatenate(nulls)
    has_value = np.ones(rows, bool)
    has_value[without] = False
    if len(without) == rows:
        return _Packed(without, rows, 0, 1)
    if hash_of is None:
        least, greatest = (
            int(f(values, where=has_value, initial=values[has_value.argmax()])) for f in (np.min, np.max)
        )
        bits = pack_with_indexes(values, least, greatest)
        if bits is None:
            return None
    else:
        least, bits = 0, max(rows - 1, 1).bit_length()
        values[:] = (_upper(values.view(np.uint64), bits) << bits) | np.arange(rows)
    # Rows without a value get the least numbers: they are the first ones, in their order.
    values[without] = np.arange(len(without)) + np.iinfo(np.int64).min
    values.sort()
    values[: len(without)] = without
    return _Packed(values, len(without), least, bits)


def _whole_numbers(part: pa.ChunkedArray) -> Int64s:
    known = part.cast(pa.int64())
    found: Int64s = (known.fill_null(0) if known.null_count else known).to_numpy()
    return found


def _upper(hashes: Hashes, bits: int) -> Int64s:
    """Return as many upper bits of hashes as fit into a number of 63 bits that ends with this many others."""
    return (hashes >> np.uint64(1 + bits)).astype(np.int64)
