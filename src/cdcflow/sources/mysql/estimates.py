"""How many rows and bytes tables have, by the server's statistics: nothing is read of them."""

from __future__ import annotations

from cdcflow.sources.mysql.connection import Connection, query

_SIZES = "SELECT TABLE_SCHEMA, TABLE_NAME, TABLE_ROWS, DATA_LENGTH FROM information_schema.TABLES"


def sizes(connection: Connection) -> dict[tuple[str, str], tuple[int | None, int | None]]:
    """Rows and bytes by schema and name. None: the server does not know. InnoDB counts rows by a sample, and a server
    may tell what it counted a day ago."""
    return {(schema, name): (_number(rows), _number(size)) for schema, name, rows, size in query(connection, _SIZES)}


def _number(value: object) -> int | None:
    return None if value is None else int(str(value))
