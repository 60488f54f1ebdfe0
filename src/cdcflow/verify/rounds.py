"""How often rows that change while they are compared are looked at again.

    copy     ──A─────────────B──────────▶      A, B: the copy moves on, by a sealed segment or a merge
    rounds     1  2  3  4  5 6                 2 to 5 see the copy of round 1

A row that was written since the copy's place stays open until the copy has moved past it. So what counts is how often
the copy moved on meanwhile, not how often somebody looked. A log in Kafka moves on with its merges only.
"""

from __future__ import annotations

from dataclasses import dataclass

MOVES_MAX = 12
"""A row that is still open when the copy has moved on so often changes all the time."""

STILL_MAX = 30
"""After so many rounds in a row at the same place of the copy, nothing moves it on."""

ROUNDS_MAX = 60


@dataclass(slots=True)
class Rounds:
    """The rounds of one table. `done`: how many there were."""

    done: int = 1
    _moves: int = 1
    _still: int = 0

    def count(self, *, moved: bool) -> None:
        """There was another round. `moved`: at another place of the copy than the one before."""
        self.done += 1
        self._moves += moved
        self._still = 0 if moved else self._still + 1

    @property
    def exhausted(self) -> bool:
        return self.done >= ROUNDS_MAX or self._moves >= MOVES_MAX or self._still >= STILL_MAX


__all__ = ["Rounds"]
