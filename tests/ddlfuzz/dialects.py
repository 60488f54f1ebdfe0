"""The queries for each server: a fresh database, sessions, a fence, which tables are captured and their rows."""

from __future__ import annotations

import contextlib
import itertools
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

import psycopg
import pymysql
from pymysql.constants import COMMAND
from tests.ddlfuzz.clauses import CLIENT_SETS
from tests.ddlfuzz.kept import Standing
from tests.ddlfuzz.model import Server
from tests.servers.mysql import MySQLDatabase, MySQLServer
from tests.servers.postgres import Database, PostgresServer

from cdcflow.model.table import TableId
from cdcflow.sources.mysql.position import BinlogPosition

_numbers = itertools.count(1)
_CLIENT_SET = re.compile(r"SET character_set_client = (\w+)")
HOLDING = {"synchronous_standby_names": "absent", "synchronous_commit": "local"}
"""A PostgreSQL server where commits wait for a standby that does not exist, in sessions that ask for it."""
LOCK_TIMEOUT, HELD_TIMEOUT = "5s", "200ms"
"""While a commit is held, others wait in vain for its tables."""
Error = (psycopg.Error, pymysql.Error)


class Beside(ABC):
    """A fresh database of a running server, dropped at the end."""

    source: dict[str, Any]
    """The settings of a capture of it."""

    @abstractmethod
    def execute(self, statement: str) -> None: ...
    @abstractmethod
    def ask(self, query: str) -> list[tuple[Any, ...]]: ...
    @abstractmethod
    def fence(self) -> str: ...
    @abstractmethod
    def is_past(self, position: str, fence: str) -> bool: ...
    @abstractmethod
    def columns(self) -> dict[TableId, list[str]]:
        """The tables that the settings mean, and the columns that the log can have."""

    @abstractmethod
    def sql_name(self, table: TableId) -> str: ...
    @abstractmethod
    def close(self) -> None: ...

    def rows(self, table: TableId, columns: list[str]) -> list[tuple[Any, ...]]:
        return self.ask(f"SELECT {', '.join(columns)} FROM {self.sql_name(table)}")


class OnPostgres(Beside):
    def __init__(self, server: PostgresServer) -> None:
        self.database: Database = server.create_database(f"fuzz_{next(_numbers)}")
        self.connection = self._connected(LOCK_TIMEOUT)
        self.held: psycopg.Connection[tuple[Any, ...]] | None = None
        for statement in (
            "CREATE SCHEMA side",
            "CREATE SCHEMA away",
            "CREATE TYPE public.mood AS ENUM ('calm', 'glad', 'odd')",
        ):
            self.connection.execute(statement.encode())
        url = self.database.url
        tables = ["public.*", "side.*", "!*.hidden_*"]
        self.source = {"kind": "postgres", "url": url, "tables": tables}

    def decode_in_little_memory(self) -> None:
        """For sessions that begin later: transactions of more than 64 kB are sent before their commit."""
        self.execute(f"ALTER DATABASE {self.database.name} SET logical_decoding_work_mem = '64kB'")

    def streamed(self) -> int:
        """How many transactions were sent before their commit."""
        found = self.ask(
            "SELECT coalesce(sum(stream_txns), 0)::bigint FROM pg_replication_slots JOIN pg_stat_replication_slots"
            f" USING (slot_name) WHERE database = '{self.database.name}'"
        )
        return int(found[0][0])

    def execute(self, statement: str) -> None:
        match statement:
            case "{hold}":
                self._hold()
                return
            case "{release}":
                self._release()
                return
        if "{publication}" in statement:
            row = self.connection.execute("SELECT quote_ident(pubname) FROM pg_publication").fetchone()
            if row is None:
                raise psycopg.errors.UndefinedObject("there is no publication yet")
            statement = statement.replace("{publication}", row[0])
        self.connection.execute(statement.encode())

    def _hold(self) -> None:
        """Commit in a session of its own, and return when that waits. A transaction without changes does not."""
        self.execute("SET LOCAL synchronous_commit = on")
        self.held, self.connection = self.connection, self._connected(HELD_TIMEOUT)
        self.held.pgconn.send_query(b"COMMIT")
        waits = f"SELECT wait_event = 'SyncRep' FROM pg_stat_activity WHERE pid = {self.held.info.backend_pid}"
        while self._is_held() and self.ask(waits) != [(True,)]:
            time.sleep(0.002)

    def _release(self) -> None:
        while self._is_held():
            assert self.held is not None
            self.held.cancel()  # ends the wait with a warning; the transaction is committed
            time.sleep(0.002)
        if self.held is not None:
            self.held.close()
            self.held = None
        self.execute(f"SET lock_timeout = '{LOCK_TIMEOUT}'")

    def _is_held(self) -> bool:
        if self.held is None:
            return False
        self.held.pgconn.consume_input()
        return bool(self.held.pgconn.is_busy())

    def _connected(self, lock_timeout: str) -> psycopg.Connection[tuple[Any, ...]]:
        connection = self.database.connect()
        connection.execute(f"SET lock_timeout = '{lock_timeout}'".encode())
        return connection

    def ask(self, query: str) -> list[tuple[Any, ...]]:
        return self.connection.execute(query.encode()).fetchall()

    def fence(self) -> str:
        self.execute("SELECT pg_logical_emit_message(true, 'fuzz', 'fence')")
        high, low = str(self.ask("SELECT pg_current_wal_insert_lsn()")[0][0]).split("/")
        return f"{int(high, 16):08X}/{int(low, 16):08X}"

    def is_past(self, position: str, fence: str) -> bool:
        return position >= fence

    def columns(self) -> dict[TableId, list[str]]:
        generated = "" if self.database.server.version >= 180000 else " AND attgenerated = ''"
        found = self.ask(
            "SELECT nspname, relname, array_agg(attname::text ORDER BY attnum) FROM pg_class c"
            " JOIN pg_namespace n ON n.oid = relnamespace JOIN pg_attribute a ON attrelid = c.oid"
            " WHERE nspname IN ('public', 'side') AND relkind IN ('r', 'p') AND NOT relispartition AND attnum > 0"
            f" AND NOT attisdropped AND relname NOT LIKE 'hidden\\_%' {generated} GROUP BY 1, 2"
        )
        return {TableId(schema, name): columns for schema, name, columns in found}

    def standing(self) -> list[Standing]:
        columns = self.columns()
        numbers = self.ask(
            "SELECT oid::bigint, relnamespace::regnamespace::text, relname FROM pg_class WHERE relkind = 'r'"
        )
        found = ((number, TableId(schema, name)) for number, schema, name in numbers)
        return [Standing(number, table, columns[table]) for number, table in found if table in columns]

    def name_of(self, number: int) -> TableId | None:
        found = self.ask(f"SELECT relnamespace::regnamespace::text, relname FROM pg_class WHERE oid = {number}")
        return TableId(*found[0]) if found else None

    def rows_of(self, number: int, columns: Sequence[str]) -> list[tuple[Any, ...]] | None:
        found = self.ask(
            f"SELECT attrelid::regclass::text, attname::text FROM pg_attribute WHERE attrelid = {number} AND attnum > 0"
            " AND NOT attisdropped"
        )
        if not set(columns) <= {name for _, name in found}:
            return None
        return self.ask(f"SELECT {', '.join(columns)} FROM {found[0][0]}")

    def sql_name(self, table: TableId) -> str:
        return f"{table.schema}.{table.name}"

    def close(self) -> None:
        self._release()
        self.connection.close()
        self.database.drop()


