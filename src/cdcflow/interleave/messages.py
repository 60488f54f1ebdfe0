"""What goes into the interleave machine, and what comes out of it: two closed unions.

stream ──Committed, MarkSeen, Advanced,─▶ ┌─────────┐ ──Append, Cut──────────────────────▶ change log
         RowsFilled, RowsIncomplete        │         │
chunks ──Planned, MarkWritten, ChunkRead,  │ machine │ ──PlanTable, WriteMark, ReadChunk──▶ source
         ChunkFailed, SnapshotTaken,       │ (pure)  │   TakeSnapshot
         RowsCompared────────────────────▶ │         │
people ──Command(Backfill, Pause, …)─────▶ └─────────┘ ──Event, Answered──▶ logs, metrics, status, people
clock  ──Tick──▶
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import numpy as np

from cdcflow.model.change import KeySet, Uint64s
from cdcflow.model.position import Offset, Position, Token
from cdcflow.model.table import TableId

Shape = Hashable
"""A table's shape: the machine only compares them (`cdcflow.model.table.Table` in the product)."""


class Transactions(Protocol):
    """Whole transactions in commit order, as the machine sees them (`model.change.Run`, `SpooledTransaction`)."""

    @property
    def transactions(self) -> int: ...
    @property
    def rows(self) -> int: ...
    @property
    def bytes(self) -> int: ...
    @property
    def xids(self) -> Uint64s: ...
    @property
    def last_position(self) -> Position: ...
    @property
    def last_commit_ts(self) -> int: ...
    def first_touching(self, tables: frozenset[TableId]) -> int | None: ...
    def split_at(self, count: int) -> tuple[Transactions, Transactions]: ...
    def shapes_of(self, table: TableId) -> frozenset[Any]: ...
    def truncates(self, table: TableId) -> bool: ...
    def partial_keys(self, table: TableId) -> KeySet | None: ...
    def moved_keys(self, table: TableId) -> KeySet | None: ...


class Visibility(Protocol):
    """What one chunk's snapshot can see: answers for ids that the stream has delivered."""

    def hidden(self, xids: Uint64s) -> Uint64s:
        """Those of these delivered transaction ids that the snapshot does not see."""
        ...


@dataclass(frozen=True, slots=True)
class XidSnapshot:
    """PostgreSQL's `pg_current_snapshot()`: 64-bit ids, `in_progress` those between xmin and xmax still running.

    Delivered ids have 32 bits (pgoutput). One is placed in the epoch that brings it nearest to xmax: the server
    never lets two live ids be 2^31 apart (hard case W07).
    """

    xmin: int
    xmax: int
    in_progress: frozenset[int] = frozenset()

    def hidden(self, xids: Uint64s) -> Uint64s:
        if not len(xids):
            return xids
        low = xids & np.uint64(0xFFFFFFFF)
        behind = (np.uint64(self.xmax & 0xFFFFFFFF) - low).astype(np.uint32).astype(np.int32).astype(np.int64)
        full = self.xmax - behind
        running = np.isin(full, np.fromiter(self.in_progress, np.int64, len(self.in_progress)))
        return xids[(full >= self.xmax) | running]


@dataclass(frozen=True, slots=True)
class Chunk:
    """One piece of a table to read. `plan`, `after` and what they mean belong to the source (JSON text).

    kind "range": from `after` (exclusive; None: from the start) about `size` units (PostgreSQL: pages) onwards,
    never beyond the plan's bound. kind "keys": the rows with these `keys`, as they are now, where they still are.
    kind "whole": the whole table in one snapshot (a table without a key: its rows cannot be replayed over each other,
    so they must stand exactly between the transactions that the snapshot sees and those that it does not); the run
    that answers it begins with a truncate.
    `repairs`, of kind "keys": the run that answers it begins with a delete of each key that was looked for and that the
    source does not have.
    `number` counts the chunks of one generation of the table from 1; `low` is the token written before it.
    `single_connection`: other transactions are on their way; it is read through one connection, however large it is.
    `rows_max`: the limit on rows that is in force when the chunk is handed out (`source.backfill.chunk_rows_max` and
    `rows_per_second_max`). A source that reads more than `size` keeps to it. None: no limit.
    """

    table: TableId
    generation: int
    number: int
    plan: str
    after: str | None
    size: int
    low: Token
    kind: Literal["range", "keys", "whole"] = "range"
    keys: KeySet | None = None
    single_connection: bool = False
    repairs: bool = False
    rows_max: int | None = None


