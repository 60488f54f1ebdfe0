"""The costs of the log, counted and not timed: bytes, fsyncs, and what a start reads.

Each figure has a ceiling slightly above its value when it was written. A change that breaks through one is either a
mistake or a decision: then raise the ceiling, and explain it in the same commit.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from tests.servers.disks import Counting

from cdcflow.capture.interleave.progress import Progress, TableProgress
from cdcflow.config import Seal
from cdcflow.log.files.layout import Layout
from cdcflow.log.format.segment import Segment
from cdcflow.log.read.reader import check
from cdcflow.model.change import ChangeBatch, Run
from cdcflow.model.position import Offset, SourceIdentity
from cdcflow.model.table import BEFORE, OP, UNCHANGED, Column, Table, TableId
from cdcflow.model.types import ColumnType
from cdcflow.sinks.files.log import FileLog
from cdcflow.testing.sinks import ORDERS, Writer, orders

IDENTITY = SourceIdentity("postgres", "7301", "shop", "1")
TYPES = {
    "id": ColumnType("bigint", pa.int64()),
    "customer": ColumnType("integer", pa.int32()),
    "amount": ColumnType("numeric(10,2)", pa.decimal128(10, 2)),
    "state": ColumnType("text", pa.string()),
    "note": ColumnType("text", pa.string()),
    "seen": ColumnType("timestamptz", pa.timestamp("us", tz="UTC")),
}
SHORT = Table(
    TableId("shop", "short"), 1, tuple(Column(name, i + 1, t) for i, (name, t) in enumerate(TYPES.items())), ("id",)
)

JOURNAL_BYTES_A_ROW_MAX = 38.0
SEGMENT_BYTES_A_ROW_MAX = 4.2
JOURNAL_BYTES_A_SMALL_TRANSACTION_MAX = 305.0
SEGMENT_BYTES_A_SMALL_TRANSACTION_MAX = 6.5
FSYNCS_OF_BULK_MAX = 22
"""Two of them, once per journal, record that it is the latest: otherwise a log that lost its end would seem whole."""
FSYNCS_OF_SMALL_TRANSACTIONS_MAX = 940
CUT_BYTES_MAX = 96
MANIFESTS_READ_MAX = 8


def short_rows(first: int, count: int, *, per_transaction: int) -> Run:
    """Inserts into a table of six short columns. Always the same for the same arguments."""
    ids = np.arange(first, first + count)
    mixed = (ids * 2654435761) % 2**32
    columns: dict[str, pa.Array] = {
        "id": pa.array(ids),
        "customer": pa.array((mixed % 100_003).astype(np.int32)),
        "amount": pa.array(mixed % 1_000_000).cast(pa.decimal128(21, 2)).cast(pa.decimal128(10, 2)),
        "state": pa.array(np.array(["new", "paid", "sent", "done"])[mixed % 4].tolist()),
        "note": pa.array([f"note {number:08x}" for number in mixed.tolist()]),
        "seen": pa.array(1_700_000_000_000_000 + ids * 1500 + mixed % 997).cast(TYPES["seen"].arrow),
        OP: pa.array(["c"] * count),
        UNCHANGED: pa.nulls(count, SHORT.change_schema.field(UNCHANGED).type),
        BEFORE: pa.nulls(count, SHORT.before_type),
    }
    rows = pa.RecordBatch.from_arrays(list(columns.values()), schema=SHORT.change_schema)
    ends = np.arange(per_transaction, count + 1, per_transaction)
    return Run(
        (first + ends).astype(np.uint64),
        pa.array([f"0/{0x16000000 + 300 * (first + int(end)):X}" for end in ends]),
        1_700_000_000_000_000 + ends * 900 + first,
        ends,
        (ChangeBatch(SHORT, np.arange(count), rows),),
    )


@dataclass(frozen=True, slots=True)
class Cost:
    """Of 100,000 changes: fsyncs, and bytes in the journal and in the segment that it becomes."""

    fsyncs: int
    journal_bytes: int
    segment_bytes: int


def cost(path: Path, runs: int, rows: int, *, runs_a_sync: int, per_transaction: int) -> Cost:
    disk = Counting()
    log = FileLog.open(path, IDENTITY, Seal(bytes_max=1 << 40, age_max=1e9), layer=disk)
    writer = Writer.of(log)
    writer.put(short_rows(0, rows, per_transaction=per_transaction))  # what a file contains only once is not counted
    before = disk.fsyncs, disk.bytes
    for number in range(1, runs + 1):
        writer.append(short_rows(number * rows, rows, per_transaction=per_transaction))
        writer.cut()
        if number % runs_a_sync == 0:
            log.sync()
    log.sync()
    journal_bytes = disk.bytes - before[1]
    log.roll()
    [segment] = log.seal_pending()
    found = Cost(disk.fsyncs - before[0], journal_bytes, sum(f.bytes for f in segment.files))
    log.close()
    assert check(path, deep=True).faults == ()
    return found


def test_bulk_takes_few_bytes_and_fsyncs(tmp_path: Path) -> None:
    """A backfill or a backlog of 100,000 rows, in runs of 10,000: data that is written twice must be small twice."""
    found = cost(tmp_path / "log", 10, 10_000, runs_a_sync=1, per_transaction=50)
    assert found.journal_bytes / 100_000 <= JOURNAL_BYTES_A_ROW_MAX
    assert found.segment_bytes / 110_000 <= SEGMENT_BYTES_A_ROW_MAX
    assert found.fsyncs <= FSYNCS_OF_BULK_MAX


def test_small_transactions_take_few_bytes_and_fsyncs(tmp_path: Path) -> None:
    """One row a transaction and a cut each, a hundred a sync (a sync takes that long): mostly headers, if one lets it.

    A tenth of the 100,000 is written; the fsyncs are counted for all.
    """
    found = cost(tmp_path / "log", 10_000, 1, runs_a_sync=100, per_transaction=1)
    assert found.journal_bytes / 10_000 <= JOURNAL_BYTES_A_SMALL_TRANSACTION_MAX
    assert found.segment_bytes / 10_001 <= SEGMENT_BYTES_A_SMALL_TRANSACTION_MAX
    assert 10 * found.fsyncs - 9 * FSYNCS_OF_BULK_MAX <= FSYNCS_OF_SMALL_TRANSACTIONS_MAX


@pytest.mark.parametrize("tables", [1, 1_000])
def test_cut_costs_the_same_however_many_tables_there_are(tmp_path: Path, tables: int) -> None:
    """The progress of every table is in every checkpoint: rewritten each time, it would be most of the log."""
    disk = Counting()
    log = FileLog.open(tmp_path / "log", IDENTITY, layer=disk)
    writer = Writer.of(log)
    done = TableProgress("done", 1, Offset(1), incarnation=16_000, units=100, units_done=100, rows=10_000)
    states = {TableId("public", f"table_{number}"): done for number in range(tables)}
    progress = Progress(states).to_json()
    writer.checkpoint = replace(writer.checkpoint, progress=progress, source={"slot": "cdcflow"})
    writer.put(orders(1))
    before = disk.bytes
    for _ in range(100):
        writer.cut()
    log.sync()
    assert (disk.bytes - before) / 100 <= CUT_BYTES_MAX
    before = disk.bytes
    states[TableId("public", "table_0")] = replace(done, state="reading", cursor="(17,3)")
    writer.checkpoint = replace(writer.checkpoint, progress=Progress(states).to_json())
    writer.cut()
    log.sync()
    assert disk.bytes - before <= CUT_BYTES_MAX + 512, "of a progress that changed, one table's is written"
    assert log.checkpoint == writer.checkpoint
    log._lease.release()
    assert FileLog.open(tmp_path / "log", IDENTITY, layer=disk).checkpoint == writer.checkpoint


def test_start_reads_as_much_of_a_long_log_as_of_a_short_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A log grows for years, and a start must not take longer each week."""
    log = FileLog.open(tmp_path / "log", IDENTITY, layer=Counting())
    writer = Writer.of(log)
    for number in range(1, 41):
        writer.put(orders(number, xid=number))
        log.roll()
        log.seal_pending()
    log.close()
    reads: list[tuple[int, int]] = []
    manifest = Layout.manifest

    def counted(layout: Layout, first: int, last: int) -> tuple[Segment, bytes]:
        reads.append((first, last))
        return manifest(layout, first, last)

    def listed(_: Layout) -> None:
        raise AssertionError("a start lists the segments")

    monkeypatch.setattr(Layout, "manifest", counted)
    monkeypatch.setattr(Layout, "listed_segments", listed)
    log = FileLog.open(tmp_path / "log", IDENTITY, layer=Counting())
    assert log.delivered(np.array([40, 41, 1000], np.uint64)).tolist() == [40]
    assert log.partial_keys(ORDERS.id, log.checkpoint.next_offset) is None
    assert len(reads) <= MANIFESTS_READ_MAX
    assert log.delivered(np.array([1, 17], np.uint64)).tolist() == [1, 17], "requested ids are found all the same"
    log._lease.release()
