"""Delivered transactions that a source remembers while a chunk's fence may need them. Pure."""

from __future__ import annotations

import contextlib
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Generic, TypeVar

Fence = TypeVar("Fence")


class FencesInUse(ABC, Generic[Fence]):
    """The fences that chunks use, and the delivered transactions that the stream records for them.

    Transactions that all fences in use see are forgotten after a `look`, except while another `look` is in progress:
    its bound is already read and its fence does not exist yet, so that bound may be older than all fences.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._fences: list[weakref.ref[Fence]] = []
        self._looks = 0

    @contextlib.contextmanager
    def look(self) -> Iterator[None]:
        """Surround the reading of a bound and the creation of its fence: nothing is forgotten in the meantime."""
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
        """Count a fence as in use until it is garbage-collected. The caller holds the lock."""
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
        """Forget the transactions that all of these fences see. The caller holds the lock."""
