"""What a merge asks of the engine that runs it: to read the log's files, to say SQL over them, to change a table.

    job ──▶ Engine ──▶ CurrentTable ──▶ SqlSession
              │            one for each (engine, format): spark/formats/delta.py, local/iceberg.py, …
              └──▶ Cuts

The SQL is Spark's, as `cdcflow.merge` writes it. An engine that speaks another dialect translates.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from cdcflow.changelog.layout import Layout
from cdcflow.merge import reduce
from cdcflow.merge.acts import Act
from cdcflow.merge.format import Format
from cdcflow.merge.modes import CURRENT, ModeRules
from cdcflow.merge.statement import Folding
from cdcflow.merge.target import FormatColumn, Target
from cdcflow.model.table import Table
from cdcflow.warehouse.cut import Cut, ListedCut
from cdcflow.warehouse.segments import InputFile

COMMITTED = "cdcflow"
"""What the metadata of our commits stands under."""

ROW_GROUP_BYTES = 16 << 20
"""Of the Parquet files that Spark writes, before compression. A scan is split between row groups: by default (128 MB) a
compacted table of millions of rows is one of them, which one core reads."""


class HandOver(Exception):
    """This engine cannot do it right, or should not; the message says why. Nothing of it was done that another engine
    could not go on from."""


FailureKind = Literal["damaged", "full", "refused", "fault"]
"""`damaged`: a file is gone, or holds something else than it should. `full`: no room on a disk. `refused`: a file may
not be read or written. `fault`: none of these, as far as is known."""


@dataclass(frozen=True, slots=True)
class Failure:
    """What an error of an engine means for the table that it was at. `what`: the error's kind, without its text, which
    may have a row's values. `place`: the file or folder that it is about ("": not known)."""

    kind: FailureKind
    what: str
    place: str = ""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A table's newest version. `id` is the table's own: another table at the same path has another one.

    `version` grows with every change of rows. `transactions`: the newest version that each writer recorded with its
    data. `is_empty`: it has no rows; False also where that is not known. `commit` identifies the commit that made the
    version: another version of the same number has another one ("": not known, or there is no commit of rows yet).
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
    """What upkeep must leave of a table. `versions`: by the table's id ("": not known) those that kept cuts show.
    `oldest`: the oldest kept cut. `since`: what is younger stays in any case, in seconds since 1970 (None: all)."""

    versions: Mapping[str, frozenset[int]]
    oldest: int
    since: float | None

    def of(self, id_: str) -> frozenset[int]:
        """The versions that kept cuts show of the table with this id."""
        return self.versions.get(id_, frozenset()) | self.versions.get("", frozenset())


@dataclass(frozen=True, slots=True)
class Shown:
    """A table in the kept cuts: where it is, and by its id the versions that they show."""

    path: str
    ids: Mapping[str, frozenset[int]]


@dataclass(frozen=True, slots=True)
class Compacted:
    """So many files were written again, and became so many. `has_more`: more are to be. `in_order`: their rows were
    put in an order."""

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
    """Runs SQL over temporary views. One thread at a time."""

    sorts_each_window: bool
    """Windows of the same order that follow one another sort anew, each."""

    takes_by_offset: bool
    """An aggregate function may return another value than it was given (DuckDB's `arg_max` over a struct returns -0.0
    as 0.0, and each NaN as the same one), so the values of a change are looked up by its offset."""

    def read(
        self, what: str, files: Sequence[InputFile], shape: Table, where: str, columns: Sequence[str], *, moved: bool
    ) -> str:
        """A view of rows of the log in files of one shape: `columns` are expressions over the log's columns, `moved`
        says whether the old key is one of them. Returns its name."""

    def transactions(self, files: Sequence[InputFile], columns: Sequence[str]) -> str:
        """A view of the transactions in files of segments: `columns` are expressions over `TRANSACTIONS_READ` of
        `cdcflow.merge.reduce`. Returns its name."""

    def view(self, what: str, sql: str) -> str:
        """A view of a query. Returns its name."""

    def keep(self, what: str, sql: str) -> str:
        """The same, with the result worked out at once and kept."""

    def hold(self, view: str) -> None:
        """What is read of a view time and again is worked out once, when it is first read."""

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        """The result of a query that has few rows."""

    def drop(self, views: Sequence[str]) -> None:
        """Forget views."""


