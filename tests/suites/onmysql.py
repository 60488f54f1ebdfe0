"""MySQL and MariaDB with everything that a suite creates there: every database except the server's own."""

from __future__ import annotations

import contextlib
from typing import Any

import pymysql
from tests.ddlfuzz.dialects import Beside
from tests.servers.mysql import MySQLServer
from tests.suites.values import Plain, mysql_expression, of_mysql

from cdcflow.model.table import Table, TableId
from cdcflow.sources.mysql.position import BinlogPosition

OWN = ("mysql", "sys", "information_schema", "performance_schema", "cdcflow", "mtr")
_DISCARDED = (1812, 1814)
_LOCK_WAIT = 1205
_CAPTURED = (
    "SELECT t.table_schema, t.table_name, c.column_name, c.data_type FROM information_schema.tables t"
    " JOIN information_schema.columns c USING (table_schema, table_name)"
    f" WHERE t.table_schema NOT IN {OWN} AND t.table_type = 'BASE TABLE' AND t.engine IN ('InnoDB')"
    " ORDER BY 1, 2, c.ordinal_position"
)
_CASCADING = (
    "SELECT constraint_schema, table_name FROM information_schema.referential_constraints"
    " WHERE delete_rule IN ('CASCADE', 'SET NULL') OR update_rule IN ('CASCADE', 'SET NULL')"
)


class OnSuite(Beside):
    """All databases of a running server but its own.

    `types`: each column's name for its type there. `policies`: the settings in `source.columns`. `cascading`: tables
    that a foreign key could change without a row in MariaDB's binlog, which doctor and status report (docs/mysql.md).
    """

    def __init__(self, server: MySQLServer) -> None:
        self.server = server
        self.types: dict[TableId, dict[str, str]] = {}
        self.left_out: set[TableId] = set()
        self.cascading: set[TableId] = set()
        self.policies: dict[str, str] = {}
        self.connection: Any = None
        self._connect()
        self.source = {
            "kind": server.flavor,
            "url": server.url(),
            "tables": ["*.*", *(f"!{name}.*" for name in OWN)],
            "tls": {"mode": "off"},
            "tables_without_key": "whole",
            "zero_dates": "text",
        }

    def _connect(self) -> None:
        self.connection = self.server.connect(None, ssl_disabled=True)
        # HEX of a large value becomes NULL where it does not fit into a packet.
        ((packet_max,),) = self.ask("SELECT @@GLOBAL.max_allowed_packet")
        self.execute(f"SET GLOBAL max_allowed_packet = {1 << 30}")
        self.connection.close()
        self.connection = self.server.connect(None, ssl_disabled=True)
        self.execute(f"SET GLOBAL max_allowed_packet = {int(packet_max)}")
        self.connection.use_unicode, self.connection.decoders = False, {}
        for statement in (
            "lock_wait_timeout = 3",
            "innodb_lock_wait_timeout = 3",
            "sql_mode = ''",
            "time_zone = '+00:00'",
        ):
            self.execute(f"SET SESSION {statement}")

    def execute(self, statement: str) -> None:
        with self.connection.cursor() as cursor:
            cursor.execute(statement)

    def ask(self, query: str) -> list[tuple[Any, ...]]:
        with self.connection.cursor() as cursor:
            cursor.execute(query)
            return list(cursor.fetchall())

    def is_lock_wait(self, error: Exception) -> bool:
        """Whether another session held a lock for longer than a comparison waits."""
        return isinstance(error, pymysql.OperationalError) and error.args[0] == _LOCK_WAIT

    def fence(self) -> str:
        shown = "BINARY LOG" if self.server.flavor == "mysql" else "MASTER"
        file, place, *_ = self.ask(f"SHOW {shown} STATUS")[0]
        return f"{file.decode()}:{place.decode()};"

    def is_past(self, position: str, fence: str) -> bool:
        return BinlogPosition.parse(position).coordinate >= BinlogPosition.parse(fence).coordinate

    def columns(self) -> dict[TableId, list[str]]:
        self.types = {}
        for schema, table, column, data_type in self.ask(_CAPTURED):
            found = self.types.setdefault(TableId(schema.decode(), table.decode()), {})
            found[column.decode()] = data_type.decode()
        if self.server.flavor == "mariadb":
            self.cascading |= {TableId(schema.decode(), table.decode()) for schema, table in self.ask(_CASCADING)}
        return {table: list(columns) for table, columns in self.types.items() if table not in self.left_out}

    def sql_name(self, table: TableId) -> str:
        return ".".join("`" + part.replace("`", "``") + "`" for part in (table.schema, table.name))

    def plain_rows(self, table: TableId, shape: Table, names: list[str]) -> list[tuple[Plain, ...]]:
        """The rows of a table in the form of `values`."""
        kinds, types = self.types[table], {c.name: c.type.arrow for c in shape.columns}
        columns = [(name, kinds[name], types[name], self._is_replaced(table, name)) for name in names]
        selected = ", ".join(mysql_expression(n, k, t, is_replaced=r) for n, k, t, r in columns)
        rows = self.ask(f"SELECT {selected or '1'} FROM {self.sql_name(table)}")
        return [
            tuple(of_mysql(v, k, t, is_replaced=r) for v, (_, k, t, r) in zip(row, columns, strict=False))
            for row in rows
        ]

    def _is_replaced(self, table: TableId, column: str) -> bool:
        return self.policies.get(f"{table}.{column}") == "replace"

    def has_rows(self, table: TableId) -> bool:
        return bool(self.ask(f"SELECT 1 FROM {self.sql_name(table)} LIMIT 1"))

    def drop_discarded(self) -> None:
        """Drop what a test has left without its tablespace: it cannot be read, and a backfill waits for its import."""
        for table in self.columns():
            try:
                self.has_rows(table)
            except pymysql.err.MySQLError as error:
                if error.args[0] in _DISCARDED:
                    self.execute(f"DROP TABLE {self.sql_name(table)}")

    def touch(self, table: TableId) -> None:
        """Delete one row, so that the log has a message of the table in its shape of now."""
        with contextlib.suppress(pymysql.err.MySQLError):
            self.execute("SET foreign_key_checks = 0, autocommit = 1")
            self.execute(f"DELETE FROM {self.sql_name(table)} LIMIT 1")

    def forget(self) -> None:
        """What a daemon leaves on a server: nothing here."""

    def close(self) -> None:
        with contextlib.suppress(pymysql.err.MySQLError, OSError):
            self.connection.close()


__all__ = ["OWN", "OnSuite"]
