"""Find the rows of one key in a log, latest first: by the index as far as it reaches, and by reading the rest.

    log       ──segment──segment──segment──▏journal▕
    index     ├ files ──────────────┤
    read        ▪ blocks of the key    all    all          by their key columns; whole rows only where the key is found

A file that cannot have the key is not read: its offsets, the bounds of its first key column, and the index rule it out.
The index is never proof that a key *is* somewhere: rows are compared by their keys.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from cdcflow.errors import ConfigurationError, InvariantViolated, SinkUnavailable
from cdcflow.log.files.extents import TRIES_MAX
from cdcflow.log.files.layout import Bounds, Layout
from cdcflow.log.files.parquet import columns_of
from cdcflow.log.format.segment import Segment, SegmentFile
from cdcflow.log.index.index_files import KeyIndex
from cdcflow.log.index.keyhash import Hashes, hashes
from cdcflow.log.query import new_rows
from cdcflow.log.read.folder import FolderReader
from cdcflow.log.read.log_reader import LogReader
from cdcflow.model.change import DELETE, INSERT, READ, TRUNCATE
from cdcflow.model.keytexts import are_equal, values
from cdcflow.model.position import Checkpoint
from cdcflow.model.table import OFFSET, OP, Table, TableId, table_from_json

MANIFESTS_KEPT = 4096
Rows = tuple[Table, pa.Table]
"""Rows of one shape (`Table.log_schema`)."""


@dataclass(frozen=True)
class Key:
    """A key given as the texts of its columns (`model.keytexts`), convertible to each shape of its table."""

    table: TableId
    texts: tuple[str, ...]

    def columns(self, shape: Table) -> tuple[pa.Array, ...] | None:
        """Return the key's values in a shape, as one-value arrays; `None` if the shape has no such key."""
        return _columns(self, shape)

    def hash(self, shape: Table) -> int | None:
        columns = self.columns(shape)
        return None if columns is None else int(hashes(columns)[0])

    def check(self, shape: Table) -> None:
        """Check that this is a key of a shape.

        Raises:
            ConfigurationError: it is not a valid key of the table; the message has no value.
        """
        if not shape.key:
            raise ConfigurationError(
                f"looking for a row of {shape.id}: the table has no key",
                remedy=f"read its changes: `cdcflow log show --table {shape.id}`",
            )
        if len(shape.key) != len(self.texts):
            raise ConfigurationError(
                f"looking for a row of {shape.id}: its key has {len(shape.key)} columns, {len(self.texts)} were given",
                remedy=f"give a value for each of: {', '.join(shape.key)}",
            )
        if self.columns(shape) is None:
            types = ", ".join(f"{name} ({shape.row_schema.field(name).type})" for name in shape.key)
            raise ConfigurationError(
                f"looking for a row of {shape.id}: a given text is not a value of its column's type",
                remedy=f"the key is {types}; bytes are written in hex, as \\x0af3",
            )


@lru_cache(maxsize=1024)
def _columns(key: Key, shape: Table) -> tuple[pa.Array, ...] | None:
    if len(shape.key) != len(key.texts):
        return None
    try:
        return tuple(
            values([text], shape.row_schema.field(name).type) for name, text in zip(shape.key, key.texts, strict=True)
        )
    except ValueError:
        return None


@dataclass(frozen=True, slots=True)
class _Now:
    """The extent of a log for one query. `lasts`: the last offsets of its sealed segments."""

    written: object
    checkpoint: Checkpoint
    segments: Sequence[Bounds]
    lasts: Sequence[int]

    @property
    def sealed_to(self) -> int:
        return self.lasts[-1] if self.lasts else 0


