"""Rights that were taken away while a capture runs: the statement that gives each back, for the account that we are."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator

import pymysql

from cdcflow.errors import RightMissing
from cdcflow.model.table import TableId
from cdcflow.sources.mysql.connection import Connection, account_of
from cdcflow.sources.mysql.errors import DENIED, parts
from cdcflow.sources.mysql.sql import quoted


@contextlib.contextmanager
def reading(connection: Connection, table: TableId) -> Iterator[None]:
    """Around statements that read a table.

    Raises:
        RightMissing: SELECT is not granted; the message names the GRANT.
    """
    try:
        yield
    except pymysql.Error as error:
        if parts(error)[0] not in DENIED or not connection.open:
            raise
        raise select_missing(connection, (table,)) from None


def select_missing(connection: Connection, tables: Collection[TableId]) -> RightMissing:
    """What to raise where these tables may not be read."""
    account = account_of(connection)
    grants = (f"GRANT SELECT ON {quoted(t.schema)}.{quoted(t.name)} TO {account}" for t in sorted(tables))
    return RightMissing(
        f"reading {', '.join(map(str, sorted(tables)))}: {account} has no right to SELECT there",
        remedy=f"run {'; '.join(grants)}",
    )
