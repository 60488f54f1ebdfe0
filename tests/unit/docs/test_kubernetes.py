"""The objects of Kubernetes on the pages: what they run exists, and what they mount and query does, too."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from tests.support.docs.pages import blocks, pages
from tests.unit.docs.test_commands import parse

from cdcflow.http.responses import PROBES

OBJECTS: list[dict[str, Any]] = [
    yaml.safe_load(block.text) for page in pages() for block in blocks(page) if block.text.startswith("apiVersion:")
]


def pods() -> dict[str, dict[str, Any]]:
    return {one["metadata"]["name"]: one["spec"]["template"]["spec"] for one in OBJECTS if one["kind"] == "Deployment"}


def containers(pod: dict[str, Any]) -> list[dict[str, Any]]:
    return [*pod.get("initContainers", []), *pod["containers"]]


def test_pages_have_the_sidecar_and_the_separate_guard() -> None:
    """Otherwise the other tests here would check nothing."""
    assert {name: [c["name"] for c in containers(pod)] for name, pod in pods().items()} == {
        "cdcflow": ["guard", "daemon"],
        "cdcflow-guard": ["guard"],
    }


@pytest.mark.parametrize("name", ["cdcflow", "cdcflow-guard"])
def test_containers_run_commands_that_exist_and_mount_volumes_that_exist(name: str) -> None:
    """A wrong option is found when the pod does not start, which may be in the outage that the guard is for."""
    pod = pods()[name]
    volumes = {volume["name"] for volume in pod["volumes"]}
    for container in containers(pod):
        parse(container["args"])
        mounted = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
        assert mounted.keys() <= volumes
        assert container["args"][container["args"].index("--config") + 1].startswith(f"{mounted['settings']}/")


def test_guard_is_a_sidecar_and_probes_are_those_of_the_daemon() -> None:
    """An init container that is not restarted must end before the daemon starts, and a guard does not end."""
    guard, daemon = containers(pods()["cdcflow"])
    assert guard["restartPolicy"] == "Always"
    paths = tuple(daemon[probe]["httpGet"]["path"] for probe in ("livenessProbe", "readinessProbe"))
    assert paths == PROBES


def test_objects_select_their_own_pods_and_a_log_has_one_writer() -> None:
    """Two daemons at the same time, as a rolling update starts them, exclude each other."""
    for one in OBJECTS:
        assert one["spec"]["selector"]["matchLabels"] == one["spec"]["template"]["metadata"]["labels"]
    (daemon,) = [one for one in OBJECTS if one["metadata"]["name"] == "cdcflow"]
    assert (daemon["spec"]["replicas"], daemon["spec"]["strategy"]) == (1, {"type": "Recreate"})
