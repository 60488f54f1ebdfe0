"""A table in the order of its key, as MySQL and MariaDB read it: which index, and how rows are fetched and decoded."""

from __future__ import annotations

import pyarrow as pa

from cdcflow.model.digest import Buckets
from cdcflow.sources.engine.chunks import Snapshot
from cdcflow.sources.engine.key_chunks import KeyedTable
from cdcflow.sources.engine.table_key import Literals, TableKey
from cdcflow.sources.mysql.catalog import CatalogTable
from cdcflow.sources.mysql.connection import Connection
from cdcflow.sources.mysql.decoders import decode
from cdcflow.sources.mysql.digests import SUMS, MySQLDigests
from cdcflow.sources.mysql.fetch import Fetched, fetch
from cdcflow.sources.mysql.images import Extents
from cdcflow.sources.mysql.keys import table_key
from cdcflow.sources.mysql.results import cells_of
from cdcflow.sources.mysql.sql import quote_name
from cdcflow.sources.mysql.tables import DescribedTable
from cdcflow.sources.mysql.types.registry import select_expression


class Ordered(KeyedTable[Connection, Fetched]):
    def __init__(
        self, connection: Connection, snapshot: Snapshot, entry: CatalogTable, described: DescribedTable
    ) -> None:
        super().__init__(connection, snapshot, described.table, key_of(entry, described))
        self.entry = entry
        self.described = described

    @property
    def source(self) -> str:
        return self.entry.sql

    @property
    def by_index(self) -> str:
        return f"FORCE INDEX ({quote_name(self.key.index)})"

    @property
    def select(self) -> str:
        columns = ", ".join(select_expression(c) for c in self.described.columns)
        return f"SELECT {columns} FROM {self.source}"  # noqa: S608  quoted by `results`

    def fetch(self, statement: str, bytes_max: int | None = None) -> Fetched:
        return fetch(self.connection, statement, bytes_max)

    def decode(self, fetched: Fetched) -> pa.RecordBatch:
        return decode(self.described, fetched.data, Extents(fetched.start, fetched.end))

    def decode_sums(self, fetched: Fetched) -> pa.RecordBatch:
        return decode(SUMS, fetched.data, Extents(fetched.start, fetched.end))

    def sums_of(self, rows: str, buckets: Buckets) -> str:
        return MySQLDigests(self.described, buckets).sums(rows)

    def among_buckets(self, buckets: Buckets) -> str:
        return MySQLDigests(self.described, buckets).among()

    def first_key(self, fetched: Fetched) -> Literals:
        return self.key.literals(cells_of(fetched.data, int(fetched.start[0]), int(fetched.end[0])))

    def last_key(self, fetched: Fetched) -> Literals:
        cells = cells_of(fetched.data, int(fetched.start[-1]), int(fetched.end[-1]))
        by_name = dict(zip((c.name for c in self.described.columns), cells, strict=True))
        return self.key.literals([by_name[c.name] for c in self.key.columns])


def key_of(entry: CatalogTable, described: DescribedTable) -> TableKey:
    """Return a table's key, with its columns as the server stores them."""
    columns = {c.name: c for c in described.columns}
    return table_key([columns[name] for name in described.table.key], entry.index)
