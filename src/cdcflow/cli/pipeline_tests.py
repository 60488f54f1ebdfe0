"""`cdcflow test`: run the tests of a pipeline, without its servers."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cdcflow.cli import failure, output
from cdcflow.cli.options import DEFAULT_CONFIG, ConfigPath, Json
from cdcflow.config import Config, load
from cdcflow.daemon.events import send_structlog_to
from cdcflow.errors import ConfigurationError
from cdcflow.reports import readable

Files = Annotated[
    list[Path] | None, typer.Argument(help="Files of tests. Default: those that the setting `tests` names.")
]

if TYPE_CHECKING:  # `cdcflow --help` need not load the capture
    from cdcflow.rehearsal.results import CaseResult


def run(
    files: Files = None,
    config: ConfigPath = DEFAULT_CONFIG,
    only: Annotated[str, typer.Option(help="Run only the tests whose claims contain this text.")] = "",
    json: Json = False,
) -> None:
    """Run the tests of the pipeline: these changes at the source, these rows in the tables. Needs no server.

    Exits with 1 when a test failed.
    """
    settings = load(config)
    results = run_tests(settings, files or (), only, show=not json)
    failed = [result for result in results if not result.has_passed]
    if json:
        output.print_json(
            {"passed": len(results) - len(failed), "failed": len(failed), "tests": [r.to_json() for r in results]}
        )
    else:
        typer.echo(summary(results))
    if failed:
        raise typer.Exit(failure.FINDINGS)


def run_tests(settings: Config, files: Sequence[Path], only: str = "", *, show: bool) -> list[CaseResult]:
    """Run the tests of these files, or of those that the settings name. `show`: print how each ended.

    Raises:
        ConfigurationError: there are no tests, or one has a mistake.
    """
    from cdcflow.rehearsal.files import files_of, run_files

    chosen = list(files) or files_of(settings)
    if not chosen:
        raise ConfigurationError(
            "these settings name no tests",
            remedy="write a file of tests (docs/pipeline-tests.md), and name it here or in `tests: [tests/*.yaml]`",
            runbook="pipeline-tests",
        )
    send_structlog_to(io.StringIO())  # events of a merge would only be about temporary folders
    results = []
    for result in run_files(settings, chosen, only):
        results.append(result)
        if show:
            typer.echo(readable.plain(_line(result)))
    return results


def summary(results: Sequence[CaseResult]) -> str:
    """How many tests passed and failed."""
    failed = sum(not result.has_passed for result in results)
    passed = f"{len(results) - failed} passed"
    return f"{failed} failed, {passed}" if failed else passed


def _line(result: CaseResult) -> str:
    if result.has_passed:
        return f"passed  {result.name} ({1000 * result.seconds:.0f} ms)"
    return f"FAILED  {result.report()}"
