"""The key index of a log as files: which files exist, which of them count, and how a segment's file is built.

    <log>/index/<first offset>-<last offset>.keys       see `keyindex`

The index is built from segments and can always be rebuilt. A log that was restored to an earlier state has different
rows under the same offsets, so each file records how the log continued at its end: the hash of the manifest of the
segment that ended there. A file whose end does not match the log belongs to a different past, and so do the files
before it until one matches.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc
import pyarrow.parquet as pq

from cdcflow.log.files.layout import Bounds, Layout, segment_bounds, segment_name, widest_segments
from cdcflow.log.format.segment import Segment, SegmentFile, manifest_hash
from cdcflow.log.index.keyhash import Hashes, hashes
from cdcflow.log.index.keyindex import IndexFile, TableKeys
from cdcflow.model.change import TRUNCATE
from cdcflow.model.table import OFFSET, OP, Table, TableId, table_from_json

SUFFIX = ".keys"
_TRIES_MAX = 5


def folder(layout: Layout) -> Path:
    """Return the folder of a log's index."""
    return layout.root / "index"


def path_of(layout: Layout, bounds: Bounds) -> Path:
    return folder(layout) / f"{segment_name(bounds)}{SUFFIX}"


def index_bounds(layout: Layout) -> list[Bounds]:
    """Return the first and last offsets of the files that exist and that no wider one covers, ascending."""
    try:
        names = [path.name for path in folder(layout).iterdir()]
    except FileNotFoundError:
        return []
    found = (segment_bounds(name.removesuffix(SUFFIX)) for name in names if name.endswith(SUFFIX))
    return widest_segments([bounds for bounds in found if bounds is not None])


def open_index(layout: Layout, bounds: Bounds) -> IndexFile:
    """Open one file of the index, mapped into memory.

    Raises:
        FileNotFoundError: it no longer exists.
        InvariantViolated: it is damaged.
    """
    path = path_of(layout, bounds)
    with path.open("rb") as file:
        return IndexFile.from_buffer(memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)), str(path))


def of_segment(layout: Layout, segment: Segment, text: bytes, after: int = 0) -> IndexFile:
    """Build the index of a segment's rows after an offset; `text` is its manifest. Reads its key columns."""
    blocks: dict[TableId, list[_Block]] = {}
    for file in segment.files:
        if file.table is not None:
            table = table_from_json(file.table)
            blocks.setdefault(table.id, []).extend(_blocks(layout, segment, file, table, after))
    return IndexFile(
        segment.log_id,
        max(segment.first_offset, after + 1),
        segment.last_offset,
        0,
        {table: _together(sorted(own, key=lambda block: block.first)) for table, own in blocks.items()},
        chain=chain_of(segment, text),
        cut=segment.last_cut,
    )


def chain_of(segment: Segment, text: bytes) -> str:
    """Return a text that identifies how the log continued at a segment's end. It is the same before and after a
    compaction."""
    return segment.stands_for or manifest_hash(text)


