"""Find the files of a change log that a merge must read, from manifests only, and bring these files to the local
disk."""

from __future__ import annotations

import contextlib
import hashlib
from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, overload

from cdcflow.errors import HistoryLost, InvariantViolated, SinkUnavailable
from cdcflow.log.files.extents import retry_read
from cdcflow.log.files.layout import Bounds, Layout, Store, segment_name
from cdcflow.log.format.segment import Segment, SegmentFile
from cdcflow.log.read.reader import LogLocation, check_without_gap, newest_checkpoint
from cdcflow.model.position import Checkpoint
from cdcflow.model.table import Table, TableId, table_from_json, table_from_text, word
from cdcflow.tables.cut import Cut
from cdcflow.tables.merge.refusals import rebuilt

FETCHED_AT_ONCE = 8


@dataclass(frozen=True, slots=True)
class InputFile:
    """One Parquet file with rows of one shape of a table. Only its rows after offset `after` are in the range."""

    path: str
    shape: Table
    file: SegmentFile
    segment: Segment
    after: int = 0

    @property
    def ops(self) -> Mapping[str, int]:
        return self.file.ops or {}


class SegmentGone(SinkUnavailable):
    """The error for a segment that was compacted or expired between listing and reading it. The log can be
    read again."""

    section = "busy"


_Listed = dict[tuple[Bounds, str, str], Sequence[tuple[str, Table, SegmentFile]]]
"""The files of a table in a segment: the path and the shape of each."""


class Manifests(Sequence[Segment]):
    """A log's segments by their manifests, oldest first; each manifest is read when it is first used.

    A log may have tens of thousands of segments; a merge that continues from the last one needs only the latest few.
    """

    def __init__(
        self,
        layout: Layout,
        log_id: str,
        bounds: Sequence[Bounds],
        read: dict[Bounds, Segment] | None = None,
        listed: _Listed | None = None,
    ) -> None:
        """`read`: the manifests that were read already; each manifest that is read is added. `listed`: likewise, the
        files of each table in segments."""
        self._layout = layout
        self._log_id = log_id
        self._bounds = tuple(bounds)
        self._read: dict[Bounds, Segment] = {} if read is None else read
        self._listed: _Listed = {} if listed is None else listed

    def __len__(self) -> int:
        return len(self._bounds)

    @overload
    def __getitem__(self, at: int) -> Segment: ...
    @overload
    def __getitem__(self, at: slice) -> Manifests: ...
    def __getitem__(self, at: int | slice) -> Segment | Manifests:
        if isinstance(at, slice):
            return Manifests(self._layout, self._log_id, self._bounds[at], self._read, self._listed)
        try:
            return self._manifest(self._bounds[at])
        except FileNotFoundError:
            first, last = self._bounds[at]
            raise SegmentGone(
                f"merging {self._layout.name}: segment {first}-{last} was compacted or expired while it was read",
                remedy="merge again",
                runbook="busy",
            ) from None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Manifests) and self._bounds == other._bounds

    def __hash__(self) -> int:
        return hash(self._bounds)

    def begin_at(self, offset: int) -> bool:
        """Return whether the first segment begins at or before this offset."""
        return bool(self._bounds) and self._bounds[0][0] <= offset

    def behind(self, offset: int) -> Manifests:
        """Return the segments with rows after an offset."""
        return self[bisect_right([last for _, last in self._bounds], offset) :]

    def load(self, behind: int) -> None:
        """Read the manifests of segments with rows after an offset. FileNotFoundError: one was removed in the
        meantime."""
        for bounds in self.behind(behind)._bounds:
            self._manifest(bounds)

    def files_of(self, segment: Segment, table: TableId) -> Sequence[tuple[str, Table, SegmentFile]]:
        """Return the files of a segment with rows of a table: the path and the shape of each."""
        bounds = segment.first_offset, segment.last_offset
        name = bounds, table.schema, table.name
        if name not in self._listed:
            room = self._layout.segment(*bounds).resolve()
            self._listed[name] = [
                (str(room / file.path), table_from_json(file.table), file)
                for file in segment.files
                if file.table is not None and (file.table["schema"], file.table["name"]) == name[1:]
            ]
        return self._listed[name]

    def _manifest(self, bounds: Bounds) -> Segment:
        if bounds not in self._read:
            segment, _ = self._layout.manifest(*bounds)
            if segment.log_id != self._log_id:
                raise InvariantViolated(
                    f"reading {self._layout.name}: segment {bounds[0]}-{bounds[1]} belongs to another log",
                    runbook="log-damaged",
                )
            self._read[bounds] = segment
        return self._read[bounds]


