"""The daemon's status as Prometheus metrics, by the conventions: base units, `_total` on counters, a help text each.

    status (a mapping, as `cdcflow status --json` shows it) ──▶ samples ──▶ prometheus_client ──▶ the text of /metrics

`METRICS` is the list that docs/metrics.md, the alert rules and the dashboard are tested against. Unknown values are
omitted; values known before an outage stay, because an alert on lag must fire during it.

Labels are bounded: there are series per table for up to `status_samples.TABLES_MAX` tables, or as the settings require.
Table names and kinds of errors are labels; row values never are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal

from cdcflow.errors import ConfigurationError
from cdcflow.http import status_samples as samples

if TYPE_CHECKING:  # not required without `service.listen`
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric. `name` is without `cdcflow_`, and has `_total` where it is a counter."""

    name: str
    kind: Literal["gauge", "counter"]
    text: str
    labels: tuple[str, ...] = ()

    @property
    def full_name(self) -> str:
        return f"cdcflow_{self.name}"


Listed = Sequence[tuple[Metric, samples.Found]]

_METRICS: tuple[tuple[Metric, samples.Found], ...] = (
    (
        Metric("build_info", "gauge", "Always 1; the labels identify what runs.", ("version", "python", "source")),
        samples.build,
    ),
    (
        Metric("start_time_seconds", "gauge", "When this daemon was started, in seconds since 1970.", ()),
        samples.number_at("started_at"),
    ),
    (
        Metric(
            "state",
            "gauge",
            "1 for the state that the capture is in. waiting: it tries again by itself; halted: it has ended and "
            "does not try again; standby: another daemon captures, and this one waits for its end.",
            ("state",),
        ),
        samples.capture_state,
    ),
    (
        Metric("lease_active", "gauge", "1 if this daemon holds the lease and captures, 0 if it is the standby."),
        samples.lease_active,
    ),
    (
        Metric("lease_up", "gauge", "1 if the lease answered the last request, 0 if not."),
        samples.lease_up,
    ),
    (
        Metric("lease_changes_total", "counter", "How often this daemon became active, or the standby."),
        samples.number_at("lease", "changes"),
    ),
    (
        Metric("source_up", "gauge", "1 if the source answered the last query, 0 if not."),
        samples.number_at("source_up"),
    ),
    (
        Metric("tables_stopped", "gauge", "Tables of a polled source that have stopped until an operator helps."),
        samples.number_at("source", "stopped_tables"),
    ),
    # How far behind.
    (
        Metric(
            "lag_bytes",
            "gauge",
            "How far the source's log is ahead of the durable change log. While the source does not answer: the "
            "last known value.",
        ),
        samples.number_at("lag_bytes"),
    ),
    (
        Metric(
            "lag_seconds",
            "gauge",
            "Age of the latest durable position. It grows while the source or the log cannot be reached.",
        ),
        samples.number_at("lag_seconds"),
    ),
    (
        Metric(
            "heartbeat_age_seconds", "gauge", "Seconds since the durable position last moved, or was the source's end."
        ),
        samples.number_at("heartbeat_age_seconds"),
    ),
    (
        Metric(
            "heartbeat_age_limit_seconds",
            "gauge",
            "At this age of the heartbeat /health reports that the capture stalls.",
        ),
        samples.number_at("heartbeat_age_seconds_max"),
    ),
    # What the source keeps.
    (
        Metric("retained_bytes", "gauge", "Log that the source keeps for cdcflow, by its last answer."),
        samples.number_at("retained_bytes"),
    ),
    (
        Metric(
            "log_budget_bytes", "gauge", "The budget for the log that the source keeps: the settings' or the server's."
        ),
        samples.number_at("log_budget", "budget_bytes"),
    ),
    (
        Metric("log_budget_age_seconds", "gauge", "The same, as an age of the oldest log."),
        samples.number_at("log_budget", "budget_age_seconds"),
    ),
    (
        Metric(
            "log_budget_used_ratio",
            "gauge",
            "The used part of the budget for the log that the source keeps, by bytes or by age; 1: used up.",
        ),
        samples.number_at("log_budget", "used"),
    ),
    (
        Metric(
            "log_released_timestamp_seconds",
            "gauge",
            "When this process last released the log that the source kept. Absent: it never did.",
        ),
        samples.number_at("log_budget", "released_at"),
    ),
    (
        Metric(
            "reading_share_ratio",
            "gauge",
            "The share of the time in which existing rows are read: 1 at full speed, 0 while limits of source.backfill "
            "hold it. Absent: nothing is to be read, or there is no limit.",
        ),
        samples.number_at("reading", "share"),
    ),
    (
        Metric(
            "reading_unmeasured",
            "gauge",
            "1: nothing is read, because something that source.backfill.limits limits cannot be measured.",
        ),
        samples.number_at("reading", "unmeasured"),
    ),
    (
        Metric("tables_in_doubt", "gauge", "Tables that a gap in the source's log left unverified."),
        samples.tables_in_doubt,
    ),
    (
        Metric(
            "source_safe_bytes",
            "gauge",
            "PostgreSQL: log that may still be written before the server discards what cdcflow needs. Absent: no "
            "limit.",
        ),
        samples.number_at("source", "safe_wal_bytes"),
    ),
    (
        Metric(
            "source_catalog_xmin_age",
            "gauge",
            "PostgreSQL: number of transactions for which the slot has held back VACUUM of the catalog.",
        ),
        samples.number_at("source", "catalog_xmin_age"),
    ),
    (
        Metric(
            "source_files_until_lost",
            "gauge",
            "MySQL and MariaDB: binary log files that can be purged before the one that cdcflow reads.",
        ),
        samples.number_at("source", "files_until_lost"),
    ),
    # The log.
    (Metric("cut", "gauge", "The number of the latest durable cut."), samples.number_at("cut")),
    (Metric("durable_offset", "gauge", "The latest offset that is safe on disk."), samples.number_at("durable_offset")),
    (Metric("epoch", "gauge", "How often the log was opened for writing."), samples.number_at("epoch")),
    (
        Metric("log_disk_free_bytes", "gauge", "Free space of the file system with the log's folder."),
        samples.number_at("disk", "free_bytes"),
    ),
    (
        Metric("log_disk_size_bytes", "gauge", "Size of the file system with the log's folder."),
        samples.number_at("disk", "size_bytes"),
    ),
    (
        Metric("upload_waiting_segments", "gauge", "Sealed segments that are not in the object store yet."),
        samples.number_at("upload_waiting_segments"),
    ),
    (
        Metric("upload_waiting_bytes", "gauge", "Bytes of the sealed segments that are not in the object store yet."),
        samples.number_at("upload_waiting_bytes"),
    ),
    (
        Metric("journal_peer_follows", "gauge", "Whether this peer stores what is acknowledged.", ("peer",)),
        samples.by_label("peers_following"),
    ),
    (
        Metric("journal_peers_needed", "gauge", "How many peers must store a change before it is acknowledged."),
        samples.number_at("peers_needed"),
    ),
    (
        Metric("journal_peer_lag_bytes", "gauge", "What was not sent to this peer of the log yet.", ("peer",)),
        samples.by_label("peers_lag_bytes"),
    ),
    # What was done.
    (
        Metric("rows_captured_total", "counter", "Changed rows appended to the log."),
        samples.number_at("counts", "rows_captured"),
    ),
    (
        Metric("rows_read_total", "counter", "Existing rows read into the log."),
        samples.number_at("counts", "rows_read"),
    ),
    (
        Metric("appended_bytes_total", "counter", "Size in memory of the rows appended to the log."),
        samples.number_at("counts", "bytes_appended"),
    ),
    (Metric("cuts_total", "counter", "Cuts written to the log."), samples.number_at("counts", "cuts")),
    (
        Metric("syncs_total", "counter", "Times that the log was synced to make cuts durable."),
        samples.number_at("counts", "syncs"),
    ),
    (
        Metric("attempts_total", "counter", "Times that the capture was started or started again."),
        samples.number_at("counts", "attempts"),
    ),
    (
        Metric(
            "retries_total",
            "counter",
            "Times that the capture was interrupted and tried again, by the kind of error.",
            ("kind",),
        ),
        samples.by_label("counts", "retries"),
    ),
    (
        Metric(
            "errors_total",
            "counter",
            "Errors, by kind: those that are tried again, those of single chunks, and one that ends the capture.",
            ("kind",),
        ),
        samples.by_label("counts", "errors"),
    ),
    (
        Metric("events_total", "counter", "Events, as the daemon's lines name them.", ("event",)),
        samples.by_label("counts", "events"),
    ),
    (
        Metric(
            "shadow_checks_total", "counter", "Changed rows that were read again and compared with what was decoded."
        ),
        samples.number_at("counts", "shadow_checks"),
    ),
    (
        Metric(
            "shadow_events_total",
            "counter",
            "Row events that another library decoded as well, and that were compared.",
        ),
        samples.number_at("counts", "shadow_events"),
    ),
    (
        Metric(
            "shadow_differences_total", "counter", "Rows and row events of these that differed from what was decoded."
        ),
        samples.number_at("counts", "shadow_differences"),
    ),
    (
        Metric(
            "shadow_moved_on_total",
            "counter",
            "Changed rows that were to be compared, but changed again before that, or could not be read.",
        ),
        samples.number_at("counts", "shadow_moved_on"),
    ),
    (
        Metric("rows_per_second", "gauge", "Rows written to the log a second, over the last 5 s."),
        samples.number_at("rows_per_second"),
    ),
    (Metric("held_rows", "gauge", "Rows held back because a backfill window is open."), samples.number_at("held_rows")),
    (
        Metric("held_bytes", "gauge", "Bytes held back because a backfill window is open."),
        samples.number_at("held_bytes"),
    ),
    # Tables together.
    (
        Metric("tables", "gauge", "Captured tables, by the state of their backfill.", ("state",)),
        samples.count_by("state", samples.TABLE_STATES),
    ),
    (
        Metric("tables_freshness", "gauge", "Captured tables, by whether their freshness is proven.", ("freshness",)),
        samples.count_by("freshness", samples.FRESHNESS),
    ),
    (
        Metric(
            "tables_not_proven",
            "gauge",
            "Captured tables that are not proven fresh, by cause. outage: nothing is captured; uncovered: its changes "
            "do not reach the log; backfill: its existing rows are not all read; late: no mark has returned.",
            ("cause",),
        ),
        samples.count_by("freshness_cause", samples.CAUSES),
    ),
    (
        Metric(
            "oldest_fresh_timestamp_seconds",
            "gauge",
            "The oldest time, over all tables, up to which a table is proven fresh; in seconds since 1970.",
        ),
        samples.over_tables("fresh_as_of", min),
    ),
    (
        Metric(
            "backfill_progress_ratio",
            "gauge",
            "Progress of the backfill that has the lowest share done; 1: all tables are read.",
        ),
        samples.least_progress,
    ),
    # Each table.
    (
        Metric("table_state", "gauge", "1 for the state that the table's backfill is in.", ("table", "state")),
        samples.per_table_and("state", samples.TABLE_STATES),
    ),
    (
        Metric("table_freshness", "gauge", "1 for whether the table's freshness is proven.", ("table", "freshness")),
        samples.per_table_and("freshness", samples.FRESHNESS),
    ),
    (
        Metric(
            "table_fresh_timestamp_seconds",
            "gauge",
            "The time up to which the table is proven fresh, in seconds since 1970.",
            ("table",),
        ),
        samples.per_table("fresh_as_of"),
    ),
    (
        Metric("table_backfill_units", "gauge", "Units (PostgreSQL: pages) of the table's backfill.", ("table",)),
        samples.per_table("units"),
    ),
    (
        Metric("table_backfill_units_done", "gauge", "Units of the table's backfill that have been read.", ("table",)),
        samples.per_table("units_done"),
    ),
    (
        Metric("table_backfill_rows", "gauge", "Rows of the table's backfill that are in the log.", ("table",)),
        samples.per_table("rows"),
    ),
    (
        Metric("table_generation", "gauge", "The number of the table's backfill.", ("table",)),
        samples.per_table("generation"),
    ),
    # The merge, from the file that `cdcflow merge` writes into the log's folder.
    (Metric("merge_cut", "gauge", "The cut that the last merge published."), samples.number_at("merge", "cut")),
    (
        Metric("merge_offset", "gauge", "The last offset that is in the tables of the published cut."),
        samples.number_at("merge", "offset"),
    ),
    (
        Metric("merge_behind_rows", "gauge", "Rows that are durable in the log and not in the published cut."),
        samples.number_at("merge", "behind_rows"),
    ),
    (
        Metric("merge_success_timestamp_seconds", "gauge", "When a merge last ended well, in seconds since 1970."),
        samples.number_at("merge", "ended_at"),
    ),
    (Metric("merge_duration_seconds", "gauge", "How long the last merge took."), samples.number_at("merge", "seconds")),
    (Metric("merge_rows", "gauge", "Rows of the log that the last merge read."), samples.number_at("merge", "rows")),
    (
        Metric("merge_tables_left_out", "gauge", "Tables that the last merge excluded from the cut."),
        samples.number_at("merge", "left_out"),
    ),
    (
        Metric("merge_warned_rows", "gauge", "Rows of the last merge that break a contract which only warns."),
        samples.number_at("merge", "warned_rows"),
    ),
    (
        Metric("merge_quarantined_rows", "gauge", "Rows that the last merge kept out of their tables, in quarantine."),
        samples.number_at("merge", "quarantined_rows"),
    ),
    (
        Metric("merge_failed", "gauge", "1 when the last merge failed or was postponed, 0 if not."),
        samples.number_at("merge", "failed"),
    ),
    # The merge process of this daemon, where the settings have `merge.every`.
    (
        Metric(
            "merge_process_state",
            "gauge",
            "1 for what the daemon's merge process does; waiting: for a log to merge.",
            ("state",),
        ),
        samples.merge_state,
    ),
    (
        Metric("merge_process_failing", "gauge", "1 if merges have failed since the last good one, 0 if not."),
        samples.merge_failing,
    ),
    (
        Metric("merge_process_memory_bytes", "gauge", "Memory of the merge process and of all that it started."),
        samples.number_at("merge", "process", "memory_bytes"),
    ),
    (
        Metric("merge_process_memory_limit_bytes", "gauge", "With more memory than this a merge process is ended."),
        samples.number_at("merge", "process", "memory_bytes_max"),
    ),
    (
        Metric(
            "merge_process_ends_total",
            "counter",
            "Merge processes that ended too early. failed: with an error; killed: by a signal; memory: "
            "they had too much; silent: they sent nothing; stuck: a merge made no progress.",
            ("cause",),
        ),
        samples.by_label("merge", "process", "ends"),
    ),
    # Consumers of the log, from their files in the log's folder.
    (
        Metric("consumer_offset", "gauge", "The last offset that the consumer has committed.", ("consumer",)),
        samples.per_entry("consumers", "offset"),
    ),
    (
        Metric(
            "consumer_behind_rows",
            "gauge",
            "Rows that are durable in the log and that the consumer has not committed, of all tables.",
            ("consumer",),
        ),
        samples.per_entry("consumers", "behind_rows"),
    ),
    # Targets, from the files of deliveries there, and from the delivery processes of this daemon.
    (
        Metric(
            "target_offset",
            "gauge",
            "The last offset up to which the target's tables were delivered, except those that have stopped.",
            ("target",),
        ),
        samples.per_entry("targets", "offset"),
    ),
    (
        Metric(
            "target_behind_rows",
            "gauge",
            "Rows that are durable in the log and came after the last delivery to the target, of all tables.",
            ("target",),
        ),
        samples.per_entry("targets", "behind_rows"),
    ),
    (
        Metric(
            "target_success_timestamp_seconds",
            "gauge",
            "When a delivery to the target last ended well, in seconds since 1970.",
            ("target",),
        ),
        samples.per_entry("targets", "ended_at"),
    ),
    (
        Metric("target_tables_stopped", "gauge", "Tables that are not delivered until an operator helps.", ("target",)),
        samples.per_entry("targets", "stopped_tables"),
    ),
    (
        Metric(
            "target_failing",
            "gauge",
            "1 if deliveries to the target have failed since the last good one, 0 if not.",
            ("target",),
        ),
        samples.per_entry("targets", "is_failing"),
    ),
    (
        Metric(
            "target_process_memory_bytes",
            "gauge",
            "Memory of the target's delivery process and of all that it started.",
            ("target",),
        ),
        samples.per_entry("targets", "process", "memory_bytes"),
    ),
    (
        Metric(
            "target_process_ends_total",
            "counter",
            "Delivery processes of the target that ended too early, by cause as for merge processes.",
            ("target", "cause"),
        ),
        samples.target_ends,
    ),
    (
        Metric(
            "notifications_total",
            "counter",
            "Notifications for the receiver. failed: it did not take one in several tries.",
            ("receiver", "outcome"),
        ),
        samples.notifications,
    ),
    (
        Metric("notifications_waiting", "gauge", "Notifications that are still to be sent.", ("receiver",)),
        samples.per_entry("notifications", "waiting"),
    ),
    # What the settings' `tables` do to rows.
    (
        Metric(
            "transform_rows_total",
            "counter",
            "Changes and rows of backfills that the stage got (in), and that left it (out).",
            ("transform", "direction"),
        ),
        samples.transform_rows,
    ),
    (
        Metric("transform_seconds_total", "counter", "Time that the stage took.", ("transform",)),
        samples.per_entry("transforms", "seconds"),
    ),
    (
        Metric(
            "transform_errors_total",
            "counter",
            "How often the stage could not be applied; the table fails then.",
            ("transform",),
        ),
        samples.per_entry("transforms", "errors"),
    ),
    # Comparisons, from the file that `cdcflow verify` writes there.
    (
        Metric("tables_verified", "gauge", "Tables that were compared with their source and found equal."),
        samples.tables_verified,
    ),
    (
        Metric("tables_different", "gauge", "Tables in which the last comparison found rows that differ."),
        samples.tables_different,
    ),
    (
        Metric(
            "oldest_verified_timestamp_seconds",
            "gauge",
            "The oldest time at which a table was last found equal to its source; in seconds since 1970.",
        ),
        samples.oldest_verified,
    ),
    (
        Metric(
            "table_verified_timestamp_seconds",
            "gauge",
            "When the table was last found equal to its source, in seconds since 1970.",
            ("table",),
        ),
        samples.table_verified,
    ),
)

