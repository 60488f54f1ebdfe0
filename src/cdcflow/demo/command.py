"""`cdcflow demo`: see the whole thing on real data, with a proof at the end."""

from __future__ import annotations

import shutil
import signal
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cdcflow.cli import failure, output
from cdcflow.config import load
from cdcflow.errors import ConfigurationError
from cdcflow.reports import readable
from cdcflow.reports.parts import TextTable

if TYPE_CHECKING:
    from cdcflow.demo.demo_run import DemoOutcome


class SourceName(StrEnum):
    POSTGRES = "postgres"
    MYSQL = "mysql"
    MARIADB = "mariadb"


class TableFormat(StrEnum):
    DELTA = "delta"
    ICEBERG = "iceberg"


class EngineName(StrEnum):
    SPARK = "spark"
    LOCAL = "local"


class LogName(StrEnum):
    FILES = "files"
    KAFKA = "kafka"


class WarehouseName(StrEnum):
    FOLDER = "folder"
    S3 = "s3"


_NAMES = {SourceName.POSTGRES: "PostgreSQL", SourceName.MYSQL: "MySQL", SourceName.MARIADB: "MariaDB"}


def demo(
    directory: Annotated[
        Path | None, typer.Option(help="The folder for everything it writes; ./demo-<time> without it.")
    ] = None,
    source: Annotated[SourceName, typer.Option(help="Which database to capture.")] = SourceName.POSTGRES,
    log: Annotated[
        LogName, typer.Option(help="Where the change log is; a Kafka broker is started for it.")
    ] = LogName.FILES,
    table_format: Annotated[
        TableFormat, typer.Option("--format", help="The format of the tables.")
    ] = TableFormat.DELTA,
    engine: Annotated[
        EngineName, typer.Option(help="What merges: Spark, or cdcflow without Spark and Java.")
    ] = EngineName.SPARK,
    warehouse: Annotated[
        WarehouseName, typer.Option(help="Where the tables are; an object store is started for s3.")
    ] = WarehouseName.FOLDER,
    rows: Annotated[int | None, typer.Option(min=20_000, help="Load only this many flights.")] = None,
    planted_fault: Annotated[
        bool, typer.Option("--planted-fault", hidden=True, help="Change one row after the fence: the proof must fail.")
    ] = False,
) -> None:
    """Capture a busy demo database into tables, kill the daemon on the way, and prove the result.

    Takes about two minutes, without Spark one. Exits with 1 when a single row differs.
    """
    from cdcflow.daemon.events import leave_interrupts_out
    from cdcflow.demo.demo_run import STEPS, DemoRun, new_directory
    from cdcflow.demo.screen import Screen
    from cdcflow.demo.servers.installed import check_installed
    from cdcflow.demo.warehouses import objects_on_disk

    if engine is EngineName.LOCAL and log is LogName.KAFKA:
        raise ConfigurationError("a log in Kafka is merged by Spark", remedy="leave --engine local or --log kafka out")
    leave_interrupts_out()
    check_installed(source.value, with_kafka=log is LogName.KAFKA, with_store=warehouse is WarehouseName.S3)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that SIGTERM leaves nothing running either
    folder = new_directory(directory)
    screen = Screen(STEPS)
    with screen:
        run = DemoRun(
            folder,
            screen,
            source.value,
            rows_max=rows,
            planted_fault=planted_fault,
            log=log.value,
            table_format=table_format.value,
            engine=engine.value,
            warehouse=warehouse.value,
        )
        outcome = run.play()
    for text in outcome.failures:
        screen.fail_step(text)
    lines = [
        (
            v.table,
            readable.number(v.source.rows),
            readable.number(v.target.rows) if v.target else "none",
            v.source.hash[:16],
            v.target.hash[:16] if v.target else "none",
            "equal" if v.equal else "DIFFERENT",
        )
        for v in outcome.verdicts
    ]
    screen.print()
    screen.print(
        output.table(
            TextTable(
                ("table", "source rows", "target rows", "source hash", "target hash", ""),
                lines,
                title=f"source at the fence, {table_format.value.capitalize()} table at the published cut",
            )
        )
    )
    screen.print()
    in_store = warehouse is WarehouseName.S3
    place = objects_on_disk(folder) if in_store else folder / "warehouse"
    stopped = (
        f"servers are stopped; the store's objects are files in {place}" if in_store else "source server is stopped"
    )
    screen.print(f"Inspect the result (the {stopped}):")
    schema = outcome.verdicts[0].table.partition(".")[0] if outcome.verdicts else "public"
    # The paths in Iceberg tables are those of the store; Delta tables can be read from anywhere.
    plain_folder = None if in_store and table_format is TableFormat.ICEBERG else place
    for command in _commands(folder, log, table_format, engine, schema, plain_folder):
        screen.print(f"  {command}")
    screen.print()
    if outcome.is_success:
        for sentence in _summary(outcome, source, table_format):
            screen.print(sentence)
        screen.print(f"demo passed in {outcome.seconds:.0f} s")
        return
    different = [v.table for v in outcome.verdicts if not v.equal]
    reason = "; ".join([*(text.splitlines()[0] for text in outcome.failures), *(f"{t} differs" for t in different)])
    screen.print(f"demo FAILED: {reason or 'not every table was compared'}")
    raise typer.Exit(failure.FINDINGS)


