"""Marks in the binary log: rows of cdcflow's own small table, or, without write access, positions in the log.

A written mark arrives as a row event. In read-only mode the mark is the log's end at the time of the request:
everything already visible is before it, because a commit is logged before it can be seen. The stream reports the mark
when it has passed that position. A heartbeat is then the server's time: its clock is read first and the log's end after
it, so that everything logged by that time is before the end.
"""

# ruff: noqa: S608 - names go through `quote_name`, values through `literal`
from __future__ import annotations

import itertools
import os
import threading
from typing import Protocol

import pymysql

from cdcflow.capture.ports.findings import Dropped
from cdcflow.errors import CdcflowError, RightMissing
from cdcflow.model.position import Token
from cdcflow.model.table import TableId
from cdcflow.sources.mysql import binlog_status
from cdcflow.sources.mysql.connection import Connection, account_of, query
from cdcflow.sources.mysql.errors import DENIED, NO_SUCH_TABLE, map_error, parts
from cdcflow.sources.mysql.gtids import Flavor
from cdcflow.sources.mysql.position import Coordinate
from cdcflow.sources.mysql.row_events import HEARTBEAT
from cdcflow.sources.mysql.sql import literal, quote_name

OUR_DATABASE = "cdcflow"
"""The database that is created for the table of marks unless the settings name another."""
_UNKNOWN_DATABASE = 1049
_NOW = "SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))"
_MAY_NOT_WRITE = DENIED | {1227}
_OF_PROBE = "/probe"


class Expecting(Protocol):
    """A stream that reports marks and times at positions (`stream.BinlogStream`)."""

    def expect(self, token: Token, coordinate: Coordinate) -> None: ...
    def expect_time(self, commit_ts: int, coordinate: Coordinate) -> None: ...


