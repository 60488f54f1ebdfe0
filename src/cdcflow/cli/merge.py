"""`cdcflow merge`: fold the change log into tables. `cdcflow run` does it with `merge.every`."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from cdcflow.cli import failure
from cdcflow.cli.merge_output import merge_and_tell, say, say_progress, tell
from cdcflow.cli.options import DEFAULT_CONFIG, ConfigPaths, Json
from cdcflow.config import load, seconds
from cdcflow.config.places import check_writable, warehouse_places
from cdcflow.daemon import signals
from cdcflow.daemon.events import event_lines, leave_interrupts_out, send_structlog_to
from cdcflow.daemon.fleet_component import merges_in_fleet
from cdcflow.daemon.merge_process import merging_daemon, prepare_merge, wait_for_turn
from cdcflow.reports.merges import merge_parts

_DEFAULT = [DEFAULT_CONFIG]
_ONE_IS_ENOUGH = "end this command, or start `cdcflow run` with --no-merge"


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
    send_structlog_to(sys.stderr)  # stdout is for the report
    leave_interrupts_out()
    daemon = merging_daemon(settings)
    merged = prepare_merge(settings, say, say_progress, repeats=pause_s is not None)
    tell_event = event_lines(as_json=False, file=sys.stderr)
    if pause_s is None:
        with merges_in_fleet([settings], merged, None, tell_event) as merging_once:
            report = merging_once() if daemon is None else wait_for_turn(merging_once)
        tell(report, merge_parts, json=json)
        if any(table.left_out is not None for table in report.tables):
            raise typer.Exit(failure.FINDINGS)
    else:
        if daemon is not None:
            typer.echo(f"the daemon of this log (process {daemon}) merges, too: {_ONE_IS_ENOUGH}", err=True)
        with merges_in_fleet(
            [settings], lambda: merge_and_tell(merged, merge_parts, json=json), pause_s, tell_event
        ) as merging:
            signals.again_and_again(merging, pause_s)
