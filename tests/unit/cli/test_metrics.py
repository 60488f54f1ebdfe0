"""The metrics page: how Prometheus parses it, its names, and how many series it has."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any, get_args

import pytest
from prometheus_client.parser import text_string_to_metric_families

from cdcflow.http.metrics import METRICS, exposition
from cdcflow.http.status_samples import TABLES_MAX

PAGE = Path(__file__).parents[3] / "docs/metrics.md"
UNITS = ("_seconds", "_bytes", "_ratio", "_info", "_total")
NOT_BASE = re.compile(r"(_ms|_millis\w*|_minutes|_hours|_days|_kb|_mb|_kib|_mib|_percent)(_|$)")


def table(number: int) -> dict[str, Any]:
    return {
        "state": "reading" if number % 2 else "done",
        "units": 10,
        "units_done": number % 10,
        "rows": number,
        "generation": 1,
        "freshness": "quiet" if number else "not proven",
        "freshness_cause": None if number else "uncovered",
        "fresh_as_of": 1_700_000_000.0 + number,
    }


def whole_status(tables: int = 3) -> dict[str, Any]:
    """A status with every value that a metric uses."""
    return {
        "state": "capturing",
        "source_kind": "postgres",
        "started_at": 1_700_000_000.0,
        "source_up": True,
        "lease": {"role": "active", "changes": 1, "holder": "db-1 (process 4711)"},
        "epoch": 3,
        "cut": 7,
        "durable_offset": 1234,
        "rows_per_second": 12.5,
        "held_rows": 0,
        "held_bytes": 0,
        "lag_bytes": 99,
        "lag_seconds": 1.5,
        "retained_bytes": 1 << 20,
        "heartbeat_age_seconds": 1.0,
        "heartbeat_age_seconds_max": 40.0,
        "upload_waiting_segments": 0,
        "upload_waiting_bytes": 0,
        "source": {
            "safe_wal_bytes": "123456",
            "catalog_xmin_age": "12",
            "files_until_lost": "3",
            "slot": "cdcflow_1",
            "stopped_tables": "1",
        },
        "peers_following": {"db1:7000": 1},
        "peers_needed": 2,
        "peers_lag_bytes": {"db1:7000": 0},
        "reading": {"state": "slowed", "share": 0.25, "unmeasured": 0, "until": None, "reasons": []},
        "log_budget": {
            "budget_bytes": 1 << 34,
            "budget_age_seconds": 86_400,
            "used": 0.5,
            "released_at": 1_700_000_100.0,
        },
        "disk": {"free_bytes": 1 << 30, "size_bytes": 1 << 40},
        "consumers": {"search": {"state": "changes", "offset": 90, "behind_rows": 10}},
        "targets": {
            "copy": {
                "offset": 1200,
                "behind_rows": 34,
                "ended_at": 1_700_000_600.0,
                "stopped_tables": 0,
                "is_failing": False,
                "process": {"memory_bytes": 1 << 26, "ends": {"killed": 1}},
            }
        },
        "notifications": {"webhook 1": {"sent": 5, "failed": 1, "waiting": 0}},
        "transforms": {"row_rules": {"rows_in": 9, "rows_out": 4, "seconds": 0.25, "errors": 1}},
        "merge": {
            "cut": 6,
            "offset": 1200,
            "behind_rows": 34,
            "ended_at": 1_700_000_500.0,
            "seconds": 2.5,
            "rows": 100,
            "left_out": 0,
            "warned_rows": 0,
            "quarantined_rows": 0,
            "failed": False,
            "process": {
                "state": "idle",
                "memory_bytes": 1 << 27,
                "memory_bytes_max": 1 << 31,
                "failing": None,
                "ends": {"failed": 1, "killed": 0, "memory": 2, "silent": 0, "stuck": 0},
            },
        },
        "verified": {
            "public.t0": {"log": {"at": 1_700_000_900.0}, "tables": {"at": 1_700_000_800.0}},
            "public.t1": {"tables": {"different_at": 1_700_000_900.0, "different": 3}},
        },
        "counts": {
            "rows_captured": 1000,
            "rows_read": 234,
            "bytes_appended": 4096,
            "cuts": 7,
            "syncs": 9,
            "shadow_checks": 20,
            "shadow_differences": 1,
            "shadow_moved_on": 4,
            "shadow_events": 6,
            "attempts": 2,
            "retries": {"SourceUnavailable": 1},
            "errors": {"SourceUnavailable": 1, "ChunkFailed": 2},
            "events": {"window closed": 4},
        },
        "tables": {f"public.t{number}": table(number) for number in range(tables)},
    }


def samples(status: dict[str, Any]) -> dict[str, float]:
    """The page's samples keyed by metric and labels, as Prometheus' own parser reads them."""
    found = {}
    for family in text_string_to_metric_families(exposition(status)):
        for sample in family.samples:
            labels = ",".join(f"{k}={v}" for k, v in sorted(sample.labels.items()))
            found[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
    return found


def test_every_metric_of_the_list_is_on_the_page_and_no_other() -> None:
    """The docs, the alerts and the dashboard rely on this list."""
    families = {f.name: f for f in text_string_to_metric_families(exposition(whole_status()))}
    ours = {name: f for name, f in families.items() if name.startswith("cdcflow_")}
    assert set(ours) == {m.full_name.removesuffix("_total") for m in METRICS}
    for metric in METRICS:
        family = ours[metric.full_name.removesuffix("_total")]
        assert (family.type, family.documentation) == (metric.kind, metric.text)
        assert {tuple(sorted(s.labels)) for s in family.samples} == {tuple(sorted(metric.labels))}, metric.name


@pytest.mark.parametrize("metric", METRICS, ids=lambda m: m.name)
def test_names_keep_to_the_conventions(metric: Any) -> None:
    """Base units last, `_total` on counters and nowhere else, and a help text that is a sentence."""
    assert re.fullmatch(r"[a-z][a-z0-9_]*", metric.name)
    assert metric.name.endswith("_total") == (metric.kind == "counter")
    assert NOT_BASE.search(metric.name) is None
    unit = next((u for u in UNITS if f"{u}_" in metric.name.removesuffix("_total")), None)
    assert unit is None, f"{unit} must be last in {metric.name}"
    assert re.fullmatch(r"[A-Z0-9].*\.", metric.text)
    assert not set(metric.labels) & {"le", "quantile", "job", "instance"}


def test_promtool_finds_nothing_to_fix() -> None:
    """Prometheus has a linter for the page; where it is installed, it decides."""
    promtool = shutil.which("promtool")
    if promtool is None:
        return
    done = subprocess.run(
        [promtool, "check", "metrics"], input=exposition(whole_status()), text=True, capture_output=True
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_values_are_those_of_the_status() -> None:
    """One of each way in which a value is found."""
    found = samples(whole_status())
    assert found["cdcflow_durable_offset"] == 1234
    assert found["cdcflow_rows_captured_total"] == 1000
    assert found["cdcflow_errors_total{kind=ChunkFailed}"] == 2
    assert found["cdcflow_source_safe_bytes"] == 123456, "a source reports it as text"
    assert found["cdcflow_state{state=capturing}"] == 1
    assert found["cdcflow_state{state=halted}"] == 0
    assert found["cdcflow_tables{state=reading}"] == 1
    assert found["cdcflow_tables_freshness{freshness=not proven}"] == 1
    assert found["cdcflow_oldest_fresh_timestamp_seconds"] == 1_700_000_000
    assert found["cdcflow_backfill_progress_ratio"] == 0.1
    assert found["cdcflow_merge_behind_rows"] == 34
    assert found["cdcflow_table_freshness{freshness=quiet,table=public.t1}"] == 1
    assert (found["cdcflow_tables_verified"], found["cdcflow_tables_different"]) == (1, 1)
    assert found["cdcflow_oldest_verified_timestamp_seconds"] == 1_700_000_800
    assert found["cdcflow_table_verified_timestamp_seconds{table=public.t0}"] == 1_700_000_800
    assert "cdcflow_table_verified_timestamp_seconds{table=public.t1}" not in found, "it never was"


@pytest.mark.parametrize(
    ("tables", "setting", "are_there"),
    [
        (TABLES_MAX, "auto", True),
        (TABLES_MAX + 1, "auto", False),
        (1000, "auto", False),
        (1000, "always", True),
        (2, "never", False),
    ],
)
def test_a_thousand_tables_are_not_a_thousand_series_unless_asked(tables: int, setting: str, are_there: bool) -> None:
    """Each series costs memory in every Prometheus that scrapes it. What counts stays: how many, and the worst."""
    found = samples({**whole_status(tables), "metrics_per_table": setting})
    of_tables = [name for name in found if "table=" in name]
    assert bool(of_tables) == are_there
    assert len(found) - len(of_tables) < 120
    assert sum(v for k, v in found.items() if k.startswith("cdcflow_tables{")) == tables
    assert found["cdcflow_oldest_fresh_timestamp_seconds"] == 1_700_000_000


def test_the_pipeline_and_the_metrics_know_the_same_words() -> None:
    """A cause or a state that only one of the two lists contains would be counted nowhere."""
    from cdcflow.capture import freshness
    from cdcflow.capture.interleave.progress import State
    from cdcflow.http import status_samples

    assert status_samples.CAUSES == freshness.CAUSES
    assert set(status_samples.TABLE_STATES) == set(get_args(State))


def test_no_value_of_a_row_and_no_reason_is_a_label() -> None:
    """Reasons are texts without a bound, and may name what they should not."""
    status = whole_status()
    status["tables"]["public.t0"] |= {"freshness_reason": "canary-text", "reason": "canary-text"}
    assert "canary-text" not in exposition({**status, "reason": "canary-text", "source_error": "canary-text"})


def test_the_page_lists_every_metric() -> None:
    """docs/metrics.md contains this list: `python -m tests.unit.cli.test_metrics` prints the table again."""
    assert listed() in PAGE.read_text(encoding="utf-8")


def listed() -> str:
    """The metrics as the table of docs/metrics.md."""
    rows = (f"| `{m.full_name}` | {m.kind} | {', '.join(m.labels)} | {m.text} |" for m in METRICS)
    return "\n".join(["| metric | kind | labels | meaning |", "| --- | --- | --- | --- |", *rows]) + "\n"


if __name__ == "__main__":
    print(listed(), end="")
