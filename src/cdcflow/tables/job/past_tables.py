"""A table at a past version, as an engine reads it: for the live view, comparisons and derived tables."""

from __future__ import annotations

from typing import Protocol, TypeVar

from cdcflow.tables.merge.modes import CURRENT, ModeRules
from cdcflow.tables.merge.target import Target
from cdcflow.tables.port import SqlSession, TableSnapshot

RowsMade = TypeVar("RowsMade", covariant=True)


class VersionGone(Exception):
    """A version of a table can no longer be read; the message says why."""


class PastTable(Protocol[RowsMade]):
    """A table at a past version. One thread at a time."""

    @property
    def session(self) -> SqlSession:
        """The session in which its rows are computed."""

    def as_of(self, version: int) -> TableSnapshot:
        """Return the table's description at a version; `base` has the rows of that version afterwards.

        Raises:
            VersionGone: the version no longer exists.
        """

    def base(self) -> str:
        """Return a view of its rows, in the columns that it had at that version.

        Raises:
            VersionGone: some of its files no longer exist.
        """

    def result(self, query: str, target: Target, mode: ModeRules = CURRENT) -> RowsMade:
        """Return a query's result, which outlives the session's views. Its columns are the target's and the mode's."""

    def close(self) -> None: ...
