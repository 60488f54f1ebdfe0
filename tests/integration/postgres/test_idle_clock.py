"""The commit clock of an idle PostgreSQL advances by heartbeats; that of a PostgreSQL that is not captured stops."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.servers.postgres import Database
from tests.support.capture.idle_clock import check_idle_clock, check_silent_source_is_named

pytestmark = pytest.mark.postgres


@pytest.mark.spread(1)
def test_idle_source_lets_readers_of_several_logs_continue(database: Database, tmp_path: Path) -> None:
    """G34: by the commit time of the heartbeat's own transaction; and the log that has no writer is named."""
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    source = {"kind": "postgres", "url": database.url, "tables": ["public.t"]}

    def now() -> int:
        return int(database.execute("SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint")[0][0])

    check_idle_clock(
        tmp_path / "a", source, "public.t", lambda n: database.execute(f"INSERT INTO t VALUES ({n})"), now, 0
    )
    check_silent_source_is_named(tmp_path / "b", source, "public.t", tmp_path / "a" / "log")
