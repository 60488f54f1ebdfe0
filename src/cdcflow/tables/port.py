"""What a merge needs from an engine: read the log's files, run SQL over them, change a table.

    job ──▶ Engine ──▶ CurrentTable ──▶ SqlSession
              │            one for each (engine, format): spark/formats/delta.py, tables/local/iceberg.py, …
              └──▶ Cuts

The SQL is Spark's, as `cdcflow.tables.merge` writes it. An engine with another dialect translates it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from cdcflow.log.files.layout import Layout
from cdcflow.model.file_layout import FileLayout, SortColumn
from cdcflow.model.table import Table, TableId
from cdcflow.tables.cut import Cut, CutTable, ListedCut
from cdcflow.tables.merge import reduce
from cdcflow.tables.merge.acts import Act
from cdcflow.tables.merge.contract import Contract, ContractResult
from cdcflow.tables.merge.format import Format
from cdcflow.tables.merge.modes import CURRENT, ModeRules
from cdcflow.tables.merge.policy import DerivedQuery
from cdcflow.tables.merge.statement import Folding
from cdcflow.tables.merge.target import FormatColumn, Target
from cdcflow.tables.segments import InputFile

COMMITTED = "cdcflow"
"""The key of cdcflow's part in a commit's metadata."""

ROW_GROUP_BYTES = 16 << 20
"""Row group size, before compression, of the Parquet files that Spark writes. A scan is split between row groups. With
the default (128 MB) a compacted table of millions of rows is a single row group, which one core reads."""


NO_VALUES: Mapping[str, str] = {}
"""The argument `only` for all rows: no condition on the values of columns."""


class HandOver(Exception):
    """The error of an engine that cannot do something correctly, or should not. The message is the reason. The engine
    has done nothing that would keep another engine from continuing."""


FailureKind = Literal["damaged", "full", "refused", "long", "fault"]
"""`damaged`: a file is missing or has other contents than it should. `full`: the disk is full. `refused`: no permission
to read or write a file. `long`: a path is too long for the file system. `fault`: none of these, as far as is known."""


@dataclass(frozen=True, slots=True)
class Failure:
    """What an engine's error means for the table it occurred at. `what`: the error's kind, without its text, which may
    contain a row's values. `place`: the file or folder concerned ("" if unknown)."""

    kind: FailureKind
    what: str
    place: str = ""


@dataclass(frozen=True, slots=True)
class TableSnapshot:
    """The latest version of a table. `id` belongs to the table: a different table at the same path has a different id.

    `version` grows with every change of rows. `transactions`: the latest version that each writer recorded with its
    data. `is_empty`: the table has no rows; also False if that is not known. `commit` identifies the commit that
    created the version: a different version with the same number has a different one ("" if unknown, or if no commit of
    rows exists yet).
    """

    id: str
    version: int
    properties: Mapping[str, str]
    transactions: Mapping[str, int]
    columns: tuple[FormatColumn, ...]
    is_empty: bool = False
    commit: str = ""


@dataclass(frozen=True, slots=True)
class Kept:
    """What maintenance must keep of a table. `versions`: the versions that kept cuts show, by the table's id ("" if
    unknown). `oldest`: the oldest kept cut. `since`: everything younger than this is kept in any case, in seconds since
    1970 (`None`: everything is kept)."""

    versions: Mapping[str, frozenset[int]]
    oldest: int
    since: float | None

    def of(self, id_: str) -> frozenset[int]:
        """Return the versions that kept cuts show of the table with this id."""
        return self.versions.get(id_, frozenset()) | self.versions.get("", frozenset())


@dataclass(frozen=True, slots=True)
class Shown:
    """A table that the kept cuts show: its path, and the versions that they show, by the table's id."""

    path: str
    ids: Mapping[str, frozenset[int]]


@dataclass(frozen=True, slots=True)
class Compacted:
    """The result of a compaction: `files` files were rewritten into `made` files. `has_more`: more remain to be
    compacted. `in_order`: the rewritten rows were sorted."""

    files: int = 0
    made: int = 0
    has_more: bool = False
    in_order: bool = False

    def __add__(self, later: Compacted) -> Compacted:
        return Compacted(
            self.files + later.files, self.made + later.made, later.has_more, self.in_order or later.in_order
        )

    def __str__(self) -> str:
        if not self.files:
            return ""
        return f"{self.files} files made {self.made}{', in order' if self.in_order else ''}"


