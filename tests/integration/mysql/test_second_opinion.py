"""Another reader of the same binary log agrees where it is right; where it is known to be wrong, it still is.

`mysql-replication` decodes rows one by one in Python. Its errors are listed here, so that its results are not trusted
over cdcflow's: when a release of it fixes one of these, the test reports it.
"""

from __future__ import annotations

import datetime as dt
import itertools
import random
from decimal import Decimal
from typing import Any

import pymysql
import pytest
from pymysqlreplication import BinLogStreamReader
from pymysqlreplication.row_event import DeleteRowsEvent, UpdateRowsEvent, WriteRowsEvent
from tests.servers.mysql import MySQLDatabase
from tests.support.mysql.controlled_source import MakeMySQLCapture

from cdcflow.model.table import BEFORE, OP, UNCHANGED

pytestmark = [
    pytest.mark.mysql,
    pytest.mark.filterwarnings("ignore:'db' is deprecated:DeprecationWarning"),  # the library's own call
]

TABLE = (
    "CREATE TABLE t (id bigint PRIMARY KEY, small smallint, wide bigint unsigned, price decimal(20,6), ratio double,"
    " name varchar(80), note mediumtext, raw varbinary(40), kind enum('a','ü','c'), due date, at datetime(6),"
    " seen timestamp(3) NULL, flags bit(12))"
)
KNOWN_FAULTS: tuple[tuple[str, str, object], ...] = (
    ("time(2)", "'-00:00:00.10'", dt.timedelta(microseconds=-100_000)),
    ("year", "'0000'", 0),
    ("binary(4)", "x'6100'", b"a\0\0\0"),
    ("set('a','b')", "''", ""),
)
"""Types and values, and their meaning: cdcflow is right, the library is not."""


def theirs(database: MySQLDatabase, place: tuple[str, int], count: int) -> list[tuple[str, dict[str, Any]]]:
    """The first N changes of table t since a position, as the library reports them: op and row.

    Its MariaDB mode is not used: that one sends a byte too many, and the server drops the connection now and then; the
    library then restarts at that position endlessly. So a connection more than it opens at first is an error here.
    """
    server = database.server
    connections = itertools.count()

    def connect(**options: Any) -> pymysql.Connection:
        assert next(connections) < 2, "the library lost its connection"
        return pymysql.connect(**options)

    stream = BinLogStreamReader(
        connection_settings={"host": "127.0.0.1", "port": server.port, "user": "root", "password": ""},
        server_id=77,
        log_file=place[0],
        log_pos=place[1],
        resume_stream=True,
        only_events=[WriteRowsEvent, UpdateRowsEvent, DeleteRowsEvent],
        only_schemas=[database.name],
        only_tables=["t"],
        pymysql_wrapper=connect,
    )
    found: list[tuple[str, dict[str, Any]]] = []
    for event in stream:
        for row in event.rows:
            match event:
                case WriteRowsEvent():
                    found.append(("c", row["values"]))
                case DeleteRowsEvent():
                    found.append(("d", row["values"]))
                case UpdateRowsEvent() if row["before_values"]["id"] != row["after_values"]["id"]:
                    found += [("d", row["before_values"]), ("c", row["after_values"])]
                case _:
                    found.append(("u", row["after_values"]))
        if len(found) >= count:
            break
    stream.close()
    return found


def plain(name: str, value: Any) -> Any:
    """The library's value in cdcflow's types."""
    if isinstance(value, str) and name == "flags":
        return int(value, 2)
    if isinstance(value, dt.datetime) and name == "seen":
        return value.replace(tzinfo=dt.UTC)
    return value


@pytest.mark.spread(1)
def test_decoder_and_library_report_the_same_history(
    mysql_database: MySQLDatabase, make_capture: MakeMySQLCapture
) -> None:
    """N06, N17, N22, M43: ordinary types, and every kind of change, in the same order."""
    dice = random.Random(11)
    mysql_database.execute(TABLE)
    capture = make_capture(mysql_database)
    capture.prepare()
    place = mysql_database.server.binlog()
    for number in range(1, 60):
        mysql_database.execute("SET time_zone = '+00:00'", *statements(number, dice))
    ours = [
        (row[OP], {k: v for k, v in row.items() if k not in (OP, UNCHANGED, BEFORE)}) for row in capture.changes("t")
    ]
    told = theirs(mysql_database, place, len(ours))
    assert len(told) > 80
    assert [op for op, _ in told] == [op for op, _ in ours]
    for (_, mine), (_, other) in zip(ours, told, strict=True):
        other = {name: plain(name, value) for name, value in other.items()}
        assert {name: value for name, value in mine.items() if value != other[name]} == {}, other


def statements(number: int, dice: random.Random) -> list[str]:
    """One transaction."""
    sign = dice.choice([-1, 1])
    values = (
        f"{sign * dice.randrange(2**15)}, {dice.randrange(2**64)}, {sign * Decimal(dice.randrange(10**18)).scaleb(-6)},"
        f" {dice.random() * 10 ** dice.randint(-300, 300)!r}, 'näme {dice.choice(['', '😀', 'x' * 60])}',"
        f" repeat('ñ', {dice.choice([0, 90, 70000])}), x'{dice.randbytes(7).hex()}ff',"
        f" {dice.choice(['NULL', '1', '2'])},"
        f" date '{dice.randint(1000, 9999)}-12-31', timestamp '{dice.randint(1000, 9999)}-01-02 03:04:05.000007',"
        f" timestamp '20{dice.randint(10, 37)}-01-02 03:04:05.678', b'{dice.randrange(2**12):b}'"
    )
    insert = (
        f"INSERT INTO t VALUES ({number}, {values}), ({-number}, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,"
    )
    then = [
        f"UPDATE t SET price = price + 1, name = 'other' WHERE id = {dice.randint(1, number)}",
        f"UPDATE t SET id = id + 1000 WHERE id = {dice.randint(1, number)}",
        f"DELETE FROM t WHERE id = {-dice.randint(1, number)}",
    ]
    return ["BEGIN", f"{insert} NULL, NULL, NULL)", *dice.sample(then, 2), "COMMIT"]


@pytest.mark.spread(2)
@pytest.mark.parametrize(("kind", "literal", "expected"), KNOWN_FAULTS, ids=[kind for kind, _, _ in KNOWN_FAULTS])
def test_values_that_the_library_misreads_are_right(
    mysql_database: MySQLDatabase, make_capture: MakeMySQLCapture, kind: str, literal: str, expected: object
) -> None:
    """N04, N05, N10, N11: the reason why the decoder is our own."""
    mysql_database.execute(f"CREATE TABLE t (id int PRIMARY KEY, v {kind})")
    capture = make_capture(mysql_database)
    capture.prepare()
    place = mysql_database.server.binlog()
    mysql_database.execute(f"INSERT INTO t VALUES (1, {literal})")
    [row] = capture.changes("t")
    assert row["v"] == expected
    [(_, other)] = theirs(mysql_database, place, 1)
    assert other["v"] != expected
