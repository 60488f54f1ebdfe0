"""Retention of sealed segments: compaction and expiry, on disk and in a store. Runs in any process, during a capture.

All of it holds the maintenance lock, and none of it touches a journal. Every step leaves a readable log (see
`log.files.compaction`), so a crash needs no repair: every operation begins with `sweep`, which finishes what was
interrupted.

    expire    local log.json ─▶ stored log.json ─▶ stored segments ─▶ local segments
    compact   stored files, stored manifest ─▶ local directory renamed ─▶ … grace … ─▶ the old ones in both places

Segments that were compacted away stay for `grace_s`: a merge or a slow reader that listed them before can continue.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Protocol

from cdcflow.errors import ConfigurationError
from cdcflow.log.disk.layer import OS_LAYER, DurableFile, FileLayer, remove_tree, storing, syncing, write_file
from cdcflow.log.disk.maintenance_lock import maintenance
from cdcflow.log.files import states
from cdcflow.log.files.compaction import CompactionRule, SealedSize, compact, groups
from cdcflow.log.files.layout import Bounds, Layout, segment_bounds, segment_name, widest_segments
from cdcflow.log.format.segment import Segment
from cdcflow.log.read.reader import check_without_gap, list_segments
from cdcflow.log.workers import HERE, AwayLog, Workers

GRACE_S = 600.0
PATIENCE_S = 60.0
BY_COMMAND = CompactionRule(256 << 20)
REMOVED = ".expired.tmp"
COMPACTED = ".compacted.tmp"
"""The suffix of a segment's directory while its files are being removed."""


class RemoteStore(Protocol):
    """The interface through which a log's segments and states in a store are changed (see `objects.remote`)."""

    def uploaded_offset(self, layout: Layout) -> int:
        """Return the last offset that was uploaded in order."""
        ...

    def put_log(self, layout: Layout) -> None:
        """Update the log.json in the store."""
        ...

    def put_state(self, layout: Layout, offset: int) -> None:
        """Upload a state of the log (`log.files.states`); a state that exists there stays."""
        ...

    def states(self) -> Sequence[int]:
        """Return the offsets of all objects with a state's name, whether the state is whole or not."""
        ...

    def remove_state(self, offset: int) -> None:
        """Remove a state: first its manifest, then its files."""
        ...

    def put(self, segment: Segment, text: bytes, directory: Path) -> None:
        """Upload a segment. On return all of it has been seen in the store."""
        ...

    def put_manifest(self, segment: Segment, text: bytes) -> None:
        """Upload the manifest of a segment whose files were uploaded already. On return all of it has been seen in the
        store."""
        ...

    def segments(self) -> Sequence[Bounds]:
        """Return the bounds of all objects with a segment's name, whether the segment is whole or not."""
        ...

    def is_whole(self, segment: Segment, text: bytes) -> bool:
        """Whether all of a segment is listed there now, with its sizes."""
        ...

    def manifest(self, bounds: Bounds) -> bytes | None:
        """Return a segment's manifest; `None` if it has none, so that the segment does not count."""
        ...

    def remove(self, bounds: Bounds) -> None:
        """Remove a segment: first its manifest, then its files."""
        ...


@dataclass(frozen=True, slots=True)
class ExpiryRule:
    """Which segments expire.

    Segments expire that end before cut `before_cut`, or whose last commit clock (microseconds since 1970) is before
    `before_clock`; and the oldest ones, while all together have more than `bytes_max`. No segment expires that ends
    after `last_offset_max`.
    """

    before_cut: int | None = None
    before_clock: int | None = None
    bytes_max: int | None = None
    last_offset_max: int | None = None


def expiring(segments: Sequence[Segment], rule: ExpiryRule) -> list[Segment]:
    """Return those of all sealed segments, given oldest first, that expire by the rule. The latest one never
    expires."""
    gone: list[Segment] = []
    total = sum(s.size for s in segments)
    for segment in segments[:-1]:
        old = rule.before_cut is not None and segment.last_cut < rule.before_cut
        old |= rule.before_clock is not None and segment.last_checkpoint().commit_clock < rule.before_clock
        if rule.last_offset_max is not None and segment.last_offset > rule.last_offset_max:
            break
        if not (old or (rule.bytes_max is not None and total > rule.bytes_max)):
            break
        total -= segment.size
        gone.append(segment)
    return gone


