"""`docker/prometheus/alerts.yaml` and `docker/grafana/cdcflow.json` against the existing metrics."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from cdcflow.http.metrics import METRICS
from cdcflow.http.status_samples import CAPTURE_STATES, CAUSES, FRESHNESS, MERGE_ENDS, MERGE_STATES, TABLE_STATES

ROOT = Path(__file__).parents[2]
ALERTS = ROOT / Path("docker/prometheus/alerts.yaml")
DASHBOARD = ROOT / Path("docker/grafana/cdcflow.json")
LABELS = {m.full_name: set(m.labels) | {"job", "instance"} for m in METRICS} | {
    name: {"job", "instance"} for name in ("up", "process_cpu_seconds_total", "process_resident_memory_bytes")
}
VALUES = {
    "state": {
        "cdcflow_state": set(CAPTURE_STATES),
        "cdcflow_tables": set(TABLE_STATES),
        "cdcflow_merge_process_state": set(MERGE_STATES),
    },
    "freshness": {"cdcflow_tables_freshness": set(FRESHNESS)},
    "cause": {"cdcflow_tables_not_proven": set(CAUSES), "cdcflow_merge_process_ends_total": set(MERGE_ENDS)},
}
_SELECTOR = re.compile(r"\b((?:cdcflow|process)_[a-z_]+|up)\b(?:\{([^}]*)\})?")
_MATCHER = re.compile(r'(\w+)\s*(=~|!~|!=|=)\s*"([^"]*)"')
COUNTED = {m.full_name for m in METRICS if m.kind == "counter"} | {"process_cpu_seconds_total"}


def rules() -> list[dict[str, Any]]:
    (group,) = yaml.safe_load(ALERTS.read_text(encoding="utf-8"))["groups"]
    found: list[dict[str, Any]] = group["rules"]
    return found


def dashboard() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    return found


def expressions() -> Iterator[tuple[str, str]]:
    """Every expression of both files, with where it is."""
    yield from ((rule["alert"], rule["expr"]) for rule in rules())
    for panel in dashboard()["panels"]:
        yield from ((panel["title"], target["expr"]) for target in panel["targets"])
    yield from ((a["name"], a["expr"]) for a in dashboard()["annotations"]["list"])
    yield from ((v["name"], v["query"]["query"]) for v in dashboard()["templating"]["list"] if v["type"] == "query")


@pytest.mark.parametrize(("place", "expression"), list(expressions()))
def test_every_expression_uses_existing_metrics_and_labels(place: str, expression: str) -> None:
    """A metric or a label value by another name gives no error anywhere: an alert that never fires, an empty plot."""
    selectors = _SELECTOR.findall(expression)
    assert selectors, place
    for name, matchers in selectors:
        assert name in LABELS, f"{place}: there is no metric {name}"
        for label, how, value in _MATCHER.findall(matchers):
            assert label in LABELS[name], f"{place}: {name} has no label {label}"
            known = VALUES.get(label, {}).get(name)
            if known is not None:
                assert set(value.split("|") if "~" in how else [value]) <= known, f"{place}: {label}={value}"
        if name in COUNTED:
            assert re.search(rf"(rate|increase)\({name}\b", expression), f"{place}: {name} only grows"


def test_every_alert_explains_what_is_wrong_and_where_to_read_more() -> None:
    """At night no operator searches for the page."""
    assert {rule["alert"] for rule in rules()} == {
        "CdcflowLagGrows",
        "CdcflowMergeFails",
        "CdcflowRetainedLogNearLimit",
        "CdcflowLogBudget",
        "CdcflowJournalPeerAway",
        "CdcflowQuorumLost",
        "CdcflowNoActiveDaemon",
        "CdcflowNoStandby",
        "CdcflowTablesInDoubt",
        "CdcflowStalled",
        "CdcflowTargetStopped",
        "CdcflowTargetBehind",
        "CdcflowHalted",
        "CdcflowTableFailed",
        "CdcflowFreshnessNotProven",
        "CdcflowShadowDifference",
        "CdcflowMergeBehind",
        "CdcflowConsumerStandsStill",
        "CdcflowReadingUnmeasured",
        "CdcflowDiskNearlyFull",
    }
    for rule in rules():
        assert rule["labels"]["severity"] in ("warning", "critical")
        # Which daemons of a pair are active is a matter of their job.
        place = "$labels.job" if rule["alert"] in ("CdcflowNoActiveDaemon", "CdcflowNoStandby") else "$labels.instance"
        assert place in rule["annotations"]["summary"]
        assert rule["annotations"]["runbook_url"] == f"docs/runbook/alerts.md#{rule['alert'].lower()}"


def test_every_panel_describes_what_it_shows() -> None:
    """And no panel overlaps another."""
    panels = dashboard()["panels"]
    assert len({p["id"] for p in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        assert panel["title"]
        assert panel["description"].endswith(".")
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken, panel["title"]
        taken |= cells
        assert max(x for x, _ in cells) < 24


def test_promtool_plays_every_alert() -> None:
    """Prometheus' own parser and evaluation; `make alerts` does the same where this finds no promtool."""
    promtool = shutil.which("promtool")
    if promtool is None:
        return
    done = subprocess.run(
        [promtool, "test", "rules", ALERTS.with_name("alerts.test.yaml")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
