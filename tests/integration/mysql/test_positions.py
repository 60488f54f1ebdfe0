"""A position in the binary log: made once, found again, carried over to a replica, or refused with what to do."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pymysql.constants import COMMAND
from tests.servers.mysql import Flavor, MySQLDatabase, MySQLServer
from tests.support.mysql import replication
from tests.support.mysql.controlled_source import MakeMySQLCapture, MySQLCapture, seen
from tests.support.polling import wait_for, wait_until
from typer.testing import CliRunner

from cdcflow import wiring
from cdcflow.capture.ports.source import SourceHistory
from cdcflow.cli.app import app
from cdcflow.config import load
from cdcflow.errors import ConfigurationError, HistoryLost
from cdcflow.model.position import Checkpoint, Epoch
from cdcflow.sources.mysql import binlog_status

pytestmark = pytest.mark.mysql


def begun(
    server: MySQLServer, make_capture: MakeMySQLCapture, name: str = "shop"
) -> tuple[MySQLDatabase, MySQLCapture]:
    """A database with a table, a capture of it that has seen one row, and its checkpoint after that row."""
    database = server.create_database(name)
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v int)")
    capture = make_capture(database)
    capture.prepare()
    database.execute("INSERT INTO t VALUES (1, 1)")
    assert [row["id"] for row in seen(capture)] == [1]
    return database, capture


def test_restart_resumes_where_the_log_ends(own_mysql: MySQLServer, make_capture: MakeMySQLCapture) -> None:
    """M11, M13: also over a restart of the server, which begins a new file and gives tables other ids."""
    database, capture = begun(own_mysql, make_capture)
    capture.close()
    database.execute("INSERT INTO t VALUES (2, 2)")
    own_mysql.restart()
    database.execute("INSERT INTO t VALUES (3, 3)")
    again = make_capture(database)
    again.prepare(capture.checkpoint)
    assert [row["id"] for row in again.changes()] == [2, 3]


def test_killed_server_loses_nothing(own_mysql: MySQLServer, make_capture: MakeMySQLCapture) -> None:
    """O01: after a crash of the server the stream continues after what was delivered."""
    database, capture = begun(own_mysql, make_capture)
    capture.close()
    database.execute("INSERT INTO t VALUES (2, 2)")
    own_mysql.kill()
    own_mysql.start()
    again = make_capture(database)
    again.prepare(capture.checkpoint)
    assert [row["id"] for row in again.changes()] == [2]


def purge(server: MySQLServer, file: str) -> None:
    """Purge all files that are older than the present one. MariaDB silently keeps those that it may still need
    itself.
    """

    def is_purged() -> bool:
        server.execute(f"PURGE BINARY LOGS TO '{server.binlog()[0]}'")
        return file not in [row[0] for row in server.execute("SHOW BINARY LOGS")]

    wait_until(is_purged, f"{server.flavor} to purge {file}")


def test_purged_log_is_a_loss_with_the_gap_named(own_mysql: MySQLServer, make_capture: MakeMySQLCapture) -> None:
    """M14: short retention is the usual way to lose changes; the message says what is gone and what to do."""
    database, capture = begun(own_mysql, make_capture)
    capture.close()
    file = own_mysql.binlog()[0]
    database.execute("INSERT INTO t VALUES (2, 2)", "FLUSH BINARY LOGS")
    purge(own_mysql, file)
    again = make_capture(database)
    assert again.source.status(capture.checkpoint.position).is_lost
    with pytest.raises(HistoryLost, match=rf"{file}(.|\n)*accept-history-loss"):
        again.prepare(capture.checkpoint)
    again.prepare(capture.checkpoint, accept_history_loss=True)
    assert again.history is SourceHistory.LOST
    database.execute("INSERT INTO t VALUES (3, 3)")
    assert [row["id"] for row in again.changes()] == [3]


def test_purged_file_with_nothing_that_the_log_lacks_is_no_loss(
    own_mysql: MySQLServer, make_capture: MakeMySQLCapture
) -> None:
    """M14: an idle server rotates and purges; the next transaction follows the one that the change log ends with."""
    database, capture = begun(own_mysql, make_capture)
    capture.close()
    file = own_mysql.binlog()[0]
    database.execute("FLUSH BINARY LOGS", "INSERT INTO t VALUES (2, 2)")
    purge(own_mysql, file)
    for number in (3, 4):
        again = make_capture(database)
        again.prepare(capture.checkpoint)
        database.execute(f"INSERT INTO t VALUES ({number}, {number})")
        assert [row["id"] for row in seen(again)] == ([2, 3] if number == 3 else [4])
        again.close()
        capture.checkpoint = again.checkpoint


def test_restarted_binary_log_is_a_loss(own_mysql: MySQLServer, make_capture: MakeMySQLCapture, flavor: Flavor) -> None:
    """M14: after RESET the files have the same names and other contents."""
    database, capture = begun(own_mysql, make_capture)
    capture.close()
    own_mysql.execute("RESET BINARY LOGS AND GTIDS" if flavor == "mysql" else "RESET MASTER")
    database.execute(*(f"INSERT INTO t VALUES ({n}, {n})" for n in range(2, 40)))
    with pytest.raises(HistoryLost, match="accept-history-loss"):
        make_capture(database).prepare(capture.checkpoint)


def test_another_server_is_refused(own_mysql: MySQLServer, make_capture: MakeMySQLCapture, flavor: Flavor) -> None:
    """O04: a changed address must not mix two servers' rows in one log."""
    _, capture = begun(own_mysql, make_capture)
    with MySQLServer(flavor, {"server_id": "77"}) as other:
        database = other.create_database("shop")
        database.execute("CREATE TABLE t (id int PRIMARY KEY, v int)", "INSERT INTO t VALUES (1, 1)")
        with pytest.raises(ConfigurationError, match=r"this log belongs to the server(.|\n)*source.url"):
            make_capture(database).prepare(capture.checkpoint)


