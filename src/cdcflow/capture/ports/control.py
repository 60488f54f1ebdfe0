"""A table in the source through which operators who have only SQL access control a capture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol


@dataclass(frozen=True, slots=True)
class ControlRow:
    """A command in a control table that no process has claimed yet. `arguments` is JSON text, or None."""

    number: int
    operation: str
    arguments: str | None
    asked_by: str


class ControlTable(Protocol):
    """A table in the source through which operators who have only SQL access control a capture. Used by one thread.

    Every method raises SourceUnavailable if the server does not respond. If the table is missing or is not as required,
    every method raises ConfigurationError or RightMissing, with the statements that fix it.
    """

    def check(self) -> None:
        """Check that the table exists and may be used."""
        ...

    def waiting(self) -> Sequence[ControlRow]:
        """Return the oldest unclaimed rows, in order; only the first ones if there are many."""
        ...

    def claimed(self) -> Sequence[int]:
        """Return the numbers of the rows that were claimed but never answered."""
        ...

    def claim(self, number: int) -> bool:
        """Claim a row, so that no other process handles it. False if another process has claimed it, or if a connection
        broke before the server could confirm this claim."""
        ...

    def answer(self, number: int, state: Literal["done", "refused"], text: str) -> None:
        """Write the answer to a claimed row."""
        ...

    def close(self) -> None: ...
