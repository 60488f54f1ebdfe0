"""The servers that the other tests rely on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest
from tests.servers.postgres import Database, PostgresServer
from tests.support.polling import wait_until

pytestmark = pytest.mark.postgres
ROOT = Path(__file__).parents[3]


def test_server_serves_logical_decoding(database: Database) -> None:
    """Every source test needs this much."""
    assert database.execute("SHOW wal_level") == [("logical",)]
    assert database.execute("SELECT current_database()") == [(database.name,)]
    assert database.server.psql("SELECT 1", database.name) == "1\n"


def test_killed_server_forgets_what_was_not_written_and_restarts(own_postgres: PostgresServer) -> None:
    """The crash tests rely on a kill that hits all processes at once (E2: an asynchronous commit is erased)."""
    own_postgres.reload(wal_writer_delay="10s")
    own_postgres.execute("CREATE TABLE t (a int)")
    with own_postgres.connect() as session:
        session.execute("SET synchronous_commit = off")
        session.execute("INSERT INTO t VALUES (1)")
        assert own_postgres.execute("SELECT a FROM t") == [(1,)]
        own_postgres.kill()
    own_postgres.start()
    assert own_postgres.execute("SELECT a FROM t") == []


def test_server_dies_with_the_process_that_started_it() -> None:
    """A killed test run must not leave servers that use up the machine."""
    script = (
        "from tests.servers.postgres import PostgresServer\nimport time\n"
        "s = PostgresServer()\ns.start()\nprint(s.port, s.directory, flush=True)\ntime.sleep(600)\n"
    )
    owner = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, cwd=ROOT)
    assert owner.stdout is not None
    port, directory = owner.stdout.readline().split()
    psycopg.connect(f"postgresql://postgres@127.0.0.1:{port}/postgres").close()
    os.kill(owner.pid, signal.SIGKILL)
    owner.wait()
    owner.stdout.close()
    wait_until(lambda: not Path(directory).exists(), "the server's directory to be removed")
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(f"postgresql://postgres@127.0.0.1:{port}/postgres")