@dataclass
class KeyRows:
    """Finds the rows of keys in one log. Opened files remain open. Only one thread may use it at a time.

    `refresh` reads the log's current extent; all other methods use the extent from the last `refresh`.
    """

    log: LogReader
    layout: Layout
    files_max: int | None = None
    files_read: int = 0
    """How many files of segments were read in total, to measure the cost of a query."""
    _index: KeyIndex = field(init=False)
    _now: _Now = _Now(None, Checkpoint(), (), ())
    _manifests: dict[Bounds, Segment] = field(default_factory=dict)
    _shapes: tuple[int, dict[TableId, dict[int, Table]]] = (-1, {})
    _tail: list[Rows] = field(default_factory=list)
    _tail_end: int = 0
    _read_before: int = 0

    def __post_init__(self) -> None:
        self._index = KeyIndex(self.layout)

    def refresh(self) -> Checkpoint:
        """Read the log's current extent for a new query. Return the checkpoint of its latest cut."""
        self._read_before = self.files_read
        written = new_rows.write_marker(self.layout)
        if written is None and self._has_nothing_new():
            return self._now.checkpoint
        if written is None or written != self._now.written:
            # The checkpoint first: everything it covers is sealed, or in a journal, or both.
            checkpoint = self.log.newest_checkpoint()
            self._list(written, checkpoint)
        return self._now.checkpoint

    def reached_checkpoint(self) -> Checkpoint:
        """Return the checkpoint of the last `refresh`, with the time that the source has reached now. For a log that is
        in a store alone, this is one more request."""
        if self._is_away and self._now.segments:
            self._now = replace(self._now, checkpoint=self.layout.reached_checkpoint(self._now.checkpoint))
        return self._now.checkpoint

    @property
    def _is_away(self) -> bool:
        return isinstance(self.log, FolderReader) and self.layout.away is not None

    def _has_nothing_new(self) -> bool:
        """Return whether no segment was added after the latest known one, for a log that is in a store alone. It
        costs one request. Older segments that were compacted or expired are noticed only when they are read."""
        if not self._is_away or not self._now.segments:
            return False
        return self.layout.segments_behind(self._now.sealed_to)[-1:] == [self._now.segments[-1]]

    def _list(self, written: object, checkpoint: Checkpoint) -> None:
        first = self.layout.log_file().first_offset if self.layout.exists() else 1
        segments = [b for b in self.layout.segment_offsets() if b[1] >= first]
        self._index.refresh(segments)
        self._now = _Now(written, checkpoint, segments, [last for _, last in segments])

    @property
    def newest(self) -> Checkpoint:
        return self._now.checkpoint

    @property
    def segments(self) -> Sequence[Bounds]:
        """The sealed segments, oldest first."""
        return self._now.segments

    @property
    def indexed_to(self) -> int:
        """The last indexed offset."""
        return self._index.last_offset

    def may_have(self, table: TableId, wanted: Hashes, last: int) -> npt.NDArray[np.bool_]:
        """Return, for each of these hashes (`log.index.keyhash`), whether the log may have a row of its key up to an
        offset."""
        return self._index.hits(table, wanted, last)

    def segment_of(self, offset: int) -> int:
        """Return the number of the sealed segment that has an offset, or the number of all segments if none has it."""
        return bisect_left(self._now.lasts, offset)

    def of(self, key: Key, shapes: Sequence[Table], first: int, last: int) -> Iterator[Rows]:
        """Yield the rows of a key between two offsets (inclusive), and the truncates of its table, latest first.
        Offsets descend from each part to the next, and within a part. `shapes`: those that the table has had.

        A delete is accompanied by the next row if that may continue the row under another key.

        Raises:
            HistoryLost: the log begins after `first`.
            InvariantViolated: something is missing or damaged.
        """
        sealed_to = self._now.sealed_to
        if last > sealed_to:
            self._read_tail(last)
            for shape, rows in reversed(self._tail):
                if shape.id == key.table:
                    yield from _matching(shape, rows, key, first, last)
        if first <= sealed_to:
            yield from self._of_segments(key, shapes, first, min(last, sealed_to))

    def shapes(self) -> dict[TableId, dict[int, Table]]:
        """Return every table's shapes by version number."""
        cut = self._now.checkpoint.cut
        if self._shapes[0] != cut:
            self._shapes = cut, self.log.table_shapes()
        return self._shapes[1]

    def shape_at(self, table: TableId, offset: int) -> Table | None:
        """Return a table's shape at an offset, from its latest row up to it; `None` if it has no row."""
        if offset > self._now.sealed_to:
            self._read_tail(offset)
            began = [there for there, rows in self._tail if there.id == table and _first(rows) <= offset]
            if began:
                return began[-1]
        for number in range(min(self.segment_of(offset), len(self.segments) - 1), -1, -1):
            bounds = self.segments[number]
            if bounds[1] <= self._index.last_offset:
                versions = self._index.versions_at(table, min(offset, bounds[1]))
                if len(versions) < 2:
                    return self.shapes()[table].get(versions[0]) if versions else None
            # Shapes may alternate within a segment: the one of the latest row counts.
            found = [(self._newest_row(bounds, file, offset), shape) for file, shape in self._files(bounds, table)]
            if newest := max((last for last, _ in found), default=0):
                return next(shape for last, shape in found if last == newest)
        return None

    def last_read(self, table: TableId, bounds: Bounds | None, first: int, last: int) -> int:
        """Return the offset of the last row that a backfill read of a table in a segment (`None`: in the unsealed part)
        between two offsets (inclusive), or 0 if there is no such row."""
        if bounds is None:
            self._read_tail(int(self.newest.next_offset) - 1)
            parts = [rows.select([OFFSET, OP]) for shape, rows in self._tail if shape.id == table]
        else:
            segment = self.manifest(bounds)
            paths = [self.layout.file(segment, f) for f, _ in self._files(bounds, table) if (f.ops or {}).get(READ)]
            parts = [columns_of(path, [OFFSET, OP]) for path in paths]
        read = [
            rows.filter(
                pc.and_(
                    pc.equal(rows.column(OP), READ),
                    pc.and_(pc.greater_equal(rows.column(OFFSET), first), pc.less_equal(rows.column(OFFSET), last)),
                )
            )
            for rows in parts
        ]
        return max((_last(rows) for rows in read if rows.num_rows), default=0)

    def manifest(self, bounds: Bounds) -> Segment:
        """Return the manifest of a segment.

        Raises:
            FileNotFoundError: it was compacted or expired.
        """
        if bounds not in self._manifests:
            if len(self._manifests) >= MANIFESTS_KEPT:
                self._manifests.clear()
            self._manifests[bounds] = self.layout.manifest(*bounds)[0]
        return self._manifests[bounds]

    # ── inside ──────────────────────────────────────────────────────────────────────────────────────────────

    def _newest_row(self, bounds: Bounds, file: SegmentFile, offset: int) -> int:
        """Return the offset of a file's latest row up to an offset, or 0 if it has none."""
        if file.first_offset > offset:
            return 0
        if file.last_offset <= offset:
            return file.last_offset
        column = columns_of(self.layout.file(self.manifest(bounds), file), [OFFSET]).column(OFFSET).to_numpy()
        return int(column[int(np.searchsorted(column, offset, side="right")) - 1])

    def _count(self) -> None:
        self.files_read += 1
        if self.files_max is not None and self.files_read - self._read_before > self.files_max:
            raise SinkUnavailable(
                f"looking for a row in the log {self.layout.name}: more than {self.files_max} files would be read",
                remedy="index the log: `cdcflow log index`, or ask with `cdcflow get` or `cdcflow history`",
            )

    def _files(self, bounds: Bounds, table: TableId) -> list[tuple[SegmentFile, Table]]:
        """Return a table's files in a segment."""
        return [
            (file, table_from_json(file.table))
            for file in self.manifest(bounds).files
            if file.table is not None and (file.table["schema"], file.table["name"]) == (table.schema, table.name)
        ]

    def _read_tail(self, last: int) -> None:
        """Read the unsealed part: all of it the first time, then only the new rows."""
        sealed_to = self._now.sealed_to
        self._tail = [(shape, rows) for shape, rows in self._tail if _last(rows) > sealed_to]
        if not self._tail:
            self._tail_end = sealed_to
        if last > self._tail_end:
            self._tail += [(shape, rows) for shape, _, rows in self.log.read_rows(self._tail_end + 1, last)]
            self._tail_end = last

    def _of_segments(self, key: Key, shapes: Sequence[Table], first: int, last: int) -> Iterator[Rows]:
        wanted = sorted({number for shape in shapes if (number := key.hash(shape)) is not None})
        ranges = self._index.may_have(key.table, wanted, first, last)
        at, tries = last, 0
        while ranges and at >= first:
            number = self._newest(ranges, at)
            if number < 0:
                return
            bounds = self.segments[number]
            try:
                found = list(self._of_segment(key, bounds, ranges, first, at))
            except FileNotFoundError as error:  # it was compacted or expired in between
                self._manifests.pop(bounds, None)
                tries += 1
                if tries > TRIES_MAX:
                    raise InvariantViolated(
                        f"reading the log {self.layout.name}: {error.filename or error} is missing",
                        runbook="log-damaged",
                    ) from None
                self._list(None, self.newest)
                continue
            yield from found
            at, tries = bounds[0] - 1, 0

    def _newest(self, ranges: Sequence[Bounds], at: int) -> int:
        """Return the number of the latest segment that overlaps the ranges and is not after number `at`; -1 if no such
        segment does."""
        # Ranges may be nested: the one that reaches farthest is not always the last.
        reach = min(max((last for first, last in ranges if first <= at), default=0), at)
        number = self.segment_of(reach)
        if number == len(self.segments) or self.segments[number][0] > reach:
            number -= 1
        return number if reach else -1

    def _of_segment(self, key: Key, bounds: Bounds, ranges: Sequence[Bounds], first: int, last: int) -> Iterator[Rows]:
        segment = self.manifest(bounds)
        files = [
            (file, shape)
            for file, shape in self._files(bounds, key.table)
            if _overlaps(ranges, file.first_offset, file.last_offset) and _is_within(file, shape, key)
        ]
        found: list[Rows] = []
        for file, shape in sorted(files, key=lambda one: -one[0].first_offset):
            self._count()
            with pq.ParquetFile(self.layout.file(segment, file), memory_map=True) as parquet:
                for number in reversed(range(parquet.num_row_groups)):
                    found += _of_group(parquet, number, shape, key, ranges, first, last)
        yield from _descending(found)


