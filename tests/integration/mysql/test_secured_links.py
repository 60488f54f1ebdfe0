"""Captures over TLS, with an authority and certificates of the tests' own."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.servers.mysql import MySQLServer
from tests.support.certificates import ELSEWHERE, HERE, Authority
from tests.support.mysql.controlled_source import MakeMySQLCapture

from cdcflow.errors import ConfigurationError, SourceUnavailable

pytestmark = pytest.mark.mysql


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


@pytest.mark.spread(1)
def test_user_that_must_show_a_certificate_shows_it_on_every_connection(
    secured: MySQLServer, authority: Authority, make_capture: MakeMySQLCapture
) -> None:
    """The server knows a client by its certificate: catalog, chunks, marks, stream, and the control table."""
    database = secured.create_database("shop")
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY)",
        "INSERT INTO t VALUES (1)",
        "CREATE USER certified@'127.0.0.1' REQUIRE SUBJECT '/CN=capture'",
        "GRANT ALL ON *.* TO certified@'127.0.0.1'",
    )
    url, ca = secured.url("certified"), str(authority.path)
    shown = authority.certificate("capture")
    tls = {"mode": "verify", "ca": ca, "cert": shown["ssl_cert"], "key": private(shown["ssl_key"])}
    capture = make_capture(database, url=url, tls=tls)
    capture.prepare()
    database.execute("INSERT INTO t VALUES (2)")
    assert [(row["_op"], row["id"]) for row in capture.changes()] == [("c", 2)]
    assert [row["id"] for row in capture.rows("t", 2)] == [1, 2]
    with pytest.raises(SourceUnavailable, match=r"is refused without a password(.|\n)*set source.tls.cert"):
        make_capture(database, url=url, tls={"mode": "verify", "ca": ca}).prepare()
    other = authority.certificate("another")
    refused = {**tls, "cert": other["ssl_cert"], "key": private(other["ssl_key"])}
    with pytest.raises(SourceUnavailable, match="is refused"):
        make_capture(database, url=url, tls=refused).prepare()


@pytest.mark.spread(1)
def test_certificate_that_cannot_be_used_is_named(
    own_mysql: MySQLServer, authority: Authority, make_capture: MakeMySQLCapture
) -> None:
    """A wrong path, a key of another certificate, a key with a passphrase, for which a daemon has no terminal."""
    database = own_mysql.create_database("shop")
    one, two = authority.certificate("one"), authority.certificate("two")
    locked = authority.folder / "locked.key"
    locked.write_text("-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n")
    for certificate, key, reason in (
        ("/none.pem", private(one["ssl_key"]), "No such file"),
        (one["ssl_cert"], private(two["ssl_key"]), "does not belong to the certificate"),
        (one["ssl_cert"], private(str(locked)), "cannot be read, or has a passphrase"),
        (one["ssl_cert"], one["ssl_cert"], "every user of this machine can read"),
    ):
        tls = {"mode": "verify", "ca": str(authority.path), "cert": certificate, "key": key}
        with pytest.raises(ConfigurationError, match=reason) as refused:
            make_capture(database, tls=tls).prepare()
        assert refused.value.runbook == "tls"


def private(path: str) -> str:
    """A copy of a key that only its owner may read."""
    copy = Path(f"{path}.private")
    copy.write_text(Path(path).read_text())
    copy.chmod(0o600)
    return str(copy)
