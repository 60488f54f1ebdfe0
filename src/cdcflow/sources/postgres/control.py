"""The control table in PostgreSQL."""

from __future__ import annotations

import psycopg

from cdcflow.config import Postgres
from cdcflow.sources.engine.control_table import Flaw, SqlControlTable
from cdcflow.sources.engine.passwords import Secret
from cdcflow.sources.engine.selection import table_id
from cdcflow.sources.postgres.connection import Connection, Connector, quote_name


class PostgresControlTable(SqlControlTable[Connection]):
    ddl = (
        "CREATE SCHEMA IF NOT EXISTS {schema}",
        "CREATE TABLE {table} (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, operation text NOT NULL, "
        "arguments text, asked_by text NOT NULL DEFAULT session_user, asked_at timestamptz NOT NULL DEFAULT now(), "
        "state text NOT NULL DEFAULT 'new', answer text, answered_at timestamptz)",
        "GRANT USAGE ON SCHEMA {schema} TO {user}",
        "GRANT SELECT, UPDATE (state, answer, answered_at) ON {table} TO {user}",
    )
    created = 2

    def quote(self, name: str) -> str:
        return quote_name(name)

    def user_of(self, connection: Connection) -> str:
        return quote_name(connection.info.user)

    def flaw(self, error: Exception) -> Flaw | None:
        if isinstance(error, psycopg.errors.InsufficientPrivilege):
            return "denied"
        return "missing" if isinstance(error, _NOT_AS_IT_MUST_BE) else None


_NOT_AS_IT_MUST_BE = (
    psycopg.errors.UndefinedTable,
    psycopg.errors.InvalidSchemaName,
    psycopg.errors.UndefinedColumn,
)


def control_table(settings: Postgres, secret: Secret) -> PostgresControlTable:
    """Return the control table of the settings."""
    return PostgresControlTable(Connector.of(settings, secret), table_id(settings.control_table or ""))
