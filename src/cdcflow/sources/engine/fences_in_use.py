"""What a source remembers of delivered transactions while a chunk's fence may need it. Pure."""

from __future__ import annotations

import contextlib
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Generic, TypeVar

Fence = TypeVar("Fence")


class FencesInUse(ABC, Generic[Fence]):
    """The stream writes, chunks read. What all fences in use see is forgotten after a `look`, except while another
    `look` is in progress, whose bound is read and whose fence does not exist yet: that bound may be older than all
    fences."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._fences: list[weakref.ref[Fence]] = []
        self._looks = 0

    @contextlib.contextmanager
    def look(self) -> Iterator[None]:
        """Surrounds reading a bound and making its fence."""
        with self._lock:
            self._looks += 1
        try:
            yield
        finally:
            with self._lock:
                self._looks -= 1
                if not self._looks:
                    self._forget_unused()

    def _use(self, fence: Fence) -> Fence:
        """Count a fence as in use until it is garbage. The caller holds the lock."""
        self._fences.append(weakref.ref(fence))
        return fence

    def _forget_unused(self) -> None:
        # The order in which `look` blocks end differs from that of reading their bounds, so the oldest fence may not be
        # first.
        fences = [fence for reference in self._fences if (fence := reference()) is not None]
        self._fences = [weakref.ref(fence) for fence in fences]
        if fences:
            self._forget(fences)

    @abstractmethod
    def _forget(self, fences: Sequence[Fence]) -> None:
        """Forget what all of these see. The lock is held."""
