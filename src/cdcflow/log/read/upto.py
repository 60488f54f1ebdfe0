"""Build a log in its state at an earlier offset, for one table: a second log whose segments end there.

    this log      [1 ─── 90][91 ─── 150][151 ─── 200]journal ▕ 230
    at 170        [1 ─── 90][91 ─── 150][151 ─ 170]                  the last one has a separate file
    at 220        [1 ─── 90][91 ─── 150][151 ─── 200][201 ─ 220]     from the journal

Whole segments are the same files: links, or names in the same store. So any code that folds sealed segments can also
fold an earlier state of the log, and rows that are not sealed yet.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO

import pyarrow as pa
import pyarrow.parquet as pq

from cdcflow.log.files import states
from cdcflow.log.files.layout import Bounds, Layout, LogFile
from cdcflow.log.files.parquet import Parquet
from cdcflow.log.files.segment_writer import file_name
from cdcflow.log.files.states import LogState
from cdcflow.log.files.tally import ShapeTally
from cdcflow.log.format.rows import ShapeEntry
from cdcflow.log.format.segment import TRANSACTIONS_SCHEMA, Segment, SegmentFile
from cdcflow.log.read.reader import LogRows
from cdcflow.model.change import TRUNCATE
from cdcflow.model.position import Checkpoint, Offset, Position, SourceIdentity
from cdcflow.model.table import COMMIT_TS, OFFSET, OP, TRANSACTION, Table

BASE_VERSION = 1_000_000
"""The shape number in the names of files with a state's rows. It is different from the number of every shape of a
log."""


def ending(
    layout: Layout,
    segments: Sequence[Bounds],
    rows: Iterator[LogRows],
    begins: int,
    checkpoint: Checkpoint,
    room: Path,
    base: Iterable[LogRows] = (),
    floor: int = 1,
) -> Layout:
    """Create a log in `room` that has these segments of another log, followed by one segment with `rows`, whose offsets
    start at `begins`; it ends with the checkpoint. The last segment has only tables that occur in `rows`, and no
    transactions.

    `base`: rows of a segment that precedes all others and ends before offset `floor`.
    """
    found = Layout(room, layout.store)
    found.segments.mkdir(parents=True)
    # A log in Kafka may have nothing sealed yet; then `rows` has all rows.
    file = layout.log_file() if layout.exists() else LogFile("", SourceIdentity("", "", ""), "")
    found.log_json.write_text(replace(file, first_offset=1).to_json())
    if (schemas := layout.schemas_json()) is not None:
        found.schemas.write_bytes(schemas)
    log_id = file.log_id
    if base:
        before = replace(checkpoint, next_offset=Offset(floor), cut=1)
        _write_segment(found, log_id, 1, before, map(_as_segment(floor - 1), base))
    for bounds in segments:
        _link_segment(layout, found, bounds)
    if begins < checkpoint.next_offset:
        _write_segment(found, log_id, begins, checkpoint, rows)
    elif segments:
        segment, _ = layout.manifest(*segments[-1])
        _write(found, replace(segment, checkpoint=json.loads(checkpoint.to_json())))
    return found


def behind(layout: Layout, state: LogState, room: Path) -> Layout:
    """Create a log in `room` that begins with a state of another log, as if a backfill had read its rows, and continues
    with the segments after it."""
    found = Layout(room, layout.store)
    found.segments.mkdir(parents=True)
    found.log_json.write_text(replace(layout.log_file(), first_offset=1).to_json())
    if (schemas := layout.schemas_json()) is not None:
        found.schemas.write_bytes(schemas)
    tables = {name: entry.backfill for name, entry in state.tables.items()}
    checkpoint = Checkpoint(
        None if state.position is None else Position(state.position),
        Offset(state.offset + 1),
        1,
        state.cut,
        state.commit_clock,
        progress={"version": 1, "tables": tables},
    )
    rows = ((entry.table, BASE_VERSION, states.rows(layout, state, name)) for name, entry in state.tables.items())
    _write_segment(found, state.log_id, 1, checkpoint, map(_as_segment(state.offset), rows))
    for bounds in layout.segment_offsets():
        if bounds[0] > state.offset:
            _link_segment(layout, found, bounds)
    return found


def _as_segment(offset: int) -> Callable[[LogRows], LogRows]:
    """Return a function that brings a state's rows into the order of a segment. For a table without rows it returns a
    truncate at an offset, so that the log knows the table's shape."""

    def some(part: LogRows) -> LogRows:
        table, version, rows = part
        if not rows.num_rows:
            emptied = {OFFSET: offset, TRANSACTION: 0, COMMIT_TS: 0, OP: TRUNCATE}
            rows = pa.Table.from_pylist([emptied], table.log_schema)
        return table, version, rows.sort_by(OFFSET)

    return some


def _link_segment(layout: Layout, found: Layout, bounds: Bounds) -> None:
    target = found.segment(*bounds)
    target.mkdir()
    (target / "segment.json").write_bytes(layout.manifest(*bounds)[1])
    for path in layout.segment(*bounds).glob("*.parquet") if layout.is_home else ():
        (target / path.name).symlink_to(path.resolve())


def _write_segment(found: Layout, log_id: str, begins: int, checkpoint: Checkpoint, rows: Iterator[LogRows]) -> None:
    end = int(checkpoint.next_offset) - 1
    room = found.segment(begins, end)
    room.mkdir()
    with _Files(room) as files:
        for shape, version, part in rows:
            files.add(shape, version, part)
        written = files.close()
    _write(
        found,
        Segment(
            log_id,
            begins,
            end,
            first_transaction=1,
            last_transaction=1,
            first_cut=checkpoint.cut,
            last_cut=checkpoint.cut,
            files=(_no_transactions(room), *written),
            checkpoint=json.loads(checkpoint.to_json()),
            previous="",
            epoch=1,
        ),
    )


def _write(found: Layout, segment: Segment) -> None:
    path = found.segment(segment.first_offset, segment.last_offset) / "segment.json"
    path.write_text(segment.to_json())


class _Files:
    """One table's files of one segment, one for each shape."""

    def __init__(self, room: Path) -> None:
        self._room = room
        self._opened: dict[ShapeEntry, tuple[Parquet, ShapeTally]] = {}

    def __enter__(self) -> _Files:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            for parquet, _tally in self._opened.values():
                parquet.give_up()

    def add(self, table: Table, version: int, rows: pa.Table) -> None:
        shape = ShapeEntry(table, version)
        if shape not in self._opened:
            name = file_name(table, version)
            file: IO[bytes] = (self._room / name).open("wb")
            self._opened[shape] = Parquet(name, table.log_schema, file, table.key), ShapeTally(shape)
        parquet, tally = self._opened[shape]
        for batch in rows.cast(table.log_schema).to_batches():
            if batch.num_rows:
                parquet.add(batch)
                tally.add(batch, 0)

    def close(self) -> list[SegmentFile]:
        return [tally.file(parquet) for parquet, tally in self._opened.values()]


def _no_transactions(room: Path) -> SegmentFile:
    name = "transactions.parquet"
    pq.write_table(TRANSACTIONS_SCHEMA.empty_table(), room / name)
    return SegmentFile(name, 0, (room / name).stat().st_size, "")
