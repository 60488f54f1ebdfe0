"""The chart as Helm renders it: which values there are, and the objects of a release."""

from __future__ import annotations

import itertools
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import yaml
from tests.servers.helm import helm
from tests.support.docs.pages import ROOT

CHART = ROOT / "charts" / "cdcflow"
RELEASE = "shop"
KUBERNETES = "1.37.0"
DIGEST = "sha256:" + "0123456789abcdef" * 4

SETTINGS = """\
source:
  kind: postgres
  url: postgresql://cdcflow@db:5432/shop
  password: ${file:/secrets/shop-source/password}
  tables: [public.*]
"""
HTTP = """\
  listen: 0.0.0.0:8079
  tokens:
    - {name: ops, role: operate, token: "${file:/secrets/shop-http/token}"}
"""
KEYS = 'access_key: "${file:/secrets/shop-s3/access}", secret_key: "${file:/secrets/shop-s3/secret}"'
OBJECTS = f'{{url: "s3://lake/shop", {KEYS}}}'
PEERS = ", ".join(f'"shop-peer-{number}.shop-peer:9470"' for number in range(3))
REPLICATE = (
    f"{{quorum: [{PEERS}], "
    "tls: {cert: /secrets/shop-peers/tls.crt, key: /secrets/shop-peers/tls.key, ca: /secrets/shop-peers/ca.crt}}"
)
KAFKA = 'log: {kafka: {brokers: "kafka:9092", topic: shop, work: /log/cdcflow, history: "s3://lake/history"}}\n'
LEASE = "  lease: {at: source, name: shop}\n"
TLS = "  tls: {cert: /secrets/shop-tls/tls.crt, key: /secrets/shop-tls/tls.key}\n"
BUDGET = "  slot: cdcflow_shop\n  log_budget: 20GiB\n  log_budget_then: release\n"


@dataclass(frozen=True, slots=True)
class Choice:
    """One possibility of one question: values of the chart, and lines of the settings."""

    name: str
    values: Mapping[str, Any]
    source: str = ""
    log: str = ""
    service: str = ""
    merge_log: str = ""
    secrets: tuple[str, ...] = ()


LOG = "log: {path: /log/cdcflow}\n"
IN_STORE = f"log: {{path: /log/cdcflow, objects: {OBJECTS}}}\n"
STORE_ALONE = f"log: {{objects: {OBJECTS}}}\n"
TWO: Mapping[str, Any] = {"replicas": 2}
PEER_VALUES = {"enabled": True, "tlsSecret": "shop-peers"}
WITH_PEERS = f"log: {{path: /log/cdcflow, objects: {OBJECTS}, replicate: {REPLICATE}}}\n"

