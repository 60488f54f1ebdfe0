"""Captures over TLS, with an authority and certificates of the tests' own."""

from __future__ import annotations

import datetime as dt
import ipaddress
import os
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from tests.servers.mysql import MySQLServer
from tests.support.mysql.controlled_source import MakeMySQLCapture

from cdcflow.errors import ConfigurationError

pytestmark = pytest.mark.mysql

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


@pytest.fixture
def authority(own_mysql: MySQLServer) -> Authority:
    return Authority(own_mysql.directory, "authority")


@pytest.fixture
def secured(own_mysql: MySQLServer, authority: Authority) -> MySQLServer:
    """A server whose certificate is good for 127.0.0.1."""
    own_mysql.restart(**authority.certificate("here", HERE))
    return own_mysql


@pytest.mark.spread(1)
@pytest.mark.parametrize("mode", ["verify", "verify-ca"])
def test_whole_capture_uses_a_verified_link(
    secured: MySQLServer, authority: Authority, make_capture: MakeMySQLCapture, mode: str
) -> None:
    """S02, M58: catalog, chunks, marks and the stream itself; only TLS sees the bytes in plain text."""
    database = secured.create_database("shop")
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v longtext)",
        "INSERT INTO t VALUES (1, repeat('x', 100000)), (2, 'y')",
        "CREATE USER only_secure@'127.0.0.1' REQUIRE SSL",
        "GRANT ALL ON *.* TO only_secure@'127.0.0.1'",
    )
    url = secured.url("only_secure")
    capture = make_capture(database, url=url, tls={"mode": mode, "ca": str(authority.path)})
    capture.prepare()
    database.execute("INSERT INTO t VALUES (3, repeat('z', 3000000)), (4, NULL)", "DELETE FROM t WHERE id = 2")
    assert [(row["_op"], row["id"]) for row in capture.changes()] == [("c", 3), ("c", 4), ("d", 2)]
    assert [row["id"] for row in capture.rows("t", 2)] == [1, 3, 4]


@pytest.mark.spread(1)
def test_certificate_for_another_host_is_refused_unless_the_authority_suffices(
    own_mysql: MySQLServer, authority: Authority, make_capture: MakeMySQLCapture
) -> None:
    """S02: `verify` means the host's name too."""
    own_mysql.restart(**authority.certificate("elsewhere", ELSEWHERE))
    database = own_mysql.create_database("shop")
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    with pytest.raises(ConfigurationError, match=r"no secure connection(.|\n)*source.tls"):
        make_capture(database, tls={"mode": "verify", "ca": str(authority.path)}).prepare()
    make_capture(database, tls={"mode": "verify-ca", "ca": str(authority.path)}).prepare()


@pytest.mark.spread(1)
@pytest.mark.parametrize("mode", ["verify", "verify-ca"])
def test_certificate_of_another_authority_is_refused(
    secured: MySQLServer, make_capture: MakeMySQLCapture, mode: str
) -> None:
    """S02: also one of the same name."""
    folder = secured.directory / "other"
    folder.mkdir()
    impostor = Authority(folder, "authority")
    database = secured.create_database("shop")
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    with pytest.raises(ConfigurationError, match="no secure connection"):
        make_capture(database, tls={"mode": mode, "ca": str(impostor.path)}).prepare()
