"""A broker that authenticates, over TLS: a refused client gets an error that names the reason, and no secret is
shown.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from tests.servers.kafka import KafkaBroker
from tests.support.kafka.secured_broker import CANARY, certificate, secured_broker

from cdcflow import wiring
from cdcflow.config import KafkaLog as Settings
from cdcflow.config import load
from cdcflow.errors import ConfigurationError
from cdcflow.model.position import SourceIdentity
from cdcflow.testing.sinks import Writer, orders

IDENTITY = SourceIdentity("postgres", "7301", "shop", "1")
pytestmark = pytest.mark.kafka


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[KafkaBroker, Path]]:
    """A broker with SASL_SSL, and its certificate's file."""
    with secured_broker(tmp_path_factory.mktemp("tls")) as found:
        yield found


def settings(folder: Path, broker: KafkaBroker, **changed: object) -> Path:
    """A settings file for that broker; `password` is in the environment."""
    options = {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", "ssl.ca.location": "ca.pem"}
    kafka = {
        "brokers": broker.address,
        "topic": "secured",
        "username": "cdcflow",
        "password": "${env:KAFKA_PASSWORD}",
        "options": options,
        **changed,
    }
    path = folder / "cdcflow.yaml"
    source = {"kind": "postgres", "url": "postgresql://cdc@127.0.0.1:1/none"}
    path.write_text(yaml.safe_dump({"source": source, "log": {"kafka": kafka}}))
    return path


def test_login_over_tls_opens_the_log(
    secured: tuple[KafkaBroker, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The settings as users have them: TLS with their own authority, a user, a password from elsewhere."""
    broker, authority = secured
    (tmp_path / "ca.pem").write_bytes(authority.read_bytes())
    monkeypatch.setenv("KAFKA_PASSWORD", CANARY)
    config = load(settings(tmp_path, broker))
    log = wiring.open_log(config, IDENTITY)
    Writer.of(log).put(orders(1))
    log.close()
    assert wiring.log_reader(config).newest_checkpoint().next_offset == 2


@pytest.mark.parametrize("wrong", ["password", "authority", "user"])
def test_refused_login_is_reported_at_once_and_without_the_secret(
    secured: tuple[KafkaBroker, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: str
) -> None:
    """S03: the library would retry indefinitely, and report only a timeout."""
    broker, authority = secured
    pem = certificate()[1] if wrong == "authority" else authority.read_text()
    (tmp_path / "ca.pem").write_text(pem)
    monkeypatch.setenv("KAFKA_PASSWORD", f"{CANARY}-not" if wrong == "password" else CANARY)
    config = load(settings(tmp_path, broker, **({"username": "nobody"} if wrong == "user" else {})))
    assert isinstance(config.log, Settings)
    with pytest.raises(ConfigurationError, match=r"log\.kafka\.username, password and the security options") as caught:
        wiring.open_log(config, IDENTITY)
    assert CANARY not in str(caught.value)
    assert CANARY not in repr(wiring.topics(config.log.kafka))
