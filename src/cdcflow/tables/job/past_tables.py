"""A table at a past version, as an engine reads it: for the live view, comparisons and derived tables."""

from __future__ import annotations

from typing import Protocol, TypeVar

from cdcflow.tables.merge.modes import CURRENT, ModeRules
from cdcflow.tables.merge.target import Target
from cdcflow.tables.port import SqlSession, TableSnapshot

RowsMade = TypeVar("RowsMade", covariant=True)


class VersionGone(Exception):
    """The error for a version of a table that can no longer be read; the message is the reason."""


class PastTable(Protocol[RowsMade]):
    """A table at a past version. Only one thread may use it at a time."""

    @property
    def session(self) -> SqlSession:
        """The session in which the table's rows are computed."""

    def as_of(self, version: int) -> TableSnapshot:
        """Return the table's description at a version, and make `base` show the rows of that version.

        Raises:
            VersionGone: the version no longer exists.
        """

    def base(self) -> str:
        """Return the name of a view of the table's rows at the version of `as_of`, in the columns that it had then.

        Raises:
            VersionGone: some of its files no longer exist.
        """

    def result(self, query: str, target: Target, mode: ModeRules = CURRENT) -> RowsMade:
        """Return the result of a query, which stays valid when the session's views are dropped. Its columns are those
        of the target and of the mode."""

    def close(self) -> None: ...
