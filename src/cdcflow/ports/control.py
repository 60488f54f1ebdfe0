"""A table in the source by which people who have only SQL steer a capture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol


@dataclass(frozen=True, slots=True)
class ControlRow:
    """An order in a control table that nobody has taken yet. `arguments` is JSON text, or None."""

    number: int
    operation: str
    arguments: str | None
    asked_by: str


class ControlTable(Protocol):
    """A table in the source by which people who have only SQL steer a capture. Used by one thread.

    Every method raises SourceUnavailable where nobody answers, and ConfigurationError or RightMissing, with the
    statements that mend it, where the table is not as it must be.
    """

    def check(self) -> None:
        """See whether it is there and may be used."""
        ...

    def waiting(self) -> Sequence[ControlRow]:
        """The oldest rows that are new, in their order; some of them where they are many."""
        ...

    def claimed(self) -> Sequence[int]:
        """The rows that were claimed and never answered."""
        ...

    def claim(self, number: int) -> bool:
        """Take a row, so that nobody else does. False: somebody has, or is gone on the way to tell."""
        ...

    def answer(self, number: int, state: Literal["done", "refused"], text: str) -> None:
        """Answer a row that was claimed."""
        ...

    def close(self) -> None: ...
