"""What global settings give to every session, set to the worst: what cdcflow reads and writes stays the same."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pymysql
import pytest
from tests.servers.mysql import MySQLDatabase, MySQLServer
from tests.support.mysql.controlled_source import MakeMySQLCapture, MySQLCapture
from tests.support.postgres.controlled_source import Row

from cdcflow.model.position import Checkpoint, Epoch

pytestmark = pytest.mark.mysql

LEFT_ALONE: Mapping[str, str] = {
    "binlog_": "the content of row events: separate tests, and doctor",
    "debug": "not for use",
    "gtid_domain_id": "which server it is",
    "server_id": "which server it is",
    "wsrep_": "Galera's",
    "max_session_mem_used": "no session would survive",
    "max_tmp_session_space_usage": "no session would survive",
    "max_user_connections": "no session would begin",
    "max_recursive_iterations": "the server's own views",
    "max_rowid_filter_size": "only a plan",
    "thread_pool_": "how many sessions there are",
    "rand_seed": "of one session",
}
"""Settings, or beginnings of their names, that are not set to anything here."""
INHERITED_ANYWAY = ("binlog_row_value_options",)
CHOSEN: Mapping[str, Sequence[str]] = {
    "autocommit": ["0", "0"],
    "character_set_client": ["'latin1'", "'cp1251'"],
    "character_set_connection": ["'latin1'", "'ucs2'"],
    "character_set_results": ["'latin1'", "'cp1251'"],
    "collation_connection": ["'latin1_bin'", "'ucs2_general_ci'"],
    "completion_type": ["'CHAIN'", "'RELEASE'"],
    "binlog_row_value_options": ["'PARTIAL_JSON'", "'PARTIAL_JSON'"],
    "default_storage_engine": ["'MyISAM'", "'MEMORY'"],
    "lc_messages": ["'ja_JP'", "'de_DE'"],
    "lc_time_names": ["'ja_JP'", "'de_DE'"],
    "old_mode": ["'NO_PROGRESS_INFO,ZERO_DATE_TIME_CAST,UTF8_IS_UTF8MB3'"] * 2,
    "sql_mode": [
        "'ANSI,HIGH_NOT_PRECEDENCE,PAD_CHAR_TO_FULL_LENGTH,NO_UNSIGNED_SUBTRACTION,TRADITIONAL'",
        "'ANSI_QUOTES,PIPES_AS_CONCAT,REAL_AS_FLOAT,NO_ZERO_DATE,ONLY_FULL_GROUP_BY,IGNORE_SPACE,NO_BACKSLASH_ESCAPES'",
    ],
    "system_versioning_asof": ["'2001-01-01 00:00:00'"] * 2,
    "time_zone": ["'-11:30'", "'+13:45'"],
    "transaction_isolation": ["'READ-UNCOMMITTED'", "'SERIALIZABLE'"],
    "tx_isolation": ["'READ-UNCOMMITTED'", "'SERIALIZABLE'"],
    "use_secondary_engine": ["'FORCED'", "'FORCED'"],
}
"""Values for the two rounds where least and most are not the worst. Of other settings a switch is turned, and a number
is as small, then as large, as the server takes it."""

LONG = "x" * 200
"""The common prefix of texts that must be sorted by what follows it."""
TABLES: Mapping[str, str] = {
    "texts": "k varchar(300) CHARACTER SET utf8mb4 PRIMARY KEY, v mediumtext CHARACTER SET utf8mb4, c char(9)",
    "numbers": "id bigint unsigned PRIMARY KEY, f float, d double, n decimal(60, 25), b bit(9), y year",
    "times": "id int PRIMARY KEY, a timestamp(6) NULL, b datetime(3), c time(6), d date",
    "documents": "id int PRIMARY KEY, j json, e enum('a', 'ü'), s set('x', 'y'), g geometry",
    "plain": "v varchar(20), w int",
}
ROWS: Mapping[str, Sequence[str]] = {
    "texts": [f"'{LONG}{n}', '{n}ж\\'\\\\ü', 'a {n}'" for n in range(20)],
    "numbers": [f"{(1 << 64) - 1 - n}, 1.1, 0.1, 12345678901234567890.{n}1, b'{n:b}', 1999" for n in range(20)],
    "times": [
        f"{n}, '2024-10-27 00:30:00.12345{n % 10}', '1000-01-01 00:00:00', '-01:02:03.5', '2024-02-29'"
        for n in range(20)
    ],
    "documents": [f"{n}, '{{\"a\": [1.5, \"ü\"]}}', 'ü', 'x,y', POINT(1, {n})" for n in range(20)],
    "plain": [f"'{n}', {n}" for n in range(5)],
}


class Database:
    """Tables and a session whose settings were set before all others'."""

    def __init__(self, server: MySQLServer) -> None:
        self.server = server
        self.database: MySQLDatabase = server.create_database("hostile")
        self.session = self.database.connect(read_timeout=30)
        self.run("SET sql_mode = '', time_zone = '+00:00', lock_wait_timeout = 10")
        if server.flavor == "mysql":  # a primary key that the server makes and hides
            self.run("SET sql_generate_invisible_primary_key = ON")
        for table, columns in TABLES.items():
            self.run(f"CREATE TABLE {table} ({columns}) ENGINE = InnoDB")
        if server.flavor == "mariadb":
            self.run("ALTER TABLE plain ADD PRIMARY KEY (w)")
        self.run("CREATE DATABASE IF NOT EXISTS cdcflow")
        self.write(0, 10)

    def run(self, *statements: str) -> None:
        with self.session.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)

    def ask(self, statement: str) -> list[tuple[Any, ...]]:
        with self.session.cursor() as cursor:
            cursor.execute(statement)
            return list(cursor.fetchall())

    def write(self, first: int, last: int) -> None:
        for table, rows in ROWS.items():
            for values in rows[first:last]:
                columns = "(v, w)" if table == "plain" else ""
                self.run(f"INSERT INTO {table} {columns} VALUES ({values})")

    def make_hostile(self, nth: int) -> int:
        """Give every setting that a session inherits a value that it does not have; how many took one."""
        taken = 0
        for name, value in self.ask("SHOW SESSION VARIABLES"):
            is_left_alone = name.startswith(tuple(LEFT_ALONE)) and name not in INHERITED_ANYWAY
            if not is_left_alone and self._is_of_a_session(name):
                taken += any(self._is_set(name, to) for to in values_for(name, str(value), nth))
        # `init_connect` runs before a session makes its own settings, for users without SUPER.
        self.run("SET GLOBAL init_connect = 'SET autocommit = 0, completion_type = 1'")
        return taken

    def _is_of_a_session(self, name: str) -> bool:
        with contextlib.suppress(pymysql.Error):
            return bool(self.ask(f"SELECT @@SESSION.{name}"))
        return False

    def _is_set(self, name: str, value: str) -> bool:
        with contextlib.suppress(pymysql.Error):
            self.run(f"SET GLOBAL {name} = {value}")
            return True
        return False