_NO_SHAPE = Table(TableId("", ""), 0, (), ())
"""The shape of a file that has no table's rows."""


class OlderNeeded(Exception):
    """The error when the requested data may be in segments before the listed ones."""


@dataclass(frozen=True, slots=True)
class Range:
    """Sealed segments, oldest first, without a gap. `older`: the log may have earlier segments that were not listed; a
    method that needs them raises OlderNeeded."""

    layout: Layout
    log_id: str
    segments: Manifests
    older: bool = False

    @property
    def newest(self) -> Segment | None:
        return self.segments[-1] if self.segments else None

    @property
    def checkpoint(self) -> Checkpoint:
        return self.segments[-1].last_checkpoint()

    def tables(self, before: Cut | None = None) -> dict[str, TableId]:
        """Return every table with rows in the log, and every table that `before` shows or lists in `left_out`. `before`
        is the latest published cut by source; together, these are all tables that ever had rows."""
        found: dict[str, TableId] = {}
        segments = self.segments
        if before is not None and before.left_out.keys() <= before.tables.keys():
            found = {name: table.source for name, table in before.tables.items()}
            segments = self.segments.behind(before.offset)
        elif self.older:
            raise OlderNeeded
        return found | _tables_in(segments)

    def tables_behind(self, offset: int) -> dict[str, TableId]:
        """Return every table with rows in the segments after an offset."""
        return _tables_in(self.segments.behind(offset))

    def transactions(self, files: Sequence[InputFile], offsets: Collection[int] = ()) -> list[InputFile]:
        """Return the files that list the transactions of the segments of these files, and of the segments that contain
        these offsets. A segment that has expired is skipped. For an offset after the last one, the last segment is
        used."""
        found = {f.segment.first_offset: f.segment for f in files}
        for offset in offsets:
            if self.older and self.segments and offset < self.segments[0].first_offset:
                raise OlderNeeded
            behind = self.segments.behind(offset - 1)
            if behind and behind[0].first_offset <= offset:
                found[behind[0].first_offset] = behind[0]
            elif not behind and self.segments:
                found[self.segments[-1].first_offset] = self.segments[-1]
        shape = files[0].shape if files else _NO_SHAPE
        listed = []
        for segment in (found[first] for first in sorted(found)):
            room = self.layout.segment(segment.first_offset, segment.last_offset).resolve()
            listed += [InputFile(str(room / f.path), shape, f, segment) for f in segment.files if f.table is None]
        return listed

    def _from(self, after_cut: int) -> int:
        """Return the index of the first segment with a cut after this one. Manifests are read from the last segment
        backwards."""
        number = len(self.segments)
        while number and self.segments[number - 1].last_cut > after_cut:
            number -= 1
        if self.older and not number and self.segments and self.segments[0].first_cut > after_cut + 1:
            raise OlderNeeded
        return number

    def files(self, table: TableId, after_cut: int, since: int = 0) -> list[InputFile]:
        """Return the files with rows of `table` after cut `after_cut`, starting at offset `since`, sorted by offset.

        Raises:
            InvariantViolated: no segment ended at that cut, so no merge by cdcflow can have stopped there.
        """
        found: list[InputFile] = []
        for segment in self.segments[self._from(after_cut) :]:
            after: int | None = 0
            if segment.first_cut <= after_cut:
                after = segment.offset_of(after_cut)  # it ended at that cut before it was compacted
            if after is None:
                raise InvariantViolated(
                    f"merging {table}: it has cut {after_cut}, which is inside segment"
                    f" {segment.first_offset}-{segment.last_offset} of {self.layout.name}"
                )
            after = max(after, since - 1)
            found += [
                InputFile(path, shape, file, segment, after)
                for path, shape, file in self.segments.files_of(segment, table)
                if file.last_offset > after
            ]
        return sorted(found, key=lambda f: f.file.first_offset)

    def steps(self, after_cut: int) -> Iterator[Range]:
        """Yield prefixes of the log, each longer than the one before and the last one whole. Each adds little more data
        from the store than may be on the local disk at a time. A log without a store is one step."""
        store = self.layout.store
        total = 0
        first = self._from(after_cut) if store is not None else len(self.segments)
        for number, segment in enumerate(self.segments[first:-1], first):
            if store is not None:
                total += sum(f.bytes for f in segment.files if not self.layout.is_here(segment, f))
                if total >= store.bytes_max:
                    yield replace(self, segments=self.segments[: number + 1])
                    total = 0
        yield self

    def reaches(self, after_cut: int) -> bool:
        """Return whether the log still has everything after a cut."""
        first = self.segments[0]
        # A copy has fewer cuts than its original, and begins where the original began.
        return self._check_older(first.first_offset == 1 or first.first_cut <= after_cut + 1)

    def has(self, offset: int) -> bool:
        """Return whether the log still has everything from an offset onward. Offset 0: everything since it began."""
        first = self.segments[0].first_offset
        return self._check_older(first == 1 or offset >= first)

    def _check_older(self, there: bool) -> bool:
        if self.older and not there:
            raise OlderNeeded
        return there

    @property
    def beginning(self) -> int:
        """The first offset that the log still has; 0 if nothing has expired."""
        return 0 if self.reaches(0) else self.segments[0].first_offset

    def changes_lost(self, table: TableId, after_cut: int) -> HistoryLost:
        """Return the error for a table that keeps every change, when the log no longer reaches back to the
        table's cut."""
        first = self.segments[0]
        return HistoryLost(
            f"merging {table} from cut {after_cut}: the log {self.layout.name} begins at cut {first.first_cut}"
            f" (offset {first.first_offset}); changes before that have expired, and the table would lack them",
            remedy=f"{rebuilt(table)}: a new table has the changes that the log has, and each row once",
            runbook="log-expired",
        )

    def history_lost(self, table: TableId, after_cut: int) -> HistoryLost:
        """Return the error for a table when the log no longer reaches back to the table's cut."""
        first = self.segments[0]
        return HistoryLost(
            f"merging {table} from cut {after_cut}: the log {self.layout.name} begins at cut {first.first_cut}"
            f" (offset {first.first_offset}); everything before it has expired",
            remedy=f"run `cdcflow backfill {word(table)}`, then `cdcflow merge`",
            runbook="log-expired",
        )


