"""Applies statements in the log to captured tables: rows to write, tables to read again, or a reason to stop.

If all rows of a table were removed without row events, they are written as a truncate. If rows were added or got other
values, the table is read again; at its end the backfill also removes the rows that no longer exist. A truncate precedes
it only if all rows are those of another table (a rename), since then no earlier row may remain.
"""

from __future__ import annotations

import re

import numpy as np

from cdcflow.capture.interleave.messages import ChangesRefused, RowsFilled
from cdcflow.errors import ConfigurationError
from cdcflow.model.position import Position
from cdcflow.model.table import TableId
from cdcflow.sources.engine.buffers import Bools
from cdcflow.sources.engine.changes import Truncate
from cdcflow.sources.engine.selection import CapturedTableRefused, Refusal
from cdcflow.sources.mysql.alters import Altered, widens
from cdcflow.sources.mysql.effects import Effects
from cdcflow.sources.mysql.errors import READ_ANEW, engine_refusal, history_refusal
from cdcflow.sources.mysql.position import Coordinate
from cdcflow.sources.mysql.readings import tables_in, with_names
from cdcflow.sources.mysql.row_events import RowEvents
from cdcflow.sources.mysql.statements import (
    Created,
    Emptied,
    OtherDdl,
    PartsChanged,
    Renamed,
    Rollback,
    RowChange,
    Savepoint,
    SchemaDropped,
    Several,
    Statement,
    Unsure,
    Versioned,
)
from cdcflow.sources.mysql.tables import Tables
from cdcflow.sources.mysql.transactions import Groups
from cdcflow.sources.mysql.wire import Events

WITHOUT_TRIGGERS = frozenset(("mysql",))
"""Schemas of the servers themselves, in which they allow no triggers. Their agents write there all the time."""


