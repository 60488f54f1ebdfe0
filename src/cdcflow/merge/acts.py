"""What is done to a current-state table that follows its source: each act is one commit, and may be repeated."""

from __future__ import annotations

from dataclasses import dataclass

from cdcflow.merge.target import Target, TargetColumn
from cdcflow.model.table import MISSING


@dataclass(frozen=True, slots=True)
class Add:
    """Add a column. `default` (SQL) is what rows have that are there already; None means NULL."""

    column: TargetColumn
    default: str | None


@dataclass(frozen=True, slots=True)
class Fill:
    """Give the rows that are there the default (SQL) of a column that was added. Done once a column, ever. `only`:
    which of them, as SQL; "": all."""

    column: TargetColumn
    default: str
    only: str = ""


@dataclass(frozen=True, slots=True)
class Rename:
    old: str
    new: str


@dataclass(frozen=True, slots=True)
class Widen:
    name: str
    type: str


@dataclass(frozen=True, slots=True)
class Empty:
    """Take the values out of a column that the source dropped."""

    name: str


Step = Add | Fill | Rename | Widen | Empty


@dataclass(frozen=True, slots=True)
class Describe:
    """Record what the table looks like."""

    target: Target


@dataclass(frozen=True, slots=True)
class MissAlso:
    """Rows that miss column `old` say that they miss `new`, too. `listed`: the column in which they say it."""

    old: str
    new: str
    listed: str = MISSING


@dataclass(frozen=True, slots=True)
class MissOnly:
    """Rows say of these columns only that they miss them. `listed`: the column in which they say it."""

    names: tuple[str, ...]
    listed: str = MISSING


Act = Describe | MissAlso | MissOnly | Step
"""One commit, which may be repeated. A job may die before and after each."""