# ── inputs ──────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Committed:
    """The stream delivered whole transactions, in commit order."""

    run: Transactions


@dataclass(frozen=True, slots=True)
class MarkSeen:
    """A mark of ours came back through the source's log. Marks of other epochs come too, and mean nothing."""

    token: Token
    position: Position
    commit_ts: int


@dataclass(frozen=True, slots=True)
class Advanced:
    """The stream has nothing of ours up to this position, and no transaction of ours is open in front of it.

    `commit_ts`: the source's own time, in microseconds since 1970 UTC, taken before it reached this position or with
    it: that of a transaction that ends there (a heartbeat), or what its clock said before its log's end was asked for.
    0: not known. One taken later is wrong: what commits in between would get a later commit clock than it has."""

    position: Position
    commit_ts: int = 0


@dataclass(frozen=True, slots=True)
class RowsFilled:
    """A statement gave rows that were there before values that the source's log does not tell (ADD COLUMN … DEFAULT
    in MySQL). Read them again if the table is part of a backfill. `position` is one before the statement.

    `version` None: the log shows it here. Else the catalog does, and the statement may stand anywhere in the log.

    `swapped`: the rows have the values that the log told, but another table holds them, which took this one's name
    here (gh-ost). Only what is being read is read again: a snapshot from before the swap that finds the new table under
    the name shows what that one held by then.
    """

    table: TableId
    position: Position
    version: RowVersion | None = None
    swapped: bool = False


@dataclass(frozen=True, slots=True)
class RowsIncomplete:
    """The rows with these keys are in the next transactions with less than the source has: columns that are listed as
    unchanged did change, or were never sent (a part of a JSON document, an insert without its defaults). They must be
    read by key, if the table's rows were read already. `position` is one before those transactions."""

    table: TableId
    keys: KeySet
    position: Position


@dataclass(frozen=True, slots=True)
class RowVersion:
    """What the source's catalog says of a table's rows `now`, compared with `known` (None: with nothing). `changed`:
    rows that were read at `known` show other values now, and no log tells them. It counts only while `known` is what
    the table's progress has."""

    table: TableId
    known: str | None
    now: str
    changed: bool


@dataclass(frozen=True, slots=True)
class RowsCompared:
    """A look at the catalog: the tables whose `row_version` is another one now."""

    found: tuple[RowVersion, ...]


@dataclass(frozen=True, slots=True)
class MarkWritten:
    """The mark is committed at the source."""

    token: Token


@dataclass(frozen=True, slots=True)
class Planned:
    """A table can be read: `plan` pins what is read and its fixed upper bound; `size` is a first chunk's size.

    `units` is how many units the whole plan has, for progress and for the end of a range. `rows_per_unit_max`: a unit
    has no more rows than this; it bounds the first chunk, before any was measured. `whole`: the table has no key and
    must be read by one chunk of kind "whole". `visibilities`: what the bound's snapshot can see. A row that was
    delivered before it is visible would lie above a greatest key: no chunk would show it, and the sweep would delete
    it. Empty where the bound does not depend on what is visible (PostgreSQL: a file's length). `row_version` was asked
    for before anything was pinned.
    """

    table: TableId
    generation: int
    plan: str
    size: int
    units: int
    shape: Shape
    whole: bool = False
    visibilities: tuple[Visibility, ...] = ()
    rows_per_unit_max: int = 1
    row_version: str | None = None


