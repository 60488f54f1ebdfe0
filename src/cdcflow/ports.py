"""What the pipeline asks of a source and of a sink, as Protocols.

A source adapter (`cdcflow.sources.*`) and a sink adapter (`cdcflow.sinks.*`) never know each other; the pipeline
knows both by these names only. `cdcflow.wiring` is where the concrete classes meet.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

import pyarrow as pa

from cdcflow.changelog.checking import Report
from cdcflow.changelog.layout import Layout
from cdcflow.changelog.reader import LogRows
from cdcflow.changelog.records import Message
from cdcflow.changelog.tail import Topic, TopicTail
from cdcflow.interleave.messages import (
    Advanced,
    Chunk,
    ChunkRead,
    Committed,
    MarkSeen,
    Planned,
    RowsCompared,
    RowsFilled,
    RowsIncomplete,
    Visibility,
)
from cdcflow.model.change import ChangeBatch, Int64s, KeySet, Run, SpooledTransaction, Uint64s
from cdcflow.model.position import Checkpoint, Offset, Position, SourceIdentity, Token
from cdcflow.model.table import Table, TableId

StreamEvent = Committed | MarkSeen | Advanced | RowsFilled | RowsIncomplete


@dataclass(frozen=True, slots=True)
class Finding:
    """One result of `doctor`: `level` ok, warning or error; `remedy` is the exact SQL or setting that mends it."""

    level: Literal["ok", "warning", "error"]
    subject: str
    text: str
    remedy: str | None = None


@dataclass(frozen=True, slots=True)
class Dropped:
    """One thing of ours at the source after `Source.drop`. Where it was left, `text` says why, and `remedy` is the SQL
    that removes it."""

    subject: str
    outcome: Literal["removed", "absent", "left"]
    text: str = ""
    remedy: str | None = None


@dataclass(frozen=True, slots=True)
class SourceStatus:
    """How far the source is ahead of `acknowledged`, in bytes of its log, and how much of it it keeps for us.

    None: the source cannot say. `details` are name and value pairs for people (slot name, wal_status, …).
    """

    lag_bytes: int | None
    retained_bytes: int | None
    details: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class TablePreview:
    """A table that a start would capture. `rows` and `bytes` are the server's estimates from its statistics (None: it
    has none); `reread` says why rows in the log are not what the settings make of them now ("": they are)."""

    id: TableId
    incarnation: int
    rows: int | None = None
    bytes: int | None = None
    reread: str = ""


@dataclass(frozen=True, slots=True)
class Preview:
    """What a start would capture, sorted by name, and the selected tables that it would leave out because they cannot
    be captured."""

    tables: tuple[TablePreview, ...]
    left_out: tuple[TableId, ...] = ()


class Spool(Protocol):
    """Where a transaction that memory should not hold goes while it arrives. One writer.

    Pieces come in the order of the source's log. The index of a piece's rows counts within the piece from 0.
    """

    name: str

    def write(self, batches: Sequence[ChangeBatch], subxids: Uint64s | None) -> None:
        """Append one piece. `subxids` (as long as the piece has rows, in index order) is each row's
        sub-transaction, None when they cannot be rolled back any more."""
        ...

    def finish(self) -> None:
        """Nothing more comes; everything written is in the file (durable only with the log's next `sync`)."""
        ...

    def discard(self) -> None:
        """The transaction was rolled back: forget it."""
        ...


OpenSpool = Callable[[], Spool]


class Stream(Protocol):
    """The source's log as it comes, decoded. Used by one thread."""

    def fileno(self) -> int:
        """The socket to wait on."""
        ...

    def poll(self) -> Sequence[StreamEvent]:
        """What has arrived, in order; never waits. Answers the server's keepalives with the acknowledged position.

        An empty result means that nothing whole has arrived. Bounded: a long backlog comes in several calls, and
        then `ready` is true.

        Raises:
            SourceUnavailable: the connection is gone; start again from the log's checkpoint.
            HistoryLost, ConfigurationError: see `cdcflow.errors`.
        """
        ...

    @property
    def ready(self) -> bool:
        """More can be polled without waiting for the socket."""
        ...

    def acknowledge(self, position: Position) -> None:
        """Everything up to here is durable in the log; the server may forget it. Never goes backwards."""
        ...

    def close(self) -> None: ...


class ChunkSource(Protocol):
    """Reads existing rows and writes marks. May be called from several threads at once."""

    def plan(self, table: TableId, generation: int) -> Planned:
        """Pin what will be read and its upper bound."""
        ...

    def write_mark(self, token: Token) -> None:
        """Commit a mark at the source; on return it is there."""
        ...

    def read_chunk(self, chunk: Chunk) -> ChunkRead:
        """Read one chunk, each part in one snapshot taken after this call began."""
        ...

    def keys_where(self, table: TableId, predicate: str, keys_max: int) -> KeySet:
        """The keys of the rows that a predicate is true for now: `keys_max` of them at most. Reads only.

        Raises:
            ConfigurationError: the source does not understand the predicate, or looking for them takes too long.
        """
        ...

    def snapshot(self) -> Visibility: ...

    def heartbeat(self) -> None:
        """Write something harmless to the source's log, so that our position moves while tables are idle."""
        ...

    def close(self) -> None: ...


TransactionsBack = Callable[[Callable[[Position], bool]], pa.Table]
"""`Log.transactions_back`."""


class Source(Protocol):
    """A database whose changes and rows we read."""

    def identity(self) -> SourceIdentity: ...

    def prepare(
        self, checkpoint: Checkpoint, log_id: str, transactions_back: TransactionsBack | None = None
    ) -> Checkpoint:
        """Make or check everything the stream needs (slot, publication), without ever losing a position.

        `transactions_back` shows what the log has, for a source that can tell by it whether the server's log still is
        the one that ours was made from (None: nothing is compared).

        A `reread` in the checkpoint's `source` (JSON: a list of [schema, name]) names captured tables whose rows the
        log has as other settings made them: the caller reads them anew, and takes it out with the cut that orders it.

        With `checkpoint.position` None a new position in the source's log is made and returned in the checkpoint's
        `position` and `source`; else the position is checked to be still ours and whole.

        Raises:
            HistoryLost: the source no longer has the log from `checkpoint.position` on.
            ConfigurationError: a setting, grant or table must change; the message names the SQL.
        """
        ...

    def tables(self) -> Sequence[Table]:
        """The captured tables as they are now, sorted by name."""
        ...

    def left_out(self, checkpoint: Checkpoint | None = None) -> Sequence[TableId]:
        """The tables that the settings select and that are not captured because they cannot be, sorted.

        None: as the last `prepare` or `tables` saw them; asks the server nothing, and may be called from any thread.
        With a checkpoint: those that a start from it would leave out, by the server's word. Nothing is prepared."""
        ...

    def preview(self, checkpoint: Checkpoint, log_id: str) -> Preview:
        """What a start from this checkpoint would capture, by the server's word. Nothing is prepared or changed.

        Raises:
            ConfigurationError: the settings do not fit the server, its tables or this log, as `prepare` would say.
        """
        ...

    def compare_rows(self, known: Mapping[TableId, str | None]) -> RowsCompared:
        """Compare what tables' rows are now with the `row_version` that they were read at (None: it is not known).
        Tables whose version is the same, or that are gone, are left out.

        A source whose log tells of every statement that changes rows finds nothing. May be called from any thread.
        """
        ...

    def stream(self, checkpoint: Checkpoint, open_spool: OpenSpool) -> Stream:
        """Start reading after `checkpoint.position`. Transactions up to it are never delivered again."""
        ...

    def chunks(self) -> ChunkSource: ...

    def doctor(self) -> Sequence[Finding]: ...

    def continues(self, newest: Callable[[], Checkpoint], log_id: str) -> Sequence[Finding]:
        """Whether the server still has what this log goes on from: what `prepare` would stop for, or that nothing is in
        the way; nothing where the log has no position yet. Nothing is changed.

        `newest` gives the log's newest checkpoint, anew at every call: a daemon may be adding to it meanwhile.

        Raises:
            SourceUnavailable: it cannot be asked.
        """
        ...

    def left_behind(self, log_id: str) -> Sequence[Finding]:
        """What other logs of cdcflow seem to have left at the source, and what costs it something (slots that hold
        its log), each with the SQL that removes it. Nothing is changed."""
        ...

    def drop(self, log_id: str, checkpoint: Checkpoint) -> Sequence[Dropped]:
        """Remove what was made at the source for this log. What another log uses is not touched, and what is gone
        already is no error. The log cannot go on from its position afterwards.

        Raises:
            ConfigurationError: somebody still reads for this log, or the source is another one than the log's.
            SourceUnavailable: no answer; what was removed by then stays removed, and the next call goes on.
        """
        ...

    def status(self, acknowledged: Position | None, log_id: str = "") -> SourceStatus:
        """`log_id`: of the log that is asked for; "": there is none yet."""
        ...

    def close(self) -> None: ...


@runtime_checkable
class Covering(Protocol):
    """A source that can tell which of its captured tables' changes reach the stream at all."""

    def coverage(self, captured: Mapping[TableId, int]) -> Mapping[TableId, str]:
        """Why changes of captured tables (each with its `incarnation`) may not reach the stream, as the server's
        catalog has it now. A table that is not named here is covered. May be called from any thread.

        Raises:
            SourceUnavailable, RightMissing: it cannot be asked.
        """
        ...


@dataclass(frozen=True, slots=True)
class Sample:
    """A digest of some of a table's rows. Only two of the same `shape` (the columns and their types) compare."""

    shape: str
    digest: str


@runtime_checkable
class Sampled(Protocol):
    """A source of whose tables a few rows can be looked at, to see whether they changed without a word."""

    def sample(self, table: TableId, key: Sequence[str]) -> Sample | None:
        """The same rows each time, by key (not empty), as they are committed now. None: the table is gone. Cheap in a
        table of any size. May be called from any thread.

        Raises:
            SourceUnavailable, RightMissing: they cannot be read.
        """
        ...


@runtime_checkable
class Described(Protocol):
    """A source that can say what its server is, for whoever looks into a problem."""

    def facts(self) -> Mapping[str, str]:
        """The server's version and those of its settings that matter to a capture. No secrets, no values of rows.

        Raises:
            SourceUnavailable, ConfigurationError: it cannot be asked.
        """
        ...


@dataclass(frozen=True, slots=True)
class ControlRow:
    """An order in a control table that nobody has taken yet. `arguments` is JSON text, or None."""

    number: int
    operation: str
    arguments: str | None
    asked_by: str


class ControlTable(Protocol):
    """A table in the source by which people who have only SQL steer a capture. Used by one thread.

    Every method raises SourceUnavailable where nobody answers, and ConfigurationError or RightMissing, with the
    statements that mend it, where the table is not as it must be.
    """

    def check(self) -> None:
        """See whether it is there and may be used."""
        ...

    def waiting(self) -> Sequence[ControlRow]:
        """The oldest rows that are new, in their order; some of them where they are many."""
        ...

    def claimed(self) -> Sequence[int]:
        """The rows that were claimed and never answered."""
        ...

    def claim(self, number: int) -> bool:
        """Take a row, so that nobody else does. False: somebody has, or is gone on the way to tell."""
        ...

    def answer(self, number: int, state: Literal["done", "refused"], text: str) -> None:
        """Answer a row that was claimed."""
        ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Numbered:
    """Transactions with their numbers: the rows of `run` have the offsets from `first_offset` on, its transactions
    the numbers from `first_transaction` on, and `commit_clock` (microseconds) one entry each."""

    run: Run | SpooledTransaction
    first_offset: Offset
    first_transaction: int
    commit_clock: Int64s


class LogReader(Protocol):
    """A change log as whoever does not write it sees it, wherever it is. May be used beside the daemon.

    Rows and headers come as `cdcflow.changelog.reader` says.
    """

    name: str
    """What it is called in messages."""

    def exists(self) -> bool:
        """There is a log."""
        ...

    def newest_checkpoint(self) -> Checkpoint:
        """The checkpoint of the newest cut that readers see (`cut` 0: none yet)."""
        ...

    def table_shapes(self) -> dict[TableId, dict[int, Table]]:
        """Every table's shapes by version number, oldest first."""
        ...

    def read_rows(
        self, from_offset: int = 1, to_offset: int | None = None, tables: Collection[TableId] | None = None
    ) -> Iterator[LogRows]:
        """The log's rows from one offset to another (both inclusive; None: up to the newest cut).

        Raises:
            HistoryLost: `from_offset` has expired.
            InvariantViolated: something is missing or damaged.
        """
        ...

    def read_transactions(self, from_offset: int = 1, to_offset: int | None = None) -> Iterator[pa.Table]:
        """The headers (`TRANSACTIONS_SCHEMA`) of the transactions with a row from one offset to another, in order."""
        ...

    def check(self, *, deep: bool = False) -> Report:
        """Read the log through and report what is wrong with it; `deep` reads every value."""
        ...


class OpenTier(Protocol):
    """A log in Kafka whose history is held by the one who adds to it."""

    @property
    def tail(self) -> TopicTail | None:
        """What is to be read and sealed; None: nothing."""
        ...

    @property
    def sealer(self) -> Callable[[Iterable[Message]], Iterator[str]]:
        """Turns the tail's messages into a segment each, with a text by which `put` finds it. Can be sent to another
        process."""
        ...

    @property
    def newest(self) -> Checkpoint:
        """The newest checkpoint of the log, which may be behind its last row."""
        ...

    def put(self, directory: str) -> None:
        """Add one of these to the history, in order. Durable on return.

        Raises:
            SinkUnavailable: no room, the store is away, or another process has added one meanwhile; try again.
        """
        ...

    def origin(self) -> Mapping[str, Any]:
        """Where in the topic the history ends now, for whoever notes it."""
        ...


class Tier(Protocol):
    """A log in Kafka with its history: sealed segments as a file log has them."""

    layout: Layout
    """Where the history is."""

    def topic(self) -> Topic:
        """Where the log's topic is."""
        ...

    def opened(self) -> AbstractContextManager[OpenTier]:
        """Look what is to be sealed, and hold the history meanwhile.

        Raises:
            ConfigurationError: there is no log, or the history is not this log's.
            HistoryLost: what would be next is gone.
            SinkUnavailable: another process is at it, or nobody answers; try again later.
        """
        ...


class Log(Protocol):
    """A change log opened for writing by its only writer. `append`, `cut` and `sync` are called by one thread each:
    `append` and `cut` by the pipeline's, `sync` possibly by another one at the same time."""

    @property
    def checkpoint(self) -> Checkpoint:
        """The last durable cut's checkpoint."""
        ...

    def append(self, numbered: Numbered) -> None:
        """Put transactions at the end. May only queue them: that there is no room is then heard from `sync`."""
        ...

    def cut(self, checkpoint: Checkpoint) -> None:
        """Everything appended so far may become visible with this checkpoint, once it is synced."""
        ...

    def sync(self) -> Checkpoint:
        """Make the last cut written before this call durable, and return its checkpoint.

        Raises:
            SinkUnavailable: no room; nothing after the last durable cut counts.
            InvariantViolated: fsync failed; the process must stop.
        """
        ...

    def open_spool(self) -> Spool: ...

    def delivered(self, xids: Uint64s) -> Uint64s:
        """Those of these transaction ids (compared by their low 32 bits) that are in the log already."""
        ...

    def transactions_back(self, is_enough: Callable[[Position], bool]) -> pa.Table:
        """Position and id (`position`, `xid`) of the source's newest transactions, oldest first: back to one whose
        position is enough, to the log's beginning, or to where it has expired. More may come than was asked for."""
        ...

    def partial_keys(self, table: TableId, since: Offset) -> KeySet | None:
        """Keys of this table's rows from offset `since` on that came with unchanged columns; None: there are none.

        Raises:
            KeysUnknown: rows from `since` on have expired, the table's key is another one now, or the keys are more
                than `PARTIAL_KEYS_MAX`: the table must be read again from the start.
        """
        ...

    def seal_due(self, now_s: float) -> bool:
        """The hot end is large or old enough to be sealed (`now_s`: a monotonic clock). Cheap; asked often."""
        ...

    def roll(self) -> bool:
        """Close the hot end at the last cut and begin a new one; False when there was nothing to close. Waits for no
        disk: the next `sync` makes the closed one durable before anything behind it."""
        ...

    def seal_pending(self) -> object:
        """Turn what was rolled into immutable segments. Slow; may run in another thread beside everything else."""
        ...

    def close(self) -> None:
        """Drop what no cut covers, seal the rest so that a merge sees all of it, give up the lock. Also after an error;
        then nothing is sealed."""
        ...
