"""The daemon's status as Prometheus metrics, by the conventions: base units, `_total` on counters, a help text each.

    status (a mapping, as `cdcflow status --json` shows it) ──▶ samples ──▶ prometheus_client ──▶ the text of /metrics

`METRICS` is the list that docs/metrics.md, the alert rules and the dashboard are tested against. Unknown values are
omitted; values known before an outage stay, because an alert on lag must fire during it.

Labels are bounded: there are series per table for up to `TABLES_MAX` tables, or as the settings require. Table names
and kinds of errors are labels; row values never are.
"""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal

from cdcflow.errors import ConfigurationError
from cdcflow.version import __version__

if TYPE_CHECKING:  # not required without `service.listen`
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
TABLES_MAX = 100
"""With more tables than this `metrics_per_table: auto` omits the series per table."""
CONSUMERS_MAX = 100
TARGETS_MAX = 100

CAPTURE_STATES = ("capturing", "waiting", "paused", "halted", "stopped", "standby")
TABLE_STATES = ("waiting", "reading", "done", "paused", "cancelled", "failed", "forgotten")
FRESHNESS = ("fresh", "quiet", "not proven")
CAUSES = ("outage", "uncovered", "backfill", "late")
MERGE_STATES = ("starting", "waiting", "merging", "idle", "restarting")
MERGE_ENDS = ("failed", "killed", "memory", "silent", "stuck")

Sample = tuple[tuple[str, ...], float]


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


Found = Callable[[Mapping[str, Any]], Iterable[Sample]]
Listed = Sequence[tuple[Metric, Found]]


# ── where a metric's samples are in a status ───────────────────────────────────────────────────────────────────


def number_at(*path: str) -> Found:
    """Return a function that finds the number at this path of a status; nothing if there is no number."""

    def samples(status: Mapping[str, Any]) -> Iterator[Sample]:
        value: Any = status
        for name in path:
            value = value.get(name) if isinstance(value, Mapping) else None
        yield from _number((), value)

    return samples


def by_label(*path: str) -> Found:
    """Return a function that finds a number for each name in the mapping at this path."""

    def samples(status: Mapping[str, Any]) -> Iterator[Sample]:
        value: Any = status
        for name in path:
            value = value.get(name) if isinstance(value, Mapping) else None
        for label, count in sorted((value or {}).items()):
            yield from _number((str(label),), count)

    return samples


def _number(labels: tuple[str, ...], value: object) -> Iterator[Sample]:
    if isinstance(value, bool | int | float) or (isinstance(value, str) and value.isdigit()):
        yield labels, float(value)


def _build(status: Mapping[str, Any]) -> Iterator[Sample]:
    yield (__version__, platform.python_version(), str(status.get("source_kind", ""))), 1.0


def _capture_state(status: Mapping[str, Any]) -> Iterator[Sample]:
    for state in CAPTURE_STATES:
        yield (state,), float(status.get("state") == state)


def _lease_active(status: Mapping[str, Any]) -> Iterator[Sample]:
    if lease := status.get("lease"):
        yield (), float(lease["role"] == "active")


def _lease_up(status: Mapping[str, Any]) -> Iterator[Sample]:
    if lease := status.get("lease"):
        yield (), float("error" not in lease)


def _tables(status: Mapping[str, Any]) -> Mapping[str, Mapping[str, Any]]:
    return status.get("tables") or {}


def _tables_in_doubt(status: Mapping[str, Any]) -> Iterator[Sample]:
    gaps = [fields.get("gap") for fields in _tables(status).values()]
    if _tables(status):
        yield (), float(sum(gap is not None and gap["proven"] is None for gap in gaps))


def _count_by(field: str, names: tuple[str, ...]) -> Found:
    """Return a function that counts how many tables have each of these values in a field."""

    def samples(status: Mapping[str, Any]) -> Iterator[Sample]:
        counts = Counter(str(fields.get(field)) for fields in _tables(status).values())
        if _tables(status):
            yield from (((name,), float(counts[name])) for name in names)

    return samples


def _over_tables(field: str, of: Callable[[list[float]], float]) -> Found:
    """Return a function that computes one number over all tables that have the field."""

    def samples(status: Mapping[str, Any]) -> Iterator[Sample]:
        numbers = [float(v) for t in _tables(status).values() if isinstance(v := t.get(field), int | float)]
        if numbers:
            yield (), of(numbers)

    return samples