@dataclass(slots=True)
class KeyIndex:
    """The current index of a log. `refresh` finds new files; opened files remain open."""

    layout: Layout
    _files: list[IndexFile] = field(default_factory=list)
    _opened: dict[Bounds, IndexFile] = field(default_factory=dict)
    _listed: list[Bounds] = field(default_factory=list)

    @property
    def last_offset(self) -> int:
        """The last indexed offset, or 0 if nothing is indexed."""
        return self._files[-1].last_offset if self._files else 0

    @property
    def files(self) -> Sequence[IndexFile]:
        return self._files

    def refresh(self, segments: Sequence[Bounds]) -> None:
        """Update the index to the files that exist now. `segments`: those that count, oldest first."""
        for _ in range(_TRIES_MAX):
            there = index_bounds(self.layout)
            if there == self._listed:
                return
            try:
                self._opened = {b: self._opened.get(b) or open_index(self.layout, b) for b in there}
            except FileNotFoundError:  # it was joined with others in between
                continue
            self._listed = there
            self._files = _counting(self.layout, list(self._opened.values()), segments)
            return

    def versions_at(self, table: TableId, offset: int) -> Sequence[int]:
        """Return the numbers of the shapes that a table's latest row up to an offset may have, judging by the indexed
        offsets; empty if the table has no such row."""
        for file in reversed(self._files):
            keys = file.tables.get(table)
            if keys is not None and file.first_offset <= offset:
                began = keys.blocks[keys.blocks[:, 0] <= offset]
                if len(began):
                    # Of a block that continues past the offset it is only known that it has a row at its beginning.
                    sure = np.where(began[:, 1] <= offset, began[:, 1], began[:, 0])
                    may = (began[:, 1] > offset) | (sure == sure.max())
                    return sorted({int(version) for version in began[may, 2]})
        return ()

    def hits(self, table: TableId, wanted: Hashes, last: int) -> npt.NDArray[np.bool_]:
        """Return, for each of these hashes, whether the log may have a row of its key up to an offset. True if any
        offset in that range is not indexed."""
        found, at = np.zeros(len(wanted), np.bool_), 1
        for file in self._files:
            if file.first_offset > at:
                break
            at = file.last_offset + 1
            keys = file.tables.get(table)
            if keys is not None:
                found |= keys.hits(wanted)
        return found if at > last else np.ones(len(wanted), np.bool_)

    def may_have(self, table: TableId, wanted: Sequence[int], first: int, last: int) -> list[Bounds]:
        """Return the ranges of offsets between two offsets (inclusive) that may have rows of the keys with these
        hashes, or in which the table was truncated; ascending. Ranges without an index are included as a whole."""
        found: list[tuple[int, int]] = []
        at = first
        for file in self._files:
            if file.last_offset < first or file.first_offset > last:
                continue
            if file.first_offset > at:
                found.append((at, file.first_offset - 1))
            at = file.last_offset + 1
            keys = file.tables.get(table)
            if keys is not None:
                found += ((int(o), int(o)) for o in keys.truncates)
                for one in wanted:
                    found += ((int(a), int(b)) for a, b, _ in keys.may_have(one))
        if at <= last:
            found.append((at, last))
        return sorted({(max(a, first), min(b, last)) for a, b in found if a <= last and b >= first})


# ── inside ──────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class _Block:
    first: int
    last: int
    version: int
    found: Hashes
    truncates: Sequence[int]


def _blocks(layout: Layout, segment: Segment, file: SegmentFile, table: Table, after: int) -> Iterator[_Block]:
    """Yield one block per row group, for the rows after an offset. A shape that reappears within a segment shares its
    range of offsets with another shape."""
    emptied = bool((file.ops or {}).get(TRUNCATE))
    with pq.ParquetFile(layout.file(segment, file)) as parquet:
        for number in range(parquet.num_row_groups):
            columns = dict.fromkeys([OFFSET, *table.key, *([OP] if emptied else [])])
            rows = parquet.read_row_group(number, columns=list(columns), use_threads=False)
            rows = rows.slice(int(np.searchsorted(rows.column(OFFSET).to_numpy(), after, side="right")))
            if not rows.num_rows:
                continue
            offsets = rows.column(OFFSET).to_numpy()
            truncates: list[int] = []
            if emptied:
                truncates = offsets[pc.equal(rows.column(OP), TRUNCATE).to_numpy()].tolist()
            # Rows of a table without a key are never looked up by key.
            found = hashes([rows.column(name) for name in table.key])
            yield _Block(int(offsets[0]), int(offsets[-1]), file.version, found, truncates)


def _together(blocks: Sequence[_Block]) -> TableKeys:
    bounds = [(b.first, b.last, b.version) for b in blocks]
    return TableKeys.of(bounds, [b.found for b in blocks], sorted(o for b in blocks for o in b.truncates))


def _counting(layout: Layout, files: Sequence[IndexFile], segments: Sequence[Bounds]) -> list[IndexFile]:
    """Return the files of the index that count: not those of another log, of another past, or of expired offsets."""
    log = layout.log_file()
    kept = [f for f in files if f.log_id == log.log_id and f.last_offset >= log.first_offset]
    while kept and not _fits(layout, kept[-1], segments):
        kept.pop()
    return kept


def _fits(layout: Layout, file: IndexFile, segments: Sequence[Bounds]) -> bool:
    """Whether the log continued at the file's end as the file records."""
    lasts: npt.NDArray[np.int64] = np.array([last for _, last in segments], np.int64)
    at = int(np.searchsorted(lasts, file.last_offset))
    if at == len(segments) or segments[at][0] > file.last_offset:
        return False
    try:
        segment, text = layout.manifest(*segments[at])
    except FileNotFoundError:  # it was compacted in between
        return False
    if segment.last_offset == file.last_offset:
        return chain_of(segment, text) == file.chain
    return (file.cut, file.last_offset) in segment.seams
