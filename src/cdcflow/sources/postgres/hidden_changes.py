"""Detects transactions that the stream delivers before the catalog shows them.

The server sends a transaction once its commit is in the log, and a large one even before; other sessions see it later
(with synchronous replication, when the standby has it). If it changed a table's columns, the catalog then describes
another table than the one whose rows arrived. Such a statement locks its table exclusively until the transaction is
visible: so the catalog is right about a table without that lock, and about a transaction that is visible.
"""

from __future__ import annotations

import time
from collections.abc import Collection

import numpy as np

from cdcflow.sources.postgres.catalog import Catalog
from cdcflow.sources.postgres.connection import Connection, query_row
from cdcflow.sources.postgres.xid_snapshot import XidSnapshot

PATIENCE_S = 1.0
"""How long the stream waits for a commit to be visible, before it has the table read again instead."""
_POLL_S = 0.02

_LOCKED = """
SELECT l.relation::bigint FROM pg_catalog.pg_locks l
WHERE l.locktype = 'relation' AND l.mode = 'AccessExclusiveLock' AND l.granted AND l.relation = ANY (%s::oid[])
  AND l.database = (SELECT d.oid FROM pg_catalog.pg_database d WHERE d.datname = current_database())
"""


class HiddenChanges:
    """Determines which tables a delivered transaction may have changed without the catalog showing it yet.

    Used by the stream's thread only.
    """

    def __init__(self, catalog: Catalog, *, patience_s: float = PATIENCE_S) -> None:
        self._catalog = catalog
        self._patience_s = patience_s
        self._visible = 0

    def tables(self, xid: int, oids: Collection[int]) -> frozenset[int]:
        """Return the tables, among these, that a committed transaction may have changed while the catalog still shows
        their previous state; usually none.

        Waits up to `patience_s` for the transaction to be visible.
        """
        if not oids or xid == self._visible:
            return frozenset()
        deadline = time.monotonic() + self._patience_s
        while True:
            hidden = self._catalog.ask("looking up a transaction", lambda c: _hidden_tables(c, xid, oids))
            if hidden is None:
                self._visible = xid
                return frozenset()
            if not hidden or time.monotonic() >= deadline:
                return hidden
            time.sleep(_POLL_S)


def _hidden_tables(connection: Connection, xid: int, oids: Collection[int]) -> frozenset[int] | None:
    """Return the tables that are locked exclusively while the transaction is not visible; None if it is visible."""
    (text,) = query_row(connection, "SELECT pg_catalog.pg_current_snapshot()::text")
    if not len(XidSnapshot.parse(text).hidden(np.array([xid], np.uint64))):
        return None
    return frozenset(oid for (oid,) in connection.execute(_LOCKED, (sorted(oids),)))


__all__ = ["HiddenChanges"]