@dataclass(frozen=True, slots=True)
class ChunkRead:
    """A chunk was read. `run` holds its rows (kind READ, one transaction), in shape `shape`.

    `reached` is the cursor that the next chunk reads after; `exhausted` says that the plan's bound was reached;
    `units_done` counts the plan's units up to `reached`. `seconds` is how long the reading took. Several
    visibilities: several connections read parts of the chunk, or a snapshot is bounded from both sides (MySQL). What
    one of them does not see may be missing, and a position in the window must be right for all of them. A chunk of kind
    "whole" has one, and it may speak of the chunk's own table only (MySQL locks that one to take it). `rewritten`: the
    table is no longer what the plan pinned (VACUUM FULL, TRUNCATE, …); nothing was read, and the table must be planned
    and read from the start. `keys_left`: of a chunk of kind "keys", those that were not looked
    for, because the rows of the others are so large already. `deleted`: so many deletes are at the run's beginning (see
    `Chunk.repairs`).
    """

    chunk: Chunk
    run: Transactions | None
    shape: Shape
    visibilities: tuple[Visibility, ...]
    reached: str | None = None
    units_done: int = 0
    exhausted: bool = False
    seconds: float = 0.0
    rewritten: bool = False
    keys_left: KeySet | None = None
    deleted: int = 0


@dataclass(frozen=True, slots=True)
class ChunkFailed:
    """Planning, a mark or a chunk did not work out. The window is given up and the table waits, or has failed.

    `retry`: nothing is wrong with the table, try again after a pause. Else the table's state becomes failed and
    `reason` (no row values in it) stays readable in status.
    """

    table: TableId | None
    reason: str
    retry: bool


@dataclass(frozen=True, slots=True)
class SnapshotTaken:
    """A snapshot of what is visible now; lets the machine forget delivered ids."""

    visibility: Visibility


@dataclass(frozen=True, slots=True)
class Tick:
    """Time passes: microseconds of a monotonic clock. Needed for rates and pauses only, never for order."""

    now_us: int


@dataclass(frozen=True, slots=True)
class Backfill:
    """Read these tables (again): a new generation of each. A table that is being read starts anew."""

    tables: tuple[TableId, ...]


@dataclass(frozen=True, slots=True)
class Pause:
    table: TableId


@dataclass(frozen=True, slots=True)
class Resume:
    """A paused table goes on. `partial`: the keys of its partial rows in the log since its `since`, for none are kept
    while it is paused; None: nobody knows them, so that a table that may have such rows starts anew."""

    table: TableId
    partial: KeySet | None = None


@dataclass(frozen=True, slots=True)
class Cancel:
    table: TableId


@dataclass(frozen=True, slots=True)
class Adjust:
    """Change a table's `priority` (higher first; None leaves it) or its `rows_per_second_max` (0: no limit), until its
    generation ends. `reset`: both are what the settings say again, before the others count."""

    table: TableId
    priority: int | None = None
    rows_per_second_max: int | None = None
    reset: bool = False


@dataclass(frozen=True, slots=True)
class Reread:
    """Read the rows that have these keys again, as they are now. A key without a row gives none."""

    table: TableId
    keys: KeySet


@dataclass(frozen=True, slots=True)
class Repair:
    """Make the rows with these keys what the source has: read them, and delete those that it does not have.
    `known_until`: the position in the source's log up to which the log was last known to be right about them; None:
    nobody knows."""

    table: TableId
    keys: KeySet
    known_until: str | None = None


@dataclass(frozen=True, slots=True)
class Proven:
    """A comparison found the table equal to its source through this position. When it began, before it looked at the
    source, the log's newest cut was of this `epoch`: positions of before and after a gap have no order."""

    table: TableId
    position: str
    epoch: int
    base: str = ""
    """Of a table with a base: which one was compared (`Attach`)."""


