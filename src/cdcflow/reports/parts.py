"""The parts of a report: lines, tables, and notes that are not part of the result."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TextTable:
    """A plain table; the last `numbers` columns are aligned to the right."""

    columns: Sequence[str]
    rows: Sequence[Sequence[object]]
    numbers: int = 0
    title: str | None = None


@dataclass(frozen=True, slots=True)
class SideNote:
    """A line that is not part of the result: it goes to stderr, so that a program that reads stdout does not get it."""

    text: str


Part = str | TextTable | SideNote
Parts = Iterable[Part]
