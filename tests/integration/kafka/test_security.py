"""A broker that asks who is there, over TLS: who may not come in hears it by name, and no secret is told."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from ipaddress import ip_address
from pathlib import Path

import pytest
import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from cdcflow import wiring
from cdcflow.config import KafkaLog as Settings
from cdcflow.config import load
from cdcflow.errors import ConfigurationError
from cdcflow.model.position import SourceIdentity
from cdcflow.testing.kafka import KafkaBroker
from cdcflow.testing.sinks import Writer, orders

IDENTITY = SourceIdentity("postgres", "7301", "shop", "1")
CANARY = "s3cr3t-canary"
pytestmark = pytest.mark.kafka


def certificate() -> tuple[str, str]:
    """A key and a certificate for 127.0.0.1 that signs itself, as PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=2))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    pkcs8 = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return pkcs8.decode(), made.public_bytes(serialization.Encoding.PEM).decode()


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[KafkaBroker, Path]]:
    """A broker with SASL_SSL, and its certificate's file."""
    key, pem = certificate()
    authority = tmp_path_factory.mktemp("tls") / "ca.pem"
    authority.write_text(pem)
    login = f'username="admin" password="{CANARY}" user_admin="{CANARY}" user_cdcflow="{CANARY}"'
    settings = {
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.clients.plain.sasl.jaas.config": (
            f"org.apache.kafka.common.security.plain.PlainLoginModule required {login};"
        ),
        "ssl.keystore.type": "PEM",
        "ssl.keystore.key": _one_line(key),
        "ssl.keystore.certificate.chain": _one_line(pem),
    }
    with KafkaBroker(settings, protocol="SASL_SSL") as broker:
        yield broker, authority


def _one_line(pem: str) -> str:
    return pem.strip().replace("\n", "\\n")


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
    """The settings as people have them: TLS with their own authority, a user, a password from elsewhere."""
    broker, authority = secured
    (tmp_path / "ca.pem").write_bytes(authority.read_bytes())
    monkeypatch.setenv("KAFKA_PASSWORD", CANARY)
    config = load(settings(tmp_path, broker))
    log = wiring.open_log(config, IDENTITY)
    Writer.of(log).put(orders(1))
    log.close()
    assert wiring.log_reader(config).newest_checkpoint().next_offset == 2


@pytest.mark.parametrize("wrong", ["password", "authority", "user"])
def test_login_that_is_refused_is_told_at_once_and_without_the_secret(
    secured: tuple[KafkaBroker, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: str
) -> None:
    """S03: the library would go on trying for ever, and say only that it waited in vain."""
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