class SqlSession(Protocol):
    """Runs SQL over temporary views. Only one thread may use it at a time."""

    sorts_each_window: bool
    """Whether the engine sorts again for each of several windows with the same order."""

    takes_by_offset: bool
    """Whether the values of a change are looked up by its offset. This is necessary if an aggregate function may
    return a different value than the one that it was given: DuckDB's `arg_max` over a struct returns 0.0 for -0.0,
    and the same NaN for every NaN."""

    def read(
        self, what: str, files: Sequence[InputFile], shape: Table, where: str, columns: Sequence[str], *, moved: bool
    ) -> str:
        """Create a view of the log's rows in files of one shape and return its name. `columns` are expressions over the
        log's columns; `moved`: whether the old key is one of them."""

    def transactions(self, files: Sequence[InputFile], columns: Sequence[str]) -> str:
        """Create a view of the transactions in files of segments and return its name. `columns` are expressions over
        `TRANSACTIONS_READ` of `cdcflow.tables.merge.reduce`."""

    def view(self, what: str, sql: str) -> str:
        """Create a view of a query and return its name."""

    def keep(self, what: str, sql: str) -> str:
        """Create a view of a query whose result is computed at once and stored, and return its name."""

    def hold(self, view: str) -> None:
        """Store the rows of a view on first read, because it is read several times."""

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        """Return the result of a query that has few rows."""

    def drop(self, views: Sequence[str]) -> None:
        """Drop views."""


