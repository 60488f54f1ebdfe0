"""`cdcflow plan` and `cdcflow apply`: what a changed settings file will do, and having a running daemon do it."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cdcflow.cli import failure, output
from cdcflow.cli.options import DEFAULT_CONFIG, ConfigPath, Json
from cdcflow.config import Config, load
from cdcflow.config.changes import digest, settings_as_text
from cdcflow.daemon.interfaces.control_socket import ask
from cdcflow.errors import CdcflowError, ConfigurationError, SourceUnavailable
from cdcflow.reports import readable
from cdcflow.reports.parts import TextTable

if TYPE_CHECKING:  # `cdcflow --help` need not load the capture
    from cdcflow.capture.plan import Plan, TablePlan
    from cdcflow.rehearsal.results import CaseResult

CHANGES = 2
"""The exit code of `cdcflow plan --detailed-exitcode` if the file changes something."""
LOOK_EVERY_S = 0.2
TAKEN_WITHIN_S = 120.0
ANSWER_WITHIN_S = 60.0


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
    settings, found, does = _make_plan(config)
    tests = _run_tests(settings)
    if json:
        output.print_json({**found.to_json(), **does.to_json(), **_tests_json(tests)})
    else:
        show(found)
        _show_merging(settings, does.merges)
        _show_deliveries(settings, does)
        _show_derived(settings)
        _show_tests(tests)
    if found.refused or _failures(tests):
        raise typer.Exit(failure.FINDINGS)
    if detailed_exitcode and found.has_changes:
        raise typer.Exit(CHANGES)


def apply(
    config: ConfigPath = DEFAULT_CONFIG,
    json: Json = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Show the plan, ask, and make the running daemon use the settings file. Ends when it captures with it."""
    settings, found, does = _make_plan(config)
    tests = _run_tests(settings)
    if not json:
        show(found)
        _show_merging(settings, does.merges)
        _show_deliveries(settings, does)
        _show_derived(settings)
        _show_tests(tests)
    if found.refused or _failures(tests):
        if json:
            output.print_json({**found.to_json(), **_tests_json(tests)})
        raise typer.Exit(failure.FINDINGS)
    if not found.is_running or not found.settings:
        _nothing_to_do(settings, found, json)
        return
    if not yes and not typer.confirm("\nHave the running daemon do this?", err=True):
        raise typer.Exit(failure.FINDINGS)
    answer = ask(
        settings.log.folder, {"op": "reload", "digest": digest(settings_as_text(settings))}, timeout_s=ANSWER_WITHIN_S
    )
    if answer is None:
        raise _daemon_ended()
    number = int(answer["number"])
    is_paused = _follow(settings, number)
    if json:
        output.print_json({"number": number, **found.to_json()})
    elif is_paused:
        typer.echo("The capture is paused: it uses these settings once `cdcflow ctl resume` resumes it.")
    else:
        typer.echo("The daemon captures with these settings; `cdcflow status` shows how far tables are read.")


def _run_tests(settings: Config) -> list[CaseResult]:
    """How the tests ended that the settings name; empty if they name none."""
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


@dataclass(frozen=True, slots=True)
class _Alongside:
    """What the daemon does alongside the capture with the settings; without one: what the next does. `delivers`: the
    targets to which it delivers."""

    merges: bool
    delivers: tuple[str, ...]

    def to_json(self) -> dict[str, object]:
        return {"merging": self.merges, "delivering": list(self.delivers)}


def _make_plan(file: Path) -> tuple[Config, Plan, _Alongside]:
    """The settings, what they will do, and what the daemon does with them alongside the capture."""
    from cdcflow import wiring

    settings = load(file)
    running = ask(settings.log.folder, {"op": "settings"})
    delivers = tuple(name for name, target in settings.targets.items() if target.every is not None)
    if running is None:
        does = _Alongside(settings.merge.every is not None, delivers)
        return settings, _with_cost(settings, wiring.plan_capture(settings), {}), does
    if Path(running["file"]) != file.absolute():
        raise ConfigurationError(
            f"the daemon on this log was started with {running['file']}, and this is {file.absolute()}",
            remedy=f"change that file, and run `cdcflow plan --config {running['file']}`",
        )
    found = wiring.plan_capture(settings, running["settings"])
    merges = bool(running.get("may_merge")) and settings.merge.every is not None
    does = _Alongside(merges, delivers if running.get("may_deliver") else ())
    return settings, _with_cost(settings, found, running["settings"]), does


def _with_cost(settings: Config, found: Plan, in_use: Mapping[str, str]) -> Plan:
    """The plan with the cost of its reading. The source's log is measured for a second, and only if it matters."""
    from cdcflow import wiring
    from cdcflow.capture.plan import Rates

    if not found.reads:
        return found
    status = ask(settings.log.folder, {"op": "status"}) or {}
    read = status.get("rows_read_per_second")
    rates = Rates(float(read) if read else None, log_bytes_per_second=wiring.log_growth(settings))
    return wiring.plan_capture(settings, in_use or None, rates, wiring.log_limits(settings))


