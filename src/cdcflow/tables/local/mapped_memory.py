"""Temporary files without a name that are mapped into memory. They end with the process, even if it is killed.

The kernel can take the pages of such a file back, so they do not count as memory of the process, unless the folder for
temporary files is in memory. A page that was used stays in the process's page table, and the next use of it is cheap.
Without a limit a process would seem to have all of its files in memory. So files up to `RESIDENT.bytes_max` in sum
keep their pages, and each further one gives them back after each use. docs/decisions/0036
has what a search costs either way.
"""

from __future__ import annotations

import mmap
import tempfile
import threading
import weakref
from typing import Self

RESIDENT_BYTES_MAX = 1 << 30
"""At most this many bytes of mapped files keep their pages, if no limit on the process's memory is set."""


class ResidentMemory:
    """How many bytes of mapped files keep their pages. Thread-safe."""

    def __init__(self, bytes_max: int = RESIDENT_BYTES_MAX) -> None:
        self.bytes_max = bytes_max
        self.bytes = 0
        self._lock = threading.Lock()

    def admit(self, memory: mmap.mmap) -> bool:
        """Return whether this memory may keep its pages. Its bytes count until it is no longer used."""
        size = len(memory)
        with self._lock:
            if self.bytes + size > self.bytes_max:
                return False
            self.bytes += size
        weakref.finalize(memory, self._subtract, size)
        return True

    def _subtract(self, size: int) -> None:
        with self._lock:
            self.bytes -= size


RESIDENT = ResidentMemory()
"""The mapped files of this process."""


class MappedMemory:
    """A file in memory."""

    def __init__(self, buffer: mmap.mmap, resident: ResidentMemory = RESIDENT) -> None:
        self.buffer = buffer
        self._resident = resident
        self._stays = resident.admit(buffer)

    @classmethod
    def of_size(cls, size: int, resident: ResidentMemory = RESIDENT) -> Self:
        """Return a file of this number of bytes, to be filled."""
        with tempfile.TemporaryFile(prefix="cdcflow-") as file:
            file.truncate(size)
            return cls(mmap.mmap(file.fileno(), size), resident)

    def give_back(self) -> None:
        """Give the pages back that were used, unless they may stay. Their content stays in any case."""
        # The memory of an old file and of its compacted one exist at the same time for a while, so ask again.
        self._stays = self._stays or self._resident.admit(self.buffer)
        if not self._stays:
            self.buffer.madvise(mmap.MADV_DONTNEED)
