"""An authority of the tests' own, which signs certificates."""

from __future__ import annotations

import datetime as dt
import ipaddress
import os
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

HERE = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
ELSEWHERE = x509.DNSName("db.example.com")


class Authority:
    """Signs certificates; what it makes is in a folder that servers may read."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder = folder
        self._name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
        self._key = ec.generate_private_key(ec.SECP256R1())
        self.path = folder / f"{name}.pem"
        own = self._built(self._name, self._key.public_key()).add_extension(x509.BasicConstraints(True, None), True)
        self._write(self.path, own.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))

    def certificate(self, name: str, *hosts: x509.GeneralName) -> dict[str, str]:
        """The settings of a server with a certificate for these hosts."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
        built = self._built(subject, key.public_key()).add_extension(x509.SubjectAlternativeName(hosts), False)
        certificate, private = self.folder / f"{name}.crt", self.folder / f"{name}.key"
        pem = serialization.Encoding.PEM
        self._write(certificate, built.sign(self._key, hashes.SHA256()).public_bytes(pem))
        plain = (serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        self._write(private, key.private_bytes(pem, *plain))
        return {"ssl_ca": str(self.path), "ssl_cert": str(certificate), "ssl_key": str(private)}

    def _built(self, subject: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
        begin = dt.datetime.now(dt.UTC) - dt.timedelta(hours=1)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(begin)
            .not_valid_after(begin + dt.timedelta(days=2))
        )

    def _write(self, path: Path, content: bytes) -> None:
        path.write_bytes(content)
        if os.geteuid() == 0:  # the server runs as another user
            path.chmod(0o644)