class LogRetention:
    """Compacts and expires the segments of one log. `wait`: see `maintenance`; `None` waits for a minute."""

    def __init__(
        self,
        layout: Layout,
        remote: RemoteStore | None = None,
        *,
        layer: FileLayer = OS_LAYER,
        grace_s: float = GRACE_S,
        wait: Callable[[float], bool] | None = None,
    ) -> None:
        self._layout = layout
        self._remote = remote
        self._layer = layer
        self._grace_s = grace_s
        self._wait = wait or _patience()
        self._sizes: dict[Bounds, SealedSize] = {}
        if not layout.is_home:
            raise ConfigurationError(
                f"working on the segments of {layout.name}: the log's directory is not on this machine",
                remedy="run it on the machine that writes the log, with log.path set",
                runbook="no-log",
            )

    def expire(self, rule: ExpiryRule, check: Callable[[], None] = lambda: None) -> list[Segment]:
        """Remove the oldest segments that expire by a rule, and return them.

        Reading an offset in them raises an error after that, which names the offset. `check` is called before anything
        is changed.

        Raises:
            SinkUnavailable: another process works on the segments, or the store is unavailable; the next call
                continues.
        """
        with maintenance(self._layout, self._wait):
            gone = expiring(list_segments(self._layout), rule)
            if gone:
                check()
                if self._remote is not None:  # before any reader sees that the log begins after it
                    self._put_state(self._remote, gone[-1].last_offset)
                file = replace(self._layout.log_file(), first_offset=gone[-1].last_offset + 1)
                with storing(f"writing {self._layout.log_json}"):
                    write_file(self._layer, self._layout.log_json, file.to_json().encode())
            self._sweep()
        return gone

    def is_due(self, rule: CompactionRule, last_offset_max: int | None = None) -> bool:
        """Return whether `compact` would find something to do. Needs no lock and no answer of the store, so that it can
        be called often."""
        try:
            return any(self._groups(rule, last_offset_max))
        except FileNotFoundError:  # another process compacted or expired one of them
            return False

    def compact(
        self,
        rule: CompactionRule = BY_COMMAND,
        workers: Workers = HERE,
        *,
        last_offset_max: int | None = None,
        stop: Callable[[], bool] = lambda: False,
    ) -> list[tuple[Segment, int]]:
        """Combine small neighbouring segments by a rule. Return the new ones, each with the number of segments that it
        replaces.

        No segment that ends after `last_offset_max` is combined. `stop` is called before each batch, and ends the work
        by returning True. The lock is released after each batch, so that uploads wait for one batch at most. Workers
        that can reach only the store compact the segments that were uploaded; the rest is compacted in this process.
        """
        made: list[tuple[Segment, int]] = []
        with maintenance(self._layout, self._wait):
            self._sweep()
        while not stop():
            with maintenance(self._layout, self._wait):
                away, here = self._groups(rule, last_offset_max)
                check_without_gap(list(self._sizes), self._layout)
                by = HERE if workers.away is not None and not away else workers
                found = (away if by.away is not None else away + here)[: by.at_once]
                if not found:
                    break
                bounds = [tuple((s.first_offset, s.last_offset) for s in group) for group in found]
                if by.away is not None:
                    written = by.each(partial(_compacted_away, by.away), bounds)
                else:
                    written = by.each(partial(_write_compacted, self._layout.absolute, self._layer), bounds)
                for group, (segment, name) in zip(found, written, strict=True):
                    self._take_over(segment, self._layout.segments / name, is_put=by.away is not None)
                    made.append((segment, len(group)))
        if made and not self._grace_s:
            self.sweep()
        return made

    def sweep(self) -> list[Bounds]:
        """Finish the work that an earlier run left, and remove segments that were replaced long enough ago.

        Return the expired segments that still had files left, in the store or on disk.
        """
        with maintenance(self._layout, self._wait):
            return self._sweep()

    # ── inside: the caller holds the lock ───────────────────────────────────────────────────────────────────

    def _groups(
        self, rule: CompactionRule, last_offset_max: int | None
    ) -> tuple[list[list[SealedSize]], list[list[SealedSize]]]:
        """Return groups of segments that were uploaded, and groups of segments that were not. No group has both."""
        segments = self._sealed_sizes()[:-1]  # the journal names the latest one
        if last_offset_max is not None:
            segments = [s for s in segments if s.last_offset <= last_offset_max]
        last = 0 if self._remote is None else self._remote.uploaded_offset(self._layout)
        away = [s for s in segments if s.last_offset <= last]
        return groups(away, rule), groups(segments[len(away) :], rule)

    def _sealed_sizes(self) -> list[SealedSize]:
        """Return all segments that count, oldest first. Each manifest is read once: a log may have tens of
        thousands."""
        first = self._layout.log_file().first_offset
        listed = [bounds for bounds in self._layout.segment_offsets() if bounds[0] >= first]
        known = self._sizes
        self._sizes = {b: known.get(b) or SealedSize.of(self._layout.manifest(*b)[0]) for b in listed}
        return list(self._sizes.values())

    def _take_over(self, segment: Segment, temporary: Path, *, is_put: bool) -> None:
        """Install a segment whose files are durable: in the directory `temporary`, or (`is_put`) only in the store."""
        bounds = segment.first_offset, segment.last_offset
        target = self._layout.segment(*bounds)
        with storing(f"compacting into {target}"):
            text = segment.to_json().encode()
            if is_put:
                self._layer.mkdir(temporary)
            self._write_manifest(temporary, text)
            if self._remote is not None and is_put:
                self._remote.put_manifest(segment, text)
            elif self._remote is not None and bounds[1] <= self._remote.uploaded_offset(self._layout):
                self._remote.put(segment, text, temporary)
                for file in segment.files:
                    self._layer.unlink(temporary / file.path)
            self._put_in_place(temporary, target)

    def _write_manifest(self, directory: Path, text: bytes) -> None:
        manifest = DurableFile(self._layer, directory / "segment.json")
        manifest.write(text)
        manifest.close()
        with syncing(directory):
            self._layer.fsync_dir(directory)

    def _put_in_place(self, temporary: Path, target: Path) -> None:
        self._layer.rename(temporary, target)
        with syncing(self._layout.segments):
            self._layer.fsync_dir(self._layout.segments)

    def _sweep(self) -> list[Bounds]:
        expired: set[Bounds] = set()
        with storing(f"tidying the segments of {self._layout.root}"):
            for path in self._layout.segments.glob(f".*{COMPACTED}"):
                remove_tree(self._layer, path)
            if self._remote is not None:
                expired |= self._sweep_remote(self._remote)
            expired |= sweep(self._layout, self._layer, self._grace_s, self._is_whole)
        return sorted(expired)

    def _is_whole(self, bounds: Bounds) -> bool:
        """Return whether a compacted segment can be read, so that the ones it replaces may be removed."""
        if is_here(self._layout, bounds):
            return True
        return self._remote is not None and self._remote.is_whole(*self._layout.manifest(*bounds))

    def _sweep_remote(self, remote: RemoteStore) -> set[Bounds]:
        expired: set[Bounds] = set()
        last = remote.uploaded_offset(self._layout)
        if not last:
            return expired
        first = self._layout.log_file().first_offset
        self._put_state(remote, first - 1)  # an older cdcflow may not have uploaded it
        remote.put_log(self._layout)
        for offset in [offset for offset in remote.states() if offset < first][:-1]:
            remote.remove_state(offset)
        there = sorted(remote.segments(), key=lambda b: b[0] - b[1])  # the widest first
        here = self._layout.segment_offsets()
        for bounds in there:
            if bounds[1] < first:
                self._remove(remote, bounds)
                expired.add(bounds)
            elif bounds in here or bounds[1] > last:
                continue
            elif (wider := covering(bounds, here)) is not None:
                if self._age_s(wider) >= self._grace_s and self._is_whole(wider):
                    self._remove(remote, bounds)
            elif (text := remote.manifest(bounds)) is None:
                remote.remove(bounds)  # an unfinished compaction
            else:
                self._adopt(bounds, text)
                here = self._layout.segment_offsets()
        return expired

    def _put_state(self, remote: RemoteStore, offset: int) -> None:
        if offset in states.state_offsets(self._layout):
            remote.put_state(self._layout, offset)

    def _remove(self, remote: RemoteStore, bounds: Bounds) -> None:
        remote.remove(bounds)
        if self._layout.store is not None:
            self._layout.store.forget(bounds)

    def _adopt(self, bounds: Bounds, text: bytes) -> None:
        """Install a compacted segment on this machine; it has reached the store already, and counts there."""
        target = self._layout.segment(*bounds)
        temporary = self._layout.segments / f".{target.name}{COMPACTED}"
        self._layer.mkdir(temporary)
        self._write_manifest(temporary, text)
        self._put_in_place(temporary, target)

    def _age_s(self, bounds: Bounds) -> float:
        return time.time() - (self._layout.segment(*bounds) / "segment.json").stat().st_mtime


