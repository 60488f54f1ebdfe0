"""Makes the dev stack's passwords and certificate into one folder, once. Existing files stay.

    python prepare.py FOLDER HOST…

The certificate is MySQL's and good for each HOST; its authority is created for it, and the authority's key is deleted.
"""

from __future__ import annotations

import datetime
import ipaddress
import os
import secrets
import sys
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

PASSWORDS = (
    "postgres-admin",
    "postgres-shop",
    "postgres-capture",
    "mysql-admin",
    "mysql-shop",
    "mysql-capture",
    "objects-access",
    "objects-secret",
    "http-token",
)
CERTIFICATE = ("mysql-ca.pem", "mysql-cert.pem", "mysql-key.pem")
VALID = datetime.timedelta(days=3650)


def main(folder: Path, hosts: list[str]) -> None:
    for name in PASSWORDS:
        if not (folder / name).exists():
            # Hexadecimal digits need no quotes anywhere.
            put(folder / name, secrets.token_hex(24).encode())
    if not all((folder / name).exists() for name in CERTIFICATE):
        for name, text in zip(CERTIFICATE, certificate(hosts), strict=True):
            put(folder / name, text)


def put(path: Path, content: bytes) -> None:
    """Whole or not at all, and for the owner and the group alone."""
    room = path.with_name(f".{path.name}")
    room.unlink(missing_ok=True)
    with os.fdopen(os.open(room, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o440), "wb") as file:
        file.write(content)
    room.rename(path)


def certificate(hosts: list[str]) -> tuple[bytes, bytes, bytes]:
    """The authority's certificate, the server's, and the server's key."""
    authority, server = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    issuer = name_of("cdcflow dev stack")
    root = (
        begun(issuer, issuer, authority.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(authority.public_key()), critical=False)
        .sign(authority, hashes.SHA256())
    )
    signed = (
        begun(name_of(hosts[0]), issuer, server.public_key())
        .add_extension(x509.SubjectAlternativeName([alternative(host) for host in hosts]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key()), critical=False)
        .sign(authority, hashes.SHA256())
    )
    key = server.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    pem = serialization.Encoding.PEM
    return root.public_bytes(pem), signed.public_bytes(pem), key


def begun(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + VALID)
    )


def name_of(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def alternative(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
