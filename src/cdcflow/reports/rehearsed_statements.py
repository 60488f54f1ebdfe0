"""What statements would do, as text: each table that they touch, what must change before, and what is read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cdcflow.reports.readable import age, number

if TYPE_CHECKING:  # these modules load the capture, which drawing a report does not need
    from cdcflow.capture.plan import Cost
    from cdcflow.wiring.migrations import Rehearsal, RehearsedTable, SettingFinding


def rehearsal_lines(found: Rehearsal) -> list[str]:
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
    rows = number(cost.rows) if cost.rows is not None else f"at least {number(cost.rows_at_least)}"
    time = "unknown time" if cost.seconds is None else f"about {age(cost.seconds)}"
    return f"{rows} rows by the server's statistics, {time}"
