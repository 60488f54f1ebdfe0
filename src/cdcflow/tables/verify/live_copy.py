"""A copy that a live view shows, whichever engine reads it. A query runs over a table's rows, and its answer is
returned instead of the rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from cdcflow.log.files.layout import Layout
from cdcflow.log.fold.completeness import IN_DOUBT
from cdcflow.model import digest
from cdcflow.model.sqltypes import name_sql
from cdcflow.model.table import TableId
from cdcflow.tables.cut import Cut
from cdcflow.tables.job import live
from cdcflow.tables.job.live import Live, NewestCut, Reader
from cdcflow.tables.job.past_tables import PastTable
from cdcflow.tables.merge.format import Format
from cdcflow.tables.merge.modes import CURRENT, DELETED, ModeRules
from cdcflow.tables.merge.policy import DEFAULTS, Policies
from cdcflow.tables.merge.statement import is_ended
from cdcflow.tables.merge.target import Target
from cdcflow.tables.paths import Warehouse
from cdcflow.tables.port import Failure, SqlSession, TableSnapshot
from cdcflow.tables.segments import InputFile
from cdcflow.tables.verify.port import At, Columns, NotComparable, NothingSealed

Answer = TypeVar("Answer")

Ask = Callable[[PastTable[Any], str, Target], Answer]
"""A query of a table's rows: called with the table, a query of its rows, and the description of its columns."""


class Declined(NotComparable):
    """The error of an engine that cannot read this table; the other engine can."""


@dataclass(frozen=True, slots=True)
class CopyParts:
    """The log and the warehouse that make up a copy. `of_log`: the log alone is the copy, and merged tables are
    ignored."""

    layout: Layout
    warehouse: Warehouse
    of_log: bool
    policies: Policies


def ask_copy(reader: Reader[Any], place: CopyParts, table: TableId, ask: Ask[Answer]) -> tuple[At, Answer]:
    """Run a query over the copy of a table. Return the answer, and the copy's place in the log.

    Raises:
        NotComparable: the table cannot be shown.
    """
    asking = _AskingReader(reader, ask, place.of_log)
    name = str(table)
    # The settings of a table in the warehouse do not apply to the log alone.
    policies = DEFAULTS if place.of_log else place.policies
    found: Live[Answer] = live.read(asking, place.layout, place.warehouse, [name], incomplete=True, policies=policies)
    if name in found.left_out:
        raise (Declined if name in found.declined else NotComparable)(found.left_out[name])
    if not found.cut:
        raise NothingSealed
    state = found.incomplete.get(name, "" if name in found else "not read")
    if state not in ("", IN_DOUBT):
        raise NotComparable(f"its existing rows are not all in the log (state: {state})")
    return At(found.cut, found.offset), found[name]


def matching(columns: Columns, rows: str, wanted: str) -> str:
    """Return a query for the rows with the keys in `wanted`; in a table without a key, with the digests in it."""
    names = [name_sql(name) for name, _ in columns.columns]
    listed = ", ".join(f"r.{name}" for name in names)
    if not columns.has_key:
        number = digest.digest(digest.row_text([(f"r.{name_sql(n)}", type_) for n, type_ in columns.columns]))
        return f"SELECT {listed} FROM {rows} r LEFT SEMI JOIN {wanted} w ON {number} = w.d"  # noqa: S608  name_sql
    same = " AND ".join(f"r.{name_sql(name)} <=> w.k{i}" for i, name in enumerate(columns.key))
    return f"SELECT {listed} FROM {rows} r LEFT SEMI JOIN {wanted} w ON {same}"  # noqa: S608  name_sql


def check(columns: Columns, target: Target) -> None:
    """Check that the copy still has these columns.

    Raises:
        NotComparable: the copy has changed.
    """
    types = {c.name: c.type for c in target.columns}
    if any(types.get(name) != type_ for name, type_ in columns.columns):
        raise NotComparable("its columns were changed while it was compared; compare it again")


class _AskingReader(Generic[Answer]):
    """Returns the answer to a query in place of a table's rows. Implements `tables.job.live.Reader`."""

    def __init__(self, reader: Reader[Any], ask: Ask[Answer], of_log: bool) -> None:
        self._reader = reader
        self._ask = ask
        self._of_log = of_log
        self.name = reader.name
        self.remedy = reader.remedy
        self.shows_doubled = True
        self.rules: Format = reader.rules

    def cuts(self) -> NewestCut:
        return _NoCuts() if self._of_log else self._reader.cuts()

    def table(self, path: Sequence[str]) -> _AskedTable[Answer]:
        return _AskedTable(self._reader.table(path), self._ask)

    def readable_files(self, layout: Layout, files: Sequence[InputFile], room: Path) -> list[InputFile]:
        return self._reader.readable_files(layout, files, room)

    def declines(self, files: Sequence[InputFile], mode: ModeRules = CURRENT) -> str | None:
        return self._reader.declines(files, mode)

    def is_gone(self, error: BaseException) -> bool:
        return self._reader.is_gone(error)

    def failure(self, error: Exception) -> Failure | None:
        return None if isinstance(error, NotComparable) else self._reader.failure(error)


@dataclass(frozen=True, slots=True)
class _AskedTable(Generic[Answer]):
    """A table for whose rows a query is answered. Implements `tables.job.past_tables.PastTable`."""

    table: PastTable[Any]
    ask: Ask[Answer]

    @property
    def session(self) -> SqlSession:
        return self.table.session

    def as_of(self, version: int) -> TableSnapshot:
        return self.table.as_of(version)

    def base(self) -> str:
        return self.table.base()

    def result(self, query: str, target: Target, mode: ModeRules = CURRENT) -> Answer:
        return self.ask(self.table, _rows_now(query, mode), target)

    def close(self) -> None:
        self.table.close()


def _rows_now(query: str, mode: ModeRules) -> str:
    """Return a query for those rows of a table that its source currently has, according to the table.

    Raises:
        NotComparable: the table's rows are changes.
    """
    if mode.keeps_changes:
        raise NotComparable(
            f"it has mode {mode.name}: its rows are changes, and the source has none; compare the log (--against log)"
        )
    if mode.ended == DELETED:
        return f"SELECT * FROM ({query}) WHERE NOT {is_ended('', mode.ending_columns)}"  # noqa: S608  cdcflow's own names
    return f"SELECT * FROM ({query}) WHERE {mode.open_only}" if mode.open_only else query  # noqa: S608  name_sql


class _NoCuts:
    """The cuts of a warehouse into which nothing was merged."""

    def newest(self) -> Cut | None:
        return None
