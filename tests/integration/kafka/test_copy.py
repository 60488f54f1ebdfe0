"""A log copied from a folder into a topic and back is the same log, also when the copy was killed on the way."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from tests.servers.kafka import KafkaBroker
from tests.support.kafka.log_pairs import (
    IDENTITY,
    FolderReader,
    assert_equal,
    history_of_a_shop,
    into_folder,
    into_topic,
    put,
    topics_on,
)
from typer.testing import CliRunner

from cdcflow.cli import failure
from cdcflow.cli.app import app
from cdcflow.errors import CdcflowError, ConfigurationError
from cdcflow.sinks.files.log import FileLog
from cdcflow.sinks.kafka import copies
from cdcflow.sinks.kafka.copies import to_folder, to_topic
from cdcflow.sinks.kafka.log import KafkaLog
from cdcflow.sinks.kafka.reader import KafkaReader
from cdcflow.sinks.kafka.topics import Topics
from cdcflow.testing.sinks import Writer, orders

pytestmark = pytest.mark.kafka


class Killed(Exception):
    """Simulates the end of the process."""


def nothing(first: int, last: int) -> None:
    pass


def killing(after: int) -> Iterator[None]:
    """Lets this many parts pass."""
    yield from [None] * after
    raise Killed


@pytest.fixture
def topics(broker: KafkaBroker) -> Topics:
    return topics_on(broker.address)


@pytest.mark.spread(1)
@pytest.mark.parametrize("spooled_rows", [copies.SPOOLED_ROWS, 100])
def test_folder_is_copied_into_a_topic_and_back(
    topics: Topics, tmp_path: Path, spooled_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows, transactions, shapes and the latest checkpoint are the same in all three; large transactions too."""
    monkeypatch.setattr(copies, "SPOOLED_ROWS", spooled_rows)
    there, back = tmp_path / "there", tmp_path / "back"
    into_folder(there, history_of_a_shop())
    copied = to_topic(there, topics, nothing)
    assert copied.left == 0
    topics.wait_until_shown()
    assert_equal(KafkaReader(topics), FolderReader(there))
    to_folder(topics, back, nothing)
    assert_equal(FolderReader(back), FolderReader(there))
    assert to_topic(there, topics, nothing).parts == to_folder(topics, back, nothing).parts == 0


def test_topic_is_copied_into_a_folder_and_a_daemon_can_continue_there(topics: Topics, tmp_path: Path) -> None:
    """How to leave Kafka: the folder is opened as a file log, with epochs above the old ones."""
    steps = history_of_a_shop()
    into_topic(topics, steps[:4])
    to_folder(topics, tmp_path / "copy", nothing)
    into_topic(topics, steps[4:])
    to_folder(topics, tmp_path / "copy", nothing)
    assert_equal(FolderReader(tmp_path / "copy"), KafkaReader(topics))
    log = FileLog.open(tmp_path / "copy", IDENTITY)
    assert log.epoch > KafkaReader(topics).state().epoch
    Writer.of(log).put(orders(77, xid=200))
    log.close()
    report = FolderReader(tmp_path / "copy").check(deep=True)
    assert report.is_whole, report.faults
    with pytest.raises(CdcflowError):
        to_folder(topics, tmp_path / "copy", nothing)


def test_folder_is_copied_into_a_topic_and_a_daemon_can_continue_there(topics: Topics, tmp_path: Path) -> None:
    """How to move to Kafka, without a new backfill."""
    into_folder(tmp_path / "log", history_of_a_shop())
    to_topic(tmp_path / "log", topics, nothing)
    log = KafkaLog.open(topics, IDENTITY)
    assert log.epoch > FileLog.open(tmp_path / "log", IDENTITY).epoch - 1
    assert log.log_id == KafkaReader(topics).state().log_id
    Writer.of(log).put(orders(77, xid=200))
    log.close()
    topics.wait_until_shown()
    report = KafkaReader(topics).check(deep=True)
    assert report.is_whole, report.faults
    with pytest.raises(ConfigurationError, match="has continued it"):
        to_topic(tmp_path / "log", topics, nothing)


