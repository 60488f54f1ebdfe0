"""The settings of a backfill that change while a daemon runs on MySQL or MariaDB."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.servers.mysql import MySQLDatabase
from tests.support.daemon.running_backfill import Backfilled, Execute, Sizes, each_setting_applies
from tests.support.daemon.running_shop import DaemonFolder

pytestmark = [pytest.mark.mysql, pytest.mark.long]

SIZES = Sizes(slow=1000, capped=120, few=1000, many=2000)
"""No chunk is shortened below 1,000 rows because of the time that it takes (`engine.key_chunks`)."""


def test_each_setting_of_a_backfill_applies_while_the_daemon_runs(
    mysql_database: MySQLDatabase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A limit that was lowered below 1,000 rows did not reach a running capture: it had copied it at its start."""
    mysql_database.execute("CREATE TABLE big (id int PRIMARY KEY, n int, wide text)")
    for first in range(1, 6000, 500):
        rows = ", ".join(f"({number}, 0, repeat('x', 1500))" for number in range(first, first + 500))
        mysql_database.execute(f"INSERT INTO big VALUES {rows}")
    mysql_database.execute("CREATE TABLE other (id int PRIMARY KEY, n int)", "INSERT INTO other VALUES (1, 0)")
    monkeypatch.chdir(tmp_path)

    @contextlib.contextmanager
    def session() -> Iterator[Execute]:
        with contextlib.closing(mysql_database.connect()) as connection, connection.cursor() as cursor:
            yield cursor.execute

    server, schema = mysql_database.server, mysql_database.name
    source = {"kind": server.flavor, "url": server.url(), "tables": [f"{schema}.*"], "tls": {"mode": "off"}}
    here = DaemonFolder(tmp_path, source, f"{schema}.big")
    try:
        here.start()
        each_setting_applies(Backfilled(here, SIZES, session))
        here.end()
    finally:
        here.kill()
