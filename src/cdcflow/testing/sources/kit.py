"""The suite's requirements on a database: plain SQL that every dialect supports, and named acts where SQL differs.

An act that a server cannot do is listed in the kit's `cannot`, with the reason. The scenarios that need it are then not
collected, and `SourceContract.unclaimed` lists them: a scenario is claimed and runs, or is not claimed and named.
Nothing is skipped while tests run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, ClassVar, Literal, Protocol, TypeVar

from cdcflow.capture.ports.source import Source
from cdcflow.model.table import TableId

Act = Literal[
    "hold commits",
    "lock tables",
    "revoke rights",
    "restore a copy",
    "spool",
    "tables without key",
    "forget history",
    "write past the log",
    "log every change",
    "alter tables",
]

S = TypeVar("S", bound=Callable[..., object])


class SourceKit(Protocol):
    """A database with two tables, and how to open a source on it that captures both.

    The tables are `items` and `others` (id integer primary key, name text). `cannot`: the acts that this database
    cannot do, each with the reason.
    """

    cannot: ClassVar[Mapping[Act, str]]
    table: TableId
    """The table `items`."""

    def named(self, name: str) -> TableId:
        """The table of this name."""
        ...

    def open_source(self) -> Source:
        """Open a source that captures `items`, `others` and, if it exists and can be captured, `bare`."""
        ...

    def open_reader(self) -> Source:
        """Open a source like `open_source`, as a user with only the rights that the docs require ("revoke rights")."""
        ...

    def execute(self, *statements: str) -> None:
        """Run these statements in one transaction and commit it."""
        ...

    def execute_unlogged(self, *statements: str) -> None:
        """Run these statements like `execute`, but so that nothing of them enters the source's log ("write past the
        log")."""
        ...

    def rows(self, name: str) -> Sequence[Mapping[str, Any]]:
        """The current rows of a table."""
        ...

    def create(self, name: str, *, keyed: bool = True) -> None:
        """Create a table like `items`, or one with the same columns and no key."""
        ...

    def add_column_with_values(self, name: str, column: str) -> None:
        """Add an integer column by a statement that gives existing rows a value, and logs none of them."""
        ...

    def retype(self, name: str, column: str) -> None:
        """Change a text column to an integer one; its texts are numbers."""
        ...

    def rename(self, *pairs: tuple[str, str]) -> None:
        """Rename tables. Several pairs are renamed in one step, so that no session sees the names in between."""
        ...

    def truncate(self, name: str) -> None: ...

    def hold_commit(self, statement: str) -> AbstractContextManager[Callable[[], None]]:
        """Commit a statement so that, inside the block, it is in the log but no session sees its effect.

        The block gets a function that makes the commit visible.
        """
        ...

    def locked(self, name: str) -> AbstractContextManager[None]:
        """Lock this table so that, inside the block, any reader of it waits."""
        ...

    def revoke_select(self, name: str) -> None: ...

    def grant_select(self, name: str) -> None: ...

    def copied(self) -> Callable[[], None]:
        """Copy the whole database. Return a function that restores it."""
        ...


def needs(act: Act) -> Callable[[S], S]:
    """Mark a scenario that needs an act which not every database can do."""

    def mark(scenario: S) -> S:
        scenario.needs = act  # type: ignore[attr-defined]  # functions have room for it
        return scenario

    return mark
