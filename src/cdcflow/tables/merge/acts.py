"""The steps by which a current-state table follows its source. Each act is one commit, and may be repeated."""

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
    """Give existing rows the default (SQL) of a column that was added. This is done only once per column, ever. `only`:
    an SQL condition for the rows to fill; "" for all."""

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
    """Set a column that the source dropped to NULL in all rows."""

    name: str


Step = Add | Fill | Rename | Widen | Empty


@dataclass(frozen=True, slots=True)
class Describe:
    """Record the table's description in its property."""

    target: Target


@dataclass(frozen=True, slots=True)
class MissAlso:
    """List column `new` as missing, too, in each row that lists `old` as missing. `listed`: the column with these
    lists."""

    old: str
    new: str
    listed: str = MISSING


@dataclass(frozen=True, slots=True)
class MissOnly:
    """Keep only these columns in each row's list of missing columns. `listed`: the column with these lists."""

    names: tuple[str, ...]
    listed: str = MISSING


Act = Describe | MissAlso | MissOnly | Step
"""One step, which is one commit. It may be repeated, because a job may die before or after it."""