def _verified_numbers(status: Mapping[str, Any], field: str) -> dict[str, list[float]]:
    """Return a number that comparisons stored, for each table that was ever compared."""
    known = status.get("verified") or {}
    return {table: [one[field] for one in kinds.values() if field in one] for table, kinds in known.items()}


def _oldest_verified(status: Mapping[str, Any]) -> Iterator[Sample]:
    if times := [min(at) for at in _verified_numbers(status, "at").values() if at]:
        yield (), min(times)


def _tables_verified(status: Mapping[str, Any]) -> Iterator[Sample]:
    if "verified" in status:
        yield (), float(sum(bool(at) for at in _verified_numbers(status, "at").values()))


def _tables_different(status: Mapping[str, Any]) -> Iterator[Sample]:
    if "verified" in status:
        yield (), float(sum(any(keys) for keys in _verified_numbers(status, "different").values()))


def _table_verified(status: Mapping[str, Any]) -> Iterator[Sample]:
    times = _verified_numbers(status, "at")
    for table, _ in _each_table(status):
        if times.get(table):
            yield (table,), min(times[table])


def _least_progress(status: Mapping[str, Any]) -> Iterator[Sample]:
    reading = [t for t in _tables(status).values() if t.get("state") in ("waiting", "reading", "paused")]
    if _tables(status):
        shares = [(t.get("units_done") or 0) / t["units"] if t.get("units") else 0.0 for t in reading]
        yield (), min(1.0, *shares, 1.0)


def _merge_state(status: Mapping[str, Any]) -> Iterator[Sample]:
    process: Mapping[str, Any] | None = (status.get("merge") or {}).get("process")
    if process is not None:
        yield from (((state,), float(process.get("state") == state)) for state in MERGE_STATES)


def _merge_failing(status: Mapping[str, Any]) -> Iterator[Sample]:
    process: Mapping[str, Any] | None = (status.get("merge") or {}).get("process")
    if process is not None:
        yield (), float(process.get("failing") is not None)


def _per_consumer(field: str) -> Found:
    def samples(status: Mapping[str, Any]) -> Iterator[Sample]:
        consumers: Mapping[str, Mapping[str, Any]] = status.get("consumers") or {}
        for name, one in sorted(consumers.items())[:CONSUMERS_MAX]:
            yield from _number((name,), one.get(field))

    return samples


def _per_target(*path: str) -> Found:
    """Return a function that finds a number for each target, at this path below the target's entry in the status."""

    def samples(status: Mapping[str, Any]) -> Iterator[Sample]:
        for name, value in _each_target(status, *path):
            yield from _number((name,), value)

    return samples


def _notifications(status: Mapping[str, Any]) -> Iterator[Sample]:
    for name, one in sorted((status.get("notifications") or {}).items()):
        for outcome in ("sent", "failed"):
            yield from _number((name, outcome), one.get(outcome))


def _notifications_waiting(status: Mapping[str, Any]) -> Iterator[Sample]:
    for name, one in sorted((status.get("notifications") or {}).items()):
        yield from _number((name,), one.get("waiting"))


def _transform_rows(status: Mapping[str, Any]) -> Iterator[Sample]:
    for name, one in sorted((status.get("transforms") or {}).items()):
        for direction in ("in", "out"):
            yield from _number((name, direction), one.get(f"rows_{direction}"))


def _per_transform(value: str) -> Found:
    """Return a function that finds this number for each transform in the settings' `tables`."""

    def samples(status: Mapping[str, Any]) -> Iterator[Sample]:
        for name, one in sorted((status.get("transforms") or {}).items()):
            yield from _number((name,), one.get(value))

    return samples


def _target_ends(status: Mapping[str, Any]) -> Iterator[Sample]:
    for name, ends in _each_target(status, "process", "ends"):
        for cause, count in sorted((ends or {}).items()):
            yield from _number((name, str(cause)), count)


def _each_target(status: Mapping[str, Any], *path: str) -> Iterator[tuple[str, Any]]:
    targets: Mapping[str, Mapping[str, Any]] = status.get("targets") or {}
    for name, one in sorted(targets.items())[:TARGETS_MAX]:
        value: Any = one
        for field in path:
            value = value.get(field) if isinstance(value, Mapping) else None
        yield name, value


def _per_table(field: str) -> Found:
    def samples(status: Mapping[str, Any]) -> Iterator[Sample]:
        for table, fields in _each_table(status):
            yield from _number((table,), fields.get(field))

    return samples


