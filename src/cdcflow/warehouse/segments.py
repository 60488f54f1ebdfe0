"""Which files of a change log a merge must read, by manifests only; and these files on the local disk."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cdcflow.changelog.layout import Layout, Store
from cdcflow.changelog.reader import LogLocation, list_segments, newest_checkpoint
from cdcflow.changelog.segment import Segment, SegmentFile
from cdcflow.errors import HistoryLost, InvariantViolated
from cdcflow.model.position import Checkpoint
from cdcflow.model.table import Table, TableId, table_from_json

FETCHED_AT_ONCE = 8


@dataclass(frozen=True, slots=True)
class InputFile:
    """One Parquet file with rows of one shape of a table. Those up to offset `after` are not of the range."""

    path: str
    shape: Table
    file: SegmentFile
    segment: Segment
    after: int = 0

    @property
    def ops(self) -> Mapping[str, int]:
        return self.file.ops or {}


@dataclass(frozen=True, slots=True)
class Range:
    """Sealed segments, oldest first, without a gap."""

    layout: Layout
    log_id: str
    segments: tuple[Segment, ...]

    @property
    def newest(self) -> Segment | None:
        return self.segments[-1] if self.segments else None

    @property
    def checkpoint(self) -> Checkpoint:
        return self.segments[-1].last_checkpoint()

    def tables(self) -> dict[str, TableId]:
        """Every table with rows in the log."""
        found: dict[str, TableId] = {}
        for segment in self.segments:
            for file in segment.files:
                if file.table is not None:
                    table = TableId(str(file.table["schema"]), str(file.table["name"]))
                    found[str(table)] = table
        return found

    def files(self, table: TableId, after_cut: int, since: int = 0) -> list[InputFile]:
        """The files with rows of `table` behind cut `after_cut`, from offset `since` on, in the order of their offsets.

        Raises:
            InvariantViolated: no segment has ended at the cut, so no merge of ours can have left it.
        """
        found: list[InputFile] = []
        for segment in self.segments:
            if segment.last_cut <= after_cut:
                continue
            after: int | None = 0
            if segment.first_cut <= after_cut:
                after = segment.offset_of(after_cut)  # it ended there before it was compacted
            if after is None:
                raise InvariantViolated(
                    f"merging {table}: it has cut {after_cut}, which lies inside segment"
                    f" {segment.first_offset}-{segment.last_offset} of {self.layout.name}"
                )
            after = max(after, since - 1)
            room = self.layout.segment(segment.first_offset, segment.last_offset)
            found += [
                InputFile(str(room.resolve() / f.path), table_from_json(f.table), f, segment, after)
                for f in segment.files
                if f.table is not None
                and (f.table["schema"], f.table["name"]) == (table.schema, table.name)
                and f.last_offset > after
            ]
        return sorted(found, key=lambda f: f.file.first_offset)

    def steps(self, after_cut: int) -> Iterator[Range]:
        """The log up to one cut after another, the newest at last: from each to the next not much more lies in the
        store than may be fetched to the local disk at one time. Of a log without a store: one step."""
        store = self.layout.store
        total = 0
        for number, segment in enumerate(self.segments[:-1] if store is not None else ()):
            if store is not None and segment.last_cut > after_cut:
                total += sum(f.bytes for f in segment.files if not self.layout.is_here(segment, f))
                if total >= store.bytes_max:
                    yield replace(self, segments=self.segments[: number + 1])
                    total = 0
        yield self

    def reaches(self, after_cut: int) -> bool:
        """Whether everything behind a cut is in the log still."""
        first = self.segments[0]
        # A copy has fewer cuts than its original, and begins where that began.
        return first.first_offset == 1 or first.first_cut <= after_cut + 1

    def has(self, offset: int) -> bool:
        """Whether everything from an offset on is in the log still. Offset 0: all that ever was."""
        first = self.segments[0].first_offset
        return first == 1 or offset >= first

    def history_lost(self, table: TableId, after_cut: int) -> HistoryLost:
        """What to say when a table must go on from a cut that is not reached."""
        first = self.segments[0]
        return HistoryLost(
            f"merging {table} from cut {after_cut}: the log {self.layout.name} begins at cut {first.first_cut}"
            f" (offset {first.first_offset}); what was before has expired",
            remedy=f"run `cdcflow backfill {table}`, then `cdcflow merge`",
        )


def sealed(location: LogLocation) -> Range:
    """The sealed segments of a log.

    Raises:
        ConfigurationError: there is no log, or a newer cdcflow wrote it.
        InvariantViolated: a segment between two others is missing, or is another log's.
    """
    layout = Layout.of(location)
    log = layout.log_file()
    segments = tuple(list_segments(layout))
    for segment in segments:
        if segment.log_id != log.log_id:
            raise InvariantViolated(
                f"reading {layout.name}: segment {segment.first_offset}-{segment.last_offset} belongs to another log"
            )
    return Range(layout, log.log_id, segments)


def backfills(log: Range, newest: Checkpoint | None = None) -> Mapping[str, Mapping[str, Any]]:
    """Per table (by name) the backfill's `state`, `generation`, `since`, as of the newest sealed row.

    That a backfill is done may be said by a later cut than the last sealed one, with no row between them: on a quiet
    source no segment may come for hours. A fact about rows that are sealed can be taken from there.
    `newest` is that newest checkpoint, where it is not in the log's folder.
    """
    checkpoint = log.checkpoint
    if newest is None and log.layout.journal_offsets():
        newest = newest_checkpoint(log.layout)
    if newest is not None and newest.next_offset == checkpoint.next_offset:
        checkpoint = newest
    found = checkpoint.progress.get("tables", {})
    return found if isinstance(found, dict) else {}


def present(layout: Layout, files: Sequence[InputFile], room: Path) -> list[InputFile]:
    """These files on the local disk, for as long as `room` is there: fetched from the log's store into it, their
    content compared with the manifests."""
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
        # Another name for it: the log lets go of its own copy when it has been in the store for a while.
        target.hardlink_to(file.path)
    except FileNotFoundError:
        _fetch(store, layout, file, target)
    except OSError:  # another file system
        if layout.is_here(file.segment, file.file):
            return file
        _fetch(store, layout, file, target)
    return replace(file, path=str(target))


def _fetch(store: Store, layout: Layout, file: InputFile, target: Path) -> None:
    first, last = file.segment.first_offset, file.segment.last_offset
    try:
        store.fetch((first, last), file.file, target)
    except FileNotFoundError as error:
        raise HistoryLost(
            f"merging {file.shape.id}: file {file.file.path} of segment {first}-{last} is neither in {layout.root}"
            f" nor in {store.name}",
            remedy="run `cdcflow merge` again if the segment was expired or compacted just now; else run"
            " `cdcflow log check`, which says what is missing",
        ) from error


def visible(file: InputFile, room: Path) -> InputFile:
    """The file under a name that Spark reads: one that begins with `_` or `.` it takes for hidden, and reads nothing
    without a word. Such a file (a schema may be called `_x`) gets a link in `room`."""
    path = Path(file.path)
    if path.name[0] not in "_.":
        return file
    link = room / f"{file.file.first_offset}-{path.name}"
    if not link.is_symlink():
        link.symlink_to(path)
    return replace(file, path=str(link))


def shapes_of(files: Iterable[InputFile]) -> list[Table]:
    """The shapes in these files, the one that was in force last at the end (one may come back after another)."""
    last: dict[Table, int] = {}
    for file in files:
        last[file.shape] = max(last.get(file.shape, 0), file.file.last_offset)
    return sorted(last, key=lambda shape: last[shape])


def offsets_of(files: Iterable[InputFile]) -> tuple[int, int]:
    """The first and the last offset in these files; (0, 0) when there are none."""
    known = [(max(f.file.first_offset, f.after + 1), f.file.last_offset) for f in files]
    return (min(a for a, _ in known), max(b for _, b in known)) if known else (0, 0)
