"""What a process keeps of files that never change, up to a number of bytes: what was not used for the longest time is
forgotten first, and read again when it is needed.

    rows of small files      that this process wrote: each merge leaves one, which the next merges search, and which one
                             of them merges with others (`table_files`)
    numbers of deleted rows  each merge reads those of the files that it changes, and writes them again (`vectors`,
                             `position_deletes`)
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

Kept = TypeVar("Kept")


class RecentlyUsed(Generic[Kept]):
    """A cache of values, by keys of any kind, that drops those which were not used for the longest time. May be used
    from several threads. Callers must not change a value that it returns."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self._kept: OrderedDict[Hashable, tuple[Kept, int]] = OrderedDict()
        self._lock = threading.Lock()
        self._bytes = 0

    def keep(self, name: Hashable, what: Kept, size: int) -> None:
        """Add a value of `size` bytes, and drop others if the cache would exceed its maximum."""
        with self._lock:
            self._forget(name)
            self._kept[name] = what, size
            self._bytes += size
            while self._bytes > self.bytes_max:
                self._forget(next(iter(self._kept)))

    def get(self, name: Hashable) -> Kept | None:
        """Return the value under this name; `None` if it was dropped or never added."""
        with self._lock:
            found = self._kept.get(name)
            if found is None:
                return None
            self._kept.move_to_end(name)
            return found[0]

    def forget_all(self) -> None:
        """Drop all values, as a process does that ends."""
        with self._lock:
            self._kept.clear()
            self._bytes = 0

    def _forget(self, name: Hashable) -> None:
        if (found := self._kept.pop(name, None)) is not None:
            self._bytes -= found[1]