@pytest.fixture
def replica(own_mysql: MySQLServer, flavor: Flavor) -> Iterator[MySQLServer]:
    """A replica of `own_mysql`, from its beginning."""
    strict = {"gtid_strict_mode": "ON"} if flavor == "mariadb" else {}
    with replication.replica_of(own_mysql, strict) as server:
        replication.follow(server, own_mysql)
        yield server


def caught_up(replica: MySQLServer, database: MySQLDatabase, rows: int) -> MySQLDatabase:
    """Wait until the replica has this many rows; return the database on it."""
    there = MySQLDatabase(replica, database.name)

    def count() -> object:
        try:
            return there.execute("SELECT count(*) FROM t")[0][0]
        except Exception as error:  # noqa: BLE001  the server is not up yet
            return error

    wait_for(count, lambda found: found == rows, f"{rows} rows in the replica")
    return there


def test_promoted_replica_is_followed_without_a_gap_or_a_double(
    own_mysql: MySQLServer, replica: MySQLServer, make_capture: MakeMySQLCapture, flavor: Flavor
) -> None:
    """M65, M12: file and byte are the old server's; what counts is which transactions the new one has."""
    database, capture = begun(own_mysql, make_capture)
    database.execute("INSERT INTO t VALUES (2, 2)")
    there = caught_up(replica, database, 2)
    capture.close()
    replica.execute("STOP REPLICA" if flavor == "mysql" else "STOP SLAVE")
    there.execute("INSERT INTO t VALUES (3, 3)")
    again = make_capture(there)
    again.prepare(capture.checkpoint)
    assert [row["id"] for row in seen(again)] == [2, 3]
    # The checkpoint is the new server's now; a restart there goes by its file and byte again.
    again.close()
    there.execute("INSERT INTO t VALUES (4, 4)")
    last = make_capture(there)
    assert "foreign" not in last.prepare(again.checkpoint).source
    assert [row["id"] for row in last.changes()] == [4]


def test_failover_that_gets_no_further_than_its_start_is_tried_again(
    own_mysql: MySQLServer, replica: MySQLServer, make_capture: MakeMySQLCapture, flavor: Flavor
) -> None:
    """O01: a crash right after the failover must not take the old server's file and byte for the new one's."""
    database, capture = begun(own_mysql, make_capture)
    there = caught_up(replica, database, 1)
    capture.close()
    replica.execute("STOP REPLICA" if flavor == "mysql" else "STOP SLAVE")
    there.execute("INSERT INTO t VALUES (3, 3)")
    first = make_capture(there)
    checkpoint = first.prepare(capture.checkpoint)
    first.close()
    again = make_capture(there)
    again.prepare(replace(checkpoint, epoch=Epoch(3)))
    assert [row["id"] for row in again.changes()] == [3]


