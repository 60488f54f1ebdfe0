"""The change log in a directory: the default sink.

    append ─▶ queue ─▶ journal file ─▶ fsync ─▶ segment
    cut, roll   in order   `sync`       `sync`    in the background

The loop's thread never waits for the disk: `append` encodes, `cut` and `roll` only record a request. `sync` does the
rest, in another thread. The order of steps is what makes the log durable, and each is one promise:

* Frames reach the file in the order in which they were appended, and a cut is written after everything before it.
* `sync` takes the last cut, writes what is queued, then syncs the spools that the cut attaches, then the journal, and
  only then reports the cut as durable. Cuts that arrive during that wait for the next sync: that is group commit.
* Rows of a large chunk are not queued as frames: they go into a separate file (`row_file`), written and synced in
  their turn, which the journal only names and a segment takes unchanged.
* A new journal gets its name only after the previous one is durable, and records that one's length. Until then
  its frames are in a temporary file, and none of its cuts is durable.
* The latest journal's name is noted in a separate file before a cut in it is durable: earlier journals do not
  name it, and a log that lost its end would appear whole.
* A segment gets its name only after every file in it is durable, and the journal is removed only after the segment's
  name is durable. In between both exist, and the segment wins.
* Later changes to segments (upload to a store, compaction, expiry) run concurrently, under a separate lock.

The epoch is checked again before a cut is reported as durable and before anything gets a name (see `lease`).
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pyarrow as pa

from cdcflow.capture.ports.log import Numbered
from cdcflow.config import Seal
from cdcflow.errors import CdcflowError, InvariantViolated, LogGone, SinkUnavailable, SyncFailed
from cdcflow.log.disk.layer import OS_LAYER, FileLayer, storing, syncing, unavailable, write_file
from cdcflow.log.disk.lease import Lease
from cdcflow.log.files import rowfile
from cdcflow.log.files.extents import Extent, retry_read
from cdcflow.log.files.layout import Layout
from cdcflow.log.files.segment_writer import check_storable
from cdcflow.log.format import spool
from cdcflow.log.format.journal import AttachedSpool, JournalHeader
from cdcflow.log.format.segment import Segment
from cdcflow.log.format.transactions import TransactionHeaders
from cdcflow.log.maintenance.retention import ExpiryRule, LogRetention
from cdcflow.log.read import lookup
from cdcflow.model.change import HeldRun, KeySet, Run, SpooledTransaction, Uint64s
from cdcflow.model.position import Checkpoint, Epoch, Offset, Position, SourceIdentity
from cdcflow.model.table import Table, TableId
from cdcflow.sinks.files.journals import JournalFile
from cdcflow.sinks.files.recovery import Closed, Opened, Recovered, create, recover
from cdcflow.sinks.files.replication import Replication
from cdcflow.sinks.files.row_file import HeldFile, RowFile
from cdcflow.sinks.files.sealer import Sealing, SealingAbandoned
from cdcflow.sinks.files.spool_file import SpoolFile, announced_spool
from cdcflow.sinks.files.uploader import Uploading
from cdcflow.sinks.log_end import LogEnd

BUFFERED_BYTES_MAX = 8 << 20
"""The limit on queued bytes. When they exceed it, `append` writes them to the file itself, instead of leaving that to
the syncing thread."""

FILE_BYTES_MIN = 4 << 20
"""A chunk's rows go into a separate file if they have at least this many bytes.

