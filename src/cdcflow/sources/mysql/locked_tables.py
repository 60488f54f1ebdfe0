"""Prevents changes of tables while the catalog is read, by a transaction that has touched them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

import pymysql

from cdcflow.model.table import TableId
from cdcflow.sources.mysql.connection import Connection, query
from cdcflow.sources.mysql.errors import DENIED, LOCKED, NOT_THERE, parts
from cdcflow.sources.mysql.sql import quote_name


@dataclass(frozen=True, slots=True)
class LockedTables:
    """The state of tables during a block that prevents changes of them.

    `unchanged`: no other session could change them. `gone`: they were missing or unreadable at its beginning; `denied`:
    the unreadable ones among these. `locked`: another session had locked them.
    """

    unchanged: frozenset[TableId]
    gone: frozenset[TableId]
    denied: frozenset[TableId]
    locked: frozenset[TableId]


@contextlib.contextmanager
def block_ddl(connection: Connection, tables: frozenset[TableId]) -> Iterator[LockedTables]:
    """Prevent DDL on these tables while the block lasts, with a transaction that has touched them."""
    if not tables:
        yield LockedTables(tables, tables, tables, tables)
        return
    gone: set[TableId] = set()
    denied: set[TableId] = set()
    locked: set[TableId] = set()
    # Each statement sees the catalog as of that statement.
    query(connection, "SET TRANSACTION ISOLATION LEVEL READ COMMITTED")
    query(connection, "START TRANSACTION READ ONLY")
    try:
        for table in sorted(tables):
            try:
                name = f"{quote_name(table.schema)}.{quote_name(table.name)}"
                query(connection, f"SELECT 1 FROM {name} LIMIT 0")  # noqa: S608  quoted, and from the catalog itself
            except pymysql.Error as error:
                number = parts(error)[0]
                if number in LOCKED:
                    locked.add(table)
                elif number in NOT_THERE:
                    gone.add(table)
                    denied |= {table} if number in DENIED else set()
        yield LockedTables(tables - gone - locked, frozenset(gone), frozenset(denied), frozenset(locked))
    finally:
        with contextlib.suppress(pymysql.Error):
            query(connection, "ROLLBACK")
