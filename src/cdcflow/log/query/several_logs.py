"""Read several change logs as one: their changes in one order, their tables as of one time.

    shop ──▶ transactions ──┐ by (commit clock, name)   ┌─ runs of one log ──▶ rows, in windows ──▶ batches
    crm  ──▶ transactions ──┴─▶ read.commit_order ──────┘

Reading goes only up to the smallest commit clock that every log has reached (`common_clock`): that part of the order is
final, for the reason given in `log.read.commit_order`. Rows remain in columns; they are cut where the order switches to
another log.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

import pyarrow as pa

from cdcflow.errors import ConfigurationError, HistoryLost
from cdcflow.log.query import new_rows
from cdcflow.log.query.common_clock import SILENT_AFTER_S, Common, Reached, now_us
from cdcflow.log.query.lanes import Lane, Wanted, merge_lanes
from cdcflow.log.query.log import ChangeLog
from cdcflow.log.read.moments import clock_of, time_text
from cdcflow.model.table import Table, TableId

_CURSOR_FORMAT = 1
START_AGAIN = "start again: read every table as of one time (`current`), and continue after it (`cursor`)"
"""The remedy if reading cannot continue from a cursor."""


Time = str | datetime | int | None
"""A commit time (a text or `datetime`, in UTC if it has no zone), or a commit clock (µs since 1970). None: the time
that all logs have reached."""

Wait = Callable[[float], bool]
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")


@dataclass(frozen=True, slots=True)
class Batch:
    """Consecutive changes of one table of one log in the common order.

    `rows`: in the log's columns (docs/changelog-format.md), with the commit clock of each row's transaction as
    `_commit_clock`. `ends_transaction`: no more rows of the last row's transaction follow.
    """

    log: str
    table: TableId
    shape: Table
    rows: pa.Table
    places: Places
    ends_transaction: bool

    @property
    def cursor(self) -> str:
        """The position after the batch, as a text. A reader that stores it together with the result of the rows resumes
        exactly there."""
        return str(self.places)

    @property
    def name(self) -> str:
        """The table's name, unique over all logs: `shop:public.orders`."""
        return f"{self.log}:{self.table}"


