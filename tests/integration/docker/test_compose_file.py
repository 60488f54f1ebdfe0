"""`docker/compose.yaml`, parsed by the library that Docker Compose is built on: what it promises its users."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml
from tests.support.docker.compose_files import COMPOSE, Model, built_image, conditions, one_shot, understood

SECRET = re.compile(r"PASSWORD|SECRET|KEY|TOKEN|CREDENTIAL", re.IGNORECASE)


@pytest.fixture(scope="module")
def project() -> Model:
    found: Model = understood(COMPOSE)
    return found


@pytest.fixture(scope="module")
def services(project: Model) -> Mapping[str, Model]:
    found: Mapping[str, Model] = project["services"]
    return found


@pytest.mark.parametrize(
    ("right", "wrong", "complaint"),
    [
        ("read_only: true", "readonly: true", "readonly"),
        ("{prepare: {condition: service_completed_successfully}}", "{nobody: {condition: service_started}}", "nobody"),
        ("{prepare: {condition: service_completed_successfully}}", "{prepare: {condition: service_done}}", "condition"),
        ("networks: [inside, outside]", "networks: [inside, elsewhere]", "elsewhere"),
        ("- objects:/objects", "- objets:/objects", "objets"),
        ("spark-master: {condition: service_healthy}", "merge-mysql: {condition: service_healthy}", "cycle"),
        ("interval: 5s", "interval: soon", "soon"),
    ],
)
def test_mistake_in_the_file_is_refused(tmp_path: Path, right: str, wrong: str, complaint: str) -> None:
    """A check that passes everything would let a stack that does not start reach users."""
    text = COMPOSE.read_text()
    assert right in text
    planted = tmp_path / "compose.yaml"
    planted.write_text(text.replace(right, wrong))
    with pytest.raises(ValueError, match=complaint):
        understood(planted)


def test_every_service_is_confined(services: Mapping[str, Model]) -> None:
    """A dev stack runs on users' own machines: no writable root file system, no capabilities, no privilege
    escalation.
    """
    for name, service in services.items():
        assert service["read_only"] is True, name
        assert service["cap_drop"] == ["ALL"], name
        assert "cap_add" not in service, name
        assert "no-new-privileges:true" in service["security_opt"], name
        assert not service.get("privileged"), name
        assert int(service["pids_limit"]) > 0, name
        assert {key for key in service if key in ("pid", "ipc", "network_mode", "devices", "userns_mode")} == set(), (
            name
        )


def test_no_service_runs_as_root(services: Mapping[str, Model]) -> None:
    """Also where the image would: a process that escapes a container then has no rights on the machine either."""
    for name, service in services.items():
        image = built_image(service)
        user = service.get("user") or (image.user if image is not None else "")
        assert user.partition(":")[0] not in ("", "root", "0"), name


def test_every_service_is_bounded(services: Mapping[str, Model]) -> None:
    """A stack left alone over a weekend must not fill the memory or the disk with logs."""
    for name, service in services.items():
        assert 0 < int(service["mem_limit"]) <= 4 << 30, name
        assert service["logging"]["driver"] == "json-file", name
        assert set(service["logging"]["options"]) == {"max-size", "max-file"}, name
        assert service["stop_grace_period"], name


def test_nothing_is_published_beyond_this_machine(project: Model) -> None:
    """Databases with data, and interfaces without a login, must not be reachable from other machines."""
    published = [port for service in project["services"].values() for port in service.get("ports") or ()]
    assert len(published) == 3
    assert {port.get("host_ip") for port in published} == {"127.0.0.1"}
    assert project["networks"]["inside"]["internal"] is True
    for name, service in project["services"].items():
        assert "inside" in service["networks"], name
        assert ("outside" in service["networks"]) == bool(service.get("ports")), name


def test_no_password_is_written_down(services: Mapping[str, Model]) -> None:
    """A copy of the stack contains no password: each set of volumes gets its own passwords, as files."""
    for name, service in services.items():
        for key, value in (service.get("environment") or {}).items():
            if SECRET.search(key):
                assert key.endswith("_FILE"), f"{name}: {key}"
                assert value.startswith("/secrets/"), f"{name}: {key}"
        for word in service.get("command") or ():
            assert not re.search(r"://[^/@\s]*:[^/@\s]*@", word), name
    for settings in COMPOSE.parent.glob("*-*.yaml"):
        for line in settings.read_text().splitlines():
            if re.search(r"(password|access_key|secret_key|token):", line):
                assert re.search(r": \$\{file:/secrets/[a-z-]+\}$", line), f"{settings.name}: {line}"


def test_every_image_is_pinned(services: Mapping[str, Model]) -> None:
    """The stack that starts today is the one that starts next year."""
    for name, service in services.items():
        repository, _, tag = service["image"].partition(":")
        if "build" in service:
            assert (repository.split("/")[0], tag) == ("cdcflow-dev", "local"), name
        else:
            assert re.fullmatch(r"v?\d+\.\d+(\.\d+)?@sha256:[0-9a-f]{64}", tag), f"{name}: {service['image']}"


def test_what_waits_can_be_answered(services: Mapping[str, Model]) -> None:
    """A service that waits for the health of one without a check, or for the end of one that never ends, never
    starts."""
    for name, service in services.items():
        for other, wanted in conditions(service).items():
            match wanted:
                case "service_healthy":
                    assert "healthcheck" in services[other], f"{name} waits for {other}"
                case "service_completed_successfully":
                    assert one_shot(services[other]), f"{name} waits for {other}"
                case _:
                    raise AssertionError(f"{name} waits for {other} only to be started")


def test_every_lasting_service_has_a_health_check(services: Mapping[str, Model]) -> None:
    """`docker compose ps` shows what is wrong. The loads need no health check: they end when they cannot write."""
    without = {n for n, service in services.items() if not one_shot(service) and "healthcheck" not in service}
    assert without == {"load-postgres", "load-mysql"}


def test_service_that_ends_permanently_is_not_restarted_indefinitely(services: Mapping[str, Model]) -> None:
    """Exit code 70 needs an operator; two daemons of one log in Kafka would fence each other endlessly. The compose
    file agrees with the docs.
    """
    policies = {name: service["restart"] for name, service in services.items() if name.startswith(("capture", "merge"))}
    assert set(policies) == {"capture-postgres", "capture-mysql", "merge-postgres", "merge-mysql"}
    assert set(policies.values()) == {"on-failure:3"}
    docs = (COMPOSE.parents[1] / "docs" / "commands.md").read_text()
    assert "`restart: on-failure:3`, as `docker/compose.yaml` has it" in docs
    assert "RestartPreventExitStatus=65 70 78" in docs


def test_every_mount_exists_and_every_volume_is_used(project: Model) -> None:
    """Docker silently creates an empty folder, owned by root, for a file that does not exist."""
    mounts = [(name, m) for name, service in project["services"].items() for m in service.get("volumes") or ()]
    for name, mount in mounts:
        if mount["type"] == "bind":
            assert Path(mount["source"]).exists(), f"{name}: {mount['source']}"
            assert Path(mount["source"]).is_relative_to(COMPOSE.parent), name
            assert mount.get("read_only") is True, name
    assert {m["source"] for _, m in mounts if m["type"] == "volume"} == set(project["volumes"])
    secrets = [(name, m.get("read_only")) for name, m in mounts if m["source"] == "secrets"]
    assert [name for name, read_only in secrets if not read_only] == ["prepare"]


def test_merges_and_the_worker_see_the_same_folders(services: Mapping[str, Model]) -> None:
    """The driver names files and a task on the worker reads or writes them: under the same path, on the same volume."""
    shared = {m["target"]: m["source"] for m in services["spark-worker"]["volumes"]}
    written = {m["target"] for m in services["spark-worker"]["volumes"] if not m.get("read_only")}
    merges = [service for name, service in services.items() if name.startswith("merge-")]
    assert len(merges) == 2
    for service in merges:
        volumes = [m for m in service["volumes"] if m["type"] == "volume" and m["source"] != "secrets"]
        assert {(m["target"], m["source"]) for m in volumes} <= shared.items()
    assert {"/history", "/warehouse"} <= written


@pytest.mark.parametrize("database", ["postgres", "mysql"])
def test_what_is_verified_is_what_is_captured_and_merged(services: Mapping[str, Model], database: str) -> None:
    """A comparison of another source, log or warehouse would report that all is well, whatever the stack does."""
    captured, merged, verified = (
        yaml.safe_load((COMPOSE.parent / f"{what}-{database}.yaml").read_text())
        for what in ("capture", "merge", "verify")
    )
    source = {key: value for key, value in captured["source"].items() if key != "heartbeat"}
    assert verified["source"] == source
    assert verified["merge"]["warehouse"] == merged["merge"]["warehouse"]
    where = {"brokers", "topic", "work", "history", "url", "endpoint", "access_key", "secret_key"}
    [kind] = {"kafka", "objects"} & verified["log"].keys()
    places = {key: value for key, value in captured["log"][kind].items() if key in where}
    assert {key: value for key, value in verified["log"][kind].items() if key in where} == places
    assert verified["log"].get("path") == captured["log"].get("path")
    mounts = {m["target"]: m for m in services[f"verify-{database}"]["volumes"]}
    for other in ("capture", "merge"):
        for mount in services[f"{other}-{database}"]["volumes"]:
            if mount["target"] in mounts and mount["type"] == "volume":
                assert mounts[mount["target"]]["source"] == mount["source"]
    assert mounts["/warehouse"].get("read_only") is True


def test_init_scripts_are_run_as_intended() -> None:
    """MySQL's image sources a script that cannot be executed, and only then is its function for SQL there."""
    [script] = (COMPOSE.parent / "mysql").iterdir()
    assert script.suffix == ".sh"
    assert script.stat().st_mode & 0o111 == 0


def test_everything_is_labelled_as_part_of_the_stack(project: Model) -> None:
    """What is left of it can be found, and removed, by a label."""
    for kind in ("services", "volumes", "networks"):
        for name, one in project[kind].items():
            assert one["labels"]["org.cdcflow.stack"] == "dev", f"{kind}: {name}"
