"""The chart, rendered by Helm: every object is valid, its settings are read by cdcflow, and its commands exist."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from tests.chart import rendering
from tests.chart.rendering import DAEMONS, Choice, Refused, combinations, containers, find, pods, render, values_of
from tests.support.docs.pages import ROOT
from tests.unit.docs.test_commands import parse

from cdcflow import config
from cdcflow.http.responses import PROBES

pytestmark = pytest.mark.long

VERSIONS = ("1.29", "1.37")
"""The oldest and the latest that are checked."""
ALL = list(combinations())
KNOWN = ("monitoring.coreos.com/v1",)
"""API versions of others, without schemas here."""


def test_there_are_hundreds_of_combinations() -> None:
    """Otherwise the next test proves little."""
    assert len(ALL) > 300


@pytest.mark.parametrize("daemon", DAEMONS, ids=lambda one: one.name)
def test_every_object_of_every_combination_is_valid(daemon: Choice, tmp_path: Path) -> None:
    """A field that Kubernetes does not know is dropped silently; a volume that does not exist keeps a pod waiting."""
    for choices in (one for one in ALL if one[0] is daemon):
        name = " ".join(one.name for one in choices)
        objects = render(values_of(choices))
        identities = [(one["kind"], one["metadata"]["name"]) for one in objects]
        assert len(identities) == len(set(identities)), name
        for one in objects:
            check_schema(one, name)
        for pod in pods(objects).values():
            check_pod(pod, name)
        check_selectors(objects, name)
        check_settings(find(objects, "ConfigMap", "shop"), tmp_path)


def check_schema(one: dict[str, Any], name: str) -> None:
    if one["apiVersion"] in KNOWN:
        return
    for version in VERSIONS:
        if (wrong := schema_error(json.dumps(one, sort_keys=True), version)) is not None:
            pytest.fail(f"{name}: {one['kind']} {one['metadata']['name']} ({version}): {wrong}")


@cache
def schema_error(text: str, version: str) -> str | None:
    """What is wrong with an object, as JSON; most combinations have most objects in common."""
    try:
        kubernetes_validate.validate(json.loads(text), version, strict=True)
    except kubernetes_validate.ValidationError as error:
        return str(error)
    return None


def check_pod(pod: dict[str, Any], name: str) -> None:
    """Commands, mounts, and the security of each container."""
    volumes = [volume["name"] for volume in pod["volumes"]]
    assert len(volumes) == len(set(volumes)), name
    assert pod["automountServiceAccountToken"] is False
    security = pod["securityContext"]
    assert (security["runAsNonRoot"], security["seccompProfile"]) == (True, {"type": "RuntimeDefault"})
    for container in containers(pod):
        parse(container["args"])
        mounts = [mount["mountPath"] for mount in container["volumeMounts"]]
        assert len(mounts) == len(set(mounts)), name
        claimed = {"log", "journals"}
        assert {mount["name"] for mount in container["volumeMounts"]} <= {*volumes, *claimed}, name
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert "memory" in container["resources"]["limits"], name


def check_selectors(objects: list[dict[str, Any]], name: str) -> None:
    """Each selector finds pods of exactly one component."""
    labels = [
        one["spec"]["template"]["metadata"]["labels"] for one in objects if one["kind"] in ("StatefulSet", "Deployment")
    ]
    for one in objects:
        spec = one.get("spec", {})
        selector = {
            "Service": spec.get("selector"),
            "NetworkPolicy": spec.get("podSelector", {}).get("matchLabels"),
        }.get(one["kind"], spec.get("selector", {}).get("matchLabels"))
        if selector is None or one["kind"] == "ServiceMonitor":
            continue
        found = {each["app.kubernetes.io/component"] for each in labels if selector.items() <= each.items()}
        assert len(found) == 1, f"{name}: {one['kind']} {one['metadata']['name']} selects {found}"


def check_settings(config_map: dict[str, Any], folder: Path) -> None:
    for key, text in config_map["data"].items():
        (folder / key).write_text(text)
        config.load(folder / key)


def choose(**named: str) -> tuple[Choice, ...]:
    """A combination by the names of its choices; the first choice of each other question."""
    return tuple(
        next((one for one in question if one.name in named.values()), question[0]) for question in rendering.QUESTIONS
    )


def test_probes_are_those_of_the_daemon_and_follow_its_scheme() -> None:
    """A probe by HTTP of a server that speaks HTTPS restarts the daemon again and again."""
    for extra, scheme in (("plain", "HTTP"), ("everything", "HTTPS")):
        (daemon,) = pods(render(values_of(choose(extra=extra))))["shop"]["containers"]
        probes = [daemon[probe]["httpGet"] for probe in ("livenessProbe", "readinessProbe")]
        assert tuple(probe["path"] for probe in probes) == PROBES
        assert {probe["scheme"] for probe in probes} == {scheme}


def test_image_by_digest_wins_over_a_tag() -> None:
    """A tag can be moved to another image."""
    values = values_of(choose())
    (plain,) = pods(render(values))["shop"]["containers"]
    assert plain["image"] == "cdcflow:0.1.0"
    image = {"repository": "registry/cdcflow", "tag": "next", "digest": rendering.DIGEST}
    (pinned,) = pods(render(values | {"image": image}))["shop"]["containers"]
    assert pinned["image"] == f"registry/cdcflow@{rendering.DIGEST}"


def test_other_settings_replace_the_pods() -> None:
    """A ConfigMap that changes is not noticed by a daemon that runs."""
    values = values_of(choose())
    first, second = (
        find(render(one), "StatefulSet", "shop")["spec"]["template"]["metadata"]["annotations"]
        for one in (values, values | {"settings": values["settings"].replace("public.*", "public.orders")})
    )
    assert first != second


def test_a_guard_in_the_pod_is_a_sidecar() -> None:
    """An init container that is not restarted must end before the daemon starts, and a guard does not end."""
    (guard,) = pods(render(values_of(choose(guard="guard-sidecar"))))["shop"]["initContainers"]
    assert (guard["name"], guard["restartPolicy"]) == ("guard", "Always")


def test_a_merge_in_its_own_pod_ends_the_daemons() -> None:
    """Two merges would take turns, and one of them is enough."""
    objects = render(values_of(choose(daemon="one-in-store", merge="merge-spark")))
    (daemon,), (merge,) = pods(objects)["shop"]["containers"], pods(objects)["shop-merge"]["containers"]
    assert "--no-merge" in daemon["args"]
    assert merge["image"] == f"registry/merge@{rendering.DIGEST}"


def test_the_names_of_peers_are_those_of_the_settings(tmp_path: Path) -> None:
    """A pod's name is its StatefulSet's with a number, below the name of the Service."""
    objects = render(values_of(choose(daemon="two-with-peers")))
    peers = find(objects, "StatefulSet", "shop-peer")
    names = {f"shop-peer-{number}.{peers['spec']['serviceName']}:9470" for number in range(peers["spec"]["replicas"])}
    file = tmp_path / "cdcflow.yaml"
    file.write_text(find(objects, "ConfigMap", "shop")["data"]["cdcflow.yaml"])
    log = config.load(file).log
    assert isinstance(log, config.FileLog)
    assert log.replicate is not None
    assert set(log.replicate.quorum) == names


def test_monitoring_selects_one_service_and_its_alerts_are_those_of_the_project() -> None:
    """With two services each daemon would be scraped twice; the rules about `up` are for the job cdcflow."""
    objects = render(values_of(choose(extra="everything")))
    monitor = find(objects, "ServiceMonitor", "shop")["spec"]
    services = [one for one in objects if one["kind"] == "Service"]
    found = [one for one in services if monitor["selector"]["matchLabels"].items() <= one["metadata"]["labels"].items()]
    assert [one["metadata"]["name"] for one in found] == ["shop"]
    assert found[0]["metadata"]["labels"][monitor["jobLabel"]] == "cdcflow"
    assert [(one["port"], one["path"], one["scheme"]) for one in monitor["endpoints"]] == [
        ("http", "/metrics", "https")
    ]
    rules = find(objects, "PrometheusRule", "shop")["spec"]
    assert rules == yaml.safe_load((ROOT / "docker" / "prometheus" / "alerts.yaml").read_text())


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "unknown value": ({"replica": 2}, "additional properties 'replica' not allowed"),
    "tag as digest": ({"image": {"digest": "latest"}}, "digest"),
    "no settings": ({"settings": ""}, "settings"),
    "not YAML": ({"settings": "source: ["}, "settings: the text is not YAML"),
    "loopback": ({"settings": "service: {listen: '127.0.0.1:8079'}"}, "set service.listen to 0.0.0.0:8079"),
    "elsewhere": (
        {"settings": "service: {listen: '0.0.0.0:8079'}\nlog: {path: /var/log}"},
        "set log.path to /log/cdcflow",
    ),
    "Kafka elsewhere": (
        {"settings": "service: {listen: '0.0.0.0:8079'}\nlog: {kafka: {topic: a}}"},
        "set log.kafka.work to /log/cdcflow",
    ),
    "Secret": ({"secrets": ["shop-http"]}, "add shop-source to `secrets`"),
    "no lease": ({"replicas": 2}, "set service.lease in the settings"),
    "guard without budget": ({"guard": {"enabled": True}}, "set source.log_budget"),
    "merge without a store": (
        {"merge": {"enabled": True, "settings": "log: {path: /log/cdcflow}"}},
        "omit log.path",
    ),
    "merge without settings": ({"merge": {"enabled": True}}, "minLength"),
    "peers without TLS": ({"peers": {"enabled": True}}, "set peers.tlsSecret"),
    "peers of others": (
        {"peers": {"enabled": True, "tlsSecret": "shop-peers"}},
        'add "shop-peer-0.shop-peer:9470" to log.replicate.quorum',
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_mistake_in_the_values_ends_the_rendering_with_what_to_do(name: str) -> None:
    """Otherwise it shows in a pod that does not start."""
    wrong, said = REFUSED[name]
    with pytest.raises(Refused) as refusal:
        render(values_of(choose()) | wrong)
    assert said in str(refusal.value) or (said == "minLength" and "minLength" in str(refusal.value))


def test_standby_needs_a_log_that_both_reach() -> None:
    """Two volumes with two logs would be two pipelines."""
    values = values_of(choose(daemon="two-shared"))
    with pytest.raises(Refused, match=r"the standby needs the same log"):
        render(values | {"storage": {}})
    with pytest.raises(Refused, match=r"set service.lease.at to source"):
        render(values | {"settings": values["settings"].replace("at: source", "at: file")})


def test_helm_lint_finds_nothing(tmp_path: Path) -> None:
    """Helm's own checks, strict."""
    values = tmp_path / "values.yaml"
    values.write_text(yaml.safe_dump(values_of(choose(extra="everything"))))
    said = rendering.run_helm("lint", "--strict", str(rendering.CHART), "-f", str(values))
    assert "0 chart(s) failed" in said
    assert "WARNING" not in said


def test_packaged_chart_renders_the_same(tmp_path: Path) -> None:
    """The alerts are a link in the repository, and must be a file in the package."""
    rendering.run_helm("package", str(rendering.CHART), "-d", str(tmp_path))
    (package,) = tmp_path.glob("cdcflow-*.tgz")
    values = tmp_path / "values.yaml"
    values.write_text(yaml.safe_dump(values_of(choose(extra="everything"))))
    texts = [
        rendering.run_helm("template", "shop", str(chart), "--namespace", "data", "-f", str(values))
        for chart in (rendering.CHART, package)
    ]
    assert texts[0] == texts[1]
