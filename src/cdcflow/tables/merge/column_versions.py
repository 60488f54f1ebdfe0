"""Columns that changed to a type which does not hold their old values: each such type gets a separate column.

    source    amount#2 int      amount#2 text          amount#2 int again
    table     amount            amount  amount__2      amount  amount__2
              takes values      kept    takes values   takes values  kept

To the evolution the versions of a column are columns with separate numbers. The number of a version has the source's
number in its lower 32 bits and the version above them, where the source uses none. So a shape is renumbered first, and
all code that follows columns by number follows versions too. Among the versions of a column, the latest one that can
hold a type takes its values, whatever the order of the shapes, so it does not matter where ranges begin, or where a run
died.

A version's name is `<name>__<version>`, or with the next number that no other column has.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from cdcflow.errors import ConfigurationError
from cdcflow.model.sqltypes import stored_type, widens
from cdcflow.model.table import Column, Table
from cdcflow.tables.merge.format import Format
from cdcflow.tables.merge.target import Target

_BITS = 32


def source_number(number: int) -> int:
    """Return the source's number of the column that a number is a version of."""
    return number & ((1 << _BITS) - 1) if number > 0 else number


def version_of(number: int) -> int:
    """Return the version in a column's number; 1 means the original column."""
    return 1 + (number >> _BITS) if number > 0 else 1


def numbered_as(number: int, version: int) -> int:
    """Return the number of a version of the source's column `number`."""
    return source_number(number) + ((version - 1) << _BITS)


def base_name(name: str) -> str:
    """Return a version's name without the number at its end."""
    return name.rpartition("__")[0]


def widened_type(old: str, new: str, format_: Format) -> str | None:
    """Return the type of a column that had values of type `old` and gets some of type `new`; `None` if no type of the
    format holds both."""
    if old == new or widens(new, old):
        return old
    return new if format_.widens(old, new) else None


@dataclass(slots=True)
class _Versions:
    """The types of the versions of each column, by number, in the order of the shapes. `new`: versions may be added."""

    format_: Format
    types: dict[int, str]
    new: bool

    def with_number(self, column: Column) -> Column:
        """Return the column with the number of the version that takes its values, which is added if necessary. If it
        may not be added, or no table holds its type, the evolution raises the error."""
        try:
            type_ = self.format_.holds(stored_type(column.type.arrow).table)
        except ConfigurationError:
            return column
        known = sorted((n for n in self.types if n > 0 and source_number(n) == column.number), reverse=True)
        for number in known:
            if (found := widened_type(self.types[number], type_, self.format_)) is not None:
                self.types[number] = found
                return _with_number(column, number)
        if known and not self.new:
            return _with_number(column, known[0])
        number = numbered_as(column.number, version_of(known[0]) + 1) if known else column.number
        self.types[number] = type_
        return _with_number(column, number)


def _with_number(column: Column, number: int) -> Column:
    # What the source gave to rows older than the column is of the first version's type.
    missing = column.missing if version_of(number) == 1 else None
    return column if number == column.number else replace(column, number=number, missing=missing)


def number_columns(
    target: Target, shapes: Sequence[Table], format_: Format, *, new: bool, finds_rows: bool
) -> tuple[Table, ...]:
    """Return the shapes with the numbers that the table's versions give their columns. `new`: versions may be added.

    `finds_rows`: changes find the table's rows by the columns of the key, or by all columns if there is no key. Those
    columns have no versions. False for a table of changes, which finds no rows.
    """
    if not (new or any(version_of(c.number) > 1 for c in target.columns)):
        return tuple(shapes)
    versions = _Versions(format_, {c.number: c.type for c in target.columns}, new)
    return tuple(
        replace(
            s,
            columns=tuple(c if finds_rows and c.name in s.key_columns else versions.with_number(c) for c in s.columns),
        )
        for s in shapes
    )


def version_name(column: Column, now: str | None, taken: Collection[str]) -> str:
    """Return the table's name for a version of a column. `now`: the name that it already has there (`None`: none yet);
    `taken`: names, in lower case, that other columns have."""
    if now is not None and base_name(now) == column.name and now.lower() not in taken:
        return now
    number = version_of(column.number)
    while f"{column.name}__{number}".lower() in taken:
        number += 1
    return f"{column.name}__{number}"


def of_source(numbers: Iterable[int]) -> frozenset[int]:
    """Return the source's numbers of the columns with these numbers."""
    return frozenset(map(source_number, numbers))
