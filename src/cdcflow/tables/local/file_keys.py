"""The places of keys in the files of tables, kept by a process that merges repeatedly.

Files never change, so a file's keys are read once, and a later merge finds the rows to change without reading the file.
This is done only for keys that are one whole number, as most are. A file is indexed the second time its keys are
needed: a single merge reads each file once anyway (docs/decisions/0036).

Large indexes are in temporary files (see `mapped_memory`).
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import numpy as np
import pyarrow as pa

from cdcflow.model.table import OFFSET
from cdcflow.tables.local.mapped_memory import MappedMemory
from cdcflow.tables.local.scan import NONE, Int64s, Numbers, ScannedFile, is_among, places_of, unique_places_of

BYTES_MAX = 2 << 30
"""The maximum size of all indexes. Files for which there is no room left are read at each merge."""

IN_MEMORY_BYTES_MAX = 1 << 20
"""The maximum size of an index in memory. A larger one is in a file."""

MEMORY_BYTES_MAX = 64 << 20
"""At most this many bytes of indexes are kept in memory. The ones that were not used for the longest time are dropped
first: their files were replaced."""

PACKED_BITS_MAX = 63
"""The bits of a packed value: a number of 64 bits with a sign."""

UNUSED_S = 60.0
"""An index that was not used for this time makes room for others: its file was replaced, or its table is quiet."""

SEEN_MAX = 10_000
"""How many files without an index are remembered as read once."""


@dataclass(frozen=True, slots=True)
class FoundRows:
    """Rows of a file with one of some keys: their numbers in the file, ascending, their keys and offsets."""

    numbers: Numbers
    keys: Int64s
    offsets: Int64s

    @classmethod
    def of_all(cls, parts: Sequence[FoundRows]) -> FoundRows:
        """Return the rows of several files, one file after another."""
        numbers, keys, offsets = (
            np.concatenate([NONE, *(getattr(part, name) for part in parts)]) for name in ("numbers", "keys", "offsets")
        )
        return cls(numbers, keys, offsets)


class FileKeys:
    """The keys of a file's rows in ascending order, each with the row's number and offset.

    `numbers` is `None` if the rows are in the order of their keys.
    """

    def __init__(
        self, keys: Int64s, offsets: Int64s, numbers: Int64s | None, memory: MappedMemory | None = None
    ) -> None:
        self._keys, self._offsets, self._numbers, self._memory = keys, offsets, numbers, memory
        self.bytes = keys.nbytes + offsets.nbytes + (0 if numbers is None else numbers.nbytes)
        self.is_mapped = memory is not None
        self._is_unique = bool(np.all(keys[1:] > keys[:-1]))

    def __len__(self) -> int:
        """Return how many rows the file has, including deleted ones."""
        return len(self._keys)

    def find(self, keys: Int64s, deleted: Numbers) -> FoundRows:
        """Return the rows with one of these keys, which are ascending, without the deleted rows."""
        if len(self._keys):  # a file often has the keys of one range
            keys = keys[np.searchsorted(keys, self._keys[0]) : np.searchsorted(keys, self._keys[-1], "right")]
        places = unique_places_of(self._keys, keys) if self._is_unique else places_of(self._keys, keys)
        numbers = places if self._numbers is None else self._numbers[places]
        if len(numbers):
            if self._numbers is not None:
                order = np.argsort(numbers)
                numbers, places = numbers[order], places[order]
            lives = ~is_among(numbers, deleted)
            numbers, places = numbers[lives], places[lives]
        found = FoundRows(numbers, self._keys[places], self._offsets[places])
        if self._memory is not None:
            self._memory.give_back()
        return found


def read_keys(file: ScannedFile, key: str) -> FileKeys | None:
    """Read the keys of a file's rows; `None` if some rows have no key or no offset."""
    return _index(len(file), (file.read([group], [key, OFFSET]) for group in file.groups))


def keys_of(rows: pa.Table, key: str) -> FileKeys | None:
    """Return the keys of all rows of a file, in the order of the file. None: some have no key or no offset."""
    return _index(len(rows), [rows.select([key, OFFSET])])


def _index(rows: int, parts: Iterable[pa.Table]) -> FileKeys | None:
    """Return the index of this number of rows. `parts`: their keys and their offsets."""
    memory = MappedMemory.of_size(3 * 8 * rows) if 3 * 8 * rows > IN_MEMORY_BYTES_MAX else None
    keys, offsets, numbers = (
        np.empty(rows, np.int64) if memory is None else np.frombuffer(memory.buffer, np.int64, rows, 8 * rows * n)
        for n in range(3)
    )
    first = 0
    for part in parts:
        if any(column.null_count for column in part.columns):
            return None
        found = [column.cast(pa.int64()).to_numpy() for column in part.columns]
        keys[first : first + len(part)] = found[0]
        offsets[first : first + len(part)] = found[1]
        first += len(part)
    if np.all(keys[1:] >= keys[:-1]):
        return FileKeys(keys, offsets, None, memory)
    numbers[:] = stable_order(keys)
    keys[:], offsets[:] = keys[numbers], offsets[numbers]
    return FileKeys(keys, offsets, numbers, memory)


