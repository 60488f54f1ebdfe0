"""What differs between two settings files, and how a running daemon takes it up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from cdcflow.config import load
from cdcflow.config.changes import HIDDEN, RULES, Change, changes, digest, rule_for, shown

SOURCE = {"kind": "postgres", "url": "postgresql://cdc@db/shop", "password": "${env:SHOP}", "tables": ["public.orders"]}


def settings(tmp_path: Path, **sections: Any) -> dict[str, str]:
    path = tmp_path / "cdcflow.yaml"
    source = {**SOURCE, **sections.pop("source", {})}
    path.write_text(yaml.safe_dump({"source": source, "log": {"path": "log"}, **sections}))
    return shown(load(path))


def taken(found: tuple[Change, ...]) -> dict[str, str]:
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
        ("merge", {"every": "1m"}, "merge.every", "merge"),
        ("service", {"listen": "127.0.0.1:1"}, "service.listen", "restart"),
    ],
)
def test_each_setting_is_taken_up_in_its_way(tmp_path: Path, section: str, value: Any, name: str, how: str) -> None:
    """The plan says when; a setting that nobody gave a rule waits for a restart, which is always right."""
    assert taken(changes(settings(tmp_path), settings(tmp_path, **{section: value}))) == {name: how}


def test_another_kind_of_log_is_one_change(tmp_path: Path) -> None:
    """All of its settings differ then, and only one thing is to be said."""
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
    """What a daemon tells anybody of its user must not hold a password of somebody's library."""
    spark = {"spark.hadoop.fs.s3a.secret.key": "s3cret", "spark.master": "local[2]"}
    found = settings(tmp_path, merge={"spark": spark})
    assert found["merge.spark.spark.hadoop.fs.s3a.secret.key"] == HIDDEN
    assert found["merge.spark.spark.master"] == "local[2]"
    assert found["source.password"] == "${env:SHOP}"
    assert "s3cret" not in str(found)


def test_rules_come_before_those_that_would_hide_them() -> None:
    """The first rule whose name a setting's begins with counts: a general one above it would swallow it."""
    for rule in RULES:
        assert rule_for(rule.name) is rule
    assert rule_for("logs.path").taken == "restart", "a name that only begins alike is another one"
