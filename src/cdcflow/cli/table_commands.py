"""`cdcflow table …`: steer the reading of single tables in a running daemon."""

from __future__ import annotations

from typing import Annotated

import typer

from cdcflow.cli.options import DEFAULT_CONFIG, ConfigPath, Json
from cdcflow.cli.orders import order
from cdcflow.errors import ConfigurationError

app = typer.Typer(no_args_is_help=True, help="Control how a running daemon reads tables.")
Names = Annotated[list[str], typer.Argument(help="As schema.table.")]
REREAD_WAIT_S = 75


@app.command()
def backfill(tables: Names, config: ConfigPath = DEFAULT_CONFIG, json: Json = False) -> None:
    """Read these tables again; `cdcflow backfill` also waits for them."""
    order({"op": "backfill", "tables": tables}, config, json)


@app.command()
def pause(tables: Names, config: ConfigPath = DEFAULT_CONFIG, json: Json = False) -> None:
    """Stop reading these tables for now. Their changes are still captured."""
    order({"op": "pause", "tables": tables}, config, json)


@app.command()
def resume(tables: Names, config: ConfigPath = DEFAULT_CONFIG, json: Json = False) -> None:
    """Continue reading paused tables."""
    order({"op": "resume", "tables": tables}, config, json)


@app.command()
def cancel(tables: Names, config: ConfigPath = DEFAULT_CONFIG, json: Json = False) -> None:
    """Cancel the backfill of these tables. Their changes are still captured."""
    order({"op": "cancel", "tables": tables}, config, json)


@app.command()
def adjust(
    tables: Names,
    priority: Annotated[int | None, typer.Option(help="Higher is read first.")] = None,
    rows_per_second_max: Annotated[int | None, typer.Option(min=0, help="0: no limit.")] = None,
    reset: Annotated[bool, typer.Option("--reset", help="Undo it: the settings apply again.")] = False,
    config: ConfigPath = DEFAULT_CONFIG,
    json: Json = False,
) -> None:
    """Change the priority or the speed of tables being read.

    The change applies until the tables are read.
    """
    changes = {"priority": priority, "rows_per_second_max": rows_per_second_max, "reset": reset or None}
    order({"op": "adjust", "tables": tables, **{k: v for k, v in changes.items() if v is not None}}, config, json)


@app.command()
def reread(
    table: Annotated[str, typer.Argument(help="As schema.table.")],
    key: Annotated[
        list[str] | None,
        typer.Option(help="A row's key; several columns with commas, or as a JSON list. May be given again."),
    ] = None,
    where: Annotated[str | None, typer.Option(help="Or a predicate in the source's SQL.")] = None,
    config: ConfigPath = DEFAULT_CONFIG,
    json: Json = False,
) -> None:
    """Read some rows of a table again.

    Name them by their keys or by a predicate. Their current values enter the log.
    """
    if (not key) == (where is None):
        raise ConfigurationError("rows to read again: name them by --key or by --where", remedy="use one of the two")
    rows: dict[str, object] = {"where": where} if where is not None else {"keys": [key_of(text) for text in key or ()]}
    order({"op": "reread", "tables": [table], **rows}, config, json, timeout_s=REREAD_WAIT_S)


@app.command()
def repair(
    table: Annotated[str, typer.Argument(help="As schema.table.")],
    key: Annotated[
        list[str],
        typer.Option(help="A row's key; several columns with commas, or as a JSON list. May be given again."),
    ],
    known_until: Annotated[
        str | None,
        typer.Option(help="The position in the source's log up to which the rows were last known to be right."),
    ] = None,
    config: ConfigPath = DEFAULT_CONFIG,
    json: Json = False,
) -> None:
    """Make some rows equal to the source.

    Their current values are read. A key without a row in the source is deleted in the log, and so in the tables.
    """
    request: dict[str, object] = {"op": "repair", "tables": [table], "keys": [key_of(text) for text in key]}
    if known_until is not None:
        request["known_until"] = known_until
    order(request, config, json, timeout_s=REREAD_WAIT_S)


def key_of(text: str) -> list[str]:
    """A key as users type it: `17`, `eu,17`, or `["a,b", "17"]` if a value has a comma."""
    import json

    if not text.startswith("["):
        return text.split(",")
    try:
        parts = json.loads(text)
    except ValueError:
        parts = None
    if not isinstance(parts, list) or not parts or not all(isinstance(part, str | int) for part in parts):
        raise ConfigurationError(
            "a key that begins with [ is a JSON list of texts",
            remedy='write it so: --key \'["a,b", "17"]\'',
            runbook="settings",
        )
    return [str(part) for part in parts]
