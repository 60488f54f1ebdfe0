"""A backfill of a running daemon that is held by limits, on PostgreSQL."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.servers.postgres import PostgresServer
from tests.support.daemon.governed import ROWS, Governed, limits_hold_and_resume
from tests.support.daemon.running_shop import DaemonFolder
from tests.support.polling import wait_until

pytestmark = [pytest.mark.postgres, pytest.mark.long]


def test_limits_hold_a_backfill_until_it_resumes_by_itself(
    wheel_server: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A source that is busy must not be read, no operator has to watch it, and a budget outlives the process."""
    database = wheel_server.create_database("governed")
    database.execute("CREATE TABLE small (id int PRIMARY KEY); INSERT INTO small VALUES (1)")
    database.execute("CREATE TABLE locked (id int)")
    database.execute("CREATE TABLE big (id int PRIMARY KEY, pad text)")
    database.execute(f"INSERT INTO big SELECT i, repeat('x', 500) FROM generate_series(1, {ROWS}) i")
    monkeypatch.chdir(tmp_path)

    @contextlib.contextmanager
    def waiting() -> Iterator[None]:
        with database.connect() as holder:
            holder.execute("BEGIN; LOCK TABLE locked")
            waiter = threading.Thread(target=database.execute, args=("DELETE FROM locked",))
            waiter.start()
            waits = "SELECT count(*) FROM pg_locks WHERE NOT granted"
            wait_until(lambda: database.execute(waits) == [(1,)], "a session to wait")
            yield
            holder.execute("ROLLBACK")
            waiter.join()

    here = DaemonFolder(tmp_path, {"kind": "postgres", "url": database.url, "tables": ["public.small"]}, "public.small")
    try:
        here.start()
        limits_hold_and_resume(Governed(here, "public.big", waiting))
    finally:
        here.kill()
        database.drop()
