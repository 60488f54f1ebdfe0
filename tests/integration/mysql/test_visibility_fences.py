"""Commits that are in the binary log and cannot be seen yet, because a semi-synchronous replica never comes."""

from __future__ import annotations

import threading
from dataclasses import replace

import numpy as np
import pytest
from tests.servers.mysql import Flavor, MySQLDatabase, MySQLServer
from tests.support.mysql.controlled_source import MakeMySQLCapture, MySQLCapture
from tests.support.polling import wait_until
from tests.support.postgres.controlled_source import rows_of

from cdcflow.capture.interleave.messages import Committed, RowsFilled
from cdcflow.errors import ConfigurationError, SourceUnavailable
from cdcflow.model.change import Run, Uint64s
from cdcflow.model.position import Epoch
from cdcflow.testing.sources import collect

pytestmark = pytest.mark.mysql


@pytest.fixture
def database(own_mysql: MySQLServer) -> MySQLDatabase:
    made = own_mysql.create_database("held")
    made.execute("CREATE TABLE t (id int PRIMARY KEY, v varchar(9))", "INSERT INTO t VALUES (1, 'old')")
    return made


def delivered(capture: MySQLCapture) -> Uint64s:
    """Wait for one transaction of the stream; its ids."""
    events = collect(capture.stream, lambda seen: any(isinstance(e, Committed) and e.run.rows for e in seen))
    return np.concatenate([e.run.xids for e in events if isinstance(e, Committed)])


@pytest.mark.spread(1)
def test_chunk_that_does_not_see_a_delivered_change_reports_it(
    database: MySQLDatabase, make_capture: MakeMySQLCapture
) -> None:
    """W03, E5: the chunk shows the old value after the stream delivered the new one. Without the fence, the old value
    would be logged after the new one, and stay.
    """
    capture = make_capture(database, fence="read-only")
    capture.prepare()
    with database.holding_commit("UPDATE t SET v = 'new' WHERE id = 1") as release:
        xids = delivered(capture)
        read = capture.read(capture.plan("t"))
        assert isinstance(read.run, Run)
        assert [row["v"] for row in rows_of(read.run)] == ["old"], "the trap is not set: the change is visible already"
        assert all(len(visibility.hidden(xids)) == 1 for visibility in read.visibilities[:1])
        assert len(capture.chunks.snapshot().hidden(xids)) == 1
        release()
    read = capture.read(capture.plan("t"))
    assert isinstance(read.run, Run)
    assert [row["v"] for row in rows_of(read.run)] == ["new"]
    assert not any(len(visibility.hidden(xids)) for visibility in read.visibilities)


@pytest.mark.spread(1)
def test_bound_of_a_plan_that_does_not_see_a_delivered_row_reports_it(
    database: MySQLDatabase, make_capture: MakeMySQLCapture
) -> None:
    """The new row is above the greatest key that the plan sees. Nothing would read it, and the backfill's end would
    take it for one that is gone from the source."""
    capture = make_capture(database, fence="read-only")
    capture.prepare()
    with database.holding_commit("INSERT INTO t VALUES (2, 'new')") as release:
        xids = delivered(capture)
        planned = capture.plan("t")
        assert any(len(visibility.hidden(xids)) == 1 for visibility in planned.visibilities)
        release()
    planned = capture.plan("t")
    assert planned.visibilities
    assert not any(len(visibility.hidden(xids)) for visibility in planned.visibilities)
    read = capture.read(planned)
    assert isinstance(read.run, Run)
    assert [row["id"] for row in rows_of(read.run)] == [1, 2]


@pytest.mark.spread(1)
def test_read_that_does_not_see_a_statement_on_other_tables_reports_it(
    database: MySQLDatabase, make_capture: MakeMySQLCapture
) -> None:
    """W03, M07: the table is read again because of the statement. The log has no rows of it, so only its own number
    shows that a read did not see what its trigger changed."""
    database.execute(
        "CREATE DATABASE elsewhere",
        "CREATE TABLE elsewhere.armed (id int PRIMARY KEY)",
        "CREATE TRIGGER elsewhere.fires AFTER INSERT ON elsewhere.armed FOR EACH ROW INSERT INTO held.t VALUES (2, '')",
    )
    capture = make_capture(database, fence="read-only")
    capture.prepare()
    statement = "INSERT INTO elsewhere.armed VALUES (1)"
    with database.holding_commit(statement, "SET binlog_format = STATEMENT") as release:
        events = collect(capture.stream, lambda seen: any(isinstance(e, RowsFilled) for e in seen))
        [filled] = [e for e in events if isinstance(e, RowsFilled)]
        xids = np.array(filled.xids, np.uint64)
        planned = capture.plan("t")
        read = capture.read(planned)
        assert isinstance(read.run, Run)
        assert [row["id"] for row in rows_of(read.run)] == [1], "the trap is not set: the change is visible already"
        for visibilities in (planned.visibilities, read.visibilities):
            assert any(len(visibility.hidden(xids)) == 1 for visibility in visibilities)
        release()
    planned = capture.plan("t")
    read = capture.read(planned)
    assert isinstance(read.run, Run)
    assert [row["id"] for row in rows_of(read.run)] == [1, 2]
    for visibilities in (planned.visibilities, read.visibilities):
        assert not any(len(visibility.hidden(xids)) for visibility in visibilities)


