"""`cdcflow move`: continue a log at another address, server or database."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cdcflow.cli import failure, output
from cdcflow.cli.options import DEFAULT_CONFIG, ConfigPath, Json
from cdcflow.config import Config, load
from cdcflow.daemon.interfaces.control_socket import ask
from cdcflow.errors import ConfigurationError
from cdcflow.reports import readable
from cdcflow.reports.parts import TextTable

if TYPE_CHECKING:  # `cdcflow --help` need not load the capture
    from cdcflow.model.position import Checkpoint
    from cdcflow.wiring.moves import Outcome, PlannedMove

_TARGETS = {
    "same": "the log's own server",
    "upgraded": "the log's server after an upgrade",
    "other": "another server with the same tables",
}
_OUTCOMES: Mapping[Outcome, str] = {
    "continues": "continues, nothing is missing",
    "compared": "is compared; rows that differ are corrected",
    "read": "is read again",
    "added": "is new",
}


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
        _show(settings, planned)
    is_refused = any(found.level == "error" for found in planned.plan.findings)
    if dry_run or is_refused:
        if json:
            output.print_json({**_as_json(planned), "moved": False})
        if is_refused:
            raise typer.Exit(failure.FINDINGS)
        return
    if not yes:
        typer.confirm("\nMove the log there?", abort=True, err=True)
    with wiring.held_lease(file, _tell):
        checkpoint = wiring.move(settings, _tell, compares=compare)
    change = _line_to_change(config, file, settings)
    if json:
        output.print_json({**_as_json(planned), "moved": True, "position": str(checkpoint.position), "change": change})
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
    """Events of the move, on stderr."""
    typer.echo(readable.plain(" ".join([event, *(f"{name}={value}" for name, value in fields.items())])), err=True)


def _line_to_change(config: Path, file: Config, settings: Config) -> str:
    """What to change in the settings file; "" if it has the new address."""
    before, now = (getattr(one.database, "url", None) for one in (file, settings))
    return "" if before == now else f"set source.url: {now} in {config}"


# ── output ──────────────────────────────────────────────────────────────────────────────────────────────


def _show(settings: Config, planned: PlannedMove) -> None:
    from cdcflow import wiring

    plan = planned.plan
    for name, text in (
        ("log", wiring.log_reader(settings).name),
        ("from", plan.came_from),
        ("to", f"{plan.server} ({wiring.addresses(settings)['source']})"),
        ("that is", f"{_TARGETS[plan.kind]}: {plan.text}"),
        ("missing", "nothing" if plan.is_whole else "what was committed after the log's end: there will be a gap"),
        ("log's end", _end(wiring.log_reader(settings).newest_checkpoint())),
    ):
        typer.echo(readable.plain(f"{name + ':':<10} {text}"))
    rows = [(t.id, _OUTCOMES[what], readable.number(t.rows), readable.size(t.bytes)) for t, what in planned.tables]
    output.show([TextTable(("table", "", "rows", "bytes"), rows, 2)])
    for step in plan.steps:
        typer.echo(readable.plain(f"then: {step}"))
    for found in plan.findings:
        typer.echo(readable.plain(f"{found.level}: {found.subject}: {found.text}"))
        if found.remedy is not None:
            typer.echo(readable.plain(f"    {found.remedy}"))


def _end(checkpoint: Checkpoint) -> str:
    at = datetime.fromtimestamp(checkpoint.commit_clock / 1e6, UTC).isoformat(timespec="seconds")
    return f"{checkpoint.position}; it has everything that was committed up to {at}"


def _show_moved(planned: PlannedMove, checkpoint: Checkpoint, change: str) -> None:
    typer.echo(f"\nThe log was moved, and continues at {checkpoint.position}.")
    typer.echo(f"now: {change or 'the settings have this address already'}")
    repairs = (
        "" if planned.plan.is_whole else "; it compares the tables by itself, `cdcflow status` shows how far it is"
    )
    typer.echo(f"then: start `cdcflow run`{repairs}")


def _as_json(planned: PlannedMove) -> dict[str, object]:
    plan = planned.plan
    return {
        "target": plan.kind,
        "is_whole": plan.is_whole,
        "from": plan.came_from,
        "to": plan.server,
        "text": plan.text,
        "tables": [
            {"table": str(t.id), "outcome": what, "rows": t.rows, "bytes": t.bytes} for t, what in planned.tables
        ],
        "steps": list(plan.steps),
        "findings": [found.to_json() for found in plan.findings],
    }
