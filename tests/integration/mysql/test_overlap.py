"""A server that is restored to a copy of its files, and then diverges."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from tests.servers.mysql import Flavor, MySQLDatabase, MySQLServer
from tests.support.mysql.controlled_source import MakeMySQLCapture, logged
from tests.support.polling import AtIntervals, wait_until
from tests.support.postgres.controlled_source import LOG_ID

from cdcflow.capture.interleave.messages import Committed
from cdcflow.capture.ports.source import SourceHistory
from cdcflow.errors import HistoryLost
from cdcflow.model.change import Run
from cdcflow.model.position import Position
from cdcflow.sources.mysql.position import BinlogFile, binlog_position_of, position_of
from cdcflow.testing.sources.reading import position_at

pytestmark = pytest.mark.mysql

WITHOUT_GTIDS = {"gtid_mode": "OFF", "enforce_gtid_consistency": "OFF"}
FIRST_ENDS = 1000


@pytest.fixture(params=["mysql without GTIDs", "mariadb"])
def server(request: pytest.FixtureRequest) -> Iterator[MySQLServer]:
    flavor: Flavor = "mariadb" if request.param == "mariadb" else "mysql"
    with MySQLServer(flavor, WITHOUT_GTIDS if "without" in request.param else None) as made:
        yield made


def copied(source: Path, target: Path) -> None:
    """Copy the files of a server that is stopped, with their owner."""
    owner = source.stat()
    shutil.copytree(source, target, symlinks=True)
    for path in (target, *target.rglob("*")):
        shutil.chown(path, owner.st_uid, owner.st_gid)


def write_in_a_new_file(server: MySQLServer, database: MySQLDatabase, word: str) -> None:
    """Seven transactions that end at the same byte each time this is called."""
    # MariaDB writes its own events into a new file: the last a moment later, and not always as many. None may come
    # between the test's events, and the test's first event takes as many bytes as they left.
    wait_for_checkpoint(server)
    database.execute("FLUSH BINARY LOGS")
    wait_for_checkpoint(server)
    _, begin = server.binlog()
    database.execute(f"INSERT INTO t VALUES (0, repeat('x', {FIRST_ENDS - begin:3}))")
    database.execute(*(f"INSERT INTO t VALUES ({n}, '{word}')" for n in range(1, 7)))


def wait_for_checkpoint(server: MySQLServer) -> None:
    if server.flavor == "mariadb":
        wait_until(lambda: has_its_checkpoint(server), "a checkpoint in the new file")


def has_its_checkpoint(server: MySQLServer) -> bool:
    """Whether the latest file has the event that declares older ones unneeded: it names the file itself."""
    file, _ = server.binlog()
    return any("Binlog_checkpoint" in row and row[-1] == file for row in events_of(server))


def events_of(server: MySQLServer) -> list[tuple[object, ...]]:
    """The events of the latest file."""
    file, _ = server.binlog()
    return server.execute(f"SHOW BINLOG EVENTS IN '{file}'")


@pytest.mark.spread(1)
def test_copy_with_other_transactions_at_our_position_is_found_out(
    server: MySQLServer, make_capture: MakeMySQLCapture
) -> None:
    """Same identity, file and GTIDs, and a transaction of the same size ends just where our log ends."""
    database = server.create_database("copied")
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v varchar(1000))")
    first = make_capture(database)
    begun = first.prepare()
    first.close()
    server.stop()
    kept = server.directory / "copy"
    copied(server.data, kept)
    server.start()
    write_in_a_new_file(server, database, "original")
    capture = make_capture(database)
    capture.prepare(begun)
    ours = logged([e.run for e in capture.events() if isinstance(e, Committed) and isinstance(e.run, Run)])
    assert len(ours) == 7
    capture.close()
    at_end = replace(begun, position=Position(ours.column("position")[-1].as_py()), next_transaction=8)

    def back(rows: pa.Table) -> Callable[[Callable[[Position], bool]], pa.Table]:
        return lambda is_enough: rows

    # The server sends the next event after cdcflow's position in the file, whose bytes are counted from the start.
    database.execute("FLUSH BINARY LOGS", "INSERT INTO t VALUES (8, 'later')")
    again = make_capture(database).source
    for rows in (ours, ours.slice(6), ours.slice(0, 0)):
        assert again.prepare(at_end, LOG_ID, back(rows)).checkpoint.position == at_end.position
    server.stop()
    shutil.rmtree(server.data)
    kept.rename(server.data)
    server.start()
    write_in_a_new_file(server, database, "restored")
    database.execute("INSERT INTO t VALUES (9, 'more')")
    source = make_capture(database).source
    assert source.prepare(at_end, LOG_ID).checkpoint.position == at_end.position
    for rows in (ours, ours.slice(6)):
        with pytest.raises(HistoryLost, match=r"restored from a copy(.|\n)*cdcflow run --accept-history-loss"):
            source.prepare(at_end, LOG_ID, back(rows))
    prepared = source.prepare(at_end, LOG_ID, back(ours), accept_history_loss=True)
    made = prepared.checkpoint
    assert prepared.history is SourceHistory.LOST
    # The log's content from before that is no longer compared with this server's.
    assert at_end.position is not None
    here = position_of(replace(binlog_position_of(at_end.position), began=0))
    assert source.prepare(replace(made, position=here), LOG_ID, back(ours))


@pytest.mark.spread(1)
@pytest.mark.parametrize("job", ["of another table", "at times that sessions set"])
def test_copy_is_recognized_by_its_file_where_transactions_do_not_show_it(
    server: MySQLServer, make_capture: MakeMySQLCapture, job: str
) -> None:
    """The log has nothing in the file of its position; or sessions set the time (`SET timestamp`, as mysqlbinlog's
    output does), so that both histories have the same times."""
    database = server.create_database("copied")
    database.execute(*(f"CREATE TABLE {t} (id int PRIMARY KEY, v varchar(1000))" for t in "tu"))
    tables = [f"{database.name}.t"]
    first = make_capture(database, tables=tables)
    begun = first.prepare()
    first.close()
    server.stop()
    kept = server.directory / "copy"
    copied(server.data, kept)
    server.start()
    write_the_same(server, database, "u" if job == "of another table" else "t", "original")
    file, pos = server.binlog()
    gtids = server.execute("SELECT @@gtid_binlog_pos")[0][0] if server.flavor == "mariadb" else ""
    capture = make_capture(database, tables=tables)
    capture.prepare(begun)
    events = capture.events()
    ours = logged([e.run for e in events if isinstance(e, Committed) and isinstance(e.run, Run)])
    assert len(ours) == (0 if job == "of another table" else 6)
    reached = next(p for e in reversed(events) if (p := position_at(e)) is not None)
    last = position_of(replace(binlog_position_of(reached), file=BinlogFile(file), pos=pos, gtids=str(gtids)))
    at_end = replace(begun, position=last, next_transaction=len(ours) + 1)
    capture.close()
    again = make_capture(database, tables=tables).source
    for statement in ("DO 1", "INSERT INTO u VALUES (8, 'later')", "FLUSH BINARY LOGS"):
        database.execute(statement)
        assert again.prepare(at_end, LOG_ID, lambda is_enough: ours).checkpoint.position == last
    server.stop()
    shutil.rmtree(server.data)
    kept.rename(server.data)
    server.start()
    write_the_same(server, database, "t", "restored")
    database.execute("INSERT INTO u VALUES (9, 'more')", "INSERT INTO u VALUES (10, 'more')")
    source = make_capture(database, tables=tables).source
    with pytest.raises(HistoryLost, match=r"restored from a copy(.|\n)*cdcflow run --accept-history-loss"):
        source.prepare(at_end, LOG_ID, lambda is_enough: ours)


def write_the_same(server: MySQLServer, database: MySQLDatabase, table: str, word: str) -> None:
    """Six transactions that end at the same byte each time this is called, and have the same times."""
    wait_for_checkpoint(server)
    database.execute("FLUSH BINARY LOGS")
    wait_for_checkpoint(server)
    _, begin = server.binlog()
    database.execute(f"INSERT INTO u VALUES (0, repeat('x', {FIRST_ENDS - begin:3}))")
    with database.session(autocommit=True) as connection, connection.cursor() as cursor:
        cursor.execute("SET timestamp = 1700000000")
        for n in range(1, 7):
            cursor.execute(f"INSERT INTO {table} VALUES ({n}, '{word}')")


@pytest.mark.parametrize("flavor", ["mariadb"], indirect=True)
def test_checkpoint_after_the_last_transaction_is_the_same_history(
    own_mysql: MySQLServer, make_capture: MakeMySQLCapture
) -> None:
    """MariaDB notes by itself that a file is durable, at any time after a rotation: also where our log ends."""
    database = own_mysql.create_database("noted")
    database.execute("CREATE TABLE t (id int PRIMARY KEY AUTO_INCREMENT, v int)")
    capture = make_capture(database)
    begun = capture.prepare()
    rotate = AtIntervals(
        lambda: database.execute("FLUSH BINARY LOGS", "INSERT INTO t (v) VALUES (1)"), 0.05, growth=1.0
    )

    def is_last() -> bool:
        if is_last_before_a_checkpoint(own_mysql):
            return True
        rotate()
        return False

    wait_until(is_last, "a checkpoint after a transaction")
    ours = logged([e.run for e in capture.events() if isinstance(e, Committed) and isinstance(e.run, Run)])
    at_end = replace(begun, position=Position(ours.column("position")[-1].as_py()), next_transaction=len(ours) + 1)
    source = make_capture(database).source
    for _ in range(2):
        for rows in (ours, ours.slice(len(ours) - 1)):
            again = source.prepare(at_end, LOG_ID, lambda is_enough, rows=rows: rows).checkpoint
            assert again.position == at_end.position
        assert source.continues(lambda: at_end, LOG_ID)[0].level == "ok"
        database.execute("INSERT INTO t (v) VALUES (1)")


def is_last_before_a_checkpoint(server: MySQLServer) -> bool:
    kinds = [str(row[2]) for row in events_of(server)]
    return kinds[-1] == "Binlog_checkpoint" and "Xid" in kinds
