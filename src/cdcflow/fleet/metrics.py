"""The state of a fleet, as `cdcflow fleet` knows it, as Prometheus metrics. docs/fleet.md is tested against the
list."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from cdcflow.fleet.members import Outage
from cdcflow.fleet.pipelines import Pipeline, counts
from cdcflow.http.metrics import Listed, Metric
from cdcflow.http.status_samples import Sample, by_label, number_at

PIPELINES_MAX = 500
"""The number of pipelines above which the metrics of a fleet have no series for each pipeline."""
LEVELS = ("error", "warning", "note", "good")


def _per_pipeline(field: str) -> Any:  # Any: a function over a status, as `Listed` has them
    def samples(status: Mapping[str, Any]) -> Iterator[Sample]:
        for name, numbers in status["by_name"].items():
            if field in numbers:
                yield (name,), float(numbers[field])

    return samples


LISTED: Listed = (
    (Metric("fleet_pipelines", "gauge", "Pipelines of the fleet, by state.", ("state",)), by_label("states")),
    (
        Metric("fleet_levels", "gauge", "Pipelines of the fleet, by their worst finding.", ("level",)),
        by_label("levels"),
    ),
    (
        Metric("fleet_outages", "gauge", "Registers that cannot be read, and members that do not answer."),
        number_at("outages"),
    ),
    (
        Metric("fleet_pipeline_reports", "gauge", "1 if the pipeline's daemon reports, 0 if not.", ("pipeline",)),
        _per_pipeline("reports"),
    ),
    (
        Metric("fleet_pipeline_report_age_seconds", "gauge", "How long ago the pipeline reported.", ("pipeline",)),
        _per_pipeline("age"),
    ),
    (
        Metric("fleet_pipeline_errors", "gauge", "Errors among the pipeline's findings.", ("pipeline",)),
        _per_pipeline("errors"),
    ),
    (
        Metric("fleet_pipeline_lag_seconds", "gauge", "How far the pipeline's log lags its source.", ("pipeline",)),
        _per_pipeline("lag_seconds"),
    ),
    (
        Metric(
            "fleet_pipeline_budget_used",
            "gauge",
            "The share of the log that the source may keep for the pipeline.",
            ("pipeline",),
        ),
        _per_pipeline("budget_used"),
    ),
)


def status(found: Sequence[Pipeline], outages: Sequence[Outage]) -> dict[str, Any]:
    """Return the values from which the metrics are computed. Numbers of a silent pipeline are omitted."""
    levels = Counter(one.level for one in found)
    shown = found if len(found) <= PIPELINES_MAX else ()
    return {
        "states": counts(found),
        "levels": {level: levels[level] for level in LEVELS},
        "outages": len(outages),
        "by_name": {one.name: _numbers(one) for one in shown},
    }


def _numbers(one: Pipeline) -> dict[str, float]:
    reports = one.capture is not None and one.capture.reports
    found: dict[str, float] = {"reports": float(reports)}
    found["errors"] = sum(finding.level == "error" for finding in one.findings)
    main = one.capture or one.merge
    if main is not None and main.reported_at:
        found["age"] = max(0.0, round(time.time() - main.reported_at, 1))
    if reports:
        found |= {name: one.numbers[name] for name in ("lag_seconds", "budget_used") if name in one.numbers}
    return found