Later commits wait until that file is written. So the rows of small chunks, which are read while the source is written
to, go into the journal.
"""

_SeparateFile = SpoolFile | RowFile | HeldFile

__all__ = ["FileLog", "Recovered"]


@dataclass(frozen=True, slots=True)
class _JournalCut:
    """A cut: its end in its journal, and which separate files must be durable before it counts."""

    checkpoint: Checkpoint
    journal: JournalFile
    end: int
    separate_files: tuple[_SeparateFile, ...] = ()


class FileLog:
    """A change log in a directory, opened by its only writer. Implements `cdcflow.ports.Log`.

    `append`, `cut`, `seal_due` and `roll` belong to one thread; `sync` and `seal_pending` may each run in a different
    one at the same time. After an error the log is dead: every call raises that error, except `close`.
    `file_bytes_min`: see FILE_BYTES_MIN.
    """

    def __init__(
        self,
        layout: Layout,
        opened: Opened,
        lease: Lease,
        layer: FileLayer,
        seal_settings: Seal,
        uploads: Uploading | None = None,
        replication: Replication | None = None,
    ) -> None:
        self._replication = replication
        self._layout = layout
        self._lease = lease
        self._layer = layer
        self._settings = seal_settings
        self._uploads = uploads
        self._history = opened.history
        self._segments = Sealing(layout, opened, lease, layer)
        self._is_clean = False
        self._closed = deque(opened.closed)
        self._recovered_waits = bool(opened.closed)
        self.log_id = opened.file.log_id
        self.epoch: Epoch = lease.epoch
        self.recovered = opened.recovered
        self._dead: CdcflowError | None = None
        self._syncing = threading.Lock()
        self._sealing = threading.Lock()
        self._spools: dict[str, SpoolFile] = {}
        self._files_made = 0
        self._attached: list[_SeparateFile] = []  # separate files that were attached since the last cut
        self._of_journal: list[_SeparateFile] = []
        self.file_bytes_min = FILE_BYTES_MIN
        self._rows_since: float | None = None
        self._log_end = LogEnd(opened.header.base)
        self._writing = threading.Lock()
        self._journal = JournalFile(layout, opened.header, layer, is_shared=lease.replaces)
        self._journals = deque([self._journal])  # journals that are not wholly durable yet, oldest first
        self._cut = _JournalCut(opened.header.base, self._journal, self._journal.head_bytes)
        self._durable = self._cut
        self._is_open = True
        try:
            with lease.explaining(), storing(f"beginning a journal in {layout.root}"):
                self._journal.write()
                self._lease.check()
                self._journal.sync()
                self._note_newest(self._journal)
                if not layout.schemas.exists():
                    # Shows that there was a journal: a reader that finds none then knows that it is lost.
                    self._segments.put_schemas()
            if uploads is not None:
                uploads.start(self._check_writer)
        except BaseException:
            self._journal.close()
            raise

    @classmethod
    def open(
        cls,
        path: Path | Layout,
        identity: SourceIdentity,
        seal_settings: Seal | None = None,
        *,
        layer: FileLayer = OS_LAYER,
        accept_timeline: bool = False,
        accept_renamed: bool = False,
        accept_replaced: bool = False,
        accept_moved: bool = False,
        uploads: Uploading | None = None,
        replication: Replication | None = None,
        replaces: bool = False,
    ) -> FileLog:
        """Open the log at `path` for writing; create it if it does not exist, recover it if it was not closed.

        `accept_timeline`: an operator confirms that the source's new timeline continues the old one without loss.
        `accept_renamed`: the source checks whether a database of another name is the log's. `accept_replaced`: another
        server may have the log's database, because an operator accepts that its history is lost. `accept_moved`: the
        log was moved to this source, whatever it belonged to. `uploads` copies what is sealed to the layout's store.
        `replication`: the journals are on peers, too, which decide what the log has.
        `replaces`: take the log from a process that has it open; what that one writes from now on does not count.

        Raises:
            ConfigurationError: another process writes it, it belongs to another source, or a newer cdcflow wrote it.
            HistoryLost: the source is on another timeline than the log.
            InvariantViolated: data that was durable is missing or damaged.
            SinkUnavailable: no room.
        """
        layout = Layout.of(path)
        path = layout.root
        with storing(f"creating the log {path}"):
            _make_directory(layer, path)
        lease = Lease(layout, replaces=replaces)
        try:
            if replication is not None:
                layer = replication.begin(layout, lease)
            with lease.explaining(), storing(f"opening the log {path}"):
                file = create(
                    Layout(path),
                    identity,
                    layer,
                    lease,
                    accept_timeline=accept_timeline,
                    accept_renamed=accept_renamed,
                    accept_replaced=accept_replaced,
                    accept_moved=accept_moved,
                )
                opened = recover(layout, file, lease, layer)
            return cls(layout, opened, lease, layer, seal_settings or Seal(), uploads, replication)
        except BaseException:
            if replication is not None:
                replication.close()
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
        """Append transactions. They count with the next cut, once it is synced."""
        self._living()
        self._log_end.check(numbered)
        run = numbered.run
        batches = run.batches if isinstance(run, Run) else ()
        filed = self._shape_for_file(run)
        encoder = self._journal.encoder
        # Everything that can be refused is refused before the first frame: after that the log has part of a run.
        spooled = announced_spool(self._spools, run) if isinstance(run, SpooledTransaction) else None
        held = [run.table] if isinstance(run, HeldRun) else []
        for table in spooled.shapes if spooled is not None else held or [b.table for b in batches]:
            self._introduce(table)
        encoder.transactions(
            TransactionHeaders.of(run, numbered.first_offset, numbered.first_transaction, numbered.commit_clock)
        )
        for batch in batches if filed is None else ():
            if batch.rows.num_rows:
                encoder.rows(batch, numbered.first_offset)
        if filed is not None:
            self._file(numbered, filed)
        if isinstance(run, HeldRun):
            self._have_written(run, numbered)
        if spooled is not None and isinstance(run, SpooledTransaction):
            self._attach(run, spooled, numbered.first_offset)
        self._log_end.advance(numbered)
        if encoder.waiting > BUFFERED_BYTES_MAX:
            self._write()

    def cut(self, checkpoint: Checkpoint) -> None:
        """Record a cut: once it is synced, everything appended so far may become visible, with this checkpoint."""
        self._living()
        self._log_end.cut(checkpoint)
        journal, durable = self._journal, self._durable
        journal.encoder.cut(checkpoint, durable.end if durable.journal is journal else journal.head_bytes)
        self._cut = _JournalCut(checkpoint, journal, journal.bytes, (*self._unsynced_files(), *self._attached))
        self._attached = []

    def sync(self) -> Checkpoint:
        """Make the last cut written before this call durable, and return its checkpoint.

        Raises:
            SinkUnavailable: no room; nothing after the last durable cut counts.
            InvariantViolated: a sync failed, or another process has taken the log over; stop.
        """
        with self._syncing, self._deadly():
            self._living()
            checkpoint = self._sync_last_cut()
            if self._uploads is not None:
                self._uploads.on_durable(checkpoint)
            return checkpoint

    def open_spool(self) -> SpoolFile:
        """Return a new spool. It counts only once a `SpooledTransaction` that names it is appended."""
        self._living()
        name = self._next_name("spool")
        head = spool.header(self.log_id, self.epoch, self._files_made)
        with storing(f"creating the spool {name} of the log {self.path}"):
            made_spool = SpoolFile(self._layout.spool(name), head, self._layer, self._spools)
        self._spools[name] = made_spool
        return made_spool

    # ── sealing ─────────────────────────────────────────────────────────────────────────────────────────────

    def seal_due(self, now_s: float) -> bool:
        """Whether the journal should be rolled now: by its bytes, by the age of its first rows, or because a journal of
        an earlier run waits to be sealed.

        `now_s` is a monotonic clock's seconds. False while rows are appended that no cut covers.
        """
        if self._recovered_waits:
            return True  # rows of a killed run: on a quiet source nothing else would have them sealed
        if not self._rolls():
            return False
        if self._rows_since is None:
            self._rows_since = now_s
        aged = now_s - self._rows_since >= self._settings.age_max
        separate = sum(file.bytes for file in self._of_journal)
        return aged or self._journal.bytes + separate >= self._settings.bytes_max

    def roll(self) -> bool:
        """Close the journal and begin the next one; `seal_pending` makes a segment from the closed one.

        Only at a cut, and only if the journal has rows: otherwise nothing happens, and False is returned. No file is
        written here: the next `sync` makes the closed journal durable, then names the new one.
        """
        self._living()
        self._recovered_waits = False
        if not self._rolls():
            return False
        cut, old = self._cut, self._journal
        header = JournalHeader(self.log_id, self.epoch, cut.checkpoint, old.header.first_offset, cut.end)
        self._journal = JournalFile(self._layout, header, self._layer, is_shared=self._lease.replaces)
        self._journals.append(self._journal)
        self._cut = _JournalCut(cut.checkpoint, self._journal, self._journal.head_bytes, self._unsynced_files())
        self._closed.append(Closed(old.header, cut.end, cut.checkpoint, tuple(file.name for file in self._of_journal)))
        self._of_journal = []
        self._rows_since = None
        return True

    def seal_pending(self) -> list[Segment]:
        """Make segments of all closed journals, oldest first. May run in the background.

        Raises:
            SinkUnavailable: no room; the journals stay, and the next call tries again.
            InvariantViolated: a sync failed or a journal is damaged; stop.
        """
        segments: list[Segment] = []
        with self._sealing, self._deadly(), contextlib.suppress(SealingAbandoned):
            self._living()
            if not self._is_clean:
                self._segments.clean_up()
                self._is_clean = True
            while closed := tuple(self._closed):
                with self._syncing:
                    self._sync_last_cut()  # the following journals must have their names before these are removed
                for journal in closed:
                    self._segments.check_time()
                    segments.append(self._segments.seal(journal))
                    self._closed.popleft()
                    if self._uploads is not None:
                        self._uploads.wake()
        return segments

    def end_sealing_within(self, seconds: float) -> None:
        """Leave what takes longer than this to the next start: a journal that is durable need not be sealed now.

        Any thread may call it, also during `seal_pending`.
        """
        self._segments.ends_at = time.monotonic() + seconds

    def expire(
        self, *, before_cut: int | None = None, bytes_max: int | None = None, before_clock: int | None = None
    ) -> list[Segment]:
        """Remove the oldest segments that a rule allows to expire; return them. The latest segment always stays.

        `before_cut`: those that end before this cut. `bytes_max`: while all of them together are larger.
        `before_clock`: those whose last commit clock (microseconds since 1970) is older. Afterwards reading an offset
        in them raises an error that names it. May run in the background.
        """
        with self._sealing, self._deadly():
            self._living()
            remote = None if self._uploads is None else self._uploads.remote
            retention = LogRetention(self._layout, remote, layer=self._layer)
            return retention.expire(ExpiryRule(before_cut, before_clock, bytes_max), self._lease.check)

    # ── reading back ────────────────────────────────────────────────────────────────────────────────────────

    def delivered(self, xids: Uint64s) -> Uint64s:
        """Return those of these transaction ids (compared by their low 32 bits) that are in the log already."""
        self._living()
        with self._sealing:
            extents, newest = self._extents(), self._segments.newest
            return retry_read(lambda: lookup.delivered_xids(self._layout, extents, newest, xids), self.path)

    def transactions_back(self, is_enough: Callable[[Position], bool]) -> pa.Table:
        """Position and id of the source's latest transactions, oldest first, back to one whose position is enough."""
        self._living()
        with self._sealing:
            extents, newest = self._extents(), self._segments.newest
            return retry_read(lambda: lookup.transactions_back(self._layout, extents, newest, is_enough), self.path)

    def newest_shape(self, table: TableId) -> Table | None:
        """The shape of this table's latest rows; None if it never had any."""
        return self._history.newest(table)

    def partial_keys(self, table: TableId, since: Offset) -> KeySet | None:
        """Keys of this table's rows with unchanged columns, starting at offset `since`."""
        self._living()
        shape = self._history.newest(table)
        if shape is None:
            return None
        with self._sealing:
            extents, newest = self._extents(), self._segments.newest
            return retry_read(lambda: lookup.partial_keys(self._layout, extents, newest, shape, since), self.path)

    def close(self) -> None:
        """Drop the rows after the last cut, seal the rest, and release the lock. After an error, nothing is sealed.

        `end_sealing_within` limits how long the sealing takes.
        """
        if not self._is_open:
            return
        try:
            if self._dead is None:
                with self._deadly():
                    self._finish()
            elif isinstance(self._dead, SyncFailed):
                self._drop_undurable()
        finally:
            self._is_open = False
            for left in (*self._spools.values(), *self._attached, *self._cut.separate_files):
                left.abandon()
            for journal in self._journals:
                journal.close()
            if self._uploads is not None:
                self._uploads.close()
            if self._replication is not None:
                self._replication.close()
            self._lease.release()

    # ── inside ──────────────────────────────────────────────────────────────────────────────────────────────

    def _check_writer(self) -> None:
        """Raise an error if another process, here or on another machine, has taken the log over."""
        self._lease.check()
        if self._replication is not None:
            self._replication.check()

    def _living(self) -> None:
        if self._uploads is not None and self._dead is None and self._uploads.error is not None:
            self._dead = self._uploads.error
            raise self._dead
        if self._dead is not None:
            raise type(self._dead)(f"the log {self.path} is closed after an error: {self._dead}")
        if not self._is_open:
            raise InvariantViolated(f"the log {self.path} is closed")

    @contextlib.contextmanager
    def _deadly(self) -> Iterator[None]:
        """Make the log unusable if an error inside the block contradicts durability, in whichever thread it happens."""
        try:
            with self._lease.explaining():
                yield
        except (InvariantViolated, LogGone) as error:
            self._dead = self._dead or error
            raise

    def _rolls(self) -> bool:
        return self._log_end.at_cut and self._cut.checkpoint.next_offset > self._journal.header.first_offset

    def _unsynced_files(self) -> tuple[_SeparateFile, ...]:
        """Return the separate files that the last cut needs and that are not durable yet."""
        return tuple(file for file in self._cut.separate_files if not file.synced) if self._cut.separate_files else ()

    def _extents(self) -> list[Extent]:
        """Return the contents of journals, oldest first, including those after the last cut."""
        self._write()
        with self._syncing, self._deadly():
            self._sync_last_cut()
            if self._journal.bytes > self._cut.end:
                self._sync_journal(self._journal)  # a log with peers can read only what they have
        closed = [Extent(c.header, c.bytes, c.checkpoint) for c in self._closed]
        return [*closed, Extent(self._journal.header, self._journal.bytes, self._cut.checkpoint)]

    def _introduce(self, table: Table) -> None:
        encoder = self._journal.encoder
        if not encoder.knows(table):
            check_storable(table)
            encoder.shape(table, self._history.number(table))

    def _attach(self, run: SpooledTransaction, spooled: SpoolFile, first_offset: int) -> None:
        del self._spools[spooled.name]
        spooled.finish()
        self._journal.encoder.attach(
            AttachedSpool(spooled.name, first_offset, run.rows, spooled.bytes, spooled.crc, run.aborted)
        )
        self._attached.append(spooled)
        self._of_journal.append(spooled)

    def _shape_for_file(self, run: Run | SpooledTransaction | HeldRun) -> Table | None:
        """The shape of a run whose rows go into a separate file; None if they go into the journal."""
        if not isinstance(run, Run) or (table := rowfile.table_of(run)) is None:
            return None
        return table if run.bytes >= self.file_bytes_min else None

    def _file(self, numbered: Numbered, table: Table) -> None:
        """Name the file for a run's rows; the thread that writes the journal also writes this file when its
        turn comes."""
        assert isinstance(numbered.run, Run)  # noqa: S101 - see `_shape_for_file`
        name = self._next_name("parquet")
        write = partial(
            rowfile.write,
            numbered.run,
            table,
            first_offset=numbered.first_offset,
            transaction=numbered.first_transaction,
        )
        self._name(table, RowFile(self._layout.spool(name), write, self._layer))

    def _have_written(self, run: HeldRun, numbered: Numbered) -> None:
        """Pass offsets to the processes that hold a run's rows, and name the files that these processes now write."""
        offset = int(numbered.first_offset)
        for piece in run.pieces:
            path = self._layout.spool(self._next_name("parquet"))
            self._name(run.table, HeldFile(path, piece, offset, numbered.first_transaction, run.commit_ts))
            offset += piece.rows

    def _name(self, table: Table, made: RowFile | HeldFile) -> None:
        self._journal.encoder.file(table, made.write_or_wait)
        self._attached.append(made)
        self._of_journal.append(made)

    def _next_name(self, kind: str) -> str:
        self._files_made += 1
        return f"{self.epoch:010d}-{self._files_made:06d}.{kind}"

    def _write(self) -> None:
        """Write the queued records into the files. Any thread may call it."""
        with self._writing:
            # A thread that died while writing took frames from the queue that are in no file: nothing may follow them.
            self._living()
            for journal in tuple(self._journals):
                try:
                    journal.write()
                except OSError as error:
                    self._dead = unavailable(f"appending to {journal.path}", error)
                    raise self._dead from error
                except CdcflowError as error:
                    self._dead = error
                    raise
                except Exception as error:
                    text = f"appending to {journal.path}: rows could not be written ({type(error).__name__})"
                    self._dead = InvariantViolated(text)
                    raise self._dead from error

    def _sync_last_cut(self) -> Checkpoint:
        """Make the last cut durable; the caller holds `_syncing`."""
        cut = self._cut
        if cut is not self._durable:
            self._write()
            # A spool that a durable cut attaches must exist: first the spools, then the journal.
            for attached in cut.separate_files:
                attached.sync()
            if cut.separate_files:
                with syncing(self._layout.spools):
                    self._layer.fsync_dir(self._layout.spools)
            while (journal := self._journals[0]) is not cut.journal:
                self._sync_journal(journal)
                self._journals.popleft()
                journal.close()
            self._sync_journal(journal)
        self._lease.check()
        self._durable = cut
        return cut.checkpoint

    def _sync_journal(self, journal: JournalFile) -> None:
        is_new = not journal.is_named
        if is_new:
            self._lease.check()
        try:
            journal.sync()
            if is_new:
                self._note_newest(journal)
        except OSError as error:
            self._dead = unavailable(f"beginning a journal in {self.path}", error)
            raise self._dead from error
        except SinkUnavailable as error:
            self._dead = error  # its peers may have part of it
            raise

    def _note_newest(self, journal: JournalFile) -> None:
        """Note the latest journal's name before any cut in it is durable: nothing else would detect that it is missing
        later."""
        text = f"{journal.header.epoch} {journal.header.first_offset}\n"
        write_file(self._layer, self._layout.newest, text.encode(), self._lease.word)

    def _drop_undurable(self) -> None:
        """Drop the end of the journal that may not be durable.

        After a failed sync it can be read and may be on no disk, while a later sync would report success. It is
        removed, so that the next start does not count it: it was not acknowledged to the source, which sends it again.
        """
        durable = self._durable
        try:
            durable.journal.drop_behind(durable.end)
        except OSError as error:
            raise InvariantViolated(
                f"dropping what may not be durable from {durable.journal.path}: {error.strerror or error}",
                remedy=f"fix the disk, and cut the file to its first {durable.end} bytes before a new start",
                runbook="sync-failed",
            ) from error

    def _finish(self) -> None:
        if not self._log_end.at_cut:
            self._write()
            self._journal.cut_off(self._cut.end)
            self._log_end = LogEnd(self._cut.checkpoint)
        self.sync()
        if time.monotonic() < self._segments.ends_at:  # otherwise the next start continues this journal
            self.roll()
            self.seal_pending()


def _make_directory(layer: FileLayer, path: Path) -> None:
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            layer.mkdir(path)
        with syncing(path.parent):
            layer.fsync_dir(path.parent)