def _tables_in(segments: Manifests) -> dict[str, TableId]:
    found = {}
    for segment in segments:
        for file in segment.files:
            if file.table is not None:
                table = TableId(str(file.table["schema"]), str(file.table["name"]))
                found[str(table)] = table
    return found


def sealed_range(location: LogLocation, behind: int = 0, *, recent: bool = False) -> Range:
    """Return the sealed segments of a log. The manifests of segments with rows after offset `behind` are read at once.
    `recent`: list at least those segments; list older ones only if that costs nothing.

    Raises:
        ConfigurationError: there is no log, or a newer cdcflow wrote it.
        InvariantViolated: a segment between two others is missing, or belongs to another log.
    """
    layout = Layout.of(location)
    log = layout.log_file()

    def read() -> Manifests:
        there = layout.segments_behind(behind) if recent and behind else layout.segment_offsets()
        listed = [bounds for bounds in there if bounds[0] >= log.first_offset]
        found = Manifests(layout, log.log_id, listed)
        found.load(behind)
        check_without_gap(listed, layout)
        return found

    segments = retry_read(read, layout.root)
    return Range(layout, log.log_id, segments, older=recent and behind > 0 and not segments.begin_at(log.first_offset))


def backfills(log: Range, newest: Checkpoint | None = None) -> Mapping[str, Mapping[str, Any]]:
    """Return the `state`, `generation` and `since` of each table's backfill as of the latest sealed row, keyed by table
    name.

    A cut after the last sealed one may record that a backfill is done although no row was added between the two: on a
    quiet source no segment may be sealed for hours. Such a cut is used if it has no row that is not sealed. `newest` is
    the latest checkpoint, for a log whose folder does not have it.
    """
    checkpoint = log.checkpoint
    if newest is None and log.layout.journal_offsets():
        newest = newest_checkpoint(log.layout)
    if newest is not None and newest.next_offset == checkpoint.next_offset:
        return _tables_of(newest)
    found = _tables_of(checkpoint)
    return (
        found
        if newest is None
        else {**found, **dict(_newly_attached(found, _tables_of(newest), checkpoint.next_offset))}
    )


def _tables_of(checkpoint: Checkpoint) -> dict[str, Mapping[str, Any]]:
    found = checkpoint.progress.get("tables", {})
    return found if isinstance(found, dict) else {}


