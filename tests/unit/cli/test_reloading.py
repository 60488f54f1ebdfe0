"""A settings file that is read again: what applies at once, what waits for the capture, what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from cdcflow import wiring
from cdcflow.capture.interleave.progress import Progress
from cdcflow.capture.plan import plan
from cdcflow.capture.settings import CaptureSettings
from cdcflow.config import Config, FileLog, load
from cdcflow.config.changes import SettingChange, changes, settings_as_text
from cdcflow.daemon.reload import Reloading
from cdcflow.errors import ConfigurationError


class Stage:
    """A settings file with a log in a folder or in Kafka, and a capture that applies the changes that a test allows."""

    settings_number = 1

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.file = folder / "cdcflow.yaml"
        self.told: list[tuple[str, dict[str, Any]]] = []
        self.used: list[Config] = []
        self.given: list[tuple[CaptureSettings, bool]] = []
        monkeypatch.setattr(wiring, "plan_capture", self._planned)

    def begin(self, **sections: Any) -> None:
        self.write(**sections)
        capture: Any = self
        self.reloading = Reloading(self.file, load(self.file), capture, lambda e, f: self.told.append((e, dict(f))))
        self.reloading.use_components = self.used.append

    def write(self, **sections: Any) -> None:
        source = {"kind": "postgres", "url": "postgresql://cdc@db/shop", **sections.pop("source", {})}
        self.file.write_text(yaml.safe_dump({"source": source, "log": {"path": "log"}, **sections}))

    def _planned(self, config: Config, in_use: Any) -> Any:
        return plan(None, Progress({}), changes(in_use, settings_as_text(config)), is_running=True)

    def reload(self, settings: CaptureSettings, *, in_place: bool) -> int:
        self.given.append((settings, in_place))
        return 1 + len(self.given)

    def left(self) -> list[str]:
        """The settings of the file that are not in use."""
        in_use: Any = self.reloading.answer()["settings"]
        return [change.name for change in changes(in_use, settings_as_text(load(self.file)))]


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stage:
    return Stage(tmp_path, monkeypatch)


def test_components_keep_new_settings_when_the_capture_returns_to_its_old_ones(stage: Stage) -> None:
    """The server has moved when the capture returns to the previous source; the plan lists what is left to do."""
    stage.begin()
    stage.write(source={"heartbeat": "3s"}, service={"listen": "127.0.0.1:1"})
    stage.reloading.reload()
    (used,) = stage.used
    assert (used.service.listen, used.database.heartbeat) == ("127.0.0.1:1", 10.0)
    assert [in_place for _, in_place in stage.given] == [False]
    assert stage.left() == ["source.heartbeat"], "the capture has not applied it, and perhaps it never does"
    assert stage.reloading.in_use.service.listen == "127.0.0.1:1"
    stage.settings_number = 2
    assert stage.left() == []


def test_what_depends_on_the_source_follows_once_the_capture_has_it(stage: Stage) -> None:
    """The control table of the old server was still read after the capture had moved to another server."""
    stage.begin()
    stage.write(source={"url": "postgresql://cdc@other/shop"})
    stage.reloading.reload()
    assert wiring.addresses(stage.used[-1])["source"] == "host db, port 5432, user cdc, database shop"
    stage.settings_number = 2
    stage.reloading._follow()
    assert wiring.addresses(stage.used[-1])["source"] == "host other, port 5432, user cdc, database shop"


@pytest.mark.parametrize("log", [{"index": False}, {"retention": {"age": "7d"}}], ids=["index", "retention"])
def test_a_setting_of_log_maintenance_applies_at_once(stage: Stage, log: dict[str, Any]) -> None:
    """The capture does not use it, so nothing reports later that the capture has it: the daemon continued to index."""
    stage.begin()
    stage.write(log={"path": "log", **log})
    stage.reloading.reload()
    (used,) = stage.used
    assert isinstance(used.log, FileLog)
    assert (used.log.index, used.log.retention is not None) == ("index" not in log, "retention" in log)
    assert [in_place for _, in_place in stage.given] == [True]


def test_component_that_cannot_run_refuses_the_whole_file(stage: Stage) -> None:
    """The capture gets none of it."""
    stage.begin()
    stage.write(source={"heartbeat": "3s"}, service={"listen": "127.0.0.1:1"})

    def refuse(config: Config) -> None:
        raise ConfigurationError("cannot be had", remedy="choose another port")

    stage.reloading.use_components = refuse
    with pytest.raises(ConfigurationError, match="cannot be had"):
        stage.reloading.reload()
    assert (stage.given, stage.left()) == ([], ["service.listen", "source.heartbeat"])
    stage.reloading._reload_and_tell()
    (told,) = stage.told
    assert (told[0], told[1]["remedy"]) == ("settings not taken up", "choose another port")


def test_setting_that_waits_for_a_restart_is_reported_with_the_way_to_it(stage: Stage) -> None:
    """SIGHUP has no caller to answer; the daemon keeps the folder in use, also for anything that it reopens."""
    kafka = {"brokers": "k:9092", "topic": "shop"}
    stage.begin(log={"kafka": kafka})
    work = stage.reloading.in_use.log.folder
    stage.write(log={"kafka": {**kafka, "work": "elsewhere", "message_bytes": "1MB"}})
    stage.reloading._reload_and_tell()
    stage.settings_number = 2
    assert stage.left() == ["log.kafka.work"]
    assert stage.reloading.in_use.log.folder == work
    (told,) = stage.told
    assert (told[0], told[1]["waiting"]) == ("settings read", "log.kafka.work")
    assert told[1]["remedy"].startswith("set log.kafka.work back, run `cdcflow ctl stop`")


def test_plan_explains_why_something_waits() -> None:
    """One sentence, and what to do."""
    change = SettingChange("log.kafka.work", "a", "b", "restart", "commands look there", "stop it")
    (warning,) = plan(None, Progress({}), [change], is_running=True).warnings
    assert warning == "log.kafka.work: in effect only when the daemon is started again (commands look there); stop it"