class OnMySQL(Beside):
    def __init__(self, server: MySQLServer) -> None:
        self.charset = "utf8mb4"
        # Without TLS, whose certificates take longer to load than a case's questions to ask.
        self.asking = server.connect(ssl_disabled=True)
        name = f"fuzz_{next(_numbers)}"
        self.ask(f"CREATE DATABASE {name} CHARACTER SET utf8mb4")
        self.ask(f"USE {name}")
        self.database = MySQLDatabase(server, name)
        self.connection = self.database.connect(ssl_disabled=True)
        self.execute("SET SESSION lock_wait_timeout = 5")
        self.execute("SET SESSION innodb_lock_wait_timeout = 5")
        self.execute("SET SESSION time_zone = '+00:00'")
        tables = [f"{name}.*", f"!{name}.hidden_*"]
        self.source = {"kind": server.flavor, "url": server.url(), "tables": tables, "tls": {"mode": "off"}}

    def execute(self, statement: str) -> None:
        # Not by a cursor, which sends everything in UTF-8.
        statement = statement.replace("{database}", self.database.name)
        try:
            said = statement.encode(CLIENT_SETS[self.charset])
        except UnicodeEncodeError as error:
            raise pymysql.err.DataError(f"{self.charset} has no {error.object[error.start]}") from None
        self.connection._execute_command(COMMAND.COM_QUERY, said)
        self.connection._read_query_result()
        if found := _CLIENT_SET.fullmatch(statement):
            self.charset = found[1]

    def ask(self, query: str) -> list[tuple[Any, ...]]:
        """In a separate session, in UTF-8, whatever the character set of the case's is."""
        with self.asking.cursor() as cursor:
            cursor.execute(query)
            return list(cursor.fetchall())

    def fence(self) -> str:
        newer = self.database.server.flavor == "mysql"
        file, place = self.ask("SHOW BINARY LOG STATUS" if newer else "SHOW MASTER STATUS")[0][:2]
        return f"{file}:{place};"

    def is_past(self, position: str, fence: str) -> bool:
        return BinlogPosition.parse(position).coordinate >= BinlogPosition.parse(fence).coordinate

    def columns(self) -> dict[TableId, list[str]]:
        found: dict[TableId, list[str]] = {}
        for table, column in self.ask(
            "SELECT table_name, column_name FROM information_schema.columns WHERE table_schema ="
            f" '{self.database.name}' AND table_name NOT LIKE 'hidden\\_%' ORDER BY table_name, ordinal_position"
        ):
            found.setdefault(TableId(self.database.name, table), []).append(column)
        return found

    def sql_name(self, table: TableId) -> str:
        return f"{table.schema}.{table.name}"

    def close(self) -> None:
        self.connection.close()
        self.ask(f"DROP DATABASE IF EXISTS {self.database.name}")
        self.asking.close()


@contextlib.contextmanager
def running(server: Server, *, in_lower_case: bool = False) -> Iterator[PostgresServer | MySQLServer]:
    """A server for many cases. `in_lower_case`: a MySQL or MariaDB that does not tell the case of names."""
    if server == "postgres":
        with PostgresServer(settings=HOLDING) as postgres:
            yield postgres
    else:
        with MySQLServer(server, in_lower_case=in_lower_case) as started:
            yield started


def fresh(server: PostgresServer | MySQLServer) -> Beside:
    return OnPostgres(server) if isinstance(server, PostgresServer) else OnMySQL(server)


__all__ = ["Beside", "Error", "fresh", "running"]
