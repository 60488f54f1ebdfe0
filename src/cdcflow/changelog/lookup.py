"""Questions about the log's past that its writer asks at a start. Newest first, by columns, in bounded memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from cdcflow.changelog import spool
from cdcflow.changelog.extents import Extent, opened_journal
from cdcflow.changelog.framing import FrameKind
from cdcflow.changelog.journal import Attach, Record, Rows, Transactions, records
from cdcflow.changelog.layout import Layout
from cdcflow.errors import ConfigurationError
from cdcflow.model.change import DELETE, KeySet, Kind, Uint64s
from cdcflow.model.position import Offset
from cdcflow.model.table import OFFSET, OP, UNCHANGED, Table, table_from_json

GATHERED_ROWS_MAX = 256 << 10
XIDS_SEEN_MAX = 1 << 31
"""An id older than this cannot be asked for: the server never has two live ids that far apart."""

_LOW = np.uint64(0xFFFFFFFF)


def delivered(layout: Layout, journals: Sequence[Extent], xids: Uint64s) -> Uint64s:
    """Those of these transaction ids (compared by their low 32 bits) that a source transaction of the log has."""
    wanted = xids & _LOW
    found = np.zeros(len(xids), np.bool_)
    left = XIDS_SEEN_MAX
    for ids in _xids(layout, journals):
        if found.all() or left <= 0:
            break
        found |= np.isin(wanted, ids & _LOW)
        left -= len(ids)
    return xids[found]


def partial_keys(layout: Layout, journals: Sequence[Extent], shape: Table, since: Offset) -> KeySet | None:
    """Keys of a table's rows from offset `since` on that came with unchanged columns, deletes aside.

    In the key columns of `shape`, its newest one.

    Raises:
        ConfigurationError: the table's key changed in between, so that older rows cannot be named by it.
    """
    if not shape.key:
        return None  # such a table's rows are always whole
    found: list[pa.Table] = []
    rows = 0
    for partial in _partial_rows(layout, journals, shape, since):
        if not partial.num_rows:
            continue
        found.append(partial)
        rows += partial.num_rows
        if rows > GATHERED_ROWS_MAX:
            found = [KeySet(pa.concat_tables(found)).distinct().keys]
            rows = 0
    keys = KeySet(pa.concat_tables(found)).distinct() if found else None
    return keys if keys is not None and len(keys) else None


def _xids(layout: Layout, journals: Sequence[Extent]) -> Iterator[Uint64s]:
    for extent in reversed(journals):
        skip = frozenset({FrameKind.ROWS, FrameKind.ATTACH, FrameKind.CUT})
        for record in _journal(layout, extent, skip):
            if isinstance(record, Transactions):
                yield _of_source(record.headers)
    for first, last in reversed(layout.segment_offsets()):
        with pq.ParquetFile(layout.segment(first, last) / "transactions.parquet") as parquet:
            for number in reversed(range(parquet.num_row_groups)):
                yield _of_source(parquet.read_row_group(number, columns=["xid", "kind"]))


def _of_source(headers: pa.RecordBatch | pa.Table) -> Uint64s:
    ids: Uint64s = headers.filter(pc.equal(headers.column("kind"), Kind.SOURCE.value)).column("xid").to_numpy()
    return ids


def _partial_rows(layout: Layout, journals: Sequence[Extent], shape: Table, since: int) -> Iterator[pa.Table]:
    for first, last in layout.segment_offsets():
        if last < since:
            continue
        segment, _ = layout.manifest(first, last)
        for file in segment.files:
            if file.table is not None and file.partial and file.last_offset >= since:
                table = table_from_json(file.table)
                if table.id == shape.id:
                    yield from _keys_in(layout.segment(first, last) / file.path, table, shape, since)
    for extent in journals:
        for rows in _journal_rows(layout, extent):
            if rows.shape.table.id == shape.id and rows.offsets[-1] >= since:
                batch = rows.rows.slice(int(np.searchsorted(rows.offsets, since)))
                yield _keys(pa.Table.from_batches([batch]), rows.shape.table, shape)


def _keys_in(path: Path, table: Table, shape: Table, since: int) -> Iterator[pa.Table]:
    columns = list(dict.fromkeys([OFFSET, OP, UNCHANGED, *_key_names(table, shape)]))
    with pq.ParquetFile(path) as parquet:
        for batch in parquet.iter_batches(columns=columns):
            rows = pa.Table.from_batches([batch])
            yield _keys(rows.filter(pc.greater_equal(rows.column(OFFSET), since)), table, shape)


def _keys(rows: pa.Table, table: Table, shape: Table) -> pa.Table:
    """The keys of the partial ones among some rows of `table`, in the key columns of `shape`."""
    keep = pc.and_(pc.is_valid(rows.column(UNCHANGED)), pc.not_equal(rows.column(OP), DELETE))
    schema = pa.schema([shape.row_schema.field(name) for name in shape.key_columns])
    keys = rows.filter(keep).select(_key_names(table, shape))
    return keys.rename_columns(schema.names).cast(schema)


def _key_names(table: Table, shape: Table) -> list[str]:
    """What `shape`'s key columns are called in `table`, an older shape of it: a renamed one keeps its number."""
    names = {c.number: c.name for c in table.columns}
    numbers = {c.name: c.number for c in shape.columns}
    try:
        return [names[numbers[name]] for name in shape.key_columns]
    except KeyError:
        raise ConfigurationError(
            f"looking for partial rows of {shape.id}: its key has changed while it was being read",
            remedy=f"run `cdcflow backfill {shape.id}` to read it anew",
        ) from None


def _journal_rows(layout: Layout, extent: Extent) -> Iterator[Rows]:
    for record in _journal(layout, extent, frozenset({FrameKind.TRANSACTIONS, FrameKind.CUT})):
        match record:
            case Rows():
                yield record
            case Attach():
                with layout.spool(record.spool).open("rb") as file:
                    yield from spool.rows(file, record)
            case _:
                pass


def _journal(layout: Layout, extent: Extent, skip: frozenset[FrameKind]) -> Iterator[Record]:
    with opened_journal(layout, extent.header.first_offset) as (file, header, path):
        yield from records(file, header, str(path), end=extent.bytes, skip=skip)
