"""Copies a log from a folder into a topic, and back: same log id, offsets and transactions, cuts at segment ends.

    folder ──a segment──▶ runs ─▶ `KafkaLog` ─▶ one Kafka transaction a segment, its cut the segment's last
    topic ──frames─▶ `Sealer` ─▶ `History` ─▶ segments, then an empty journal with the latest checkpoint

An interrupted copy continues after its last cut; so does a copy that is repeated later. Two logs that have diverged are
detected by the cut that they should share, and refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from cdcflow.capture.ports.log import Numbered
from cdcflow.errors import ConfigurationError
from cdcflow.log.disk.layer import OS_LAYER, storing, syncing
from cdcflow.log.disk.lease import read_epoch
from cdcflow.log.files.extents import extents_of
from cdcflow.log.files.layout import Layout
from cdcflow.log.files.parquet import columns_of
from cdcflow.log.format.journal import JournalHeader
from cdcflow.log.format.segment import Segment
from cdcflow.log.format.topic_tail import SEGMENT_BYTES_MAX
from cdcflow.log.read.reader import LogLocation, LogRows, list_segments, newest_checkpoint, read_rows
from cdcflow.model.change import ChangeBatch, Int64s, Kind, Run, SpooledTransaction
from cdcflow.model.position import Checkpoint, Offset, Position
from cdcflow.model.table import OFFSET, Table, TableId, table_from_json
from cdcflow.sinks.files.journals import JournalFile
from cdcflow.sinks.kafka.log import KafkaLog
from cdcflow.sinks.kafka.reader import KafkaReader
from cdcflow.sinks.kafka.tier import KafkaTier
from cdcflow.sinks.kafka.topics import Topics

RUN_ROWS = 16 << 10
SPOOLED_ROWS = 128 << 10
"""A transaction with more rows than this goes through a spool, because memory must not hold it."""

OnSegment = Callable[[int, int], None]
"""Called for each part that is durable in the copy, with its first and last offset."""


@dataclass(frozen=True, slots=True)
class Copied:
    """The contents of a copy after copying. `next_offset` follows its last row.

    `left` rows are still in the original's journal: they are copied once they are sealed.
    """

    parts: int
    next_offset: int
    cut: int
    left: int = 0


# ── from a topic into a folder ──────────────────────────────────────────────────────────────────────────────


def to_folder(topics: Topics, path: Path, on_segment: OnSegment, segment_bytes: int = SEGMENT_BYTES_MAX) -> Copied:
    """Copy the part of a log that the topic has and the folder lacks. A segment ends at the first cut after
    `segment_bytes`.

    Raises:
        ConfigurationError: another log has this place, or a daemon has continued it.
        HistoryLost: the brokers have deleted the next part.
        InvariantViolated: the two are no longer the same log.
        SinkUnavailable: no room, or the brokers do not answer.
    """
    layout = Layout(path)
    _check_untouched(layout, f"copying topic {topics.name} into {path}")
    with KafkaTier(topics, path, segment_bytes).open() as opened:
        history = opened.history
        parts = 0
        if opened.tail is not None:
            # Without a journal no daemon opens the folder as a log: so there is no journal until the copy is whole.
            _remove_journals(layout)
            with topics.reader(topics.name) as reader:
                for directory in opened.sealer(reader.messages(opened.tail.begin, opened.tail.end)):
                    segment = history.put(directory, opened.state.shapes)
                    on_segment(segment.first_offset, segment.last_offset)
                    parts += 1
        end, newest = history.checkpoint, opened.newest
        if end is not None and newest.next_offset != end.next_offset:
            newest = end  # rows arrived since; the next copy has them
        with storing(f"ending the copy {path}"):
            _end(layout, history.newest, newest, opened.state.log_id)
            history.lease.begin_epoch(OS_LAYER, opened.state.epoch)
    return Copied(parts, newest.next_offset, newest.cut)


def _check_untouched(layout: Layout, attempted: str) -> None:
    """Check that no daemon has written to a copy in a folder: its journals are empty."""
    if not layout.log_json.exists():
        return
    for extent in extents_of(layout):
        if extent.checkpoint != extent.header.base:
            raise ConfigurationError(
                f"{attempted}: a daemon has continued the log there",
                remedy="a log has one writer: name another folder",
                runbook="other-log",
            )


def _remove_journals(layout: Layout) -> None:
    layout.newest.unlink(missing_ok=True)
    for offset in layout.journal_offsets():
        OS_LAYER.unlink(layout.journal(offset))
    if layout.journals.exists():
        with syncing(layout.journals):
            OS_LAYER.fsync_dir(layout.journals)


def _end(layout: Layout, last: Segment | None, newest: Checkpoint, log_id: str) -> None:
    """Add an empty journal after the last segment, with the latest checkpoint; a daemon continues from there."""
    for room in (layout.journals, layout.spools):
        room.mkdir(exist_ok=True)
    _remove_journals(layout)
    head = JournalHeader(log_id, newest.epoch, newest, None if last is None else last.first_offset)
    for left in layout.journals.glob("*.tmp"):
        OS_LAYER.unlink(left)
    journal = JournalFile(layout, head, OS_LAYER)
    try:
        journal.write()
        journal.sync()
    finally:
        journal.close()


# ── from a folder into a topic ──────────────────────────────────────────────────────────────────────────────


def to_topic(location: LogLocation, topics: Topics, on_segment: OnSegment, scratch: Path | None = None) -> Copied:
    """Copy the sealed segments that the folder has and the topic lacks, and the latest checkpoint if all is sealed.

    Raises:
        ConfigurationError: another log has this place, or a daemon has continued it; or the topics cannot be written.
        HistoryLost: the next part has expired in the folder.
        SinkUnavailable: the brokers do not answer.
    """
    layout = Layout.of(location)
    file = layout.log_file()
    attempted = f"copying {layout.name} into topic {topics.name}"
    segments = list_segments(layout)
    newest = newest_checkpoint(layout)
    _check_same(topics, file.log_id, segments, newest, attempted)
    if file.first_offset > 1 and not KafkaReader(topics).exists():
        raise ConfigurationError(
            f"{attempted}: the folder's log begins at offset {file.first_offset}; everything before it has "
            f"expired, and a topic's log must begin at 1",
            remedy="keep using that folder, or begin a new log with a backfill",
            runbook="log-expired",
        )
    log = KafkaLog.open(topics, file.source, scratch=scratch, copy_of=file.log_id, after_epoch=read_epoch(layout.epoch))
    parts = 0
    try:
        for segment in segments:
            if segment.first_offset < log.checkpoint.next_offset:
                continue
            _append(log, layout, segment)
            log.cut(segment.last_checkpoint())
            log.sync()
            if log.seal_due(0):
                log.roll()
            on_segment(segment.first_offset, segment.last_offset)
            parts += 1
        if newest.next_offset == log.checkpoint.next_offset and newest.cut > log.checkpoint.cut:
            log.cut(newest)
            log.sync()
    finally:
        log.close()
    at = log.checkpoint
    return Copied(parts, at.next_offset, at.cut, left=max(0, newest.next_offset - at.next_offset))


def _check_same(topics: Topics, log_id: str, segments: list[Segment], newest: Checkpoint, attempted: str) -> None:
    """Check before the topic is opened for writing: its content is a part of this log, and ends at a cut of it."""
    there = KafkaReader(topics)
    if not there.exists():
        return
    state = there.state()
    if state.log_id != log_id:
        raise ConfigurationError(
            f"{attempted}: the topic has another log ({state.log_id}, the folder has {log_id})",
            remedy="name another topic",
            runbook="other-log",
        )
    at = state.checkpoint
    known = (Checkpoint(), newest, *(s.last_checkpoint() for s in segments))
    if not any((at.cut, at.next_offset, at.position) == (k.cut, k.next_offset, k.position) for k in known):
        raise ConfigurationError(
            f"{attempted}: the topic's log ends with cut {at.cut} (offset {at.next_offset - 1}), where no segment "
            f"of the folder ends: a daemon has continued it, or the folder is an older copy",
            remedy="a log has one writer: name another topic",
            runbook="other-log",
        )


def _append(log: KafkaLog, layout: Layout, segment: Segment) -> None:
    """Append all transactions of a segment, in order."""
    headers = columns_of(layout.file(segment, segment.transactions_file)).combine_chunks()
    tables = sorted({table_from_json(f.table).id for f in segment.files if f.table is not None})
    rows = [_TableRows(layout, table, segment) for table in tables]
    for a, b in _groups(headers):
        _append_run(log, headers.slice(a, b - a), rows)


def _groups(headers: pa.Table) -> Iterator[tuple[int, int]]:
    """Split transactions into runs: yield the indexes of the first one and of the one after the last. The
    transactions of a run are of one kind, and have rows; a large one, or a chunk of a backfill, begins a new run."""
    counts = headers.column("last_offset").to_numpy() - headers.column("first_offset").to_numpy() + 1
    kinds = headers.column("kind").to_pylist()
    begin = rows = 0
    for at, count in enumerate(counts.tolist()):
        full = rows >= RUN_ROWS or (count > SPOOLED_ROWS) or kinds[at] == Kind.READ.value
        if rows and count and (full or kinds[at] != kinds[begin]):
            yield begin, at
            begin, rows = at, 0
        rows += count
    if len(counts):
        yield begin, len(counts)


def _append_run(log: KafkaLog, headers: pa.Table, tables: list[_TableRows]) -> None:
    first, last = headers.column("first_offset")[0].as_py(), headers.column("last_offset")[-1].as_py()
    clock = headers.column("commit_clock").cast(pa.int64()).to_numpy()
    number = headers.column("number")[0].as_py()
    if (
        headers.num_rows == 1
        and last - first >= SPOOLED_ROWS
        and headers.column("kind")[0].as_py() == Kind.SOURCE.value
    ):
        log.append(Numbered(_spool(log, headers, first, last, tables), Offset(first), number, clock))
        return
    origin = headers.column("origin").combine_chunks()
    run = Run(
        headers.column("xid").to_numpy(),
        headers.column("position").combine_chunks(),
        headers.column("commit_ts").cast(pa.int64()).to_numpy(),
        np.asarray(headers.column("last_offset").to_numpy() - (first - 1), np.int64),
        tuple(_batches(tables, first, last)),
        Kind(headers.column("kind")[0].as_py()),
        None if origin.null_count == len(origin) else origin,
    )
    log.append(Numbered(run, Offset(first), number, clock))


def _spool(log: KafkaLog, headers: pa.Table, first: int, last: int, tables: list[_TableRows]) -> SpooledTransaction:
    spool = log.open_spool()
    for begin in range(first, last + 1, SPOOLED_ROWS):
        spool.write(list(_batches(tables, begin, min(last, begin + SPOOLED_ROWS - 1))), None)
    spool.finish()
    (header,) = headers.select(["xid", "position", "commit_ts", "origin"]).to_pylist()  # one transaction
    return SpooledTransaction(
        header["xid"],
        Position(header["position"]),
        headers.column("commit_ts").cast(pa.int64())[0].as_py(),
        last - first + 1,
        spool.name,
        origin=header["origin"],
    )


def _batches(tables: list[_TableRows], first: int, last: int) -> Iterator[ChangeBatch]:
    for rows in tables:
        for table, found in rows.upto(last):
            for batch in found.to_batches():
                index: Int64s = batch.column(0).to_numpy() - first
                changed = pa.RecordBatch.from_arrays(batch.columns[3:], schema=table.change_schema)
                yield ChangeBatch(table, index, changed)


class _TableRows:
    """One table's rows of a segment, returned once each, in order: at most one row group is held."""

    def __init__(self, layout: Layout, table: TableId, segment: Segment) -> None:
        self._found: Iterator[LogRows] = read_rows(layout, segment.first_offset, segment.last_offset, (table,))
        self._held: tuple[Table, pa.Table] | None = None

    def upto(self, last: int) -> Iterator[tuple[Table, pa.Table]]:
        """The rows up to offset `last` that were not returned yet."""
        while True:
            if self._held is None:
                found = next(self._found, None)
                if found is None:
                    return
                self._held = found[0], found[2]
            table, rows = self._held
            count = int(np.searchsorted(rows.column(OFFSET).to_numpy(), last, side="right"))
            self._held = None if count == rows.num_rows else (table, rows.slice(count))
            if count:
                yield table, rows.slice(0, count)
            if self._held is not None:
                return