def test_replica_promoted_too_early_is_a_loss(
    own_mysql: MySQLServer, replica: MySQLServer, make_capture: MakeMySQLCapture, flavor: Flavor
) -> None:
    """P43: rows that cdcflow's log has and the new server lacks would stay in the warehouse indefinitely."""
    database, capture = begun(own_mysql, make_capture)
    there = caught_up(replica, database, 1)
    replica.execute("STOP REPLICA" if flavor == "mysql" else "STOP SLAVE")
    database.execute("INSERT INTO t VALUES (2, 2)")
    assert [row["id"] for row in seen(capture)] == [2]
    capture.close()
    with pytest.raises(HistoryLost, match="lacks transactions that the change log has"):
        make_capture(there).prepare(capture.checkpoint)


def test_status_reports_lag_and_how_long_the_log_is_kept(
    own_mysql: MySQLServer, make_capture: MakeMySQLCapture
) -> None:
    """M14: an operator must see the loss coming."""
    database, capture = begun(own_mysql, make_capture)
    now = capture.source.status(capture.checkpoint.position)
    database.execute("INSERT INTO t VALUES (2, 2)")
    own_mysql.execute("FLUSH BINARY LOGS")
    later = capture.source.status(capture.checkpoint.position)
    assert now.lag_bytes is not None
    assert later.lag_bytes > now.lag_bytes
    assert later.retained_bytes > now.retained_bytes
    assert later.details["files_until_lost"] == now.details["files_until_lost"]
    assert {"kept_seconds", "oldest_file", "newest_file", "position_file"} <= later.details.keys()


def test_metadata_that_is_not_full_is_refused(own_mysql: MySQLServer, make_capture: MakeMySQLCapture) -> None:
    """M72, M33: a log that does not name its columns can be read wrongly without anybody noticing."""
    database = own_mysql.create_database("shop")
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    own_mysql.execute("SET GLOBAL binlog_row_metadata = 'MINIMAL'")
    with pytest.raises(ConfigurationError, match=r"binlog_row_metadata is MINIMAL(.|\n)*binlog_row_metadata = 'FULL'"):
        make_capture(database).prepare()


