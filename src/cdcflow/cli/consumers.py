"""`cdcflow consumer …`: named consumers of the log. The source is not asked, and no daemon need run."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cdcflow.cli import output
from cdcflow.cli.ask import Where
from cdcflow.cli.options import DEFAULT_CONFIG, ConfigPath, Json
from cdcflow.daemon import signals
from cdcflow.reports.consumers import consumer_row_line, consumers_table

if TYPE_CHECKING:
    from cdcflow.log.query.consumers import Consumers

app = typer.Typer(no_args_is_help=True, help="Read the log under a name, with a cursor that is kept.")

Name = Annotated[str, typer.Argument(help="The consumer's name.")]
StateFolder = Annotated[
    Path | None,
    typer.Option(
        "--state", help="The folder that keeps it, where the log has no folder on this machine.", show_default=False
    ),
]
Start = Annotated[
    str,
    typer.Option(
        "--from",
        help="current: first the rows of its tables; now: changes from now on; beginning: from the oldest change left;"
        " or after a point in time, as for --as-of.",
    ),
]


@app.command()
def create(
    name: Name,
    table: Annotated[
        list[str] | None, typer.Option("--table", "-t", help="Only this table; repeat it for others.")
    ] = None,
    ops: Annotated[str | None, typer.Option(help="Only these changes, of crudt: cud.", show_default=False)] = None,
    start: Start = "current",
    state: StateFolder = None,
    log: Where = None,
    config: ConfigPath = DEFAULT_CONFIG,
    json: Json = False,
) -> None:
    """Create a consumer.

    It gets the rows of its tables as the log has them now, then every later change.
    """
    from cdcflow.log.query.cursors import Definition

    made = _consumers(log, config, state).create(Definition(name, tuple(table) if table else None, ops), start)
    if json:
        output.print_json({"name": name, "cursor": str(made.committed), "offset": made.committed.offset})
        return
    count = 0 if made.backfill is None else len(made.backfill.parts)
    rows = f" with the rows of {count} table{'s' if count > 1 else ''}" if count else ""
    typer.echo(f"consumer {name} begins{rows} at offset {made.committed.offset}: `cdcflow consumer read {name}`")


@app.command("ls")
def list_consumers(
    state: StateFolder = None, log: Where = None, config: ConfigPath = DEFAULT_CONFIG, json: Json = False
) -> None:
    """List the consumers: what each gets, how far it is, and who reads it."""
    from cdcflow.log.query.rows_as_json import consumer_as_json

    found = _consumers(log, config, state).list_consumers()
    if json:
        output.print_json([consumer_as_json(one) for one in found])
        return
    output.show([consumers_table(found)])


@app.command()
def read(
    name: Name,
    after: Annotated[
        str | None, typer.Option(help="After this cursor, not the last commit.", show_default=False)
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="How many rows.", show_default=False)] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Wait for new changes, until Ctrl-C.")] = False,
    commit: Annotated[
        bool, typer.Option("--commit", help="Commit what is printed: each row comes at least once.")
    ] = False,
    state: StateFolder = None,
    log: Where = None,
    config: ConfigPath = DEFAULT_CONFIG,
    json: Json = False,
) -> None:
    """Print the next changes, one row per line. With --json each line has its cursor."""
    from cdcflow.log.query.rows_as_json import batch_as_json

    left: float = math.inf if limit is None else limit
    with signals.stopping() as stop, _consumers(log, config, state).open(name, batch_rows=1000) as consumer:
        for batch in consumer.read(after, wait=None if follow else 0.0, stop=stop.wait):
            count = int(min(left, batch.rows.num_rows))
            for line in batch_as_json(batch, count):
                output.print_json(line) if json else typer.echo(consumer_row_line(line))
            left -= count
            if commit:
                consumer.commit(batch.cursor_after(count))
            if not left or stop.is_set():
                return


@app.command()
def commit(
    name: Name,
    cursor: Annotated[str, typer.Argument(help="As a line of `read --json` has it.")],
    state: StateFolder = None,
    log: Where = None,
    config: ConfigPath = DEFAULT_CONFIG,
) -> None:
    """Record that everything up to a cursor was processed. Never goes back."""
    with _consumers(log, config, state).open(name) as consumer:
        consumer.commit(cursor)
        typer.echo(f"consumer {name} has everything up to offset {consumer.state.committed.offset}")


@app.command()
def seek(
    name: Name,
    to: Annotated[str, typer.Argument(help="A cursor, or a point in time as for --as-of.")],
    state: StateFolder = None,
    log: Where = None,
    config: ConfigPath = DEFAULT_CONFIG,
) -> None:
    """Continue from another position, earlier or later."""
    with _consumers(log, config, state).open(name) as consumer:
        consumer.seek(to)
        typer.echo(f"consumer {name} continues after offset {consumer.state.committed.offset}")


@app.command()
def restart(
    name: Name,
    start: Start = "current",
    state: StateFolder = None,
    log: Where = None,
    config: ConfigPath = DEFAULT_CONFIG,
) -> None:
    """Begin again, with the rows that the log has now. Empty the consumer's target first."""
    with _consumers(log, config, state).open(name) as consumer:
        consumer.restart(start)
        typer.echo(f"consumer {name} starts again at offset {consumer.state.committed.offset}")


@app.command()
def drop(name: Name, state: StateFolder = None, log: Where = None, config: ConfigPath = DEFAULT_CONFIG) -> None:
    """Remove a consumer with its cursor. The log no longer waits for it."""
    _consumers(log, config, state).drop(name)
    typer.echo(f"consumer {name} is gone")


# ── inside ──────────────────────────────────────────────────────────────────────────────────────────────────


def _consumers(log: str | None, config: Path, state: Path | None) -> Consumers:
    import cdcflow

    return cdcflow.open(config if log is None else log).consumers(state)
