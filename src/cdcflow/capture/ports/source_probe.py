"""Measures how busy a source is: what the code that paces reading requires of a source."""

from __future__ import annotations

from typing import Protocol

from cdcflow.model.source_load import SourceLoad


class SourceProbe(Protocol):
    """Measures how busy a source is. Used by one thread; connects at the first query.

    Every method raises SourceUnavailable if the server does not answer. Values that a server does not report, or not to
    this user, are listed in `SourceLoad.unknown`.
    """

    def load(self) -> SourceLoad:
        """Measure the load values that the settings limit."""
        ...

    def commit(self) -> float:
        """Commit something small, durably, as applications do, and return how many seconds that took.

        Raises:
            RightMissing: this user may not write that.
        """
        ...

    def close(self) -> None: ...