def _follow(settings: Config, number: int) -> bool:
    """Wait until the daemon captures with these settings, or will when it is resumed. Return whether it is paused.

    Raises:
        ConfigurationError: it could not, and fell back to the previous ones.
    """
    deadline = time.monotonic() + TAKEN_WITHIN_S
    while time.monotonic() < deadline:
        status = ask(settings.log.folder, {"op": "status"})
        if status is None:
            raise _daemon_ended()
        state: Mapping[str, Any] = status["settings"]
        refused: Mapping[str, Any] = state.get("refused") or {}
        if refused.get("number") == number:
            raise ConfigurationError(
                f"the daemon could not capture with these settings, and continues as before: {refused['reason']}",
                remedy=refused.get("remedy") or "correct the settings file, and run `cdcflow plan` again",
            )
        if status.get("state") == "paused" and state["given"] >= number:
            return True
        if state["number"] >= number and status.get("state") == "capturing":
            return False
        time.sleep(LOOK_EVERY_S)
    raise SourceUnavailable(
        f"the daemon did not begin to use the settings within {TAKEN_WITHIN_S:g} s",
        remedy="`cdcflow status` shows what it waits for; the daemon keeps trying",
    )


def _daemon_ended() -> SourceUnavailable:
    return SourceUnavailable(
        "the daemon ended before it used the settings", remedy="start `cdcflow run`: it begins with this file"
    )


# ── output ──────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class _Line:
    what: str
    text: str


def show(found: Plan) -> None:
    """Print a plan."""
    changed = [t for t in found.tables if t.action != "unchanged"]
    if not found.has_changes:
        typer.echo(f"Nothing changes: {len(found.tables)} tables are captured as in the settings file.")
    if found.settings:
        rows = [(c.name, c.before or "", c.now or "", _how(c.taken)) for c in found.settings]
        output.show([TextTable(("setting", "in use", "file", "applied"), rows, title="Settings")])
        typer.echo("")
    if changed:
        tables = [(t.name, t.action, *_size(t), t.why) for t in changed]
        output.show([TextTable(("table", "what", "rows", "bytes", "why"), tables, title="Tables")])
        typer.echo(f"{len(found.tables) - len(changed)} tables do not change.\n")
    warnings = [_Line("warning", w) for w in found.warnings]
    for line in (*_cost(found), *_merges(found), *_of_merges(found), *warnings, *_refusals(found)):
        typer.echo(f"{line.what}: {line.text}")


def _show_merging(settings: Config, merging: bool) -> None:
    """Print who merges with these settings, if that is `cdcflow run`."""
    if merging:
        who = f"by `cdcflow run`, every {settings.merge.every:g} s, in a separate process"
        typer.echo(f"merging: {who}; a new process begins with changed settings of `merge`")


def _show_deliveries(settings: Config, does: _Alongside) -> None:
    """Print who delivers to each target."""
    for name, target in settings.targets.items():
        what = f"target {name} ({target.kind}), {', '.join(target.tables)}"
        if name in does.delivers:
            typer.echo(f"delivering: {what}: by `cdcflow run`, every {target.every:g} s, in a separate process")
        else:
            typer.echo(f"delivering: {what}: only by `cdcflow deliver`")


def _size(table: TablePlan) -> tuple[str, str]:
    return (readable.number(table.rows), readable.size(table.bytes)) if table.is_read else ("", "")


def _how(taken: str) -> str:
    return {"running": "at once", "next cut": "at the next cut", "merge": "by the next merge"}.get(taken, taken)


def _refusals(found: Plan) -> list[_Line]:
    lines = []
    for refusal in found.refused:
        lines.append(_Line("refused", refusal.text))
        if refusal.remedy:
            lines.append(_Line("  remedy", refusal.remedy))
    return lines


def _merges(found: Plan) -> list[_Line]:
    """The current-state tables that this changes."""
    changed = [t for t in found.tables if t.action not in ("unchanged", "added")]
    if any(t.merged is None for t in changed):
        names = ", ".join(t.name for t in changed)
        return [_Line("merges", f"{names}, if they have current-state tables (cdcflow did not inspect the warehouse)")]
    names = ", ".join(t.name for t in changed if t.merged)
    return [_Line("merges", f"{names}: this affects the current-state tables")] if names else []


def _of_merges(found: Plan) -> list[_Line]:
    """What settings of tables do, and what that costs."""
    return [_Line(c.name, c.why) for c in found.settings if c.taken == "merge" and c.why]


def _cost(found: Plan) -> list[_Line]:
    cost = found.cost
    if not found.reads:
        return []
    rows = readable.number(cost.rows) if cost.rows is not None else f"at least {readable.number(cost.rows_at_least)}"
    size = readable.size(cost.bytes) if cost.bytes is not None else f"at least {readable.size(cost.bytes_at_least)}"
    unknown = "unknown (nothing was read lately to estimate it from, or the server has no statistics)"
    took = unknown if cost.seconds is None else f"about {readable.age(cost.seconds)}, as fast as rows were read lately"
    kept = "unknown" if cost.log_bytes is None else f"about {readable.size(cost.log_bytes)}"
    return [
        _Line("to read", f"{rows} rows, {size}, by the server's statistics"),
        _Line("time", took),
        _Line("log that the source writes in that time", kept),
        *_limits(found),
    ]


def _limits(found: Plan) -> list[_Line]:
    if found.limits is None:
        return []
    each = [
        f"{readable.age(one.age_s) if one.age_s else readable.size(one.bytes)} ({one.name})" for one in found.limits
    ]
    return [_Line("log that the source keeps, at most", ", ".join(each) or "no limit (docs/budget.md)")]