METRICS: tuple[Metric, ...] = tuple(metric for metric, _ in _METRICS)


def exposition(status: Mapping[str, Any], listed: Listed | None = None) -> str:
    """Return the text of the metrics page for one status. `listed`: metrics other than the daemon's, with their place
    in the status.

    Raises:
        ConfigurationError: prometheus_client is not installed.
    """
    try:
        from prometheus_client import CollectorRegistry, generate_latest
    except ImportError:
        raise ConfigurationError(
            "metrics need the package prometheus-client, which is not installed",
            remedy="run pip install 'cdcflow[service]'",
        ) from None
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_process())
    registry.register(StatusCollector(status, listed))
    return generate_latest(registry).decode()


class StatusCollector:
    """One status as prometheus_client's metric families; for a separate registry."""

    def __init__(self, status: Mapping[str, Any], listed: Listed | None = None) -> None:
        self._status = status
        self._listed = _METRICS if listed is None else listed

    def collect(self) -> Iterator[GaugeMetricFamily | CounterMetricFamily]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        for metric, found in self._listed:
            family = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
            made = family(metric.full_name, metric.text, labels=metric.labels)
            for labels, value in found(self._status):
                made.add_metric(labels, value)
            if made.samples:
                yield made


@lru_cache(maxsize=1)
def _process() -> Any:  # Any: its type is the library's, which is not loaded with this module
    """CPU, memory and open files of this process, under the names that every exporter uses."""
    from prometheus_client import ProcessCollector

    return ProcessCollector(registry=None)
