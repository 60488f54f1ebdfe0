"""The change log in a directory: the default sink.

    append ─▶ buffers ─▶ journal file ─▶ fsync ─▶ roll ─▶ segment
              in order    at a cut       in sync   at a cut  in the background

The order of steps is what makes it durable, and each arrow is one promise:

* Frames reach the file in the order in which they were appended, and a cut is written after everything before it.
* `sync` takes the last cut that was written, then syncs the spools that it attaches, then the journal, and only then
  says that the cut is durable. Cuts that arrive meanwhile wait for the next sync: that is group commit.
* A new journal gets its name only after the one before it is durable, and says how long that one is.
* A segment gets its name only after every file in it is durable, and the journal goes only after the segment's name
  is durable. In between both are there, and the segment wins.

The epoch is looked at again before a cut is called durable and before anything gets a name (see `lease`).
"""

from __future__ import annotations

import contextlib
import threading
import zlib
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from cdcflow.changelog import lookup, spool
from cdcflow.changelog.extents import Extent, opened_journal
from cdcflow.changelog.framing import Damaged
from cdcflow.changelog.journal import Attach, Encoder, JournalHeader, Record, Rows, headers, records
from cdcflow.changelog.layout import Layout
from cdcflow.changelog.reader import list_segments
from cdcflow.changelog.sealing import check_storable, seal
from cdcflow.changelog.segment import Segment, manifest_hash
from cdcflow.config import Seal
from cdcflow.errors import CdcflowError, InvariantViolated
from cdcflow.model.change import ChangeBatch, KeySet, Run, SpooledTransaction, Uint64s
from cdcflow.model.position import Checkpoint, Epoch, Offset, SourceIdentity
from cdcflow.model.table import Table, TableId
from cdcflow.ports import Numbered
from cdcflow.sinks.layer import (
    OS_LAYER,
    FileLayer,
    Part,
    remove_tree,
    storing,
    syncing,
    unavailable,
    write_all,
    write_file,
)
from cdcflow.sinks.lease import Lease
from cdcflow.sinks.numbering import Numbering
from cdcflow.sinks.opening import Closed, Opened, Recovered, begin_journal, expired, made, taken_over

BUFFERED_BYTES_MAX = 1 << 20

__all__ = ["FileLog", "Recovered"]


@dataclass(frozen=True, slots=True)
class _Cut:
    """A cut that is in the journal file: where it ends, and which spools must be synced before it counts."""

    checkpoint: Checkpoint
    end: int
    spools: tuple[SpoolFile, ...] = ()


