"""Merges of a log by its settings: for `cdcflow merge`, and for the merge process of `cdcflow run`.

A merge leaves its result in the log's folder, where the daemon finds it. After that it does the tables' maintenance
that is due.
"""

from __future__ import annotations

import atexit
import contextlib
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

from cdcflow.config import Config, KafkaLog
from cdcflow.daemon.interfaces import facts
from cdcflow.daemon.interfaces.control_socket import ask
from cdcflow.errors import CdcflowError, SinkUnavailable
from cdcflow.log.maintenance import activity, state_files

if TYPE_CHECKING:
    from cdcflow.tables.job.engines import Engines
    from cdcflow.tables.job.reports import MergeReport, SeveralReport, TableMergeReport, Watch

_Report = TypeVar("_Report", "MergeReport", "SeveralReport")
Merge = Callable[[], "MergeReport"]
Say = Callable[[str], None]
TURN_WITHIN_S = 60.0
TURN_EVERY_S = 0.1
UPKEEP_LEAST_S = 0.5
"""The minimum time for maintenance that the next merge has to wait for, so that it gets to each of its steps."""


def prepare_merge(
    settings: Config,
    say: Say,
    watch: Watch,
    *,
    repeats: bool = False,
    tables_done: Callable[[], None] = lambda: None,
) -> Merge:
    """Return a function that merges once, and may be called again and again. Spark is imported and started when needed.

    `say` gets a text before each long step, `watch` each table whose merge begins. `repeats`: it is called again and
    again, so that maintenance can work during the next merges. `tables_done` is called when a merge from files has only
    its cut left to publish.

    Raises:
        ConfigurationError: there is no log, or an engine's packages are not installed.
    """
    merge = _prepare(settings, say, watch, tables_done, repeats=repeats)
    return notify_of_cuts([settings], write_result(settings, send_spans(settings, merge)), repeats=repeats)


def has_log(settings: Config) -> bool:
    """Whether there is a log to merge."""
    from cdcflow import wiring

    return wiring.log_reader(settings).exists()


def merging_daemon(settings: Config) -> int | None:
    """Return the process id of a daemon that also merges this log; `None` if there is none, or it cannot be queried."""
    with contextlib.suppress(CdcflowError):
        answer = ask(settings.log.folder, {"op": "settings"})
        if answer is not None and answer.get("merges"):
            return int(answer["pid"])
    return None


def wait_for_turn(merge: Merge) -> MergeReport:
    """Wait until no merge of a daemon works in the warehouse, then merge.

    Raises:
        SinkUnavailable: its merge did not end within `TURN_WITHIN_S`, or this merge could not be done at present.
    """
    until = time.monotonic() + TURN_WITHIN_S
    while True:
        try:
            return merge()
        except SinkUnavailable as error:
            if error.runbook != "busy" or time.monotonic() >= until:
                raise
            time.sleep(TURN_EVERY_S)


def _prepare(settings: Config, say: Say, watch: Watch, tables_done: Callable[[], None], *, repeats: bool) -> Merge:
    from cdcflow import wiring

    log, policies = settings.log, wiring.policies(settings)
    reader = wiring.existing_log(settings)
    if isinstance(log, KafkaLog):
        from cdcflow.spark.kafka import merge as from_kafka
        from cdcflow.spark.session import session_for

        say("starting Spark")
        spark, chosen = session_for(settings), settings.merge

        def seal_and_merge() -> MergeReport:
            say(f"sealing what {reader.name} has after its history")
            # Read again each time: a secret may have changed.
            place = wiring.warehouse(settings)
            return from_kafka(
                spark, wiring.tier(settings), place, table_format=chosen.format, watch=watch, policies=policies
            )

        return _maintain(settings, seal_and_merge, wiring.engines(settings, spark), repeats=repeats)
    from cdcflow.tables.job.job import merge as from_files

    if settings.merge.engine == "spark":
        say("starting Spark")
    engines, master = wiring.engines(settings), settings.merge.spark.get("spark.master")

    def merge_files() -> MergeReport:
        layout = wiring.merge_layout(log, master)
        place = wiring.warehouse(settings)
        return from_files(engines, layout, place, watch=watch, policies=policies, tables_done=tables_done)

    return _maintain(settings, merge_files, engines, repeats=repeats)


def _maintain(settings: Config, merge: Merge, engines: Engines, *, repeats: bool) -> Merge:
    """Return a merge that is followed by the tables' maintenance that is due, within its budget. Maintenance never
    endangers a merge."""
    from cdcflow import wiring
    from cdcflow.tables.job.maintenance import UpkeepWhenDue, runs_beside

    waits = repeats and not runs_beside(engines, repeats=repeats)
    policy = wiring.upkeep_policy(with_short_upkeep(settings) if waits else settings)
    upkeep = UpkeepWhenDue(engines, policy, repeats=repeats)

    def merge_and_maintain() -> MergeReport:
        with upkeep.merging():
            report = merge()
        if report.cut:
            upkeep.after(report.tables)
        return report

    return merge_and_maintain


