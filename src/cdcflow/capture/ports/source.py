"""A database whose changes and rows cdcflow reads: what every source implements, and what some sources add."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol, runtime_checkable

import pyarrow as pa

from cdcflow.capture.interleave.messages import KnownRows, RowsCompared
from cdcflow.capture.ports.chunks import ChunkSource
from cdcflow.capture.ports.findings import Dropped, Finding
from cdcflow.capture.ports.log import OpenSpool
from cdcflow.capture.ports.stream import Stream
from cdcflow.model.position import Checkpoint, Position, SourceIdentity
from cdcflow.model.table import Table, TableId


@dataclass(frozen=True, slots=True)
class SourceStatus:
    """How far the source is ahead of `acknowledged`, in bytes of its log, and how much of its log it retains for
    cdcflow.

    None: the source cannot report it. `details` are name and value pairs for operators (slot name, wal_status, …).
    `is_lost`: the source has discarded log that cdcflow still needs.
    """

    lag_bytes: int | None
    retained_bytes: int | None
    details: Mapping[str, str]
    is_lost: bool = False


@dataclass(frozen=True, slots=True)
class TablePreview:
    """A table that a start would capture. `rows` and `bytes` are the server's estimates from its statistics (None if it
    has none). `reread` is why the log's rows differ from what the current settings would produce ("": they do not).
    `retried` names the values that are now stored differently ("": none), so that a failed backfill is retried.
    `policies`: the column policies that changed ("": none), so that the table is read again. `misfit`: why the settings
    no longer fit the table, so that it fails when its next changes arrive ("": they fit). `refused`: why a captured
    table cannot be captured now, so that it fails ("": it can). `shape`: its current shape.
    """

    id: TableId
    incarnation: int
    rows: int | None = None
    bytes: int | None = None
    reread: str = ""
    retried: str = ""
    policies: str = ""
    misfit: str = ""
    refused: str = ""
    shape: Table | None = None


@dataclass(frozen=True, slots=True)
class Preview:
    """What a start would capture, sorted by name, and the selected tables that it would skip because they cannot be
    captured."""

    tables: tuple[TablePreview, ...]
    left_out: tuple[TableId, ...] = ()


TransactionsBack = Callable[[Callable[[Position], bool]], pa.Table]
"""The type of `Log.transactions_back`."""


class SourceHistory(Enum):
    """Whether the source's log still has everything since the change log's end: CONTINUES if it has.

    In the other cases the position is a new one. LOST: an operator accepted that changes are missing. RELEASED: the
    source released its log to keep a budget, or removed it by itself, and the settings have the capture continue then.
    MOVED: an operator moved the log to another server.
    """

    CONTINUES = "continues"
    LOST = "lost"
    RELEASED = "released"
    MOVED = "moved"


@dataclass(frozen=True, slots=True)
class TablesToReread:
    """Captured tables with values in the log that were produced under other settings than the current ones.

    `tables`: the log's rows differ from what the current settings would produce; the caller reads these tables again.
    `retried`: tables to read again only if their backfill failed, since it may succeed now.
    """

    tables: frozenset[TableId] = frozenset()
    retried: frozenset[TableId] = frozenset()

    def __bool__(self) -> bool:
        return bool(self.tables or self.retried)

    def __or__(self, other: TablesToReread) -> TablesToReread:
        return TablesToReread(self.tables | other.tables, self.retried | other.retried)

    def only(self, captured: frozenset[TableId]) -> TablesToReread:
        return TablesToReread(self.tables & captured, self.retried & captured)


@dataclass(frozen=True, slots=True)
class Prepared:
    """Where a capture begins. `checkpoint` is the log's, with the source's `position` and the state that the source
    stores in `source`.

    The caller stores, together with the checkpoint, which tables are still to be read again: after LOST every table;
    after RELEASED and MOVED those that cannot be compared with the source.
    """

    checkpoint: Checkpoint
    history: SourceHistory = SourceHistory.CONTINUES
    reread: TablesToReread = field(default_factory=TablesToReread)


class Source(Protocol):
    """A database whose changes and rows cdcflow reads."""

    def identity(self) -> SourceIdentity: ...

    def prepare(
        self,
        checkpoint: Checkpoint,
        log_id: str,
        transactions_back: TransactionsBack | None = None,
        *,
        accept_history_loss: bool = False,
    ) -> Prepared:
        """Create or check everything the stream needs (slot, publication), without ever losing a position.

        `transactions_back` returns transactions of the change log, for a source that can use them to check that the
        server's log is still the one from which the change log was captured (None: nothing is compared).

        With `checkpoint.position` None a new position in the source's log is created and returned in the checkpoint's
        `position` and `source`; otherwise the existing position is checked to be complete and still this log's.

        `accept_history_loss`: an operator accepts that changes are missing. The source then always begins at a new
        position, and reports it (`Prepared.history`); without it, the source begins at a new position only after a
        release that its settings allow.

        Raises:
            HistoryLost: the source no longer has its log since `checkpoint.position`.
            ConfigurationError: a setting, grant or table must change; the message names the SQL.
        """
        ...

    def tables(self) -> Sequence[Table]:
        """The captured tables in their current shape, sorted by name."""
        ...

    def left_out(self, checkpoint: Checkpoint | None = None) -> Sequence[TableId]:
        """Return the tables that the settings select but that cannot be captured, sorted.

        `checkpoint` None: as of the last `prepare` or `tables`; sends no query to the server and may be called from any
        thread. With a checkpoint: the tables that a start from it would skip, according to the server. Nothing is
        prepared.
        """
        ...

    def preview(self, checkpoint: Checkpoint, log_id: str) -> Preview:
        """Return what a start from this checkpoint would capture, according to the server. Nothing is prepared or
        changed.

        Raises:
            ConfigurationError: the settings do not fit the server, its tables or this log; the same error as from
                `prepare`.
        """
        ...

    def compare_rows(self, known: Mapping[TableId, KnownRows]) -> RowsCompared:
        """Compare the current row versions of tables with those at which their rows were read.

        Tables whose version is unchanged, or that were dropped, are not in the result. For a source whose log reports
        every statement that changes rows, the result is empty. May be called from any thread.
        """
        ...

    def stream(self, checkpoint: Checkpoint, open_spool: OpenSpool) -> Stream:
        """Start reading after `checkpoint.position`. Transactions up to it are never delivered again."""
        ...

    def chunks(self) -> ChunkSource: ...

    def doctor(self) -> Sequence[Finding]: ...

    def continues(self, newest: Callable[[], Checkpoint], log_id: str) -> Sequence[Finding]:
        """Return why `prepare` would stop, or a finding that the server still has the log that this change log
        continues from.

        Empty if the log has no position yet. Nothing is changed. `newest` returns the log's latest checkpoint at each
        call, because a daemon may be writing to it.

        Raises:
            SourceUnavailable: the server cannot be queried.
        """
        ...

    def left_behind(self, log_id: str) -> Sequence[Finding]:
        """Return objects at the source that other logs of cdcflow seem to have left, and that cost it something (slots
        that retain its log), each with the SQL that removes it. Nothing is changed."""
        ...

    def drop(self, log_id: str, checkpoint: Checkpoint) -> Sequence[Dropped]:
        """Remove the objects that were created at the source for this log.

        Objects that another log uses are not touched, and an object that no longer exists is no error. The log cannot
        resume from its position afterwards.

        Raises:
            ConfigurationError: another process still reads for this log, or the source is not the log's.
            SourceUnavailable: no answer; objects that were already removed remain removed, and the next call resumes.
        """
        ...

    def status(self, acknowledged: Position | None, log_id: str = "") -> SourceStatus:
        """Return how far the source is ahead, and how much log it retains. `log_id`: the log concerned; "": no log
        exists yet."""
        ...

    def close(self) -> None: ...


@runtime_checkable
class Covering(Protocol):
    """A source that can report which of its captured tables' changes reach the stream at all."""

    def coverage(self, captured: Mapping[TableId, int]) -> Mapping[TableId, str]:
        """Return why changes of captured tables may not reach the stream, according to the server's current catalog.

        `captured` has each table's `incarnation`. A table that is not in the result is covered. May be called from any
        thread.

        Raises:
            SourceUnavailable, RightMissing: the server cannot be queried.
        """
        ...


