"""A MySQL server that counts no GTIDs: places in its files are all there is, and written marks the only fence."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.servers.mysql import MySQLDatabase, MySQLServer
from tests.support.mysql.controlled_source import MakeMySQLCapture
from tests.support.postgres.controlled_source import LOG_ID

from cdcflow.config import MySQL
from cdcflow.errors import ConfigurationError
from cdcflow.model.position import Checkpoint, Epoch
from cdcflow.sources.mysql.source import MySQLSource
from cdcflow.spark.executors.readers import Processes

pytestmark = pytest.mark.mysql


@pytest.fixture
def database() -> Iterator[MySQLDatabase]:
    with MySQLServer("mysql", {"gtid_mode": "OFF", "enforce_gtid_consistency": "OFF"}) as server:
        made = server.create_database("shop")
        made.execute("CREATE TABLE t (id int PRIMARY KEY, v int)", "INSERT INTO t VALUES (1, 1), (2, 2), (3, 3)")
        yield made


def test_capture_resumes_at_a_position_in_a_file(database: MySQLDatabase, make_capture: MakeMySQLCapture) -> None:
    """M11, M13: resumed by file and byte, over a restart of the server and its next file."""
    first = make_capture(database)
    assert [f.level for f in first.source.doctor() if f.subject == "gtid_mode"] == ["warning"]
    first.prepare()
    assert [row["id"] for row in first.rows("t", 2)] == [1, 2, 3]
    database.execute("INSERT INTO t VALUES (4, 4)", "UPDATE t SET v = 9 WHERE id = 1")
    assert [(row["_op"], row["id"]) for row in first.changes()] == [("c", 4), ("u", 1)]
    place = first.checkpoint
    first.close()
    database.server.restart()
    database.execute("FLUSH BINARY LOGS", "DELETE FROM t WHERE id = 2")
    second = make_capture(database)
    second.prepare(place)
    assert [(row["_op"], row["id"]) for row in second.changes()][-1] == ("d", 2)


def test_nothing_is_read_without_writing_marks(database: MySQLDatabase, make_capture: MakeMySQLCapture) -> None:
    """W03: without GTIDs only a mark shows what a snapshot sees."""
    with pytest.raises(ConfigurationError, match=r"gtid_mode is OFF(.|\n)*source.fence: marks"):
        make_capture(database, fence="read-only").prepare()


def test_executors_are_refused_before_anything_is_begun(database: MySQLDatabase, tmp_path: Path) -> None:
    """W03: what another process's snapshot sees could not be determined."""
    settings = MySQL.model_validate(
        {"kind": "mysql", "url": database.url, "tables": [f"{database.name}.*"], "tls": {"mode": "off"}}
    )
    with Processes(1, "127.0.0.1", tmp_path) as processes:
        source = MySQLSource(settings, lambda: None, readers=processes)
        with pytest.raises(ConfigurationError, match=r"have no GTIDs(.|\n)*gtid_mode=ON(.|\n)*without --on"):
            source.prepare(Checkpoint(epoch=Epoch(1)), LOG_ID)
        source.close()


def test_same_position_returns_the_same_changes_again(database: MySQLDatabase, make_capture: MakeMySQLCapture) -> None:
    """M11: what was read and never acknowledged is read again, whole and once."""
    capture = make_capture(database)
    before = capture.prepare()
    for number in range(10, 30):
        database.execute(f"INSERT INTO t VALUES ({number}, 0)")
    assert [row["id"] for row in capture.changes()] == list(range(10, 30))
    again = make_capture(database)
    again.prepare(before)
    assert [row["id"] for row in again.changes()] == list(range(10, 30))
