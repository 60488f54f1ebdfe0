"""Looks up which table has a name now, and checks that it still is the one whose changes are captured under
that name."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Literal

from cdcflow.errors import SourceUnavailable
from cdcflow.model.table import TableId
from cdcflow.sources.engine.selection import not_there
from cdcflow.sources.postgres.catalog import Catalog, Selected
from cdcflow.sources.postgres.catalog_entries import Relid
from cdcflow.sources.postgres.connection import Connection

LOOK_UP_AGAIN_S = 2.0


class TableNames:
    """Looks tables up by name. `oids`: those passed to the last `capture`. Thread-safe."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self.oids: Mapping[TableId, int] = {}
        self._looked_up: tuple[float, Mapping[TableId, Relid]] = (0.0, {})

    def capture(self, selected: Selected) -> None:
        """Capture these tables in later look-ups, and forget what was looked up before."""
        self.oids = {t.rel.id: t.rel.oid for t in selected.tables}
        self._looked_up = (0.0, {})

    def look_up(self, table: TableId) -> Relid:
        """Return the table that currently has this name.

        Raises:
            SourceUnavailable: no table has the name, or a different table than the captured one has it.
        """
        # This is called for each of maybe a thousand tables in turn, so one query of the catalog answers for all of
        # them.
        seen_at, known = self._looked_up
        stale = table not in known or time.monotonic() - seen_at > LOOK_UP_AGAIN_S
        if stale or not self._catalog.ask(f"looking for {table}", lambda c: _is_still(c, known[table])):
            known = {found.rel.id: found.rel for found in self._catalog.selected_tables().tables}
            self._looked_up = time.monotonic(), known
        self._check_captured(table, known)
        if table in known:
            return known[table]
        raise not_there(table)

    def _check_captured(self, table: TableId, known: Mapping[TableId, Relid]) -> None:
        """Check that this name still belongs to the table whose changes are captured under it.

        Raises:
            SourceUnavailable: the table was renamed or replaced. The next poll of the tables applies that; rows that
                were read before it would miss changes.
        """
        oid = self.oids.get(table)
        if oid is None or (table in known and known[table].oid == oid):
            return
        if self._catalog.ask(f"looking for {table}", lambda c: exists(c, "pg_class", oid)):
            raise SourceUnavailable(f"table {table} was renamed; cdcflow finds it at its next check of the tables")
        if table in known:
            raise SourceUnavailable(
                f"table {table} was replaced by another; cdcflow finds it at its next check of the tables"
            )


def exists(connection: Connection, catalog: Literal["pg_class", "pg_namespace"], oid: int) -> bool:
    """Whether this catalog still has an entry with this oid."""
    found = connection.execute(f"SELECT FROM pg_catalog.{catalog} WHERE oid = %s", (oid,))
    return found.fetchone() is not None


def _is_still(connection: Connection, rel: Relid) -> bool:
    """Whether the table still has its name, and the same replica identity."""
    found = connection.execute(
        "SELECT oid::bigint, relreplident::text FROM pg_catalog.pg_class WHERE oid = pg_catalog.to_regclass(%s)",
        (rel.sql,),
    ).fetchone()
    return found == (rel.oid, rel.identity)