def _overlaps(ranges: Sequence[Bounds], first: int, last: int) -> bool:
    return any(a <= last and b >= first for a, b in ranges)


def _is_within(file: SegmentFile, shape: Table, key: Key) -> bool:
    """Return whether the bounds of the first key column allow the key. Files with truncates are always allowed, because
    truncates have no bounds."""
    if (file.ops or {}).get(TRUNCATE):
        return True
    columns = key.columns(shape)
    if columns is None:
        return False
    if file.key_min is None or file.key_max is None:
        return True
    low, high = values([file.key_min, file.key_max], columns[0].type)
    return bool(pc.less_equal(low, columns[0][0]).as_py() and pc.less_equal(columns[0][0], high).as_py())


def _of_group(
    parquet: pq.ParquetFile, number: int, shape: Table, key: Key, ranges: Sequence[Bounds], first: int, last: int
) -> Iterator[Rows]:
    bounds = parquet.metadata.row_group(number).column(0).statistics
    if bounds is not None:
        low, high = max(bounds.min, first), min(bounds.max, last)
        if low > high or not _overlaps(ranges, low, high):
            return
    columns = [OFFSET, *dict.fromkeys([*shape.key, OP])]
    narrow = parquet.read_row_group(number, columns=columns, use_threads=False)
    places = _places(narrow, shape, key, first, last)
    if len(places):
        rows = parquet.read_row_group(number, use_threads=False).cast(shape.log_schema)
        yield shape, rows.take(pa.array(places[::-1]))


