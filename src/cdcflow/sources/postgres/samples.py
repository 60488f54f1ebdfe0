"""A digest of a few rows of a table: the first and the last by key, in their currently committed state."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import psycopg

from cdcflow.capture.ports.source import Sample
from cdcflow.model.table import TableId
from cdcflow.sources.engine.samples import both_ends, sample_of
from cdcflow.sources.postgres.connection import Connection, quote_name

WITHIN = "10s"

_COLUMNS = """
SELECT c.relkind::text, string_agg(concat_ws(' ', a.attname, a.atttypid, a.atttypmod), ',' ORDER BY a.attnum)
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid
WHERE c.oid = pg_catalog.to_regclass(%s) AND a.attnum > 0 AND NOT a.attisdropped
GROUP BY c.relkind
"""


def sample(connection: Connection, table: TableId, key: Sequence[str]) -> Sample | None:
    """Return the digest of a few rows; None if the table no longer exists."""
    name = quote_name(table.schema, table.name)
    connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
    try:
        connection.execute(f"SET LOCAL lock_timeout = '{WITHIN}'; SET LOCAL statement_timeout = '{WITHIN}'".encode())
        found = connection.execute(_COLUMNS, (name,)).fetchone()
        if found is None:
            return None
        kind, columns = found
        source = name if kind == "p" else f"ONLY {name}"
        rows = connection.execute(_rows(source, key).encode()).fetchall()
    finally:
        with contextlib.suppress(psycopg.Error):
            connection.execute("ROLLBACK")
    return sample_of(str(columns), (row[0] for row in rows))


def _rows(source: str, key: Sequence[str]) -> str:
    row = f"SELECT pg_catalog.md5((t.*)::pg_catalog.text) FROM {source} AS t"  # noqa: S608  quoted
    return " UNION ALL ".join(f"({row} {end})" for end in both_ends([f"t.{quote_name(k)}" for k in key]))
