"""What differs between two settings files, and how a running daemon applies it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import pytest
import yaml

from cdcflow.config import Config, load
from cdcflow.config.base import settings_of
from cdcflow.config.changes import HIDDEN, RULES, SettingChange, changes, digest, rule_for, settings_as_text

SOURCE = {"kind": "postgres", "url": "postgresql://cdc@db/shop", "password": "${env:SHOP}", "tables": ["public.orders"]}


def settings(tmp_path: Path, **sections: Any) -> dict[str, str]:
    path = tmp_path / "cdcflow.yaml"
    source = {**SOURCE, **sections.pop("source", {})}
    path.write_text(yaml.safe_dump({"source": source, "log": {"path": "log"}, **sections}, sort_keys=False))
    return settings_as_text(load(path))


def taken(found: tuple[SettingChange, ...]) -> dict[str, str]:
    return {change.name: change.taken for change in found}


@pytest.mark.parametrize(
    ("section", "value", "name", "how"),
    [
        ("source", {"tables": ["public.orders", "public.items"]}, "source.tables", "next cut"),
        ("source", {"columns": {"public.users.password": "text"}}, "source.columns.public.users.password", "next cut"),
        ("source", {"backfill": {"rows_per_second_max": 9}}, "source.backfill.rows_per_second_max", "running"),
        ("source", {"backfill": {"ranges_at_once": 4}}, "source.backfill.ranges_at_once", "next cut"),
        ("source", {"heartbeat": "3s"}, "source.heartbeat", "next cut"),
        ("source", {"failover": True}, "source.failover", "when made"),
        ("source", {"url": "postgresql://cdc@other/shop"}, "source.url", "next cut"),
        ("log", {"path": "elsewhere"}, "log.path", "refused"),
        ("log", {"path": "log", "seal": {"age_max": "1s"}}, "log.seal.age_max", "next cut"),
        ("merge", {"every": "1m"}, "merge.every", "running"),
        ("merge", {"format": "iceberg"}, "merge.format", "merge"),
        ("service", {"listen": "127.0.0.1:1"}, "service.listen", "running"),
        ("service", {"freshness_every": "1m"}, "service.freshness_every", "running"),
        ("service", {"shadow_every": "10s"}, "service.shadow_every", "running"),
        ("service", {"hosts": ["cdc.internal"]}, "service.hosts", "running"),
        ("service", {"traces": "http://127.0.0.1:4318"}, "service.traces", "next cut"),
    ],
)
def test_each_setting_takes_effect_in_its_way(tmp_path: Path, section: str, value: Any, name: str, how: str) -> None:
    """The plan records for each setting when it takes effect."""
    assert taken(changes(settings(tmp_path), settings(tmp_path, **{section: value}))) == {name: how}


TOKEN = {"name": "ops", "role": "read", "token": "${env:OPS}"}
HOOK = {"on": ["lag"], "webhook": "${env:HOOK}"}


@pytest.mark.parametrize(
    ("before", "now", "name"),
    [
        ({}, {"tokens": [TOKEN]}, "service.tokens.ops.name"),
        ({"tokens": [TOKEN]}, {"tokens": [{**TOKEN, "role": "operate"}]}, "service.tokens.ops.role"),
        ({"tokens": [TOKEN]}, {"tokens": [{**TOKEN, "token": "${env:NEW}"}]}, "service.tokens.ops.token"),
        ({"notify": [HOOK]}, {"notify": [{**HOOK, "webhook": "${env:NEW}"}]}, "service.notify.1.webhook"),
    ],
)
def test_another_token_is_a_change(tmp_path: Path, before: Any, now: Any, name: str) -> None:
    """All tokens were hidden as one text, so that a plan did not show added or removed ones."""
    found = changes(settings(tmp_path, service=before), settings(tmp_path, service=now))
    assert taken(found)[name] == "running"
    assert HIDDEN not in str(found)


@pytest.mark.parametrize(
    ("before", "now", "name"),
    [
        (
            {"tables": {"public.users": {"columns": {"password": {"mask": {"keep_last": 4}}}}}},
            {"tables": {"public.users": {"columns": {"password": {"mask": {"keep_last": 0}}}}}},
            "tables.public.users.columns.password.mask.keep_last",
        ),
        (
            {"tables": {"public.api_tokens": {"where": "id > 1", "computed": {"secret_day": "id"}}}},
            {"tables": {"public.api_tokens": {"where": "id > 1", "computed": {"secret_day": "id + 1"}}}},
            "tables.public.api_tokens.computed.secret_day",
        ),
        (
            {"contracts": {"public.tokens": {"id": {"check": "id > 1"}}}},
            {"contracts": {"public.tokens": {"id": {"check": "id > 2"}}}},
            "contracts.public.tokens.id.check",
        ),
        (
            {"merge": {"tables": {"routes": {"public.token": "shop.a"}}}},
            {"merge": {"tables": {"routes": {"public.token": "shop.b"}}}},
            "merge.tables.routes.public.token",
        ),
    ],
)
def test_name_of_a_table_or_column_hides_no_change_of_what_is_done_with_it(
    tmp_path: Path, before: Any, now: Any, name: str
) -> None:
    """A reload of the file did nothing then."""
    found = changes(settings(tmp_path, **before), settings(tmp_path, **now))
    assert [one.name for one in found] == [name]
    assert HIDDEN not in str(found)


def test_another_order_of_patterns_is_a_change(tmp_path: Path) -> None:
    """Of those that match a table the first one counts."""
    rules = {"public.*": {"where": "a = 1"}, "*.x": {"where": "a = 2"}}
    routes = {r"a\..*": "w.a", r".*\.b": "w.b"}
    reordered = {name: rules[name] for name in reversed(rules)}, {name: routes[name] for name in reversed(routes)}
    of_rules = changes(settings(tmp_path, tables=rules), settings(tmp_path, tables=reordered[0]))
    assert [one.name for one in of_rules] == ["tables"]
    before, now = ({"tables": {"routes": given}} for given in (routes, reordered[1]))
    of_routes = changes(settings(tmp_path, merge=before), settings(tmp_path, merge=now))
    assert [one.name for one in of_routes] == ["merge.tables.routes"]


def test_setting_of_a_function_of_a_package_may_be_a_secret(tmp_path: Path) -> None:
    secret = SimpleNamespace(model_dump=lambda mode: {"tables": {"public.a": {"computed": {"x": {"api_token": "s3"}}}}})
    assert settings_as_text(secret) == {"tables.public.a.computed.x.api_token": HIDDEN}  # type: ignore[arg-type]


def test_retention_policy_takes_effect_at_once(tmp_path: Path) -> None:
    """Retention runs next to the capture."""
    kept = {"path": "log", "retention": {"age": "7d"}}
    assert set(taken(changes(settings(tmp_path), settings(tmp_path, log=kept))).values()) == {"running"}


KAFKA = {"brokers": "k:9092", "topic": "shop"}


def test_folder_that_commands_read_waits_for_a_restart_and_the_plan_explains_why(tmp_path: Path) -> None:
    """A daemon that moved would not be found by a command with the old file, nor by `cdcflow apply` with the new
    one."""
    moved = {**KAFKA, "work": "elsewhere"}
    (change,) = changes(settings(tmp_path, log={"kafka": KAFKA}), settings(tmp_path, log={"kafka": moved}))
    assert (change.name, change.taken) == ("log.kafka.work", "restart")
    assert change.why.startswith("commands find the daemon in the folder")
    assert change.remedy.startswith("set log.kafka.work back, run `cdcflow ctl stop`, set it again")


def names(model: Any, above: str) -> Iterator[str]:
    """Every setting's name below a model of settings, with all kinds that it may be."""
    for name, field in settings_of(model).items():
        inner = [m for m in (field.annotation, *get_args(field.annotation)) if hasattr(m, "model_fields")]
        yield from (n for m in inner for n in names(m, f"{above}{name}."))
        if not inner:
            yield above + name


