"""Differences between the rows that a test expects of a table and those that the table has."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from cdcflow.rehearsal.cells import comparable, text_of

Row = Mapping[str, Any]
NO_ROW = "(no row)"


@dataclass(frozen=True, slots=True)
class CaseDifference:
    """One line of a failure: the row, by its key if that tells rows apart, and the difference. `column` is empty if the
    whole row is missing or too many."""

    table: str
    row: str
    column: str
    expected: str
    found: str

    def to_json(self) -> dict[str, str]:
        return asdict(self)


def differences(
    table: str, key: Sequence[str], columns: Sequence[str], expected: Sequence[Row], found: Sequence[Row]
) -> list[CaseDifference]:
    """Return the differences in these columns, in the order of the expected rows; rows in any order are equal. `key`:
    columns that tell rows apart; if they do not, or are not compared, whole rows are compared."""
    names = [name for name in key if name in columns]
    if len(names) == len(key) > 0 and _are_keys(names, expected) and _are_keys(names, found):
        return _by_key(table, names, columns, expected, found)
    wanted, there = (Counter(_value_of(columns, row) for row in rows) for rows in (expected, found))
    return [
        *_whole(table, columns, expected, wanted - there, is_missing=True),
        *_whole(table, columns, found, there - wanted, is_missing=False),
    ]


def _by_key(
    table: str, key: Sequence[str], columns: Sequence[str], expected: Sequence[Row], found: Sequence[Row]
) -> list[CaseDifference]:
    there = {_value_of(key, row): row for row in found}
    wanted = {_value_of(key, row): row for row in expected}
    differ: list[CaseDifference] = []
    for which, row in wanted.items():
        other = there.get(which)
        name = _text(key, row)
        if other is None:
            differ.append(CaseDifference(table, name, "", _text([c for c in columns if c not in key], row), NO_ROW))
            continue
        differ += [
            CaseDifference(table, name, column, text_of(row[column]), text_of(other[column]))
            for column in columns
            if comparable(row[column]) != comparable(other[column])
        ]
    for which, row in there.items():
        if which not in wanted:
            rest = _text([c for c in columns if c not in key], row)
            differ.append(CaseDifference(table, _text(key, row), "", NO_ROW, rest))
    return differ


def _whole(
    table: str, columns: Sequence[str], rows: Sequence[Row], left: Counter[tuple[Any, ...]], *, is_missing: bool
) -> list[CaseDifference]:
    found = []
    for row in rows:
        which = _value_of(columns, row)
        if left[which] > 0:
            left[which] -= 1
            text = _text(columns, row)
            expected, other = (text, NO_ROW) if is_missing else (NO_ROW, text)
            found.append(CaseDifference(table, "", "", expected, other))
    return found


def _are_keys(names: Sequence[str], rows: Sequence[Row]) -> bool:
    return len({_value_of(names, row) for row in rows}) == len(rows)


def _value_of(names: Sequence[str], row: Row) -> tuple[Any, ...]:
    return tuple(comparable(row[name]) for name in names)


def _text(names: Sequence[str], row: Row) -> str:
    return ", ".join(f"{name}={text_of(row[name])}" for name in names) or "(a row)"
