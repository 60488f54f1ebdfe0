"""The control table in MySQL and MariaDB."""

from __future__ import annotations

from cdcflow.config import MySQL
from cdcflow.sources.engine.control_table import Flaw, SqlControlTable
from cdcflow.sources.engine.passwords import Secret
from cdcflow.sources.engine.selection import table_id
from cdcflow.sources.mysql.connection import Connection, Connector, account_of
from cdcflow.sources.mysql.errors import DENIED, NO_SUCH_COLUMN, NO_SUCH_TABLE
from cdcflow.sources.mysql.sql import quote_name

UNKNOWN_DATABASE = 1049


class MySQLControlTable(SqlControlTable[Connection]):
    ddl = (
        "CREATE DATABASE IF NOT EXISTS {schema}",
        "CREATE TABLE {table} (id bigint NOT NULL AUTO_INCREMENT PRIMARY KEY, operation varchar(64) NOT NULL, "
        "arguments mediumtext, asked_by varchar(288) NOT NULL DEFAULT (user()), "
        "asked_at timestamp NOT NULL DEFAULT CURRENT_TIMESTAMP, state varchar(16) NOT NULL DEFAULT 'new', "
        "answer mediumtext, answered_at timestamp NULL) DEFAULT CHARACTER SET utf8mb4",
        "GRANT SELECT, UPDATE (state, answer, answered_at) ON {table} TO {user}",
    )

    def quote(self, name: str) -> str:
        return quote_name(name)

    def user_of(self, connection: Connection) -> str:
        return account_of(connection)

    def flaw(self, error: Exception) -> Flaw | None:
        number = error.args[0] if error.args else 0
        # Without a right on it the server does not reveal that a table is missing: one message has both remedies.
        if number in DENIED:
            return "denied"
        return "missing" if number in (NO_SUCH_TABLE, NO_SUCH_COLUMN, UNKNOWN_DATABASE) else None


def control_table(settings: MySQL, secret: Secret) -> MySQLControlTable:
    """Return the control table that the settings name."""
    return MySQLControlTable(Connector(settings, secret), table_id(settings.control_table or ""))
