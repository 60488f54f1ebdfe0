"""Answer queries of the change log: the last changes of a table, the history of a key, a transaction.

It reads like any reader, without the writer's lock, latest first, and stops after a maximum of rows or seconds; the
answer contains how far back it has searched, and the next query continues at that offset. It answers one query at a
time, so that the capture keeps the daemon's processors.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from cdcflow.errors import ConfigurationError, HistoryLost, SinkUnavailable
from cdcflow.log.query.log import ChangeLog, header_of
from cdcflow.log.query.row import Change
from cdcflow.log.read.log_reader import LogReader
from cdcflow.model.keytexts import are_equal, scalar_of
from cdcflow.model.suggestions import did_you_mean
from cdcflow.model.table import BEFORE, COMMIT_TS, LOG_COLUMNS, OFFSET, OP, TRANSACTION, UNCHANGED, Table, TableId

ROWS_MAX = 500
SECONDS_MAX = 3.0
FIRST_STRETCH = 4096
STRETCH_MAX = 1 << 20
CELL_CHARACTERS_MAX = 2000
Clock = Callable[[], float]


@dataclass(frozen=True, slots=True)
class _Found:
    table: Table
    rows: pa.Table


class Explorer:
    """Answers queries of a log. Any thread may use it.

    `open_reader` opens the log again for each query; `asked` opens it for queries of one row.
    """

    def __init__(
        self,
        open_reader: Callable[[], LogReader],
        clock: Clock = time.monotonic,
        asked: Callable[[], ChangeLog] | None = None,
    ) -> None:
        self._open_reader = open_reader
        self._asked = asked
        self._clock = clock
        self._one = threading.Lock()

    def changes(
        self,
        table: str | None,
        *,
        key: Sequence[str] = (),
        before: int | None = None,
        limit: int = 50,
        values: bool = False,
    ) -> dict[str, Any]:
        """Return the last changes (of a table, of the rows with this key), latest first.

        `before`: only those with a lower offset. `key`: texts in the order of the key's columns. The answer's
        `looked_back_to` is the first offset that was searched; `more`: there may be changes before it.

        Raises:
            ConfigurationError: the log has no such table, or a text does not fit its key.
            SinkUnavailable: another query is running.
        """
        with self._alone():
            log = self._log()
            id_ = None if table is None else table_named(log, table)
            if key and id_ is None:
                raise ConfigurationError(
                    "looking for a key: no table is named", remedy="name the table as schema.table"
                )
            end = int(log.newest_checkpoint().next_offset)
            begin = end if before is None else max(1, min(before, end))
            return self._back(log, id_, key, begin, min(limit, ROWS_MAX), values)

    def row(self, table: str, key: Sequence[str], as_of: str | None = None) -> dict[str, Any]:
        """Return a row, now or at a point in time (see `cdcflow.log.query.log.AsOf`), with its values as texts (`None`:
        NULL).

        Raises:
            ConfigurationError: the log has no such table or point in time, or the texts are not a key of it.
            SinkUnavailable: another query is running; or too many files would have to be read.
        """
        with self._alone():
            found = self._open_log().get(table, *key, as_of=as_of)
            return {
                "table": table,
                "state": found.state,
                "offset": found.moment.offset,
                "values": _texts(found.values),
                "unknown": list(found.unknown),
                "notes": list(found.notes),
                "last": None if found.last is None else _change_as_json(found.last),
            }

    def row_history(
        self, table: str, key: Sequence[str], as_of: str | None = None, before: int | None = None, limit: int = 50
    ) -> dict[str, Any]:
        """Return the changes of a row up to a point in time, latest first, with their values as texts.

        `more`: there are older ones, before offset `back_to`. Raises as `row`.
        """
        with self._alone():
            asked = self._open_log()
            found = asked.history(table, *key, as_of=as_of, before=before, limit=min(limit, ROWS_MAX))
            changes = [
                {
                    **_change_as_json(change),
                    "values": _texts(change.values),
                    "unchanged": list(change.unchanged),
                    "before": _texts(change.before),
                }
                for change in found.changes
            ]
            return {"changes": changes, "back_to": found.back_to, "more": found.more, "notes": list(found.notes)}

    def differences(self, table: str, first: str, last: str | None = None, limit: int = 50) -> dict[str, Any]:
        """Return the rows of a table that differ between two points in time.

        Only the `limit` keys with the latest changes in between are compared. Raises as `row`.
        """
        with self._alone():
            found = self._open_log().diff(table, first, last, min(limit, ROWS_MAX))
            rows = [
                {"change": d.change, "key": list(d.key), "before": _texts(d.before), "after": _texts(d.after)}
                for d in found.found
            ]
            bounds = {"first": found.first.offset, "last": found.last.offset, "touched": found.touched}
            return {"rows": rows, **bounds, "truncated": found.truncated, "notes": list(found.notes)}

    def transaction(self, number: int, *, values: bool = False) -> dict[str, Any]:
        """Return a transaction with its rows, in their order; `truncated` if it has more than are shown.

        Raises:
            ConfigurationError: the log has no transaction of that number, or no longer.
        """
        with self._alone():
            log = self._log()
            header = self._header(log, number)
            first, last = header["first_offset"], header["last_offset"]
            stop = min(last, first + ROWS_MAX - 1)
            found = [_Found(shape, rows) for shape, _, rows in log.read_rows(first, stop)]
            changes = [change for one in found for change in _changes(one, values=values)]
            changes.sort(key=lambda change: int(change["offset"]))
            told = {name: _text(header[name]) for name in ("position", "xid", "commit_ts", "kind", "origin")}
            bounds = {"number": number, "rows": last - first + 1, "truncated": stop < last}
            return {**bounds, **told, "changes": changes}

    # ── inside ──────────────────────────────────────────────────────────────────────────────────────────────

    def _alone(self) -> _Alone:
        return _Alone(self._one)

    def _open_log(self) -> ChangeLog:
        self._log()
        if self._asked is None:
            raise ConfigurationError("this daemon does not answer questions about rows")
        return self._asked()

    def _log(self) -> LogReader:
        log = self._open_reader()
        if not log.exists():
            raise ConfigurationError(f"there is no change log at {log.name} yet", remedy="try again in a few seconds")
        return log

    def _back(
        self, log: LogReader, table: TableId | None, key: Sequence[str], end: int, limit: int, values: bool
    ) -> dict[str, Any]:
        until = self._clock() + SECONDS_MAX
        kept: list[dict[str, Any]] = []
        at, stretch, expired = end, FIRST_STRETCH, False
        while at > 1 and len(kept) < limit and not expired and stretch:
            began, start = self._clock(), max(1, at - stretch)
            try:
                found = self._stretch(log, table, key, start, at - 1, limit - len(kept))
            except HistoryLost:
                start, expired = _first_from(log, start, at)
                found = self._stretch(log, table, key, start, at - 1, limit - len(kept))
            newest = sorted((c for one in found for c in _changes(one, values=values)), key=lambda c: -int(c["offset"]))
            kept += newest[: limit - len(kept)]
            at, stretch = start, _next_stretch(stretch, self._clock() - began, until - self._clock())
        looked = int(kept[-1]["offset"]) if len(kept) == limit else at
        return {"changes": kept, "looked_back_to": looked, "more": looked > 1 and not (expired and looked == at)}

    def _stretch(
        self, log: LogReader, table: TableId | None, key: Sequence[str], first: int, last: int, limit: int
    ) -> list[_Found]:
        """Return the latest rows between two offsets, at least `limit` per table if there are that many."""
        found: list[_Found] = []
        for shape, _, rows in log.read_rows(first, last, None if table is None else (table,)):
            rows = _with_key(shape, rows, key) if key else rows
            if rows.num_rows:
                found.append(_Found(shape, rows.slice(max(0, rows.num_rows - limit))))
            if table is not None:  # offsets of one table ascend, so all rows before the last `limit` are not shown
                while sum(one.rows.num_rows for one in found[1:]) >= limit:
                    del found[0]
        return found

    def _header(self, log: LogReader, number: int) -> Mapping[str, Any]:
        first, last = 1, int(log.newest_checkpoint().next_offset) - 1
        if first <= last:
            first, _ = _first_from(log, first, last)
        return header_of(log, number, first, last)


class _Alone:
    """A lock that one query at a time holds; a second query is refused instead of waiting."""

    def __init__(self, lock: threading.Lock) -> None:
        self._lock = lock

    def __enter__(self) -> None:
        if not self._lock.acquire(blocking=False):
            raise SinkUnavailable("another query of the log is still running", remedy="try again in a few seconds")

    def __exit__(self, *_: object) -> None:
        self._lock.release()


def _next_stretch(stretch: int, took_s: float, left_s: float) -> int:
    """Return how many offsets to search next; 0 if no time is left."""
    fits = STRETCH_MAX if took_s <= 0 else int(stretch * left_s / took_s)
    return max(0, min(stretch * 8, STRETCH_MAX, fits)) if left_s > 0 else 0


def _first_from(log: LogReader, first: int, end: int) -> tuple[int, bool]:
    """Return `first`, or the first later offset that has not expired, and whether some have expired."""
    if _is_there(log, first):
        return first, False
    low, high = first, end
    while low < high:
        middle = (low + high) // 2
        if _is_there(log, middle):
            high = middle
        else:
            low = middle + 1
    return low, True


def _is_there(log: LogReader, offset: int) -> bool:
    try:
        next(iter(log.read_transactions(offset, offset)), None)
    except HistoryLost:
        return False
    return True


def table_named(log: LogReader, name: str) -> TableId:
    """Return the table of a log that has this name (`schema.table`).

    Raises:
        ConfigurationError: there is no such table; the message lists the existing ones.
    """
    known = {str(table): table for table in log.table_shapes()}
    if name not in known:
        raise ConfigurationError(
            f"the log has no table {name}; it has: {', '.join(sorted(known)) or 'none yet'}",
            remedy=f"{did_you_mean(name, known)}name it as schema.table",
        )
    return known[name]


def _with_key(shape: Table, rows: pa.Table, key: Sequence[str]) -> pa.Table:
    """Return the rows of one key: those that have it now, and those that had it before their key was changed."""
    names = shape.key_columns
    if len(key) != len(names):
        raise ConfigurationError(
            f"a key of {shape.id} has {len(names)} columns, not {len(key)}", remedy=f"give {', '.join(names)}"
        )
    wanted = [scalar_of(shape, name, text) for name, text in zip(names, key, strict=True)]
    before = rows.column(BEFORE).combine_chunks()
    had = [pc.struct_field(before, name) for name in names]
    return rows.filter(pc.or_(are_equal([rows.column(name) for name in names], wanted), are_equal(had, wanted)))


def _changes(found: _Found, *, values: bool) -> Iterator[dict[str, Any]]:
    for row in found.rows.to_pylist():
        unchanged = list(row[UNCHANGED] or ())
        change: dict[str, Any] = {
            "offset": row[OFFSET],
            "transaction": row[TRANSACTION],
            "commit_ts": _text(row[COMMIT_TS]),
            "op": row[OP],
            "table": str(found.table.id),
            "unchanged": unchanged,
        }
        if values:
            change |= _values(found.table, row, unchanged)
        yield change


def _values(table: Table, row: dict[str, Any], unchanged: Sequence[str]) -> dict[str, Any]:
    """Return a row's values as texts (`None`: NULL). A deleted row has only its key, a truncation nothing."""
    shown = [
        name
        for name in row
        if name not in LOG_COLUMNS
        and name not in unchanged
        and row[OP] != "t"
        and (row[OP] != "d" or name in table.key_columns)
    ]
    found: dict[str, Any] = {"values": {name: _text(row[name]) for name in shown}}
    if (before := row[BEFORE]) is not None:
        found["before"] = {name: _text(value) for name, value in before.items() if value is not None}
    return found


def _change_as_json(change: Change) -> dict[str, Any]:
    return {
        "offset": change.offset,
        "transaction": change.transaction,
        "commit_ts": _text(change.commit_ts),
        "op": change.op,
    }


def _texts(row: Mapping[str, Any] | None) -> dict[str, str | None] | None:
    return None if row is None else {name: _text(value) for name, value in row.items()}


def _text(value: object) -> str | None:
    """Return a value as text, since JavaScript's numbers cannot represent all values."""
    if value is None:
        return None
    if isinstance(value, bytes):
        text = f"\\x{value[:CELL_CHARACTERS_MAX].hex()}"
    elif hasattr(value, "isoformat"):
        text = str(value.isoformat())
    else:
        text = str(value)
    return text if len(text) <= CELL_CHARACTERS_MAX else f"{text[:CELL_CHARACTERS_MAX]}… ({len(text)} characters)"
