"""The control table in PostgreSQL."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import psycopg

from cdcflow.config import Postgres
from cdcflow.errors import CdcflowError, ConfigurationError, RightMissing
from cdcflow.model.table import TableId
from cdcflow.sources.engine.connections import Pool
from cdcflow.sources.engine.control_table import SqlControlTable
from cdcflow.sources.engine.selection import table_id
from cdcflow.sources.postgres.connection import Connection, Connector, Secret, quote_name

DDL = (
    "CREATE SCHEMA IF NOT EXISTS {schema}",
    "CREATE TABLE {table} (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, operation text NOT NULL, "
    "arguments text, asked_by text NOT NULL DEFAULT session_user, asked_at timestamptz NOT NULL DEFAULT now(), "
    "state text NOT NULL DEFAULT 'new', answer text, answered_at timestamptz)",
    "GRANT USAGE ON SCHEMA {schema} TO {user}",
    "GRANT SELECT, UPDATE (state, answer, answered_at) ON {table} TO {user}",
)
"""What makes the table and lets us use it. Who may give orders needs INSERT on it, and SELECT to see the answer."""


def control_table(settings: Postgres, secret: Secret) -> SqlControlTable[Connection]:
    """The control table of the settings."""
    name = table_id(settings.control_table or "")

    def explain_error(connection: Connection, error: Exception) -> CdcflowError | None:
        user = quote_name(connection.info.user)
        if isinstance(error, psycopg.errors.InsufficientPrivilege):
            return RightMissing(
                f"the control table {name} cannot be used by {user}", remedy=f"run {ddl(name, user, 2)}"
            )
        if isinstance(error, _NOT_AS_IT_MUST_BE):
            return ConfigurationError(
                f"the control table {name} does not exist, or lacks a column",
                remedy=f"run {ddl(name, user)}",
                runbook="table-not-found",
            )
        return None

    pool = Pool(Connector(settings.url, secret), "control table")
    return SqlControlTable(pool, quote_name(name.schema, name.name), _execute, psycopg.Error, explain_error)


_NOT_AS_IT_MUST_BE = (
    psycopg.errors.UndefinedTable,
    psycopg.errors.InvalidSchemaName,
    psycopg.errors.UndefinedColumn,
)


def ddl(table: TableId, user: str, first: int = 0) -> str:
    """The statements that make the table for a user (quoted), from the one with this number on."""
    names = {"schema": quote_name(table.schema), "table": quote_name(table.schema, table.name), "user": user}
    return "; ".join(statement.format(**names) for statement in DDL[first:])


def _execute(
    connection: Connection, statement: str, parameters: Sequence[object]
) -> tuple[Sequence[tuple[Any, ...]], int]:
    cursor = connection.execute(statement.encode(), parameters or None)
    return (cursor.fetchall() if cursor.description else ()), cursor.rowcount
