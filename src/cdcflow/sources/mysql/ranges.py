"""A table in the order of its key, as MySQL and MariaDB read it: which index, and how rows are fetched and decoded."""

from __future__ import annotations

import pyarrow as pa

from cdcflow.model.digest import Buckets
from cdcflow.sources.engine.key_ranges import OrderedTable
from cdcflow.sources.engine.table_key import Literals, TableKey
from cdcflow.sources.mysql import digests
from cdcflow.sources.mysql.catalog import CatalogTable
from cdcflow.sources.mysql.connection import Connection
from cdcflow.sources.mysql.decoders import decode
from cdcflow.sources.mysql.fetch import Fetched, fetch
from cdcflow.sources.mysql.images import Extents
from cdcflow.sources.mysql.results import cells_of
from cdcflow.sources.mysql.sql import quote_name
from cdcflow.sources.mysql.tables import DescribedTable
from cdcflow.sources.mysql.types.registry import select_expression


class Ordered(OrderedTable[Connection, Fetched]):
    def __init__(self, entry: CatalogTable, described: DescribedTable, key: TableKey) -> None:
        super().__init__(described.table, key)
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

    def fetch(self, connection: Connection, statement: str, bytes_max: int | None = None) -> Fetched:
        return fetch(connection, statement, bytes_max)

    def decode(self, fetched: Fetched) -> pa.RecordBatch:
        return decode(self.described, fetched.data, Extents(fetched.start, fetched.end))

    def decode_sums(self, fetched: Fetched) -> pa.RecordBatch:
        return decode(digests.SUMS, fetched.data, Extents(fetched.start, fetched.end))

    def sums_of(self, rows: str, buckets: Buckets) -> str:
        return digests.sums(self.described, buckets, rows)

    def among_buckets(self, buckets: Buckets) -> str:
        return digests.among(self.described, buckets)

    def first_key(self, fetched: Fetched) -> Literals:
        return self.key.literals(cells_of(fetched.data, int(fetched.start[0]), int(fetched.end[0])))

    def last_key(self, fetched: Fetched) -> Literals:
        cells = cells_of(fetched.data, int(fetched.start[-1]), int(fetched.end[-1]))
        by_name = dict(zip((c.name for c in self.described.columns), cells, strict=True))
        return self.key.literals([by_name[c.name] for c in self.key.columns])
