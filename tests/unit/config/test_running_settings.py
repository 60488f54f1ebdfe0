"""Settings of a backfill that apply while it runs have one owner: the machine that requests the chunks."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.support.capture.small_source import ORDERS

import cdcflow
from cdcflow.capture.interleave.limits import Limits
from cdcflow.capture.interleave.machine import Interleave
from cdcflow.config import Config
from cdcflow.config.changes import RULES, rule_for
from cdcflow.model.position import Checkpoint, Epoch
from cdcflow.wiring.captures import capture_settings, limits

APPLIED = {
    "source.backfill": (
        "integration/daemon/test_running_backfill.py::test_each_setting_of_a_backfill_applies_while_the_daemon_runs",
        "integration/mysql_daemon/test_running_backfill.py::"
        "test_each_setting_of_a_backfill_applies_while_the_daemon_runs",
    ),
    "reading": (
        "integration/daemon/test_governed_backfill.py::test_limits_hold_a_backfill_until_it_resumes_by_itself",
        "integration/mysql_daemon/test_governed_backfill.py::test_limits_hold_a_backfill_until_it_resumes_by_itself",
    ),
    "source": (
        "integration/daemon/test_changed_settings.py::test_table_is_excluded_and_included_again_while_running",
        "integration/mysql_daemon/test_changed_settings.py::test_table_is_excluded_and_included_again_while_running",
    ),
    "tables": (
        "integration/privacy/test_running_daemon.py::test_policy_that_changes_while_running_reads_the_table_again",
    ),
    "log.retention": (
        "integration/cli/test_settings_beside_the_capture.py::"
        "test_retention_notifications_checks_and_opentelemetry_traces_begin_while_running",
    ),
    "log.kafka": ("integration/kafka/test_commands.py::test_settings_of_a_log_in_kafka_apply_while_the_capture_runs",),
    "merge.every": (
        "integration/daemon/test_merge_process.py::"
        "test_merge_that_fails_each_time_is_reported_and_its_settings_can_be_changed",
    ),
    **dict.fromkeys(
        ("merge.memory_max", "merge.progress_timeout"),
        (
            "integration/daemon/test_merge_process.py::"
            "test_merge_process_with_too_much_memory_is_ended_until_the_settings_allow_more",
        ),
    ),
    "targets": (
        "integration/daemon/test_delivery_process.py::"
        "test_each_target_has_a_process_that_delivers_what_the_daemon_captures",
    ),
    "publish": (
        "integration/publish/test_settings_while_running.py::"
        "test_publishing_begins_moves_is_refused_and_ends_while_the_daemon_runs",
    ),
    "service.traces": (
        "integration/cli/test_settings_beside_the_capture.py::"
        "test_retention_notifications_checks_and_opentelemetry_traces_begin_while_running",
    ),
    "service": (
        "integration/cli/test_settings_beside_the_capture.py::"
        "test_http_is_opened_moved_refused_and_closed_while_running",
        "integration/cli/test_settings_beside_the_capture.py::test_log_and_service_settings_apply_while_running",
    ),
    "log.compact": (
        "integration/cli/test_settings_beside_the_capture.py::test_small_segments_are_joined_once_the_settings_allow_it",
    ),
    **dict.fromkeys(
        ("log.index", "log.seal", "log.objects"),
        ("integration/cli/test_settings_beside_the_capture.py::test_log_and_service_settings_apply_while_running",),
    ),
}
"""The tests that change settings of a running daemon and observe the effect, by rule."""
PREFIX = "source.backfill."
READING = tuple(f"source.backfill.{name}" for name in ("hours", "per_day", "limits"))
"""The governor's, not the machine's."""
OF_MACHINE = [r.name for r in RULES if r.taken == "running" and r.name.startswith(PREFIX) and r.name not in READING]
RUNNING = [name.removeprefix(PREFIX) for name in OF_MACHINE]
TESTS = Path(__file__).parents[2]
SOURCES = Path(cdcflow.__file__).parent / "sources"
DIALECTS = {
    "postgres": "postgresql://localhost/shop",
    "mysql": "mysql://localhost",
    "mariadb": "mysql://localhost",
}


def config(kind: str, **backfill: Any) -> Config:
    tables = ["public.orders" if kind == "postgres" else "shop.orders"]
    source = {"kind": kind, "url": DIALECTS[kind], "tables": tables, "backfill": backfill}
    return Config.model_validate({"source": source, "log": {"path": "log"}})


def test_no_dialect_reads_a_setting_that_changes_while_it_runs() -> None:
    """A copy taken at the start is not the setting in use: a lowered limit did not reach a running capture once."""
    assert len(RUNNING) >= 6
    found = [
        f"{path.relative_to(SOURCES)}:{node.lineno} {node.attr}"
        for path in SOURCES.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and node.attr in RUNNING
    ]
    assert found == []


def _shared(rule: str) -> str:
    """The entry of `APPLIED` for a rule."""
    if rule in READING:
        return "reading"
    return "source.backfill" if rule.startswith(PREFIX) else rule


def test_each_rule_is_tested_on_a_running_daemon() -> None:
    """A rule promises that no restart is needed; one of them was wrong, and only a running daemon could show it."""
    rules = {rule.name for rule in RULES if rule.taken in ("running", "next cut")}
    assert {_shared(name) for name in rules} == APPLIED.keys()
    for tests in APPLIED.values():
        for path, _, test in (name.partition("::") for name in tests):
            assert f"def {test}(" in (TESTS / path).read_text(), f"{path} has no {test}"


@pytest.mark.parametrize("kind", DIALECTS)
@pytest.mark.parametrize("name", RUNNING)
def test_each_setting_of_a_running_backfill_reaches_the_machine(kind: str, name: str) -> None:
    """The file says 7, the machine of the running attempt works with 7: of every dialect, for every such setting."""
    assert rule_for(PREFIX + name).taken == "running"
    before, now = (limits(config(kind, **given), backfill_new=True) for given in ({}, {name: changed(name)}))
    machine = Interleave(
        epoch=Epoch(1),
        checkpoint=Checkpoint(),
        tables={ORDERS.id: ORDERS},
        limits=before,
        delivered=np.empty(0, np.uint64),
        partial={},
    )
    machine.use(now)
    assert now != before
    assert in_use(machine) == [now]


@pytest.mark.parametrize("kind", DIALECTS)
def test_each_limit_of_reading_reaches_the_governor(kind: str) -> None:
    """The governor of a running capture works with the limits that the file has now."""
    limits: dict[str, Any] = {"lock_waits": 7}
    given = {"hours": "22:00-06:00 UTC", "per_day": {"rows": 7, "bytes": 8, "time": 9}, "limits": limits}
    settings = capture_settings(config(kind, **given))
    assert settings.reading.load.lock_waits == 7
    assert settings.reading.hours is not None
    day = settings.reading.day
    assert (day.rows, day.bytes, day.seconds) == (7, 8, 9)
    assert settings.open_probe is not None


def changed(name: str) -> int:
    return 7 if name.endswith("_ms") else 7_000_000


def in_use(machine: Interleave) -> list[Limits]:
    """Every `Limits` that the machine or a part of it keeps."""
    parts: list[Any] = [machine, *vars(machine).values()]
    kept = [value for part in parts if hasattr(part, "__dict__") for value in vars(part).values()]
    return [value for value in kept if isinstance(value, Limits)]
