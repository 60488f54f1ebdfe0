"""A large transaction in a backlog: the server must not write a file of its size for us."""

from __future__ import annotations

import pytest
from tests.servers.postgres import Database
from tests.support.polling import wait_until
from tests.support.postgres.controlled_source import MakeCapture

from cdcflow.capture.interleave.messages import Committed, MarkSeen
from cdcflow.capture.ports.stream import StreamEvent
from cdcflow.model.position import Token
from cdcflow.sources.postgres.catch_up import CatchingUp, Windows

pytestmark = pytest.mark.postgres

ROWS = 30_000
FILE_BYTES_MAX = 8 << 20
"""A tenth of the transaction: what the window had before the large one, and what was written until it was noticed."""


def temp_bytes(database: Database) -> int:
    """What the server has written into temporary files for queries, once a session has ended that may have."""
    [(found,)] = database.execute(f"SELECT temp_bytes FROM pg_stat_database WHERE datname = '{database.name}'")
    return int(found)


def test_large_transaction_is_streamed_and_becomes_no_file_of_the_server(
    database: Database, make_capture: MakeCapture
) -> None:
    """P30: also without temp_file_limit. It was a file of its size next to the server's own spill file."""
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v text); ALTER TABLE t ALTER v SET STORAGE PLAIN")
    database.execute(f"ALTER DATABASE {database.name} SET logical_decoding_work_mem = '1MB'")
    windows = Windows(backlog_min=1, rest_min=1, spill_max=4 << 20)
    capture = make_capture(database, tables=["public.t"], windows=windows)
    capture.prepare()
    database.execute("INSERT INTO t SELECT i, 'small' FROM generate_series(1, 100) i")
    database.execute(f"INSERT INTO t SELECT i, repeat(md5(i::text), 90) FROM generate_series(1000, {999 + ROWS}) i")
    token = Token("1/1/low")
    capture.chunks.write_mark(token)
    stream = capture.stream
    assert isinstance(stream, CatchingUp)
    found: list[StreamEvent] = []

    def has_mark() -> bool:
        events = stream.poll()
        found.extend(events)
        return any(isinstance(e, MarkSeen) and e.token == token for e in events)

    wait_until(has_mark, "the mark", patience_s=180, pause_max_s=0.005)
    rows = [e.run.rows for e in found if isinstance(e, Committed)]
    assert rows == [100, ROWS]
    assert stream.windows == 0
    capture.close()
    sessions = "SELECT FROM pg_stat_activity WHERE application_name = 'cdcflow catch-up'"
    wait_until(lambda: not database.execute(sessions), "the window's session to end")
    assert temp_bytes(database) < FILE_BYTES_MAX
