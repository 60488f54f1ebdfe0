"""The stream on real servers: what they really write, from every place, and what they do when something is wrong."""

from __future__ import annotations

import os
import ssl
import time
from collections.abc import Callable, Iterator
from typing import Any

import pymysql
import pytest
from tests.servers.mysql import MySQLDatabase, MySQLServer
from tests.support.mysql.binlog_decoder import TestTables
from tests.support.polling import wait_until
from tests.support.postgres.wire import Row, Spools, marks, transactions

from cdcflow.capture.interleave.messages import Committed
from cdcflow.capture.ports.stream import StreamEvent
from cdcflow.errors import CdcflowError, ConfigurationError, HistoryLost, SourceUnavailable
from cdcflow.model.change import SpooledTransaction
from cdcflow.model.table import TableId
from cdcflow.sources.mysql.binlog import BinlogDecoder
from cdcflow.sources.mysql.connection import Connector
from cdcflow.sources.mysql.dump import Dump, ServerIdConflicts
from cdcflow.sources.mysql.position import BinlogFile, BinlogPosition, Coordinate, binlog_position_of, coordinate
from cdcflow.sources.mysql.row_events import Marks
from cdcflow.sources.mysql.stream import BinlogStream

pytestmark = pytest.mark.mysql

DDL = "CREATE TABLE t (id int PRIMARY KEY, v varchar(100), b longblob)"
REPLICA = "c0ffee00-0000-4000-8000-000000000000"


class PlainConnector(Connector):
    """Connections as the product's, without its settings."""

    def __init__(self, server: MySQLServer, **options: Any) -> None:
        self.server, self.options = server, options
        self.address = "test"  # type: ignore[assignment]  # only its text is used
        self.account = ""
        self._one_server = None

    def connect(self, purpose: str, *, read_timeout_s: float = 30) -> pymysql.Connection:
        return self.server.connect(read_timeout=read_timeout_s, **self.options)

    def discard(self, connection: pymysql.Connection) -> None:
        connection._force_close()


class Follower:
    """A stream with all that it has said."""

    def __init__(
        self,
        database: MySQLDatabase,
        position: str,
        *,
        by_gtid: bool = False,
        spool_bytes_max: int = 1 << 30,
        heartbeat_s: float = 0.5,
        server_id: int = 4711,
        conflicts: ServerIdConflicts | None = None,
        **options: Any,
    ) -> None:
        flavor, place = database.server.flavor, BinlogPosition.parse(position)
        self.spools = Spools()
        self.decoder = BinlogDecoder(
            flavor=flavor,
            position=place,
            tables=TestTables(captured=database.name),
            marks=Marks("me", TableId(database.name, "cdcflow_marks")),
            open_spool=self.spools,
            spool_bytes_max=spool_bytes_max,
            by_gtid=by_gtid,
        )
        dump = Dump(flavor, place, by_gtid, server_id, REPLICA, heartbeat_s)
        self.stream = BinlogStream(PlainConnector(database.server, **options), dump, self.decoder, conflicts=conflicts)
        self.events: list[StreamEvent] = []

    def until(self, done: Callable[[], bool]) -> None:
        def holds() -> bool:
            if done() and not self.stream._ahead.active:
                return True
            self.events += self.stream.poll()
            return False

        wait_until(holds, "the stream to come so far", pause_max_s=0.005, more=lambda: self.events)

    def upto(self, place: tuple[str, int]) -> list[list[Row]]:
        """The rows of all transactions up to a place of the log."""
        self.until(lambda: self.reached() >= coordinate(BinlogFile(place[0]), place[1]))
        return [rows for _, _, rows in transactions(self.events, self.spools)]

    def reached(self) -> Coordinate:
        return binlog_position_of(self.decoder.progress.last).coordinate

    def fails(self, kind: type[CdcflowError]) -> CdcflowError:
        with pytest.raises(kind) as caught:
            self.until(lambda: False)
        return caught.value


@pytest.fixture
def follow(mysql_database: MySQLDatabase) -> Iterator[Callable[..., Follower]]:
    """Streams from a position (the log's end by default), closed after the test."""
    made: list[Follower] = []

    def make(position: str | None = None, database: MySQLDatabase = mysql_database, **options: Any) -> Follower:
        made.append(Follower(database, position or here(database), **options))
        return made[-1]

    yield make
    for follower in made:
        follower.stream.close()