class CurrentTable(Protocol):
    """A current-state table, which may not be there yet. It belongs to one thread at a time.

    What changes it is one commit that carries `metadata`. With `app` it also records the transaction (app, version): of
    one that the table has already, or had, nothing is done. Somebody else's commit since `snapshot` makes it fail with
    an error that `Engine.is_conflict` knows, or is merged with.
    """

    @property
    def session(self) -> SqlSession:
        """What its changes are worked out in."""

    def snapshot(self) -> Snapshot | None:
        """Its newest version; None where there is no table."""

    def newest_commit(self) -> Mapping[str, Any] | None:
        """The metadata of the newest commit; None where it is not ours, or cannot be told quickly."""

    def transactions_of(self, version: int) -> Mapping[str, int]:
        """What `Snapshot.transactions` was at an older version; none of them where that is not known any more."""

    def commit_of(self, version: int) -> str:
        """What `Snapshot.commit` is of a version; "": that is not known, or no longer."""

    def drop_torn(self, published: int | None = None) -> None:
        """Set the latest commits aside that a power cut left torn: they count as ones that never came. `published`: the
        version that was published (None: not known), up to which everything was synced. Only for a process that has
        the warehouse's lease; `snapshot` comes after it.

        Raises:
            HistoryLost: that cannot be done; the message says what can.
        """

    def sync(self, published: int | None) -> None:
        """Make durable what came after a version (None: everything), in a folder of this machine."""

    def edits_since(self, version: int) -> list[str]:
        """What someone else did to the rows after `version`: `operation@version`, newest first."""

    def pin(self, version: int, cut: int) -> None:
        """Keep a version for as long as its cut is kept, where the format does not by itself."""

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
        """Create it (see `statement.create`). `wide`: so that as many readers as possible open it."""

    def begin(self, begun: int, metadata: Mapping[str, Any]) -> None:
        """Of a table that was made and has no rows yet: from where it is folded now."""

    def follow(self, act: Act, metadata: Mapping[str, Any], app: str = "", version: int = 0) -> None:
        """One act of an evolution."""

    def standing(self, layout: reduce.Layout, changes: str, *, whole: bool = False) -> str:
        """A name in SQL of the rows that the table has: at least those whose keys are in the view `changes`. `whole`:
        all of them."""

    def fold(self, folding: Folding, metadata: Mapping[str, Any], app: str, version: int) -> None:
        """Bring a range of changes into it."""

    def sweep(
        self,
        before: int,
        metadata: Mapping[str, Any],
        app: str,
        version: int,
        ended: str | None = None,
        assigned: str = "",
    ) -> None:
        """Remove the rows older than an offset; or end them, where a column says of a row that it is no more."""

    def rows_that_miss(self, ended: str | None = None, left: Collection[str] = ()) -> int:
        """How many rows miss columns other than `left`, those that are no more aside."""

    def compact(self, order: Sequence[str] = ()) -> Compacted:
        """Make small files one, and write those again of which much is dead, in one commit: rows, position and cuts
        stay. `order`: columns, none of which is NULL anywhere, by which the rows of what is written are ordered; none:
        they lie as they lay. HandOver: this engine does not."""

    def let_go(self, kept: Kept) -> str:
        """Remove what neither a kept cut needs, nor anything younger than `kept.since`. Returns what was done ("":
        nothing was to be). HandOver: this engine does not."""

    def close(self) -> None:
        """Let go of its session."""


class Cuts(Protocol):
    """The published cuts of a warehouse."""

    def drop_torn(self) -> None:
        """See `CurrentTable.drop_torn`."""

    def newest(self) -> Cut | None:
        """The newest; None where there is none."""

    def numbered(self, cut: int) -> Cut | None:
        """The cut of that number; None where it was not published, or is no longer kept."""

    def listed(self) -> list[ListedCut]:
        """All that are kept, oldest first, each once."""

    def expired(self) -> int:
        """The newest cut that upkeep has let go of; 0: none yet."""

    def shown(self) -> Mapping[str, Shown]:
        """By name every table that a kept cut shows."""

    def tidy(self, oldest: int) -> None:
        """Let go of the cuts before `oldest`, if there are any, and make few files of many."""

    def publish(self, cut: Cut) -> None:
        """Append one. One that is published again (a backfill was found to be done) replaces itself for readers.

        Raises:
            SinkUnavailable: another merge has published one since `newest` was asked.
        """


class Engine(Protocol):
    """Something that merges into the tables of one warehouse, which are all of one format."""

    name: str
    reads_in_place: bool
    """It reads a log's files where they lie, also in an object store; else they are brought to the local disk."""

    compacts_beside: bool
    """Its tables are made compact while a merge may be at work; else the merge waits."""

    @property
    def rules(self) -> Format:
        """The tables' format."""

    def lease(self) -> AbstractContextManager[None]:
        """For as long as one merge works in the warehouse. SinkUnavailable: another one does."""

    def upkeep_lease(self) -> AbstractContextManager[None]:
        """For as long as a step of upkeep works that a merge waits for. SinkUnavailable: a merge is at work."""

    def located(self, layout: Layout, files: Sequence[InputFile], room: Path) -> list[InputFile]:
        """The files where this engine reads them, for as long as the folder `room` is there.

        Raises:
            HistoryLost, SinkUnavailable, InvariantViolated: as `segments.present` does.
        """

    def cuts(self) -> Cuts: ...

    def table(self, path: Sequence[str]) -> CurrentTable:
        """The table at a path (schema, name)."""

    def declines(self, before: Snapshot | None, files: Sequence[InputFile], mode: ModeRules = CURRENT) -> str | None:
        """Why another engine should merge these files into a table; None: this one will."""

    def read_text(self, path: Sequence[str]) -> str | None:
        """A small file of ours in the warehouse; None where there is none."""

    def write_text(self, path: Sequence[str], text: str) -> None:
        """Put such a file there: who reads it sees the old one or the new one, whole."""

    def is_conflict(self, error: BaseException) -> bool:
        """Whether a commit failed because somebody else committed to the table meanwhile: nothing of it was done,
        and it may be said again."""

    def failure(self, error: Exception) -> Failure | None:
        """What an error means that ended the merge of one table; None: the engine itself cannot go on."""
