"""Queries over the log's past that its writer makes when it starts. They read the latest rows first, in columns, in
bounded memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from cdcflow.errors import KeysUnknown
from cdcflow.log.files import attached
from cdcflow.log.files.extents import Extent, opened_journal
from cdcflow.log.files.layout import Layout
from cdcflow.log.files.parquet import columns_of
from cdcflow.log.format.framing import FrameKind, frames
from cdcflow.log.format.journal import AttachedSpool, Record, records
from cdcflow.log.format.rows import ShapeRows
from cdcflow.log.format.segment import Segment
from cdcflow.log.format.transactions import HEADERS_BACK, TransactionHeaders, gathered_back, headers_back, source_xids
from cdcflow.model.change import DELETE, PARTIAL_KEYS_MAX, KeySet, Kind, Uint64s
from cdcflow.model.position import Offset, Position
from cdcflow.model.table import OFFSET, OP, UNCHANGED, Table, TableId, table_from_json, word

GATHERED_ROWS_MAX = 256 << 10
_LOW = np.uint64(0xFFFFFFFF)


def delivered_xids(
    layout: Layout, journals: Sequence[Extent], newest: tuple[int, int] | None, xids: Uint64s
) -> Uint64s:
    """Return those of these transaction ids (compared by their low 32 bits) that a source transaction in the log has.

    `newest` is the latest segment. Segments older than all of the ids are not read: manifests show which may have one.
    """
    wanted = (xids & _LOW).astype(np.uint32)
    if not len(xids):
        return xids
    found = np.isin(wanted, _ids_in_journals(layout, journals))
    for segment, _ in layout.manifests_back(newest, layout.log_file().first_offset):
        left = wanted[~found]
        if not len(left):
            break
        if segment.xid_newest is None:
            break  # only rows of backfills, in this segment and in all before it
        if ((left - np.uint32(segment.xid_newest)).view(np.int32) > 0).all():
            break  # all of them are later than anything in this segment and those before it
        if segment.xid_min is None or segment.xid_max is None:
            continue
        if ((left >= segment.xid_min) & (left <= segment.xid_max)).any():
            found |= np.isin(wanted, _ids_in_segment(layout, segment))
    return xids[found]


def transactions_back(
    layout: Layout, journals: Sequence[Extent], newest: tuple[int, int] | None, is_enough: Callable[[Position], bool]
) -> pa.Table:
    """Return the position and id of each of the source's latest transactions, oldest first. They reach back to the
    latest position for which `is_enough` is true."""
    return gathered_back(_headers_back(layout, journals, newest), is_enough)


def partial_keys(
    layout: Layout, journals: Sequence[Extent], newest: tuple[int, int] | None, shape: Table, since: Offset
) -> KeySet | None:
    """Return the keys of a table's rows since offset `since` that came with unchanged columns, deletes aside.

    They have the key columns of `shape`, the table's latest shape.

    Raises:
        KeysUnknown: rows since `since` have expired; or the table's key changed in between, so that older rows cannot
            be identified by it; or there are too many keys.
    """
    if not shape.key:
        return None  # such a table's rows are always whole
    return gather_keys(shape.id, _partial_rows(layout, journals, newest, shape, since))


def gather_keys(table: TableId, partial: Iterable[pa.Table]) -> KeySet | None:
    """Return the distinct keys in some tables of keys; `None` if there are no keys. Raises KeysUnknown if there are too
    many."""
    found: list[pa.Table] = []
    rows = 0
    for keys in partial:
        if not keys.num_rows:
            continue
        found.append(keys)
        rows += keys.num_rows
        if rows > GATHERED_ROWS_MAX:
            found, rows = [KeySet(pa.concat_tables(found)).distinct().keys], 0
            if found[0].num_rows > PARTIAL_KEYS_MAX:
                raise KeysUnknown(
                    f"looking for partial rows of {table}: there are more than {PARTIAL_KEYS_MAX}",
                    remedy=f"run `cdcflow backfill {word(table)}` to read it again",
                )
    return KeySet(pa.concat_tables(found)).distinct() if found else None


def keys_expired(table: TableId, since: Offset, first_offset: int) -> KeysUnknown:
    """Return the error for a log that begins after `since`, so that keys may be missing."""
    return KeysUnknown(
        f"looking for partial rows of {table} since offset {since}: the log begins at offset {first_offset}, "
        f"everything before it has expired",
        remedy=f"run `cdcflow backfill {word(table)}` to read it again",
    )


def _ids_in_journals(layout: Layout, journals: Sequence[Extent]) -> npt.NDArray[np.uint32]:
    skip = frozenset(FrameKind) - {FrameKind.TRANSACTIONS}
    ids: list[int] = []
    for extent in journals:
        with opened_journal(layout, extent.header.first_offset) as (file, header, _):
            for frame in frames(file, header, end=extent.bytes, skip=skip):
                if frame.payload:
                    ids += source_xids(frame.payload)
    return np.array(ids, np.uint64).astype(np.uint32)


def _ids_in_segment(layout: Layout, segment: Segment) -> npt.NDArray[np.uint32]:
    headers = columns_of(layout.file(segment, segment.transactions_file), ["xid", "kind"])
    ids = headers.filter(pc.equal(headers.column("kind"), Kind.SOURCE.value)).column("xid").to_numpy()
    found: npt.NDArray[np.uint32] = ids.astype(np.uint32)
    return found


def _headers_back(layout: Layout, journals: Sequence[Extent], newest: tuple[int, int] | None) -> Iterator[pa.Table]:
    skip = frozenset(FrameKind) - {FrameKind.TRANSACTIONS}
    for extent in reversed(journals):
        with opened_journal(layout, extent.header.first_offset) as (file, header, _):
            found = frames(file, header, end=extent.bytes, skip=skip)
            yield headers_back([TransactionHeaders.decode(frame.payload) for frame in found if frame.payload])
    for segment, _ in layout.manifests_back(newest, layout.log_file().first_offset):
        if segment.xid_newest is None:
            return  # only rows of backfills, in this segment and in all before it
        if segment.xid_min is not None:
            headers = columns_of(layout.file(segment, segment.transactions_file), [*HEADERS_BACK.names, "kind"])
            mine = headers.filter(pc.equal(headers.column("kind"), Kind.SOURCE.value))
            yield mine.select(HEADERS_BACK.names).cast(HEADERS_BACK)


def _partial_rows(
    layout: Layout, journals: Sequence[Extent], newest: tuple[int, int] | None, shape: Table, since: int
) -> Iterator[pa.Table]:
    first_offset = layout.log_file().first_offset
    if since < first_offset:
        raise keys_expired(shape.id, Offset(since), first_offset)
    for segment, _ in layout.manifests_back(newest, since):
        for file in segment.files:
            if file.table is not None and file.partial and file.last_offset >= since:
                table = table_from_json(file.table)
                if table.id == shape.id:
                    yield from _keys_in(layout.file(segment, file), table, shape, since)
    for extent in journals:
        for rows in _journal_rows(layout, extent):
            if rows.shape.table.id == shape.id and rows.offsets[-1] >= since:
                batch = rows.rows.slice(int(np.searchsorted(rows.offsets, since)))
                yield keys_of_partial(pa.Table.from_batches([batch]), rows.shape.table, shape)


def _keys_in(path: Path, table: Table, shape: Table, since: int) -> Iterator[pa.Table]:
    columns = list(dict.fromkeys([OFFSET, OP, UNCHANGED, *_key_names(table, shape)]))
    with pq.ParquetFile(path) as parquet:
        for batch in parquet.iter_batches(columns=columns):
            rows = pa.Table.from_batches([batch])
            yield keys_of_partial(rows.filter(pc.greater_equal(rows.column(OFFSET), since)), table, shape)


def keys_of_partial(rows: pa.Table, table: Table, shape: Table) -> pa.Table:
    """Return the keys of the partial rows among some rows of `table`, in the key columns of `shape`."""
    keep = pc.and_(pc.is_valid(rows.column(UNCHANGED)), pc.not_equal(rows.column(OP), DELETE))
    schema = pa.schema([shape.row_schema.field(name) for name in shape.key_columns])
    keys = rows.filter(keep).select(_key_names(table, shape))
    return keys.rename_columns(schema.names).cast(schema)


def _key_names(table: Table, shape: Table) -> list[str]:
    """Return the names of `shape`'s key columns in `table`, an older shape of it: a renamed column keeps its number."""
    names = {c.number: c.name for c in table.columns}
    numbers = {c.name: c.number for c in shape.columns}
    try:
        return [names[numbers[name]] for name in shape.key_columns]
    except KeyError:
        raise KeysUnknown(
            f"looking for partial rows of {shape.id}: its key has changed while it was being read",
            remedy=f"run `cdcflow backfill {word(shape.id)}` to read it again",
        ) from None


def _journal_rows(layout: Layout, extent: Extent) -> Iterator[ShapeRows]:
    for record in _journal(layout, extent, frozenset({FrameKind.TRANSACTIONS, FrameKind.CUT})):
        match record:
            case ShapeRows():
                yield record
            case AttachedSpool():
                yield from attached.rows(layout, record)
            # A file has rows of a chunk: the source sent all of their columns.
            case _:
                pass


def _journal(layout: Layout, extent: Extent, skip: frozenset[FrameKind]) -> Iterator[Record]:
    with opened_journal(layout, extent.header.first_offset) as (file, header, path):
        yield from records(file, header, str(path), end=extent.bytes, skip=skip)
