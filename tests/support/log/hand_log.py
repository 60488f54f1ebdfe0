"""Logs written by hand: plain lists of changes, sealed as by the file sink."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from bench import mergelog

from cdcflow.log.files.layout import Layout
from cdcflow.log.files.segment_writer import file_name
from cdcflow.log.fold.fold import LogChange
from cdcflow.log.format.schema_history import SchemaHistory
from cdcflow.log.format.segment import TRANSACTIONS_SCHEMA, Segment, SegmentFile, manifest_hash
from cdcflow.log.read.moments import clock_of
from cdcflow.model.table import BEFORE, COMMIT_TS, OFFSET, OP, TRANSACTION, UNCHANGED, Table, TableId, table_from_json


@dataclass
class HandLog:
    """A change log that a test writes one segment at a time. `changes` keeps what was written, for the oracle.

    `has_transactions`: segments have a file of their transactions, whose positions and times are `position_of` and
    `time_of` their numbers. Otherwise no index is written, and lookups are not allowed.
    """

    root: Path
    log_id: str = "log-a"
    next_offset: int = 1
    cut: int = 0
    versions: dict[Table, int] = field(default_factory=dict)
    progress: dict[str, dict[str, Any]] = field(default_factory=dict)
    written: list[tuple[Table, LogChange]] = field(default_factory=list)
    has_transactions: bool = False
    reads: set[int] = field(default_factory=set)
    origins: dict[int, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        mergelog.begin(self.root, self.log_id)

    def state(
        self, table: Table | TableId, state: str = "done", generation: int = 1, since: int = 1, **more: int | None
    ) -> None:
        """What the next segment's checkpoint records about a table's backfill."""
        name = str(table.id if isinstance(table, Table) else table)
        self.progress[name] = {"state": state, "generation": generation, "since": since, **more}

    def segment(self, rows: Sequence[tuple[Table, str, Mapping[str, Any]]], **more: Any) -> int:
        """Seal these changes and return the cut. A row is (table, op, values), values with `_unchanged` (names),
        `_before`, `_txn` (the transaction's number; by default each is a separate one), `_origin` (the transaction's)
        and `_read` (the transaction is a backfill's, as that of any r) where they apply."""
        first = self.next_offset
        by_shape: dict[Table, list[dict[str, Any]]] = {}
        numbers: list[tuple[int, int]] = []
        for n, (table, op, given) in enumerate(rows):
            values = dict(given)
            unchanged = values.pop("_unchanged", None)
            before = values.pop("_before", None)
            offset = first + n
            transaction = values.pop("_txn", offset)
            numbers.append((offset, transaction))
            if (origin := values.pop("_origin", None)) is not None:
                self.origins[transaction] = origin
            if values.pop("_read", op == "r"):
                self.reads.add(transaction)
            change = LogChange(offset, op, values, frozenset(unchanged or ()), before)
            self.written.append((table, change))
            row = {c.name: values.get(c.name) for c in table.columns}
            row |= {OFFSET: offset, TRANSACTION: transaction, COMMIT_TS: offset, OP: op}
            row |= {UNCHANGED: unchanged, BEFORE: before}
            by_shape.setdefault(table, []).append(row)
        self.next_offset = first + max(len(rows), 1)  # a segment is never empty: one offset goes to a table unseen
        self.cut += 1
        begun = self.root.with_name(f"{self.root.name} begun")
        room = Layout(begun).segment(first, self.next_offset - 1)
        room.mkdir(parents=True)
        files = tuple(self._file(room, table, listed) for table, listed in by_shape.items())
        if self.has_transactions:
            files = (_transactions(room, numbers, self.reads, self.origins), *files)
        schemas = SchemaHistory()
        for table, version in self.versions.items():
            schemas.learn(table, version)
        Layout(self.root).schemas.write_text(schemas.to_json())
        clock = None
        if self.has_transactions and numbers:
            clock = clock_of(time_of(numbers[-1][1]))
        mergelog.seal(begun, self.log_id, (first, self.next_offset - 1), self.cut, files, self.progress, clock)
        # Atomically, as the sinks do: another process may be reading the log.
        placed = Layout(self.root).segment(first, self.next_offset - 1)
        placed.parent.mkdir(parents=True, exist_ok=True)
        room.rename(placed)
        shutil.rmtree(begun)
        return self.cut

    def _file(self, room: Path, table: Table, rows: list[dict[str, Any]]) -> SegmentFile:
        version = self.versions.setdefault(table, 1 + sum(t.id == table.id for t in self.versions))
        arrays = pa.Table.from_pylist(rows, table.log_schema)
        path = room / file_name(table, version)
        pq.write_table(arrays, path)
        sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
        return mergelog.entry(path, table, version, arrays, sha256)

    def compact(self, count: int) -> None:
        """Compact this many of the latest segments, except the last one, into one, as `log.files.compaction` does."""
        layout = Layout(self.root)
        listed = layout.segment_offsets()[-count - 1 : -1]
        if len(listed) < 2:
            return
        old = [layout.manifest(*bounds)[0] for bounds in listed]
        newest = layout.manifest(*listed[-1])[1]
        by_shape: dict[Table, list[dict[str, Any]]] = {}
        numbers: list[tuple[int, int]] = []
        for segment in old:
            for file in segment.files:
                if file.table is None:
                    continue
                room = layout.segment(segment.first_offset, segment.last_offset)
                rows = pq.ParquetFile(room / file.path).read().to_pylist()
                by_shape.setdefault(table_from_json(file.table or {}), []).extend(rows)
                numbers += [(row[OFFSET], row[TRANSACTION]) for row in rows]
        first, last = listed[0][0], listed[-1][1]
        room = layout.segment(first, last)
        room.mkdir()
        files = tuple(self._file(room, table, rows) for table, rows in by_shape.items())
        if self.has_transactions:
            files = (_transactions(room, sorted(numbers), self.reads, self.origins), *files)
        made = replace(
            old[-1],
            first_offset=first,
            first_transaction=old[0].first_transaction,
            first_cut=old[0].first_cut,
            files=files,
            previous=old[0].previous,
            stands_for=old[-1].stands_for or manifest_hash(newest),
            seams=tuple(seam for s in old for seam in (*s.seams, (s.last_cut, s.last_offset)))[:-1],
        )
        (room / "segment.json").write_text(made.to_json())
        for bounds in listed:
            shutil.rmtree(layout.segment(*bounds))

    def changes(self, table: TableId, up_to: int | None = None) -> list[LogChange]:
        return [c for t, c in self.written if t.id == table and (up_to is None or c.offset <= up_to)]


def chain(layout: Layout) -> None:
    """Have each manifest of a log by hand name the one before it, as sealing does."""
    before: tuple[Segment, bytes] | None = None
    for bounds in layout.segment_offsets():
        segment, text = layout.manifest(*bounds)
        if before is not None:
            segment = replace(segment, previous=before[0].stands_for or manifest_hash(before[1]))
            text = segment.to_json().encode()
            (layout.segment(*bounds) / "segment.json").write_bytes(text)
        before = segment, text


def position_of(transaction: int) -> str:
    """The position that a log by hand gives a transaction."""
    return f"0/{transaction:X}"


def time_of(transaction: int) -> datetime:
    """The same, its time."""
    return datetime(2024, 1, 1, tzinfo=UTC) + timedelta(seconds=transaction)


def _transactions(
    room: Path, numbers: Sequence[tuple[int, int]], reads: Collection[int], origins: Mapping[int, str]
) -> SegmentFile:
    """The file of the transactions of changes, by offset."""
    listed: dict[int, dict[str, Any]] = {}
    for offset, number in numbers:
        there = {
            "number": number,
            "first_offset": offset,
            "position": position_of(number),
            "xid": number,
            "kind": "read" if number in reads else "source",
        }
        there |= {"commit_ts": time_of(number), "commit_clock": time_of(number)}
        there["origin"] = origins.get(number)
        listed[number] = listed.get(number, there) | {"last_offset": offset}
    path = room / "transactions.parquet"
    pq.write_table(pa.Table.from_pylist(list(listed.values()), TRANSACTIONS_SCHEMA), path)
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    return SegmentFile(path.name, len(listed), path.stat().st_size, sha256)
