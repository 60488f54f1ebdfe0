"""Managed services and poolers, emulated on a real server: by the settings, roles and functions that only they have.

None of these services was at hand. What is tested is what cdcflow makes of their signs, not what they do.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.servers import debian
from tests.servers.postgres import Database, PostgresServer
from tests.support.polling import wait_until
from tests.support.postgres.controlled_source import MakeCapture

from cdcflow.capture.ports.findings import Finding
from cdcflow.demo.servers.cached import command
from cdcflow.demo.servers.processes import OrdinaryUser, free_port
from cdcflow.errors import ConfigurationError
from cdcflow.reports.doctor_script import script
from cdcflow.sources.postgres.connection import Connector
from cdcflow.sources.postgres.platforms import AURORA, OWN, RDS, SERVICES, Platform, platform_of

pytestmark = pytest.mark.postgres


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with PostgresServer(settings={"wal_level": "replica"}) as made:
        made.execute("CREATE ROLE capture LOGIN; CREATE ROLE rds_replication; CREATE TABLE items (id int PRIMARY KEY)")
        yield made


@pytest.fixture
def signed(server: PostgresServer, request: pytest.FixtureRequest) -> Iterator[Platform]:
    """The server looks like one of this service."""
    platform: Platform = request.param
    if platform is AURORA:
        server.execute("CREATE FUNCTION aurora_version() RETURNS text LANGUAGE sql AS $$ SELECT '17.4' $$")
    signs = dict.fromkeys((RDS if platform is AURORA else platform).signs[:1], "x")
    server.reload(**signs)
    yield platform
    server.reload(**dict.fromkeys(signs, ""))
    server.execute("DROP FUNCTION IF EXISTS aurora_version(); REVOKE rds_replication FROM capture")


def found_by_doctor(server: PostgresServer, make_capture: MakeCapture) -> dict[str, Finding]:
    database = Database(server, "postgres")
    capture = make_capture(database, url=database.url_as("capture"), tables=["public.items"])
    return {f.subject: f for f in capture.source.doctor()}


@pytest.mark.parametrize("signed", SERVICES, indirect=True, ids=lambda platform: platform.name)
def test_each_service_gets_its_own_remedies(
    server: PostgresServer, signed: Platform, make_capture: MakeCapture
) -> None:
    """On a managed service ALTER SYSTEM is not permitted: a remedy that the server refuses is useless."""
    with server.connect(user="capture") as connection:
        assert platform_of(connection) is signed
    found = found_by_doctor(server, make_capture)
    assert signed.name in found["server"].text
    assert found["wal_level"].remedy == signed.logical
    assert "ALTER SYSTEM" not in "\n".join(f.remedy or "" for f in found.values())
    expected = 'GRANT rds_replication TO "capture"' if signed.grant else 'ALTER ROLE "capture" REPLICATION'
    assert found["role"].sql == (expected,)
    with pytest.raises(ConfigurationError) as refused:
        make_capture(Database(server, "postgres")).prepare()
    assert signed.logical in str(refused.value)


@pytest.mark.parametrize("signed", [RDS, AURORA], indirect=True, ids=lambda platform: platform.name)
def test_member_of_rds_replication_may_replicate(
    server: PostgresServer, signed: Platform, make_capture: MakeCapture
) -> None:
    """There the attribute REPLICATION stays false: doctor printed an ALTER ROLE that is refused."""
    server.execute("GRANT rds_replication TO capture")
    role = found_by_doctor(server, make_capture)["role"]
    assert (role.level, role.text) == ("ok", "capture may replicate, as a member of rds_replication")


def test_roles_from_a_dump_do_not_identify_a_managed_service(server: PostgresServer, make_capture: MakeCapture) -> None:
    """A self-managed server that was loaded from an RDS dump has RDS's roles, and still needs ALTER SYSTEM."""
    server.execute("GRANT rds_replication TO capture")
    with server.connect() as connection:
        assert platform_of(connection) is OWN
    found = found_by_doctor(server, make_capture)
    assert found["wal_level"].sql == ("ALTER SYSTEM SET wal_level = logical",)
    assert found["role"].sql == ('ALTER ROLE "capture" REPLICATION',)
    server.execute("REVOKE rds_replication FROM capture")


