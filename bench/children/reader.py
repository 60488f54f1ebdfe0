"""The Python peers of a backfill: a table into Parquet through Arrow.

Argument: `dsn`, `table`, `path`, `with` (`connectorx`: two partitions, the whole table in memory; `adbc`: one stream of
batches). Parquet as cdcflow writes it: zstd at level 1. The clock stops when the file is synced.
"""

from __future__ import annotations

import os

import pyarrow.parquet as pq

from bench.children.usage import Clock, given, tell


def through_connectorx(dsn: str, table: str, path: str) -> int:
    import connectorx as cx  # not in a process that does not use it: its memory would count

    rows = cx.read_sql(dsn, f"SELECT * FROM {table}", partition_on="id", partition_num=2, return_type="arrow")
    pq.write_table(rows, path, compression="zstd", compression_level=1)
    return int(rows.num_rows)


def through_adbc(dsn: str, table: str, path: str) -> int:
    from adbc_driver_postgresql import dbapi  # type: ignore[import-untyped]

    count = 0
    with dbapi.connect(dsn) as connection, connection.cursor() as cursor:
        cursor.execute(f"SELECT * FROM {table}")
        batches = cursor.fetch_record_batch()
        with pq.ParquetWriter(path, batches.schema, compression="zstd", compression_level=1) as writer:
            for batch in batches:
                writer.write_batch(batch)
                count += batch.num_rows
    return count


def main() -> None:
    asked = given()
    dsn, table, path = str(asked["dsn"]), str(asked["table"]), str(asked["path"])
    clock = Clock()
    rows = (through_connectorx if asked["with"] == "connectorx" else through_adbc)(dsn, table, path)
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)
    tell({**clock.stop(), "rows": rows, "parquet_bytes": os.path.getsize(path)})


if __name__ == "__main__":
    main()