class Statements:
    """Applies statements in the log's order, each between the table maps before it and those after it."""

    def __init__(self, tables: Tables, rows: RowEvents) -> None:
        self._tables = tables
        self._rows = rows
        self._effects = Effects()
        # gh-ost's copies that can hold all that the captured table holds, and no less, and which table that is
        self._copies: dict[TableId, TableId] = {}

    @property
    def next_begin(self) -> Coordinate | None:
        """The next coordinate at which a table stops being new. See `Tables.next_begin`."""
        return self._tables.next_begin

    def begin(self, upto: Coordinate | None) -> None:
        """Treat new tables that begin before this coordinate like all others. The ids of tables are looked up again."""
        self._tables.begin(upto)
        self._rows.forget_shapes(None)

    def take(self, statement: Statement, at: int, *, delivered: bool) -> list[Truncate]:
        """Apply a statement at event number `at`, and return the truncates that it causes.

        `delivered`: it was applied before this restart, so only the shapes are forgotten.

        Raises:
            ConfigurationError: rows of a captured table changed without row events, or the table now keeps their
                history.
        """
        return self._changes_by_statement(with_names(statement, self._tables.catalog_name), at, delivered)

    def _changes_by_statement(self, statement: Statement, at: int, delivered: bool) -> list[Truncate]:
        """Apply a statement like `take`; its tables have the names of the catalog."""
        match statement:
            case RowChange() if not delivered:
                self._change_rows(statement)
            case Emptied(tables):
                return self._empty_tables(tables, at, delivered)
            case SchemaDropped(schema):
                return self._empty_tables(tuple(self._tables.captured_in(schema)), at, delivered)
            case Renamed(pairs):
                return self._rename_tables(pairs, at, delivered)
            case PartsChanged():
                return self._parts_changed(statement, at, delivered)
            case Created(table, like, engine):
                if engine:
                    self._fail(table, engine_refusal(table, engine), delivered)
                if like is not None and self._tables.is_captured(like) and _is_whole_shadow(table, like):
                    self._copies[table] = like
                self._rows.forget_shapes(table)
            case Versioned(table, replaces):
                # Later row events include the rows' history. If the versioning was removed since, these events are
                # skipped and the table is read again.
                if not delivered and self._counts(table) and self._tables.is_versioned(table):
                    self._fail(table, history_refusal(table), delivered)
                if replaces:
                    return self._empty_tables((table,), at, delivered)
                self._rows.forget_shapes(table)
            case Several(parts):
                return [change for part in parts for change in self._changes_by_statement(part, at, delivered)]
            case Unsure():
                return self._unsure(statement, at, delivered)
            case OtherDdl(table, altered):
                if table is not None and altered.engine:
                    self._forget_copies(table)
                    self._fail(table, engine_refusal(table, altered.engine), delivered)
                elif table is not None and (
                    altered.fills
                    or (altered.keys and self._tables.lacks_primary_key(table))
                    or not self._keeps_values(table, altered)
                ):
                    self._forget_copies(table)
                    self._fill(table, delivered)
                    if table in self._effects.filled:
                        self._effects.rename(table, altered.renamed)
                elif table is not None and altered.refuses:
                    self._copies.pop(table, None)
                self._rows.forget_shapes(table)
        return []

    def _unsure(self, statement: Unsure, at: int, delivered: bool) -> list[Truncate]:
        """Apply a statement whose character set is uncertain, in the assumed one.

        Each captured table that the statement would name in another character set is treated as possibly affected. If
        no name could be read, all captured tables are.
        """
        out = self._changes_by_statement(statement.statement, at, delivered)
        named: dict[TableId, Statement] = {}
        for other in statement.others:
            named |= dict.fromkeys(self._named_in(other), other)
        if statement.is_any and not named:
            named = {t: OtherDdl(t, Altered(fills=True)) for t in self._tables.captured_in(None)}
        for table, other in named.items():
            if table not in statement.sure:
                out += self._changes_if_meant(table, other, at, delivered)
        return out

    def _named_in(self, statement: Statement) -> list[TableId]:
        if isinstance(statement, SchemaDropped):
            return list(self._tables.captured_in(statement.schema))
        return [t for t in tables_in(statement) if self._tables.is_captured(t)]

    def _changes_if_meant(self, table: TableId, statement: Statement, at: int, delivered: bool) -> list[Truncate]:
        """Apply a statement that may have meant this captured table.

        A table that no longer exists is emptied here: whichever statement removed it, a later one cannot bring these
        rows back.
        """
        self._rows.forget_shapes(table)
        match statement:
            case RowChange():
                if not delivered:
                    self._change_rows(statement)
                return []
            case Created():
                return []
            case OtherDdl():
                return self._changes_by_statement(statement, at, delivered)
        if self._tables.now(table) is None:
            return self._empty_tables((table,), at, delivered)
        self._forget_copies(table)
        self._fill(table, delivered)
        return []

    def _fill(self, table: TableId, delivered: bool) -> None:
        """Have the rows of a table read again, if it is captured."""
        if not delivered and self._tables.is_captured(table):
            self._effects.filled[table] = "changed"

    def _fail(self, table: TableId, refusal: Refusal, delivered: bool) -> None:
        """Have a captured table fail, because the statement means that it cannot be captured."""
        if not delivered and self._tables.is_captured(table):
            self._effects.fail(table, refusal)

    def _forget_copies(self, table: TableId) -> None:
        """Note that this table may have lost rows, or other values, that its copies have, or that it is a copy that
        did: a tool that copies rows does not learn what a statement did to them."""
        self._copies = {copy: of for copy, of in self._copies.items() if table not in (copy, of)}

    def _keeps_values(self, table: TableId, altered: Altered) -> bool:
        """Whether the columns certainly kept their values; false if the log has not shown their previous definition.

        Generated columns may use what is in no row: the default of a column, the zeros that fill it.
        """
        if (altered.redefined or altered.defaults) and self._tables.is_computed(table):
            return False
        if not altered.redefined:
            return True
        seen, now = self._tables.mapped_shape(table), self._tables.now(table)
        if seen is None or now is None:
            return False
        before = {c.name.lower(): c for c in seen.columns}
        after = {c.name.lower(): c for c in now}
        are_wider = all(
            name in before
            and name in after
            and before[name].name == column.becomes
            and widens(column, before[name], after[name])
            for name, column in ((c.name.lower(), c) for c in altered.redefined)
        )
        if not are_wider or not any(c.nullable and not before[c.name.lower()].nullable for c in altered.redefined):
            return are_wider
        return not self._tables.lacks_primary_key(table)  # a unique key with NULLs no longer identifies rows

    def filled_tables(self, position: Position) -> list[RowsFilled]:
        """Return the captured tables whose old rows, since the last call, got values that the log does not contain, or
        moved to another table.

        `position` precedes these changes.
        """
        found, self._effects.filled = self._effects.filled, {}
        names, self._effects.renamed = self._effects.renamed, {}
        xids, self._effects.xids = self._effects.xids, ()
        return [
            RowsFilled(
                table,
                position,
                swapped=cause == "swapped",
                possible=cause == "possible",
                renamed=names.get(table, ()),
                xids=xids,
            )
            for table, cause in found.items()
        ]

    def refused_tables(self, position: Position) -> list[ChangesRefused]:
        """Return the captured tables that fail, because of statements or rows since the last call.

        `position` precedes these statements and rows.
        """
        effects = self._effects
        by_statement, effects.failing = effects.failing, {}
        by_rows, effects.failures = {**effects.failures, **self._rows.take_failures()}, {}
        found = {t: (CapturedTableRefused(t, [why]).reason, True) for t, why in by_statement.items()}
        return [
            ChangesRefused(table, reason, position, is_checked=is_checked)
            for table, (reason, is_checked) in {**by_rows, **found}.items()
        ]

    def take_effects(self) -> Effects:
        """Remove and return the effects of statements and rows since they were last reported or removed."""
        found, self._effects = self._effects, Effects()
        found.failures |= self._rows.take_failures()
        return found

    def add_effects(self, effects: Effects) -> None:
        """Have these effects reported as well."""
        self._effects.add(effects)

    def walk(self, events: Events, groups: Groups, delivered: Bools) -> tuple[Bools, list[Truncate], list[int]]:
        """Process table maps and statements in order. Return which row events count, the truncates of emptied tables,
        and the numbers of the groups whose statements have tables read again."""
        self._rows.begin()
        use = np.ones(len(events), np.bool_)
        for number in np.flatnonzero(delivered).tolist():
            use[groups.opener[number] : groups.ender[number] + 1] = False
        truncates: list[Truncate] = []
        filling: list[int] = []
        saved: dict[str, int] = {}
        begin = inside = 0
        for at, statement in groups.statements:
            self._rows.learn(events, begin, at)
            begin = at
            number = groups.of(at)
            if number != inside:
                saved, inside = {}, number
            match statement:
                case Savepoint(name, to=False):
                    saved[name.lower()] = at
                case Savepoint(name):
                    self._take_back(events, use, saved.get(name.lower(), int(groups.opener[number])), at)
                case Rollback():
                    self._take_back(events, use, int(groups.opener[number]), at)
                case _:
                    earlier = self.take_effects()
                    truncates += self.take(statement, at, delivered=bool(delivered[number]))
                    filling += [number] if self._effects.filled else []
                    earlier.add(self._effects)
                    self._effects = earlier
        self._rows.learn(events, begin, len(events))
        return use, truncates, list(dict.fromkeys(filling))

    def _take_back(self, events: Events, use: Bools, first: int, last: int) -> None:
        """Exclude the rows of these events, which were rolled back (hard case M67)."""
        back = np.zeros(len(events), np.bool_)
        back[first:last] = use[first:last]
        for table in self._rows.tables_of(events, back):
            self.check_transactional(table)
        use[first:last] = False

    def check_transactional(self, table: TableId) -> None:
        """Have a table fail whose changes were rolled back in the log, but not by its engine."""
        if engine := self._tables.engine_that_keeps_changes(table):
            self._fail(table, engine_refusal(table, engine), delivered=False)

    def _change_rows(self, change: RowChange) -> None:
        """Apply a statement that changed rows without row events.

        Its text does not show whether a name is that of a view, or which tables the triggers and functions that it used
        have changed. The catalog may show other ones than those of its time. So if it names tables of other schemas
        only, each captured table that it may have changed is read again.

        Raises:
            ConfigurationError: it is on a captured table, on another name in a schema with captured tables, or on
                tables that its text does not show, unless the event lists only other schemas.
        """
        tables, schemas = change.tables, change.schemas
        captured = [t for t in tables if self._counts(t)]
        others = [t for t in tables if not self._tables.is_captured(t)]
        related = [t for t in others if any(map(self._counts, self._tables.captured_in(t.schema)))]
        if not captured:
            reached = self._reached_tables(schemas)
            if tables and not related:
                # MySQL lists the schemas of what functions changed, too; MariaDB lists none.
                if not WITHOUT_TRIGGERS.issuperset((*(t.schema for t in tables), *(schemas or ()))):
                    for table in reached:
                        self._effects.fill_for(table, "possible")
                return
            if not reached and schemas is not None:
                return
        if captured:
            on = f"captured table {captured[0]}"
        elif related:
            on = f"{related[0]}, which may be a view of a captured table, or have a trigger that changes one"
        else:
            on = "tables that cannot be determined from its text"
        raise ConfigurationError(
            f"the binary log has {change.what} as a statement, not as rows, on {on}: a session uses binlog_format "
            f"STATEMENT or MIXED, and the log lacks the rows that the statement changed",
            remedy=f"run SET GLOBAL binlog_format = ROW, end the sessions that use another format, then {READ_ANEW}",
            runbook="binlog-not-complete",
        )

    def note_again(self, statement: Statement) -> None:
        """Note which tables a statement may have changed, if its transaction is decided later. It was taken before this
        restart, and did not stop the capture then."""
        match with_names(statement, self._tables.catalog_name):
            case RowChange(tables, _, schemas) | Unsure(RowChange(tables, _, schemas)):
                for table in (*tables, *self._reached_tables(schemas)):
                    if self._counts(table):
                        self._effects.fill_for(table, "possible")

    def _reached_tables(self, schemas: tuple[str, ...] | None) -> list[TableId]:
        """Return the captured tables in these schemas (None: in all) whose unlogged changes would be missing."""
        used = (None,) if schemas is None else schemas
        return [t for schema in used for t in self._tables.captured_in(schema) if self._counts(t)]

    def _counts(self, table: TableId) -> bool:
        """Whether an unlogged change of the table would be missing: it would not in a new table, which is still to be
        read."""
        return self._tables.is_captured(table) and not self._tables.is_new(table)

    def _empty_tables(self, tables: tuple[TableId, ...], at: int, delivered: bool) -> list[Truncate]:
        out: list[Truncate] = []
        for table in tables:
            self._forget_copies(table)
            if not delivered and self._tables.is_captured(table):
                described = self._tables.last_shape(table)
                out += [(at, described.table)] if described is not None else []
            self._rows.forget_shapes(table)
        return out

    def _replace_rows(self, table: TableId, at: int, delivered: bool) -> list[Truncate]:
        """Empty a table and have it read again, because all of its rows are different ones now."""
        self._fill(table, delivered)
        return self._empty_tables((table,), at, delivered)

    def _parts_changed(self, statement: PartsChanged, at: int, delivered: bool) -> list[Truncate]:
        table, other = statement.table, statement.other
        out: list[Truncate] = []
        match statement.what:
            case "DISCARD TABLESPACE":
                return self._empty_tables((table,), at, delivered)
            case "IMPORT TABLESPACE":
                return self._replace_rows(table, at, delivered)
            case "CONVERT TABLE" if other is not None:
                out = self._empty_tables((other,), at, delivered)
            case "CONVERT PARTITION" if other is not None:
                out = self._replace_rows(other, at, delivered)
        for one in (t for t in (table, other) if t is not None):
            self._forget_copies(one)
            if not (out and one == other):
                self._fill(one, delivered)
            self._rows.forget_shapes(one)
        return out

    def _rename_tables(self, pairs: tuple[tuple[TableId, TableId], ...], at: int, delivered: bool) -> list[Truncate]:
        """Apply a rename. A captured table whose name disappears is emptied. If another table takes a captured table's
        name, the captured table is emptied and read again.

        gh-ost and pt-online-schema-change replace a table by renaming a copy of it. The copy has the same rows, so the
        captured table continues under its name (hard case M37). It is read again, unless the log showed that the copy
        can have no other rows and values; then it is read again only if its backfill is not finished.
        """
        now: dict[TableId, TableId] = {}
        for old, new in pairs:
            now[new] = now.pop(old, old)
        became = {old: new for new, old in now.items()}
        out: list[Truncate] = []
        for new, old in now.items():
            if _is_shadow(old, new):
                if old not in self._copies or self._tables.lacks_primary_key(new):  # the copy may have another key
                    self._fill(new, delivered)
                elif not delivered and self._tables.is_captured(new):
                    self._effects.fill_for(new, "swapped")
            elif new != old:
                out += self._replace_rows(new, at, delivered)
            if old not in now and not _is_left_over(became[old], old):
                out += self._empty_tables((old,), at, delivered)
                if not old.name.isascii() and self._tables.now(old) is not None:
                    # MariaDB 11.8.6 keeps the old table, with its rows, after an ALTER that copies and renames.
                    self._fill(old, delivered)
        for table in dict.fromkeys(t for pair in pairs for t in pair):
            self._forget_copies(table)
            self._rows.forget_shapes(table)
        return out


def _is_shadow(table: TableId, of: TableId) -> bool:
    """Whether `table` is the new version of `of` that a schema-change tool filled row by row: it has the rows of `of`,
    in another shape."""
    if table.schema != of.schema or of.name not in table.name:
        return False
    name = re.escape(of.name)
    return bool(re.fullmatch(rf"_+{name}_(gho|new)|lhmn_{name}", table.name))


def _is_whole_shadow(table: TableId, of: TableId) -> bool:
    """Whether `table` is the copy of a tool that always copies all rows. Others may copy only some (`--where` of
    pt-online-schema-change, filters of LHM), and a copy made by hand may have the name of one of theirs."""
    return _is_shadow(table, of) and table.name.endswith("_gho")


def _is_left_over(table: TableId, of: TableId) -> bool:
    """Whether `table` is the old version of `of` that such a tool moved aside."""
    if table.schema != of.schema or of.name not in table.name:
        return False
    name = re.escape(of.name)
    return bool(re.fullmatch(rf"_+{name}_(\d+_)?(del|old)|lhma_[\d_]+_{name}", table.name))