@dataclass(frozen=True, slots=True)
class Attach:
    """The table has a base: rows that were loaded another way, which the log does not have. Do not read them; they are
    in doubt until a comparison has shown that they are right. `base` names these rows and no others."""

    table: TableId
    base: str


@dataclass(frozen=True, slots=True)
class PauseCapture:
    """Read nothing more of the source, also after a restart, until `ResumeCapture`. A cut follows at once."""


@dataclass(frozen=True, slots=True)
class ResumeCapture:
    """Go on where `PauseCapture` stopped."""


@dataclass(frozen=True, slots=True)
class Late:
    """What came of something while no log was open that could have kept its trace. It changes nothing."""

    outcome: Outcome


Order = (
    Backfill
    | Pause
    | Resume
    | Cancel
    | Adjust
    | Reread
    | Repair
    | Proven
    | Attach
    | PauseCapture
    | ResumeCapture
    | Late
)


@dataclass(frozen=True, slots=True)
class Command:
    """What somebody asked for. Its trace is in the progress of the next cut; its answer is `Answered` with this `id`.

    `op`, `asked_by`, `at_us` (microseconds since 1970, UTC) and `details` (no row values) are for the trace only.
    """

    id: int
    op: str
    asked_by: str
    at_us: int
    orders: tuple[Order, ...] = ()
    details: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Forget:
    """This table is no longer captured (dropped from the settings or from the publication)."""

    table: TableId


Input = (
    Committed
    | MarkSeen
    | Advanced
    | RowsFilled
    | RowsIncomplete
    | RowsCompared
    | MarkWritten
    | Planned
    | ChunkRead
    | ChunkFailed
    | SnapshotTaken
    | Tick
    | Order
    | Command
    | Forget
)


# ── effects ─────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Append:
    """Put these transactions at the end of the log; their rows get the offsets from `first_offset` on."""

    run: Transactions
    first_offset: Offset
    first_transaction: int


@dataclass(frozen=True, slots=True)
class Cut:
    """What was appended up to here may become visible, with this position and progress as its checkpoint.

    `commit_ts`: the newest time of the source that a mark or a heartbeat told up to this position (see `Advanced`)."""

    number: int
    position: Position
    next_offset: Offset
    next_transaction: int
    progress: dict[str, object]
    commit_ts: int = 0


@dataclass(frozen=True, slots=True)
class PlanTable:
    table: TableId
    generation: int


@dataclass(frozen=True, slots=True)
class ReadChunk:
    chunk: Chunk


@dataclass(frozen=True, slots=True)
class WriteMark:
    """Answer with `MarkWritten`; and only then go on with `reads`, without waiting for the machine."""

    token: Token
    reads: tuple[ReadChunk, ...] = ()


@dataclass(frozen=True, slots=True)
class TakeSnapshot:
    """Look at what is visible now and answer with `SnapshotTaken`: too many delivered ids are remembered."""


@dataclass(frozen=True, slots=True)
class Event:
    """Something a person may want to know: an event name in lower case, and its fields (no row values)."""

    event: str
    fields: Sequence[tuple[str, object]] = ()


OutcomeKind = Literal[
    "ordered",
    "paused",
    "resumed",
    "cancelled",
    "adjusted",
    "proven",
    "attached",
    "stopping",
    "ended",
    "nothing to do",
    "refused",
]
"""What becomes of an order. The last two change nothing, and their `reason` says why."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of an order for one table. `table` None: it was about the capture itself."""

    table: TableId | None
    outcome: OutcomeKind
    reason: str | None = None

    @property
    def fits(self) -> bool:
        return self.outcome not in ("nothing to do", "refused")


@dataclass(frozen=True, slots=True)
class Answered:
    """What became of a command, whose trace has this `number`. The cut that keeps it comes after this."""

    id: int
    number: int
    outcomes: tuple[Outcome, ...]


Effect = Append | Cut | PlanTable | WriteMark | TakeSnapshot | Event | Answered
