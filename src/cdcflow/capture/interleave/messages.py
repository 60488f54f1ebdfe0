"""The inputs and outputs of the interleave machine: two closed unions.

stream ──Committed, MarkSeen, Advanced,─▶ ┌─────────┐ ──Append, DiscardSpool, Cut────────▶ change log
         RowsFilled, RowsIncomplete,       │         │
         ChangesRefused                    │         │
chunks ──Planned, MarkWritten, ChunkRead,  │ machine │ ──PlanTable, WriteMark, ReadChunk──▶ source
         ChunkFailed, SnapshotTaken,       │ (pure)  │   TakeSnapshot
         RowsCompared────────────────────▶ │         │
users  ──Command(Backfill, Pause, …)─────▶ └─────────┘ ──Event, Answered──▶ logs, metrics, status, users
clock  ──Tick──▶
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from cdcflow.model.change import KeySet, Uint64s
from cdcflow.model.position import Epoch, Offset, Position, Token
from cdcflow.model.table import TableId

Shape = Hashable
"""A table's shape (a `cdcflow.model.table.Table`, or any value in tests): the machine only compares shapes."""


class Transactions(Protocol):
    """Whole transactions in commit order, as the machine needs them (`model.change.Run`, `SpooledTransaction`)."""

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
    def without(self, tables: frozenset[TableId]) -> Transactions: ...


class Visibility(Protocol):
    """Which of the transactions delivered by the stream a certain snapshot can see."""

    def hidden(self, xids: Uint64s) -> Uint64s:
        """Return those of these delivered transaction ids that the snapshot does not see."""
        ...

    def maybe_hidden(self) -> Uint64s:
        """Return ids of transactions that an earlier run may have delivered although this snapshot does not see them.

        Empty if `Source.prepare` waits until everything before its position is visible.
        """
        ...


