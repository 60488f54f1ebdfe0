"""A broker that authenticates clients, over TLS, with its own certificate."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from contextlib import contextmanager
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from tests.servers.kafka import KafkaBroker

CANARY = "s3cr3t-canary"
"""The password of the user cdcflow."""


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


@contextmanager
def secured_broker(folder: Path) -> Iterator[tuple[KafkaBroker, Path]]:
    """A broker with SASL_SSL, and its certificate's file in this folder."""
    key, pem = certificate()
    authority = folder / "ca.pem"
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


__all__ = ["CANARY", "certificate", "secured_broker"]