def test_script_of_doctor_fixes_everything(own_postgres: PostgresServer, make_capture: MakeCapture) -> None:
    """A remedy is a promise: the test runs the output of `doctor --sql` unchanged, and then the restart that it
    names.
    """
    own_postgres.restart(wal_level="replica")
    shop = own_postgres.create_database("shop")
    shop.execute("CREATE ROLE capture LOGIN; CREATE SCHEMA s; CREATE TABLE s.items (id int PRIMARY KEY, v text)")
    shop.execute('CREATE TABLE s."a  b" (id int PRIMARY KEY)')
    settings = {"url": shop.url_as("capture"), "tables": ["s.*"], "publication": "by_owner"}
    lines = list(script(make_capture(shop, **settings).source.doctor()))
    statements = [line for line in lines if line and not line.startswith("--")]
    assert len(statements) == len(set(statements))
    assert "-- then: restart the server" in lines
    own_postgres.psql("\n".join(lines), "shop")
    own_postgres.restart(wal_level="")  # ALTER SYSTEM's own file has it
    left = [f for f in make_capture(shop, **settings).source.doctor() if f.level == "error"]
    assert left == []
    assert make_capture(shop, **settings).prepare().position is not None


def test_timeout_of_transactions_is_not_the_walsenders(database: Database) -> None:
    """A large transaction takes longer to decode than a transaction may take: it was sent again and again."""
    if database.server.version < 170000:
        return  # the setting does not exist
    database.execute(f"ALTER DATABASE {database.name} SET transaction_timeout = '200ms'")
    connector = Connector(database.url, lambda: None)
    for opened in (connector.connect("test"), connector.replicate()):
        assert opened.execute("SHOW transaction_timeout").fetchone() == ("0",)
        connector.discard(opened)


# ── poolers ─────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def pgbouncer(database: Database, request: pytest.FixtureRequest) -> Iterator[str]:
    """The address of a PgBouncer before the test's database. It lets the session's settings pass where the parameter is
    set."""
    with tempfile.TemporaryDirectory(prefix="cdcflow-pgbouncer-") as room:
        yield from _running_pgbouncer(database, Path(room), "extra_float_digits, options" if request.param else "")


def _running_pgbouncer(database: Database, room: Path, ignored: str) -> Iterator[str]:
    root = debian.unpacked("pgbouncer", "bookworm")
    port, user = free_port(), OrdinaryUser.choose("PgBouncer")
    (room / "users.txt").write_text('"postgres" ""\n')
    (room / "pgbouncer.ini").write_text(
        f"[databases]\n* = host=127.0.0.1 port={database.server.port}\n[pgbouncer]\nlisten_addr = 127.0.0.1\n"
        f"listen_port = {port}\nauth_type = trust\nauth_file = {room}/users.txt\npool_mode = session\n"
        f"unix_socket_dir =\nignore_startup_parameters = {ignored or 'extra_float_digits'}\n"
    )
    room.chmod(0o755)
    with (room / "log").open("wb") as log:
        started = subprocess.Popen(
            [*command(root, "usr/sbin/pgbouncer"), room / "pgbouncer.ini"],
            stdout=subprocess.DEVNULL,
            stderr=log,
            env={"PATH": os.environ["PATH"]},
            **user.process(),
        )
    try:

        def listens() -> bool:
            assert started.poll() is None, (room / "log").read_text()
            return b"listening on" in (room / "log").read_bytes()

        wait_until(listens, "PgBouncer to listen")
        yield f"postgresql://postgres@127.0.0.1:{port}/{database.name}"
    finally:
        started.terminate()
        started.wait(30)


@pytest.mark.spread(2)
@pytest.mark.parametrize("pgbouncer", [False, True], indirect=True, ids=["by default", "settings pass"])
def test_pgbouncer_is_named(database: Database, pgbouncer: str, make_capture: MakeCapture) -> None:
    """It refuses replication: "unsupported startup parameter" did not name a remedy, and was retried indefinitely."""
    database.execute("CREATE TABLE items (id int PRIMARY KEY)")
    capture = make_capture(database, url=pgbouncer)
    with pytest.raises(
        ConfigurationError, match=r"pooler \(PgBouncer(.|\n)*set source.url to the address of the server"
    ):
        capture.prepare()
    wrong = [f for f in make_capture(database, url=pgbouncer).source.doctor() if f.level == "error"]
    assert any("pooler" in f.text for f in wrong), wrong
