"""`cdcflow merge` with several settings files: their logs into one warehouse, and one cut for all of their tables."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from cdcflow.cli import failure
from cdcflow.cli.merge_output import merge_and_tell, say, say_progress, tell
from cdcflow.cli.options import settings_by_name
from cdcflow.config import Config, KafkaLog, seconds
from cdcflow.config.places import check_writable, warehouse_places
from cdcflow.daemon import signals
from cdcflow.daemon.events import event_lines, leave_interrupts_out, send_structlog_to
from cdcflow.daemon.fleet_component import merges_in_fleet
from cdcflow.daemon.merge_process import exclusion_reasons, notify_of_cuts
from cdcflow.log.maintenance import state_files
from cdcflow.reports.merges import merge_of_logs_parts

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from cdcflow.tables.job.reports import SeveralReport


def merge_logs(configs: Sequence[Path], without: Sequence[str], every: str | None, *, once: bool, json: bool) -> None:
    """Merge the logs of these settings files. Without `once`, merge repeatedly: at the interval `every`, or at that
    of the first settings."""
    settings = settings_by_name(configs, "merging several logs")
    first = next(iter(settings.values()))
    check_writable(warehouse_places(first))
    pause_s = None if once else (seconds(every) if every is not None else first.merge.every)
    logs = list(settings.values())
    merged = notify_of_cuts(logs, _merging(settings, without), repeats=pause_s is not None)
    tell_event = event_lines(as_json=False, file=sys.stderr)
    if pause_s is not None:
        with merges_in_fleet(
            logs, lambda: merge_and_tell(merged, merge_of_logs_parts, json=json), pause_s, tell_event
        ) as merging:
            signals.again_and_again(merging, pause_s)
        return
    with merges_in_fleet(logs, merged, None, tell_event) as merging_once:
        report = merging_once()
    tell(report, merge_of_logs_parts, json=json)
    if any(table.left_out is not None for table in report.tables):
        raise typer.Exit(failure.FINDINGS)


def _merging(settings: dict[str, Config], without: Sequence[str]) -> Callable[[], SeveralReport]:
    """A function that merges once, writes the result into each log's folder, and does the maintenance that is due."""
    from cdcflow import wiring
    from cdcflow.tables.job import several_logs
    from cdcflow.tables.job.maintenance import UpkeepWhenDue

    first = next(iter(settings.values()))
    wiring.check_logs_to_merge(settings)  # before Spark is started
    send_structlog_to(sys.stderr)  # stdout is for the report
    leave_interrupts_out()
    spark = _session(settings)
    engines = wiring.engines(first, spark)
    upkeep = UpkeepWhenDue(engines, wiring.upkeep_policy(first))

    def merge() -> SeveralReport:
        try:
            # Read again each time: a secret may have changed.
            logs, place = wiring.logs_to_merge(settings, spark), wiring.warehouse(first)
            report = several_logs.merge_logs(engines, logs, place, without=without, watch=say_progress)
        except Exception as error:
            for config in settings.values():
                state_files.write_merge_failure(config.log.folder, error)
            raise
        _leave_word(settings, report)
        if report.cut:
            upkeep.after(report.tables)
        return report

    return merge


def _session(settings: dict[str, Config]) -> SparkSession | None:
    """Return a Spark session if logs in Kafka must be sealed, whichever engine merges; None if there are no such
    logs."""
    if not any(isinstance(config.log, KafkaLog) for config in settings.values()):
        return None
    from cdcflow.spark.session import session_for

    say("starting Spark")
    return session_for(*settings.values())


def _leave_word(settings: dict[str, Config], report: SeveralReport) -> None:
    """Write the result into each log's folder, for the daemon's metrics."""
    captured = {table for part in report.logs.values() for table in part.tables}
    for name, part in report.logs.items():
        if name not in settings:
            continue  # the log had another name when the reported cut was published
        # A derived table may read tables of all logs, so each log's folder names one that is excluded.
        tables = [table for table in report.tables if table.name in part.tables or table.name not in captured]
        state_files.write_merge(
            settings[name].log.folder,
            cut=report.cut,
            offset=part.offset,
            seconds=report.seconds,
            rows=sum(table.changes for table in tables),
            excluded=exclusion_reasons(tables),
        )