class Logs:
    """Named change logs, opened to be read as one. Only one thread may use it at a time.

    `ids`: return each log's id; `silent_after_s`: see `common_clock.SILENT_AFTER_S`.
    """

    def __init__(
        self,
        logs: Mapping[str, ChangeLog],
        ids: Mapping[str, Callable[[], str]],
        silent_after_s: float = SILENT_AFTER_S,
    ) -> None:
        wrong = [name for name in logs if _NAME.fullmatch(name) is None]
        if wrong or not logs:
            raise ConfigurationError(
                f"opening several logs: {', '.join(map(repr, wrong)) or 'none is named'}",
                remedy="give each log a name of letters, digits, - and _: {'shop': 'shop-log', 'crm': 'crm-log'}",
            )
        self.logs = dict(sorted(logs.items()))
        self._ids = ids
        self._silent_after = int(silent_after_s * 1e6)

    def __getitem__(self, name: str) -> ChangeLog:
        return self.logs[name]

    # ── how far they are ────────────────────────────────────────────────────────────────────────────────────────

    def common(self) -> Common:
        """Return the common progress of the logs, and which one holds the others back."""
        found = {}
        for name, log in self.logs.items():
            now = log.now()
            found[name] = Reached(name, now.commit_clock or 0, now.offset)
        return Common(found, now_us(), self._silent_after)

    def cursor(self, as_of: Time = None) -> str:
        """Return the position after everything that was committed up to a time: `changes(cursor)` continues after
        `current(…, as_of)`.

        Raises: as `current`.
        """
        common = self.common()
        clock = self._clock(as_of, common)
        return str(Places({name: (self._ids[name](), self._offset(name, clock)) for name in self.logs}))

    # ── tables ──────────────────────────────────────────────────────────────────────────────────────────────────

    def tables(self) -> dict[str, Table]:
        """Return every table of every log in its latest shape, keyed by name: `schema.table`, prefixed with the name of
        its log (`shop:public.orders`) if several logs have a table of that name."""
        listed = [(name, table, shape) for name, log in self.logs.items() for table, shape in log.tables().items()]
        names = [table for _, table, _ in listed]
        return {t if names.count(t) == 1 else f"{log}:{t}": shape for log, t, shape in listed}

    def current(self, table: str, as_of: Time = None) -> pa.Table:
        """Return a whole table as of a time that is the same for all logs: the columns it had then, and `_offset`, each
        row's last change.

        Raises:
            ConfigurationError: there is no such table, or several logs have it; a log has not reached that time; not
                all of the table's rows were in the log yet.
            HistoryLost: the log at that time has expired; the message names the log.
        """
        found = self._logs_with(table)
        if len(found) > 1:
            listed = ", ".join(f"{log}:{named}" for log, named in found)
            raise ConfigurationError(
                f"reading table {table}: {len(found)} logs have one of that name",
                remedy=f"name one of them: {listed}",
                runbook="table-not-found",
            )
        ((log, named),) = found
        clock = self._clock(as_of, self.common())
        offset = self._offset(log, clock)
        if not offset:
            raise ConfigurationError(
                f"reading {log}:{named} as of {time_text(clock)}: the log begins later",
                remedy="name a later time",
                runbook="log-range",
            )
        with _Naming(log):
            return self.logs[log].current(named, offset)

    # ── changes ─────────────────────────────────────────────────────────────────────────────────────────────────

    def changes(
        self,
        cursor: str | None = None,
        *,
        tables: Sequence[str] | None = None,
        ops: str | None = None,
        to: Time = None,
        batch_rows: int = 10_000,
    ) -> Iterator[Batch]:
        """Yield the changes of all logs in one order, after a cursor (`None`: since the oldest that has not expired)
        and up to a time (`None`: the common one): whole transactions by commit clock, equal ones by the name of their
        log.

        `tables`: only these (`schema.table` of every log that has it, `log:schema.table` of one); `ops`: some of
        "crudt". A batch has at most `batch_rows` rows; more rows are returned in several batches.

        Raises:
            ConfigurationError: the cursor is of other logs, there is no such table, or a log has not reached that time.
            HistoryLost: the next rows have expired; the message names the log.
        """
        common = self.common()
        clock = self._clock(to, common)
        yield from self._merge_changes(self._places(cursor), common, clock, tables, ops, batch_rows)

    def follow(
        self,
        cursor: str | None = None,
        *,
        tables: Sequence[str] | None = None,
        ops: str | None = None,
        batch_rows: int = 10_000,
        wait: Wait | None = None,
        on_silent: Callable[[Common], None] | None = None,
    ) -> Iterator[Batch]:
        """Yield `changes`, and the changes after them as soon as every log has reached them.

        `wait(seconds)` is called between two polls, and ends the iteration by returning True; without it the iteration
        does not end. `on_silent` is called when a log falls silent, and not again until a different one does or it has
        resumed.
        """
        waited = wait or new_rows.sleep
        seen: object = None
        told: frozenset[str] = frozenset()
        places = self._places(cursor)
        while True:
            now = [new_rows.write_marker(log.layout) for log in self.logs.values()]
            common = self.common()
            if None in now or now != seen:
                seen = now
                places = yield from self._merge_changes(places, common, common.commit_clock, tables, ops, batch_rows)
            silent = frozenset(one.log for one in common.silent)
            if silent - told and on_silent is not None:
                on_silent(common)
            told = silent
            if waited(new_rows.ASK_EVERY_S if None in now else new_rows.LOOK_EVERY_S):
                return

    def _merge_changes(
        self, places: Places, common: Common, clock: int, tables: Sequence[str] | None, ops: str | None, rows_max: int
    ) -> Generator[Batch, None, Places]:
        """Yield the changes from some positions up to a clock; returns the positions after everything up to it,
        including tables that were not requested."""
        lanes = [
            Lane(name, log.reader, places.offset(name), common.logs[name].offset, clock)
            for name, log in self.logs.items()
        ]
        for lane, piece in merge_lanes(lanes, Wanted(self._requested_tables(tables), ops, rows_max)):
            places = places.with_offset(lane.name, piece.last)
            yield Batch(lane.name, piece.shape.id, piece.shape, piece.rows, places, piece.ends_transaction)
        for lane in lanes:
            places = places.with_offset(lane.name, lane.at)
        return places

    # ── inside ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _clock(self, time: Time, common: Common) -> int:
        if time is None:
            return common.commit_clock
        try:
            clock = time if isinstance(time, int) else clock_of(time)
        except ValueError:
            raise ConfigurationError(
                f"reading several logs as of {time}: that is no time", remedy="write it as 2026-11-25T10:00:00Z"
            ) from None
        late = [one for one in common.logs.values() if one.commit_clock < clock]
        if late:
            known = ", ".join(f"log {one.log} has reached {one.text}" for one in late)
            raise ConfigurationError(
                f"reading several logs as of {time_text(clock)}: {known}, and more changes from before that time may "
                "arrive",
                remedy="name an earlier time, or none: then it is the time that all of them have reached",
                runbook="log-range",
            )
        return clock

    def _offset(self, name: str, clock: int) -> int:
        with _Naming(name):
            return self.logs[name].offset_at(clock)

    def _places(self, cursor: str | None) -> Places:
        ids = {name: self._ids[name]() for name in self.logs}
        firsts = {name: log.first_offset() for name, log in self.logs.items()}
        if cursor is None:
            return Places({name: (ids[name], firsts[name] - 1) for name in ids})
        places = Places.of(cursor, ids)
        for name, first in firsts.items():
            if places.offset(name) < first - 1:
                raise HistoryLost(
                    f"reading log {name} after offset {places.offset(name)}: that has expired; the first offset left"
                    f" is {first}",
                    remedy=START_AGAIN,
                    runbook="log-expired",
                )
        return places

    def _logs_with(self, table: str) -> list[tuple[str, str]]:
        """Return the logs that have a table, and its name in each."""
        log, colon, rest = table.partition(":")
        known = {name: {str(t) for t in one.rows.shapes()} for name, one in self.logs.items()}
        if colon and rest in known.get(log, {}):
            return [(log, rest)]
        found = [(name, table) for name, listed in known.items() if table in listed]
        if not found:
            raise ConfigurationError(
                f"reading several logs: no log of {', '.join(known)} has a table {table}",
                remedy=f"name one of: {', '.join(self.tables()) or '(they have no rows yet)'}",
                runbook="table-not-found",
            )
        return found

    def _requested_tables(self, tables: Sequence[str] | None) -> Mapping[str, frozenset[TableId]] | None:
        if tables is None:
            return None
        found: dict[str, set[TableId]] = {name: set() for name in self.logs}
        for table in tables:
            for log, named in self._logs_with(table):
                found[log].add(self.logs[log].known.table_named(named))
        return {name: frozenset(listed) for name, listed in found.items()}


