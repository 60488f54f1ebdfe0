"""Handles missing rights to read tables, revoked while a capture runs or never granted: each error has the statement
that grants the right to cdcflow's account.

The server hides a table from an account without a right to it, so a missing table cannot be distinguished from a
missing right.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Iterator

import pymysql

from cdcflow.errors import RightMissing
from cdcflow.model.table import TableId
from cdcflow.sources.engine.selection import Pattern
from cdcflow.sources.mysql.connection import Connection, account_of, query
from cdcflow.sources.mysql.errors import DENIED, NO_SUCH_TABLE, parts
from cdcflow.sources.mysql.sql import quote_name

_NO_TABLE = "cdcflow checks whether it may read here"


@contextlib.contextmanager
def reading(connection: Connection, table: TableId) -> Iterator[None]:
    """Wraps statements that read a table.

    Raises:
        RightMissing: SELECT is not granted; the message names the GRANT.
    """
    try:
        yield
    except pymysql.Error as error:
        if parts(error)[0] not in DENIED or not connection.open:
            raise
        raise select_missing(connection, (table,)) from None


def reads_all_of(connection: Connection, schema: str) -> bool:
    """Whether the schema exists and cdcflow may read every table in it, so that a table that is not visible does not
    exist.

    The server reports a missing table only to accounts that may read it.
    """
    try:
        query(connection, f"SELECT 1 FROM {quote_name(schema)}.{quote_name(_NO_TABLE)} LIMIT 0")  # noqa: S608  quoted
    except pymysql.Error as error:
        if not connection.open:
            raise
        return parts(error)[0] == NO_SUCH_TABLE
    return True


def unseen(account: str, patterns: Iterable[Pattern]) -> str:
    """Return the remedy if the catalog shows no table for these patterns."""
    grants = dict.fromkeys(f"GRANT SELECT ON {_grant_target(p)} TO {account}" for p in patterns if not p.excludes)
    return (
        "check the names in source.tables (case counts); where they are right, the server hides the tables: "
        f"run {'; '.join(grants)}"
    )


def _grant_target(pattern: Pattern) -> str:
    """Return the tables of a pattern as a GRANT names them."""
    if pattern.exact is not None:
        return f"{quote_name(pattern.exact.schema)}.{quote_name(pattern.exact.name)}"
    return "*.*" if pattern.in_schema is None else f"{quote_name(pattern.in_schema)}.*"


def select_missing(connection: Connection, tables: Collection[TableId]) -> RightMissing:
    """Return the error to raise if these tables may not be read."""
    account = account_of(connection)
    grants = (f"GRANT SELECT ON {quote_name(t.schema)}.{quote_name(t.name)} TO {account}" for t in sorted(tables))
    return RightMissing(
        f"reading {', '.join(map(str, sorted(tables)))}: {account} has no right to SELECT there",
        remedy=f"run {'; '.join(grants)}",
    )
