"""What statements in the log mean for captured tables: rows to write, or a reason to stop."""

from __future__ import annotations

import re

import numpy as np

from cdcflow.errors import ConfigurationError
from cdcflow.model.table import TableId
from cdcflow.sources.buffers import Bools
from cdcflow.sources.mysql.groups import Groups
from cdcflow.sources.mysql.losses import history_lost
from cdcflow.sources.mysql.row_events import Changes, RowEvents, Tables, truncation
from cdcflow.sources.mysql.statements import (
    Emptied,
    OtherDdl,
    PartsChanged,
    Renamed,
    Rollback,
    RowChange,
    Savepoint,
    SchemaDropped,
    Statement,
)
from cdcflow.sources.mysql.wire import Events


class Statements:
    """Takes statements in the log's order, each between the table maps before it and those after it."""

    def __init__(self, tables: Tables, rows: RowEvents) -> None:
        self._tables = tables
        self._rows = rows
        self._filled: dict[TableId, None] = {}

    def take(self, statement: Statement, at: int, *, delivered: bool) -> list[Changes]:
        """The truncates that a statement at event number `at` stands for. `delivered`: it was taken before this
        restart, so only the shapes are forgotten.

        Raises:
            ConfigurationError: rows of a captured table changed without row events.
            HistoryLost: the same by whole partitions, or by another table that took the name.
        """
        match statement:
            case RowChange(tables, what) if not delivered:
                self._check_row_change(tables, what)
            case Emptied(tables):
                return self._emptied(tables, at, delivered)
            case SchemaDropped(schema):
                return self._emptied(tuple(self._tables.captured_in(schema)), at, delivered)
            case Renamed(pairs):
                return self._renamed(pairs, at, delivered)
            case PartsChanged(tables, what):
                for table in tables:
                    if not delivered and self._tables.is_captured(table):
                        raise history_lost(
                            f"ALTER TABLE {table} … {what} changed rows of a captured table without logging them"
                        )
                    self._rows.forget_shapes(table)
            case OtherDdl(table, fills):
                if fills and not delivered and table is not None and self._tables.is_captured(table):
                    self._filled[table] = None
                self._rows.forget_shapes(table)
        return []

    def filled(self) -> list[TableId]:
        """The captured tables whose old rows have got values that the log does not tell, since the last call."""
        found, self._filled = list(self._filled), {}
        return found

    def walk(self, events: Events, groups: Groups, delivered: Bools) -> tuple[Bools, list[Changes]]:
        """Table maps and statements in their order: which row events count, and the tables that were emptied."""
        self._rows.begin()
        use = np.ones(len(events), np.bool_)
        for number in np.flatnonzero(delivered).tolist():
            use[groups.opener[number] : groups.ender[number] + 1] = False
        truncates: list[Changes] = []
        saved: dict[str, int] = {}
        begin = inside = 0
        for place, statement in groups.statements:
            self._rows.learn(events, begin, place)
            begin = place
            number = groups.of(place)
            if number != inside:
                saved, inside = {}, number
            match statement:
                case Savepoint(name, to=False):
                    saved[name.lower()] = place
                case Savepoint(name):
                    self._take_back(events, use, saved.get(name.lower(), int(groups.opener[number])), place)
                case Rollback():
                    self._take_back(events, use, int(groups.opener[number]), place)
                case _:
                    truncates += self.take(statement, place, delivered=bool(delivered[number]))
        self._rows.learn(events, begin, len(events))
        return use, truncates

    def _take_back(self, events: Events, use: Bools, first: int, last: int) -> None:
        """Leave out the rows of these events, which were rolled back (hard case M67)."""
        back = np.zeros(len(events), np.bool_)
        back[first:last] = use[first:last]
        for table in self._rows.tables_of(events, back):
            self.check_transactional(table)
        use[first:last] = False

    def check_transactional(self, table: TableId) -> None:
        if not self._tables.is_transactional(table):
            raise ConfigurationError(
                f"a transaction was rolled back after it changed table {table}, whose engine keeps the changes; which "
                "of the rolled back rows stayed is not in the log",
                remedy=f"ALTER TABLE `{table.schema}`.`{table.name}` ENGINE = InnoDB, then run "
                "`cdcflow run --accept-history-loss`, which reads all tables anew",
            )

    def _check_row_change(self, tables: tuple[TableId, ...], what: str) -> None:
        captured = [t for t in tables if self._tables.is_captured(t)]
        if tables and not captured:
            return
        on = f"captured table {captured[0]}" if captured else "tables that cannot be told from its text"
        raise ConfigurationError(
            f"the binary log has {what} as a statement, not as rows, on {on}: a session uses binlog_format STATEMENT "
            "or MIXED, and what the statement changed is not in the log",
            remedy="SET GLOBAL binlog_format = ROW, end the sessions that set it otherwise, and run "
            "`cdcflow run --accept-history-loss`, which reads all tables anew",
        )

    def _emptied(self, tables: tuple[TableId, ...], at: int, delivered: bool) -> list[Changes]:
        out: list[Changes] = []
        for table in tables:
            if not delivered and self._tables.is_captured(table):
                described = self._tables.described(table)
                out += [truncation(described, at)] if described is not None else []
            self._rows.forget_shapes(table)
        return out

    def _renamed(self, pairs: tuple[tuple[TableId, TableId], ...], at: int, delivered: bool) -> list[Changes]:
        """Tables swapped by gh-ost or pt-online-schema-change go on under their name (hard case M37)."""
        now: dict[TableId, TableId] = {}
        for old, new in pairs:
            now[new] = now.pop(old, old)
        became = {old: new for new, old in now.items()}
        out: list[Changes] = []
        for new, old in now.items() if not delivered else ():
            if self._tables.is_captured(new) and not _is_shadow(old, new) and self._tables.described(new) is not None:
                raise history_lost(
                    f"RENAME TABLE gave table {old} the name of captured table {new}, and its rows are not in the log "
                    "under that name"
                )
            if self._tables.is_captured(new) and _is_shadow(old, new) and self._tables.gained(new):
                self._filled[new] = None
            if old not in now and not _is_left_over(became[old], old):
                out += self._emptied((old,), at, delivered)
        for table in dict.fromkeys(t for pair in pairs for t in pair):
            self._rows.forget_shapes(table)
        return out


def _is_shadow(table: TableId, of: TableId) -> bool:
    """Whether a table is the new version of another that a schema-change tool filled row by row: its rows are those
    of the other, in another shape."""
    name = re.escape(of.name)
    return table.schema == of.schema and bool(re.fullmatch(rf"_+{name}_(gho|new)|lhmn_{name}", table.name))


def _is_left_over(table: TableId, of: TableId) -> bool:
    """Whether a table is the old version that such a tool put aside."""
    name = re.escape(of.name)
    pattern = rf"_+{name}_(\d+_)?(del|old)|lhma_[\d_]+_{name}"
    return table.schema == of.schema and bool(re.fullmatch(pattern, table.name))
