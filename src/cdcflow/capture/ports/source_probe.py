"""A source as what measures its load sees it."""

from __future__ import annotations

from typing import Protocol

from cdcflow.model.source_load import SourceLoad


class SourceProbe(Protocol):
    """Measures how busy a source is. Used by one thread; connects at the first query.

    Every method raises SourceUnavailable if the server does not answer. What a server does not report, or not to this
    user, is in `SourceLoad.unknown`.
    """

    def load(self) -> SourceLoad:
        """Measure what the settings limit."""
        ...

    def commit(self) -> float:
        """Commit something small, durably, as applications do, and return how many seconds that took.

        Raises:
            RightMissing: this user may not write it.
        """
        ...

    def close(self) -> None: ...
