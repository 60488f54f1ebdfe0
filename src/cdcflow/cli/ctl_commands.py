"""`cdcflow ctl …`: steer a running daemon as a whole."""

from __future__ import annotations

from typing import Annotated

import typer

from cdcflow.cli import status as status_command
from cdcflow.cli.options import DEFAULT_CONFIG, ConfigPath, Json
from cdcflow.cli.orders import order
from cdcflow.errors import ConfigurationError

app = typer.Typer(no_args_is_help=True, help="Control a running daemon.")

app.command("status")(status_command.status)


@app.command()
def pause(config: ConfigPath = DEFAULT_CONFIG, json: Json = False) -> None:
    """Stop reading the source at a cut until `cdcflow ctl resume`. A restart does not resume it."""
    order({"op": "pause-capture"}, config, json)


@app.command()
def resume(config: ConfigPath = DEFAULT_CONFIG, json: Json = False) -> None:
    """Resume reading the source where it was paused."""
    order({"op": "resume-capture"}, config, json)


@app.command()
def stop(config: ConfigPath = DEFAULT_CONFIG, json: Json = False) -> None:
    """End the daemon at the next cut."""
    order({"op": "stop"}, config, json)


@app.command()
def throttle(
    rate: Annotated[int | None, typer.Argument(min=0, help="Rows a second of each table; 0: no limit.")] = None,
    table: Annotated[list[str] | None, typer.Option(help="Only these, as schema.table.")] = None,
    reset: Annotated[bool, typer.Option("--reset", help="Undo it: the settings apply again.")] = False,
    config: ConfigPath = DEFAULT_CONFIG,
    json: Json = False,
) -> None:
    """Limit how fast the tables that are being read now are read, until they are read."""
    if (rate is None) != reset:
        raise ConfigurationError(
            "throttling: neither a rate nor --reset is given, or both are", remedy="use one of the two"
        )
    change: dict[str, object] = {"reset": True} if rate is None else {"rows_per_second_max": rate}
    order({"op": "adjust", "tables": table or [], **change}, config, json)