class FileLog:
    """A change log in a directory, opened by its only writer. Implements `cdcflow.ports.Log`.

    `append`, `cut`, `seal_due` and `roll` belong to one thread; `sync` and `seal_pending` may each run in another
    one at the same time. After an error the log is dead: every call says so, and only `close` is left.
    """

    def __init__(self, layout: Layout, opened: Opened, lease: Lease, layer: FileLayer, seal_settings: Seal) -> None:
        self._layout = layout
        self._lease = lease
        self._layer = layer
        self._settings = seal_settings
        self._history = opened.history
        self._schemas_saved = opened.schemas_saved
        self._last_manifest = opened.last_manifest
        self._closed = deque(opened.closed)
        self.log_id = opened.file.log_id
        self.epoch: Epoch = lease.epoch
        self.recovered = opened.recovered
        self._dead: CdcflowError | None = None
        self._syncing = threading.Lock()
        self._sealing = threading.Lock()
        self._spools: dict[str, SpoolFile] = {}
        self._spools_opened = 0
        self._attached: list[SpoolFile] = []
        self._attached_bytes = 0
        self._rows_since: float | None = None
        self._numbering = Numbering(opened.header.base)
        self._fd: int
        self._encoder: Encoder
        self._end: int
        self._header: JournalHeader
        self._cut: _Cut
        self._durable: _Cut
        self._attached_names: list[str]
        with storing(f"beginning a journal in {layout.root}"):
            self._begin(opened.header)

    @classmethod
    def open(
        cls,
        path: Path,
        identity: SourceIdentity,
        seal_settings: Seal | None = None,
        *,
        layer: FileLayer = OS_LAYER,
        accept_timeline: bool = False,
    ) -> FileLog:
        """Open the log at `path` for writing; make it when there is none, recover it when it was not closed.

        `accept_timeline`: an operator says that the source's new timeline continues the old one without loss.

        Raises:
            ConfigurationError: another process writes it, it belongs to another source, or a newer cdcflow wrote it.
            HistoryLost: the source is on another timeline than the log.
            InvariantViolated: data that was durable is missing or damaged.
            SinkUnavailable: no room.
        """
        layout = Layout(path)
        with storing(f"making the log {path}"):
            _make_directory(layer, path)
        lease = Lease(layout)
        try:
            with storing(f"opening the log {path}"):
                file = made(layout, identity, layer, accept_timeline=accept_timeline)
                opened = taken_over(layout, file, lease, layer)
            return cls(layout, opened, lease, layer, seal_settings or Seal())
        except BaseException:
            lease.release()
            raise

    # ── writing ─────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def path(self) -> Path:
        return self._layout.root

    @property
    def checkpoint(self) -> Checkpoint:
        """The last durable cut's checkpoint."""
        return self._durable.checkpoint

    def append(self, numbered: Numbered) -> None:
        """Put transactions at the end. They are in the file at the next cut at the latest, and count with it."""
        self._living()
        self._numbering.check(numbered)
        run = numbered.run
        batches = run.batches if isinstance(run, Run) else ()
        encoder = self._encoder
        # Everything that can be refused is refused before the first frame: after that the log has half a run.
        spooled = None if isinstance(run, Run) else self._spool_of(run)
        for table in spooled.shapes if spooled is not None else [b.table for b in batches]:
            self._introduce(table)
        encoder.transactions(headers(run, numbered.first_offset, numbered.first_transaction, numbered.commit_clock))
        for batch in batches:
            if batch.rows.num_rows:
                encoder.rows(batch, numbered.first_offset)
        if spooled is not None and not isinstance(run, Run):
            self._attach(run, spooled, numbered.first_offset)
        self._numbering.advance(numbered)
        if encoder.bytes > BUFFERED_BYTES_MAX:
            self._flush()

    def cut(self, checkpoint: Checkpoint) -> None:
        """Everything appended so far may become visible with this checkpoint, once it is synced."""
        self._living()
        self._numbering.cut(checkpoint)
        self._encoder.cut(checkpoint, self._durable.end)
        self._flush()
        unsynced = tuple(s for s in self._cut.spools if not s.synced) if self._cut.spools else ()
        self._cut = _Cut(checkpoint, self._end, (*unsynced, *self._attached))
        self._attached = []

    def sync(self) -> Checkpoint:
        """Make the last cut written before this call durable, and return its checkpoint.

        Raises:
            InvariantViolated: a sync failed, or another process has taken the log over; stop.
        """
        with self._syncing, self._deadly():
            self._living()
            return self._synced(self._cut)

    def open_spool(self) -> SpoolFile:
        """A new spool. Counted only when a `SpooledTransaction` that names it is appended."""
        self._living()
        self._spools_opened += 1
        name = f"{self.epoch:010d}-{self._spools_opened:06d}.spool"
        head = spool.header(self.log_id, self.epoch, self._spools_opened)
        with storing(f"making the spool {name} of the log {self.path}"):
            made_spool = SpoolFile(self._layout.spool(name), head, self._layer, self._spools)
        self._spools[name] = made_spool
        return made_spool

    # ── sealing ─────────────────────────────────────────────────────────────────────────────────────────────

    def seal_due(self, now_s: float) -> bool:
        """Whether the journal should be rolled now, by its bytes or by the age of its first rows.

        `now_s` is a monotonic clock's seconds. False while something is appended that no cut has covered.
        """
        if not self._rolls():
            return False
        if self._rows_since is None:
            self._rows_since = now_s
        aged = now_s - self._rows_since >= self._settings.age_max
        return aged or self._end + self._attached_bytes >= self._settings.bytes_max

    def roll(self) -> bool:
        """Close the journal and begin the next one; `seal_pending` makes the closed one a segment.

        Only at a cut, and only when the journal has rows: else nothing happens, and the answer is False.

        Raises:
            SinkUnavailable: no room for another journal; the log goes on with this one.
        """
        self._living()
        if not self._rolls():
            return False
        with self._syncing, self._deadly():
            checkpoint = self._synced(self._cut)
            header = JournalHeader(self.log_id, self.epoch, checkpoint, self._header.first_offset, self._end)
            closed = Closed(self._header, self._end, checkpoint, tuple(self._attached_names))
            fd = self._fd
            with storing(f"beginning a journal in {self.path}"):
                self._begin(header)
            self._closed.append(closed)
            self._layer.close(fd)
        return True

    def seal_pending(self) -> list[Segment]:
        """Make segments of all closed journals, oldest first. May run in the background.

        Raises:
            SinkUnavailable: no room; the journals stay, and the next call tries again.
            InvariantViolated: a sync failed or a journal is damaged; stop.
        """
        segments: list[Segment] = []
        with self._sealing, self._deadly():
            self._living()
            while self._closed:
                segments.append(self._sealed(self._closed[0]))
                self._closed.popleft()
        return segments

    def expire(
        self, *, before_cut: int | None = None, bytes_max: int | None = None, before_clock: int | None = None
    ) -> list[Segment]:
        """Remove the oldest segments that a rule lets go; what was removed. The newest segment always stays.

        `before_cut`: those that end before this cut. `bytes_max`: while all of them together are larger.
        `before_clock`: those whose last commit clock (microseconds since 1970) is older. From then on an offset in
        them is refused by name. May run in the background.
        """
        gone: list[Segment] = []
        with self._sealing:
            self._living()
            segments = list_segments(self.path)
            total = sum(f.bytes for s in segments for f in s.files)
            for segment in segments[:-1]:
                old = before_cut is not None and segment.last_cut < before_cut
                old |= before_clock is not None and segment.last_checkpoint().commit_clock < before_clock
                if not (old or (bytes_max is not None and total > bytes_max)):
                    break
                total -= sum(f.bytes for f in segment.files)
                gone.append(segment)
            if gone:
                self._lease.check()
                with storing(f"removing expired segments of {self.path}"), self._deadly():
                    expired(self._layout, gone[-1].last_offset + 1, self._layer)
        return gone

    # ── looking back ────────────────────────────────────────────────────────────────────────────────────────

    def delivered(self, xids: Uint64s) -> Uint64s:
        """Those of these transaction ids (compared by their low 32 bits) that are in the log already."""
        self._living()
        with self._sealing:
            return lookup.delivered(self._layout, self._extents(), xids)

    def partial_keys(self, table: TableId, since: Offset) -> KeySet | None:
        """Keys of this table's rows from offset `since` on that came with unchanged columns."""
        self._living()
        shape = self._history.newest(table)
        if shape is None:
            return None
        with self._sealing:
            return lookup.partial_keys(self._layout, self._extents(), shape, since)

    def close(self) -> None:
        """Drop what no cut covers, seal the rest, give up the lock. Also after an error; then nothing is sealed."""
        if self._fd < 0:
            return
        try:
            if self._dead is None:
                self._finish()
        finally:
            for left in (*self._spools.values(), *self._attached, *self._cut.spools):
                left.abandon()
            fd, self._fd = self._fd, -1
            self._layer.close(fd)
            self._lease.release()

    # ── inside ──────────────────────────────────────────────────────────────────────────────────────────────

    def _living(self) -> None:
        if self._dead is not None:
            raise type(self._dead)(f"the log {self.path} is closed after an error: {self._dead}")
        if self._fd < 0:
            raise InvariantViolated(f"the log {self.path} is closed")

    @contextlib.contextmanager
    def _deadly(self) -> Iterator[None]:
        """What contradicts durability kills the log, whichever thread it happens in."""
        try:
            yield
        except InvariantViolated as error:
            self._dead = self._dead or error
            raise

    def _begin(self, header: JournalHeader) -> None:
        self._lease.check()
        self._fd, self._encoder, self._end = begin_journal(self._layout, header, self._layer)
        self._header = header
        self._cut = self._durable = _Cut(header.base, self._end)
        self._attached_names = []
        self._attached_bytes = 0
        self._rows_since = None

    def _rolls(self) -> bool:
        return self._numbering.at_cut and self._cut.checkpoint.next_offset > self._header.first_offset

    def _extents(self) -> list[Extent]:
        """What is in journals, oldest first, also behind the last cut."""
        self._flush()
        closed = [Extent(c.header, c.bytes, c.checkpoint) for c in self._closed]
        return [*closed, Extent(self._header, self._end, self._cut.checkpoint)]

    def _introduce(self, table: Table) -> None:
        if not self._encoder.knows(table):
            check_storable(table)
            self._encoder.shape(table, self._history.number(table))

    def _spool_of(self, run: SpooledTransaction) -> SpoolFile:
        found = self._spools.get(run.spool)
        if found is None:
            raise InvariantViolated(f"attaching spool {run.spool} to the log {self.path}: no such spool is open")
        kept = found.rows_without(run.aborted)
        if kept != run.rows:
            raise InvariantViolated(f"attaching spool {run.spool}: it has {kept} rows, {run.rows} were announced")
        return found

    def _attach(self, run: SpooledTransaction, spooled: SpoolFile, first_offset: int) -> None:
        del self._spools[spooled.name]
        spooled.finish()
        self._encoder.attach(Attach(spooled.name, first_offset, run.rows, spooled.bytes, spooled.crc, run.aborted))
        self._attached.append(spooled)
        self._attached_names.append(spooled.name)
        self._attached_bytes += spooled.bytes

    def _flush(self) -> None:
        parts = self._encoder.take()
        if not parts:
            return
        try:
            self._end += write_all(self._layer, self._fd, parts)
        except OSError as error:
            self._dead = unavailable(f"appending to {self._layout.journal(self._header.first_offset)}", error)
            # Recovery would drop the unfinished tail as well; without it the disk is a little less full.
            with contextlib.suppress(OSError):
                self._layer.truncate(self._fd, self._cut.end)
            raise self._dead from error

    def _synced(self, cut: _Cut) -> Checkpoint:
        if cut is not self._durable:
            # A spool that a durable cut attaches must be there: first the spools, then the journal.
            for attached in cut.spools:
                attached.sync()
            if cut.spools:
                with syncing(self._layout.spools):
                    self._layer.fsync_dir(self._layout.spools)
            with syncing(self._layout.journal(self._header.first_offset)):
                self._layer.fsync(self._fd)
        self._lease.check()
        self._durable = cut
        return cut.checkpoint

    def _sealed(self, closed: Closed) -> Segment:
        first, last = closed.header.first_offset, closed.checkpoint.next_offset - 1
        target = self._layout.segment(first, last)
        with storing(f"sealing {target}"):
            # It is there already when only the cleaning up failed the last time.
            if not target.exists():
                self._put_in_place(closed, target)
            segment, text = self._layout.manifest(first, last)
            self._last_manifest = manifest_hash(text)
            for path in (self._layout.journal(first), *map(self._layout.spool, closed.spools)):
                if path.exists():
                    self._layer.unlink(path)
        return segment

    def _put_in_place(self, closed: Closed, target: Path) -> None:
        beside = self._layout.segments / f".{target.name}.tmp"
        try:
            self._write_segment(closed, beside)
        except OSError:
            with contextlib.suppress(OSError):
                remove_tree(self._layer, beside)
            raise
        self._save_schemas()
        self._lease.check()
        self._layer.rename(beside, target)
        with syncing(self._layout.segments):
            self._layer.fsync_dir(self._layout.segments)

    def _write_segment(self, closed: Closed, directory: Path) -> None:
        """Write a segment's files and manifest into a directory; all of it is durable on return."""
        if directory.exists():
            remove_tree(self._layer, directory)
        self._layer.mkdir(directory)
        segment = seal(
            self._closed_records(closed),
            self._spooled,
            lambda name: _Target(self._layer, directory / name),
            log_id=self.log_id,
            base=closed.header.base,
            epoch=closed.header.epoch,
            previous=self._last_manifest,
        )
        manifest = _Target(self._layer, directory / "segment.json")
        manifest.write(segment.to_json().encode())
        manifest.close()
        with syncing(directory):
            self._layer.fsync_dir(directory)

    def _closed_records(self, closed: Closed) -> Iterator[Record]:
        with opened_journal(self._layout, closed.header.first_offset) as (file, header, path):
            try:
                yield from records(file, header, str(path), end=closed.bytes)
            except Damaged as damage:
                raise InvariantViolated(f"sealing {path}: {damage}, and it was durable") from None

    def _spooled(self, attach: Attach) -> Iterator[Rows]:
        with self._layout.spool(attach.spool).open("rb") as file:
            yield from spool.rows(file, attach)

    def _save_schemas(self) -> None:
        if len(self._history) > self._schemas_saved:
            saved = len(self._history)
            write_file(self._layer, self._layout.schemas, self._history.to_json().encode())
            self._schemas_saved = saved

    def _finish(self) -> None:
        if not self._numbering.at_cut:
            self._encoder.take()
            self._layer.truncate(self._fd, self._cut.end)
            self._end = self._cut.end
            self._numbering = Numbering(self._cut.checkpoint)
        self.sync()
        self.roll()
        self.seal_pending()


