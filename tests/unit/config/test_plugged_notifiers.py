"""Receivers of notifications that other packages bring: their settings, what doctor finds, and what they get."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.support.daemon.notified import notifying
from tests.support.plugins import install, install_notifier_of_the_page, on_path
from tests.support.settings_files import complaint, write_settings

from cdcflow import wiring
from cdcflow.config import Config, Notify, load
from cdcflow.config.changes import changes, settings_as_text
from cdcflow.config.plugins import NOTIFIERS
from cdcflow.config.redaction import redact

WAIT_S = 30.0
CANARY = "c4n4ry-s3cret"
PAGER = """
import json
from pathlib import Path
from cdcflow.errors import SinkUnavailable
from cdcflow.ports import Finding, NotifierPlugin, NotifierSettings, SecretReference, Settings, secret

class Team(Settings):
    name: str
    key: SecretReference = None

class PagerSettings(NotifierSettings):
    file: Path
    urgency: int = 3
    team: Team = Team(name="night")

def send(settings, notice):
    if settings.urgency == 0:
        raise SinkUnavailable("the pager is off")
    if settings.urgency == 1:
        raise ValueError(secret(settings.team.key))
    with settings.file.open("a") as file:
        file.write(json.dumps({**notice, "key": secret(settings.team.key)}) + "\\n")

def doctor(settings):
    if settings.urgency == 1:
        raise ValueError(secret(settings.team.key))
    if settings.urgency > 9:
        yield Finding("error", "the pager", "no urgency is above 9", "set urgency to 9")

plugin = NotifierPlugin(
    ports=1, settings=PagerSettings, send=send, address=lambda settings: f"pager of {settings.team.name}", doctor=doctor
)
"""
HEAD = "source: {kind: postgres, url: 'postgresql://cdc@127.0.0.1:1/shop'}\nlog: {path: shop-log}\n"
WHOLE = f"{HEAD}service:\n  notify:\n  - on: [lag]\n    webhook: https://h/x\n  - kind: pager\n    on: [lag]\n"
FILE = "    file: said\n"


@contextmanager
def pager(folder: Path, code: str = PAGER) -> Iterator[None]:
    """A plug-in with the kind `pager` is installed."""
    kinds = {"pager": "cdcflow_pager:plugin"}
    with on_path(install(folder / "packages", "cdcflow-pager", kinds, code, NOTIFIERS)):
        yield


def with_key(folder: Path, **team: str) -> Config:
    """Settings with a pager whose key is in a file next to them."""
    (folder / "key").write_text(CANARY)
    (folder / "key").chmod(0o600)
    given = json.dumps({"name": "night", "key": "${file:key}", **team})
    return load(write_settings(folder, f"{WHOLE}{FILE}    team: {given}\n"))


def test_receiver_of_a_plug_in_has_the_plug_in_s_settings(tmp_path: Path) -> None:
    """Next to one of cdcflow's own. Paths and references begin at the settings file, and the plan shows each setting,
    but no secret."""
    with pager(tmp_path):
        config = with_key(tmp_path)
        own, plugged = config.service.notify
        assert isinstance(own, Notify)
        text = settings_as_text(config)
        assert text["service.notify.2.kind"] == "pager"
        assert text["service.notify.2.file"] == str(tmp_path / "said")
        assert text["service.notify.2.team.key"] == f"${{file:{tmp_path}/key}}"
        assert redact(config)["service"]["notify"][1]["urgency"] == 3
        (change,) = changes(text, {**text, "service.notify.2.urgency": "4"})
        assert change.taken == "running"
        assert (plugged.kind, plugged.lag_over) == ("pager", 300.0)


@pytest.mark.parametrize(
    ("wrong", "expected"),
    [
        ("    fiel: said\n", "cdcflow.yaml:9:5: unknown setting service.notify[1].fiel; did you mean service.notify[1]"
         ".file?"),
        (FILE + "    urgency: high\n", "cdcflow.yaml:10:5: service.notify[1].urgency must be a valid integer"),
        (FILE + "    team: {name: x, kee: y}\n", "did you mean service.notify[1].team.key?"),
        (FILE + "    team: {name: x, key: y}\n", "service.notify[1].team.key must be a reference, not the secret"),
        (FILE + "    webhook: https://h/x\n", "unknown setting service.notify[1].webhook"),
        ("", "cdcflow.yaml:7:5: service.notify[1].file is missing"),
    ],
)  # fmt: skip
def test_mistake_in_a_plugged_receiver_has_its_line_and_the_nearest_name(
    tmp_path: Path, wrong: str, expected: str
) -> None:
    """As in cdcflow's own settings."""
    with pager(tmp_path):
        assert expected in complaint(tmp_path, WHOLE + wrong)


