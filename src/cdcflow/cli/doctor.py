"""`cdcflow doctor`: what the source still needs, with the SQL that fixes it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated

import typer

from cdcflow.capture.ports.findings import Finding
from cdcflow.cli import failure, output
from cdcflow.cli.options import DEFAULT_CONFIG, ConfigPath, Json
from cdcflow.config import load
from cdcflow.errors import ConfigurationError
from cdcflow.reports import readable

_SIGNS = {"ok": "[green]ok[/]     ", "warning": "[yellow]warning[/]", "error": "[red]error[/]  "}

Sql = Annotated[
    bool, typer.Option("--sql", help="Print a script with the SQL of all findings, each statement once, in order.")
]


def doctor(config: ConfigPath = DEFAULT_CONFIG, json: Json = False, sql: Sql = False) -> None:
    """Check settings, rights and tables. Exits with 1 when something must be fixed before `cdcflow run`."""
    if json and sql:
        raise ConfigurationError("doctor: --json and --sql ask for two forms", remedy="give one of them")
    from cdcflow import wiring

    findings = wiring.doctor(load(config))
    if json:
        output.print_json([finding.to_json() for finding in findings])
    elif sql:
        for line in script(findings):
            typer.echo(line)
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


def script(findings: Sequence[Finding]) -> Iterator[str]:
    """The lines of a SQL script that fixes errors; what warnings propose, and what is no SQL, as comments."""
    yield "-- created by cdcflow doctor; lines with -- are proposed statements, or steps that no statement can do"
    done: set[str] = set()
    after: list[str] = []
    for finding in findings:
        new = [sql for sql in finding.sql if sql not in done]
        if finding.remedy is None or (finding.sql and not new):
            continue
        done.update(new)
        yield ""
        yield _comment(f"{finding.level}: {finding.subject}: {finding.text}")
        if not finding.sql:
            yield _comment(f"to do: {finding.remedy}")
        yield from (_statement(sql, is_needed=finding.level == "error") for sql in new)
        if finding.then and finding.then not in after:
            after.append(finding.then)
    for then in after:
        yield ""
        yield _comment(f"then: {then}")


def _statement(sql: str, *, is_needed: bool) -> str:
    if readable.plain(sql) != sql:
        return _comment(f"a name in this statement has control characters, so write it yourself: {sql}")
    return f"{sql};" if is_needed else _comment(f"{sql};")


def _comment(text: str) -> str:
    return f"-- {_one_line(text)}"


def _one_line(text: str) -> str:
    return " ".join(readable.plain(text).split())