def with_short_upkeep(settings: Config) -> Config:
    """Return settings with which maintenance begins no further step after an interval, instead of doing all that is due
    at once, because several tables are due after the same number of merges. The rest is done after the next merges."""
    upkeep = settings.merge.upkeep
    budget_s = min(upkeep.budget, max(settings.merge.every or 0.0, UPKEEP_LEAST_S))
    merge = settings.merge.model_copy(update={"upkeep": upkeep.model_copy(update={"budget": budget_s})})
    return settings.model_copy(update={"merge": merge})


def write_result(settings: Config, merge: Merge) -> Merge:
    """Return a merge that also writes its result into the log's folder, for the daemon's metrics."""
    folder = settings.log.folder

    def merge_and_write() -> MergeReport:
        began = time.time()
        try:
            report = merge()
        except Exception as error:
            state_files.write_merge_failure(folder, error)
            activity.note_merge(folder, began, time.time(), failure=failure_text(error))
            raise
        if report.cut:
            rows = sum(table.changes for table in report.tables)
            activity.note_merge(folder, began, time.time(), rows=rows)
            state_files.write_merge(
                folder,
                cut=report.cut,
                offset=report.offset,
                seconds=report.seconds,
                rows=rows,
                excluded=exclusion_reasons(report.tables),
                warned=sum(sum(table.warned.values()) for table in report.tables),
                quarantined=sum(table.quarantined for table in report.tables),
            )
        if report.published and report.latest is not None:
            warehouse = str(settings.merge.warehouse)
            merged = facts.merge_of(report.latest.to_json(), int(time.time() * 1000))
            before = state_files.of_merges(folder, warehouse) or []
            state_files.write_merges(folder, warehouse, [merged, *before][: facts.MERGES_MAX])
        return report

    return merge_and_write


def notify_of_cuts(settings: Sequence[Config], merge: Callable[[], _Report], *, repeats: bool) -> Callable[[], _Report]:
    """Return a merge that also sends each published cut to the receivers in the settings that have `cut_published`.

    With `repeats` the latest cut is sent after the first merge, even if an earlier process published it, because that
    one may have ended before the cut was sent. A single merge waits until the cut is sent, as long as the retries take.
    """
    receivers = tuple(dict.fromkeys(one for config in settings for one in config.service.cut_receivers))
    if not receivers:
        return merge
    from cdcflow.daemon.interfaces.notices import of_the_cut
    from cdcflow.daemon.interfaces.notifications import ANSWER_WITHIN_S, PAUSES_S, CutNotifier

    notifier = CutNotifier(receivers, _log_event, pauses_s=PAUSES_S)
    atexit.register(notifier.end)
    warehouse, is_first = str(settings[0].merge.warehouse), repeats

    def merge_and_notify() -> _Report:
        nonlocal is_first
        report = merge()
        if report.cut and (report.published or is_first):
            notifier.put(of_the_cut(report, warehouse))
        is_first = False
        if not repeats:
            notifier.wait_until_sent(sum(PAUSES_S) + ANSWER_WITHIN_S)
        return report

    return merge_and_notify


def _log_event(event: str, fields: Mapping[str, object]) -> None:
    import structlog

    structlog.get_logger().warning(event, **fields)


def failure_text(error: Exception) -> str:
    """Return why a merge failed, without the text of an error that is not cdcflow's, which may hold row values."""
    return str(error).split("\n")[0] if isinstance(error, CdcflowError) else type(error).__name__


def exclusion_reasons(tables: Iterable[TableMergeReport]) -> dict[str, str]:
    """Return the tables that a merge excluded from its cut, each with the reason and what to do."""
    return {table.name: table.left_out for table in tables if table.left_out is not None}


def send_spans(settings: Config, merge: Merge) -> Merge:
    """Return the merge with a span sent for each run, if the settings name a collector."""
    if settings.service.traces is None:
        return merge
    from cdcflow.daemon.events import event_lines
    from cdcflow.daemon.interfaces.traces import Traces

    traces = Traces(settings.service.traces, event_lines(as_json=False, file=sys.stderr))

    def merge_with_span() -> MergeReport:
        began = time.time_ns()
        try:
            report = merge()
        except Exception as error:
            traces.on_span("merge", began, time.time_ns(), {}, failed=type(error).__name__)
            raise
        rows, left_out = sum(t.changes for t in report.tables), sum(t.left_out is not None for t in report.tables)
        about = {"cdcflow.cut": report.cut, "cdcflow.offset": report.offset, "cdcflow.rows": rows}
        about |= {"cdcflow.tables": len(report.tables), "cdcflow.left_out": left_out}
        traces.on_span("merge", began, time.time_ns(), about)
        return report

    return merge_with_span
