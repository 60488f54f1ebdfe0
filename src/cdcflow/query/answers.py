"""What questions are answered with. Times are UTC; offsets are inclusive."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from cdcflow.model.table import TableId
from cdcflow.query.row import Change


@dataclass(frozen=True, slots=True)
class Moment:
    """A moment of the source: everything up to `offset`, which ends a transaction. `position`, `commit_clock`
    (microseconds since 1970 UTC): those of the log at the first cut from there on; None: not known. `asked`: the offset
    that was asked for, if it lies inside the next transaction."""

    offset: int
    position: str | None = None
    commit_clock: int | None = None
    asked: int | None = None

    @property
    def notes(self) -> tuple[str, ...]:
        """What an answer about this moment says of it."""
        if self.asked is None:
            return ()
        return (f"offset {self.asked} is inside a transaction; this is as of offset {self.offset}, before it",)


@dataclass(frozen=True, slots=True)
class Found:
    """A row at a moment.

    `values`: None where there is none. `state`: "there"; "deleted" or "emptied" (a truncate), by `last`; "never there";
    "not known": the log does not say (see `notes`). `last`: the change that made it what it is; `unknown`: columns
    whose value the log does not have. `notes`: what the answer does not cover, and why.
    """

    table: TableId
    key: tuple[str, ...]
    moment: Moment
    state: str
    values: Mapping[str, Any] | None = None
    last: Change | None = None
    unknown: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def is_there(self) -> bool:
        return self.values is not None


@dataclass(frozen=True, slots=True)
class History:
    """The changes of a row, newest first. `more`: there are older ones, before offset `back_to`. With a change of the
    key comes the row that goes on under the other one."""

    table: TableId
    key: tuple[str, ...]
    moment: Moment
    changes: tuple[Change, ...]
    back_to: int
    more: bool
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Transaction:
    """A transaction of the source, or a chunk of a backfill (`kind` "read"), with its rows in their order. `truncated`:
    it has more rows than are shown."""

    number: int
    first_offset: int
    last_offset: int
    position: str
    xid: int
    commit_ts: datetime
    kind: str
    origin: str | None
    changes: tuple[Change, ...]
    truncated: bool


@dataclass(frozen=True, slots=True)
class Difference:
    """A row that is not the same at two moments: `change` "added", "removed" or "changed"; the row then and now."""

    change: str
    key: tuple[str, ...]
    before: Mapping[str, Any] | None
    after: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True)
class Differences:
    """What is not the same of a table at two moments, ascending by key as text where there are few. `touched`: so many
    keys had a change in between; `truncated`: not all of them were looked at."""

    table: TableId
    first: Moment
    last: Moment
    found: tuple[Difference, ...]
    touched: int
    truncated: bool
    notes: tuple[str, ...] = ()
