"""Read a log without its writer's lock, while the daemon runs.

Every function here takes a log's directory, or its `Layout`, which may have a store: files that are not in the
directory are then read from the store. The functions may be called from any process at any time. Files vanish under a
reader when a journal becomes a segment, so a reader lists the files again and resumes at the same offset: the segment
has its name before the journal is deleted.

A reader sees the journal only up to the last whole cut in the file, so it never returns half a transaction. That cut
may not have been synced yet: after a power failure the log may end earlier. Sealed segments are never lost this way.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from cdcflow.errors import HistoryLost, InvariantViolated
from cdcflow.log.files import attached
from cdcflow.log.files.extents import TRIES_MAX, Extent, extent_records, extents_of, retry_read
from cdcflow.log.files.layout import Bounds, Layout, LogFile
from cdcflow.log.files.parquet import THREADED_ROWS, columns_of
from cdcflow.log.format.framing import FrameKind
from cdcflow.log.format.journal import AttachedFile, AttachedSpool, Owners
from cdcflow.log.format.rows import ShapeEntry, ShapeRows
from cdcflow.log.format.schema_history import SchemaHistory
from cdcflow.log.format.segment import Segment, SegmentFile
from cdcflow.log.format.transactions import TransactionHeaders
from cdcflow.log.read.check import CheckReport, Fault, check
from cdcflow.model.position import Checkpoint
from cdcflow.model.table import OFFSET, Table, TableId, table_from_json

__all__ = [
    "Fault",
    "LogRows",
    "LogLocation",
    "CheckReport",
    "check",
    "list_segments",
    "newest_checkpoint",
    "read_rows",
    "read_transactions",
    "row_groups",
    "table_shapes",
]

LogRows = tuple[Table, int, pa.Table]
"""Rows of one table shape (`Table.log_schema`), ascending by `_offset`, and the shape's version number."""

LogLocation = Path | Layout
"""A log's location: its directory, or a layout whose segments may be in a store as well."""


def list_segments(path: LogLocation) -> list[Segment]:
    """Return all sealed segments' manifests, oldest first.

    Raises:
        ConfigurationError: there is no log, or a newer cdcflow wrote it.
        InvariantViolated: a segment is missing between two others.
    """
    layout = Layout.of(path)
    found: list[Segment] = []

    def read() -> None:
        first_offset = layout.log_file().first_offset
        found[:] = [layout.manifest(*o)[0] for o in layout.segment_offsets() if o[0] >= first_offset]

    retry_read(read, layout.root)
    check_without_gap([(s.first_offset, s.last_offset) for s in found], layout)
    return found


def check_without_gap(segments: Sequence[Bounds], layout: Layout) -> None:
    """Raise InvariantViolated if a segment is missing between two others. `segments` are their first and last
    offsets."""
    for (_, last), (first, _) in pairwise(segments):
        if first != last + 1:
            raise InvariantViolated(
                f"listing segments of {layout.name}: the one from {last + 1} is missing", runbook="log-damaged"
            )


def newest_checkpoint(path: LogLocation) -> Checkpoint:
    """Return the checkpoint of the latest cut that readers see (`cut` 0: no cut yet)."""
    layout = Layout.of(path)
    layout.log_file()
    extents = extents_of(layout)
    if extents:
        return extents[-1].checkpoint
    sealed = layout.segment_offsets()
    if not sealed:
        return Checkpoint()
    return layout.reached_checkpoint(layout.manifest(*sealed[-1])[0].last_checkpoint())


def table_shapes(path: LogLocation) -> dict[TableId, dict[int, Table]]:
    """Return every table's shapes by version number, oldest first."""
    layout = Layout.of(path)
    layout.log_file()
    text = layout.schemas_json()
    history = SchemaHistory() if text is None else SchemaHistory.from_json(text, str(layout.schemas))

    def learn() -> None:
        for extent in extents_of(layout):
            for record in extent_records(layout, extent, skip=frozenset(FrameKind) - {FrameKind.SCHEMA}):
                if isinstance(record, ShapeEntry):
                    history.learn(record.table, record.version)

    retry_read(learn, layout.root)
    return history.shapes()


def read_rows(
    path: LogLocation, from_offset: int = 1, to_offset: int | None = None, tables: Collection[TableId] | None = None
) -> Iterator[LogRows]:
    """Yield the log's rows from one offset to another (both inclusive; `None`: up to the latest cut).

    Whole segments are returned one after another, table by table, then the journal run by run. Within a table offsets
    ascend over the whole iteration; between tables they do only from segment to segment and run to run.

    Raises:
        HistoryLost: `from_offset` has expired.
        InvariantViolated: something is missing or damaged.
    """
    for _, rows, _ in _read(Layout.of(path), from_offset, to_offset, tables, with_rows=True):
        if rows is not None:
            yield rows


