"""Captures over TLS, with an authority and certificates of the tests' own."""

from __future__ import annotations

import pytest
from tests.servers.mysql import MySQLServer
from tests.support.certificates import ELSEWHERE, HERE, Authority
from tests.support.mysql.controlled_source import MakeMySQLCapture

from cdcflow.errors import ConfigurationError

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
