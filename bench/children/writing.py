"""The log writer alone: batches in memory, into files, synced.

Argument: `rows`, `rows_each` (a run's rows, in transactions of 100), `path` (a folder), `mode`:
    journal   cdcflow: append, cut and sync a run at a time
    ipc       Arrow's own stream writer with lz4 on the same batches, an fsync each: the journal's limit
    seal      cdcflow: an existing journal becomes a segment of Parquet
    parquet   Arrow's own Parquet writer, zstd at level 1, on the segment's rows: the seal's limit

`bytes` is the size of what was written.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bench.children.usage import Clock, given, tell
from cdcflow.capture.ports.log import Log, Numbered
from cdcflow.config import Seal
from cdcflow.log.read.reader import read_rows
from cdcflow.model.change import ChangeBatch, Int64s, Run, commit_clock
from cdcflow.model.position import Checkpoint, Offset, SourceIdentity
from cdcflow.model.table import Column, Table, TableId
from cdcflow.model.types import ColumnType
from cdcflow.sinks.files.log import FileLog

PER_TRANSACTION = 100
_BEGAN = 1_704_067_200_000_000

TABLE = Table(
    id=TableId("public", "narrow"),
    incarnation=1,
    columns=(
        Column("id", 1, ColumnType("bigint", pa.int64()), nullable=False),
        Column("customer", 2, ColumnType("integer", pa.int32())),
        Column("status", 3, ColumnType("text", pa.string())),
        Column("note", 4, ColumnType("text", pa.string())),
        Column("amount", 5, ColumnType("numeric(10,2)", pa.decimal128(10, 2))),
        Column("placed", 6, ColumnType("timestamp with time zone", pa.timestamp("us", tz="UTC"))),
    ),
    key=("id",),
)


def runs(rows: int, rows_each: int) -> list[Run]:
    """The narrow table's rows (as in `bench.shapes`) as runs of inserts."""
    return [_run(first, rows_each) for first in range(0, rows, rows_each)]


def _scattered(ids: Int64s, modulus: int, factor: int) -> Int64s:
    """As `bench.shapes.scattered`."""
    return ids * ids % modulus * factor % modulus


def _run(first: int, count: int) -> Run:
    ids = np.arange(first, first + count, dtype=np.int64)
    placed = _BEGAN + ids * 1_500_000 + _scattered(ids, 1_000_003, 16_807)
    cents = _scattered(ids, 9_999_991, 265_443).tolist()
    amounts = pa.array([f"{n // 100}.{n % 100:02d}" for n in cents])
    statuses = np.array(["open", "sent", "paid", "paid", "paid", "paid", "paid"])
    columns = [
        pa.array(ids),
        pa.array(_scattered(ids, 100_003, 7919).astype(np.int32)),
        pa.array(statuses[_scattered(ids, 100_019, 31) % 7].tolist()),
        pa.array([f"order number {n}" for n in _scattered(ids, 2_147_483_647, 48_271).tolist()]),
        amounts.cast(pa.decimal128(10, 2)),
        pa.array(placed).cast(pa.timestamp("us", tz="UTC")),
        pa.array(["c"] * count),
        pa.nulls(count, TABLE.change_schema.field("_unchanged").type),
        pa.nulls(count, TABLE.before_type),
    ]
    batch = pa.RecordBatch.from_arrays(columns, schema=TABLE.change_schema)
    transactions = count // PER_TRANSACTION
    ends = np.arange(1, transactions + 1, dtype=np.int64) * PER_TRANSACTION
    return Run(
        xid=np.arange(transactions, dtype=np.uint64) + np.uint64(1000 + first // PER_TRANSACTION),
        position=pa.array([f"0/{first + int(e):X}" for e in ends]),
        commit_ts=placed[ends - 1],
        ends=ends,
        batches=(ChangeBatch(TABLE, np.arange(count, dtype=np.int64), batch),),
    )


def appended(log: Log, made: list[Run]) -> Iterator[Checkpoint]:
    """Appends and cuts a run at a time; gives each cut's checkpoint, which the caller syncs when it likes."""
    checkpoint = replace(log.checkpoint, epoch=log.epoch)
    for run in made:
        clock = commit_clock(checkpoint.commit_clock, run.commit_ts)
        log.append(Numbered(run, checkpoint.next_offset, checkpoint.next_transaction, clock))
        checkpoint = replace(
            checkpoint,
            position=run.last_position,
            next_offset=Offset(checkpoint.next_offset + run.rows),
            next_transaction=checkpoint.next_transaction + run.transactions,
            cut=checkpoint.cut + 1,
            commit_clock=int(clock[-1]),
        )
        log.cut(checkpoint)
        yield checkpoint


def written(path: Path, made: list[Run]) -> Iterator[FileLog]:
    """Writes the runs, each with its own cut and sync; gives the log before the first and after the last."""
    log = FileLog.open(path, SourceIdentity("postgres", "1", "bench"), Seal(bytes_max=1 << 40, age_max=1e9))
    yield log
    for _ in appended(log, made):
        log.sync()
    yield log


def _size(path: Path) -> int:
    return sum(p.stat().st_size for p in path.rglob("*") if p.is_file())


def through_log(path: Path, made: list[Run], *, seal: bool) -> dict[str, object]:
    steps = written(path, made)
    next(steps)
    clock = Clock()
    log = next(steps)
    if seal:
        clock = Clock()
        log.roll()
        log.seal_pending()
    figures: dict[str, object] = {**clock.stop(), "bytes": _size(path / ("segments" if seal else "journal"))}
    log.close()
    return figures


def through_arrow(path: Path, made: list[Run]) -> dict[str, object]:
    path.mkdir()
    clock = Clock()
    options = pa.ipc.IpcWriteOptions(compression="lz4", use_threads=False)
    with (
        pa.OSFile(str(path / "arrow"), "wb") as file,
        pa.ipc.new_stream(file, TABLE.change_schema, options=options) as to,
    ):
        for run in made:
            for batch in run.batches:
                to.write_batch(batch.rows)
            file.flush()
            os.fsync(file.fileno())
    return {**clock.stop(), "bytes": _size(path)}


def through_parquet(path: Path, made: list[Run]) -> dict[str, object]:
    steps = written(path / "log", made)
    next(steps)
    next(steps).close()
    rows = pa.concat_tables([r for _, _, r in read_rows(path / "log")])
    to = path / "rows.parquet"
    clock = Clock()
    pq.write_table(rows, to, compression="zstd", compression_level=1)
    fd = os.open(to, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)
    return {**clock.stop(), "bytes": to.stat().st_size}


def main() -> None:
    asked = given()
    path, rows = Path(str(asked["path"])), int(str(asked["rows"]))
    made = runs(rows, int(str(asked["rows_each"])))
    match asked["mode"]:
        case "journal":
            figures = through_log(path, made, seal=False)
        case "seal":
            figures = through_log(path, made, seal=True)
        case "ipc":
            figures = through_arrow(path, made)
        case _:
            path.mkdir()
            figures = through_parquet(path, made)
    tell({**figures, "rows": rows})


if __name__ == "__main__":
    main()
