"""The servers that all other tests here rely on."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.servers.mysql import Flavor, MySQLDatabase, MySQLServer
from tests.support.polling import wait_until

ROOT = Path(__file__).parents[3]


@pytest.mark.mysql
def test_server_logs_whole_rows_with_their_columns_described(mysql_server: MySQLServer) -> None:
    """M72, M08: without these settings half of what is tested here would be tested on something else."""
    asked = "SELECT @@log_bin, @@binlog_format, @@binlog_row_image, @@binlog_row_metadata"
    assert mysql_server.execute(asked) == [(1, "ROW", "FULL", "FULL")]


@pytest.mark.mysql
def test_killed_server_restarts_with_all_committed_rows(own_mysql: MySQLServer) -> None:
    """Tests that kill a server must not lose what it had acknowledged."""
    database = own_mysql.create_database("kept")
    database.execute("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    own_mysql.kill()
    own_mysql.start()
    assert database.execute("SELECT id FROM t") == [(1,)]


@pytest.mark.mysql
def test_databases_are_separate(mysql_database: MySQLDatabase) -> None:
    """Each test has its own tables."""
    assert mysql_database.execute("SHOW TABLES") == []
    assert (
        mysql_database.name
        in mysql_database.server.execute("SELECT group_concat(schema_name) FROM information_schema.schemata")[0][0]
    )


@pytest.mark.spread(1)
@pytest.mark.mysql
def test_server_ends_with_the_process_that_started_it(flavor: Flavor) -> None:
    """A killed test run must leave no server running, nor its directory."""
    program = (
        "import os, signal; from tests.servers.mysql import MySQLServer\n"
        f"server = MySQLServer({flavor!r}).__enter__()\n"
        "print(server._process.pid, server.directory, flush=True); os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, cwd=ROOT)
    pid, directory = done.stdout.split()
    wait_until(lambda: not Path(directory).exists(), "the server's directory to be removed")
    wait_until(lambda: not Path(f"/proc/{pid}").exists(), "the server to end")
