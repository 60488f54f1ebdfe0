"""The control table in MySQL and MariaDB."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pymysql

from cdcflow.config import MySQL
from cdcflow.errors import CdcflowError, ConfigurationError, RightMissing
from cdcflow.model.table import TableId
from cdcflow.sources.engine.connections import Pool
from cdcflow.sources.engine.control_table import SqlControlTable
from cdcflow.sources.engine.selection import table_id
from cdcflow.sources.mysql.connection import Connection, Connector, Secret, account_of
from cdcflow.sources.mysql.errors import DENIED, NO_SUCH_COLUMN, NO_SUCH_TABLE
from cdcflow.sources.mysql.sql import quote_name

DDL = (
    "CREATE DATABASE IF NOT EXISTS {schema}",
    "CREATE TABLE {table} (id bigint NOT NULL AUTO_INCREMENT PRIMARY KEY, operation varchar(64) NOT NULL, "
    "arguments mediumtext, asked_by varchar(288) NOT NULL DEFAULT (user()), "
    "asked_at timestamp NOT NULL DEFAULT CURRENT_TIMESTAMP, state varchar(16) NOT NULL DEFAULT 'new', "
    "answer mediumtext, answered_at timestamp NULL) DEFAULT CHARACTER SET utf8mb4",
    "GRANT SELECT, UPDATE (state, answer, answered_at) ON {table} TO {user}",
)
"""Creates the table and allows cdcflow to use it. An operator needs INSERT on it to send commands, and SELECT to see
the answer."""

UNKNOWN_DATABASE = 1049


def control_table(settings: MySQL, secret: Secret) -> SqlControlTable[Connection]:
    """The control table that the settings name."""
    name = table_id(settings.control_table or "")

    def explain_error(connection: Connection, error: Exception) -> CdcflowError | None:
        number = error.args[0] if error.args else 0
        # Without a right on it the server does not reveal that a table is missing: one message has both remedies.
        if number in DENIED:
            account = account_of(connection)
            return RightMissing(
                f"the control table {name} cannot be used by {account}", remedy=f"run {ddl(name, account)}"
            )
        if number in (NO_SUCH_TABLE, NO_SUCH_COLUMN, UNKNOWN_DATABASE):
            remedy = f"run {ddl(name, account_of(connection))}"
            return ConfigurationError(
                f"the control table {name} does not exist, or lacks a column", remedy=remedy, runbook="table-not-found"
            )
        return None

    pool = Pool(Connector(settings, secret), "control table")
    table = f"{quote_name(name.schema)}.{quote_name(name.name)}"
    return SqlControlTable(pool, table, _execute, pymysql.Error, explain_error)


def ddl(table: TableId, account: str) -> str:
    """The statements that create the table for an account."""
    sql = f"{quote_name(table.schema)}.{quote_name(table.name)}"
    return "; ".join(s.format(schema=quote_name(table.schema), table=sql, user=account) for s in DDL)


def _execute(
    connection: Connection, statement: str, parameters: Sequence[object]
) -> tuple[Sequence[tuple[Any, ...]], int]:
    with connection.cursor() as cursor:
        changed = cursor.execute(statement, parameters or None)
        return (cursor.fetchall() if cursor.description else ()), changed
