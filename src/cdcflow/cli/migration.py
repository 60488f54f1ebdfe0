"""`cdcflow plan --ddl`: what a statement will do before it is executed at the source. Changes nothing."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from cdcflow.cli import failure, output
from cdcflow.config import load
from cdcflow.daemon.interfaces.control_socket import ask
from cdcflow.reports import readable

if TYPE_CHECKING:  # `cdcflow --help` need not load the capture
    from cdcflow.capture.plan import Cost
    from cdcflow.wiring.migrations import Rehearsal, RehearsedTable, SettingFinding


def rehearse_statement(config: Path, ddl: str, *, json: bool) -> None:
    """Print what the statements of a text will do. Exits with 1 if something stops or breaks."""
    from cdcflow import wiring

    settings = load(config)
    status = ask(settings.log.folder, {"op": "status"}) or {}
    rate = status.get("rows_read_per_second")
    found = wiring.rehearse_ddl(settings, ddl, float(rate) if rate else None)
    if json:
        output.print_json(found.to_json())
    else:
        for line in lines_of(found):
            typer.echo(readable.plain(line))
    if found.breaks:
        raise typer.Exit(failure.FINDINGS)


def lines_of(found: Rehearsal) -> list[str]:
    """The report as lines."""
    lines = []
    for table in found.tables:
        lines += [*_table(table), ""]
    for one in found.derived:
        lines += _finding(one)
    read = [t for t in found.tables if t.effect in ("read again", "added")]
    may_be = [t for t in found.tables if t.effect in ("depends", "unknown")]
    if read:
        lines.append(f"to read: {_cost(found.cost)}")
    if may_be:
        lines.append(f"to read at most: {_cost(found.cost_at_most)}")
    if not read and not may_be:
        lines.append("to read: nothing")
    return lines


def _table(table: RehearsedTable) -> list[str]:
    lines = [f"{table.name or 'all tables'}: {table.effect}"]
    for effect, statement, answer in table.parts:
        lines += [f"  {statement}"] if statement else []
        lines.append(f"    {answer if answer.startswith(effect) else f'{effect}: {answer}'}")
    if table.destination and table.columns:
        lines.append(f"  the table {table.destination}:")
        lines += [f"    {column}" for column in table.columns]
    elif table.destination and table.source_columns:
        lines.append(f"  the table {table.destination}: the same columns")
    for one in table.findings:
        lines += [f"  {line}" for line in _finding(one)]
    return lines


def _finding(one: SettingFinding) -> list[str]:
    lines = [f"{'breaks' if one.breaks else 'note'}: {one.setting}: {one.text}"]
    return [*lines, f"  remedy: {one.remedy}"] if one.remedy else lines


def _cost(cost: Cost) -> str:
    rows = readable.number(cost.rows) if cost.rows is not None else f"at least {readable.number(cost.rows_at_least)}"
    time = "unknown time" if cost.seconds is None else f"about {readable.age(cost.seconds)}"
    return f"{rows} rows by the server's statistics, {time}"