@pytest.mark.parametrize("parts", [0, 2])
def test_copy_into_a_topic_that_was_killed_resumes_at_its_position(topics: Topics, tmp_path: Path, parts: int) -> None:
    """Nothing twice, nothing skipped: every part is one Kafka transaction with its cut."""
    into_folder(tmp_path / "log", history_of_a_shop())
    countdown = killing(parts)
    with pytest.raises(Killed):
        to_topic(tmp_path / "log", topics, lambda first, last: next(countdown))
    to_topic(tmp_path / "log", topics, nothing)
    topics.wait_until_shown()
    assert_equal(KafkaReader(topics), FolderReader(tmp_path / "log"))


@pytest.mark.parametrize("parts", [0, 2])
def test_a_copy_into_a_folder_that_was_killed_is_no_log_until_it_is_whole(
    topics: Topics, tmp_path: Path, parts: int
) -> None:
    """A daemon that opened half a copy would give offsets away that the other half has."""
    into_topic(topics, history_of_a_shop())
    copy = tmp_path / "copy"
    countdown = killing(parts)
    with pytest.raises(Killed):
        to_folder(topics, copy, lambda first, last: next(countdown), segment_bytes=500)
    with pytest.raises(CdcflowError):
        FileLog.open(copy, IDENTITY)
    to_folder(topics, copy, nothing)
    assert_equal(FolderReader(copy), KafkaReader(topics))


def test_rows_in_the_journal_are_copied_when_they_are_sealed(topics: Topics, tmp_path: Path) -> None:
    """While a daemon runs a copy takes what is sealed, and reports what is left."""
    log = FileLog.open(tmp_path / "log", IDENTITY)
    writer = Writer.of(log)
    put(writer, history_of_a_shop()[:4])
    writer.put(orders(70, 71, xid=300))
    assert to_topic(tmp_path / "log", topics, nothing).left == 2
    log.close()
    assert to_topic(tmp_path / "log", topics, nothing).left == 0
    topics.wait_until_shown()
    assert_equal(KafkaReader(topics), FolderReader(tmp_path / "log"))


def test_topic_of_another_log_is_refused(topics: Topics, tmp_path: Path) -> None:
    """A mistyped name would stop another user's daemon."""
    daemon = KafkaLog.open(topics, replace(IDENTITY, database="other"))
    into_folder(tmp_path / "log", history_of_a_shop()[:1])
    with pytest.raises(ConfigurationError, match="another log"):
        to_topic(tmp_path / "log", topics, nothing)
    Writer.of(daemon).put(orders(1))
    daemon.close()
    topics.wait_until_shown()
    into_topic(other := replace(topics, name=f"{topics.name}-other"), history_of_a_shop()[:1])
    with pytest.raises(ConfigurationError, match="another log"):
        to_folder(other, tmp_path / "log", nothing)


def settings(folder: Path, name: str, log: dict[str, object]) -> str:
    path = folder / name
    source = {"kind": "postgres", "url": "postgresql://cdc@127.0.0.1:1/none"}
    path.write_text(yaml.safe_dump({"source": source, "log": log}))
    return str(path)


def test_the_command_copies_by_two_settings_files(topics: Topics, tmp_path: Path) -> None:
    """What an operator types on the day of the move."""
    into_folder(tmp_path / "log", history_of_a_shop())
    folder = settings(tmp_path, "folder.yaml", {"path": "log"})
    topic = settings(tmp_path, "topic.yaml", {"kafka": {"brokers": topics.brokers, "topic": topics.name}})
    run = CliRunner().invoke
    done = run(app, ["log", "copy", "--to", topic, "--config", folder])
    assert done.exit_code == 0, done.output
    assert "the copy has everything up to offset" in done.output
    back = settings(tmp_path, "back.yaml", {"path": "back"})
    said = json.loads(run(app, ["log", "copy", "--to", back, "--config", topic, "--json"]).stdout)
    assert said["next_offset"] == FolderReader(tmp_path / "log").newest_checkpoint().next_offset
    assert_equal(FolderReader(tmp_path / "back"), FolderReader(tmp_path / "log"))
    refused = run(app, ["log", "copy", "--to", back, "--config", folder])
    assert refused.exit_code == failure.exit_code(ConfigurationError(""))
