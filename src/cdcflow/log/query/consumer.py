"""The reader of one consumer of a log: the rest of its backfill, followed by changes, in batches with cursors."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from functools import partial
from types import EllipsisType, TracebackType
from typing import Protocol, Self

import pyarrow as pa

from cdcflow.errors import ConfigurationError, HistoryLost
from cdcflow.log.query import new_rows
from cdcflow.log.query.answers import Moment
from cdcflow.log.query.batches import pieces
from cdcflow.log.query.coverage import Standing
from cdcflow.log.query.cursors import BackfillPart, ConsumerState, Cursor, Definition, LogBackfill
from cdcflow.log.query.log import AsOf, ChangeLog
from cdcflow.log.query.whole_tables import fold_rows
from cdcflow.model.table import OFFSET, Table, TableId, word

CURRENT = "current"
"""The start of a consumer that first gets the current rows of its tables."""
QUIET_NOTED = 1 << 20
"""A consumer stores its progress without a commit after this many offsets that have no change for it."""
Wait = Callable[[float], bool]


class States(Protocol):
    """The storage of consumers. Writes are durable on return."""

    @property
    def options(self) -> str:
        """The options that a command needs in addition to the consumer's name, with a leading blank; "" if it needs
        none."""
        ...

    @property
    def log_id(self) -> str:
        """The id of the log that is read."""
        ...

    def names(self) -> Sequence[str]: ...
    def read(self, name: str) -> ConsumerState | None: ...
    def write(self, state: ConsumerState) -> None: ...
    def remove(self, name: str) -> None: ...

    def lease(self, name: str) -> AbstractContextManager[None]:
        """Return the right to read and change a consumer, as a context manager, for one process.

        Raises:
            Busy: another process has it; the message names it.
        """
        ...

    def holder(self, name: str) -> str | None:
        """Return a text that names the process that reads a consumer now; `None` if no process does."""
        ...

    def settle(self) -> None:
        """Make the readable part of the log durable: readers see a cut before its writer has synced it, and rows given
        to a consumer cannot be taken back."""
        ...


class NotWhole(ConfigurationError):
    """The error for a backfill out of the log that lacks rows of these tables. The source must read them again."""

    section = "log-expired"

    def __init__(self, message: str, tables: Sequence[str], remedy: str) -> None:
        super().__init__(message, remedy=remedy)
        self.tables = tuple(tables)


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows of one table (`shape.log_schema`), in commit order. `ends_transaction`: the last row is the last one of its
    transaction that the consumer gets, so a result that is stored now has only whole transactions.

    `is_backfill`: the rows belong to the consumer's backfill. A row as of the backfill's offset has `_op` r, and the
    offset, transaction and commit time of its last change (in a table without a key transaction 0, and a meaningless
    time).
    """

    shape: Table
    rows: pa.Table
    is_backfill: bool
    ends_transaction: bool
    _end: Cursor
    _after: Callable[[int], Cursor]

    @property
    def table(self) -> str:
        return str(self.shape.id)

    @property
    def cursor(self) -> str:
        """The cursor after the batch's last row."""
        return str(self._end)

    def cursor_after(self, rows: int) -> str:
        """Return the cursor after the first `rows` rows of the batch (at least 1)."""
        return str(self._end if rows >= self.rows.num_rows else self._after(rows))


class MadeRows:
    """A cache of the most recently computed rows of a part of a backfill, for a reader that reads them in several
    turns."""

    def __init__(self) -> None:
        self._key: object = None
        self._rows: tuple[Table, pa.Table] | None = None

    def of(self, key: object, make: Callable[[], tuple[Table, pa.Table]]) -> tuple[Table, pa.Table]:
        """Return the rows for a key, computed now unless they are cached."""
        if self._rows is None or self._key != key:
            self.forget()
            self._key, self._rows = key, make()
        return self._rows

    def forget(self) -> None:
        self._key, self._rows = None, None


