"""An opened change log: its tables, its changes, and queries on it.

    cli get, history, range, diff ─┐
    Python cdcflow.open(log)       ├─▶ ChangeLog ──▶ keyrows (index, files, tail) ──▶ row (fold) ──▶ answers
    HTTP   /api/v1/log/…          ─┘        └──────▶ CurrentRows (a whole table at an offset)

A query never reaches the source, and no daemon needs to run. Each result includes what it does not cover: a table whose
rows were not all read yet, history that has expired, changes that were lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from cdcflow.errors import ConfigurationError, HistoryLost
from cdcflow.log.files import states
from cdcflow.log.files.layout import Layout
from cdcflow.log.files.states import LogState
from cdcflow.log.fold.fold import exact
from cdcflow.log.index.keyhash import Hashes
from cdcflow.log.query import new_rows
from cdcflow.log.query.answers import Difference, Differences, Found, History, Moment, Transaction
from cdcflow.log.query.coverage import KnownTables, Standing, expiry_note
from cdcflow.log.query.keyrows import Key, KeyRows, Rows
from cdcflow.log.query.row import Change, Row, changes_around, changes_of, row_at, text_of
from cdcflow.log.query.whole_tables import fold_rows
from cdcflow.log.read import moments
from cdcflow.log.read.alignment import align, defaults_of, in_force
from cdcflow.log.read.feed import feed, feed_schema
from cdcflow.log.read.log_reader import LogReader
from cdcflow.log.read.reader import LogRows
from cdcflow.model.change import TRUNCATE
from cdcflow.model.position import Checkpoint, Offset, Position, position_text
from cdcflow.model.table import OFFSET, OP, Table, TableId

ROWS_MAX = 500
KEYS_MAX = 1000

NOTE = b"cdcflow.note"
"""The key, in the metadata of a table's schema, of the notes on its point in time."""

AsOf = int | str | datetime | None
"""An offset, a cut ("cut:52"), a position of the source, or a commit time, in UTC if it has no zone (see
`cdcflow.log.read.moments`): everything that was committed up to then. None: now."""


class CurrentRows(Protocol):
    """Builds whole tables of a log."""

    def rows_at(
        self,
        log: LogReader,
        layout: Layout,
        table: TableId,
        floor: int,
        checkpoint: Checkpoint,
        base: Rows | None = None,
    ) -> pa.Table:
        """Return a table's rows at the end of a checkpoint, whose progress has the table's backfill facts. They are
        built from `base`, rows from before `floor`, and the changes since `floor`. Columns: the table's at that offset,
        and `_offset`, that of each row's last change.

        Raises:
            ConfigurationError, HistoryLost: the table cannot be built; the message gives the reason.
        """