def here(database: MySQLDatabase) -> str:
    """The end of the log as a position."""
    server = database.server
    asked = "SELECT @@gtid_executed" if server.flavor == "mysql" else "SELECT @@gtid_binlog_pos"
    gtids = "".join(str(server.execute(asked)[0][0]).split())
    file, pos = server.binlog()
    return BinlogPosition(BinlogFile(file), pos, gtids).text


def tell(database: MySQLDatabase) -> list[list[tuple[str, str, int | None]]]:
    """A story with everything that a log may hold; the rows of each transaction (table, op, id)."""
    database.execute(
        DDL,
        "CREATE TABLE cdcflow_marks (slot varchar(64) PRIMARY KEY, token varchar(255) NOT NULL, at timestamp(6))",
        "INSERT INTO t (id, v) VALUES (1, 'a'), (2, 'b')",
        "UPDATE t SET v = 'c' WHERE id = 1",
        "BEGIN",
        "INSERT INTO t (id) VALUES (3)",
        "SAVEPOINT s",
        "INSERT INTO t (id) VALUES (4)",
        "ROLLBACK TO s",
        "UPDATE t SET id = 33 WHERE id = 3",
        "COMMIT",
        "REPLACE INTO cdcflow_marks VALUES ('me', 'e1/1/low', now(6))",
        "XA START 'one'",
        "INSERT INTO t (id) VALUES (5)",
        "XA END 'one'",
        "XA PREPARE 'one'",
    )
    database.execute("DELETE FROM t WHERE id = 2")
    database.execute("XA COMMIT 'one'", "FLUSH BINARY LOGS", "ALTER TABLE t ADD w int FIRST")
    database.execute("INSERT INTO t (id, w) VALUES (6, 60)", "TRUNCATE TABLE t", "INSERT INTO t (id) VALUES (7)")
    return [
        [("t", "c", 1), ("t", "c", 2)],
        [("t", "u", 1)],
        [("t", "c", 3), ("t", "d", 3), ("t", "c", 33)],
        [("t", "d", 2)],
        [("t", "c", 5)],
        [("t", "c", 6)],
        [("t", "t", None)],
        [("t", "c", 7)],
    ]


def short(found: list[list[Row]]) -> list[list[tuple[str, str, int | None]]]:
    return [[(table, op, row.get("id")) for table, op, row in rows] for rows in found]


@pytest.mark.spread(2)
@pytest.mark.parametrize("by_gtid", [False, True])
@pytest.mark.parametrize("spool_bytes_max", [0, 1 << 30])
def test_story_is_delivered_whole_and_resumes_at_every_position(
    mysql_database: MySQLDatabase, follow: Callable[..., Follower], spool_bytes_max: int, by_gtid: bool
) -> None:
    """M11, M12, M37, M40, M45, M67: by file and byte as by GTID, with XA transactions open or not."""
    begin = here(mysql_database)
    expected = tell(mysql_database)
    end = mysql_database.server.binlog()
    first = follow(begin, by_gtid=by_gtid, spool_bytes_max=spool_bytes_max)
    assert short(first.upto(end)) == expected
    assert marks(first.events) == ["e1/1/low"]
    for delivered, (_, position, _) in enumerate(transactions(first.events, first.spools), 1):
        if delivered == 6:
            continue  # what is truncated was not seen by the next stream, which has no catalog here
        again = follow(position, by_gtid=by_gtid, spool_bytes_max=spool_bytes_max)
        rest = [rows for rows in expected[delivered:] if delivered < 6 or rows[0][1] != "t"]
        assert short(again.upto(end)) == rest
        again.stream.close()


def test_compressed_transactions_are_the_same(mysql_database: MySQLDatabase, follow: Callable[..., Follower]) -> None:
    """M01, M02: the rows are in the log in another form, and the usual library does not see them."""
    server = mysql_database.server
    mysql_database.execute(DDL)
    follower = follow(spool_bytes_max=100_000)
    on = "SET binlog_transaction_compression = ON"
    if server.flavor == "mariadb":
        server.execute("SET GLOBAL log_bin_compress = ON", "SET GLOBAL log_bin_compress_min_len = 10")
        on = "DO 0"
    try:
        mysql_database.execute(on, "INSERT INTO t VALUES (1, repeat('x', 90), repeat('y', 5000))")
        many = ", ".join(f"({i}, repeat('x', 90), repeat('y', 3000))" for i in range(2, 400))
        mysql_database.execute(on, f"INSERT INTO t VALUES {many}")
    finally:
        if server.flavor == "mariadb":
            server.execute("SET GLOBAL log_bin_compress = OFF")
    rows = follower.upto(server.binlog())
    assert [row[2]["id"] for tx in rows for row in tx] == list(range(1, 400))
    assert {row[2]["b"] for tx in rows[1:] for row in tx} == {b"y" * 3000}