def _newly_attached(
    before: Mapping[str, Mapping[str, Any]], newest: Mapping[str, Mapping[str, Any]], next_offset: int
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the tables that got a base after the latest sealed row was written, with the state in which they got it.
    Later progress is about later rows and is not included."""
    for name, entry in newest.items():
        gap = entry.get("gap") or {}
        known = (before.get(name) or {}).get("gap") or {}
        if gap.get("base") and gap["offset"] <= next_offset and known.get("base") != gap["base"]:
            then = {"state": "done", "generation": gap["generation"], "since": gap["offset"], "whole_since": None}
            yield name, {**entry, **then, "gap": {**gap, "proven": None, "until": None}}


def without_rows(found: Mapping[str, Mapping[str, Any]]) -> dict[TableId, Table]:
    """Return the captured tables without a row that was read, with their shapes. `found`: the backfills (see
    `backfills`)."""
    shapes = [
        table_from_text(entry["shape"])
        for entry in found.values()
        if entry.get("shape") is not None and entry.get("state") != "forgotten"
    ]
    return {shape.id: shape for shape in shapes}


def present(layout: Layout, files: Sequence[InputFile], room: Path) -> list[InputFile]:
    """Return these files on the local disk, for as long as the folder `room` exists. They are fetched from the log's
    store into it, and their contents are verified against the manifests."""
    if layout.store is None:
        return list(files)
    with ThreadPoolExecutor(FETCHED_AT_ONCE) as pool:
        return list(pool.map(lambda file: _present(layout, file, room), files))


def _present(layout: Layout, file: InputFile, room: Path) -> InputFile:
    store = layout.store
    target = room / f"{file.segment.first_offset}-{Path(file.path).name}"
    if store is None:
        return file
    try:
        # A hard link: the log removes its own copy some time after the upload.
        target.hardlink_to(file.path)
    except FileNotFoundError:
        _fetch(store, layout, file, target)
    except OSError:  # different file system
        if layout.is_here(file.segment, file.file):
            return file
        _fetch(store, layout, file, target)
    return replace(file, path=str(target))


def _fetch(store: Store, layout: Layout, file: InputFile, target: Path) -> None:
    first, last = file.segment.first_offset, file.segment.last_offset
    try:
        store.fetch((first, last), file.file, target)
    except FileNotFoundError as error:
        raise _nowhere(store, layout, file) from error


def _nowhere(store: Store, layout: Layout, file: InputFile) -> HistoryLost:
    first, last = file.segment.first_offset, file.segment.last_offset
    return HistoryLost(
        f"merging {file.shape.id}: file {file.file.path} of segment {first}-{last} is neither in {layout.root}"
        f" nor in {store.name}",
        remedy="run `cdcflow merge` again if the segment has just been expired or compacted; otherwise"
        " run `cdcflow log check`, which lists what is missing",
        runbook="log-expired",
    )


def local_copies(layout: Layout, files: Sequence[InputFile]) -> list[InputFile]:
    """Return these files on the local disk. Files of the log's store are kept in the local cache, which evicts files
    when it has no room for others.

    Raises:
        HistoryLost: one of them exists nowhere.
    """
    if (store := layout.store) is None:
        return list(files)
    with ThreadPoolExecutor(FETCHED_AT_ONCE) as pool:
        return list(pool.map(lambda file: _local_copy(store, layout, file), files))


def _local_copy(store: Store, layout: Layout, file: InputFile) -> InputFile:
    try:
        return replace(file, path=str(layout.file(file.segment, file.file)))
    except FileNotFoundError as error:
        raise _nowhere(store, layout, file) from error


def in_place(layout: Layout, file: InputFile) -> InputFile:
    """Return the file where it is stored, without fetching it: the local file, or the object in the log's store under a
    URL that Hadoop knows."""
    if layout.store is None or layout.is_here(file.segment, file.file):
        return file
    segment = segment_name((file.segment.first_offset, file.segment.last_offset))
    bucket = layout.store.name.replace("s3://", "s3a://", 1)
    return replace(file, path=f"{bucket}/segments/{segment}/{file.file.path}")


def visible(file: InputFile, room: Path) -> InputFile:
    """Return the file under a name that Spark reads. Spark treats a name that begins with `_` or `.` as hidden and
    silently reads nothing; such a file (a schema may be called `_x`) gets a link in `room`."""
    path = Path(file.path)
    if path.name[0] not in "_.":
        return file
    # Derived from the whole path: another log, or this one compacted, has a file with the same name and first offset.
    link = room / f"{hashlib.sha256(str(path).encode()).hexdigest()[:32]}-{path.name}"
    with contextlib.suppress(FileExistsError):
        link.symlink_to(path)
    return replace(file, path=str(link))


def shapes_of(files: Iterable[InputFile]) -> list[Table]:
    """Return the shapes in these files, each once, sorted by when they were last in force. A shape may return after a
    different one (see `spans`)."""
    last: dict[Table, int] = {}
    for file in files:
        last[file.shape] = max(last.get(file.shape, 0), file.file.last_offset)
    return sorted(last, key=lambda shape: last[shape])


def offsets_of(files: Iterable[InputFile]) -> tuple[int, int]:
    """Return the first and the last offset in these files; (0, 0) if there are no files."""
    known = [(max(f.file.first_offset, f.after + 1), f.file.last_offset) for f in files]
    return (min(a for a, _ in known), max(b for _, b in known)) if known else (0, 0)