class ChangeLog:
    """A change log, opened for queries. Only one thread may use it at a time."""

    def __init__(
        self,
        reader: LogReader,
        layout: Layout,
        current: Callable[[], CurrentRows],
        files_max: int | None = None,
    ) -> None:
        """`current`: creates the builder of whole tables, when it is first needed. `files_max`: a query for a row that
        would read more files of segments raises an error."""
        self.reader = reader
        self.layout = layout
        self._current = current
        self.rows = KeyRows(reader, layout, files_max)
        self.known = KnownTables(layout, self.rows, reader.name)

    @property
    def name(self) -> str:
        """The log's name for users."""
        return self.reader.name

    @property
    def files_read(self) -> int:
        """How many files of segments were opened for queries by key."""
        return self.rows.files_read

    # ── the log ─────────────────────────────────────────────────────────────────────────────────────────────

    def now(self) -> Moment:
        """Return the latest point that the log has."""
        self.rows.refresh()
        return _moment(self.rows.reached_checkpoint())

    def moment(self, as_of: AsOf) -> Moment:
        """Return the point in the log that a number, a position or a time means. An offset inside a transaction becomes
        the end of the transaction before it.

        Raises:
            ConfigurationError: the log does not have that point, or cannot resolve it.
            HistoryLost: it has expired.
        """
        newest = self.rows.refresh()
        if as_of is None:
            return _moment(newest)
        offset = self._offset_of(as_of)
        if not 0 <= offset < newest.next_offset:
            raise ConfigurationError(
                f"reading {self.name} at offset {offset}: the log ends at offset {newest.next_offset - 1}",
                remedy="name an offset that the log has",
            )
        if offset < (first := self.known.first_offset) - 1:
            raise HistoryLost(
                f"reading {self.name} at offset {offset}: that offset has expired; the first one left is {first}",
                remedy=f"name offset {first} or a later point",
                runbook="log-expired",
            )
        if offset == newest.next_offset - 1:
            return _moment(newest)
        # The expired part ended with a whole transaction.
        whole = offset if offset < first else self._whole_to(offset)
        return Moment(whole, asked=None if whole == offset else offset)

    def _whole_to(self, offset: int) -> int:
        """Return the end of the last transaction that ends at an offset or before it."""
        header = next(iter(self.reader.read_transactions(offset, offset)), None) if offset else None
        if header is None or not len(header) or header.column("last_offset")[0].as_py() == offset:
            return offset
        return int(header.column("first_offset")[0].as_py()) - 1

    def _offset_of(self, as_of: int | str | datetime) -> int:
        if isinstance(as_of, int):
            return as_of
        text = "" if isinstance(as_of, datetime) else as_of.strip()
        if text.isdecimal():
            return int(text)
        if text.startswith("cut:") and text[4:].isdecimal():
            return moments.offset_of_cut(self.layout, int(text[4:]))
        if moments.place_of(text) is not None:
            return moments.offset_of_position(self.layout, text, self._tail(), self.now().position)
        try:
            clock = moments.clock_of(as_of)
        except ValueError:
            raise ConfigurationError(
                f"reading {self.name} as of {as_of}: that is no offset, no cut, no position and no time",
                remedy="write an offset (4711), a cut (cut:52), a position (0/16B3748, binlog.000003:77), or a commit"
                " time (2026-11-25T10:00:00Z)",
            ) from None
        return self.offset_at(clock)

    def offset_at(self, clock: int) -> int:
        """Return the last offset of the transactions committed up to a commit clock (µs since 1970), in the log's
        extent at the last refresh; 0: no transaction.

        Raises:
            HistoryLost: it has expired.
        """
        return moments.offset_before(self.layout, clock + 1, self._tail())

    def _tail(self) -> Iterator[pa.Table]:
        """Return the headers of the transactions after the sealed segments."""
        segments = self.rows.segments
        return self.reader.read_transactions(segments[-1][1] + 1 if segments else 1)

    def tables(self) -> dict[str, Table]:
        """Return every table with rows in the log, or in a state that it keeps, keyed by name, in its latest shape."""
        last = self.now().offset
        found: dict[str, Table] = {}
        for table in sorted(self.rows.shapes()):
            if (shape := self.known.shape(table, last)) is not None:
                found[str(table)] = shape
        return found

    def changes(self, table: str | None = None, *, first: int = 1, last: int | None = None) -> Iterator[LogRows]:
        """Return the log's rows (of one table) from one offset to another, both inclusive (`None`: up to the latest
        cut), as `cdcflow.log.read.reader.read_rows` returns them.

        Raises:
            HistoryLost: `first` has expired.
        """
        return self.reader.read_rows(first, last, None if table is None else (self._table_named(table),))

    def read(self, table: str, *, first: int = 1, last: int | None = None, as_feed: bool = False) -> pa.Table:
        """Return a table's changes from one offset to another (both inclusive; `None`: up to the latest cut) as one
        Arrow table, in the columns that the source's table has at the end. `as_feed`: in the format of a change data
        feed (see `cdcflow.log.read.feed`), otherwise in that of the log (docs/changelog-format.md).

        Raises:
            HistoryLost: `first` has expired.
            ConfigurationError: a feed cannot represent one of the changes, or a value does not fit into its column's
                later type; the message names the table and the remedy.
        """
        id_ = self._table_named(table)
        end = self.now().offset if last is None else last
        shapes, target = self.known.shapes(id_, end)
        listed = [shape for shape in shapes if shape.incarnation == target.incarnation]
        target = in_force([*(shape for shape in listed if shape != target), target])
        defaults = defaults_of(listed, target)
        parts = []
        for shape, _, rows in self.reader.read_rows(first, end, (id_,)):
            make = feed if as_feed else align
            parts.append(make(rows, shape, target, defaults))
        schema = feed_schema(target) if as_feed else target.log_schema
        return pa.concat_tables([schema.empty_table(), *parts])

    def transactions(self, *, first: int = 1, last: int | None = None) -> Iterator[pa.Table]:
        """Return the headers of the transactions that have a row between two offsets (inclusive), in order."""
        return self.reader.read_transactions(first, last)

    def first_offset(self) -> int:
        """Return the first offset that has not expired."""
        self.rows.refresh()
        return self.known.first_offset

    def indexed_to(self) -> int:
        """Return the offset up to which the index alone finds every row, or 0 if nothing is indexed."""
        self.rows.refresh()
        return self.rows.indexed_to

    def may_have(self, table: TableId, wanted: Hashes, last: int) -> npt.NDArray[np.bool_]:
        """Return, for each of these hashes of keys (`log.index.keyhash`), whether the log may have a row of it up to an
        offset. Uses the index alone: True where something is not indexed, or has expired."""
        return self.rows.may_have(table, wanted, last)

    # ── one row ─────────────────────────────────────────────────────────────────────────────────────────────

    def get(self, table: str, *key: object, as_of: AsOf = None) -> Found:
        """Return a row at a point in time, by the values of its key (texts, or values that `str` converts to these).

        Raises:
            ConfigurationError: the log has no such table, the table has no key, or a value does not fit its column; or
                see `moment`.
        """
        return self._get(table, key, self.moment(as_of))

    def _get(self, table: str, key: Sequence[object], moment: Moment) -> Found:
        id_ = self.known.table_named(table)
        shapes, shape = self.known.shapes(id_, moment.offset)
        wanted = _key(id_, key)
        wanted.check(shape)
        standing = self.known.standing(id_, moment.offset)

        def find(of: Key, offset: int) -> Iterator[Rows]:
            if offset >= standing.floor:
                yield from self.rows.of(of, shapes, standing.floor, offset)
            if standing.state is not None:
                yield from self._state_rows(of, standing.state, standing.since)

        found = row_at(find, wanted, moment.offset, shape, shapes)
        return _answer(id_, wanted, moment, found, standing)

    def _state_rows(self, key: Key, state: LogState, since: int) -> Iterator[Rows]:
        """Yield the row that a state has for a key, if its last change is not older than `since`."""
        shape = state.tables[str(key.table)].table
        columns = key.columns(shape)
        if columns is not None:
            rows = states.rows_of_key(self.layout, state, str(key.table), columns)
            if rows.num_rows and rows.column(OFFSET)[0].as_py() >= since:
                yield shape, rows

    def history(
        self, table: str, *key: object, as_of: AsOf = None, before: int | None = None, limit: int = 50
    ) -> History:
        """Return the changes of a row up to a point in time, latest first. `before`: only those with a lower offset."""
        moment = self.moment(as_of)
        id_ = self.known.table_named(table)
        shapes, shape = self.known.shapes(id_, moment.offset)
        wanted = _key(id_, key)
        wanted.check(shape)
        last = moment.offset if before is None else min(moment.offset, before - 1)
        first = self.known.first_offset
        changes: list[Change] = []
        for part in self.rows.of(wanted, shapes, first, last):
            changes += changes_around(part, wanted)
            if len(changes) > limit:
                break
        more = len(changes) > limit
        kept = tuple(changes[:limit])
        notes = moment.notes if first == 1 else (*moment.notes, expiry_note(first))
        return History(id_, wanted.texts, moment, kept, kept[-1].offset if more else first, more, notes)

    def watch(
        self, table: str, *key: object, after: int | None = None, wait: Callable[[float], bool] | None = None
    ) -> Iterator[Change]:
        """Yield each change of a row after an offset (`None`: the latest one), in order, as soon as the log has it.
        `wait`: see `following.ends`; without it the iteration does not end."""
        id_ = self._table_named(table)
        at = self.now().offset if after is None else after
        wanted = _key(id_, key)
        wanted.check(self.known.shapes(id_, self.now().offset)[1])
        for end in new_rows.ends(self.reader, self.layout, at, wait):
            shapes = list(self.rows.shapes()[id_].values())
            found = [c for part in self.rows.of(wanted, shapes, at + 1, end) for c in changes_around(part, wanted)]
            yield from reversed(found)
            at = end

    def follow(
        self, table: str | None = None, *, after: int | None = None, wait: Callable[[float], bool] | None = None
    ) -> Iterator[LogRows]:
        """Yield the log's rows after an offset (`None`: the latest one), as `changes` returns them, as soon as the log
        has them."""
        tables = None if table is None else (self._table_named(table),)
        at = self.now().offset if after is None else after
        for end in new_rows.ends(self.reader, self.layout, at, wait):
            yield from self.reader.read_rows(at + 1, end, tables)
            at = end

    def transaction(self, number: int, *, limit: int = ROWS_MAX) -> Transaction:
        """Return a transaction by its number in the log, with its rows.

        Raises:
            ConfigurationError: the log has no transaction with that number and rows, or no longer.
        """
        header = self._header(number)
        first, last = int(header["first_offset"]), int(header["last_offset"])
        stop = min(last, first + limit - 1)
        parts = [(shape, rows) for shape, _, rows in self.reader.read_rows(first, stop)]
        changes = sorted((c for part in parts for c in changes_of(part)), key=lambda change: change.offset)
        return Transaction(
            number,
            first,
            last,
            header["position"],
            header["xid"],
            header["commit_ts"],
            header["kind"],
            header["origin"],
            tuple(changes),
            truncated=stop < last,
        )

    # ── many rows ───────────────────────────────────────────────────────────────────────────────────────────

    def current(self, table: str, as_of: AsOf = None) -> pa.Table:
        """Return a whole table at a point in time: the columns it had then, and `_offset`, each row's last change. A
        note about that point is in the schema's metadata, `cdcflow.note`.

        Raises:
            ConfigurationError, HistoryLost: see `moment`; or not all of its rows are in the log.
        """
        moment = self.moment(as_of)
        id_ = self.known.table_named(table)
        standing = self.known.standing(id_, moment.offset)
        if not standing.is_whole:
            raise ConfigurationError(
                f"reading {id_} of {self.name} at offset {moment.offset}: {'; '.join(standing.notes)}",
                remedy="name a later point, or none; `cdcflow status` shows how far its backfill is",
            )
        found = self.whole(id_, standing, moment)
        if not moment.notes:
            return found
        return found.replace_schema_metadata({**(found.schema.metadata or {}), NOTE: "; ".join(moment.notes)})

    def whole(self, table: TableId, standing: Standing, moment: Moment) -> pa.Table:
        if self.known.shape(table, moment.offset) is None:  # it had no row yet
            _, shape = self.known.shapes(table, moment.offset)
            return pa.schema([*shape.row_schema, pa.field(OFFSET, pa.int64())]).empty_table()
        progress = {"tables": {str(table): standing.entry}}
        clock = 0 if moment.commit_clock is None else moment.commit_clock
        position = None if moment.position is None else Position(moment.position)
        checkpoint = Checkpoint(position, Offset(moment.offset + 1), 1, moment.offset + 1, clock, progress=progress)
        base = None
        if standing.state is not None:
            base = standing.state.tables[str(table)].table, states.rows(self.layout, standing.state, str(table))
        return self._current().rows_at(self.reader, self.layout, table, standing.floor, checkpoint, base)

    def lacks(self, table: str, offset: int) -> str:
        """Return why not all rows of a table are known at an offset, or "" if all are."""
        id_ = self._table_named(table)
        standing = self.known.standing(id_, self.moment(offset).offset)
        return "" if standing.is_whole else "; ".join(standing.notes)

    def fold_table(self, table: str, offset: int) -> Rows:
        """Return a whole table at an offset as rows of the log, each with the offset, transaction and time of its last
        change, and its shape: the content of a state (`log.files.states`).

        Raises: as `current`.
        """
        now = self.current(table, offset)
        moment = self.moment(offset)
        id_ = self.known.table_named(table)
        standing = self.known.standing(id_, moment.offset)
        shapes, shape = self.known.shapes(id_, moment.offset)
        return shape, fold_rows(now, self.changes_of(id_, standing, moment.offset), shape, list(shapes))

    def changes_of(self, table: TableId, standing: Standing, offset: int) -> Iterator[Rows]:
        """Yield all rows of the log from which a table is built up to an offset."""
        if standing.state is not None:
            entry = standing.state.tables[str(table)]
            yield entry.table, states.rows(self.layout, standing.state, str(table))
        if offset >= standing.floor:
            for shape, _, rows in self.reader.read_rows(standing.floor, offset, (table,)):
                yield shape, rows

    def range(self, table: str, first: object, last: object, as_of: AsOf = None, limit: int | None = None) -> pa.Table:
        """Return the rows whose first key column is between two values (inclusive), ascending by key."""
        rows = self.current(table, as_of)
        _, shape = self.known.shapes(self._table_named(table), self.moment(as_of).offset)
        if not shape.key:
            raise ConfigurationError(f"reading a range of {table}: the table has no key")
        name = shape.key[0]
        first_column = replace(shape, key=shape.key[:1])
        low, high = (Key(shape.id, (str(value),)).columns(first_column) for value in (first, last))
        if low is None or high is None:
            raise ConfigurationError(
                f"reading a range of {table}: an end is no {shape.row_schema.field(name).type}",
                remedy=f"give values of column {name}",
            )
        column = rows.column(name)
        within = pc.and_(
            pc.greater_equal(column, low[0][0].cast(column.type)), pc.less_equal(column, high[0][0].cast(column.type))
        )
        found = rows.filter(within).sort_by([(k, "ascending") for k in shape.key])
        return found if limit is None else found.slice(0, limit)

    def diff(self, table: str, first: AsOf, last: AsOf = None, limit: int = KEYS_MAX) -> Differences:
        """Return the differences of a table between two points in time. Compares at most `limit` of the keys that were
        changed in between, those with the latest changes."""
        before, after = self.moment(first), self.moment(last)
        id_ = self.known.table_named(table)
        if before.offset > after.offset:
            raise ConfigurationError(
                f"comparing {table} at two points in time: the first ({before.offset}) is the later one",
                remedy="name the earlier one first",
            )
        _, shape = self.known.shapes(id_, after.offset)
        if not shape.key:
            raise ConfigurationError(
                f"comparing {table} at two points in time: the table has no key",
                remedy=f"read its changes: `cdcflow log show --table {table}`",
            )
        keys = self._touched_keys(id_, before.offset + 1, after.offset)
        found = []
        notes: dict[str, None] = dict.fromkeys((*before.notes, *after.notes))
        for texts in keys[:limit]:
            self.rows.refresh()  # the limit on files read applies to each row
            then, now = (self._get(table, texts, m) for m in (before, after))
            notes |= dict.fromkeys((*then.notes, *now.notes))
            if exact(then.values) != exact(now.values):
                what = "added" if then.values is None else "removed" if now.values is None else "changed"
                found.append(Difference(what, texts, then.values, now.values))
        return Differences(id_, before, after, tuple(found), len(keys), len(keys) > limit, tuple(notes))

    # ── inside ──────────────────────────────────────────────────────────────────────────────────────────────

    def _table_named(self, name: str) -> TableId:
        """Return the table of this name, in the log's current extent."""
        self.rows.refresh()
        return self.known.table_named(name)

    def _touched_keys(self, table: TableId, first: int, last: int) -> list[tuple[str, ...]]:
        """Return the keys that had a change between two offsets, those with the latest changes first. After a truncate
        this includes all rows that existed before."""
        newest: dict[tuple[str, ...], int] = {}
        emptied = False
        for shape, _, rows in self.reader.read_rows(first, last, (table,)):
            is_row = pc.not_equal(rows.column(OP), TRUNCATE)
            emptied |= not pc.all(is_row).as_py()
            rows = rows.filter(is_row)
            grouped = rows.select([*shape.key, OFFSET]).group_by(list(shape.key)).aggregate([(OFFSET, "max")])
            types = [shape.row_schema.field(name).type for name in shape.key]
            offsets = grouped.column(f"{OFFSET}_max").to_pylist()
            columns = [grouped.column(name).to_pylist() for name in shape.key]
            for offset, *key in zip(offsets, *columns, strict=True):
                newest[tuple(text_of(v, t) for v, t in zip(key, types, strict=True))] = offset
        if emptied:
            _, shape = self.known.shapes(table, first - 1)
            rows = self.whole(table, self.known.standing(table, first - 1), Moment(first - 1))
            types = [shape.row_schema.field(name).type for name in shape.key]
            for there in zip(
                *(rows.column(n).cast(t).to_pylist() for n, t in zip(shape.key, types, strict=True)), strict=True
            ):
                newest.setdefault(tuple(text_of(v, t) for v, t in zip(there, types, strict=True)), 0)
        return sorted(newest, key=lambda key: -newest[key])

    def _header(self, number: int) -> Mapping[str, Any]:
        last = int(self.rows.refresh().next_offset) - 1
        return header_of(self.reader, number, self.known.first_offset, last)