class CurrentTable(ABC):
    """A current-state table, which may not exist yet. It belongs to one thread at a time.

    Each method that changes it makes one commit, which carries `metadata`. With `app` the commit also records the
    transaction (app, version); if the table has, or once had, that transaction already, the method does nothing. If
    another process commits after `snapshot`, the change either fails with an error that `Engine.is_conflict`
    recognizes, or is merged with that commit.
    """

    @property
    @abstractmethod
    def session(self) -> SqlSession:
        """The session in which changes of the table are computed."""

    @abstractmethod
    def snapshot(self) -> TableSnapshot | None:
        """Return the latest version of the table; `None` if the table does not exist."""

    def own_snapshot(self) -> TableSnapshot | None:
        """Return the version that the latest change through this object made; if there was no such change, the same as
        `snapshot`. Another process may have changed the table since."""
        return self.snapshot()

    @abstractmethod
    def newest_commit(self) -> Mapping[str, Any] | None:
        """Return the metadata of the table's latest commit; `None` if cdcflow did not make that commit, or if this
        cannot be determined quickly."""

    @abstractmethod
    def transactions_of(self, version: int) -> Mapping[str, int]:
        """Return the value of `TableSnapshot.transactions` at an older version; empty if it is no longer known."""

    @abstractmethod
    def commit_of(self, version: int) -> str:
        """Return the value of `TableSnapshot.commit` at a version; "" if it is not known, or no longer."""

    @abstractmethod
    def drop_torn(self, published: int | None = None) -> None:
        """Set aside the latest commits if a power cut left them torn; they count as never made. `published`: the
        version that was published, up to which everything was synced (`None` if unknown). Only for a process that holds
        the warehouse's lease; call `snapshot` afterwards.

        Raises:
            HistoryLost: they cannot be set aside; the message says what to do instead.
        """

    @abstractmethod
    def sync(self, published: int | None) -> None:
        """Make durable everything after a version (`None`: everything), if the table is in a folder of this machine."""

    @abstractmethod
    def edits_since(self, version: int) -> list[str]:
        """Return what other writers did to the rows after `version`: `operation@version`, latest first."""

    def pin(self, version: int, cut: int) -> None:  # noqa: B027  nothing to do where versions have no names
        """Keep a version for as long as its cut is kept, if the format does not do so anyway."""

    @abstractmethod
    def make(
        self,
        target: Target,
        source: str,
        begun: int,
        metadata: Mapping[str, Any],
        mode: ModeRules = CURRENT,
        *,
        wide: bool = False,
    ) -> None:
        """Create the table (see `statement.create`). `wide`: choose features so that as many readers as possible can
        open it."""

    @abstractmethod
    def begin(self, begun: int, metadata: Mapping[str, Any]) -> None:
        """Record, for a table that was created and has no rows yet, the offset at which folding now starts."""

    @abstractmethod
    def follow(self, act: Act, metadata: Mapping[str, Any], app: str = "", version: int = 0) -> None:
        """Apply one step of an evolution."""

    @abstractmethod
    def arrange(self, layout: FileLayout, recorded: str, metadata: Mapping[str, Any]) -> None:
        """Give the table a different layout for new files; existing files keep theirs. `recorded`: the value of the
        table property that records the layout."""

    @abstractmethod
    def standing(self, layout: reduce.ColumnLayout, changes: str, *, whole: bool = False) -> str:
        """Return a name in SQL for existing rows of the table: at least those whose keys are in the view `changes`, or
        with `whole` all of them."""

    @abstractmethod
    def fold(self, folding: Folding, metadata: Mapping[str, Any], app: str, version: int) -> None:
        """Merge a range of changes into the table."""

    @abstractmethod
    def check_rows(
        self,
        table: TableId,
        contract: Contract,
        mode: ModeRules,
        quarantine: Callable[[], CurrentTable],
        result: ContractResult,
        metadata: Mapping[str, Any],
    ) -> None:
        """Make `fold` check the rows that it writes against a contract before its commit. `quarantine` opens the table
        for rows that are kept out; `result` is filled with what the check found.

        Raises:
            ContractBroken: the package that checks rows is not installed.
        """

    @abstractmethod
    def sweep(
        self,
        before: int,
        metadata: Mapping[str, Any],
        app: str,
        version: int,
        ended: Sequence[str] = (),
        assigned: str = "",
        only: Mapping[str, str] = NO_VALUES,
    ) -> None:
        """Remove the rows older than an offset. If the mode marks rows as deleted, in columns `ended`
        (`ModeRules.ending_columns`), mark these instead. `only`: restricts this to rows with these values in these
        columns."""

    @abstractmethod
    def rows_that_miss(
        self, ended: Sequence[str] = (), left: Collection[str] = (), only: Mapping[str, str] = NO_VALUES
    ) -> int:
        """Return how many rows lack the value of a column that is not in `left`, not counting rows marked as deleted.
        `only`: as in `sweep`."""

    @abstractmethod
    def compact(self, order: Sequence[SortColumn] = ()) -> Compacted:
        """Merge small files, and rewrite files in which many rows are deleted, in one commit; rows, position and cuts
        do not change. `order`: columns by which the rewritten rows are sorted; if empty, the rows keep their order.
        Raises HandOver if this engine does not compact."""

    def rewrite_portion(self, order: Sequence[SortColumn] = ()) -> Any:  # Any: only the same engine reads it
        """Do the reading and writing of `compact` for one portion, without a commit, and return what `finish_portion`
        needs; `None` if nothing is to be compacted. Merges may run at the same time.

        Raises:
            HandOver: this engine does not compact in two steps.
        """
        raise HandOver("this engine compacts in one step")

    def finish_portion(self, done: Any) -> Compacted | None:
        """Commit a rewritten portion. Return `None`, without a commit, if files that were rewritten are no longer in
        the table."""
        raise HandOver("this engine compacts in one step")

    def look_around(self, kept: Kept) -> None:  # noqa: B027  most have nothing to list
        """List the files among which a later `let_go` chooses. Merges may run between the two calls."""

    @abstractmethod
    def let_go(self, kept: Kept) -> str:
        """Remove everything that no kept cut needs and that is older than `kept.since`. Return a description of what
        was removed ("" if nothing was). Raises HandOver if this engine does not do this."""

    @abstractmethod
    def close(self) -> None:
        """Release the table's session."""


class Cuts(Protocol):
    """The published cuts of a warehouse."""

    def drop_torn(self) -> None:
        """Set aside the latest commits of the table of cuts, if a power cut left them torn (see
        `CurrentTable.drop_torn`)."""

    def newest(self) -> Cut | None:
        """Return the latest published cut; `None` if there is none."""

    def cut_by_number(self, cut: int) -> Cut | None:
        """Return the cut with that number; `None` if it was not published, or is no longer kept."""

    def list_cuts(self) -> list[ListedCut]:
        """Return all kept cuts, oldest first, each once."""

    def latest_expired(self) -> int:
        """Return the latest cut that maintenance has expired; 0 if none has expired yet."""

    def tables_shown(self) -> Mapping[str, Shown]:
        """Return every table that a kept cut shows, keyed by name."""

    def tidy(self, oldest: int) -> None:
        """Expire the cuts before `oldest`, if there are any, and merge the small files of the table of cuts."""

    def publish(self, cut: Cut) -> None:
        """Append a cut. A cut may be published again, for example because a backfill turned out to be done; for
        readers, the new row replaces the earlier one.

        Raises:
            SinkUnavailable: another merge has published a cut since `newest` was called.
        """