@pytest.mark.parametrize(
    ("code", "kind", "expected"),
    [
        (PAGER, "pagr", "service.notify[1].kind must be 'pager'; did you mean pager? Another kind needs its package"),
        ("raise SystemExit(3)", "pager", "cannot be imported: cdcflow-pager (cdcflow_pager:plugin) raised SystemExi"),
        ("plugin = 5", "pager", "cdcflow_pager:plugin of cdcflow-pager is not a cdcflow.ports.NotifierPlugin; install"),
        (PAGER.replace("ports=1", "ports=2"), "pager", "for version 2 of cdcflow.ports (cdcflow-pager), and this cdcf"),
        (PAGER.replace("ports=1", "ports=0"), "pager", "sion 1: run pip install --upgrade cdcflow-pager"),
        (PAGER.replace("=PagerSettings", "=Team"), "pager", "settings are not a cdcflow.ports.NotifierSettings (cdcfl"),
    ],
)  # fmt: skip
def test_plugged_receiver_that_cannot_be_used_is_named_with_what_helps(
    tmp_path: Path, code: str, kind: str, expected: str
) -> None:
    """And settings without it do not notice it."""
    with pager(tmp_path, code):
        found = complaint(tmp_path, WHOLE.replace("kind: pager", f"kind: {kind}"))
        assert found.startswith("cdcflow.yaml:7:5: service.notify[1].kind ")
        assert expected in found
        assert load(write_settings(tmp_path, HEAD)).service.notify == ()


def test_kind_without_any_package_is_named(tmp_path: Path) -> None:
    """The remedy is one that works: install a package, or use an installed kind."""
    found = complaint(tmp_path, WHOLE)
    assert "service.notify[1].kind is not installed, and no package brings another kind: it needs its package" in found


def deliveries(config: Config) -> list[tuple[str, Mapping[str, object]]]:
    """The events of a daemon that notifies the plugged receiver once, of a lag."""
    told: list[tuple[str, Mapping[str, object]]] = []
    given_up = threading.Event()

    def tell(event: str, fields: Mapping[str, object]) -> None:
        told.append((event, fields))
        given_up.set()

    late = {"state": "capturing", "lag_seconds": 400.0, "tables": {}}
    with notifying(config.service.notify[1:], lambda: late, tell, look_every_s=0.01, pauses_s=(0.01,)):
        receiver: object = config.service.notify[1]
        file: Path = receiver.file  # type: ignore[attr-defined]  # the plug-in's own setting
        for _ in range(int(WAIT_S / 0.01)):
            if given_up.wait(0.01) or (file.exists() and file.read_text().endswith("\n")):
                break
    return told


def test_plugged_receiver_gets_what_a_webhook_gets(tmp_path: Path) -> None:
    """With its secret resolved at each use."""
    with pager(tmp_path):
        assert deliveries(with_key(tmp_path)) == []
    (said,) = map(json.loads, (tmp_path / "said").read_text().splitlines())
    assert (said["event"], said["active"], said["lag_seconds"], said["key"]) == ("lag", True, 400.0, CANARY)


def test_receiver_of_the_page_works(tmp_path: Path) -> None:
    """docs/notifications.md is copied before it is read."""
    with on_path(install_notifier_of_the_page(tmp_path / "packages")):
        assert deliveries(load(write_settings(tmp_path, WHOLE + FILE))) == []
    assert [json.loads(line)["event"] for line in (tmp_path / "said").read_text().splitlines()] == ["lag"]


@pytest.mark.parametrize(("urgency", "reason"), [("0", "the pager is off"), ("1", "ValueError")])
def test_failure_of_a_plugged_receiver_is_an_event_without_its_secret(
    tmp_path: Path, urgency: str, reason: str
) -> None:
    """The text of an error that is not cdcflow's may hold anything."""
    with pager(tmp_path):
        config = with_key(tmp_path)
        again = load(write_settings(tmp_path, (tmp_path / "cdcflow.yaml").read_text() + f"    urgency: {urgency}\n"))
        told = deliveries(again)
        assert config != again
    assert told == [("notification given up", {"to": "pager 1", "about": "lag", "reason": reason})]


@pytest.mark.parametrize(
    ("urgency", "key", "level", "expected"),
    [
        ("3", CANARY, "ok", "service.notify[1]: pager of night: its settings can be used"),
        ("10", CANARY, "error", "the pager: no urgency is above 9"),
        ("1", CANARY, "error", "service.notify[1]: the check of kind pager raised ValueError"),
        ("3", None, "error", "service.notify[1]: the settings take a secret from"),
    ],
)
def test_doctor_checks_plugged_receivers(
    tmp_path: Path, urgency: str, key: str | None, level: str, expected: str
) -> None:
    """Before the night in which it matters. Nothing is sent."""
    with pager(tmp_path):
        with_key(tmp_path)
        if key is None:
            (tmp_path / "key").unlink()
        config = load(write_settings(tmp_path, (tmp_path / "cdcflow.yaml").read_text() + f"    urgency: {urgency}\n"))
        found = [f for f in wiring.doctor(config) if f.subject in ("service.notify[1]", "the pager")]
    assert [f.level for f in found] == [level]
    assert f"{found[0].subject}: {found[0].text}".startswith(expected)
    assert CANARY not in repr(found)
    assert not (tmp_path / "said").exists()
