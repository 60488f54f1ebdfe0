"""A command to a running daemon, and its answer in words: what `cdcflow table` and `cdcflow ctl` share."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import typer

from cdcflow.cli import failure, output
from cdcflow.config import load
from cdcflow.daemon.interfaces.control_socket import ask
from cdcflow.errors import ConfigurationError
from cdcflow.reports.outcomes import has_changed, outcome_lines


def order(request: Mapping[str, object], config: Path, json: bool, *, timeout_s: float = 10) -> None:
    """Send a request to the daemon of the configured log and print the outcome, table by table.

    Exits with 1 if it changed nothing at all.

    Raises:
        ConfigurationError: no daemon runs.
    """
    from cdcflow import wiring

    settings = load(config)
    answer = ask(settings.log.folder, request, timeout_s=timeout_s)
    if answer is None:
        raise ConfigurationError(
            f"no daemon runs here on the log {wiring.log_reader(settings).name}",
            remedy="start `cdcflow run`, then ask again",
            runbook="no-daemon",
        )
    if json:
        output.print_json(answer)
    else:
        output.show(outcome_lines(answer))
    if not has_changed(answer):
        raise typer.Exit(failure.FINDINGS)