def _summary(outcome: DemoOutcome, source: SourceName, table_format: TableFormat) -> list[str]:
    """Return what the demo has shown, in three sentences."""
    changes = sum(n for kind, n in outcome.transactions_written.items() if kind != "rolled back")
    loaded, equal = sum(outcome.rows_loaded.values()), sum(v.source.rows for v in outcome.verdicts)
    return [
        f"1. {loaded:,} rows were copied from a running {_NAMES[source]} while {changes:,} transactions changed them:"
        " no lock, no pause, no snapshot held open.",
        f"2. The daemon was killed (SIGKILL) at {outcome.killed_at_percent}% of the first copy and continued where"
        " its log ends: nothing is missing, and nothing is duplicated.",
        f"3. All {len(outcome.verdicts)} {table_format.value.capitalize()} tables show the database at one point in"
        f" time, and their {equal:,} rows equal the source's, by hashes that each side computed for itself.",
    ]


def _program(name: str) -> str:
    """Return the command for a program of this installation: its name, if the shell finds this program by it;
    otherwise its path."""
    ours = Path(sys.executable).parent / name
    found = shutil.which(name)
    if found is not None and Path(found).absolute() == ours.absolute():
        return name
    return str(ours.relative_to(Path.cwd())) if ours.is_relative_to(Path.cwd()) else str(ours)


def _commands(
    folder: Path, log: LogName, table_format: TableFormat, engine: EngineName, schema: str, warehouse: Path | None
) -> list[str]:
    """Commands to inspect what the demo left; a demo that failed early left only some of it. `warehouse`: the folder of
    its tables, if they can be read there."""
    from cdcflow import wiring

    # The broker is stopped as well; the log's history remains.
    config = folder / ("cdcflow.yaml" if log is LogName.FILES else "history.yaml")
    given = "" if table_format is TableFormat.DELTA else f"table_formats=['{table_format.value}']"
    cdcflow, python = _program("cdcflow"), _program("python")
    read = (
        f"from cdcflow import local; print(local.read_cut('{warehouse}')['{schema}.flights'].slice(0, 5).to_pylist())"
        if engine is EngineName.LOCAL
        else f"from cdcflow.spark import read_cut; from cdcflow.spark.session import session; "
        f"read_cut(session({given}), '{warehouse}')['{schema}.flights'].show(5)"
    )
    commands = [
        f"{cdcflow} log ls -c {config}",
        f"{cdcflow} log show -c {config} --table {schema}.airlines --limit 5",
        f"{cdcflow} log check --deep -c {config}",
    ]
    said = [folder / name for name in ("daemon.log", "writer.log", "demo.log", "spark.log", "demo.json")]
    there = [str(path) for path in said if path.exists()]
    return [
        *(commands if config.exists() and wiring.log_reader(load(config)).exists() else ()),
        *([f'{python} -c "{read}"'] if warehouse is not None and warehouse.exists() else ()),
        *([f"less {' '.join(there)}"] if there else ()),
    ]