def test_first_position_leaves_nothing_invisible_before_it(
    database: MySQLDatabase, make_capture: MakeMySQLCapture, flavor: Flavor
) -> None:
    """W03: a change before the place that a capture begins at is never delivered, so no fence would miss it."""
    capture = make_capture(database, fence="read-only", wait_s=1.0)
    with database.holding_commit("UPDATE t SET v = 'new' WHERE id = 1") as release:
        if flavor == "mysql":
            with pytest.raises(SourceUnavailable, match="semi-synchronous replica"):
                capture.prepare()
            release()
            capture.prepare()
            assert [row["v"] for row in capture.rows("t")] == ["new"]
        else:
            capture.prepare()
            assert [row["v"] for row in capture.rows("t")] == ["old"]
            assert len(delivered(capture)) == 1


@pytest.mark.spread(1)
def test_restart_waits_until_what_the_log_has_is_visible(
    database: MySQLDatabase, make_capture: MakeMySQLCapture
) -> None:
    """W03: an earlier run delivered a change that is still held back; the next run has no memory of it."""
    capture = make_capture(database, fence="read-only")
    capture.prepare()
    with database.holding_commit("UPDATE t SET v = 'new' WHERE id = 1") as release:
        events = collect(capture.stream, lambda seen: any(isinstance(e, Committed) and e.run.rows for e in seen))
        position = [e.run.last_position for e in events if isinstance(e, Committed)][-1]
        later = replace(capture.checkpoint, position=position, epoch=Epoch(2))
        again = make_capture(database, fence="read-only", wait_s=1.0)
        with pytest.raises(SourceUnavailable, match="semi-synchronous replica"):
            again.prepare(later)
        release()
        again.prepare(later)
        assert [row["v"] for row in again.rows("t")] == ["new"]
        assert again.changes() == []


def test_written_marks_need_commits_in_the_order_of_the_log(
    mysql_database: MySQLDatabase, make_capture: MakeMySQLCapture, flavor: Flavor
) -> None:
    """W04: with binlog_order_commits off a mark's commit proves nothing about those logged before it."""
    if flavor == "mariadb":  # it has no such setting: commits are always ordered
        assert not mysql_database.execute("SHOW GLOBAL VARIABLES LIKE 'binlog_order_commits'")
        return
    mysql_database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    server = mysql_database.server
    server.execute("SET GLOBAL binlog_order_commits = OFF")
    try:
        with pytest.raises(ConfigurationError, match=r"binlog_order_commits is OFF(.|\n)*fence: read-only"):
            make_capture(mysql_database).prepare()
        make_capture(mysql_database, fence="read-only").prepare()
    finally:
        server.execute("SET GLOBAL binlog_order_commits = ON")


def test_between_both_bounds_nothing_is_claimed(mysql_database: MySQLDatabase, capture: MySQLCapture) -> None:
    """W26: what MySQL's two bounds claim about a chunk holds while others write; MariaDB's single one is exact."""
    mysql_database.execute("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1000000)")
    capture.prepare()
    stop = threading.Event()

    def write(number: int) -> None:
        with mysql_database.session() as connection, connection.cursor() as cursor:
            while not stop.is_set():
                cursor.execute(f"INSERT INTO t VALUES ({number})")
                number += 2

    writers = [threading.Thread(target=write, args=(n,)) for n in range(2)]
    for writer in writers:
        writer.start()
    planned = capture.plan("t")
    wait_until(lambda: mysql_database.execute("SELECT count(*) FROM t")[0][0] >= 50, "fifty rows")
    reads = [capture.read(planned, size=1_000_000) for _ in range(15)]
    stop.set()
    for writer in writers:
        writer.join()
    xids = np.concatenate([e.run.xids for e in capture.events() if isinstance(e, Committed)])
    for read in reads:
        assert isinstance(read.run, Run)
        seen = [1 + len(xids) - len(v.hidden(xids)) for v in read.visibilities]
        assert seen[0] <= read.run.rows <= seen[-1]