def test_every_setting_has_a_rule() -> None:
    """A setting without a rule waits for a restart without a reason that an operator could follow."""
    found = {*names(Config, ""), "log.retention.age"}
    assert {"source.slot", "source.server_id", "log.kafka.topic", "service.listen", "publish.kafka.brokers"} <= found
    assert [name for name in sorted(found) if rule_for(name) not in RULES] == []


def test_another_kind_of_log_is_one_change(tmp_path: Path) -> None:
    """All of its settings differ then, and only one difference is reported."""
    kafka = settings(tmp_path, log={"kafka": {"brokers": "k:9092", "topic": "shop"}})
    for before, now in ((settings(tmp_path), kafka), (kafka, settings(tmp_path))):
        assert taken(changes(before, now)) == {"log.path": "refused"}


def test_the_same_file_changes_nothing(tmp_path: Path) -> None:
    """Also where lists and defaults are written out."""
    found = settings(tmp_path)
    again = settings(tmp_path, source={"heartbeat": "10s"}, merge={"format": "delta"})
    assert changes(found, again) == ()
    assert digest(found) == digest(dict(reversed(again.items())))
    assert digest(found) != digest(settings(tmp_path, source={"heartbeat": "9s"}))


def test_secrets_are_not_shown_and_references_are(tmp_path: Path) -> None:
    """What a daemon reports to its users must not contain a password of some library."""
    spark = {"spark.hadoop.fs.s3a.secret.key": "s3cret", "spark.master": "local[2]"}
    found = settings(tmp_path, merge={"spark": spark})
    assert found["merge.spark.spark.hadoop.fs.s3a.secret.key"] == HIDDEN
    assert found["merge.spark.spark.master"] == "local[2]"
    assert found["source.password"] == "${env:SHOP}"
    assert "s3cret" not in str(found)


def test_rules_precede_those_that_would_hide_them() -> None:
    """The first rule whose name is a prefix of the setting's counts: a general one above it would hide it."""
    for rule in RULES:
        assert rule_for(rule.name) is rule
    assert rule_for("logs.path").taken == "restart", "a name that only begins alike is a different setting"