class Consumer:
    """One consumer, read by one process. A context manager; usable only inside its block."""

    def __init__(
        self,
        log: ChangeLog,
        states: States,
        name: str,
        found: Callable[[], ConsumerState],
        begun: Callable[[ConsumerState, AsOf], ConsumerState],
        made: MadeRows,
        *,
        wait: float | None,
        batch_rows: int,
    ) -> None:
        self.name = name
        self._log = log
        self._states = states
        self._found = found
        self._begun = begun
        self._made = made
        self._wait = wait
        self._batch_rows = batch_rows
        self._state: ConsumerState | None = None
        self._handed: Cursor | None = None
        self._ending = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as entering:
            Definition(self.name).check()
            entering.enter_context(self._states.lease(self.name))
            self._state = self._found()
            self._ending = entering.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        self._state = None
        self._ending.close()

    def __iter__(self) -> Iterator[Batch]:
        return self.read()

    @property
    def state(self) -> ConsumerState:
        """The stored state of the consumer.

        Raises:
            ConfigurationError: it is not open.
        """
        if self._state is None:
            raise ConfigurationError(
                f"reading consumer {self.name}: it is not open",
                remedy="use it as a context: with cdcflow.open(log).consumer(name) as consumer",
            )
        return self._state

    @property
    def committed(self) -> str:
        """The cursor of the last commit."""
        return str(self.state.committed)

    def read(
        self, after: str | None = None, *, wait: float | EllipsisType | None = ..., stop: Wait | None = None
    ) -> Iterator[Batch]:
        """Yield batches after a cursor (`None`: that of the last commit): the rest of the backfill, then changes.

        `wait`: after this many seconds without new rows the iteration ends; `None`: never. `stop(seconds)` is called to
        wait for that time, and ends the iteration by returning True.

        Raises:
            ConfigurationError: the text is not a cursor of this consumer.
            HistoryLost: the next rows have expired; the message describes how to begin again.
        """
        state = self.state
        attempted = f"reading consumer {self.name}"
        cursor = state.committed if after is None else state.check_cursor(Cursor.of(after), attempted)
        self._check_in_log(cursor, attempted)
        self._handed = cursor
        idle = _Idle(self._wait if isinstance(wait, EllipsisType) else wait, stop)
        try:
            at = cursor.offset
            if cursor.part is not None and state.backfill is not None:
                for batch in self._backfill(state.backfill, cursor, cursor.part, idle):
                    yield self._hand_out(batch)
            self._made.forget()
            for batch in self._changes(at, idle):
                yield self._hand_out(batch)
        except HistoryLost as error:
            raise self._history_lost(error) from None

    def commit(self, cursor: str) -> None:
        """Store that everything up to a cursor was processed. Durable on return.

        Raises:
            ConfigurationError: it is before the last commit, or not a cursor of this consumer.
        """
        state, attempted = self.state, f"committing a cursor of consumer {self.name}"
        found = state.check_cursor(Cursor.of(cursor), attempted)
        self._check_in_log(found, attempted)
        if state.is_before(found):
            raise ConfigurationError(
                f"{attempted}: it is before the last commit, and a commit never goes back",
                remedy="commit the cursors in the order in which they came; to read again from there:"
                f" `cdcflow consumer seek {self.name}{self._states.options} {cursor}`",
            )
        if found != state.committed:
            self._keep(state.after_commit(found))

    def seek(self, to: AsOf) -> None:
        """Continue after a cursor, or after a point in the log (see `ChangeLog.moment`), which may also be an earlier
        one. A point in the log skips the rest of a backfill.

        Raises:
            ConfigurationError, HistoryLost: the log does not have it, or no longer.
        """
        state, attempted = self.state, f"moving consumer {self.name}"
        cursor = _cursor(to)
        if cursor is None:
            cursor = Cursor(state.log_id, self.name, state.generation, self._log.moment(to).offset)
        else:
            cursor = state.after_commit(state.committed).check_cursor(cursor, attempted)
            self._log.moment(cursor.offset)
        self._keep(state.after_commit(cursor))

    def restart(self, start: AsOf = CURRENT) -> None:
        """Begin again, as `Consumers.create` describes. Cursors of the previous backfill are rejected afterwards."""
        self._keep(self._begun(self.state, start))

    # ── inside ──────────────────────────────────────────────────────────────────────────────────────────────

    def _keep(self, state: ConsumerState) -> None:
        self._states.write(state)
        self._state = state

    def _hand_out(self, batch: Batch) -> Batch:
        self._handed = batch._end
        return batch

    def _backfill(self, known: LogBackfill, cursor: Cursor, first: int, idle: _Idle) -> Iterator[Batch]:
        self._states.settle()
        for number in range(first, len(known.parts)):
            part, place = known.parts[number], cursor.place if number == first else 0
            ended = replace(cursor, part=number + 1, place=0)
            ended = ended if number + 1 < len(known.parts) else replace(cursor, part=None, place=0)
            at = replace(cursor, part=number)
            for batch in self._part(known, part, place, at, ended):
                idle.begin()
                yield batch
            if self._handed == self.state.committed != ended:  # the part, or the rest of it, was empty
                self._handed = ended
                self._keep(replace(self.state, committed=ended))

    def _part(self, known: LogBackfill, part: BackfillPart, place: int, at: Cursor, ended: Cursor) -> Iterator[Batch]:
        self._log.now()
        table = self._log.known.table_named(part.table)
        begins = self._log.known.first_offset
        kept = self._log.known.state(table, known.offset) if part.is_rows and part.since < begins else None
        if part.since < begins and kept is None:
            raise HistoryLost(f"the log begins at offset {begins}, and {part.table} needs offset {part.since}")
        if not part.is_rows:
            begin = max(part.since, place + 1)
            yield from self._of_log(begin, known.offset, (table,), lambda offset: replace(at, place=offset), ended)
            return
        # Use the facts from the beginning of the backfill: a compacted segment may no longer have them.
        entry = {"state": "done", "generation": 1, "since": part.since}
        standing = Standing(max(part.since, begins), True, entry, kept, ())
        key = (at.log_id, table, known.offset, part.since)
        shape, rows = self._made.of(key, lambda: _rows_of(self._log, table, known, standing))
        for begin in range(place, rows.num_rows, self._batch_rows):
            stop = min(begin + self._batch_rows, rows.num_rows)
            end = ended if stop == rows.num_rows else replace(at, place=stop)
            after = partial(_further, at, begin)
            yield Batch(shape, rows.slice(begin, stop - begin), True, True, end, after)

    def _of_log(
        self, begin: int, last: int, tables: tuple[TableId, ...], at: Callable[[int], Cursor], ended: Cursor
    ) -> Iterator[Batch]:
        """Yield the changes of tables as a part of a backfill. Each batch is held back until the next one is known,
        because the last one gets the cursor of the end."""
        ops, held = self.state.definition.ops, None
        for piece in pieces(self._log.reader, begin, last, tables, ops, self._batch_rows):
            if held is not None:
                yield held
            after = partial(_at_offset, at, piece.rows)
            held = Batch(piece.shape, piece.rows, True, piece.ends_transaction, at(piece.last), after)
        if held is not None:
            yield replace(held, _end=ended)

    def _changes(self, at: int, idle: _Idle) -> Iterator[Batch]:
        state = self.state
        base = Cursor(state.log_id, self.name, state.generation, at)
        for end in new_rows.ends(self._log.reader, self._log.layout, at, idle.wait):
            self._states.settle()
            for piece in pieces(self._log.reader, at + 1, end, self._ids(), state.definition.ops, self._batch_rows):
                self._pass(_first(piece.rows) - 1, at_least=QUIET_NOTED)
                after = partial(_at_offset, lambda offset: replace(base, offset=offset), piece.rows)
                yield Batch(
                    piece.shape, piece.rows, False, piece.ends_transaction, replace(base, offset=piece.last), after
                )
                idle.begin()
            self._pass(end, at_least=1)
            at = end

    def _ids(self) -> tuple[TableId, ...] | None:
        """Return those of the consumer's tables that the log has by now; `None` if the consumer gets all tables."""
        names = self.state.definition.tables
        self._log.now()
        return None if names is None else tuple(t for t in self._log.rows.shapes() if str(t) in names)

    def _pass(self, quiet_to: int, at_least: int) -> None:
        """Store a cursor after offsets that have nothing for the consumer, up to `quiet_to`: only if everything
        returned so far is committed, and if there are at least `at_least` such offsets."""
        state = self.state
        if self._handed != state.committed or state.is_in_backfill:
            return
        if quiet_to - state.committed.offset >= at_least:
            self._handed = replace(state.committed, offset=quiet_to)
            self._keep(replace(state, committed=self._handed))

    def _check_in_log(self, cursor: Cursor, attempted: str) -> None:
        end = self._log.now().offset
        if cursor.offset > end:
            raise ConfigurationError(
                f"{attempted}: the cursor is at offset {cursor.offset}, and the log ends at offset {end}: it is an"
                " earlier copy of the log, or its latest part is not visible from here",
                remedy="read the log where it is written; if it was restored from a copy, start again:"
                f" `cdcflow consumer restart {self.name}{self._states.options}`",
            )

    def _history_lost(self, error: HistoryLost) -> HistoryLost:
        command = f"`cdcflow consumer restart {self.name}{self._states.options}`"
        self._log.now()
        first = self._log.known.first_offset
        try:
            self._begun(self.state, CURRENT)
            remedy = f"start again with the log's present rows: {command}, and empty what was built from it so far"
        except NotWhole as lacking:
            remedy = (
                f"run `cdcflow backfill {' '.join(map(word, lacking.tables))}`, which has the log read them at the"
                f" source, then {command}, and empty what was built from it so far"
            )
        return HistoryLost(
            f"reading consumer {self.name}: what it needs next has expired from {self._log.name}; the first offset left"
            f" is {first} ({str(error).splitlines()[0]})",
            remedy=remedy,
            runbook="log-expired",
        )