class Later(Protocol):
    """Work that commits leave for later, which a thread may do while others commit. If it is never done, nothing is
    lost."""

    @property
    def is_due(self) -> bool:
        """Whether any work is waiting."""

    def do_next(self) -> None:
        """Do the piece of work that has waited longest."""


@dataclass(frozen=True, slots=True)
class DerivedVersion:
    """A version of a derived table. `units`: how many units of its rows were computed again. `None`: all of them were;
    `why` is then the reason, or "" if the table was new."""

    id: str
    version: int
    commit: str
    units: int | None = None
    why: str = ""


class Deriver(Protocol):
    """Computes derived tables from the tables of a cut."""

    def inputs(self, query: DerivedQuery, known: Mapping[str, tuple[str, str]]) -> tuple[str, ...]:
        """Return the names of the tables that a query reads. `known`: the tables that exist, as (schema, name), keyed
        by name.

        Raises:
            CannotFollow: a derived table cannot have this query, or one of its tables does not exist.
        """

    def derive(
        self,
        name: str,
        query: DerivedQuery,
        inputs: Mapping[str, CutTable],
        known: Mapping[str, CutTable],
        shown: CutTable | None,
        cut: int,
    ) -> DerivedVersion:
        """Bring a derived table to the result of its query for these versions of its inputs. `shown`: the version of
        the table that the published cut shows; `known`: the versions of the inputs in that cut.

        Raises:
            CannotFollow: the table cannot be computed from these rows, or cannot be stored.
        """

    def explain(self, query: DerivedQuery, inputs: Mapping[str, CutTable]) -> str:
        """Return a description of how changes of these inputs reach the derived table."""

    def differences(self, query: DerivedQuery, inputs: Mapping[str, CutTable], shown: CutTable) -> tuple[int, int]:
        """Return how many rows a version of the table lacks, and how many extra ones it has, compared with the result
        of its query for these versions of its inputs."""


class Engine(Protocol):
    """The interface of an engine that merges into the tables of one warehouse, all of which have one format."""

    name: str
    reads_in_place: bool
    """Whether the engine reads a log's files in place, also from an object store. Otherwise they are fetched to the
    local disk."""

    compacts_concurrently: bool
    """Whether the engine can compact tables while a merge runs. Otherwise compaction has two steps, and a merge waits
    for the second one, the commit."""

    @property
    def rules(self) -> Format:
        """The format of the warehouse's tables."""

    def lease(self) -> AbstractContextManager[None]:
        """Return the lock that a merge holds while it works in the warehouse. Entering it raises SinkUnavailable if
        another merge holds it."""

    def upkeep_lease(self) -> AbstractContextManager[None]:
        """Return the lock that is held during a maintenance step for which merges have to wait. Entering it raises
        SinkUnavailable if a merge is running."""

    def readable_files(self, layout: Layout, files: Sequence[InputFile], room: Path) -> list[InputFile]:
        """Return the files at paths where this engine can read them, for as long as the folder `room` exists.

        Raises:
            HistoryLost, SinkUnavailable, InvariantViolated: as `segments.present` does.
        """

    def defer_checkpoints(self) -> Later | None:
        """From now on, leave the writing of checkpoints of tables' logs as later work, and return that work. `None` if
        commits of this engine write no checkpoints, or give them to other threads at once."""

    def cuts(self) -> Cuts: ...

    def deriver(self) -> Deriver:
        """Return the object that computes derived tables.

        Raises:
            CannotFollow: this engine cannot compute any in this warehouse.
        """

    def table(self, path: Sequence[str]) -> CurrentTable:
        """Return the table at a path (schema, name)."""

    def declines(
        self, before: TableSnapshot | None, files: Sequence[InputFile], mode: ModeRules = CURRENT
    ) -> str | None:
        """Return why another engine should merge these files into a table; `None` if this one will."""

    def read_text(self, path: Sequence[str]) -> str | None:
        """Return the text of one of cdcflow's small files in the warehouse; `None` if it does not exist."""

    def write_text(self, path: Sequence[str], text: str) -> None:
        """Write one of cdcflow's small files atomically: a reader sees either the old or the new content, whole."""

    def is_conflict(self, error: BaseException) -> bool:
        """Return whether a commit failed because another process committed to the table at the same time. Nothing of
        the failed commit was applied, and it can be tried again."""

    def failure(self, error: Exception) -> Failure | None:
        """Return what an error that ended the merge of one table means; `None` if the engine itself cannot continue."""