def _write_compacted(layout: Layout, layer: FileLayer, group: Sequence[Bounds]) -> tuple[Segment, str]:
    """Write the files of one segment that replaces these, into a new separate directory.

    Return the segment, and the directory's name. This may run in another process; if it dies in the middle, nothing
    that it leaves hinders the next one.
    """
    name = segment_name((group[0][0], group[-1][1]))
    temporary = layout.segments / f".{name}.{secrets.token_hex(4)}{COMPACTED}"
    with storing(f"compacting into {layout.segments / name}"):
        layer.mkdir(temporary)
        try:
            segment = compact(
                [layout.manifest(*bounds) for bounds in group],
                layout.file,
                lambda file: DurableFile(layer, temporary / file),
            )
        except BaseException:
            with contextlib.suppress(OSError):  # on a full disk the capture needs the room now
                remove_tree(layer, temporary)
            raise
    return segment, temporary.name


def _compacted_away(away: AwayLog, group: Sequence[Bounds]) -> tuple[Segment, str]:
    """Write a segment like `_write_compacted`, in a process that can reach only the store: the files go there, below
    the segment's name.

    The segment does not count yet: it has no manifest there.
    """
    with away.open() as layout:
        OS_LAYER.mkdir(layout.segments)
        segment, name = _write_compacted(layout, OS_LAYER, group)
        folder = segment_name((segment.first_offset, segment.last_offset))
        for file in segment.files:
            away.put(f"segments/{folder}/{file.path}", layout.segments / name / file.path, file.sha256)
    return segment, name