def values_for(name: str, value: str, nth: int) -> list[str]:
    """What to set a setting to, in the order in which it is tried."""
    if name in CHOSEN:
        return [CHOSEN[name][nth]]
    if value in ("ON", "OFF"):
        return ["OFF" if value == "ON" else "ON"]
    if value.replace(".", "").isdecimal():
        return ["0", "1"] if nth == 0 else ["18446744073709551615", "2147483647", "1000000"]
    return []


@pytest.fixture
def hostile(own_mysql: MySQLServer) -> Iterator[Database]:
    made = Database(own_mysql)
    yield made
    made.session.close()


def backfilled(capture: MySQLCapture) -> dict[str, list[Row]]:
    return {t: capture.rows(t, size=3) for t in TABLES}


@pytest.mark.spread(2)
@pytest.mark.parametrize("nth", [0, 1], ids=["least", "most"])
@pytest.mark.parametrize("fence", ["marks", "read-only"])
def test_no_global_setting_changes_what_is_captured(
    hostile: Database, make_capture: MakeMySQLCapture, fence: str, nth: int
) -> None:
    """N21, P67: a session that inherits another mode, zone, isolation or limit would read other values, or hang."""
    database, server = hostile.database, hostile.server
    user = "clerk@'127.0.0.1'"
    monitor = "REPLICATION CLIENT" if server.flavor == "mysql" else "BINLOG MONITOR"
    hostile.run(
        f"CREATE USER {user}",
        f"GRANT REPLICATION SLAVE, {monitor} ON *.* TO {user}",
        f"GRANT SELECT, LOCK TABLES ON hostile.* TO {user}",
        f"GRANT SELECT, INSERT, UPDATE, CREATE ON cdcflow.* TO {user}",
    )
    settings = {"fence": fence, "url": server.url("clerk"), "heartbeat": 1.0}
    before = make_capture(database, **settings)
    before.checkpoint = before.source.prepare(Checkpoint(epoch=Epoch(1)), "another log").checkpoint
    assert before.changes() == []
    expected = backfilled(before)
    assert {t: len(rows) for t, rows in expected.items()} == {t: 10 if t != "plain" else 5 for t in TABLES}
    assert hostile.make_hostile(nth) > 100
    capture = make_capture(database, **settings)
    capture.prepare()
    assert backfilled(capture) == expected
    hostile.write(10, 20)
    hostile.run("UPDATE documents SET j = json_set(j, '$.a', 2) WHERE id = 1", "DELETE FROM times WHERE id = 2")
    assert capture.changes() == before.changes()
    assert len(capture.changes()) == 0
    assert [f.level for f in capture.source.continues(lambda: capture.checkpoint, "x") if f.level != "ok"] == []
