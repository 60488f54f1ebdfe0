"""What is done to a current-state table that follows its source: each act is one commit, and may be repeated."""

from __future__ import annotations

from dataclasses import dataclass

from cdcflow.model.table import MISSING
from cdcflow.tables.merge.target import Target, TargetColumn


@dataclass(frozen=True, slots=True)
class Add:
    """Add a column. `default` (SQL) is the value for existing rows; None means NULL."""

    column: TargetColumn
    default: str | None


@dataclass(frozen=True, slots=True)
class Fill:
    """Give existing rows the default (SQL) of a column that was added. Done only once per column, ever. `only`: a
    condition for the rows to fill, as SQL; "" for all."""

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
    """In rows that list column `old` as missing, list `new` as missing, too. `listed`: the column with these lists."""

    old: str
    new: str
    listed: str = MISSING


@dataclass(frozen=True, slots=True)
class MissOnly:
    """In every row, keep only these columns in its list of missing ones. `listed`: the column with these lists."""

    names: tuple[str, ...]
    listed: str = MISSING


Act = Describe | MissAlso | MissOnly | Step
"""One commit, which may be repeated. A job may die before and after each."""
