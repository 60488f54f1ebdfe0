"""`cdcflow verify`: compare the source with its log and tables, while everything runs."""

from __future__ import annotations

import enum
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cdcflow.cli import failure, output
from cdcflow.cli.options import DEFAULT_CONFIG, ConfigPath, Json, Now
from cdcflow.config import Config, load, seconds, without_reading_limits
from cdcflow.daemon import signals
from cdcflow.daemon.interfaces.control_socket import ask
from cdcflow.errors import ConfigurationError, SinkUnavailable, SourceUnavailable
from cdcflow.log.maintenance import activity, state_files
from cdcflow.model.table import word
from cdcflow.reports import readable
from cdcflow.reports.parts import TextTable

if TYPE_CHECKING:
    from cdcflow.tables.verify.report import Against as Kind
    from cdcflow.tables.verify.report import Report, RowDifference, TableReport


ORDER_WITHIN_S = 30.0
"""How long the daemon may take to answer a command."""


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
    keys: Annotated[int, typer.Option(min=0, help="For each table show at most N rows that differ.")] = 20,
    rows_per_second: Annotated[int | None, typer.Option(min=1, help="Read the source no faster.")] = None,
    derived: Annotated[bool, typer.Option("--derived", help="Compare derived tables with what their queries give.")] = (
        False
    ),
    targets: Annotated[
        bool, typer.Option("--targets", help="Compare targets with the log, each at the place that it has.")
    ] = False,
    now: Now = False,
    every: Annotated[str | None, typer.Option(help="Compare again and again, this often (6h), until stopped.")] = None,
    config: ConfigPath = DEFAULT_CONFIG,
    json: Json = False,
) -> None:
    """Compare the source's rows with the copy's, while everything runs.

    The daemon must run, except for --derived and --targets. Exits with 1 when a table differs or could not be compared.
    """
    from cdcflow.daemon.events import leave_interrupts_out, send_structlog_to

    settings = without_reading_limits(load(config)) if now else load(config)
    if every is not None and json:
        raise ConfigurationError("--every and --json: a report comes after each round", remedy="use one of the two")
    send_structlog_to(sys.stderr)  # stdout is for the report
    if derived:
        _compare_derived(settings, tables or (), json=json)
        return
    chosen = _Chosen(settings, tuple(tables or ()), kinds_of(against), keys, rows_per_second)
    if targets:
        _compare_targets(settings, tables or (), json=json)
        return
    if every is not None:
        leave_interrupts_out()
        signals.again_and_again(lambda: _compare(chosen), seconds(every))
        return
    report = chosen.report()
    if json:
        output.print_json({**_plain(report), "is_clean": report.is_clean})
    else:
        tell(report)
    if not report.is_clean:
        raise typer.Exit(failure.FINDINGS)


def _compare_derived(settings: Config, tables: Sequence[str], *, json: bool) -> None:
    """Compare derived tables with what their queries give for the tables of the latest cut."""
    from cdcflow import wiring

    found = [one for one in wiring.report_derived(settings, compares=True) if not tables or one.table in tables]
    if missing := sorted(set(tables) - {one.table for one in found}):
        raise ConfigurationError(
            f"comparing {', '.join(missing)}: merge.derive has no such table",
            remedy="name them with their schema, as `cdcflow verify --derived` does",
        )
    if json:
        output.print_json({"tables": [asdict(one) for one in found], "is_clean": all(o.is_equal for o in found)})
    elif found:
        rows = [(o.table, o.how, o.why or ("equal" if o.is_equal else "different"), o.lacks, o.more) for o in found]
        columns = ("table", "computed", "verdict", "lacks", "more")
        output.show([TextTable(columns, rows, 3)])
    else:
        typer.echo("merge.derive has no table.")
    if not all(one.is_equal for one in found):
        raise typer.Exit(failure.FINDINGS)


def _compare_targets(settings: Config, tables: Sequence[str], *, json: bool) -> None:
    """Compare targets with the log."""
    from cdcflow import wiring

    found = wiring.verify_targets(settings, tables)
    if json:
        output.print_json({"tables": [one.to_json() for one in found], "is_clean": all(o.is_clean for o in found)})
    else:
        columns = ("target", "table", "verdict", "rows", "lacks", "more")
        rows = [(o.target, o.table, o.verdict, *map(readable.number, (o.rows, o.lacks, o.more))) for o in found]
        output.show([TextTable(columns, rows, 3)])
        for one in found:
            name = f"{one.target}: {one.table or 'all tables'}"
            if one.not_compared:
                typer.echo(readable.plain(f"{name}: not compared: {', '.join(one.not_compared)}"))
            if one.reason or one.remedy:
                typer.echo(readable.plain(f"{name}: " + "; ".join(filter(None, (one.reason, one.remedy)))))
    if not all(one.is_clean for one in found):
        raise typer.Exit(failure.FINDINGS)


