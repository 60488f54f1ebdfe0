"""The settings of a backfill that change while a daemon runs on PostgreSQL."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.servers.postgres import PostgresServer
from tests.support.daemon.running_backfill import Backfilled, Execute, Sizes, each_setting_applies
from tests.support.daemon.running_shop import DaemonFolder

pytestmark = [pytest.mark.postgres, pytest.mark.long]


def test_each_setting_of_a_backfill_applies_while_the_daemon_runs(
    wheel_server: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An operator who lowers a limit because the server suffers must not have to restart the daemon."""
    database = wheel_server.create_database("big")
    database.execute("CREATE TABLE big (id int PRIMARY KEY, n int, wide text)")
    database.execute("ALTER TABLE big ALTER wide SET STORAGE PLAIN")  # a row in each page
    database.execute("INSERT INTO big SELECT i, 0, repeat('x', 6000) FROM generate_series(1, 800) i")
    database.execute("CREATE TABLE other (id int PRIMARY KEY, n int); INSERT INTO other VALUES (1, 0)")
    monkeypatch.chdir(tmp_path)

    @contextlib.contextmanager
    def session() -> Iterator[Execute]:
        with database.connect(autocommit=True) as connection:
            yield connection.execute

    source = {"kind": "postgres", "url": database.url, "tables": ["public.*"]}
    here = DaemonFolder(tmp_path, source, "public.big")
    try:
        here.start()
        each_setting_applies(Backfilled(here, Sizes(slow=4, capped=9, few=128, many=256), session))
        here.end()
    finally:
        here.kill()
        database.drop()