class SpoolFile:
    """A spool in the log's directory. Implements `cdcflow.ports.Spool`; used by one thread at a time."""

    def __init__(self, path: Path, head: tuple[bytes, int], layer: FileLayer, registry: dict[str, SpoolFile]) -> None:
        self.name = path.name
        self.synced = False
        self.bytes = 0
        self.crc = 0
        self._path = path
        self._layer = layer
        self._registry = registry
        self._rows = 0
        self._rows_of: Counter[int] = Counter()
        self._shapes: dict[Table, None] = {}
        content, seed = head
        self._encoder = Encoder(seed)
        self._fd = layer.create(path)
        self._put([content])

    @property
    def shapes(self) -> Sequence[Table]:
        return list(self._shapes)

    def write(self, batches: Sequence[ChangeBatch], subxids: Uint64s | None) -> None:
        """Append one piece. `subxids` (as long as the piece has rows, in index order) is each row's
        sub-transaction, None when they cannot be rolled back any more."""
        rows = sum(b.rows.num_rows for b in batches)
        Numbering.check_index(batches, rows)
        if subxids is not None:
            if len(subxids) != rows:
                raise InvariantViolated(f"spooling {rows} rows with {len(subxids)} sub-transactions")
            ids, counts = np.unique(subxids, return_counts=True)
            self._rows_of.update(dict(zip(ids.tolist(), counts.tolist(), strict=True)))
        self._rows += rows
        self._encoder.piece(rows, subxids)
        for batch in batches:
            if batch.rows.num_rows:
                self._shapes[batch.table] = None
                self._encoder.shape(batch.table, 0)
                self._encoder.rows(batch, 0)
        with storing(f"writing the spool {self._path}"):
            self._put(self._encoder.take())

    def finish(self) -> None:
        """Nothing more comes; everything written is in the file (durable only with the log's next `sync`)."""

    def discard(self) -> None:
        """The transaction was rolled back: forget it."""
        if self._fd >= 0:
            self.abandon()
            self._layer.unlink(self._path)

    def abandon(self) -> None:
        """Close the file and leave it to recovery."""
        self._registry.pop(self.name, None)
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            self._layer.close(fd)

    def rows_without(self, aborted: frozenset[int]) -> int:
        """How many rows remain when these sub-transactions are rolled back."""
        return self._rows - sum(self._rows_of[xid] for xid in aborted)

    def sync(self) -> None:
        """Make it durable, and close it: it was attached, so nothing more is written."""
        if not self.synced:
            with syncing(self._path):
                self._layer.fsync(self._fd)
            self.synced = True
            self.abandon()

    def _put(self, parts: Sequence[Part]) -> None:
        for part in parts:
            self.crc = zlib.crc32(part, self.crc)
        self.bytes += write_all(self._layer, self._fd, parts)


class _Target:
    """One file of a segment: durable when it is closed."""

    def __init__(self, layer: FileLayer, path: Path) -> None:
        self._layer = layer
        self._path = path
        self._fd = layer.create(path)

    def write(self, content: bytes) -> int:
        return write_all(self._layer, self._fd, [content])

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        try:
            with syncing(self._path):
                self._layer.fsync(fd)
        finally:
            self._layer.close(fd)


def _make_directory(layer: FileLayer, path: Path) -> None:
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        layer.mkdir(path)
        with syncing(path.parent):
            layer.fsync_dir(path.parent)
