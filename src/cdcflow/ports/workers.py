"""Who does pieces of work on a log, each by itself: this process, others that see its folder, or others that have its
object store alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol, TypeVar

from cdcflow.changelog.layout import Layout

A = TypeVar("A")
B = TypeVar("B")


class AwayLog(Protocol):
    """A log in an object store, for a process that has nothing else of it. It is sent there."""

    def opened(self) -> AbstractContextManager[Layout]:
        """The log, and for a while a folder of one's own as its directory."""
        ...

    def put(self, name: str, path: Path, sha256: str) -> None:
        """Put a file into the store. One that is there already must have this content.

        Raises:
            InvariantViolated: it has another.
        """
        ...

    def take(self, name: str, target: Path) -> str:
        """Move a file from the store to here; its sha256."""
        ...


class Workers(Protocol):
    """Works on several pieces at one time."""

    @property
    def at_once(self) -> int: ...

    @property
    def away(self) -> AwayLog | None:
        """What they have of the log, and where they put what they make; None: they have its folder."""
        ...

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
    away: AwayLog | None = None

    def each(self, work: Callable[[A], B], given: Sequence[A]) -> list[B]:
        return [work(piece) for piece in given]


HERE = Here()

__all__ = ["HERE", "AwayLog", "Here", "Workers"]
