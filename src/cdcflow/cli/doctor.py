"""`cdcflow doctor`: what the source still needs, with the SQL that mends it."""

from __future__ import annotations

from dataclasses import asdict

import typer

from cdcflow.cli import failure, output
from cdcflow.cli.options import DEFAULT_CONFIG, ConfigPath, Json
from cdcflow.config import load

_SIGNS = {"ok": "[green]ok[/]     ", "warning": "[yellow]warning[/]", "error": "[red]error[/]  "}


def doctor(config: ConfigPath = DEFAULT_CONFIG, json: Json = False) -> None:
    """Check settings, rights and tables. Exits with 1 when something must be fixed before `cdcflow run`."""
    from cdcflow import wiring

    findings = wiring.doctor(load(config))
    if json:
        output.print_json([asdict(finding) for finding in findings])
    else:
        console = output.stdout()
        for finding in findings:
            console.print(_SIGNS[finding.level], end=" ", markup=True)
            console.print(f"{finding.subject}: {finding.text}", markup=False)
            if finding.remedy is not None:
                console.print(f"          {finding.remedy}", markup=False, style="bold")
    if any(finding.level == "error" for finding in findings):
        raise typer.Exit(failure.FINDINGS)
