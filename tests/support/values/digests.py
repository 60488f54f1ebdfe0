"""A source's rows as this process digests them, and as the server does."""

from __future__ import annotations

import dataclasses

import pyarrow as pa

from cdcflow.model import digest
from cdcflow.model.digest import BUCKETS_MAX, Buckets, Hash
from cdcflow.model.sqltypes import stored_type
from cdcflow.model.table import Table
from cdcflow.tables.local.comparison import DuckComparer
from cdcflow.tables.verify.port import Columns


def buckets_of(shape: Table, *names: str, key: tuple[str, ...] = ("id",), hash_: Hash = "md5") -> Buckets:
    """Of these columns of a table as its copy holds them, so many that a small key has one to itself."""
    types = {c.name: stored_type(c.type.arrow).table for c in shape.columns}
    columns = tuple((name, types[name]) for name in dict.fromkeys((*key, *names)))
    return Buckets(columns, key, BUCKETS_MAX, hash_)


def here(shape: Table, rows: pa.RecordBatch, buckets: Buckets) -> dict[int, tuple[int, int]]:
    """By bucket the rows and the sum of their digests, in DuckDB."""
    comparer = DuckComparer()
    columns = Columns(shape.id, buckets.columns, buckets.key, has_key=True)
    try:
        converted = comparer.convert_rows(columns, shape, pa.Table.from_batches([rows]))
        return by_bucket(comparer._session.over(converted, digest.sums("{}", buckets)))
    finally:
        comparer.close()


def by_bucket(sums: pa.Table | pa.RecordBatch) -> dict[int, tuple[int, int]]:
    return {row["b"]: (row["n"], int(row["t"])) for row in sums.to_pylist()}


def with_other_key(buckets: Buckets, *key: str) -> Buckets:
    return dataclasses.replace(buckets, key=key)
