"""`cdcflow doctor`: what the source still needs, with the SQL that fixes it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from cdcflow.capture.ports.findings import Finding
from cdcflow.cli import failure, output
from cdcflow.cli.options import DEFAULT_CONFIG, ConfigPath, Json
from cdcflow.config import load
from cdcflow.errors import ConfigurationError
from cdcflow.reports import readable
from cdcflow.reports.doctor_script import script

_SIGNS = {"ok": "[green]ok[/]     ", "warning": "[yellow]warning[/]", "error": "[red]error[/]  "}

Sql = Annotated[
    bool, typer.Option("--sql", help="Print a script with the SQL of all findings, each statement once, in order.")
]


def doctor(config: ConfigPath = DEFAULT_CONFIG, json: Json = False, sql: Sql = False) -> None:
    """Check settings, rights and tables. Exits with 1 when something must be fixed before `cdcflow run`."""
    if json and sql:
        raise ConfigurationError("--json and --sql are both given", remedy="give one of them")
    from cdcflow import wiring

    findings = wiring.doctor(load(config))
    if json:
        output.print_json([finding.to_json() for finding in findings])
    elif sql:
        output.show(script(findings))
    else:
        _print(findings)
    if any(finding.level == "error" for finding in findings):
        raise typer.Exit(failure.FINDINGS)


def _print(findings: Sequence[Finding]) -> None:
    console = output.stdout()
    for finding in findings:
        console.print(_SIGNS[finding.level], end=" ", markup=True)
        console.print(readable.plain(f"{finding.subject}: {finding.text}"), markup=False)
        if finding.remedy is not None:
            console.print(f"          {readable.plain(finding.remedy)}", markup=False, style="bold")