@pytest.mark.spread(1)
def test_logs_without_checksums_are_read(own_mysql: MySQLServer, follow: Callable[..., Follower]) -> None:
    """The file records whether it has them; the first events arrive with or without, depending on the server."""
    database = own_mysql.create_database("plain")
    database.execute(DDL, "INSERT INTO t (id) VALUES (1)")
    begin = here(database)
    own_mysql.execute("SET GLOBAL binlog_checksum = NONE")
    database.execute("INSERT INTO t (id) VALUES (2)")
    own_mysql.execute("SET GLOBAL binlog_checksum = CRC32")
    database.execute("INSERT INTO t (id) VALUES (3)")
    rows = follow(begin, database).upto(own_mysql.binlog())
    assert [row[2]["id"] for tx in rows for row in tx] == [2, 3]


@pytest.mark.spread(1)
def test_server_restarts_and_the_stream_continues_after_it(own_mysql: MySQLServer) -> None:
    """M13, M11: table ids start over, and the position is valid for the next connection."""
    database = own_mysql.create_database("again")
    database.execute(DDL, "CREATE TABLE u LIKE t", "INSERT INTO u (id) VALUES (1)")
    first = Follower(database, here(database))
    database.execute("INSERT INTO t (id) VALUES (1)")
    assert short(first.upto(own_mysql.binlog())) == [[("t", "c", 1)]]
    own_mysql.kill()
    own_mysql.start()
    first.fails(SourceUnavailable)
    first.stream.close()
    database.execute("INSERT INTO u (id) VALUES (2)", "INSERT INTO t (id) VALUES (2)")
    second = Follower(database, transactions(first.events)[-1][1])
    assert short(second.upto(own_mysql.binlog())) == [[("u", "c", 2)], [("t", "c", 2)]]
    second.stream.close()


def test_silent_server_is_noticed(own_mysql: MySQLServer) -> None:
    """M60: the connection stays open, and no more data arrives."""
    database = own_mysql.create_database("silent")
    follower = Follower(database, here(database), heartbeat_s=0.3)
    until = time.monotonic() + 1.5
    follower.until(lambda: time.monotonic() > until)  # longer than the watchdog waits: heartbeats do come
    assert own_mysql._process is not None
    os.kill(own_mysql._process.pid, 19)
    try:
        assert "silent for" in str(follower.fails(SourceUnavailable))
    finally:
        os.kill(own_mysql._process.pid, 18)
        follower.stream.close()


def test_another_reader_with_our_server_id_is_named(
    mysql_database: MySQLDatabase, follow: Callable[..., Follower]
) -> None:
    """M29: two readers would disconnect each other endlessly, each of them seeing a lost connection."""
    conflicts = ServerIdConflicts()
    said: list[CdcflowError] = []
    for _ in range(ServerIdConflicts.TIMES_MAX):
        mine = follow(conflicts=conflicts)
        other = follow()
        said.append(mine.fails(CdcflowError))
        mine.stream.close()
        other.stream.close()
    assert [type(e) for e in said] == [SourceUnavailable, SourceUnavailable, ConfigurationError]
    assert "server_id 4711" in str(said[-1])


@pytest.mark.spread(1)
def test_purged_log_is_history_lost(own_mysql: MySQLServer) -> None:
    """M14: the way on is the operator's to choose."""
    database = own_mysql.create_database("purged")
    database.execute(DDL)
    begin = here(database)
    database.execute("INSERT INTO t (id) VALUES (1)", "FLUSH BINARY LOGS", "INSERT INTO t (id) VALUES (2)")
    file, _ = own_mysql.binlog()

    def is_purged() -> bool:
        own_mysql.execute(f"PURGE BINARY LOGS TO '{file}'")
        return str(own_mysql.execute("SHOW BINARY LOGS")[0][0]) == file

    wait_until(is_purged, "the older files to be purged")  # MariaDB keeps what its engine may still need
    for by_gtid in (False, True):
        follower = Follower(database, begin, by_gtid=by_gtid)
        assert "--accept-history-loss" in str(follower.fails(HistoryLost))
        follower.stream.close()


