"""The results of queries. Times are UTC; offsets are inclusive."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from cdcflow.log.query.row import Change
from cdcflow.model.table import TableId


@dataclass(frozen=True, slots=True)
class Moment:
    """A point in the source's history: everything up to `offset`, which ends a transaction. `position` and
    `commit_clock` (microseconds since 1970 UTC) are those of the first cut of the log at or after it; `None`: unknown.
    `asked`: the requested offset, if it is inside the next transaction."""

    offset: int
    position: str | None = None
    commit_clock: int | None = None
    asked: int | None = None

    @property
    def notes(self) -> tuple[str, ...]:
        """The notes that a result for this point must include."""
        if self.asked is None:
            return ()
        return (f"offset {self.asked} is inside a transaction; this is as of offset {self.offset}, before it",)


@dataclass(frozen=True, slots=True)
class Found:
    """A row at a point in time.

    `values`: `None` if there is no row. `state`: "there"; "deleted" or "emptied" (a truncate), by `last`; "never
    there"; "not known": the log has no answer (see `notes`). `last`: the latest change of the row up to that point;
    `unknown`: columns whose value the log does not have. `notes`: what the result does not cover, and why.
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
    """The changes of a row, latest first. `more`: there are older ones, before offset `back_to`. If the key was
    changed, the row that continues under the other key is included with that change."""

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
    it has more rows than are included."""

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
    """A row that differs between two points in time: `change` is "added", "removed" or "changed"; the row at the first
    point and at the last."""

    change: str
    key: tuple[str, ...]
    before: Mapping[str, Any] | None
    after: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True)
class Differences:
    """The differences of a table between two points in time, ascending by key as text if there are few. `touched`: how
    many keys had a change in between; `truncated`: not all of them were compared."""

    table: TableId
    first: Moment
    last: Moment
    found: tuple[Difference, ...]
    touched: int
    truncated: bool
    notes: tuple[str, ...] = ()