@dataclass(frozen=True, slots=True)
class Chunk:
    """One piece of a table to read. The source defines `plan` and `after` (JSON text); no other code interprets them.

    kind "range": about `size` units (PostgreSQL: pages) after `after` (exclusive; None: from the start), never beyond
    the plan's bound. kind "keys": the current rows with these `keys`, as far as they still exist. kind "whole": the
    whole table in one snapshot (a table without a key: its rows cannot be replayed over each other, so they must be
    placed exactly between the transactions that the snapshot sees and those that it does not); the run with its rows
    begins with a truncate. `repairs`, of kind "keys": the run with its rows begins with a delete of each requested key
    that the source does not have. `number` counts the chunks of one generation of the table from 1; `low` is the token
    of the mark written before the chunk. `single_connection`: other transactions are arriving; the chunk is read
    through one connection, however large it is. `rows_max`: the limit on rows when the chunk is requested
    (`source.backfill.chunk_rows_max` and `rows_per_second_max`), which a source that reads more than `size` respects.
    None means no limit. `share`: the share of the time in which the server may be busy with this chunk. Below 1, a
    source that supports slices reads a range in short slices with pauses between them. Other sources ignore `share`,
    and the machine pauses after the chunk.
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
    share: float = 1.0


# ── inputs ──────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Committed:
    """The stream delivered whole transactions, in commit order."""

    run: Transactions


@dataclass(frozen=True, slots=True)
class MarkSeen:
    """One of cdcflow's marks arrived through the source's log. Marks of other epochs arrive too and are ignored."""

    token: Token
    position: Position
    commit_ts: int


@dataclass(frozen=True, slots=True)
class Advanced:
    """The stream has nothing for cdcflow up to this position, and no captured transaction is open before it.

    `commit_ts`: the source's own time, in microseconds since 1970 UTC, taken before or when its log reached this
    position. It is the commit time of a transaction that ends there (a heartbeat), or the server's clock read before
    the end of its log was queried. 0: not known. A later time would be wrong: a transaction that commits in between
    would get a commit clock greater than its own commit time.
    """

    position: Position
    commit_ts: int = 0


@dataclass(frozen=True, slots=True)
class RowsFilled:
    """A statement filled existing rows with values that are not in the source's log (ADD COLUMN … DEFAULT in MySQL).

    The machine reads those rows again if the table is part of a backfill. `position` is one before the statement.

    `version` None: the log shows the statement at this position. Otherwise the catalog shows it, and the statement may
    be anywhere in the log.

    `swapped`: another table took this table's name at this position (gh-ost); its rows have the values that are in the
    log for this table. A table is then read again only if it is being read: a chunk's snapshot may have found the new
    table under the name before the stream reached the swap.

    `possible`: the statement is on other tables, and may have changed rows of this one through a view, a trigger or a
    function. Such statements may arrive all the time, so a read of the table that is running continues, and another
    follows it.

    `renamed`: (earlier, new) names of the columns that the statement renamed, if columns have no numbers.

    `xids`: the ids of the transactions of such statements. None of their rows may be in the log, and a read of the
    table has to see them like those whose rows were delivered.
    """

    table: TableId
    position: Position
    version: RowVersion | None = None
    swapped: bool = False
    possible: bool = False
    renamed: tuple[tuple[str, str], ...] = ()
    xids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class RowsIncomplete:
    """The next transactions contain the rows with these keys incompletely.

    Columns that are listed as unchanged did change, or were never sent (a part of a JSON document, an insert without
    its defaults). The rows must be read by key if the table's rows were read already. `position` is one before those
    transactions.
    """

    table: TableId
    keys: KeySet
    position: Position


@dataclass(frozen=True, slots=True)
class ChangesRefused:
    """Changes of this table cannot leave the source, beginning with the next transactions, which lack them.

    `reason` has no row values; `position` is one before those transactions. `is_checked`: the source's checks of its
    tables (`RowsCompared.refused`) show until when the table is refused, and it is read again after that. Otherwise an
    operator has it read again.
    """

    table: TableId
    reason: str
    position: Position
    is_checked: bool = False


@dataclass(frozen=True, slots=True)
class KnownRows:
    """What the progress records about a table's rows: the generation that reads them, and the row version at which it
    does (None: unknown)."""

    generation: int
    version: str | None


@dataclass(frozen=True, slots=True)
class RowVersion:
    """The row version of a table in the source's catalog (`now`), and the version that it was compared with (`known`;
    None if there was none).

    `changed`: rows that were read at `known` have other values now, and no log records the change.
    """

    table: TableId
    known: str | None
    now: str
    changed: bool


@dataclass(frozen=True, slots=True)
class RowsCompared:
    """The result of a catalog check: the tables whose row version has changed.

    A version is ignored if its `known` is no longer the version in the table's progress; the next check compares the
    table again. `refused`: the captured tables that cannot be captured now, each with the reason.
    """

    found: tuple[RowVersion, ...]
    refused: Mapping[TableId, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class MarkWritten:
    """A requested mark is committed at the source."""

    token: Token


@dataclass(frozen=True, slots=True)
class Planned:
    """A table can be read: `plan` pins the rows to read and their fixed upper bound; `size` is the first chunk's size.

    `units`: how many units the whole plan has, for progress and for the end of a range. `rows_per_unit_max`: a unit has
    no more rows than this; it bounds the first chunk, before any was measured. `whole`: the table has no key and must
    be read by one chunk of kind "whole". `visibilities`: what the bound's snapshot can see. A delivered row that the
    snapshot does not see yet may be above the greatest key: then no chunk would show it, and the sweep would delete it.
    Empty if the bound does not depend on what is visible (PostgreSQL: a file's length). `row_version` was queried
    before anything was pinned.
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

    `reached` is the cursor that the next chunk reads after; `exhausted`: the plan's bound was reached; `units_done`
    counts the plan's units up to `reached`. `seconds` is how long the reading took, `opening_seconds` what preceded it:
    the transaction, the table's shape and the snapshot, which take as long for one row as for many.

    `visibilities` has several entries if several connections read parts of the chunk, or if a snapshot is bounded from
    both sides (MySQL, a standby of PostgreSQL). Rows that any of them does not see may be missing, and the chunk's
    place among the held transactions must be right for all of them. A chunk of kind "whole" has at least one, and they
    may cover only the chunk's own table (MySQL locks only this table to take the snapshot).

    `rewritten`: the table is no longer what the plan pinned (VACUUM FULL, TRUNCATE, …); nothing was read, and the table
    must be planned and read from the start. `keys_left`: for a chunk of kind "keys", the keys that were not looked up
    because the rows found so far fill the chunk. `deleted`: how many deletes the run begins with (see `Chunk.repairs`).
    `idle_seconds`: the part of `seconds` in which the server had nothing to do for the chunk (see `Chunk.share`).
    """

    chunk: Chunk
    run: Transactions | None
    shape: Shape
    visibilities: tuple[Visibility, ...]
    reached: str | None = None
    units_done: int = 0
    exhausted: bool = False
    seconds: float = 0.0
    opening_seconds: float = 0.0
    rewritten: bool = False
    keys_left: KeySet | None = None
    deleted: int = 0
    idle_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class ChunkFailed:
    """Planning, a mark or a chunk failed. The window is abandoned; the table waits, or has failed.

    `retry`: nothing is wrong with the table, try again after a pause. Otherwise the table's state becomes failed and
    `reason` (no row values in it) stays readable in status.
    """

    table: TableId | None
    reason: str
    retry: bool


@dataclass(frozen=True, slots=True)
class SnapshotTaken:
    """A snapshot was taken, so the machine can forget the delivered ids that it sees."""

    visibility: Visibility


@dataclass(frozen=True, slots=True)
class Tick:
    """Time passes: microseconds of a monotonic clock. Needed for rates and pauses only, never for order."""

    now_us: int


@dataclass(frozen=True, slots=True)
class Backfill:
    """Read these tables (again): a new generation of each. A table that is being read starts from the beginning."""

    tables: tuple[TableId, ...]


@dataclass(frozen=True, slots=True)
class Pause:
    table: TableId


@dataclass(frozen=True, slots=True)
class Resume:
    """Resume a paused table.

    `partial`: the keys of its partial rows in the log since its `since`, because no keys are collected while it is
    paused. None: they are unknown, so a table that may have such rows starts from the beginning.
    """

    table: TableId
    partial: KeySet | None = None


@dataclass(frozen=True, slots=True)
class Cancel:
    table: TableId


@dataclass(frozen=True, slots=True)
class Adjust:
    """Change a table's `priority` (higher first; None: unchanged) or its `rows_per_second_max` (0: no limit).

    Both hold until its generation ends. `reset`: set both back to the settings' values first, then apply the others.
    """

    table: TableId
    priority: int | None = None
    rows_per_second_max: int | None = None
    reset: bool = False


@dataclass(frozen=True, slots=True)
class Reread:
    """Read the current rows with these keys again. A key that has no row is ignored."""

    table: TableId
    keys: KeySet


@dataclass(frozen=True, slots=True)
class Repair:
    """Make the rows with these keys equal to the source: read them, and delete those that the source does not have.

    `known_until`: the position in the source's log up to which the change log was last known to be right about them.
    None: unknown.
    """

    table: TableId
    keys: KeySet
    known_until: Position | None = None


@dataclass(frozen=True, slots=True)
class Proven:
    """A comparison found the table equal to its source through this position.

    When the comparison began, before it read the source, the log's latest cut was of this `epoch`: positions from
    before and after a gap cannot be compared.
    """

    table: TableId
    position: Position
    epoch: Epoch
    base: str = ""
    """The name of the base that was compared (see `Attach`); "" if the table has none."""


@dataclass(frozen=True, slots=True)
class Attach:
    """The table gets a base: rows that were loaded another way and are not in the log.

    They are not read; they are unverified until a comparison has shown that they are right. `base` identifies exactly
    these rows.
    """

    table: TableId
    base: str


@dataclass(frozen=True, slots=True)
class PauseCapture:
    """Stop reading from the source until `ResumeCapture`, even after a restart. A cut follows at once."""


@dataclass(frozen=True, slots=True)
class ResumeCapture:
    """Continue where `PauseCapture` stopped."""


@dataclass(frozen=True, slots=True)
class Late:
    """Records something that happened while no log was open to record it, with its outcome. It changes nothing."""

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
    """A command from an operator or a program.

    Its record is in the progress of the next cut; its answer is the `Answered` with this `id`.

    `op`, `asked_by`, `at_us` (microseconds since 1970, UTC) and `details` (no row values) are only for that record.
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
    | ChangesRefused
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
    """Append these transactions to the log; the offsets of their rows begin at `first_offset`."""

    run: Transactions
    first_offset: Offset
    first_transaction: int


@dataclass(frozen=True, slots=True)
class DiscardSpool:
    """No row of the transaction in this spool enters the log: remove the spool."""

    spool: str


@dataclass(frozen=True, slots=True)
class Cut:
    """Everything appended so far may become visible, with this position and progress as its checkpoint.

    `commit_ts`: the latest time of the source that a mark or a heartbeat carried up to this position (see `Advanced`).
    """

    number: int
    position: Position
    next_offset: Offset
    next_transaction: int
    progress: dict[str, object]
    commit_ts: int = 0


@dataclass(frozen=True, slots=True)
class PlanTable:
    """Plan a table, and answer with `Planned`. `keys_only`: its rows were already read, and the plan is only for
    reading keys."""

    table: TableId
    generation: int
    keys_only: bool = False


@dataclass(frozen=True, slots=True)
class ReadChunk:
    chunk: Chunk


@dataclass(frozen=True, slots=True)
class WriteMark:
    """Write the mark and answer with `MarkWritten`. Only then start `reads`, without waiting for the machine."""

    token: Token
    reads: tuple[ReadChunk, ...] = ()


@dataclass(frozen=True, slots=True)
class TakeSnapshot:
    """Take a snapshot and answer with `SnapshotTaken`; requested when too many delivered ids are remembered."""


@dataclass(frozen=True, slots=True)
class Event:
    """Something that operators may want to know: an event name in lower case, and its fields (no row values)."""

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
"""The outcome of a command. The last two change nothing, and their `reason` explains why."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a command for one table. `table` is None for a command about the capture itself."""

    table: TableId | None
    outcome: OutcomeKind
    reason: str | None = None

    @property
    def fits(self) -> bool:
        return self.outcome not in ("nothing to do", "refused")


@dataclass(frozen=True, slots=True)
class Answered:
    """The outcomes of a command, whose record has this `number`.

    The cut that stores the record follows this effect.
    """

    id: int
    number: int
    outcomes: tuple[Outcome, ...]


Effect = Append | DiscardSpool | Cut | PlanTable | WriteMark | TakeSnapshot | Event | Answered
