"""Who does pieces of work on a log, each by itself: this process, or others that see its folder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

A = TypeVar("A")
B = TypeVar("B")


class Workers(Protocol):
    """Works on several pieces at one time."""

    @property
    def at_once(self) -> int: ...

    def each(self, work: Callable[[A], B], given: Sequence[A]) -> list[B]:
        """What comes of each piece, in the order in which they are given. Work and pieces are sent to other processes,
        and a piece may be worked on again after one that died in the middle.

        Raises:
            CdcflowError: as `work` does; or nobody could do it.
        """
        ...


class Here:
    """This process, one piece after another."""

    at_once: int = 1

    def each(self, work: Callable[[A], B], given: Sequence[A]) -> list[B]:
        return [work(piece) for piece in given]


HERE = Here()

__all__ = ["HERE", "Here", "Workers"]
