"""Settings of published topics, and the publisher next to the daemon."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any, cast

import pytest

from cdcflow.capture.capture import Capture
from cdcflow.config import Config, PublishKafka, load
from cdcflow.daemon import daemon
from cdcflow.errors import ConfigurationError, InvariantViolated
from cdcflow.publish.assembly import rules_of

BASIC = """
source: {{kind: postgres, url: "postgresql://cdc@localhost/shop"}}
log: {{path: log}}
publish:
  kafka:
    brokers: localhost:9092
    topic_prefix: shop
    {line}
"""


def loaded(folder: Path, line: str) -> Config:
    file = folder / "cdcflow.yaml"
    file.write_text(BASIC.format(line=line))
    return load(file)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("options: {transactional.id: mine}", "sets transactional.id, which cdcflow sets itself"),
        ("options: {ssl.key.password: hush}", "holds a secret"),
        ("password: hush", "must be a reference"),
        ("format: avro", "registry belongs to the formats avro and protobuf"),
        ("registry: {url: http://localhost:8081}", "registry belongs to the formats avro and protobuf"),
        ("decimal_handling_mod: string", "did you mean publish.kafka.decimal_handling_mode"),
        ("skipped_operations: [x]", "must be"),
        ("topic_prefix2: a b", "unknown setting"),
    ],
)
def test_error_about_a_wrong_setting_names_its_place(tmp_path: Path, line: str, said: str) -> None:
    """A user who moves from Debezium copies settings by hand, and may write a secret where it does not belong."""
    with pytest.raises(ConfigurationError) as told:
        loaded(tmp_path, line)
    assert said in str(told.value)
    assert "cdcflow.yaml:" in str(told.value)
    assert "hush" not in str(told.value)


def test_what_is_not_set_is_what_debeziums_connector_does(tmp_path: Path) -> None:
    """The two connectors have different defaults for times."""
    publish = loaded(tmp_path, "partitions: 3").publish
    assert publish is not None
    settings: PublishKafka = publish.kafka
    assert rules_of(settings, "postgres").modes.time == "adaptive"
    assert rules_of(settings, "mysql").modes.time == "adaptive_time_microseconds"
    assert rules_of(settings, "postgres").skipped == {"t"}
    assert not rules_of(settings, "postgres").transactions


def test_files_are_named_from_the_folder_of_the_settings(tmp_path: Path) -> None:
    """A service manager starts the daemon anywhere; a password file next to the settings must be found from there,
    too."""
    lines = (
        "username: shop",
        "password: ${file:secrets/kafka}",
        "options: {ssl.ca.location: ca.pem, sasl.mechanism: PLAIN}",
    )
    publish = loaded(tmp_path, "\n    ".join(lines)).publish
    assert publish is not None
    assert publish.kafka.password == f"${{file:{tmp_path / 'secrets/kafka'}}}"
    assert publish.kafka.options == {"ssl.ca.location": str(tmp_path / "ca.pem"), "sasl.mechanism": "PLAIN"}


class Waiting:
    """A capture or publisher that runs until it is asked to stop, or fails."""

    def __init__(self, failure: Exception | None = None) -> None:
        self.stopped = threading.Event()
        self._failure = failure

    def run(self) -> None:
        if self._failure is not None:
            raise self._failure
        assert self.stopped.wait(30)

    def seal_soon(self) -> None:
        """Nothing is captured."""

    def stop(self) -> None:
        self.stopped.set()

    def status(self) -> dict[str, Any]:
        return {}


def test_publisher_that_cannot_continue_ends_the_daemon_with_its_reason(tmp_path: Path) -> None:
    """A daemon that captures but no longer publishes looks healthy, and no operator would notice."""
    capture, publisher = Waiting(), Waiting(InvariantViolated("another process publishes"))
    config = loaded(tmp_path, "partitions: 1")
    with pytest.raises(InvariantViolated, match="another process"):
        daemon.run(config, cast(Capture, capture), lambda event, fields: None, serve=False, publisher=publisher)
    assert capture.stopped.is_set()


def test_the_publisher_stops_with_the_capture(tmp_path: Path) -> None:
    """SIGTERM must end the process, not leave a thread running."""
    capture, publisher = Waiting(), Waiting()
    capture.stop()
    config = loaded(tmp_path, "partitions: 1")
    daemon.run(config, cast(Capture, capture), lambda event, fields: None, serve=False, publisher=publisher)
    assert publisher.stopped.is_set()
