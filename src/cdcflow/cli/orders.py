"""A command to a running daemon, and its answer in words: what `cdcflow table` and `cdcflow ctl` share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import typer

from cdcflow.cli import failure, output
from cdcflow.config import load
from cdcflow.daemon.interfaces.control_socket import ask
from cdcflow.errors import ConfigurationError

UNCHANGED_SHOWN_MAX = 20
CHANGED_NOTHING = ("nothing to do", "refused")


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
        for line in answer_lines(answer):
            typer.echo(line)
    if not any(fits(one) for one in _outcomes(answer).values()):
        raise typer.Exit(failure.FINDINGS)


def answer_lines(answer: Mapping[str, Any]) -> Iterator[str]:
    """The lines of an answer."""
    outcomes = _outcomes(answer)
    unchanged = {name: one for name, one in outcomes.items() if not fits(one)}
    for name, one in outcomes.items():
        if name not in unchanged or len(unchanged) <= UNCHANGED_SHOWN_MAX:
            yield f"{name}: {one['outcome']}" + (f" ({one['reason']})" if one.get("reason") else "")
    if len(unchanged) > UNCHANGED_SHOWN_MAX:
        yield f"{len(unchanged)} more tables: nothing to do (--json names them)"
    if answer.get("number") is not None and not answer.get("durable"):
        yield "this is not durable yet; `cdcflow log commands` shows it once it is"


def fits(outcome: Mapping[str, Any]) -> bool:
    """Whether it changed something."""
    return outcome["outcome"] not in CHANGED_NOTHING


def _outcomes(answer: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    about = {"the capture": answer["capture"]} if "capture" in answer else {}
    return {**about, **answer["tables"]}
