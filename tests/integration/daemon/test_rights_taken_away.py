"""Rights that are revoked from the capture's role while it runs: it names the statement, waits, and continues once it
was run.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from tests.servers.postgres import Database, PostgresServer
from tests.support.daemon.bank import Bank

from cdcflow.capture.interleave.progress import Progress
from cdcflow.model.table import TableId

pytestmark = pytest.mark.postgres

T = TableId("public", "t")


@pytest.fixture
def database(wheel_server: PostgresServer) -> Iterator[Database]:
    made = wheel_server.create_database("rights")
    made.execute("CREATE TABLE t (id int PRIMARY KEY, v text); CREATE ROLE clerk LOGIN REPLICATION")
    made.execute("INSERT INTO t SELECT i, repeat('x', 100) FROM generate_series(1, 6000) i")
    made.execute("GRANT SELECT ON t TO clerk")
    made.execute("CREATE PUBLICATION p FOR TABLE t WITH (publish_via_partition_root)")
    made.execute("ALTER PUBLICATION p SET (publish_generated_columns = stored)")
    yield made
    made.execute("REVOKE SELECT ON t FROM clerk; REVOKE USAGE ON SCHEMA public FROM clerk")
    made.drop()
    wheel_server.execute("DROP ROLE clerk")


TAKEN = {
    "SELECT": "REVOKE SELECT ON t FROM clerk",
    "USAGE": "REVOKE USAGE ON SCHEMA public FROM public",
    "REPLICATION": "ALTER ROLE clerk NOREPLICATION",
    "CONNECT": "REVOKE CONNECT ON DATABASE rights FROM public",
}


def test_printed_statements_restore_the_right_and_the_capture_continues(database: Database, tmp_path: Path) -> None:
    """During the backfill, one right after another. No table fails, nothing restarts, no change is missed."""
    bank = Bank(database, tmp_path, create=False)
    bank.tables = ("t",)
    slow = {"rows_per_second_max": 1500, "chunk_rows_max": 300}
    bank.configure(tables=["public.t"], url=database.url_as("clerk"), publication="p", backfill=slow)
    reasons: list[str] = []
    events: list[str] = []

    def on_event(event: str, fields: dict[str, object]) -> None:
        events.append(event)
        reasons.append(f"{fields.get('reason', '')}\n  {fields.get('remedy', '')}")

    def was_read_after(chunks: int) -> bool:
        return events.count("range chunk read") > chunks

    def was_named(right: str) -> bool:
        return any(right in reason for reason in reasons)

    with bank.capturing(on_event=on_event):
        for number, (right, statement) in enumerate(TAKEN.items()):
            chunks = events.count("range chunk read")
            bank.wait_until(partial(was_read_after, chunks), "a chunk")
            reasons.clear()
            database.execute(statement)
            database.execute(f"INSERT INTO t VALUES ({10_000 + number}, 'meanwhile')")
            if right in ("REPLICATION", "CONNECT"):
                database.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'clerk'")
            bank.wait_until(partial(was_named, right), f"{right} to be named")
            found = next(reason for reason in reasons if right in reason)
            remedy = re.search(r"run (GRANT .*|ALTER ROLE .*)", found)
            assert remedy is not None, found
            database.execute(remedy[1])
        fence = bank.fence()
        bank.wait_until(lambda: bank.has_reached(fence), "the backfill to end")
    assert "table failed" not in events
    assert Progress.from_json(bank.reader.newest_checkpoint().progress).tables[T].generation == 1
    bank.assert_log_equals_source()