def test_statement_based_session_stops(mysql_database: MySQLDatabase, follow: Callable[..., Follower]) -> None:
    """M07: its rows are not in the log."""
    mysql_database.execute(DDL)
    follower = follow()
    mysql_database.execute("SET binlog_format = STATEMENT", "INSERT INTO t (id) VALUES (1)")
    assert "as a statement" in str(follower.fails(ConfigurationError))


def test_minimal_images_of_one_session(mysql_database: MySQLDatabase, follow: Callable[..., Follower]) -> None:
    """M08: what it does not send is unchanged."""
    mysql_database.execute(DDL, "INSERT INTO t VALUES (1, 'a', 'b')")
    follower = follow()
    mysql_database.execute("SET binlog_row_image = MINIMAL", "UPDATE t SET v = 'c'", "DELETE FROM t")
    update, delete = (tx[0] for tx in follower.upto(mysql_database.server.binlog()))
    assert (update[1], update[2]["id"], update[2]["v"], update[2]["_unchanged"]) == ("u", 1, "c", ["b"])
    assert (delete[1], delete[2]["id"]) == ("d", 1)


@pytest.mark.spread(1)
def test_rows_larger_than_packets_and_buffers(own_mysql: MySQLServer) -> None:
    """M28, N27: an event over several packets, in a buffer that grows for it alone."""
    own_mysql.execute("SET GLOBAL max_allowed_packet = 134217728")
    database = own_mysql.create_database("large")
    database.execute(DDL)
    follower = Follower(database, here(database), spool_bytes_max=1 << 20)
    for size in (20_000_000, 16_777_215 - 300, 5):
        database.execute("DELETE FROM t", f"INSERT INTO t (id, b) VALUES ({size % 1000}, repeat('z', {size}))")
    rows = follower.upto(own_mysql.binlog())
    assert [len(r[2]["b"]) for tx in rows for r in tx if r[1] == "c"] == [20_000_000, 16_776_915, 5]
    assert len(follower.stream._buffer) <= 8 << 20
    follower.stream.close()


def test_stream_over_tls(mysql_database: MySQLDatabase, follow: Callable[..., Follower]) -> None:
    """M58: what TLS has read and not given out yet must not wait for the next packet."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    # MariaDB before 11.4 has no certificate unless one is configured; MySQL creates one, and no longer has the
    # variable.
    asked = {"mariadb": "SELECT @@have_ssl = 'YES'", "mysql": "SELECT 1"}[mysql_database.server.flavor]
    [[has_tls]] = mysql_database.server.execute(asked)
    mysql_database.execute(DDL)
    follower = follow(ssl=context if has_tls else None)
    mysql_database.execute("INSERT INTO t (id, v) VALUES " + ", ".join(f"({i}, repeat('q', 99))" for i in range(9000)))
    rows = follower.upto(mysql_database.server.binlog())
    assert sum(len(tx) for tx in rows) == 9000
    assert isinstance(follower.stream._socket, ssl.SSLSocket) == bool(has_tls)


@pytest.mark.spread(1)
def test_huge_transaction_is_spooled_in_pieces(mysql_database: MySQLDatabase, follow: Callable[..., Follower]) -> None:
    """M44: what is in memory does not depend on it."""
    mysql_database.execute(DDL, "INSERT INTO t (id, v) VALUES (0, repeat('a', 100))")
    for doubled in range(16):
        mysql_database.execute(f"INSERT INTO t (id, v) SELECT id + {1 << doubled}, v FROM t")
    follower = follow(spool_bytes_max=1 << 20)
    mysql_database.execute("UPDATE t SET v = repeat('b', 100)")
    follower.upto(mysql_database.server.binlog())
    [event] = [e for e in follower.events if isinstance(e, Committed)]
    assert isinstance(event.run, SpooledTransaction)
    assert event.run.rows == 1 << 16
    assert len(follower.spools.all[event.run.spool].pieces) > 1
