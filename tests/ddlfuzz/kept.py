"""What PostgreSQL's log keeps of dropped tables: the rows that each had at its end.

    a daemon has read the table ── rows change ── DROP, RENAME, SET SCHEMA, ATTACH
            `seen`                                 `before` takes them, `after` sees that its name is gone

Changes of a table that was renamed, moved or attached still have its old name until the capture reads the catalog: from
then, its log may end at any of its states. Nothing is expected of a table where other things than rows have changed,
before or after it lost its name, because a dropped one cannot be read again; nor after a stop, which may have lost
history.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from tests.ddlfuzz import oracle
from tests.ddlfuzz.kinds import Step
from tests.ddlfuzz.rows import ROWS

from cdcflow.capture.interleave.progress import Progress
from cdcflow.model.table import TableId

Rows = list[tuple[Any, ...]]
MADE = ("create_table", "create_parted")
MOVED = ("drop_table", "drop_schema", "rename_table", "move_table", "recreate_table", "attach_part", "detach_part")
HARMLESS = ("set_default", "drop_default", "rewrite", "rewrite_sorted", "identity_full", "identity_default")
OF_ALL = ("publish_less", "publish_all")


@dataclass(frozen=True)
class Standing:
    """A captured table as the catalog has it; none that has partitions."""

    number: int
    table: TableId
    columns: Sequence[str]


class Catalog(Protocol):
    """The queries of the server, in the session of the case."""

    def standing(self) -> list[Standing]: ...
    def name_of(self, number: int) -> TableId | None:
        """A relation's present name; `None` if it was dropped."""

    def rows_of(self, number: int, columns: Sequence[str]) -> Rows | None:
        """A relation's rows, under any name; `None` if it was dropped or lacks these columns."""


@dataclass(frozen=True)
class Ended:
    """A dropped table: its rows by its log are one of these states."""

    number: int
    columns: Sequence[str]
    states: tuple[Rows, ...]


@dataclass(frozen=True)
class _Known:
    """`names`: the tables' numbers. `used`: names that have meant something else since. `read`: under which name.
    `altered`: numbers."""

    names: Mapping[TableId, int]
    used: frozenset[TableId] = frozenset()
    read: frozenset[tuple[TableId, int]] = frozenset()
    altered: frozenset[int] = frozenset()
    ended: Mapping[TableId, Ended] = field(default_factory=dict)


class Kept:
    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._known = _Known({})
        self._at_begin = self._at_savepoint = self._known
        self._before: dict[TableId, Ended] = {}
        self._names_before: dict[int, TableId | None] = {}

    def seen(self, done: Collection[str]) -> None:
        """A daemon has all that is committed, and has read these tables. A name that meant another table may still mean
        that one to it."""
        known = self._known
        read = {item for item in known.names.items() if str(item[0]) in done and item[0] not in known.used}
        self._known = _with(known, read=known.read | read)

    def lost(self) -> None:
        """The log may have a gap."""
        states = (self._known, self._at_begin, self._at_savepoint)
        self._known, self._at_begin, self._at_savepoint = (_with(k, read=frozenset(), ended={}) for k in states)

    def before(self, step: Step) -> None:
        """Take the rows of the tables that a step may end."""
        self._before = {}
        self._names_before = {e.number: self._catalog.name_of(e.number) for e in self._known.ended.values()}
        for one in self._catalog.standing() if step.name in MOVED else ():
            if (one.table, one.number) in self._known.read and one.number not in self._known.altered:
                now = self._catalog.rows_of(one.number, one.columns)
                if now is not None:
                    self._before[one.table] = Ended(one.number, one.columns, (now,))

    def after(self, step: Step) -> None:
        """The step was done."""
        if step.name == "begin":
            self._at_begin = self._known
        if step.name == "rollback":
            self._known = self._at_begin
        if step.name == "savepoint":
            self._at_savepoint = self._known
        if step.name == "undo":
            self._known = self._at_savepoint
        if step.name in ROWS:
            return
        old = self._known
        names = {one.table: one.number for one in self._catalog.standing()}
        gone = {table for table, number in old.names.items() if names.get(table) != number}
        altered = self._altered_since(step, old.ended)
        remaining = {table: e for table, e in old.ended.items() if e.number not in altered}
        ended = {table: e for table, e in {**remaining, **self._before}.items() if table not in names}
        self._known = _Known(names, old.used | gone, old.read, old.altered | _altered(step, names), ended)

    def _altered_since(self, step: Step, ended: Mapping[TableId, Ended]) -> set[int]:
        """The numbers of tables without their old name that this step altered."""
        now = {e.number: self._catalog.name_of(e.number) for e in ended.values()}
        return {n for names in (self._names_before, now) for n in _altered(step, {t: n for n, t in names.items() if t})}

    def follow(self) -> None:
        """Rows may have changed."""
        ended = {table: self._followed(one) for table, one in self._known.ended.items()}
        self._known = _with(self._known, ended=ended)

    def _followed(self, ended: Ended) -> Ended:
        now = self._catalog.rows_of(ended.number, ended.columns)
        if now is None or now == ended.states[-1]:
            return ended
        return Ended(ended.number, ended.columns, (*ended.states, now))

    def difference(self, found: Mapping[TableId, oracle.Logged], progress: Progress) -> str | None:
        """How the log of a dropped table differs from all allowed states; `None` if it does not."""
        for table, ended in sorted(self._known.ended.items()):
            try:
                _, logged = oracle.current(found[table], progress.tables.get(table)) if table in found else (None, [])
            except oracle.Unmergeable:
                continue  # there is no table to be read again
            unequal = [oracle.differences(logged, state, ended.columns) for state in ended.states]
            if all(unequal):
                return f"table {table}, which is gone: {unequal[0]}"
        return None


def _altered(step: Step, names: Mapping[TableId, int]) -> set[int]:
    """The numbers of the tables whose rows the log may have otherwise until they are read again."""
    if step.name in OF_ALL:
        return set(names.values())
    if step.name in (*MADE, *MOVED, *HARMLESS):
        return set()
    return {names[table] for table in map(_table, step.arguments) if table in names}


def _with(
    known: _Known, *, read: frozenset[tuple[TableId, int]] | None = None, ended: Mapping[TableId, Ended] | None = None
) -> _Known:
    now = known.read if read is None else read
    return _Known(known.names, known.used, now, known.altered, known.ended if ended is None else ended)


def _table(name: str) -> TableId:
    schema, _, table = name.rpartition(".")
    return TableId(schema, table)


__all__ = ["Catalog", "Ended", "Kept", "Standing"]