def test_first_checkpoint_is_the_end_of_the_log(mysql_database: MySQLDatabase, capture: MySQLCapture) -> None:
    """P35: what was committed before is for the backfill, and does not come again."""
    mysql_database.execute("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    made = capture.prepare(Checkpoint(epoch=Epoch(1)))
    assert made.position is not None
    assert made.position.text.startswith(mysql_database.server.binlog()[0])
    assert capture.changes() == []


def test_first_checkpoint_has_no_transaction_that_commits_while_it_is_created(
    mysql_database: MySQLDatabase, make_capture: MakeMySQLCapture, flavor: Flavor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A busy server keeps writing between the answers from which a position is built. GTIDs after the position would be
    missing after a failover, and a restart before the first row would take the log for a restarted one.
    """
    mysql_database.execute("CREATE TABLE t (id int AUTO_INCREMENT PRIMARY KEY, v int)")
    asks = "end" if flavor == "mysql" else "snapshot_end"
    end = getattr(binlog_status, asks)
    asked = 0

    def busy(*about: Any) -> Any:
        nonlocal asked
        found = end(*about)
        asked += 1
        mysql_database.execute("INSERT INTO t (v) VALUES (1)")
        mysql_database.execute("FLUSH BINARY LOGS")
        mysql_database.execute("INSERT INTO t (v) VALUES (2)")
        return found

    with monkeypatch.context() as patched:
        patched.setattr(binlog_status, asks, busy)
        before = make_capture(mysql_database).prepare()
    again = make_capture(mysql_database)
    again.prepare(before)
    # What was written while the position was being queried is after it.
    assert [row["id"] for row in again.changes()][-2:] == [2 * asked - 1, 2 * asked]


def test_statement_in_another_character_set_disturbs_no_first_start(
    mysql_database: MySQLDatabase, make_capture: MakeMySQLCapture, flavor: Flavor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server lists it in its client's bytes; a start during which it ran ended with UnicodeDecodeError."""
    asks = "end" if flavor == "mysql" else "snapshot_end"
    end = getattr(binlog_status, asks)

    def busy(*about: Any) -> Any:
        found = end(*about)
        with contextlib.closing(mysql_database.connect()) as client:
            for said in ("SET NAMES latin1", "CREATE TABLE IF NOT EXISTS té (id int PRIMARY KEY)"):
                client._execute_command(COMMAND.COM_QUERY, said.encode("latin-1"))
                client._read_query_result()
        return found

    mysql_database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    with monkeypatch.context() as patched:
        patched.setattr(binlog_status, asks, busy)
        before = make_capture(mysql_database).prepare()
    mysql_database.execute("INSERT INTO t VALUES (1)")
    again = make_capture(mysql_database)
    again.prepare(before)
    assert [row["id"] for row in again.changes()] == [1]


def test_event_larger_than_a_packet_does_not_hide_the_ones_after_it(
    own_mysql: MySQLServer, make_capture: MakeMySQLCapture
) -> None:
    """MariaDB cannot name a position after such an event (old and new image of one row are in it). A capture that began
    there, or resumes there, still has a position, and still detects a log that was restarted.
    """
    database = own_mysql.create_database("shop")
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v longblob)")
    database.execute("INSERT INTO t VALUES (1, repeat('x', 12000000))", "UPDATE t SET v = repeat('y', 12000000)")
    capture = make_capture(database, tables=["shop.t"])
    before = capture.prepare()
    database.execute("INSERT INTO t VALUES (2, 'a')")
    assert [row["id"] for row in seen(capture)] == [2]
    capture.close()
    for checkpoint, expected in ((capture.checkpoint, [3]), (before, [2, 3])):
        database.execute("INSERT IGNORE INTO t VALUES (3, 'b')")
        again = make_capture(database, tables=["shop.t"])
        again.prepare(checkpoint)
        assert [row["id"] for row in again.changes()] == expected
        again.close()
    own_mysql.execute("RESET BINARY LOGS AND GTIDS" if own_mysql.flavor == "mysql" else "RESET MASTER")
    database.execute("UPDATE t SET v = repeat('x', 12000000) WHERE id = 1", "UPDATE t SET v = repeat('y', 12000000)")
    database.execute(*(f"INSERT INTO t VALUES ({n}, 'z')" for n in range(10, 60)))
    with pytest.raises(HistoryLost, match="accept-history-loss"):
        make_capture(database, tables=["shop.t"]).prepare(capture.checkpoint)


@pytest.mark.spread(2)
@pytest.mark.parametrize("loss", ["purged", "reset"])
def test_lost_binary_log_is_seen_by_doctor_and_status_and_the_remedy_repairs_it(
    own_mysql: MySQLServer, flavor: Flavor, tmp_path: Path, loss: str
) -> None:
    """M14: both reported that all was well; now they report what the start will, word for word, and nothing is
    written.
    """
    database = own_mysql.create_database("shop")
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v int)", "INSERT INTO t VALUES (1, 1)")
    path = tmp_path / "cdcflow.yaml"
    path.write_text(
        f"source: {{kind: {flavor}, url: '{database.url}', tables: [shop.*], tls: {{mode: off}}}}\nlog: {{path: log}}\n"
    )
    wiring.capture(load(path), once=True).run()

    def said(command: str, code: int) -> Any:
        result = CliRunner().invoke(app, [command, "--json", "--config", str(path)])
        assert result.exit_code == code, result.output
        return json.loads(result.stdout)

    assert [f["level"] for f in said("doctor", 0) if f["subject"] == "position"] == ["ok"]
    assert said("status", 0)["problems"] == []
    if loss == "purged":
        file = own_mysql.binlog()[0]
        database.execute("INSERT INTO t VALUES (2, 2)", "FLUSH BINARY LOGS")
        purge(own_mysql, file)
    else:
        database.execute("RESET BINARY LOGS AND GTIDS" if flavor == "mysql" else "RESET MASTER")
        database.execute("INSERT INTO t VALUES (2, 2)")
    end = own_mysql.binlog()
    (finding,) = [f for f in said("doctor", 1) if f["level"] == "error"]
    assert said("status", 1)["problems"] == [finding]
    assert own_mysql.binlog() == end
    with pytest.raises(HistoryLost) as stopped:
        wiring.capture(load(path), once=True).run()
    assert str(stopped.value) == f"{finding['text']}\n  {finding['remedy']}"
    assert "run `cdcflow run --accept-history-loss`" in finding["remedy"]
    wiring.capture(load(path), accept_history_loss=True, once=True).run()
    assert said("status", 0)["problems"] == []
    assert not [f for f in said("doctor", 0) if f["level"] == "error"]
