"""`cdcflow merge`: fold the change log into tables. The only command that may start Spark (except the demo)."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from cdcflow.cli import failure
from cdcflow.cli.merge_output import say, say_progress, tell
from cdcflow.cli.options import DEFAULT_CONFIG, ConfigPaths, Json
from cdcflow.config import Config, KafkaLog, load, seconds
from cdcflow.config.places import check_writable, warehouse_places
from cdcflow.daemon import signals
from cdcflow.errors import ConfigurationError, SinkUnavailable
from cdcflow.log.maintenance import state_files

if TYPE_CHECKING:
    from cdcflow.tables.job.engines import Engines
    from cdcflow.tables.job.reports import MergeReport


_DEFAULT = [DEFAULT_CONFIG]


def merge(
    config: ConfigPaths = _DEFAULT,
    every: Annotated[str | None, typer.Option(help="Merge again and again, this often (30s, 5m).")] = None,
    once: Annotated[bool, typer.Option("--once", help="One merge, even if the settings have merge.every.")] = False,
    without: Annotated[
        list[str] | None, typer.Option(help="Of several logs: do not wait for this one. Its tables do not change.")
    ] = None,
    json: Json = False,
) -> None:
    """Merge the log up to its latest sealed cut, then publish that cut.

    With several settings files their logs are merged together, and one cut is published for all of their tables: it is
    not ahead of the time that every log has reached. A log has the name of its settings file (crm.yaml: crm).

    Exits with 1 when a table was excluded from the cut.
    """
    if len(config) > 1 or without:
        from cdcflow.cli.merge_logs import merge_logs

        merge_logs(config, without or [], every, once=once, json=json)
        return
    settings = load(config[0])
    pause_s = None if once else (seconds(every) if every is not None else settings.merge.every)
    check_writable(warehouse_places(settings))
    merged = _leaving_word(settings, _with_spans(settings, _merging(settings)))
    if pause_s is None:
        report = merged()
        tell(report, json=json)
        if any(table.left_out is not None for table in report.tables):
            raise typer.Exit(failure.FINDINGS)
    else:
        signals.again_and_again(lambda: _merge_and_tell(merged, json), pause_s)


def _merging(settings: Config) -> Callable[[], MergeReport]:
    """A function that merges once; Spark is imported and started when needed, after checking that there is a log."""
    from cdcflow import wiring
    from cdcflow.daemon.events import leave_interrupts_out, send_structlog_to

    log, policies = settings.log, wiring.policies(settings)
    reader = wiring.log_reader(settings)
    if not reader.exists():
        raise ConfigurationError(
            f"there is no change log at {reader.name}",
            remedy="start `cdcflow run` first, or correct `log` in the settings",
            runbook="no-log",
        )
    send_structlog_to(sys.stderr)  # stdout is for the report
    leave_interrupts_out()
    if isinstance(log, KafkaLog):
        from cdcflow.spark.kafka import merge as from_kafka
        from cdcflow.spark.session import session_for

        say("starting Spark")
        spark, chosen = session_for(settings), settings.merge

        def sealed_first() -> MergeReport:
            say(f"sealing what {reader.name} has after its history")
            # Read again each time: a secret may have changed.
            place = wiring.warehouse(settings)
            return from_kafka(
                spark, wiring.tier(settings), place, table_format=chosen.format, watch=say_progress, policies=policies
            )

        return _with_upkeep(settings, sealed_first, wiring.engines(settings, spark))
    from cdcflow.tables.job.job import merge as from_files

    if settings.merge.engine == "spark":
        say("starting Spark")
    engines, master = wiring.engines(settings), settings.merge.spark.get("spark.master")

    def once() -> MergeReport:
        layout = wiring.merge_layout(log, master)
        return from_files(engines, layout, wiring.warehouse(settings), watch=say_progress, policies=policies)

    return _with_upkeep(settings, once, engines)


def _with_upkeep(settings: Config, merged: Callable[[], MergeReport], engines: Engines) -> Callable[[], MergeReport]:
    """Merge, then do the tables' maintenance that is due, within its budget; it never endangers a merge."""
    from cdcflow import wiring
    from cdcflow.tables.job.maintenance import UpkeepWhenDue

    upkeep = UpkeepWhenDue(engines, wiring.upkeep_policy(settings))

    def merge() -> MergeReport:
        report = merged()
        if report.cut:
            upkeep.after(report.tables)
        return report

    return merge


def _leaving_word(settings: Config, merged: Callable[[], MergeReport]) -> Callable[[], MergeReport]:
    """Merge, and write the result into the log's folder, for the daemon's metrics."""
    folder = settings.log.folder

    def merge() -> MergeReport:
        try:
            report = merged()
        except Exception as error:
            state_files.write_merge_failure(folder, error)
            raise
        if report.cut:
            rows, left_out = sum(t.changes for t in report.tables), sum(t.left_out is not None for t in report.tables)
            state_files.write_merge(
                folder, cut=report.cut, offset=report.offset, seconds=report.seconds, rows=rows, left_out=left_out
            )
        return report

    return merge


def _with_spans(settings: Config, merged: Callable[[], MergeReport]) -> Callable[[], MergeReport]:
    """Return the merge with a span sent for each run, if the settings name a collector."""
    if settings.service.traces is None:
        return merged
    from cdcflow.daemon.events import event_lines
    from cdcflow.daemon.interfaces.traces import Traces

    traces = Traces(settings.service.traces, event_lines(as_json=False, file=sys.stderr))

    def merge() -> MergeReport:
        began = time.time_ns()
        try:
            report = merged()
        except Exception as error:
            traces.on_span("merge", began, time.time_ns(), {}, failed=type(error).__name__)
            raise
        rows, left_out = sum(t.changes for t in report.tables), sum(t.left_out is not None for t in report.tables)
        about = {"cdcflow.cut": report.cut, "cdcflow.offset": report.offset, "cdcflow.rows": rows}
        about |= {"cdcflow.tables": len(report.tables), "cdcflow.left_out": left_out}
        traces.on_span("merge", began, time.time_ns(), about)
        return report

    return merge


def _merge_and_tell(merged: Callable[[], MergeReport], json: bool) -> None:
    """Merge once in a series."""
    try:
        tell(merged(), json=json)
    except SinkUnavailable as error:
        typer.echo(f"merge postponed: {str(error).splitlines()[0]}", err=True)
