"""What the daemon does with its delivery processes, shown with small programs in their place, and what status shows."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.support.polling import wait_until

from cdcflow.config import Config, TargetSettings
from cdcflow.daemon import delivery_component, supervisor
from cdcflow.daemon.delivery_component import DeliveryComponent
from cdcflow.daemon.interfaces.findings import remarks
from cdcflow.daemon.interfaces.notices import Noticing
from cdcflow.daemon.running_components import RunningComponents
from cdcflow.daemon.status import targets_status
from cdcflow.errors import SinkUnavailable
from cdcflow.http.metrics import StatusCollector
from cdcflow.log.maintenance import state_files

PROGRAM = """
import json, sys, time
given = json.loads(sys.stdin.readline())
def send(**fields):
    print(json.dumps(fields), flush=True)
stopped = {"shop.a": {"reason": "no room for file 17", "remedy": "make room"}}
if given["target"] == "bad":
    send(failure={"kind": "ConfigurationError", "reason": "no such host", "remedy": "correct it"})
    sys.exit(78)
send(state="delivering", table="shop.a")
send(state="idle", delivered={"offset": 7, "rows": 2, "stopped": stopped})
send(state="idle", delivered={"offset": 8, "rows": 0, "stopped": {}})
for line in sys.stdin:
    pass
"""


class Targets:
    """The delivery component of a daemon, with a program in place of delivery processes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.events: list[tuple[str, Mapping[str, object]]] = []
        self.component = DeliveryComponent(lambda event, fields: self.events.append((event, fields)))
        self.components = RunningComponents([self.component])

    def use(self, **targets: object) -> None:
        self.components.use(self.config(**targets))

    def config(self, **targets: object) -> Config:
        source = {"kind": "postgres", "url": "postgresql://reader@127.0.0.1:1/none"}
        made = {name: TargetSettings.model_validate({"kind": "x", "every": every}) for name, every in targets.items()}
        return Config.model_validate({"source": source, "log": {"path": str(self.folder)}, "targets": made})

    def has_event(self, event: str, target: str) -> bool:
        return any(name == event and fields["target"] == target for name, fields in self.events)

    def pid(self, name: str) -> int:
        def found() -> Any:
            return self.component.status().get(name, {}).get("pid")

        return int(wait_until(found, f"a process for {name}", more=self.component.status))


@pytest.fixture
def targets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Targets]:
    monkeypatch.setattr(supervisor, "POLL_EVERY_S", 0.02)
    monkeypatch.setattr(delivery_component, "STOP_WITHIN_S", 0.5)
    monkeypatch.setattr(supervisor, "REPLACE_WITHIN_S", 0.5)
    monkeypatch.setattr(delivery_component, "COMMAND", (sys.executable, "-c", PROGRAM))
    made = Targets(tmp_path)
    yield made
    made.components.close()


def test_target_whose_settings_stay_is_not_interrupted(targets: Targets) -> None:
    """A reload that adds a target must not abandon a long delivery elsewhere."""
    targets.use(a="1s", b="1s")
    first, other = targets.pid("a"), targets.pid("b")
    wait_until(lambda: targets.has_event("table is delivered again", "b"), "both reports", more=lambda: targets.events)
    targets.use(a="1s", b="2s", c="3s")
    assert targets.pid("a") == first
    assert targets.pid("b") != other
    targets.pid("c")
    targets.use(a="1s", b=None)
    assert list(targets.component.status()) == ["a"]
    targets.use()
    assert targets.component.status() == {}
    assert targets.component.answer() == {"may_deliver": True, "delivers": []}


def test_settings_that_are_refused_leave_the_deliveries_alone(targets: Targets) -> None:
    """Another component may refuse them after this one has been prepared."""
    targets.use(a="1s")
    first = targets.pid("a")
    prepared = targets.component.prepare(targets.config(a="5s"))
    assert prepared is not None
    prepared.end(wait=True)
    assert targets.pid("a") == first
    assert not any(targets.component.status()["a"]["ends"].values())


def test_one_target_that_fails_has_its_own_restarts_and_events(targets: Targets) -> None:
    targets.use(good="1s", bad="1s")
    wait_until(lambda: targets.component.status()["bad"]["ends"]["failed"], "a failure")
    wait_until(lambda: targets.has_event("table is delivered again", "good"), "a delivery")
    status = targets.component.status()
    assert status["bad"]["failing"]["reason"] == "no such host"
    assert status["good"]["failing"] is None
    assert not any(status["good"]["ends"].values())
    assert targets.has_event("delivery failed", "bad")
    assert not targets.has_event("delivery failed", "good")
    (stop,) = [fields for event, fields in targets.events if event == "table not delivered"]
    assert stop == {"target": "good", "table": "shop.a", "reason": "no room for file 17", "remedy": "make room"}


def status_of(targets: Targets, processes: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    return {"targets": targets_status(targets.config(copy="1s"), 10, processes)}


def test_stops_are_in_findings_notices_and_metrics_until_they_are_over(targets: Targets) -> None:
    """Each says the reason and the remedy once; the numbers stay for alerts."""
    noticing = Noticing(300.0, 0.25, {})
    why = {"shop.a": {"reason": "no room", "remedy": "make room"}}
    write = partial(state_files.write_target, targets.folder, "copy", offset=7, seconds=0.1, rows=3)
    write(stopped=why, waiting=["shop.b"])
    status = status_of(targets, {})
    (found,) = remarks(status, {}, {})
    assert (found.text, found.remedy) == ("The target copy is not delivered: shop.a: no room.", "Make room.")
    (notice,) = noticing.of(status)
    assert (notice.event, notice.active, notice.fields["remedy"]) == ("target", True, "make room")
    assert noticing.of(status) == []
    samples = {s.name: s.value for family in StatusCollector(status).collect() for s in family.samples}
    assert samples["cdcflow_target_behind_rows"] == 3
    assert samples["cdcflow_target_tables_stopped"] == 1
    assert samples["cdcflow_target_failing"] == 0
    state_files.write_target_failure(targets.folder, "copy", SinkUnavailable("no answer", remedy="wait"))
    assert next(one.text for one in remarks(status_of(targets, {}), {}, {})) == (
        "The target copy is not delivered: no answer."
    )
    # The daemon's process has delivered since a command failed.
    write(stopped={}, waiting=[])
    status = status_of(targets, {"copy": {"failing": None, "ends": {"killed": 2}, "memory_bytes": 5}})
    assert [(n.event, n.active) for n in noticing.of(status)] == [("target", False)]
    assert remarks(status, {}, {}) == []
    ends = [s for f in StatusCollector(status).collect() for s in f.samples if "ends_total" in s.name]
    assert {tuple(s.labels.values()): s.value for s in ends} == {("copy", "killed"): 2.0}


def test_target_may_have_any_name(targets: Targets) -> None:
    """The settings choose it, and it becomes a file's name."""
    for name in ("../x", "a/b", ".", "", "Ünï", "a.json"):
        state_files.write_target(targets.folder, name, offset=1, seconds=0, rows=0, stopped={}, waiting=[])
        assert (state_files.of_target(targets.folder, name) or {})["offset"] == 1
    assert not (targets.folder.parent / "x.json").exists()
    assert len(list((targets.folder / "targets").iterdir())) == 6
