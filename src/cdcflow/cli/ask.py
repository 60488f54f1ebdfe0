"""`cdcflow get`, `history`, `range`, `diff`, `transaction`: questions to a change log, and none to the source."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cdcflow.cli import output
from cdcflow.cli.options import DEFAULT_CONFIG, ConfigPath, Json
from cdcflow.cli.table_commands import key_of
from cdcflow.daemon import signals
from cdcflow.reports.answers import (
    change_as_json,
    change_line,
    difference_lines,
    history_lines,
    row_as_json,
    row_lines,
    transaction_lines,
    values_text,
)

if TYPE_CHECKING:
    from cdcflow.log.query.log import ChangeLog

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
        output.print_json(row_as_json(found))
    else:
        output.show(row_lines(found))
    if watch:
        with signals.stopping() as stop:
            for change in asked.watch(table, *key_of(key), after=found.moment.offset, wait=stop.wait):
                output.print_json(change_as_json(change)) if json else typer.echo(change_line(change))


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
        output.print_json(
            {**asdict(found), "table": table, "changes": [change_as_json(change) for change in found.changes]}
        )
    else:
        output.show(history_lines(found))


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
            typer.echo(values_text(row))
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
    else:
        output.show(difference_lines(found, limit))


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
        output.print_json({**asdict(found), "changes": [change_as_json(change) for change in found.changes]})
    else:
        output.show(transaction_lines(found, limit))


def _open(log: str | None, config: Any) -> ChangeLog:  # Any: a Path, or what tests give in its place
    import cdcflow

    return cdcflow.open(config if log is None else log)
