"""The numbers of the columns in a Relation message, which contains only their names and types. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from cdcflow.sources.postgres.columns import Attribute
from cdcflow.sources.postgres.wire import RelationColumn

Words = tuple[str, ...]

_TEXT = 25
_CHARACTERS = {1042: _TEXT, 1043: _TEXT}
"""bpchar and varchar count as text in a version's list of columns: a change among these types changes no value if it
does not rewrite the table."""
UNKNOWN_NUMBER = 10_000
"""Columns that the catalog no longer has get numbers from this one upwards. The server's own numbers end at 1600."""


def word_of(type_oid: int) -> str:
    """Return the text that represents a type in a version's list of columns: its oid in hexadecimal."""
    return f"{_CHARACTERS.get(type_oid, type_oid):x}"


def column_numbers(
    columns: Sequence[RelationColumn], bases: Sequence[int], attributes: Sequence[Attribute], before: Sequence[Words]
) -> tuple[list[int], bool]:
    """Return the column numbers of a message's columns, and whether they are certain.

    `bases`: the columns' types, with domains resolved; `before`: the table's columns at earlier polls.

    A message may be older than a statement whose effect the catalog already shows. A column that was dropped and
    recreated under its name is a different column. If the type is the same, too, only an earlier poll distinguishes the
    two, if anything does.
    """
    found = numbers_by_order(columns, attributes)
    dropped = {a.number for a in attributes if a.dropped}
    if not any(number > len(words) or words[number - 1] for words in before for number in dropped):
        return found, True  # dropped before rows were first read: the order of the columns is enough
    wanted = [word_of(base) for base in bases]
    fitting = set()
    for words in before:
        shown = [(number, word) for number, word in enumerate(words, 1) if word and not word.startswith("-")]
        if [word for _, word in shown] == wanted:
            fitting.add(tuple(number for number, _ in shown))
    kinds = {(a.name, a.type_oid): a.number for a in attributes if not a.dropped}
    now = [kinds.get((c.name, c.type_oid), 0) for c in columns]
    if all(now) and now == sorted(now):
        fitting.add(tuple(now))
    if len(fitting) == 1:
        return list(fitting.pop()), True
    return found, False


def numbers_by_order(columns: Sequence[RelationColumn], attributes: Sequence[Attribute]) -> list[int]:
    """Return the column number of each column of a message. A message lists its columns by ascending number.

    Where names and types agree this is a lookup. Otherwise the most similar columns are paired: the same name and type,
    the same name with a new type, a dropped column's position, a new name. A column that matches no position gets a
    number that no column has.
    """
    present = {(a.name, a.type_oid): a.number for a in attributes if not a.dropped}
    numbers = [present.get((c.name, c.type_oid), 0) for c in columns]
    if all(numbers) and numbers == sorted(numbers):
        return numbers
    return _best_assignment(columns, attributes)


def _best_assignment(columns: Sequence[RelationColumn], attributes: Sequence[Attribute]) -> list[int]:
    """Return the best assignment that keeps the order, by dynamic programming over both lists.

    Numbers are assigned in the order in which columns are created. So a column that still exists already existed when
    one with a higher number did: skipping it costs more than any similarity is worth.
    """
    last = len(columns)
    scores = [[0] * (len(attributes) + 1) for _ in range(last + 1)]
    for i in range(last + 1):
        for j, attribute in enumerate(attributes, 1):
            cost = 0 if i == last or attribute.dropped or attribute.generated else _PASSED_OVER
            scores[i][j] = scores[i][j - 1] - cost
            if i:
                matched = scores[i - 1][j - 1] + _likeness(columns[i - 1], attribute)
                scores[i][j] = max(scores[i][j], scores[i - 1][j], matched)
    numbers = [UNKNOWN_NUMBER + i for i in range(last)]
    i, j = last, len(attributes)
    while i and j:
        if scores[i][j] == scores[i - 1][j - 1] + _likeness(columns[i - 1], attributes[j - 1]):
            i, j = i - 1, j - 1
            numbers[i] = attributes[j].number
        elif scores[i][j] == scores[i - 1][j]:
            i -= 1
        else:
            j -= 1
    return numbers


_PASSED_OVER = 100


def _likeness(column: RelationColumn, attribute: Attribute) -> int:
    if attribute.dropped:
        return 3
    if attribute.name == column.name:
        return 8 if attribute.type_oid == column.type_oid else 6
    return 2 if attribute.type_oid == column.type_oid else 1
