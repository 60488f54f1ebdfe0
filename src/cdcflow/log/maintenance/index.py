"""Maintain a log's index of keys while the log is written: a file for each new segment, and neighbours joined.

    write <first>-<last>.keys (synced) ──▶ remove those that it covers

A crash leaves files that a wider one covers, which the next step removes; no reader uses them. A separate lock prevents
two processes from doing the same work; a process without the lock writes nothing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from cdcflow.log.disk.layer import OS_LAYER, FileLayer, storing, write_file
from cdcflow.log.disk.maintenance_lock import Busy, hold_lock
from cdcflow.log.files.layout import Bounds, Layout, segment_bounds
from cdcflow.log.index import index_files, keyindex
from cdcflow.log.index.index_files import KeyIndex, folder, path_of
from cdcflow.log.index.keyindex import IndexFile
from cdcflow.log.maintenance.background import BackgroundTask, OnEvent
from cdcflow.log.workers import HERE, AwayLog, Workers

LOOK_EVERY_S = 2.0
NICENESS = 15
SEGMENTS_AT_ONCE = 16
"""How many segments one step indexes during a capture: few, so that the thread ends soon after the capture does."""


class Indexing:
    """Brings the index of one log up to date."""

    def __init__(self, layout: Layout, layer: FileLayer = OS_LAYER, workers: Workers = HERE) -> None:
        """`workers` read the keys of segments. They index as many segments at once as one file of the index covers."""
        self._layout = layout
        self._layer = layer
        self._workers = workers
        self._index = KeyIndex(layout)

    def behind(self) -> list[Bounds]:
        """Return the segments that are not indexed yet, oldest first."""
        segments = self._layout.segment_offsets()
        self._index.refresh(segments)
        return [bounds for bounds in segments if bounds[1] > self._index.last_offset]

    @property
    def last_offset(self) -> int:
        """The last indexed offset; 0 if nothing is indexed."""
        self._index.refresh(self._layout.segment_offsets())
        return self._index.last_offset

    def size(self) -> tuple[int, int]:
        """Return the number of the index's files, and their bytes."""
        self._index.refresh(self._layout.segment_offsets())
        paths = [path_of(self._layout, (file.first_offset, file.last_offset)) for file in self._index.files]
        return len(paths), sum(path.stat().st_size for path in paths)

    def step(
        self,
        on_segment: Callable[[Bounds], None] = lambda _: None,
        *,
        anew: bool = False,
        segments_max: int | None = None,
    ) -> int:
        """Index new segments, the oldest first, at most `segments_max`, and return how many were indexed.

        `anew`: index all segments again.

        Raises:
            Busy: another process is doing it.
            SinkUnavailable: no room, or a store is unavailable; the next step continues.
        """
        room = folder(self._layout)
        with storing(f"writing the index {room}"):
            if not room.exists():
                self._layout.root.mkdir(parents=True, exist_ok=True)  # for a log that is only in a store
                self._layer.mkdir(room)
        with hold_lock(room / "lock", f"indexing {self._layout.name}"):
            if anew:
                for bounds in self._stored_bounds():
                    self._layer.unlink(path_of(self._layout, bounds))
            due = self.behind()[:segments_max]
            self._tidy()
            files = list(self._index.files)
            done = 0
            groups = list(_groups(due, files))
            at_once = self._workers.at_once
            for number in range(0, len(groups), at_once):
                some = groups[number : number + at_once]
                ends = [files[-1].last_offset if files else 0, *(group[-1][1] for group in some)]
                given = list(zip(some, ends, strict=False))
                for piece, group, found in zip(given, some, self._read(given), strict=True):
                    # A segment that the workers lack may be local: it was not uploaded yet.
                    made = found if found.count == len(group) else _build_index(self._layout, piece)
                    if made.count:
                        files.append(self._put(made.bounds, made.content))
                        self._join(files)
                    for bounds in group[: made.count]:
                        on_segment(bounds)
                    done += made.count
                    if made.count < len(group):
                        return done  # the next one was compacted or expired since
            return done

    def _read(self, given: Sequence[_Piece]) -> list[_Made]:
        away = self._workers.away
        if away is None:
            return self._workers.each(partial(_build_index, self._layout.absolute), given)
        return self._workers.each(partial(_made_away, away), given)

    def _put(self, bounds: Bounds, content: bytes) -> IndexFile:
        path = path_of(self._layout, bounds)
        with storing(f"writing the index {path}"):
            write_file(self._layer, path, content)
        return index_files.open_index(self._layout, bounds)

    def _join(self, files: list[IndexFile]) -> None:
        while (found := keyindex.due([(file.level, file.blocks) for file in files])) is not None:
            old = files[slice(*found)]
            joined = keyindex.merge_files(old)
            files[slice(*found)] = [self._put((joined.first_offset, joined.last_offset), joined.to_bytes())]
            for file in old:
                self._layer.unlink(path_of(self._layout, (file.first_offset, file.last_offset)))

    def _tidy(self) -> None:
        """Remove files that do not count: those covered by a wider one, of another history, or of expired offsets."""
        counting = {(file.first_offset, file.last_offset) for file in self._index.files}
        for bounds in self._stored_bounds():
            if bounds not in counting:
                self._layer.unlink(path_of(self._layout, bounds))

    def _stored_bounds(self) -> list[Bounds]:
        names = [
            path.name.removesuffix(index_files.SUFFIX) for path in folder(self._layout).glob(f"*{index_files.SUFFIX}")
        ]
        return [bounds for name in names if (bounds := segment_bounds(name)) is not None]