@runtime_checkable
class RowsElsewhere(Protocol):
    """A source that may read existing rows at another server than the one that it captures changes from."""

    def rows_from(self) -> str:
        """Describe the server that existing rows are read from, and what chunks wait for at that server; "" if it is
        the server of the changes. Any thread may call it."""
        ...


@runtime_checkable
class Choosy(Protocol):
    """A source that skips new tables which its caller refuses, so that they do not stop the other tables."""

    def refuse_with(self, check: Callable[[Table], object]) -> None:
        """Set the check that refuses tables; called before `prepare`.

        `check` gets the shape of a table, and raises ConfigurationError if the table must be refused.
        """
        ...


@runtime_checkable
class ShapeAsking(Protocol):
    """A source whose stream has changes of tables that no longer exist, so that it takes their shapes from the log."""

    def use_shapes(self, shape_of: Callable[[TableId], Table | None]) -> None:
        """Set the function that returns logged shapes; called before `prepare`.

        `shape_of` returns the shape of a table's latest rows in the log, or None if the log has no rows of it. It is
        called from the stream's thread, which may not be the log's.
        """
        ...


@dataclass(frozen=True, slots=True)
class Sample:
    """A digest of some of a table's rows. Only two samples of the same `shape` (the columns and their types)
    compare."""

    shape: str
    digest: str


