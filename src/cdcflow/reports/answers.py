"""Answers about rows of a log, as text and for machines: a row, its history, differences, a transaction."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING, Any

from cdcflow.reports.readable import number

if TYPE_CHECKING:
    from cdcflow.log.query.answers import Differences, Found, History, Moment, Transaction
    from cdcflow.log.query.row import Change


def row_lines(found: Found) -> Iterator[str]:
    """A row at a point in time, and the change that produced it."""
    yield f"{found.table} {','.join(found.key)}, {_moment(found.moment)}"
    if found.values is not None:
        for name, value in found.values.items():
            yield f"  {name}: {_cell(value)}"
        for name in found.unknown:
            yield f"  {name}: (the log does not have its value)"
    else:
        yield f"  {found.state}"
    if found.last is not None:
        yield f"  by {_place(found.last)}"
    yield from note_lines(found.notes)


def change_line(change: Change) -> str:
    """A change: where it is in the log, and its values."""
    sent = {**change.values, **dict.fromkeys(change.unchanged, _UNCHANGED)}
    was = "" if not change.before else f" was {values_text(change.before)}"
    return f"{_place(change)} {change.table.id}: {values_text(sent)}{was}".rstrip()


_UNCHANGED = object()
_OPS = {"c": "insert", "u": "update", "d": "delete", "t": "truncate", "r": "read"}


def _place(change: Change) -> str:
    return (
        f"{_OPS.get(change.op, change.op)} at offset {change.offset}, transaction {change.transaction},"
        f" {_time(change.commit_ts)}"
    )


def _moment(moment: Moment) -> str:
    return f"as of offset {moment.offset}" + (f" ({moment.position})" if moment.position else "")


def values_text(row: Mapping[str, Any]) -> str:
    """The values of a row, in one line."""
    return " ".join(f"{name}={_cell(value)}" for name, value in row.items() if value is not None or name[:1] != "_")


def _cell(value: object) -> str:
    if value is None:
        return "NULL"
    if value is _UNCHANGED:
        return "(unchanged)"
    return f"\\x{value.hex()}" if isinstance(value, bytes) else str(value).replace("\n", "\\n")


def _time(value: datetime) -> str:
    return value.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def note_lines(notes: Iterable[str]) -> Iterator[str]:
    """Texts that state what an answer does not cover."""
    return (f"note: {note}" for note in notes)


def change_as_json(change: Change) -> dict[str, Any]:
    """A change as JSON. Binary values are texts of hexadecimal digits."""
    return {
        "table": str(change.table.id),
        "offset": change.offset,
        "transaction": change.transaction,
        "commit_ts": _time(change.commit_ts),
        "op": change.op,
        "values": _plain(change.values),
        "unchanged": list(change.unchanged),
        "before": None if change.before is None else _plain(change.before),
    }


def row_as_json(found: Found) -> dict[str, Any]:
    """A row at a point in time, for machines."""
    return {
        **asdict(found),
        "table": str(found.table),
        "values": None if found.values is None else _plain(found.values),
        "last": None if found.last is None else change_as_json(found.last),
    }


def _plain(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: f"\\x{value.hex()}" if isinstance(value, bytes) else value for name, value in row.items()}


def history_lines(found: History) -> Iterator[str]:
    """The changes of a row, the latest first."""
    for change in found.changes:
        yield change_line(change)
    if not found.changes:
        yield "the log has no change of this row"
    if found.more:
        yield f"there are older ones: --before {found.back_to}"
    yield from note_lines(found.notes)


def difference_lines(found: Differences, limit: int) -> Iterator[str]:
    """The rows that differ between two points in time. `limit`: how many keys were compared."""
    for one in found.found:
        yield f"{one.change} {','.join(one.key)}"
        if one.before is not None:
            yield f"  - {values_text(one.before)}"
        if one.after is not None:
            yield f"  + {values_text(one.after)}"
    yield (
        f"{len(found.found)} rows differ between offset {found.first.offset} and {found.last.offset};"
        f" {number(found.touched)} keys had a change in between"
    )
    if found.truncated:
        yield f"only the {limit} of them with the latest changes were compared: raise --limit"
    yield from note_lines(found.notes)


def transaction_lines(found: Transaction, limit: int) -> Iterator[str]:
    """A transaction with its rows. `limit`: how many of them are known at most."""
    what = "a chunk of a backfill" if found.kind == "read" else f"transaction {found.number} (id {found.xid})"
    yield f"{what}, committed {_time(found.commit_ts)}, position {found.position}"
    yield f"offsets {found.first_offset} to {found.last_offset}"
    for change in found.changes:
        yield change_line(change)
    if found.truncated:
        yield f"there are more rows than {limit}: raise --limit"