@dataclass(frozen=True, slots=True)
class _Made:
    """The index of the first `count` of some segments as one file: the file's offsets and content."""

    count: int
    bounds: Bounds = (0, 0)
    content: bytes = b""


_Piece = tuple[Sequence[Bounds], int]


def _made_away(away: AwayLog, given: _Piece) -> _Made:
    """Return the index of some segments like `_build_index`, in a process that can reach only the store."""
    with away.open() as layout:
        return _build_index(layout, given)


def _build_index(layout: Layout, given: _Piece) -> _Made:
    """Return the index of some segments after an offset, up to the first missing one.

    They are merged in memory, so that only one file has to be written.
    """
    group, last_offset = given
    made: list[IndexFile] = []
    for bounds in group:
        try:
            segment, text = layout.manifest(*bounds)
            made.append(index_files.of_segment(layout, segment, text, last_offset))
        except FileNotFoundError:
            break
        last_offset = bounds[1]
    if not made:
        return _Made(0)
    file = made[0] if len(made) == 1 else keyindex.merge_files(made)
    return _Made(len(made), (file.first_offset, file.last_offset), file.to_bytes())


def _groups(due: Sequence[Bounds], files: Sequence[IndexFile]) -> Iterator[Sequence[Bounds]]:
    """Yield the groups of segments to be indexed in turn: as many as fill one file, or a single one. `files`: the
    existing files."""
    last = [file.level for file in files[-(keyindex.FAN - 1) :]]
    alone = 0
    while last and last[-1] == 0:
        last.pop()
        alone += 1
    first = min(len(due), (keyindex.FAN - alone) % keyindex.FAN) if alone else 0
    for number in range(first):
        yield due[number : number + 1]
    rest = due[first:]
    whole = len(rest) - len(rest) % keyindex.FAN
    for number in range(0, whole, keyindex.FAN):
        yield rest[number : number + keyindex.FAN]
    for number in range(whole, len(rest)):
        yield rest[number : number + 1]


class BackgroundIndexing(BackgroundTask):
    """A thread that indexes what a capture seals."""

    put_off = "index put off"

    def __init__(self, layout: Layout, on_event: OnEvent, every_s: float = LOOK_EVERY_S) -> None:
        super().__init__("cdcflow-index", on_event, every_s, NICENESS)
        self._layout = layout
        self._indexing = Indexing(layout)

    def step(self) -> None:
        with contextlib.suppress(Busy):  # another process is doing it
            if self._layout.log_json.exists() and self._indexing.behind():
                self._indexing.step(segments_max=SEGMENTS_AT_ONCE)
            self._is_well()
