"""Keys as SQL: conditions for rows after a row, through a row, and with given keys. Pure.

Only the server determines order and equality (W16). So a cursor is a literal made from the bytes that the server itself
sent for the last row, and the server does every comparison. A dialect makes the literals.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from cdcflow.errors import SourceUnavailable
from cdcflow.model.change import KeySet

KEYS_AT_ONCE = 1000
"""The most keys in one statement: with more, a server may not use the index (MySQL: `range_optimizer_max_mem_size`)."""

Literals = tuple[str, ...]
"""A row's key as SQL, one literal per column."""


@dataclass(frozen=True, slots=True)
class KeyColumn:
    """One column of a key, as SQL.

    `quoted`: its quoted name. `selected`: the expression to select so that `cell_literal` can read it. `comparable`:
    the column in a comparison that agrees with ORDER BY on it. Two functions return a value as SQL: `cell_literal` from
    the bytes that the server sent, `value_literal` from the log's value.
    """

    name: str
    quoted: str
    selected: str
    comparable: str
    is_whole_number: bool
    cell_literal: Callable[[bytes], str]
    value_literal: Callable[[Any], str]


@dataclass(frozen=True, slots=True)
class TableKey:
    """The columns that identify a table's rows, in the order of their index. `digest` changes if literals made for this
    key can no longer be compared with it."""

    columns: tuple[KeyColumn, ...]
    index: str
    digest: str

    @property
    def names(self) -> str:
        return ", ".join(c.quoted for c in self.columns)

    @property
    def descending(self) -> str:
        return ", ".join(f"{c.quoted} DESC" for c in self.columns)

    @property
    def select_list(self) -> str:
        """The SQL to select so that `literals` can read the key."""
        return ", ".join(c.selected for c in self.columns)

    @property
    def is_sought(self) -> bool:
        """Whether the index finds where a comparison begins and ends. Otherwise every part would scan the whole
        table."""
        return all(c.comparable == c.quoted for c in self.columns)

    @property
    def is_whole_number(self) -> bool:
        """Whether the key is one integer column, which allows arithmetic."""
        return len(self.columns) == 1 and self.columns[0].is_whole_number

    def literals(self, cells: Sequence[bytes | None]) -> Literals:
        """Return a row's key as SQL, from the cells that the server sent for it."""
        if None in cells:
            raise SourceUnavailable("the server sent a row whose key is NULL")
        return tuple(c.cell_literal(cell or b"") for c, cell in zip(self.columns, cells, strict=True))

    def after(self, row: Literals) -> str:
        """Return the condition for rows after this one."""
        return _comparison(self.columns, row, ">", ">")

    def upto(self, row: Literals) -> str:
        """Return the condition for rows up to and including this one."""
        return _comparison(self.columns, row, "<", "<=")

    def among(self, keys: KeySet) -> Iterator[str]:
        """Return conditions that together match the rows with these keys, at most `KEYS_AT_ONCE` keys each."""
        values = [map(c.value_literal, keys.keys.column(c.name).to_pylist()) for c in self.columns]
        rows = list(zip(*values, strict=True))
        for first in range(0, len(rows), KEYS_AT_ONCE):
            yield self._any_of(rows[first : first + KEYS_AT_ONCE])

    def _any_of(self, rows: Sequence[Literals]) -> str:
        if len(self.columns) == 1:
            return f"{self.names} IN ({', '.join(literal for (literal,) in rows)})"
        # Not `(a, b) IN ((…, …), …)`: there MariaDB does not find text in another character set than the literals', and
        # MySQL does not find ENUM and SET by their numbers.
        return " OR ".join(
            "(" + " AND ".join(f"{c.quoted} = {value}" for c, value in zip(self.columns, row, strict=True)) + ")"
            for row in rows
        )


def _comparison(columns: Sequence[KeyColumn], row: Literals, inner: str, last: str) -> str:
    """Return a condition that compares rows by these columns, written out with OR.

    MySQL uses an index for that form, but not for row values like (a, b) > (1, 2).
    """
    column, *rest = columns
    name = column.comparable
    if not rest:
        return f"{name} {last} {row[0]}"
    return f"({name} {inner} {row[0]} OR ({name} = {row[0]} AND {_comparison(rest, row[1:], inner, last)}))"
