"""Row counts and sizes of tables from the server's statistics, without reading the tables."""

from __future__ import annotations

from cdcflow.sources.mysql.connection import Connection, query

_SIZES = "SELECT TABLE_SCHEMA, TABLE_NAME, TABLE_ROWS, DATA_LENGTH FROM information_schema.TABLES"


def sizes(connection: Connection) -> dict[tuple[str, str], tuple[int | None, int | None]]:
    """Rows and bytes by schema and name; None if the server does not know. InnoDB estimates rows from a sample, and a
    server may report statistics that are a day old."""
    return {(schema, name): (_number(rows), _number(size)) for schema, name, rows, size in query(connection, _SIZES)}


def _number(value: object) -> int | None:
    return None if value is None else int(str(value))
