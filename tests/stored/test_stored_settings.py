"""Settings files of an earlier version."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.stored.archives import Stored, different
from tests.unit.config.test_settings_docs import names

from cdcflow.config import Config, load

LATER = {
    "log.compact",
    *(f"log.replicate.{name}" for name in ("quorum", "timeout", "tls.cert", "tls.key", "tls.ca")),
    *(f"merge.derive.{name}" for name in ("key", "sql", "from", "transform", "version")),
    *(f"source.log_budget{name}" for name in ("", "_age", "_then")),
    "source.backfill.hours",
    "source.backfill.url",
    *(f"source.backfill.per_day.{name}" for name in ("rows", "bytes", "time")),
    *(
        f"source.backfill.limits.{name}"
        for name in (
            *("commit_latency_ratio", "replica_lag", "replicas", "log_budget_used"),
            *("lock_waits", "history_list_length", "cpu_used"),
        )
    ),
    "merge.fast_delta",
    "merge.memory_max",
    *(f"merge.objects.{name}" for name in ("account", "account_key", "service_account")),
    "merge.progress_timeout",
    "service.notify.kind",
    "service.notify.file",
    *(f"service.lease.{name}" for name in ("at", "name", "ttl", "password")),
    *(f"service.lease.password.{name}" for name in ("command", "expires", "timeout")),
    *(f"service.lease.tls.{name}" for name in ("mode", "ca", "cert", "key")),
    *(f"service.lease.objects.{name}" for name in ("endpoint", "region", "access_key", "secret_key")),
    *(f"service.fleet.{name}" for name in ("at", "name", "every", "page")),
    *(f"service.fleet.objects.{name}" for name in ("endpoint", "region", "access_key", "secret_key")),
    *(f"{part}.{name}" for part in ("service", "serve") for name in ("tls.cert", "tls.key", "requests_per_second_max")),
    *(f"source.tls.{name}" for name in ("cert", "key")),
    *(f"source.ssh.{name}" for name in ("host", "port", "user", "key_file", "known_hosts")),
    *(f"source.password.{name}" for name in ("command", "expires", "timeout")),
    "person_keys",
    "tables.columns.encrypt.key_by",
    "tables.computed",
    *(f"targets.{name}" for name in ("kind", "tables", "every", "memory_max", "progress_timeout")),
    "tables.optional",
    "tests",
    *(f"contracts.{name}" for name in ("type", "not_null", "check", "on_violation")),
    "tables.where",
    *(f"tables.columns.{name}" for name in ("word", "constant", "mask.keep_last", "rename", "truncate")),
    *(f"tables.columns.{policy}.{name}" for policy in ("hash", "encrypt") for name in ("key", "id")),
    "merge.tables.routes",
    "merge.tables.constants",
    *(
        f"merge.tables.{each}{name}"
        for each in ("", "each.")
        for name in ("partition_by", "sort_by", "purge_origins", "purges")
    ),
}
"""Settings that the earlier version did not have."""


@pytest.fixture
def stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stored:
    made = Stored("settings", tmp_path / "settings")
    monkeypatch.chdir(made.folder)
    return made


def _named(values: Any, before: str = "") -> set[str]:
    """The names of all settings that have a value, as the reference has them."""
    if isinstance(values, list):
        return set().union(*(_named(value, before) for value in values)) if values else set()
    if not isinstance(values, dict):
        return set() if values is None else {before.removesuffix(".")}
    return {before.removesuffix(".")}.union(*(_named(value, f"{before}{name}.") for name, value in values.items()))


def test_settings_files_have_the_values_that_they_had(stored: Stored) -> None:
    """A new version must start with the file of the earlier one, and mean the same by it."""
    found: list[str] = []
    for asked in stored.answers:
        now = load(Path(asked["file"])).model_dump_json().replace(str(stored.folder), "{folder}")
        found += different(asked["values"], json.loads(now), asked["file"])
    assert found == []
    assert len(stored.answers) > 20


def test_each_setting_of_then_is_in_a_file(stored: Stored) -> None:
    """What no file has may be read otherwise, or not at all, and nothing would show it."""
    set_somewhere = set().union(*(_named(asked["values"]) for asked in stored.answers))
    of_then = [name for name in names(Config) if name not in LATER]
    assert [n for n in sorted(of_then) if n.replace(".each.", ".each.public.orders.") not in set_somewhere] == []
    assert not LATER & set_somewhere, "these are older than this list says"