def read_transactions(path: LogLocation, from_offset: int = 1, to_offset: int | None = None) -> Iterator[pa.Table]:
    """Yield the headers (`TRANSACTIONS_SCHEMA`) of the transactions with a row from one offset to another, in order."""
    for _, _, headers in _read(Layout.of(path), from_offset, to_offset, None, with_rows=False):
        if headers is not None:
            first, last = headers.column("first_offset").to_numpy(), headers.column("last_offset").to_numpy()
            keep = (last >= from_offset) & (last >= first)
            if to_offset is not None:
                keep &= first <= to_offset
            if keep.any():
                yield headers.filter(pa.array(keep))


# ── inside ──────────────────────────────────────────────────────────────────────────────────────────────────


_NO_OFFSET = 1 << 62
_Step = tuple[int, LogRows | None, pa.Table | None]


def _read(
    layout: Layout, from_offset: int, to_offset: int | None, tables: Collection[TableId] | None, *, with_rows: bool
) -> Iterator[_Step]:
    """Yield rows, or headers. If files vanish, reading resumes after the last whole part."""
    at, tries = max(1, from_offset), 0
    to = _NO_OFFSET if to_offset is None else to_offset
    while at <= to:
        first = layout.log_file().first_offset
        if at < first:
            raise HistoryLost(
                f"reading the log {layout.name} from offset {at}: that offset has expired; the first one left is "
                f"{first}",
                remedy="start from the current-state tables instead, or from the first offset that is left",
                runbook="log-expired",
            )
        try:
            for step in _pass(layout, at, to, tables, with_rows=with_rows):
                if step[1] is None and step[0] > at:
                    at, tries = step[0], 0
                yield step
            return
        except (pa.ArrowException, OSError) as error:
            if not isinstance(error, FileNotFoundError):
                raise InvariantViolated(
                    f"reading the log {layout.name} at offset {at}: a file is damaged ({type(error).__name__})",
                    remedy="run `cdcflow log check`, and restore the segment from a copy",
                    runbook="log-damaged",
                ) from error
            tries += 1
            if tries > TRIES_MAX:
                raise InvariantViolated(
                    f"reading the log {layout.name} at offset {at}: {error.filename or error} is missing",
                    runbook="log-damaged",
                ) from None


def _pass(layout: Layout, at: int, to: int, tables: Collection[TableId] | None, *, with_rows: bool) -> Iterator[_Step]:
    file = layout.log_file()
    for first, last in layout.segment_offsets():
        if last < at:
            continue
        if at > to:
            return
        _must_begin(first, at)
        segment = _own(layout, file, first, last)
        if with_rows:
            yield from ((at, rows, None) for rows in _segment_rows(layout, segment, at, to, tables))
            yield last + 1, None, None
        else:
            yield last + 1, None, columns_of(layout.file(segment, segment.transactions_file))
        at = last + 1
    # A journal that was sealed since the segments were listed is missing here too: the next one begins later, or none
    # does.
    extents = extents_of(layout) if at <= to else []
    for extent in extents:
        if extent.last_offset < at and extent.header.first_offset <= at:
            continue
        if at > to:
            return
        _must_begin(extent.header.first_offset, at)
        yield from _journal_steps(layout, extent, at, to, tables, with_rows=with_rows)
        at = extent.last_offset + 1
    if at <= to and not extents and any(last >= at for _, last in layout.segment_offsets()):
        raise _missing(at)


def _must_begin(first: int, at: int) -> None:
    """Raise FileNotFoundError if the next file begins after the next offset. The file with that offset was then renamed
    or deleted in between."""
    if first > at:
        raise _missing(at)


def _missing(at: int) -> FileNotFoundError:
    return FileNotFoundError(2, "a file is missing", f"the segment or journal with offset {at}")


def _own(layout: Layout, file: LogFile, first: int, last: int) -> Segment:
    """Return a segment's manifest. Raises InvariantViolated if it is that of another log."""
    segment, _ = layout.manifest(first, last)
    if segment.log_id != file.log_id:
        raise InvariantViolated(
            f"reading {layout.name}: segment {first}-{last} belongs to another log", runbook="log-damaged"
        )
    return segment


