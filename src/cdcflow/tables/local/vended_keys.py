"""Keys of a store that a catalog gives for one table, and that expire."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping

EXPIRES = "s3.session-token-expires-at-ms"
RENEWED_BEFORE_S = 60.0
"""Keys that expire within this time are replaced before they are used."""

ACCESS, SECRET, TOKEN = "s3.access-key-id", "s3.secret-access-key", "s3.session-token"
"""The names of the keys among the properties that a catalog gives."""


class VendedKeys:
    """The keys that a catalog gives for one table. May be used from several threads."""

    def __init__(self, given: Mapping[str, str], load: Callable[[], Mapping[str, str]]) -> None:
        """`given`: the keys that came with the table; `load` requests new ones."""
        self._load = load
        self._lock = threading.Lock()
        self.given = given

    @property
    def is_due(self) -> bool:
        expires = self.given.get(EXPIRES)
        return expires is not None and int(expires) / 1000 < time.time() + RENEWED_BEFORE_S

    def offer(self, given: Mapping[str, str]) -> None:
        """Record keys that came with the table. They are used when the current ones are about to expire."""
        with self._lock:
            if self.is_due or ACCESS not in self.given:
                self.given = given

    def renew(self) -> bool:
        """Request new keys. Return whether the catalog gave any."""
        with self._lock:
            before = self.given
            self.given = self._load()
            return any(self.given.get(name) != before.get(name) for name in (ACCESS, SECRET, TOKEN))
