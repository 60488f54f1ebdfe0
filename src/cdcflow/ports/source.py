"""A database whose changes and rows we read: what a capture asks of it, and what it may be able to tell besides."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import pyarrow as pa

from cdcflow.interleave.messages import RowsCompared
from cdcflow.model.position import Checkpoint, Position, SourceIdentity
from cdcflow.model.table import Table, TableId
from cdcflow.ports.chunks import ChunkSource
from cdcflow.ports.findings import Dropped, Finding
from cdcflow.ports.stream import OpenSpool, Stream


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
    has none); `reread` says why rows in the log are not what the settings make of them now ("": they are), `retried`
    which values are kept otherwise than before ("": none), so that a reading which failed is tried again."""

    id: TableId
    incarnation: int
    rows: int | None = None
    bytes: int | None = None
    reread: str = ""
    retried: str = ""


@dataclass(frozen=True, slots=True)
class Preview:
    """What a start would capture, sorted by name, and the selected tables that it would leave out because they cannot
    be captured."""

    tables: tuple[TablePreview, ...]
    left_out: tuple[TableId, ...] = ()


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


@runtime_checkable
class ShapeAsking(Protocol):
    """A source whose stream has changes of tables that no longer exist: the log remembers how they look."""

    def use_shapes(self, shape_of: Callable[[TableId], Table | None]) -> None:
        """Called before `prepare`. `shape_of`: the shape of a table's latest rows in the log (None: it has none); for
        the stream's thread, which may be another one than the log's."""
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


@dataclass(frozen=True, slots=True)
class EventComparison:
    """A row event that was decoded in two ways. It ends at `position`; `columns` are those whose values differ, and
    `failure` is what differs otherwise ("": nothing). `by`: the other decoder."""

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
    """A source that can have row events decoded by another library than its own decoder."""

    def sample_events(self, *, wanted: bool) -> None:
        """Keep a row event of the stream for `compare_event` now and then, or no longer. May be called from any thread,
        and often."""
        ...

    def compare_event(self) -> EventComparison | None:
        """Decode the kept row event by the other library, and compare. None: no event was kept, or the library is not
        installed. Not for the stream's thread: it takes a while."""
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
