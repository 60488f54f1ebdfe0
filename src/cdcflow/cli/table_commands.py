"""`cdcflow table pause|resume|cancel|adjust`: steer the backfill of single tables in a running daemon."""

from __future__ import annotations

from typing import Annotated

import typer

from cdcflow.cli import output
from cdcflow.cli.options import DEFAULT_CONFIG, ConfigPath, Json
from cdcflow.config import load
from cdcflow.errors import ConfigurationError
from cdcflow.service.control import ask

app = typer.Typer(no_args_is_help=True, help="Steer the backfill of tables in a running daemon.")
Names = Annotated[list[str], typer.Argument(help="As schema.table.")]


@app.command()
def pause(tables: Names, config: ConfigPath = DEFAULT_CONFIG, json: Json = False) -> None:
    """Stop reading these tables for now. Their changes are captured all the same."""
    _order({"op": "pause", "tables": tables}, config, json)


@app.command()
def resume(tables: Names, config: ConfigPath = DEFAULT_CONFIG, json: Json = False) -> None:
    """Go on reading paused tables where they were."""
    _order({"op": "resume", "tables": tables}, config, json)


@app.command()
def cancel(tables: Names, config: ConfigPath = DEFAULT_CONFIG, json: Json = False) -> None:
    """Give up the backfill of these tables. Their changes are captured all the same."""
    _order({"op": "cancel", "tables": tables}, config, json)


@app.command()
def adjust(
    tables: Names,
    priority: Annotated[int | None, typer.Option(help="Higher is read first.")] = None,
    rows_per_second_max: Annotated[int | None, typer.Option(min=0, help="0: no limit.")] = None,
    config: ConfigPath = DEFAULT_CONFIG,
    json: Json = False,
) -> None:
    """Change the priority or the speed of tables that are being read."""
    changes = {"priority": priority, "rows_per_second_max": rows_per_second_max}
    _order({"op": "adjust", "tables": tables, **{k: v for k, v in changes.items() if v is not None}}, config, json)


def _order(request: dict[str, object], config: ConfigPath, json: bool) -> None:
    from cdcflow import wiring

    settings = load(config)
    answer = ask(settings.log.folder, request)
    if answer is None:
        raise ConfigurationError(
            f"no daemon runs here on the log {wiring.log_reader(settings).name}",
            remedy="start `cdcflow run`, then ask again",
        )
    if json:
        output.print_json(answer)
    else:
        typer.echo(f"{answer['op']} ordered: {', '.join(answer['tables'])}; `cdcflow status` shows the effect")