def _matching(shape: Table, rows: pa.Table, key: Key, first: int, last: int) -> Iterator[Rows]:
    places = _places(rows, shape, key, first, last)
    if len(places):
        yield shape, rows.take(pa.array(places[::-1]))


def _places(rows: pa.Table, shape: Table, key: Key, first: int, last: int) -> npt.NDArray[np.intp]:
    """Return the positions of the key's rows and of truncates, ascending; with each delete the next row if it may
    continue it."""
    offsets = rows.column(OFFSET).to_numpy()
    is_truncate = pc.equal(rows.column(OP), TRUNCATE).to_numpy()
    columns = key.columns(shape)
    its = np.zeros(len(offsets), bool)
    if columns is not None:
        its = are_equal([rows.column(name) for name in shape.key], [c[0] for c in columns]).to_numpy()
    deleted = its & pc.equal(rows.column(OP), DELETE).to_numpy()
    onward = np.zeros(len(offsets), bool)
    onward[1:] = deleted[:-1] & (offsets[1:] == offsets[:-1] + 1) & pc.equal(rows.column(OP), INSERT).to_numpy()[1:]
    within = (offsets >= first) & (offsets <= last)
    return np.flatnonzero((its | is_truncate | onward) & within)


def _first(rows: pa.Table) -> int:
    return int(rows.column(OFFSET)[0].as_py())


def _last(rows: pa.Table) -> int:
    return int(rows.column(OFFSET)[-1].as_py())


def _descending(found: list[Rows]) -> Iterator[Rows]:
    """Yield the parts of one segment, latest first and each descending; row by row if shapes alternate."""
    ends = [(int(rows.column(OFFSET)[0].as_py()), int(rows.column(OFFSET)[-1].as_py())) for _, rows in found]
    if all(a[1] > b[0] for a, b in pairwise(ends)):
        yield from found
        return
    single = [(shape, rows.slice(n, 1)) for shape, rows in found for n in range(rows.num_rows)]
    yield from sorted(single, key=lambda one: -int(one[1].column(OFFSET)[0].as_py()))