def header_of(log: LogReader, number: int, first: int, last: int) -> Mapping[str, Any]:
    """Return the header of a transaction whose rows are between two offsets (inclusive), by binary search.

    Raises:
        ConfigurationError: there is no transaction with that number and rows.
    """
    while first <= last:
        middle = (first + last) // 2
        part = next(iter(log.read_transactions(middle, middle)), None)
        if part is None:
            break
        header: Mapping[str, Any] = part.slice(0, 1).to_pylist()[0]
        if header["number"] == number:
            return header
        if header["number"] < number:
            first = int(header["last_offset"]) + 1
        else:
            last = int(header["first_offset"]) - 1
    raise ConfigurationError(
        f"the log has no transaction {number} with rows",
        remedy="it may have expired; the latest ones are in the last changes: `cdcflow log show`",
    )


def _moment(checkpoint: Checkpoint) -> Moment:
    return Moment(int(checkpoint.next_offset) - 1, position_text(checkpoint.position), checkpoint.commit_clock or None)


def _key(table: TableId, key: Sequence[object]) -> Key:
    return Key(table, tuple(str(value) if not isinstance(value, bytes) else f"\\x{value.hex()}" for value in key))


def _answer(table: TableId, key: Key, moment: Moment, row: Row, standing: Standing) -> Found:
    if row.last is None:
        state = "never there" if standing.is_whole else "not known"
    elif row.values is not None:
        state = "there"
    else:
        state = "emptied" if row.last.op == TRUNCATE else "deleted"
    notes = (*moment.notes, *standing.notes)
    return Found(table, key.texts, moment, state, row.values, row.last, row.unknown, notes)
