"""The processes that work on independent pieces of a log: this one, others with access to its folder, or others with
access to its object store alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol, TypeVar

from cdcflow.log.files.layout import Layout

A = TypeVar("A")
B = TypeVar("B")


class AwayLog(Protocol):
    """A log in an object store, for a process that can reach no other part of it. It can be sent to that process."""

    def open(self) -> AbstractContextManager[Layout]:
        """Return the log's layout, with a temporary local folder as its directory."""
        ...

    def put(self, name: str, path: Path, sha256: str) -> None:
        """Upload a file to the store. If it exists there, it must have this content.

        Raises:
            InvariantViolated: it has different content.
        """
        ...

    def take(self, name: str, target: Path) -> str:
        """Move a file from the store to this machine and return its sha256."""
        ...


class Workers(Protocol):
    """Processes that work on several pieces at a time."""

    @property
    def at_once(self) -> int: ...

    @property
    def away(self) -> AwayLog | None:
        """How the workers reach the log, and where they upload their results; `None` if they have access to its
        folder."""
        ...

    def each(self, work: Callable[[A], B], given: Sequence[A]) -> list[B]:
        """Return the result of each piece, in the order given. Work and pieces are sent to other processes. If a
        process dies in the middle of a piece, the piece is worked on again.

        Raises:
            CdcflowError: as `work` does, or because no process could do it.
        """
        ...


class Here:
    """Works on the pieces in this process, one after another."""

    at_once: int = 1
    away: AwayLog | None = None

    def each(self, work: Callable[[A], B], given: Sequence[A]) -> list[B]:
        return [work(piece) for piece in given]


HERE = Here()
