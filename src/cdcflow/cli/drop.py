"""`cdcflow drop`: end a pipeline, so that nothing of it costs the source anything."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from cdcflow.cli import failure, output
from cdcflow.cli.options import DEFAULT_CONFIG, ConfigPath, Json
from cdcflow.config import Config, load
from cdcflow.daemon.interfaces.control_socket import ask
from cdcflow.errors import ConfigurationError
from cdcflow.reports.dropped import dropped_lines


def drop(
    config: ConfigPath = DEFAULT_CONFIG,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    json: Json = False,
) -> None:
    """End this pipeline: remove what cdcflow made at the source.

    Slot and publication, or marks, are removed; log and tables stay, and how to remove them is listed. Nothing can
    capture into this log from its position afterwards. Exits with 1 when something at the source had to stay.
    """
    settings = load(config)
    _check_stopped(settings)
    from cdcflow import wiring

    name = wiring.log_reader(settings).name
    if not yes:
        typer.confirm(
            f"End the pipeline of the log {name}? This removes what cdcflow created for it at"
            f" {wiring.addresses(settings)['source']}, and no capture can continue from its position",
            abort=True,
            err=True,
        )
    with wiring.held_lease(settings, lambda event, fields: None):
        dropped, left = wiring.drop(settings), wiring.leftovers(settings)
    if json:
        stays = [{"subject": subject, "remedy": how} for subject, how in left]
        output.print_json({"source": [asdict(d) for d in dropped], "left": stays})
    else:
        output.show(dropped_lines(dropped, left))
    if any(d.outcome == "left" and d.remedy is not None for d in dropped):
        raise typer.Exit(failure.FINDINGS)


def _check_stopped(settings: Config) -> None:
    if ask(settings.log.folder, {"op": "ping"}) is not None:
        raise ConfigurationError(
            f"a daemon captures into this log (it answers in {settings.log.folder})",
            remedy="stop it (SIGTERM, or Ctrl-C where it runs), then run `cdcflow drop` again",
        )
