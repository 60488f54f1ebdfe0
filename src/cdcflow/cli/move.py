"""`cdcflow move`: continue a log at another address, server or database."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cdcflow.cli import failure, output
from cdcflow.cli.options import DEFAULT_CONFIG, ConfigPath, Json
from cdcflow.config import Config, load
from cdcflow.daemon.interfaces.control_socket import ask
from cdcflow.errors import ConfigurationError
from cdcflow.reports import readable
from cdcflow.reports.moves import move_as_json, move_parts

if TYPE_CHECKING:  # `cdcflow --help` need not load the capture
    from cdcflow.model.position import Checkpoint
    from cdcflow.wiring.moves import PlannedMove


def move(
    config: ConfigPath = DEFAULT_CONFIG,
    to: Annotated[
        str | None, typer.Option("--to", help="The new source.url. Not set: the one in the settings file.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what it would do, and change nothing.")] = False,
    compare: Annotated[
        bool,
        typer.Option("--compare", help="Compare all tables, also with a server that lacks changes which the log has."),
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    json: Json = False,
) -> None:
    """Continue this log at another server, or at another address of the same server.

    Stop the daemon first. The log continues without a gap if the server is proven to have every change; otherwise it
    records a gap, and the daemon compares the tables and corrects what differs. Exits with 1 when something must be
    fixed before.
    """
    file = load(config)
    _check_stopped(file)
    from cdcflow import wiring

    settings = wiring.settings_at(file, to)
    planned = wiring.plan_move(settings, compares=compare)
    if not json:
        output.show(move_parts(planned, wiring.log_reader(settings), wiring.addresses(settings)["source"]))
    is_refused = any(found.level == "error" for found in planned.plan.findings)
    if dry_run or is_refused:
        if json:
            output.print_json({**move_as_json(planned), "moved": False})
        if is_refused:
            raise typer.Exit(failure.FINDINGS)
        return
    if not yes:
        typer.confirm("\nMove the log there?", abort=True, err=True)
    with wiring.held_lease(file, _tell):
        checkpoint = wiring.move(settings, _tell, compares=compare)
    change = _line_to_change(config, file, settings)
    if json:
        output.print_json(
            {**move_as_json(planned), "moved": True, "position": str(checkpoint.position), "change": change}
        )
    else:
        _show_moved(planned, checkpoint, change)


def _check_stopped(settings: Config) -> None:
    if ask(settings.log.folder, {"op": "ping"}) is not None:
        raise ConfigurationError(
            f"a daemon captures into this log (it answers in {settings.log.folder})",
            remedy="stop it (SIGTERM, or Ctrl-C where it runs), then run `cdcflow move` again",
            runbook="move",
        )


def _tell(event: str, fields: Mapping[str, object]) -> None:
    """Print an event of the move on stderr."""
    typer.echo(readable.plain(" ".join([event, *(f"{name}={value}" for name, value in fields.items())])), err=True)


def _line_to_change(config: Path, file: Config, settings: Config) -> str:
    """Return which line of the settings file the user has to change; "" if the file has the new address already."""
    before, now = (getattr(one.database, "url", None) for one in (file, settings))
    return "" if before == now else f"set source.url: {now} in {config}"


def _show_moved(planned: PlannedMove, checkpoint: Checkpoint, change: str) -> None:
    typer.echo(f"\nThe log was moved, and continues at {checkpoint.position}.")
    typer.echo(f"now: {change or 'the settings have this address already'}")
    repairs = (
        "" if planned.plan.is_whole else "; it compares the tables by itself, `cdcflow status` shows how far it is"
    )
    typer.echo(f"then: start `cdcflow run`{repairs}")
