"""`cdcflow deliver`: the tables of the log in the targets that packages bring."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from cdcflow.cli import failure, output
from cdcflow.cli.options import DEFAULT_CONFIG, ConfigPath, Json
from cdcflow.config import Config, load
from cdcflow.errors import ConfigurationError, SinkUnavailable

if TYPE_CHECKING:
    from cdcflow.targets.delivery import TableDelivery


def deliver(
    targets: Annotated[
        list[str] | None, typer.Argument(metavar="TARGET", help="Targets of the settings. Default: all.")
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Up to the end that the log has now, then end.")] = False,
    config: ConfigPath = DEFAULT_CONFIG,
    json: Json = False,
) -> None:
    """Bring the tables of targets to the end of the log, each change exactly once, until SIGTERM or Ctrl-C.

    With --once it exits with 1 if a table could not be delivered.
    """
    from cdcflow.daemon import signals
    from cdcflow.daemon.events import send_structlog_to

    settings = load(config)
    send_structlog_to(sys.stderr)  # stdout is for the report
    names = targets or list(settings.targets)
    if not names:
        raise ConfigurationError("the settings have no targets", remedy="set targets (docs/own-target.md)")
    if once:
        done = [_deliver_to(settings, name, json) for name in names]
        if not all(done):
            raise typer.Exit(failure.FINDINGS)
        return

    def again() -> None:
        for name in names:
            try:
                _deliver_to(settings, name, json)
            except SinkUnavailable as error:
                typer.echo(f"{name}: waits: {str(error).splitlines()[0]}", err=True)

    signals.again_and_again(again, min(settings.targets[name].every for name in names if name in settings.targets))


def _deliver_to(config: Config, name: str, json: bool) -> bool:
    """Deliver to one target; whether every table was delivered."""
    from cdcflow import wiring

    with wiring.open_delivery(config, name) as delivery:
        found = delivery.deliver()
    for one in found:
        if json:
            output.print_json({"target": name, **one.to_json()})
        else:
            typer.echo(output.plain(f"{name}: {one.table}: {_in_words(one)}"))
    return not any(one.problem for one in found)


def _in_words(one: TableDelivery) -> str:
    if one.problem:
        return f"not delivered: {one.problem}" + (f"; {one.remedy}" if one.remedy else "")
    if one.is_whole:
        return f"all {one.rows} rows, through offset {one.offset}"
    return f"{one.rows} rows, {one.deleted} deleted, through offset {one.offset}"