class _Naming:
    """Adds the name of a log to an error about its expired history."""

    def __init__(self, log: str) -> None:
        self._log = log

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, HistoryLost):
            text = str(error).splitlines()[0]
            raise HistoryLost(f"log {self._log}: {text}", remedy=error.remedy, runbook=error.runbook) from None


@dataclass(frozen=True, slots=True)
class Places:
    """A position up to which everything was returned: for each log, by its name, its id and the last offset."""

    logs: Mapping[str, tuple[str, int]]

    def __str__(self) -> str:
        fields = [_CURSOR_FORMAT, {name: list(one) for name, one in self.logs.items()}]
        return base64.urlsafe_b64encode(json.dumps(fields, separators=(",", ":")).encode()).decode().rstrip("=")

    def with_offset(self, log: str, offset: int) -> Places:
        return Places({**self.logs, log: (self.logs[log][0], offset)})

    def offset(self, log: str) -> int:
        return self.logs[log][1]

    @classmethod
    def of(cls, text: str, ids: Mapping[str, str]) -> Places:
        """Parse a cursor over the logs with these ids, keyed by name.

        Raises:
            ConfigurationError: the text is not a cursor, or one of other logs.
        """
        attempted = f"reading {', '.join(sorted(ids))} from a cursor"
        try:
            version, logs = json.loads(base64.b64decode(text + "=" * (-len(text) % 4), b"-_", validate=True))
            if version != _CURSOR_FORMAT:
                raise ValueError
            found = {name: (str(log_id), int(offset)) for name, (log_id, offset) in logs.items()}
        except (ValueError, TypeError, AttributeError, binascii.Error):
            raise ConfigurationError(
                "reading several logs from a cursor: the text is not a cursor, or only a part of one",
                remedy="give the whole text that came with a batch, or none: then the reader begins with the oldest"
                " change",
            ) from None
        if found.keys() != ids.keys():
            raise ConfigurationError(
                f"{attempted}: the cursor belongs to logs {', '.join(sorted(found))}",
                remedy=f"open the logs that the cursor names, by the same names; for others {START_AGAIN}",
            )
        for name, (log_id, _) in found.items():
            if log_id != ids[name]:
                raise ConfigurationError(
                    f"{attempted}: log {name} is not the cursor's log of that name",
                    remedy=f"open the log that was read before as {name}, or {START_AGAIN}",
                )
        return cls(found)


__all__ = ["Batch", "Logs"]