@runtime_checkable
class Sampled(Protocol):
    """A source that can read a few rows of a table, to detect whether they changed without being logged."""

    def sample(self, table: TableId, key: Sequence[str]) -> Sample | None:
        """Digest the current committed values of a few rows, the same rows at each call. None if the table no longer
        exists.

        `key`: the names of the key's columns, at least one. Cheap for tables of any size. Any thread may call it.

        Raises:
            SourceUnavailable, RightMissing: the rows cannot be read.
        """
        ...


@dataclass(frozen=True, slots=True)
class EventComparison:
    """The result of decoding a row event in two ways. The event ends at `position`; `columns` are those whose values
    differ, and `failure` is any other difference ("": none). `by`: the other decoder."""

    table: TableId
    position: str
    columns: tuple[str, ...]
    failure: str
    by: str

    @property
    def is_equal(self) -> bool:
        return not self.columns and not self.failure


@runtime_checkable
class SecondOpinion(Protocol):
    """A source whose row events can also be decoded by another library, to check its own decoder."""

    def sample_events(self, *, wanted: bool) -> None:
        """Start (or, if not `wanted`, stop) keeping a row event of the stream now and then, for `compare_event`.

        May be called from any thread, and often.
        """
        ...

    def compare_event(self) -> EventComparison | None:
        """Decode the kept row event with the other library, and compare. Return None if no event was kept, or the
        library is not installed. Slow, so do not call it from the stream's thread."""
        ...


@runtime_checkable
class Collated(Protocol):
    """A source whose columns may have collations under which different texts are equal."""

    def loose_collations(self) -> Mapping[TableId, Mapping[str, str]]:
        """Return the names of such collations, by table and column. Tables without such columns may be missing.

        Raises:
            SourceUnavailable, ConfigurationError: the server cannot be queried.
        """
        ...


@runtime_checkable
class Described(Protocol):
    """A source that can describe its server, for the investigation of a problem."""

    def facts(self) -> Mapping[str, str]:
        """The server's version and those of its settings that matter to a capture. No secrets, no values of rows.

        Raises:
            SourceUnavailable, ConfigurationError: the server cannot be queried.
        """
        ...