class Expectations:
    """Passes marks on to the stream, which may not exist yet. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._stream: Expecting | None = None
        self._early: list[tuple[Token, Coordinate]] = []

    def expect(self, token: Token, coordinate: Coordinate) -> None:
        with self._lock:
            if self._stream is None:
                self._early.append((token, coordinate))
            else:
                self._stream.expect(token, coordinate)

    def expect_time(self, commit_ts: int, coordinate: Coordinate) -> None:
        """Pass a time on. No caller waits for a time, so it is dropped if there is no stream."""
        with self._lock:
            if self._stream is not None:
                self._stream.expect_time(commit_ts, coordinate)

    def attach(self, stream: Expecting) -> None:
        """Set the stream that reports later marks. Marks passed to an earlier stream are void."""
        with self._lock:
            self._stream = stream
            early, self._early = self._early, []
            for token, coordinate in early:
                stream.expect(token, coordinate)


class WrittenMarks:
    """Marks as rows of `table`, in this log's `slot`."""

    _numbers = itertools.count(1)

    def __init__(self, table: TableId, slot: str) -> None:
        self.table = table
        self._sql = f"{quote_name(table.schema)}.{quote_name(table.name)}"
        self._slot = slot

    def write(self, connection: Connection, token: Token) -> None:
        """Commit a mark. The table is created again if it was dropped."""
        try:
            self._insert(connection, token)
        except pymysql.Error as error:
            code = parts(error)[0]
            if code in (NO_SUCH_TABLE, _UNKNOWN_DATABASE):
                self.ensure(connection)
                self._insert(connection, token)
            elif code in _MAY_NOT_WRITE:
                raise self.map_error(connection, error) from None
            else:
                raise

    def _insert(self, connection: Connection, token: Token) -> None:
        text = literal(token.text)
        query(
            connection,
            f"INSERT INTO {self._sql} (`slot`, `token`, `at`) "
            f"VALUES ({literal(self._slot)}, {text}, NOW(6)) "
            f"ON DUPLICATE KEY UPDATE `token` = {text}, `at` = NOW(6)",
        )

    def of_probe(self) -> WrittenMarks:
        """Return the marks of this log that only show how long a commit takes.

        The stream treats their rows as marks of another log, and the log's marks never wait for a lock on these rows.
        """
        return WrittenMarks(self.table, f"{self._slot[:50]}{_OF_PROBE}")

    def beat(self, connection: Connection) -> None:
        """Write a mark that no caller waits for. Its text always differs from the last, or nothing would be logged."""
        self.write(connection, Token(f"{HEARTBEAT} {os.getpid()}.{next(self._numbers)}"))

    def ensure(self, connection: Connection) -> None:
        """Create the table if it is missing, and check that it can be written.

        Raises:
            RightMissing: cdcflow may not create or write it; the message names the GRANT.
        """
        try:
            self._make(connection)
            self.check(connection)
        except pymysql.Error as error:
            raise self.map_error(connection, error) from None

    def check(self, connection: Connection) -> None:
        """Check that the table exists and can be written; raises pymysql's errors. Nothing is written."""
        query(
            connection,
            f"EXPLAIN INSERT INTO {self._sql} (`slot`, `token`, `at`) VALUES ('', '', NOW(6)) "
            "ON DUPLICATE KEY UPDATE `token` = ''",
        )

    def drop(self, connection: Connection) -> list[Dropped]:
        """Remove this slot's marks, the table if it has no others, and its database if that is cdcflow's and empty.

        The table stays while it has marks of other logs. Dropping it when it is empty loses nothing: every mark is in
        the binary log already. Raises pymysql's errors unchanged, except for missing rights.
        """
        marks, table = f"marks of {self._slot} in {self.table}", f"table of marks {self.table}"
        try:
            mine = query(connection, f"SELECT 1 FROM {self._sql} WHERE `slot` = {literal(self._slot)}")
        except pymysql.Error as error:
            if parts(error)[0] in (NO_SUCH_TABLE, _UNKNOWN_DATABASE):
                return [Dropped(table, "absent")]
            return [_not_dropped(marks, error, self._deletion)]
        done = [Dropped(marks, "absent")]
        if mine:
            try:
                query(connection, self._deletion)
            except pymysql.Error as error:
                return [_not_dropped(marks, error, f"{self._deletion}; then DROP TABLE {self._sql} if it is empty")]
            done = [Dropped(marks, "removed")]
        if query(connection, f"SELECT 1 FROM {self._sql} LIMIT 1"):
            return [*done, Dropped(table, "left", "other logs have their marks in it")]
        try:
            query(connection, f"DROP TABLE IF EXISTS {self._sql}")
        except pymysql.Error as error:
            return [*done, _not_dropped(table, error, f"DROP TABLE {self._sql}")]
        return [*done, Dropped(table, "removed"), *self._drop_database(connection)]

    @property
    def _deletion(self) -> str:
        slots = f"{literal(self._slot)}, {literal(self.of_probe()._slot)}"
        return f"DELETE FROM {self._sql} WHERE `slot` IN ({slots})"

    def _drop_database(self, connection: Connection) -> list[Dropped]:
        schema = self.table.schema
        if schema != OUR_DATABASE:
            return []
        kinds = (("TABLES", "TABLE_SCHEMA"), ("ROUTINES", "ROUTINE_SCHEMA"), ("EVENTS", "EVENT_SCHEMA"))
        subject = f"database {schema}"
        for view, column in kinds:
            if query(connection, f"SELECT 1 FROM information_schema.{view} WHERE {column} = {literal(schema)} LIMIT 1"):
                return [Dropped(subject, "left", "there is more in it than marks")]
        try:
            query(connection, f"DROP DATABASE IF EXISTS {quote_name(schema)}")
        except pymysql.Error as error:
            return [_not_dropped(subject, error, f"DROP DATABASE {quote_name(schema)}")]
        return [Dropped(subject, "removed")]

    def map_error(self, connection: Connection, error: pymysql.Error) -> CdcflowError:
        """Return the error for a table that cannot be created or written."""
        if parts(error)[0] not in _MAY_NOT_WRITE:
            return map_error(error, f"preparing the table of marks {self.table}")
        account = account_of(connection)
        rights, schema = "CREATE, SELECT, INSERT, UPDATE", quote_name(self.table.schema)
        return RightMissing(
            f"marks cannot be written to {self.table} by {account}",
            remedy=f"run GRANT {rights} ON {schema}.* TO {account}, or set source.fence: read-only",
        )

    def _make(self, connection: Connection) -> None:
        try:
            query(connection, f"SELECT `slot`, `token`, `at` FROM {self._sql} LIMIT 0")
        except pymysql.Error as error:
            if not error.args or error.args[0] not in (NO_SUCH_TABLE, _UNKNOWN_DATABASE):
                raise
        else:
            return
        if not query(connection, f"SHOW DATABASES LIKE {_pattern(self.table.schema)}"):
            query(connection, f"CREATE DATABASE IF NOT EXISTS {quote_name(self.table.schema)}")
        query(
            connection,
            f"CREATE TABLE IF NOT EXISTS {self._sql} (`slot` VARCHAR(64) NOT NULL PRIMARY KEY, "
            "`token` VARCHAR(255) NOT NULL, `at` TIMESTAMP(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6)) "
            "ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4",
        )


def _not_dropped(subject: str, error: pymysql.Error, sql: str) -> Dropped:
    """Report that an object stays because a right is missing; raise all other errors."""
    if parts(error)[0] not in _MAY_NOT_WRITE:
        raise error
    return Dropped(subject, "left", "the user of source.url may not remove it", f"{sql};")


def _pattern(name: str) -> str:
    return "'" + name.replace("'", "''").replace("_", "\\_").replace("%", "\\%") + "'"


class ReadOnlyMarks:
    """Marks as positions in the log."""

    def __init__(self, flavor: Flavor, expectations: Expectations) -> None:
        self._flavor = flavor
        self._expectations = expectations

    def write(self, connection: Connection, token: Token) -> None:
        """Have the stream report this mark at the current end of the log."""
        self._expectations.expect(token, binlog_status.end(connection).coordinate)

    def beat(self, connection: Connection) -> None:
        """Have the stream report the current time once it has reached the current end of the log."""
        # In this order: a time read after the end would be later than commits between the two.
        ((commit_ts,),) = query(connection, _NOW)
        self._expectations.expect_time(int(commit_ts), binlog_status.end(connection).coordinate)

    def ensure(self, connection: Connection) -> None:
        """Do nothing: no table is needed."""


Marking = WrittenMarks | ReadOnlyMarks
