"""`cdcflow get`, `history`, `range`, `diff`, `transaction`: questions to a change log, and none to the source."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cdcflow.cli import output
from cdcflow.cli.options import DEFAULT_CONFIG, ConfigPath, Json
from cdcflow.cli.table_commands import key_of
from cdcflow.daemon import signals
from cdcflow.reports import readable

if TYPE_CHECKING:
    from cdcflow.log.query.answers import Found, Moment
    from cdcflow.log.query.log import ChangeLog
    from cdcflow.log.query.row import Change

Where = Annotated[
    str | None, typer.Option("--log", help="The log's folder or s3:// URL, without any settings.", show_default=False)
]
Table = Annotated[str, typer.Argument(help="As schema.table.")]
RowKey = Annotated[str, typer.Argument(help='The row\'s key: 17, or eu,17, or \'["a,b", "17"]\'.')]
AsOf = Annotated[
    str | None,
    typer.Option(
        "--as-of",
        help="An offset, a cut (cut:52), a position of the source, or a commit time (2026-11-25T10:00:00Z).",
        show_default=False,
    ),
]


def get(
    table: Table,
    key: RowKey,
    as_of: AsOf = None,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Then print each change of it, until Ctrl-C.")] = False,
    log: Where = None,
    config: ConfigPath = DEFAULT_CONFIG,
    json: Json = False,
) -> None:
    """Print a row, now or at a point in time, and the change that produced it."""
    asked = _open(log, config)
    found = asked.get(table, *key_of(key), as_of=as_of)
    if json:
        output.print_json(_told_found(found))
    else:
        _say_found(found)
    if watch:
        with signals.stopping() as stop:
            for change in asked.watch(table, *key_of(key), after=found.moment.offset, wait=stop.wait):
                output.print_json(_as_json(change)) if json else _say(change)


def history(
    table: Table,
    key: RowKey,
    as_of: AsOf = None,
    before: Annotated[int | None, typer.Option(help="Only changes before this offset.", show_default=False)] = None,
    limit: Annotated[int, typer.Option(min=1, help="How many changes.")] = 20,
    log: Where = None,
    config: ConfigPath = DEFAULT_CONFIG,
    json: Json = False,
) -> None:
    """Print the changes of a row, the latest first."""
    found = _open(log, config).history(table, *key_of(key), as_of=as_of, before=before, limit=limit)
    if json:
        output.print_json({**asdict(found), "table": table, "changes": [_as_json(change) for change in found.changes]})
        return
    for change in found.changes:
        _say(change)
    if not found.changes:
        typer.echo("the log has no change of this row")
    if found.more:
        typer.echo(f"there are older ones: --before {found.back_to}")
    _say_notes(found.notes)


def range_(
    table: Table,
    first: Annotated[str, typer.Option("--from", help="The lowest value of the first key column.")],
    last: Annotated[str, typer.Option("--to", help="The highest value, inclusive.")],
    as_of: AsOf = None,
    limit: Annotated[int, typer.Option(min=1, help="How many rows.")] = 1000,
    log: Where = None,
    config: ConfigPath = DEFAULT_CONFIG,
    json: Json = False,
) -> None:
    """Print the rows whose key is between two values.

    The whole table is built from the log for it, in memory.
    """
    rows = _open(log, config).range(table, first, last, as_of, limit + 1)
    for row in rows.slice(0, limit).to_pylist():
        if json:
            output.print_json(row)
        else:
            typer.echo(_values(row))
    if rows.num_rows > limit and not json:
        typer.echo(f"there are more: raise --from, or --limit ({limit})")
    if note := (rows.schema.metadata or {}).get(b"cdcflow.note"):
        typer.echo(f"note: {note.decode()}", err=json)


def diff(
    table: Table,
    first: Annotated[str, typer.Argument(help="The earlier point in time; as for --as-of.")],
    last: Annotated[str | None, typer.Argument(help="The later one; without it now.", show_default=False)] = None,
    limit: Annotated[int, typer.Option(min=1, help="How many keys are compared.")] = 1000,
    log: Where = None,
    config: ConfigPath = DEFAULT_CONFIG,
    json: Json = False,
) -> None:
    """Print the rows of a table that differ between two points in time."""
    found = _open(log, config).diff(table, first, last, limit)
    if json:
        output.print_json({**asdict(found), "table": table})
        return
    for one in found.found:
        typer.echo(f"{one.change} {','.join(one.key)}")
        if one.before is not None:
            typer.echo(f"  - {_values(one.before)}")
        if one.after is not None:
            typer.echo(f"  + {_values(one.after)}")
    typer.echo(
        f"{len(found.found)} rows differ between offset {found.first.offset} and {found.last.offset};"
        f" {readable.number(found.touched)} keys had a change in between"
    )
    if found.truncated:
        typer.echo(f"only the {limit} of them with the latest changes were compared: raise --limit")
    _say_notes(found.notes)


def transaction(
    number: Annotated[int, typer.Argument(help="Its number in the log, as every change has it.")],
    limit: Annotated[int, typer.Option(min=1, help="How many rows.")] = 500,
    log: Where = None,
    config: ConfigPath = DEFAULT_CONFIG,
    json: Json = False,
) -> None:
    """Print a transaction: when it was committed, and every row that it changed."""
    found = _open(log, config).transaction(number, limit=limit)
    if json:
        output.print_json({**asdict(found), "changes": [_as_json(change) for change in found.changes]})
        return
    what = "a chunk of a backfill" if found.kind == "read" else f"transaction {found.number} (id {found.xid})"
    typer.echo(f"{what}, committed {_time(found.commit_ts)}, position {found.position}")
    typer.echo(f"offsets {found.first_offset} to {found.last_offset}")
    for change in found.changes:
        _say(change)
    if found.truncated:
        typer.echo(f"there are more rows than {limit}: raise --limit")


# ── inside ──────────────────────────────────────────────────────────────────────────────────────────────────


def _open(log: str | None, config: Any) -> ChangeLog:  # Any: a Path, or what tests give in its place
    import cdcflow

    return cdcflow.open(config if log is None else log)


def _say_found(found: Found) -> None:
    typer.echo(f"{found.table} {','.join(found.key)}, {_moment(found.moment)}")
    if found.values is not None:
        for name, value in found.values.items():
            typer.echo(f"  {name}: {_cell(value)}")
        for name in found.unknown:
            typer.echo(f"  {name}: (the log does not have its value)")
    else:
        typer.echo(f"  {found.state}")
    if found.last is not None:
        typer.echo(f"  by {_place(found.last)}")
    _say_notes(found.notes)


def _say(change: Change) -> None:
    sent = {**change.values, **dict.fromkeys(change.unchanged, _UNCHANGED)}
    was = "" if not change.before else f" was {_values(change.before)}"
    typer.echo(f"{_place(change)} {change.table.id}: {_values(sent)}{was}".rstrip())


_UNCHANGED = object()
_OPS = {"c": "insert", "u": "update", "d": "delete", "t": "truncate", "r": "read"}


def _place(change: Change) -> str:
    return (
        f"{_OPS.get(change.op, change.op)} at offset {change.offset}, transaction {change.transaction},"
        f" {_time(change.commit_ts)}"
    )


def _moment(moment: Moment) -> str:
    return f"as of offset {moment.offset}" + (f" ({moment.position})" if moment.position else "")


def _values(row: Mapping[str, Any]) -> str:
    return " ".join(f"{name}={_cell(value)}" for name, value in row.items() if value is not None or name[:1] != "_")


def _cell(value: object) -> str:
    if value is None:
        return "NULL"
    if value is _UNCHANGED:
        return "(unchanged)"
    return f"\\x{value.hex()}" if isinstance(value, bytes) else str(value).replace("\n", "\\n")


def _time(value: datetime) -> str:
    return value.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _say_notes(notes: Iterable[str]) -> None:
    for note in notes:
        typer.echo(f"note: {note}")


def _as_json(change: Change) -> dict[str, Any]:
    """For machines. Bytes as hex, since JSON has no bytes."""
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


def _told_found(found: Found) -> dict[str, Any]:
    return {
        **asdict(found),
        "table": str(found.table),
        "values": None if found.values is None else _plain(found.values),
        "last": None if found.last is None else _as_json(found.last),
    }


def _plain(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: f"\\x{value.hex()}" if isinstance(value, bytes) else value for name, value in row.items()}