@dataclass(frozen=True, slots=True)
class _Chosen:
    """What is to be compared, and how."""

    settings: Config
    tables: tuple[str, ...]
    kinds: Sequence[Kind]
    keys: int
    rows_per_second: int | None

    def report(self) -> Report:
        from cdcflow import wiring
        from cdcflow.tables.verify.job import Pace

        return wiring.run_verification(
            self.settings,
            self.tables,
            against=self.kinds,
            differences_max=self.keys,
            pace=Pace(rows_per_second=self.rows_per_second),
            watch=lambda table: leave_word(self.settings, table),
        )


def kinds_of(against: Against) -> list[Kind]:
    """The copies to compare with the source."""
    of_each: dict[Against, list[Kind]] = {
        Against.both: ["log", "tables"],
        Against.log: ["log"],
        Against.tables: ["tables"],
    }
    return of_each[against]


def leave_word(settings: Config, table: TableReport) -> None:
    """Write the result into the log's folder, for `cdcflow status` and the daemon's metrics."""
    folder = settings.log.folder
    if table.verdict == "equal":
        found = {"position": table.position, "offset": table.offset, "rows": table.rows, "range": "all"}
        state_files.write_verified(folder, table.table, table.against, equal=found)
        activity.note_comparison(folder, time.time(), table.table, table.against, 0)
    elif table.verdict == "equal but for":
        state_files.write_not_compared(folder, table.table, table.against, table.missing_columns)
        read_shape_again(folder, table)
    elif table.verdict == "different":
        state_files.write_verified(folder, table.table, table.against, equal=None, different=table.different)
        activity.note_comparison(folder, time.time(), table.table, table.against, table.different)


def _plain(report: Report) -> dict[str, object]:
    """The report without keys of rows that do not differ."""
    found = asdict(report)
    for table in found["tables"]:
        del table["shape_key"]
    return found


def read_shape_again(folder: Path, table: TableReport) -> None:
    """Have the daemon read one row again: with it the table's current shape enters the log."""
    if table.shape_key:
        ask(
            folder, {"op": "reread", "tables": [table.table], "keys": [list(table.shape_key)]}, timeout_s=ORDER_WITHIN_S
        )


def _compare(chosen: _Chosen) -> None:
    """Compare once in a series."""
    try:
        tell(chosen.report())
    except (SourceUnavailable, SinkUnavailable) as error:
        typer.echo(f"verifying postponed: {str(error).splitlines()[0]}", err=True)


def tell(report: Report) -> None:
    """Print what was compared and what differs."""
    if report.tables:
        columns = ("table", "against", "verdict", "rows", "differ", "by", "took")
        output.show([TextTable(columns, [_row(table) for table in report.tables], 3)])
    for table in report.tables:
        for line in _lines(table):
            typer.echo(line)
    if report.tables and report.is_clean:
        last = report.tables[-1]
        typer.echo(f"source and copy agree through {last.position.partition(';')[0]} (offset {last.offset})")


def _row(table: TableReport) -> tuple[object, ...]:
    differ = readable.number(table.different) if table.verdict != "not compared" else "-"
    return (
        table.table,
        table.against,
        table.verdict,
        readable.number(table.rows),
        differ,
        table.by,
        f"{table.seconds:.1f} s",
    )


def _lines(table: TableReport) -> list[str]:
    from cdcflow.model.table import TableId
    from cdcflow.tables.merge.refusals import rebuilt

    found = []
    if table.reason:
        found.append(f"{table.table} was not compared: {table.reason}")
    found += [f"{table.table}: column {column} was not compared: {why}" for column, why in table.left_out.items()]
    if table.missing_columns:
        found.append(_what_brings_columns(table))
    if table.by == "rows" and table.read_why and table.verdict != "not compared":
        found.append(f"{table.table}: all rows were read: {table.read_why}")
    if table.unsettled:
        found.append(f"{table.table}: {table.unsettled} rows changed each time they were read; verify again later")
    for one in table.differences:
        found += _difference(table.table, one)
    if table.different > len(table.differences):
        found.append(f"{table.table}: {table.different - len(table.differences)} more rows differ")
    if any(one.what == "doubled" and one.key for one in table.differences):
        found.append(f"  a row that exists more than once: {rebuilt(TableId(*table.table.split('.', 1)))}")
    elif table.different:
        found.append(f"  run `cdcflow repair {word(table.table)}` to repair them")
    return found


def _what_brings_columns(table: TableReport) -> str:
    columns, backfill = ", ".join(table.missing_columns), f"cdcflow backfill {word(table.table)}"
    if table.shape_key:
        return (
            f"  the daemon now reads the table's shape again, which brings {columns}: verify again after the"
            f" next merge, or run `{backfill}`, which reads its rows again, too"
        )
    return f"  the log has no values of {columns}: run `{backfill}`, which reads the table's shape and its rows again"


def _difference(table: str, one: RowDifference) -> list[str]:
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
    return lines + [
        f"    log: offset {change.offset}, {change.op}, transaction {change.transaction}, {change.position}"
        for change in one.history
    ]
