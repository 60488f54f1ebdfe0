"""`cdcflow plan` and `cdcflow apply`: what a changed settings file will do, and having a running daemon do it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from cdcflow.cli import failure, output
from cdcflow.cli.options import DEFAULT_CONFIG, ConfigPath, Json
from cdcflow.config import Config
from cdcflow.daemon.requests.settings import Alongside, plan_of, request_settings, wait_for_settings
from cdcflow.errors import CdcflowError
from cdcflow.reports import readable
from cdcflow.reports.plan import delivery_lines, merging_lines, plan_parts

if TYPE_CHECKING:  # `cdcflow --help` need not load the capture
    from cdcflow.capture.plan import Plan
    from cdcflow.rehearsal.results import CaseResult

CHANGES = 2
"""The exit code of `cdcflow plan --detailed-exitcode` if the file changes something."""


def plan(
    config: ConfigPath = DEFAULT_CONFIG,
    json: Json = False,
    detailed_exitcode: Annotated[
        bool, typer.Option("--detailed-exitcode", help="Exit with 2 when something would change.")
    ] = False,
    ddl: Annotated[
        str | None, typer.Option("--ddl", help="Instead: what these statements would do if the source executed them.")
    ] = None,
) -> None:
    """Show what the settings file will do to a running daemon, or at the next start. Changes nothing."""
    if ddl is not None:
        from cdcflow.cli.migration import rehearse_statement

        rehearse_statement(config, ddl, json=json)
        return
    settings, found, does = plan_of(config)
    tests = _run_tests(settings)
    if json:
        output.print_json({**found.to_json(), **does.to_json(), **_tests_json(tests)})
    else:
        _show(settings, found, does, tests)
    if found.refused or _failures(tests):
        raise typer.Exit(failure.FINDINGS)
    if detailed_exitcode and found.has_changes:
        raise typer.Exit(CHANGES)


def apply(
    config: ConfigPath = DEFAULT_CONFIG,
    json: Json = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Show the plan, ask, and make the running daemon use the settings file. Ends when the daemon uses it."""
    settings, found, does = plan_of(config)
    tests = _run_tests(settings)
    if not json:
        _show(settings, found, does, tests)
    if found.refused or _failures(tests):
        if json:
            output.print_json({**found.to_json(), **_tests_json(tests)})
        raise typer.Exit(failure.FINDINGS)
    if not found.is_running or not found.settings:
        _nothing_to_do(settings, found, json)
        return
    if not yes and not typer.confirm("\nHave the running daemon do this?", err=True):
        raise typer.Exit(failure.FINDINGS)
    number = request_settings(settings)
    is_paused = wait_for_settings(settings, number)
    if json:
        output.print_json({"number": number, **found.to_json()})
    elif is_paused:
        typer.echo("The capture is paused: it uses these settings once `cdcflow ctl resume` resumes it.")
    else:
        typer.echo("The daemon captures with these settings; `cdcflow status` shows how far tables are read.")


def _show(settings: Config, found: Plan, does: Alongside, tests: Sequence[CaseResult]) -> None:
    output.show(plan_parts(found))
    output.show(merging_lines(settings, does.merges))
    output.show(delivery_lines(settings, does.delivers))
    _show_derived(settings)
    _show_tests(tests)


def _run_tests(settings: Config) -> list[CaseResult]:
    """Run the tests that the settings name, and return their results; empty if the settings name none."""
    if not settings.tests:
        return []
    from cdcflow.cli.pipeline_tests import run_tests

    return run_tests(settings, (), show=False)


def _failures(tests: Sequence[CaseResult]) -> list[CaseResult]:
    return [test for test in tests if not test.has_passed]


def _tests_json(tests: Sequence[CaseResult]) -> dict[str, object]:
    return {"tests": [test.to_json() for test in tests]} if tests else {}


def _show_tests(tests: Sequence[CaseResult]) -> None:
    if not tests:
        return
    from cdcflow.cli.pipeline_tests import summary

    for test in _failures(tests):
        typer.echo(readable.plain(f"test failed: {test.report()}"))
    typer.echo(f"tests: {summary(tests)}")
    if _failures(tests):
        typer.echo("refused: tests of this pipeline failed\n  remedy: correct the settings, or the tests")


def _show_derived(settings: Config) -> None:
    """Print how each derived table is computed, according to the tables of the latest cut."""
    if not settings.merge.derive:
        return
    from cdcflow import wiring

    try:
        found = wiring.report_derived(settings, compares=False)
    except CdcflowError as error:
        typer.echo(f"\nDerived tables: {str(error).splitlines()[0]}")
        return
    typer.echo("\nDerived tables, computed with each merge:")
    for one in found:
        typer.echo(f"  {one.table}: {one.how or one.why.splitlines()[0]}")


def _nothing_to_do(settings: Config, found: Plan, json: bool) -> None:
    if json:
        output.print_json(found.to_json())
    elif not found.is_running:
        typer.echo(f"No daemon answers in {settings.log.folder}: the next `cdcflow run` does this.")
