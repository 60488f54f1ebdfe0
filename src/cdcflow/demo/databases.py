"""The interface that the demo needs of a database, whichever it is. The modules `postgres` and `mysql` implement it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Literal, Protocol, Self

Kind = Literal["postgres", "mysql", "mariadb"]
Columns = Sequence[tuple[str, str]]
"""Name and kind of each column of a table; the kinds are those of `proof`."""


@dataclass(frozen=True, slots=True)
class Digest:
    """One table's rows as numbers: equal digests mean equal rows."""

    rows: int
    hash: str


class Undone(Exception):
    """Raised inside `DemoSession.transaction` to roll the transaction back. The error does not leave the block."""


class StatementResult(Protocol):
    """The result of a statement."""

    @property
    def rowcount(self) -> int: ...
    def fetchone(self) -> Any: ...
    def __iter__(self) -> Iterator[Any]: ...


class DemoSession(Protocol):
    """A session that writes. `words` are the few pieces of SQL that differ between databases; see `writer`."""

    words: Mapping[str, str]

    def execute(self, statement: str, values: Iterable[object] = ()) -> StatementResult: ...

    def transaction(self) -> AbstractContextManager[None]:
        """Return a transaction, or a savepoint inside of one."""
        ...

    def close(self) -> None: ...


class DemoSource(Protocol):
    """A server of the demo. A context manager: the server runs inside the block."""

    name: str
    schema: str
    planted_fault: str

    def __enter__(self) -> Self: ...
    def __exit__(self, *error: object) -> None: ...

    @property
    def url(self) -> str:
        """The address of the flights, for the settings and for the writer."""
        ...

    def load(self, rows_max: int | None) -> Mapping[str, int]:
        """Create and fill the tables; `rows_max` bounds the flights. Returns the rows of each table."""
        ...

    def settings(self) -> Sequence[str]:
        """Return the lines of `source:` in the settings file, without those of the backfill."""
        ...

    def end(self) -> str:
        """Return the current end of the server's log."""
        ...

    def has_reached(self, position: object, end: str) -> bool:
        """Whether a capture's position is at `end` or after it."""
        ...

    def execute(self, statement: str) -> None: ...

    def columns(self, table: str) -> Columns: ...

    def digest(self, table: str, columns: Columns) -> Digest:
        """Return the table's digest as the server computes it."""
        ...
