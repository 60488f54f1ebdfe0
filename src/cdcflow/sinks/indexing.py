"""Keeping a log's index of keys: a file for each new segment, and neighbours joined, beside whoever writes the log.

    write <first>-<last>.keys (synced) ──▶ remove those that it covers

A crash leaves files that a wider one covers, which the next step removes; nobody reads them meanwhile. A lock of its
own keeps two processes from the same work; without it nothing is written.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Self

from cdcflow.changelog import indexing, keyindex
from cdcflow.changelog.indexing import KeyIndex, folder, path_of
from cdcflow.changelog.keyindex import IndexFile
from cdcflow.changelog.layout import Bounds, Layout, segment_bounds
from cdcflow.errors import CdcflowError
from cdcflow.sinks.layer import OS_LAYER, FileLayer, storing, write_file
from cdcflow.sinks.maintenance import Busy, held

OnEvent = Callable[[str, Mapping[str, object]], None]
LOOK_EVERY_S = 2.0
SEGMENTS_AT_ONCE = 16
"""Beside a capture: so it ends soon after that has."""


class Indexing:
    """Brings the index of one log up to date."""

    def __init__(self, layout: Layout, layer: FileLayer = OS_LAYER) -> None:
        self._layout = layout
        self._layer = layer
        self._index = KeyIndex(layout)

    def behind(self) -> list[Bounds]:
        """The segments that are not indexed yet, oldest first."""
        segments = self._layout.segment_offsets()
        self._index.refresh(segments)
        return [bounds for bounds in segments if bounds[1] > self._index.last_offset]

    @property
    def last_offset(self) -> int:
        """How far the log is indexed; 0: nothing is."""
        return self._index.last_offset

    def size(self) -> tuple[int, int]:
        """The number of its files, and their bytes."""
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
        """Index what is not, the oldest first (at most so many segments); how many that was. `anew`: all of them.

        Raises:
            Busy: another process is at it.
            SinkUnavailable: no room, or a store is away; the next step goes on.
        """
        room = folder(self._layout)
        with storing(f"writing the index {room}"):
            if not room.exists():
                self._layer.mkdir(room)
        with held(room / "lock", f"indexing {self._layout.name}"):
            if anew:
                for bounds in self._stored():
                    self._layer.unlink(path_of(self._layout, bounds))
            due = self.behind()[:segments_max]
            self._tidy()
            done = 0
            for bounds in due:
                try:
                    segment, text = self._layout.manifest(*bounds)
                    made = indexing.of_segment(self._layout, segment, text, self._index.last_offset)
                except FileNotFoundError:
                    break  # it was compacted or expired just now
                self._put(made)
                self._join()
                on_segment(bounds)
                done += 1
            return done

    def _put(self, made: IndexFile) -> None:
        path = path_of(self._layout, (made.first_offset, made.last_offset))
        with storing(f"writing the index {path}"):
            write_file(self._layer, path, made.to_bytes())

    def _join(self) -> None:
        while True:
            self._index.refresh(self._layout.segment_offsets())
            files = self._index.files
            found = keyindex.due([(file.level, file.blocks) for file in files])
            if found is None:
                return
            self._put(keyindex.merged(files[slice(*found)]))
            for file in files[slice(*found)]:
                self._layer.unlink(path_of(self._layout, (file.first_offset, file.last_offset)))

    def _tidy(self) -> None:
        """Remove what does not count: covered by a wider one, of another past, or expired."""
        counting = {(file.first_offset, file.last_offset) for file in self._index.files}
        for bounds in self._stored():
            if bounds not in counting:
                self._layer.unlink(path_of(self._layout, bounds))

    def _stored(self) -> list[Bounds]:
        names = [path.name.removesuffix(indexing.SUFFIX) for path in folder(self._layout).glob(f"*{indexing.SUFFIX}")]
        return [bounds for name in names if (bounds := segment_bounds(name)) is not None]


class IndexingBeside:
    """A thread that indexes what a capture seals. What goes wrong here is told once, and ends nothing."""

    def __init__(self, layout: Layout, on_event: OnEvent, every_s: float = LOOK_EVERY_S) -> None:
        self._layout = layout
        self._indexing = Indexing(layout)
        self._tell = on_event
        self._every_s = every_s
        self._said = ""
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="cdcflow-index", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        self._closing.set()
        self._thread.join(1.0)

    def _run(self) -> None:
        while not self._closing.wait(self._every_s):
            try:
                if self._layout.log_json.exists() and self._indexing.behind():
                    self._indexing.step(segments_max=SEGMENTS_AT_ONCE)
                self._said = ""
            except Busy:
                continue
            except CdcflowError as error:
                self._say(str(error).splitlines()[0])
            except Exception as error:  # noqa: BLE001  it never ends a capture; its text may hold values
                self._say(type(error).__name__)

    def _say(self, reason: str) -> None:
        if reason != self._said:
            self._said = reason
            self._tell("index put off", {"reason": reason})


__all__ = ["Indexing", "IndexingBeside"]
