"""`cdcflow verify`: compare the source with its log and tables, while everything runs."""

from __future__ import annotations

import enum
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from cdcflow.cli import failure, output
from cdcflow.cli.options import DEFAULT_CONFIG, ConfigPath, Json
from cdcflow.config import load

if TYPE_CHECKING:
    from cdcflow.verify.report import Against as Kind
    from cdcflow.verify.report import Difference, Report, TableReport


class Against(enum.StrEnum):
    """What the source is compared with."""

    log = "log"
    tables = "tables"
    both = "both"


def verify(
    tables: Annotated[list[str] | None, typer.Argument(help="As schema.table; none means all captured tables.")] = None,
    against: Annotated[Against, typer.Option(help="The log's fold, the tables in the warehouse, or both.")] = (
        Against.tables
    ),
    keys: Annotated[int, typer.Option(min=0, help="Of each table show so many rows that differ.")] = 20,
    rows_per_second: Annotated[int | None, typer.Option(min=1, help="Read the source no faster.")] = None,
    config: ConfigPath = DEFAULT_CONFIG,
    json: Json = False,
) -> None:
    """Compare the source's rows with the copy's, while everything goes on.

    The daemon must run. Exits with 1 when a table differs or could not be compared.
    """
    from cdcflow import wiring
    from cdcflow.cli.events import send_structlog_to

    settings = load(config)
    send_structlog_to(sys.stderr)  # stdout is for the report
    kinds: list[Kind] = (
        ["log", "tables"] if against is Against.both else ["log" if against is Against.log else "tables"]
    )
    report = wiring.verified(
        settings,
        tables or (),
        against=kinds,
        differences_max=keys,
        rows_per_second=rows_per_second,
    )
    if json:
        output.print_json({**asdict(report), "is_clean": report.is_clean})
    else:
        tell(report)
    if not report.is_clean:
        raise typer.Exit(failure.FINDINGS)


def tell(report: Report) -> None:
    """In words, what was compared and what differs."""
    if report.tables:
        columns = ("table", "against", "verdict", "rows", "differ", "by", "took")
        output.stdout().print(output.table(None, columns, [_row(table) for table in report.tables], numbers=3))
    for table in report.tables:
        for line in _lines(table):
            typer.echo(line)
    if report.tables and report.is_clean:
        last = report.tables[-1]
        typer.echo(f"source and copy agree through {last.position.partition(';')[0]} (offset {last.offset})")


def _row(table: TableReport) -> tuple[object, ...]:
    differ = output.number(table.different) if table.verdict != "not compared" else "-"
    return (
        table.table,
        table.against,
        table.verdict,
        output.number(table.rows),
        differ,
        table.by,
        f"{table.seconds:.1f} s",
    )


def _lines(table: TableReport) -> list[str]:
    found = []
    if table.reason:
        found.append(f"{table.table} was not compared: {table.reason}")
    found += [f"{table.table}: column {column} was not compared: {why}" for column, why in table.left_out.items()]
    if table.by == "rows" and table.read_why and table.verdict != "not compared":
        found.append(f"{table.table}: all rows were read: {table.read_why}")
    if table.unsettled:
        found.append(f"{table.table}: {table.unsettled} rows changed whenever they were looked at; verify again later")
    for one in table.differences:
        found += _difference(table.table, one)
    if table.different > len(table.differences):
        found.append(f"{table.table}: {table.different - len(table.differences)} more rows differ")
    if table.different:
        found.append(f"  run `cdcflow repair {table.table}` to mend them")
    return found


def _difference(table: str, one: Difference) -> list[str]:
    key = ", ".join(f"{name}={value!r}" for name, value in one.key.items()) or "a row"
    words = {
        "missing": "is missing in the copy",
        "extra": "is only in the copy",
        "doubled": f"is {one.times[1]} times in the copy, {one.times[0]} times in the source",
        "different": f"differs in {', '.join(one.columns)}",
    }
    lines = [f"{table}: {key} {words[one.what]}"]
    shown: Sequence[str] = one.columns or tuple(one.source or one.copy or ())
    for name in shown:
        there = "-" if one.source is None else repr(one.source[name])
        here = "-" if one.copy is None else repr(one.copy[name])
        lines.append(f"    {name}: source {there}, copy {here}")
    for change in one.history:
        lines.append(
            f"    log: offset {change.offset}, {change.op}, transaction {change.transaction}, {change.position}"
        )
    return lines
