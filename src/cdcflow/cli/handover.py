"""`cdcflow handover`: an orderly change of the active daemon."""

from __future__ import annotations

import time

import typer

from cdcflow.cli import failure, output
from cdcflow.cli.options import DEFAULT_CONFIG, ConfigPath, Json
from cdcflow.config import Config, load
from cdcflow.daemon.interfaces.control_socket import ask
from cdcflow.errors import ConfigurationError

WAIT_S = 15.0
LOOK_S = 0.2


def handover(config: ConfigPath = DEFAULT_CONFIG, json: Json = False) -> None:
    """Have the active daemon on this machine stop at its next cut, so that the standby becomes active.

    Ends with 1 if no other daemon became active: then this one captures again.
    """
    from cdcflow import wiring

    settings = load(config)
    known = _active_process(settings)
    before = wiring.lease_holder(settings, known)
    if ask(settings.log.folder, {"op": "handover"}) is None:
        who = "" if before is None else f" ({before.name} is)"
        raise ConfigurationError(
            f"no daemon on this machine is active{who}",
            remedy="run the command on the machine of the active daemon",
            runbook="no-daemon",
        )
    began, now = time.monotonic(), before
    while (now is None or now == before) and time.monotonic() - began < WAIT_S:
        time.sleep(LOOK_S)
        now = wiring.lease_holder(settings, known)
    seconds = round(time.monotonic() - began, 1)
    is_done = now is not None and now != before and before is not None and now.name != before.name
    if json:
        output.print_json({"active": None if now is None else now.name, "handed_over": is_done, "seconds": seconds})
    elif is_done and now is not None:
        typer.echo(f"{now.name} is active, after {seconds} s")
    else:
        typer.echo("no standby became active; this daemon captures again")
    if not is_done:
        raise typer.Exit(failure.FINDINGS)


def _active_process(settings: Config) -> list[str]:
    """The daemon on this machine, as leases name it; [] if none answers."""
    status = ask(settings.log.folder, {"op": "status"}) or {}
    holder = (status.get("lease") or {}).get("holder")
    return [str(holder)] if holder else []