def _per_table_and(field: str, names: tuple[str, ...]) -> Found:
    def samples(status: Mapping[str, Any]) -> Iterator[Sample]:
        for table, fields in _each_table(status):
            if fields.get(field) is not None:
                yield from (((table, name), float(fields.get(field) == name)) for name in names)

    return samples


def _each_table(status: Mapping[str, Any]) -> Iterable[tuple[str, Mapping[str, Any]]]:
    """Return the tables, if they may have separate series; empty otherwise."""
    tables = _tables(status)
    wanted = status.get("metrics_per_table", "auto")
    if wanted == "never" or (wanted == "auto" and len(tables) > TABLES_MAX):
        return ()
    return tables.items()


# ── the metrics ────────────────────────────────────────────────────────────────────────────────────────────────

_FOUND: tuple[tuple[Metric, Found], ...] = (
    (
        Metric("build_info", "gauge", "Always 1; the labels identify what runs.", ("version", "python", "source")),
        _build,
    ),
    (
        Metric("start_time_seconds", "gauge", "When this daemon was started, in seconds since 1970.", ()),
        number_at("started_at"),
    ),
    (
        Metric(
            "state",
            "gauge",
            "1 for the state that the capture is in. waiting: it tries again by itself; halted: it has ended and "
            "does not try again; standby: another daemon captures, and this one waits for its end.",
            ("state",),
        ),
        _capture_state,
    ),
    (
        Metric("lease_active", "gauge", "1 if this daemon holds the lease and captures, 0 if it is the standby."),
        _lease_active,
    ),
    (
        Metric("lease_up", "gauge", "1 if the lease answered the last request, 0 if not."),
        _lease_up,
    ),
    (
        Metric("lease_changes_total", "counter", "How often this daemon became active, or the standby."),
        number_at("lease", "changes"),
    ),
    (
        Metric("source_up", "gauge", "1 if the source answered the last query, 0 if not."),
        number_at("source_up"),
    ),
    (
        Metric("tables_stopped", "gauge", "Tables of a polled source that have stopped until an operator helps."),
        number_at("source", "stopped_tables"),
    ),
    # How far behind.
    (
        Metric(
            "lag_bytes",
            "gauge",
            "How far the source's log is ahead of the durable change log. While the source does not answer: the "
            "last known value.",
        ),
        number_at("lag_bytes"),
    ),
    (
        Metric(
            "lag_seconds",
            "gauge",
            "Age of the latest durable position. It grows while the source or the log cannot be reached.",
        ),
        number_at("lag_seconds"),
    ),
    (
        Metric(
            "heartbeat_age_seconds", "gauge", "Seconds since the durable position last moved, or was the source's end."
        ),
        number_at("heartbeat_age_seconds"),
    ),
    (
        Metric(
            "heartbeat_age_limit_seconds",
            "gauge",
            "At this age of the heartbeat /health reports that the capture stalls.",
        ),
        number_at("heartbeat_age_seconds_max"),
    ),
    # What the source keeps.
    (
        Metric("retained_bytes", "gauge", "Log that the source keeps for cdcflow, by its last answer."),
        number_at("retained_bytes"),
    ),
    (
        Metric(
            "log_budget_bytes", "gauge", "The budget for the log that the source keeps: the settings' or the server's."
        ),
        number_at("log_budget", "budget_bytes"),
    ),
    (
        Metric("log_budget_age_seconds", "gauge", "The same, as an age of the oldest log."),
        number_at("log_budget", "budget_age_seconds"),
    ),
    (
        Metric(
            "log_budget_used_ratio",
            "gauge",
            "The used part of the budget for the log that the source keeps, by bytes or by age; 1: used up.",
        ),
        number_at("log_budget", "used"),
    ),
    (
        Metric(
            "log_released_timestamp_seconds",
            "gauge",
            "When this process last released the log that the source kept. Absent: it never did.",
        ),
        number_at("log_budget", "released_at"),
    ),
    (
        Metric(
            "reading_share_ratio",
            "gauge",
            "The share of the time in which existing rows are read: 1 at full speed, 0 while limits of source.backfill "
            "hold it. Absent: nothing is to be read, or there is no limit.",
        ),
        number_at("reading", "share"),
    ),
    (
        Metric(
            "reading_unmeasured",
            "gauge",
            "1: nothing is read, because something that source.backfill.limits limits cannot be measured.",
        ),
        number_at("reading", "unmeasured"),
    ),
    (
        Metric("tables_in_doubt", "gauge", "Tables that a gap in the source's log left unverified."),
        _tables_in_doubt,
    ),
    (
        Metric(
            "source_safe_bytes",
            "gauge",
            "PostgreSQL: log that may still be written before the server discards what cdcflow needs. Absent: no "
            "limit.",
        ),
        number_at("source", "safe_wal_bytes"),
    ),
    (
        Metric(
            "source_catalog_xmin_age",
            "gauge",
            "PostgreSQL: number of transactions for which the slot has held back VACUUM of the catalog.",
        ),
        number_at("source", "catalog_xmin_age"),
    ),
    (
        Metric(
            "source_files_until_lost",
            "gauge",
            "MySQL and MariaDB: binary log files that can be purged before the one that cdcflow reads.",
        ),
        number_at("source", "files_until_lost"),
    ),
    # The log.
    (Metric("cut", "gauge", "The number of the latest durable cut."), number_at("cut")),
    (Metric("durable_offset", "gauge", "The latest offset that is safe on disk."), number_at("durable_offset")),
    (Metric("epoch", "gauge", "How often the log was opened for writing."), number_at("epoch")),
    (
        Metric("log_disk_free_bytes", "gauge", "Free space of the file system with the log's folder."),
        number_at("disk", "free_bytes"),
    ),
    (
        Metric("log_disk_size_bytes", "gauge", "Size of the file system with the log's folder."),
        number_at("disk", "size_bytes"),
    ),
    (
        Metric("upload_waiting_segments", "gauge", "Sealed segments that are not in the object store yet."),
        number_at("upload_waiting_segments"),
    ),
    (
        Metric("upload_waiting_bytes", "gauge", "Bytes of the sealed segments that are not in the object store yet."),
        number_at("upload_waiting_bytes"),
    ),
    (
        Metric("journal_peer_follows", "gauge", "Whether this peer stores what is acknowledged.", ("peer",)),
        by_label("peers_following"),
    ),
    (
        Metric("journal_peers_needed", "gauge", "How many peers must store a change before it is acknowledged."),
        number_at("peers_needed"),
    ),
    (
        Metric("journal_peer_lag_bytes", "gauge", "What was not sent to this peer of the log yet.", ("peer",)),
        by_label("peers_lag_bytes"),
    ),
    # What was done.
    (
        Metric("rows_captured_total", "counter", "Changed rows appended to the log."),
        number_at("counts", "rows_captured"),
    ),
    (Metric("rows_read_total", "counter", "Existing rows read into the log."), number_at("counts", "rows_read")),
    (
        Metric("appended_bytes_total", "counter", "Size in memory of the rows appended to the log."),
        number_at("counts", "bytes_appended"),
    ),
    (Metric("cuts_total", "counter", "Cuts written to the log."), number_at("counts", "cuts")),
    (
        Metric("syncs_total", "counter", "Times that the log was synced to make cuts durable."),
        number_at("counts", "syncs"),
    ),
    (
        Metric("attempts_total", "counter", "Times that the capture was started or started again."),
        number_at("counts", "attempts"),
    ),
    (
        Metric(
            "retries_total",
            "counter",
            "Times that the capture was interrupted and tried again, by the kind of error.",
            ("kind",),
        ),
        by_label("counts", "retries"),
    ),
    (
        Metric(
            "errors_total",
            "counter",
            "Errors, by kind: those that are tried again, those of single chunks, and one that ends the capture.",
            ("kind",),
        ),
        by_label("counts", "errors"),
    ),
    (
        Metric("events_total", "counter", "Events, as the daemon's lines name them.", ("event",)),
        by_label("counts", "events"),
    ),
    (
        Metric(
            "shadow_checks_total", "counter", "Changed rows that were read again and compared with what was decoded."
        ),
        number_at("counts", "shadow_checks"),
    ),
    (
        Metric(
            "shadow_events_total",
            "counter",
            "Row events that another library decoded as well, and that were compared.",
        ),
        number_at("counts", "shadow_events"),
    ),
    (
        Metric(
            "shadow_differences_total", "counter", "Rows and row events of these that differed from what was decoded."
        ),
        number_at("counts", "shadow_differences"),
    ),
    (
        Metric(
            "shadow_moved_on_total",
            "counter",
            "Changed rows that were to be compared, but changed again before that, or could not be read.",
        ),
        number_at("counts", "shadow_moved_on"),
    ),
    (
        Metric("rows_per_second", "gauge", "Rows written to the log a second, over the last 5 s."),
        number_at("rows_per_second"),
    ),
    (Metric("held_rows", "gauge", "Rows held back because a backfill window is open."), number_at("held_rows")),
    (Metric("held_bytes", "gauge", "Bytes held back because a backfill window is open."), number_at("held_bytes")),
    # Tables together.
    (
        Metric("tables", "gauge", "Captured tables, by the state of their backfill.", ("state",)),
        _count_by("state", TABLE_STATES),
    ),
    (
        Metric("tables_freshness", "gauge", "Captured tables, by whether their freshness is proven.", ("freshness",)),
        _count_by("freshness", FRESHNESS),
    ),
    (
        Metric(
            "tables_not_proven",
            "gauge",
            "Captured tables that are not proven fresh, by cause. outage: nothing is captured; uncovered: its changes "
            "do not reach the log; backfill: its existing rows are not all read; late: no mark has returned.",
            ("cause",),
        ),
        _count_by("freshness_cause", CAUSES),
    ),
    (
        Metric(
            "oldest_fresh_timestamp_seconds",
            "gauge",
            "The oldest time, over all tables, up to which a table is proven fresh; in seconds since 1970.",
        ),
        _over_tables("fresh_as_of", min),
    ),
    (
        Metric(
            "backfill_progress_ratio",
            "gauge",
            "Progress of the backfill that has the lowest share done; 1: all tables are read.",
        ),
        _least_progress,
    ),
    # Each table.
    (
        Metric("table_state", "gauge", "1 for the state that the table's backfill is in.", ("table", "state")),
        _per_table_and("state", TABLE_STATES),
    ),
    (
        Metric("table_freshness", "gauge", "1 for whether the table's freshness is proven.", ("table", "freshness")),
        _per_table_and("freshness", FRESHNESS),
    ),
    (
        Metric(
            "table_fresh_timestamp_seconds",
            "gauge",
            "The time up to which the table is proven fresh, in seconds since 1970.",
            ("table",),
        ),
        _per_table("fresh_as_of"),
    ),
    (
        Metric("table_backfill_units", "gauge", "Units (PostgreSQL: pages) of the table's backfill.", ("table",)),
        _per_table("units"),
    ),
    (
        Metric("table_backfill_units_done", "gauge", "Units of the table's backfill that have been read.", ("table",)),
        _per_table("units_done"),
    ),
    (
        Metric("table_backfill_rows", "gauge", "Rows of the table's backfill that are in the log.", ("table",)),
        _per_table("rows"),
    ),
    (
        Metric("table_generation", "gauge", "The number of the table's backfill.", ("table",)),
        _per_table("generation"),
    ),
    # The merge, from the file that `cdcflow merge` writes into the log's folder.
    (Metric("merge_cut", "gauge", "The cut that the last merge published."), number_at("merge", "cut")),
    (
        Metric("merge_offset", "gauge", "The last offset that is in the tables of the published cut."),
        number_at("merge", "offset"),
    ),
    (
        Metric("merge_behind_rows", "gauge", "Rows that are durable in the log and not in the published cut."),
        number_at("merge", "behind_rows"),
    ),
    (
        Metric("merge_success_timestamp_seconds", "gauge", "When a merge last ended well, in seconds since 1970."),
        number_at("merge", "ended_at"),
    ),
    (Metric("merge_duration_seconds", "gauge", "How long the last merge took."), number_at("merge", "seconds")),
    (Metric("merge_rows", "gauge", "Rows of the log that the last merge read."), number_at("merge", "rows")),
    (
        Metric("merge_tables_left_out", "gauge", "Tables that the last merge excluded from the cut."),
        number_at("merge", "left_out"),
    ),
    (
        Metric("merge_warned_rows", "gauge", "Rows of the last merge that break a contract which only warns."),
        number_at("merge", "warned_rows"),
    ),
    (
        Metric("merge_quarantined_rows", "gauge", "Rows that the last merge kept out of their tables, in quarantine."),
        number_at("merge", "quarantined_rows"),
    ),
    (
        Metric("merge_failed", "gauge", "1 when the last merge failed or was postponed, 0 if not."),
        number_at("merge", "failed"),
    ),
    # The merge process of this daemon, where the settings have `merge.every`.
    (
        Metric(
            "merge_process_state",
            "gauge",
            "1 for what the daemon's merge process does; waiting: for a log to merge.",
            ("state",),
        ),
        _merge_state,
    ),
    (
        Metric("merge_process_failing", "gauge", "1 if merges have failed since the last good one, 0 if not."),
        _merge_failing,
    ),
    (
        Metric("merge_process_memory_bytes", "gauge", "Memory of the merge process and of all that it started."),
        number_at("merge", "process", "memory_bytes"),
    ),
    (
        Metric("merge_process_memory_limit_bytes", "gauge", "With more memory than this a merge process is ended."),
        number_at("merge", "process", "memory_bytes_max"),
    ),
    (
        Metric(
            "merge_process_ends_total",
            "counter",
            "Merge processes that ended too early. failed: with an error; killed: by a signal; memory: "
            "they had too much; silent: they sent nothing; stuck: a merge made no progress.",
            ("cause",),
        ),
        by_label("merge", "process", "ends"),
    ),
    # Consumers of the log, from their files in the log's folder.
    (
        Metric("consumer_offset", "gauge", "The last offset that the consumer has committed.", ("consumer",)),
        _per_consumer("offset"),
    ),
    (
        Metric(
            "consumer_behind_rows",
            "gauge",
            "Rows that are durable in the log and that the consumer has not committed, of all tables.",
            ("consumer",),
        ),
        _per_consumer("behind_rows"),
    ),
    # Targets, from the files of deliveries there, and from the delivery processes of this daemon.
    (
        Metric(
            "target_offset",
            "gauge",
            "The last offset up to which the target's tables were delivered, except those that have stopped.",
            ("target",),
        ),
        _per_target("offset"),
    ),
    (
        Metric(
            "target_behind_rows",
            "gauge",
            "Rows that are durable in the log and came after the last delivery to the target, of all tables.",
            ("target",),
        ),
        _per_target("behind_rows"),
    ),
    (
        Metric(
            "target_success_timestamp_seconds",
            "gauge",
            "When a delivery to the target last ended well, in seconds since 1970.",
            ("target",),
        ),
        _per_target("ended_at"),
    ),
    (
        Metric("target_tables_stopped", "gauge", "Tables that are not delivered until an operator helps.", ("target",)),
        _per_target("stopped_tables"),
    ),
    (
        Metric(
            "target_failing",
            "gauge",
            "1 if deliveries to the target have failed since the last good one, 0 if not.",
            ("target",),
        ),
        _per_target("is_failing"),
    ),
    (
        Metric(
            "target_process_memory_bytes",
            "gauge",
            "Memory of the target's delivery process and of all that it started.",
            ("target",),
        ),
        _per_target("process", "memory_bytes"),
    ),
    (
        Metric(
            "target_process_ends_total",
            "counter",
            "Delivery processes of the target that ended too early, by cause as for merge processes.",
            ("target", "cause"),
        ),
        _target_ends,
    ),
    (
        Metric(
            "notifications_total",
            "counter",
            "Notifications for the receiver. failed: it did not take one in several tries.",
            ("receiver", "outcome"),
        ),
        _notifications,
    ),
    (
        Metric("notifications_waiting", "gauge", "Notifications that are still to be sent.", ("receiver",)),
        _notifications_waiting,
    ),
    # What the settings' `tables` do to rows.
    (
        Metric(
            "transform_rows_total",
            "counter",
            "Changes and rows of backfills that the stage got (in), and that left it (out).",
            ("transform", "direction"),
        ),
        _transform_rows,
    ),
    (
        Metric("transform_seconds_total", "counter", "Time that the stage took.", ("transform",)),
        _per_transform("seconds"),
    ),
    (
        Metric(
            "transform_errors_total",
            "counter",
            "How often the stage could not be applied; the table fails then.",
            ("transform",),
        ),
        _per_transform("errors"),
    ),
    # Comparisons, from the file that `cdcflow verify` writes there.
    (
        Metric("tables_verified", "gauge", "Tables that were compared with their source and found equal."),
        _tables_verified,
    ),
    (
        Metric("tables_different", "gauge", "Tables in which the last comparison found rows that differ."),
        _tables_different,
    ),
    (
        Metric(
            "oldest_verified_timestamp_seconds",
            "gauge",
            "The oldest time at which a table was last found equal to its source; in seconds since 1970.",
        ),
        _oldest_verified,
    ),
    (
        Metric(
            "table_verified_timestamp_seconds",
            "gauge",
            "When the table was last found equal to its source, in seconds since 1970.",
            ("table",),
        ),
        _table_verified,
    ),
)

METRICS: tuple[Metric, ...] = tuple(metric for metric, _ in _FOUND)


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
        self._listed = _FOUND if listed is None else listed

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