def stable_order(values: Int64s) -> Int64s:
    """Return the indexes that sort the values; equal values keep their order.

    Where value and index fit into 63 bits together, both are sorted as one number. For ten million values that took a
    fifth of the time of `argsort`.
    """
    if not len(values):
        return np.empty(0, np.int64)
    packed = values.copy()
    bits = pack_with_indexes(packed, int(values.min()), int(values.max()))
    if bits is None:
        return np.argsort(values, kind="stable")
    packed.sort()
    found: Int64s = packed & ((1 << bits) - 1)
    return found


def pack_with_indexes(values: Int64s, least: int, greatest: int) -> int | None:
    """Replace each value by `value - least` in the upper bits and its index in the lower ones. Return how many bits the
    indexes have; `None` if 63 bits are not enough, and then the values are unchanged."""
    bits = max(len(values) - 1, 1).bit_length()
    if (greatest - least).bit_length() + bits > PACKED_BITS_MAX:
        return None
    values -= least
    values <<= bits
    values |= np.arange(len(values))
    return bits


class Sized(Protocol):
    """A value that is kept for a column of a file, and that knows its size."""

    @property
    def bytes(self) -> int: ...

    @property
    def is_mapped(self) -> bool:
        """Whether it is in a temporary file that is mapped into memory."""


Kept = TypeVar("Kept", bound=Sized)


@dataclass(slots=True)
class _Used(Generic[Kept]):
    keys: Kept | None
    at: float


class KnownColumns(Generic[Kept]):
    """A cache of values for columns of files, such as indexes. A key identifies a file and its column. Thread-safe."""

    def __init__(
        self,
        bytes_max: int,
        clock: Callable[[], float] = time.monotonic,
        *,
        row_bytes: int,
        at_once: bool = False,
    ) -> None:
        """`row_bytes`: about how many bytes a value has for each row of the file. `at_once`: keep a value the first
        time that it is offered, not only the second time."""
        self._bytes_max, self._clock, self._at_once = bytes_max, clock, at_once
        self._row_bytes = row_bytes
        self._lock = threading.Lock()
        self._seen: dict[Hashable, None] = {}
        self._used: OrderedDict[Hashable, _Used[Kept]] = OrderedDict()
        self._bytes = self._memory_bytes = 0

    def get(self, file: Hashable) -> Kept | None:
        """Return the value that is kept for a file; `None` if there is no such value."""
        with self._lock:
            found = self._used.get(file)
            if found is None:
                return None
            found.at = self._clock()
            self._used.move_to_end(file)
            return found.keys

    def offer(
        self, file: Hashable, rows: int, read: Callable[[], Kept | None], *, at_once: bool = False
    ) -> Kept | None:
        """Return the value that is kept for a file of this number of rows. If there is none, compute it by `read` and
        keep it, provided that there is room and that the file was offered before (`at_once`: even if it was not);
        otherwise return `None`."""
        size = self._row_bytes * rows
        with self._lock:
            if file in self._used:
                return self._used[file].keys
            if file not in self._seen and not (at_once or self._at_once):
                self._seen[file] = None
                if len(self._seen) > SEEN_MAX:
                    del self._seen[next(iter(self._seen))]
                return None
            self._make_room(size)
            if self._bytes + size > self._bytes_max:
                return None
        keys = read()
        with self._lock:
            self._seen.pop(file, None)
            self._forget(file)
            self._used[file] = _Used(keys, self._clock())
            self._count(keys, 1)
            if self._memory_bytes > MEMORY_BYTES_MAX:
                self._make_room_in_memory()
        return keys

    def forget_all(self) -> None:
        """Forget all values, as a process does that ends."""
        with self._lock:
            self._seen.clear()
            self._used.clear()
            self._bytes = self._memory_bytes = 0

    def _count(self, keys: Kept | None, times: int) -> None:
        if keys is not None:
            self._bytes += times * keys.bytes
            self._memory_bytes += 0 if keys.is_mapped else times * keys.bytes

    def _forget(self, file: Hashable) -> None:
        if (used := self._used.pop(file, None)) is not None:
            self._count(used.keys, -1)

    def _make_room_in_memory(self) -> None:
        for file, used in list(self._used.items()):
            if self._memory_bytes <= MEMORY_BYTES_MAX // 2:
                return
            if used.keys is None or not used.keys.is_mapped:
                self._forget(file)

    def _make_room(self, size: int) -> None:
        """Forget unused values, the longest unused first, until `size` bytes are free."""
        if self._bytes + size <= self._bytes_max:
            return
        before = self._clock() - UNUSED_S
        for file, used in list(self._used.items()):
            if used.at > before or self._bytes + size <= self._bytes_max:
                return
            self._forget(file)


class KnownKeys(KnownColumns[FileKeys]):
    """A cache of the key indexes of files."""

    def __init__(
        self, bytes_max: int = BYTES_MAX, clock: Callable[[], float] = time.monotonic, *, at_once: bool = False
    ) -> None:
        super().__init__(bytes_max, clock, row_bytes=3 * 8, at_once=at_once)


KNOWN = KnownKeys()
"""The indexes of this process."""


def keys_table(found: FoundRows, key: str, columns: Sequence[pa.Field]) -> pa.Table:
    """Return the keys and offsets of found rows as a table with these columns, in this order."""
    values = {key: found.keys, OFFSET: found.offsets}
    return pa.table([pa.array(values[f.name]).cast(f.type) for f in columns], schema=pa.schema(columns))