def _patience() -> Callable[[float], bool]:
    until = time.monotonic() + PATIENCE_S

    def wait(seconds: float) -> bool:
        time.sleep(seconds)
        return time.monotonic() > until

    return wait


def is_here(layout: Layout, bounds: Bounds) -> bool:
    """Return whether the log's directory has all files of a segment."""
    segment, _ = layout.manifest(*bounds)
    return all(layout.is_here(segment, file) for file in segment.files)


def sweep(
    layout: Layout, layer: FileLayer, grace_s: float = GRACE_S, is_whole: Callable[[Bounds], bool] | None = None
) -> set[Bounds]:
    """Remove expired segments from the directory, and segments that were compacted long enough ago; return the expired
    ones.

    The caller holds the maintenance lock. `is_whole` returns whether a compacted segment can be read; without it only
    one with local files counts as whole.
    """
    found, unfinished = layout.listed_segments()
    counting = widest_segments(found)
    first_offset = layout.log_file().first_offset
    expired = {bounds for bounds in found if bounds[1] < first_offset}
    for path in unfinished:
        bounds = segment_bounds(path.name.removeprefix(".").removesuffix(REMOVED))
        if bounds is not None:  # a run was killed while it removed this one
            remove_tree(layer, path)
            expired |= {bounds} if bounds[1] < first_offset else set()
    now = time.time()
    replaced: list[Bounds] = []
    may_go = is_whole or partial(is_here, layout)

    def put_at(bounds: Bounds) -> float:
        return (layout.segment(*bounds) / "segment.json").stat().st_mtime

    # Latest first: a reader that walks back from one segment to the previous finds that one, or its replacement.
    for bounds in sorted(set(found) - set(counting), reverse=True):
        wider = covering(bounds, counting)
        is_old = wider is not None and now - put_at(wider) >= grace_s
        if bounds[1] < first_offset or (is_old and wider is not None and may_go(wider)):
            replaced.append(bounds)
    for bounds in (*replaced, *(b for b in counting if b[1] < first_offset)):
        # Hide it in one step: a reader must not find a part of a segment.
        temporary = layout.segments / f".{segment_name(bounds)}{REMOVED}"
        layer.rename(layout.segment(*bounds), temporary)
        remove_tree(layer, temporary)
    return expired


def covering(bounds: Bounds, among: Sequence[Bounds]) -> Bounds | None:
    """Return the wider segment among `among` that has all offsets of this one; `None` if no wider one has them."""
    return next((b for b in among if b[0] <= bounds[0] and bounds[1] <= b[1] and b != bounds), None)