class _Idle:
    """The limit for how long a reader waits for new rows: a time without any, or until `stop` returns True."""

    def __init__(self, wait_s: float | None, stop: Wait | None) -> None:
        self._wait_s = wait_s
        self._stop = stop
        self.begin()

    def begin(self) -> None:
        self._since = time.monotonic()

    def wait(self, seconds: float) -> bool:
        if self._wait_s is not None:
            left = self._wait_s - (time.monotonic() - self._since)
            if left <= 0:
                return True
            seconds = min(seconds, left)
        if self._stop is not None:
            return self._stop(seconds)
        time.sleep(seconds)
        return False


def _rows_of(log: ChangeLog, table: TableId, known: LogBackfill, standing: Standing) -> tuple[Table, pa.Table]:
    """Return a table's rows as of a backfill's offset as rows of the log, in a reproducible order."""
    now = log.whole(table, standing, Moment(known.offset, None, known.clock or None))
    shapes, shape = log.known.shapes(table, known.offset)
    rows = fold_rows(now, log.changes_of(table, standing, known.offset), shape, list(shapes))
    if shape.key:
        return shape, rows
    names = [name for name in shape.key_columns if not pa.types.is_nested(shape.row_schema.field(name).type)]
    return shape, rows.sort_by([(name, "ascending") for name in (*names, OFFSET)])


def _further(at: Cursor, begin: int, rows: int) -> Cursor:
    return replace(at, place=begin + rows)


def _at_offset(at: Callable[[int], Cursor], rows: pa.Table, count: int) -> Cursor:
    return at(int(rows.column(OFFSET)[count - 1].as_py()))


def _first(rows: pa.Table) -> int:
    return int(rows.column(OFFSET)[0].as_py())


def _cursor(text: AsOf) -> Cursor | None:
    if not isinstance(text, str):
        return None
    try:
        return Cursor.of(text)
    except ConfigurationError:
        return None


__all__ = ["CURRENT", "Batch", "Consumer", "MadeRows", "NotWhole", "States"]
