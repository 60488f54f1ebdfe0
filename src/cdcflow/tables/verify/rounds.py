"""How often rows that change while they are compared are compared again.

    copy     ──A─────────────B──────────▶      A, B: the copy advances, by a sealed segment or a merge
    rounds     1  2  3  4  5 6                 2 to 5 see the copy of round 1

A row that was written after the copy's place stays open until the copy has passed it. So the number of times that the
copy advanced counts, not the number of comparisons. A log in Kafka advances only with its merges.
"""

from __future__ import annotations

from dataclasses import dataclass

MOVES_MAX = 12
"""A row that is still open after the copy has advanced this many times changes all the time."""

STILL_MAX = 30
"""After this many consecutive rounds at the same place of the copy, the copy is not expected to advance."""

ROUNDS_MAX = 60


@dataclass(slots=True)
class Rounds:
    """The rounds of one table. `done`: how many there were."""

    done: int = 1
    _moves: int = 1
    _still: int = 0

    def count(self, *, moved: bool) -> None:
        """Record another round. `moved`: at another place of the copy than the one before."""
        self.done += 1
        self._moves += moved
        self._still = 0 if moved else self._still + 1

    @property
    def exhausted(self) -> bool:
        return self.done >= ROUNDS_MAX or self._moves >= MOVES_MAX or self._still >= STILL_MAX
