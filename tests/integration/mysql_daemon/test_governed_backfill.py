"""A backfill of a running daemon that is held by limits, on MySQL or MariaDB."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.servers.mysql import MySQLDatabase
from tests.support.daemon.governed import ROWS, Governed, limits_hold_and_resume
from tests.support.daemon.running_shop import DaemonFolder
from tests.support.polling import wait_until

pytestmark = [pytest.mark.mysql, pytest.mark.long]


def test_limits_hold_a_backfill_until_it_resumes_by_itself(
    mysql_database: MySQLDatabase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A source that is busy must not be read, no operator has to watch it, and a budget outlives the process."""
    mysql_database.execute("CREATE TABLE small (id int PRIMARY KEY)", "INSERT INTO small VALUES (1)")
    mysql_database.execute("CREATE TABLE big (id int PRIMARY KEY, pad text)")
    for first in range(1, ROWS, 500):
        rows = ", ".join(f"({number}, repeat('x', 500))" for number in range(first, first + 500))
        mysql_database.execute(f"INSERT INTO big VALUES {rows}")
    monkeypatch.chdir(tmp_path)

    @contextlib.contextmanager
    def waiting() -> Iterator[None]:
        with contextlib.closing(mysql_database.connect(autocommit=False)) as holder, holder.cursor() as cursor:
            cursor.execute("SELECT * FROM small WHERE id = 1 FOR UPDATE")
            waiter = threading.Thread(target=mysql_database.execute, args=("UPDATE small SET id = 1 WHERE id = 1",))
            waiter.start()
            waits = "SELECT count(*) FROM information_schema.INNODB_TRX WHERE trx_state = 'LOCK WAIT'"
            wait_until(lambda: mysql_database.execute(waits) == [(1,)], "a session to wait")
            yield
            holder.rollback()
            waiter.join()

    server, schema = mysql_database.server, mysql_database.name
    source = {"kind": server.flavor, "url": server.url(), "tables": [f"{schema}.small"], "tls": {"mode": "off"}}
    here = DaemonFolder(tmp_path, source, f"{schema}.small")
    try:
        here.start()
        limits_hold_and_resume(Governed(here, f"{schema}.big", waiting))
    finally:
        here.kill()