def _journal_steps(
    layout: Layout, extent: Extent, at: int, to: int, tables: Collection[TableId] | None, *, with_rows: bool
) -> Iterator[_Step]:
    versions: dict[Table, int] = {}
    owners: Owners | None = None
    run: TransactionHeaders | None = None
    following: tuple[int, int] = (extent.header.base.next_offset, extent.header.base.next_transaction)
    skip = frozenset[FrameKind]() if with_rows else frozenset({FrameKind.ROWS, FrameKind.ATTACH, FrameKind.FILE})
    for record in extent_records(layout, extent, skip):
        match record:
            case ShapeEntry():
                versions[record.table] = record.version
            case TransactionHeaders():
                if run is not None:
                    yield _run_end(run, with_rows=with_rows)
                if (record.first_offset, record.first_transaction) != following:
                    raise InvariantViolated(
                        f"reading {layout.journal(extent.header.first_offset)}: offset {record.first_offset} and"
                        f" transaction {record.first_transaction} come where {following[0]} and {following[1]} "
                        f"are expected",
                        runbook="log-damaged",
                    )
                run, owners = record, Owners.of(record.headers)
                following = (run.next_offset, run.next_transaction)
                if run.first_offset > to:
                    return
            case ShapeRows() if owners is not None:
                yield from _steps_of(at, to, tables, owners, record, versions)
            case AttachedSpool() | AttachedFile() if owners is not None and record.first_offset + record.rows > at:
                for rows in attached.rows(layout, record):
                    yield from _steps_of(at, to, tables, owners, rows, versions)
            case _:
                pass
    if run is not None:
        yield _run_end(run, with_rows=with_rows)


def _run_end(run: TransactionHeaders, *, with_rows: bool) -> _Step:
    return run.next_offset, None, None if with_rows else pa.Table.from_batches([run.headers])


def _steps_of(
    at: int, to: int, tables: Collection[TableId] | None, owners: Owners, rows: ShapeRows, versions: dict[Table, int]
) -> Iterator[_Step]:
    table = rows.shape.table
    if tables is not None and table.id not in tables:
        return
    owners.counts(table, rows.offsets)  # also checks the offsets that are outside the requested range
    a, b = np.searchsorted(rows.offsets, (at, to + 1))
    if a < b:
        batch = owners.log_rows(table, rows.offsets[a:b], rows.rows.slice(a, b - a))
        yield at, (table, versions[table], pa.Table.from_batches([batch])), None


def _segment_rows(
    layout: Layout, segment: Segment, at: int, to: int, tables: Collection[TableId] | None
) -> Iterator[LogRows]:
    by_table: dict[TableId, list[tuple[SegmentFile, Table]]] = {}
    for file in segment.files:
        if file.table is not None and file.last_offset >= at and file.first_offset <= to:
            table = table_from_json(file.table)
            if tables is None or table.id in tables:
                by_table.setdefault(table.id, []).append((file, table))
    with ExitStack() as stack:
        # All are opened before the first row is returned: an open file cannot vanish.
        opened = [
            [(file, table, stack.enter_context(pq.ParquetFile(layout.file(segment, file)))) for file, table in files]
            for files in by_table.values()
        ]
        for files in opened:
            yield from _in_order(files, at, to)


_Opened = tuple[SegmentFile, Table, pq.ParquetFile]


def _in_order(files: list[_Opened], at: int, to: int) -> Iterator[LogRows]:
    """Yield one table's rows over all its shapes, ascending by offset."""
    files.sort(key=lambda f: f[0].first_offset)
    if all(a[0].last_offset < b[0].first_offset for a, b in pairwise(files)):
        for file, table, parquet in files:
            yield from ((table, file.version, rows) for rows in row_groups(table, parquet, at, to))
        return
    # A shape reappears within the segment: the runs of rows of each shape are merged in order of offset.
    whole = [pa.concat_tables([t.log_schema.empty_table(), *row_groups(t, p, at, to)]) for _, t, p in files]
    offsets = np.concatenate([t.column(OFFSET).to_numpy() for t in whole])
    owner = np.repeat(np.arange(len(whole)), [t.num_rows for t in whole])[np.argsort(offsets)]
    taken = [0] * len(whole)
    for part in np.split(owner, np.flatnonzero(np.diff(owner)) + 1):
        which = int(part[0])
        file, table, _ = files[which]
        yield table, file.version, whole[which].slice(taken[which], len(part))
        taken[which] += len(part)


def row_groups(
    table: Table | None, parquet: pq.ParquetFile, at: int, to: int, columns: Sequence[str] | None = None
) -> Iterator[pa.Table]:
    """Yield the rows of a segment's file from one offset to another (both inclusive), a row group at a time; groups
    without such rows are not read. `table`: the shape whose `log_schema` the rows are cast to; `None`: they are not
    cast, and only these `columns`, which include `_offset`, are read."""
    for number in range(parquet.num_row_groups):
        group = parquet.metadata.row_group(number)
        bounds = group.column(0).statistics
        if bounds is not None and (bounds.max < at or bounds.min > to):
            continue
        rows = parquet.read_row_group(number, columns, use_threads=group.num_rows > THREADED_ROWS)
        a, b = np.searchsorted(rows.column(OFFSET).to_numpy(), (at, to + 1))
        if a < b:
            rows = rows.slice(a, b - a)
            yield rows if table is None or rows.schema.equals(table.log_schema) else rows.cast(table.log_schema)
