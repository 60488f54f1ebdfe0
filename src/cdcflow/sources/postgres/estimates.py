"""How many rows and bytes tables have, by the server's statistics: nothing is read of them."""

from __future__ import annotations

from collections.abc import Sequence

from cdcflow.sources.postgres.connection import Connection

# A table that was never analyzed has -1 rows: the number is unknown. Indexes are not read, so they do not count.
_SIZES = """
SELECT r.oid::bigint, CASE WHEN bool_and(c.reltuples >= 0) THEN sum(c.reltuples)::bigint END,
       sum(pg_catalog.pg_table_size(c.oid))::bigint
FROM unnest(%s::oid[]) AS r (oid)
LEFT JOIN LATERAL pg_catalog.pg_partition_tree(r.oid) AS p ON p.isleaf
JOIN pg_catalog.pg_class c ON c.oid = coalesce(p.relid, r.oid)
GROUP BY r.oid
"""


def sizes(connection: Connection, oids: Sequence[int]) -> dict[int, tuple[int | None, int | None]]:
    """Rows and bytes by oid; a partitioned table's are those of its partitions. None: the server does not know."""
    return {oid: (rows, size) for oid, rows, size in connection.execute(_SIZES, (list(oids),))}