DAEMONS = (
    Choice("one", {}, log=LOG),
    Choice("one-in-store", {}, log=IN_STORE, merge_log=STORE_ALONE, secrets=("shop-s3",)),
    Choice("one-claim", {"storage": {"existingClaim": "old", "size": "1Ti"}}, log=LOG),
    Choice(
        "one-with-peers",
        {"peers": {**PEER_VALUES, "spread": "preferred", "storage": {"className": "fast"}}},
        log=WITH_PEERS,
        merge_log=STORE_ALONE,
        secrets=("shop-s3",),
    ),
    Choice(
        "two-with-peers",
        {**TWO, "peers": PEER_VALUES},
        log=WITH_PEERS,
        service=LEASE,
        merge_log=STORE_ALONE,
        secrets=("shop-s3", "shop-peers"),
    ),
    Choice("two-kafka", TWO, log=KAFKA, service=LEASE, merge_log=KAFKA),
    Choice(
        "two-shared", {**TWO, "storage": {"accessMode": "ReadWriteMany", "className": "nfs"}}, log=LOG, service=LEASE
    ),
)
GUARDS = (
    Choice("no-guard", {}),
    *(
        Choice(f"guard-{placement}", {"guard": {"enabled": True, "placement": placement}}, source=BUDGET)
        for placement in ("sidecar", "deployment", "both")
    ),
)
MERGES = (
    Choice("no-merge", {}),
    Choice("merge-local", {"merge": {"enabled": True}}),
    Choice(
        "merge-spark",
        {"merge": {"enabled": True, "every": "5m", "image": {"repository": "registry/merge", "digest": DIGEST}}},
    ),
)
NETWORKS = (
    Choice("open", {}),
    Choice("off", {"networkPolicy": {"enabled": False}, "podDisruptionBudget": {"enabled": False}}),
    Choice(
        "restricted",
        {
            "networkPolicy": {
                "from": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}],
                "egress": [{"ports": [{"port": 5432}, {"port": 443}], "to": [{"ipBlock": {"cidr": "10.0.0.0/8"}}]}],
            }
        },
    ),
)
EVERYTHING: Mapping[str, Any] = {
    "image": {"repository": "registry/cdcflow", "digest": DIGEST, "pullPolicy": "Always"},
    "imagePullSecrets": [{"name": "registry"}],
    "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}, "tlsConfig": {"serverName": "shop"}},
    "prometheusRule": {"enabled": True, "labels": {"release": "prometheus"}},
    "serviceAccount": {"annotations": {"eks.amazonaws.com/role-arn": "arn:aws:iam::123456789012:role/shop"}},
    "env": [{"name": "TZ", "value": "UTC"}],
    "extraVolumes": [{"name": "lake", "persistentVolumeClaim": {"claimName": "lake"}}],
    "extraVolumeMounts": [{"name": "lake", "mountPath": "/lake"}],
    "podLabels": {"team": "data"},
    "podAnnotations": {"note": "yes"},
    "nodeSelector": {"disk": "local"},
    "tolerations": [{"key": "data", "operator": "Exists", "effect": "NoSchedule"}],
    "priorityClassName": "high",
    "temporary": {"size": "10Gi"},
    "terminationGracePeriodSeconds": 60,
}
EXTRAS = (
    Choice("plain", {}),
    Choice("everything", EVERYTHING, service=TLS, secrets=("shop-tls",)),
    Choice("own-account", {"serviceAccount": {"create": False, "name": "lake"}, "affinity": {"nodeAffinity": {}}}),
)
QUESTIONS = (DAEMONS, GUARDS, MERGES, NETWORKS, EXTRAS)


def combinations() -> Iterator[tuple[Choice, ...]]:
    """Every combination of choices that makes sense: a merge in its own pod needs a log that is not on the volume."""
    for choices in itertools.product(*QUESTIONS):
        daemon, merge = choices[0], choices[2]
        if daemon.merge_log or not merge.values:
            yield choices


def values_of(choices: tuple[Choice, ...]) -> dict[str, Any]:
    source, log, service = ("".join(getattr(one, part) for one in choices) for part in ("source", "log", "service"))
    merge = "merge: {warehouse: 's3a://lake/shop', every: 30s}\n"
    values: dict[str, Any] = {
        "settings": f"{SETTINGS}{source}{log}{merge}service:\n{HTTP}{service}",
        "secrets": ["shop-source", "shop-http", *(name for one in choices for name in one.secrets)],
    }
    for one in choices:
        values |= one.values
    if values.get("merge", {}).get("enabled"):
        merge = f"{SETTINGS}{choices[0].merge_log}merge: {{warehouse: 's3a://lake/shop'}}\n"
        values["merge"] = {**values["merge"], "settings": merge}
    return values


class Refused(Exception):
    """Helm does not render these values; with what it printed."""


def render(values: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The objects of a release. Raises Refused."""
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        yaml.safe_dump(dict(values), file)
        file.flush()
        done = run_helm("template", RELEASE, str(CHART), "--namespace", "data", "-f", file.name)
    return [one for one in yaml.load_all(done, yaml.CSafeLoader) if one is not None]


def run_helm(*arguments: str) -> str:
    """What it prints. Raises Refused."""
    # Without a cluster helm takes the version that it was built for.
    version = ["--kube-version", KUBERNETES] if arguments[0] in ("template", "lint") else []
    done = subprocess.run([str(helm()), *arguments, *version], capture_output=True, text=True, check=False)
    if done.returncode:
        raise Refused(done.stderr or done.stdout)
    return done.stdout


def find(objects: list[dict[str, Any]], kind: str, name: str) -> dict[str, Any]:
    (found,) = [one for one in objects if one["kind"] == kind and one["metadata"]["name"] == name]
    return found


def pods(objects: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The specs of pods, by the name of the object that creates them."""
    return {
        one["metadata"]["name"]: one["spec"]["template"]["spec"]
        for one in objects
        if one["kind"] in ("StatefulSet", "Deployment")
    }


def containers(pod: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [*pod.get("initContainers", []), *pod["containers"]]
