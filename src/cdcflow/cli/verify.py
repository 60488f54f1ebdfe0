"""`cdcflow verify`: compare the source with its log and tables, while everything runs."""

from __future__ import annotations

import enum
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from cdcflow.cli import failure, output
from cdcflow.cli.options import DEFAULT_CONFIG, ConfigPaths, Json, Now, settings_by_name
from cdcflow.config import Config, load, seconds, without_reading_limits
from cdcflow.daemon import signals
from cdcflow.errors import ConfigurationError, SinkUnavailable, SourceUnavailable
from cdcflow.reports.comparison import comparison_parts, derived_parts, target_parts

if TYPE_CHECKING:
    from cdcflow.tables.verify.report import Against as Kind
    from cdcflow.tables.verify.report import Report

_DEFAULT = [DEFAULT_CONFIG]


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
    config: ConfigPaths = _DEFAULT,
    json: Json = False,
) -> None:
    """Compare the source's rows with the copy's, while everything runs.

    The daemon must run, except for --derived and --targets. With --derived, name all settings files whose logs are
    merged into the warehouse. Exits with 1 when a table differs or could not be compared.
    """
    from cdcflow.daemon.events import leave_interrupts_out, send_structlog_to

    if derived:
        send_structlog_to(sys.stderr)  # stdout is for the report
        _compare_derived(settings_by_name(config, "comparing derived tables"), tables or (), json=json)
        return
    if len(config) > 1:
        raise ConfigurationError(
            "verify: several settings files", remedy="name one, or use --derived, which compares the tables of all"
        )
    settings = without_reading_limits(load(config[0])) if now else load(config[0])
    if every is not None and json:
        raise ConfigurationError("--every and --json: a report comes after each round", remedy="use one of the two")
    send_structlog_to(sys.stderr)  # stdout is for the report
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
        output.show(comparison_parts(report))
    if not report.is_clean:
        raise typer.Exit(failure.FINDINGS)


def _compare_derived(settings: Mapping[str, Config], tables: Sequence[str], *, json: bool) -> None:
    """Compare derived tables with what their queries give for the tables of the latest cut."""
    from cdcflow import wiring

    reports = wiring.report_derived_of_several(settings, compares=True)
    found = [one for one in reports if not tables or one.table in tables]
    if missing := sorted(set(tables) - {one.table for one in found}):
        raise ConfigurationError(
            f"comparing {', '.join(missing)}: merge.derive has no such table, and the latest cut has none",
            remedy="name them with their schema, as `cdcflow verify --derived` does",
        )
    if json:
        output.print_json({"tables": [asdict(one) for one in found], "is_clean": all(o.is_equal for o in found)})
    else:
        output.show(derived_parts(found))
    if not all(one.is_equal for one in found):
        raise typer.Exit(failure.FINDINGS)


def _compare_targets(settings: Config, tables: Sequence[str], *, json: bool) -> None:
    """Compare targets with the log."""
    from cdcflow import wiring

    found = wiring.verify_targets(settings, tables)
    if json:
        output.print_json({"tables": [one.to_json() for one in found], "is_clean": all(o.is_clean for o in found)})
    else:
        output.show(target_parts(found))
    if not all(one.is_clean for one in found):
        raise typer.Exit(failure.FINDINGS)


@dataclass(frozen=True, slots=True)
class _Chosen:
    """The arguments of a comparison: what is compared with what, how many keys it reports, and how fast it reads."""

    settings: Config
    tables: tuple[str, ...]
    kinds: Sequence[Kind]
    keys: int
    rows_per_second: int | None

    def report(self) -> Report:
        from cdcflow import wiring
        from cdcflow.daemon.requests.comparisons import record_comparison
        from cdcflow.tables.verify.job import Pace

        return wiring.run_verification(
            self.settings,
            self.tables,
            against=self.kinds,
            differences_max=self.keys,
            pace=Pace(rows_per_second=self.rows_per_second),
            watch=lambda table: record_comparison(self.settings, table),
        )


def kinds_of(against: Against) -> list[Kind]:
    """The copies to compare with the source."""
    of_each: dict[Against, list[Kind]] = {
        Against.both: ["log", "tables"],
        Against.log: ["log"],
        Against.tables: ["tables"],
    }
    return of_each[against]


def _plain(report: Report) -> dict[str, object]:
    """The report without keys of rows that do not differ."""
    found = asdict(report)
    for table in found["tables"]:
        del table["shape_key"]
    return found


def _compare(chosen: _Chosen) -> None:
    """Compare once, for a command that compares repeatedly: if source or copy is unavailable, print that and return."""
    try:
        output.show(comparison_parts(chosen.report()))
    except (SourceUnavailable, SinkUnavailable) as error:
        typer.echo(f"verifying postponed: {str(error).splitlines()[0]}", err=True)
