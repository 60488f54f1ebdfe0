"""A change log in a topic, with the file sink's contract.

    append, cut ─▶ queue ─▶ one Kafka transaction a sync ─▶ log's topic:        │ head │ frames … cut │ frames … cut │
       loop                  rows and checkpoint together    checkpoint's topic:        │ cut          │ cut          │

The topic has one partition, and the order of the log is its order. `read_committed` readers see whole cuts or nothing.
Nothing is sent before a sync of the cut that covers it, so nothing is ever taken back.

Each process that opens the log takes the transactional id over: the brokers then refuse the previous writer, and what
that one had not committed is gone. This also decides a commit with unknown outcome: the brokers end the open
transaction before they answer, and the state is read only then.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import tempfile
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from cdcflow.capture.ports.log import Numbered
from cdcflow.errors import (
    CdcflowError,
    ConfigurationError,
    HistoryLost,
    InvariantViolated,
    SinkUnavailable,
    WriterReplaced,
)
from cdcflow.log.disk.layer import OS_LAYER, storing
from cdcflow.log.files.segment_writer import check_storable
from cdcflow.log.format import spool as spools
from cdcflow.log.format.framing import FrameKind, Part
from cdcflow.log.format.journal import AttachedSpool, Encoder, JournalHeader
from cdcflow.log.format.records import HEAD, head_of, pieces
from cdcflow.log.format.rows import RowsEncoder, ShapeRows
from cdcflow.log.format.transactions import TransactionHeaders, gathered_back, headers_back
from cdcflow.log.read.lookup import gather_keys, keys_expired, keys_of_partial
from cdcflow.log.read.reader import LogLocation
from cdcflow.model.change import ChangeBatch, KeySet, Kind, Run, SpooledTransaction, Uint64s
from cdcflow.model.position import Checkpoint, Epoch, Offset, Position, SourceIdentity
from cdcflow.model.table import Table, TableId
from cdcflow.sinks.files.spool_file import SpoolFile, announced_spool
from cdcflow.sinks.kafka import loss
from cdcflow.sinks.kafka import state as states
from cdcflow.sinks.kafka.doctor import wrong
from cdcflow.sinks.kafka.failures import GONE, Fenced
from cdcflow.sinks.kafka.frames import frames, read_state, state_of
from cdcflow.sinks.kafka.producer import Sender
from cdcflow.sinks.kafka.state import StateRecord, TopicRange, TopicState
from cdcflow.sinks.kafka.topics import Admin, PartitionReader, Topics
from cdcflow.sinks.log_end import LogEnd, own_rows
from cdcflow.sinks.other_sources import if_replaced

RANGE_BYTES_MAX = 64 << 20
RANGE_AGE_S = 3600.0
"""The maximum age of a topic range. Brokers delete records by age, and a range without its head cannot be read."""
SUCCESSOR_S = 5.0
"""How long a refused writer waits to find out which process took the log over."""
_ROOM = "cdcflow-spools-"
_LOW = np.uint64(0xFFFFFFFF)


@dataclass(frozen=True, slots=True)
class _Frame:
    kind: FrameKind
    payload: list[Part]


@dataclass(frozen=True, slots=True)
class _Begun:
    """A queued beginning of a topic range: the range begins where the sender comes to this entry of its queue."""

    header: JournalHeader
    newest_xid: int | None


@dataclass(frozen=True, slots=True)
class _Spooled:
    """Queued rows that are in a spool. They become frames, as all rows do, when the sender comes to this entry."""

    path: Path
    attach: AttachedSpool
    encoders: Mapping[Table, RowsEncoder]


@dataclass(frozen=True, slots=True)
class _QueuedCut:
    """A cut: how much of the queue (counted from the log's opening) is before it."""

    checkpoint: Checkpoint
    upto: int
    newest_xid: int | None


class KafkaLog:
    """A change log in Kafka, opened by its only writer. Implements `cdcflow.ports.Log`.

    `append`, `cut`, `seal_due` and `roll` belong to one thread; `sync` may run in a different one at the same time.
    After an error the log is dead: every call raises that error, except `close`.
    """

    def __init__(
        self,
        topics: Topics,
        sender: Sender,
        reader: PartitionReader,
        admin: Admin,
        state: TopicState,
        scratch: Path,
        *,
        is_new: bool,
        low: int,
    ) -> None:
        """`reader`: of the log's topic. `low`: the first topic offset that the brokers have."""
        self._topics = topics
        self._sender = sender
        self._reader = reader
        self._admin = admin
        self._scratch = scratch
        self._attempted = f"writing the log in topic {topics.name}"
        self.log_id = state.log_id
        self.epoch = Epoch(state.epoch + 1)
        self._history = state.shapes
        self._topic_ranges = list(state.topic_ranges)
        self._dead: CdcflowError | None = None
        self._is_open = True
        self._syncing = threading.Lock()
        self._spools: dict[str, SpoolFile] = {}
        self._spools_opened = 0
        self._log_end = LogEnd(state.checkpoint)
        self._newest_xid = state.newest_xid
        self._queue: deque[_Frame | _Begun | _Spooled] = deque()
        self._queued = self._sent = 0
        self._spooled_bytes = 0
        self._rows_since: float | None = None
        self._state_records: deque[StateRecord] = deque()
        self._durable = state.checkpoint
        self._cut = _QueuedCut(state.checkpoint, 0, self._newest_xid)
        self._state_records.append(states.of_writer(self.epoch, f"process {os.getpid()} on {socket.gethostname()}"))
        if is_new and state.identity is not None:
            self._state_records.append(states.of_log(self.log_id, state.identity))
        self._state_records += [states.of_expired(s) for s in _expired_ranges(state, low)]
        self._begin_range()
        with self._syncing, self._deadly():
            self._sync_last_cut()

    @classmethod
    def open(
        cls,
        topics: Topics,
        identity: SourceIdentity,
        *,
        accept_timeline: bool = False,
        accept_renamed: bool = False,
        accept_replaced: bool = False,
        accept_moved: bool = False,
        accept_loss: bool = False,
        reopened: bool = False,
        scratch: Path | None = None,
        folder: Path | None = None,
        history: LogLocation | None = None,
        copy_of: str | None = None,
        after_epoch: Epoch | None = None,
    ) -> KafkaLog:
        """Open the log for writing; create it if it does not exist. A previous writer is refused afterwards.

        `accept_timeline`: the source's new timeline continues the old one. `accept_renamed`: the source checks whether
        a database of another name is the log's. `accept_replaced`: another server may have the log's database, because
        an operator accepts that its history is lost. `accept_moved`: the log was moved to this source, whatever it
        belonged to. `accept_loss`: an operator accepts that rows of the log are gone.
        `reopened`: this process had it open before (see `loss.check`). `scratch`: a folder for large transactions while
        they arrive (None: a temporary one). `folder`: this machine's own, for a note of the log's id; `history`: where
        the log is sealed to, which may have what the brokers no longer have. `copy_of`: the id of a newly created log
        (None: a random one), and `after_epoch` a lower bound of its epochs.

        Raises:
            ConfigurationError: the brokers refuse, or the log belongs to another source.
            HistoryLost: the source is on another timeline than the log, or all rows of the log are gone.
            InvariantViolated: a topic is gone, or part of what was committed is missing.
            SinkUnavailable: the brokers do not answer.
        """
        attempted = f"opening the log in topic {topics.name}"
        with contextlib.ExitStack() as undo:
            # These connect while the topics are checked.
            sender, admin = Sender(topics), Admin(topics, attempted)
            undo.callback(sender.leave)
            reader = undo.enter_context(topics.reader(topics.name))
            if not accept_loss:
                loss.check_there(topics, admin, attempted, folder)
            with topics.reader(topics.state) as reader_of_state:
                topics.make(admin)
                _check_topics(topics, admin, attempted)
                sender.fence()
                found = state_of(reader_of_state)
            if accept_moved and found.identity is not None:
                owned = replace(found, identity=identity)
            else:
                if found.identity is not None:
                    _check_source(found.identity, identity, attempted, renamed=accept_renamed, replaced=accept_replaced)
                owned = _owned_state(found, identity, attempted, copy_of, accept_timeline=accept_timeline)
            owned = replace(owned, epoch=max(owned.epoch, after_epoch or owned.epoch))
            low = loss.check(topics, reader, found, attempted, folder, history, accepted=accept_loss, reopened=reopened)
            with storing(f"{attempted}: creating a folder for large transactions"):
                if scratch is not None:
                    scratch.mkdir(parents=True, exist_ok=True)
                    # Left by a killed process. A replaced one that still runs may keep writing into the unlinked files.
                    for left in scratch.glob(f"{_ROOM}*"):
                        shutil.rmtree(left, ignore_errors=True)
                room = Path(tempfile.mkdtemp(prefix=_ROOM, dir=scratch))
            undo.callback(shutil.rmtree, room, ignore_errors=True)
            is_new = owned.identity != found.identity
            made = cls(topics, sender, reader, admin, owned, room, is_new=is_new, low=low)
            loss.note(folder, made.log_id)
            undo.pop_all()
            return made

    # ── writing ─────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def checkpoint(self) -> Checkpoint:
        """The last durable cut's checkpoint."""
        return self._durable

    def append(self, numbered: Numbered) -> None:
        """Append transactions. They count with the next cut, once it is synced."""
        self._living()
        self._log_end.check(numbered)
        run = own_rows(numbered.run)
        first = numbered.first_offset
        # Everything that can be refused is refused before the first frame: after that the log has part of a run.
        spooled = None if isinstance(run, Run) else announced_spool(self._spools, run)
        batches = run.batches if isinstance(run, Run) else ()
        for table in spooled.shapes if spooled is not None else [b.table for b in batches]:
            self._introduce(table)
        self._encoder.transactions(TransactionHeaders.of(run, first, numbered.first_transaction, numbered.commit_clock))
        for batch in batches:
            if batch.rows.num_rows:
                self._encoder.rows(batch, first)
        self._put_frames()
        if spooled is not None and not isinstance(run, Run):
            self._attach(run, spooled, first)
        if run.kind is Kind.SOURCE and run.transactions:
            self._newest_xid = _newer(self._newest_xid, run.xids)
        self._log_end.advance(numbered)

    def cut(self, checkpoint: Checkpoint) -> None:
        """Record a cut: once it is synced, everything appended so far may become visible, with this checkpoint."""
        self._living()
        self._log_end.cut(checkpoint)
        self._encoder.cut(checkpoint, 0)
        self._put_frames()
        self._cut = _QueuedCut(checkpoint, self._queued, self._newest_xid)

    def sync(self) -> Checkpoint:
        """Commit everything up to the last cut written before this call, and return its checkpoint.

        Raises:
            SinkUnavailable: the brokers do not answer; nothing after the last durable cut counts.
            OutcomeUnknown: it is unknown whether it was committed, until the log is opened the next time.
            InvariantViolated: another process has taken the log over; stop.
        """
        with self._syncing, self._deadly():
            self._living()
            return self._sync_last_cut()

    def open_spool(self) -> SpoolFile:
        """Return a new spool. It counts only once a `SpooledTransaction` that names it is appended."""
        self._living()
        self._spools_opened += 1
        name = f"{self.epoch}-{self._spools_opened}.spool"
        head = spools.header(self.log_id, self.epoch, self._spools_opened)
        with storing(f"creating the spool {name} in {self._scratch}"):
            self._spools[name] = made = SpoolFile(self._scratch / name, head, OS_LAYER, self._spools)
        return made

    def close(self) -> None:
        """Make the last cut durable, drop the rows after it, and disconnect from the brokers. Also after an error."""
        if not self._is_open:
            return
        try:
            if self._dead is None:
                self.sync()
        finally:
            self._is_open = False
            self._sender.leave()
            self._reader.__exit__()
            for left in list(self._spools.values()):
                left.abandon()
            shutil.rmtree(self._scratch, ignore_errors=True)

    # ── topic ranges ───────────────────────────────────────────────────────────────────────────────────────────

    def seal_due(self, now_s: float) -> bool:
        """Whether a new topic range should begin, by the bytes of this one or the age of its first rows."""
        if not self._rolls():
            return False
        if self._rows_since is None:
            self._rows_since = now_s
        aged = now_s - self._rows_since >= RANGE_AGE_S
        return aged or self._encoder.bytes + self._spooled_bytes >= RANGE_BYTES_MAX

    def roll(self) -> bool:
        """Begin a new topic range; only at a cut, and only if this one has rows."""
        self._living()
        if not self._rolls():
            return False
        self._begin_range()
        return True

    def seal_pending(self) -> None:
        """Do nothing: a topic range needs no sealing, because it is a part of the topic."""

    # ── reading back ────────────────────────────────────────────────────────────────────────────────────────

    def delivered(self, xids: Uint64s) -> Uint64s:
        """Return those of these transaction ids (compared by their low 32 bits) that are in the log already."""
        self._living()
        wanted = (xids & _LOW).astype(np.uint32)
        found = np.zeros(len(xids), np.bool_)
        if not len(xids):
            return xids
        with self._looking_back() as reader:
            for topic_range, headers in self._headers_back(reader):
                found |= np.isin(wanted, headers.column("xid").to_numpy().astype(np.uint32))
                left, before = wanted[~found], topic_range.newest_xid
                if not len(left):
                    break
                if before is None or ((left - np.uint32(before)).view(np.int32) > 0).all():
                    break  # all of them are newer than anything before this topic range
        return xids[found]

    def transactions_back(self, is_enough: Callable[[Position], bool]) -> pa.Table:
        """Position and id of the source's latest transactions, oldest first, back to one whose position is enough."""
        self._living()
        with self._looking_back() as reader:
            return gathered_back((headers for _, headers in self._headers_back(reader)), is_enough)

    def _headers_back(self, reader: PartitionReader) -> Iterator[tuple[TopicRange, pa.Table]]:
        """The headers of the source's transactions in each topic range that the brokers have, latest range first."""
        low, end = reader.bounds()
        for topic_range in reversed(self._topic_ranges):
            if topic_range.topic_offset < low:
                return
            found = frames(reader, topic_range.topic_offset, end, (FrameKind.TRANSACTIONS,))
            yield topic_range, headers_back([p.record for p in found if isinstance(p.record, TransactionHeaders)])
            end = topic_range.topic_offset

    def newest_shape(self, table: TableId) -> Table | None:
        """The shape of this table's latest rows; None if it never had any."""
        return self._history.newest(table)

    def partial_keys(self, table: TableId, since: Offset) -> KeySet | None:
        """Keys of this table's rows with unchanged columns, starting at offset `since`."""
        self._living()
        shape = self._history.newest(table)
        if shape is None or not shape.key:
            return None
        return gather_keys(table, self._partial_rows(shape, since))

    @contextlib.contextmanager
    def _looking_back(self) -> Iterator[PartitionReader]:
        with self._syncing:
            self._topics.wait_until_shown(self._admin)
            yield self._reader

    def _partial_rows(self, shape: Table, since: Offset) -> Iterator[pa.Table]:
        with self._looking_back() as reader:
            low, end = reader.bounds()
            begin = max(
                (s.topic_offset for s in self._topic_ranges if s.topic_offset >= low and s.first_offset <= since),
                default=None,
            )
            if begin is None:
                kept = [s.first_offset for s in self._topic_ranges if s.topic_offset >= low]
                raise keys_expired(shape.id, since, min(kept, default=self._durable.next_offset))
            for found in frames(reader, begin, end, (FrameKind.ROWS,)):
                rows = found.record
                if isinstance(rows, ShapeRows) and rows.shape.table.id == shape.id and rows.offsets[-1] >= since:
                    batch = rows.rows.slice(int(np.searchsorted(rows.offsets, since)))
                    yield keys_of_partial(pa.Table.from_batches([batch]), rows.shape.table, shape)

    # ── inside ──────────────────────────────────────────────────────────────────────────────────────────────

    def _rolls(self) -> bool:
        return self._log_end.at_cut and self._cut.checkpoint.next_offset > self._head.first_offset

    def _begin_range(self) -> None:
        checkpoint = self._cut.checkpoint
        self._head = JournalHeader(self.log_id, self.epoch, checkpoint)
        self._encoder = Encoder(0, checkpoint)
        self._spooled_bytes = 0
        self._rows_since = None
        self._put(_Begun(self._head, self._newest_xid))
        self._cut = _QueuedCut(checkpoint, self._queued, self._newest_xid)

    def _introduce(self, table: Table) -> None:
        if not self._encoder.knows(table):
            check_storable(table)
            known = len(self._history)
            number = self._history.number(table)
            if len(self._history) > known:
                self._state_records.append(states.of_shape(table, number))
            self._encoder.shape(table, number)

    def _put_frames(self) -> None:
        for kind, payload in self._encoder.payloads():
            self._put(_Frame(kind, payload))

    def _put(self, item: _Frame | _Begun | _Spooled) -> None:
        self._queue.append(item)
        self._queued += 1

    def _attach(self, run: SpooledTransaction, spooled: SpoolFile, first: Offset) -> None:
        spooled.finish()
        spooled.abandon()  # written through, and read again below; it is not needed after this process
        attach = AttachedSpool(spooled.name, first, run.rows, spooled.bytes, spooled.crc, run.aborted)
        self._put(_Spooled(self._scratch / spooled.name, attach, self._encoder.apart(spooled.shapes)))
        self._spooled_bytes += spooled.bytes

    def _sync_last_cut(self) -> Checkpoint:
        """Send and commit up to the last cut; the caller holds `_syncing`."""
        cut = self._cut
        if cut.upto == self._sent:
            return self._durable
        said = len(self._state_records)
        self._sender.begin()
        while self._sent < cut.upto:
            self._send(self._queue.popleft())
            self._sent += 1
        for _ in range(said):
            self._sender.put(self._topics.state, *self._state_records.popleft())
        if cut.checkpoint is not self._durable:
            for key, value in states.of_checkpoint(self._durable, cut.checkpoint, cut.newest_xid):
                self._sender.put(self._topics.state, key, value)
        self._sender.commit()
        self._durable = cut.checkpoint
        return cut.checkpoint

    def _send(self, item: _Frame | _Begun | _Spooled) -> None:
        match item:
            case _Frame(kind, payload):
                self._send_frame(kind, payload)
            case _Begun():
                self._send_head(item)
            case _Spooled(path, attach, encoders):
                with path.open("rb") as file:
                    for rows in spools.rows(file, attach):
                        batch = ChangeBatch(rows.shape.table, rows.offsets - attach.first_offset, rows.rows)
                        self._send_frame(FrameKind.ROWS, encoders[rows.shape.table].parts(batch, attach.first_offset))
                path.unlink()

    def _send_frame(self, kind: FrameKind, payload: list[Part]) -> None:
        for key, value in pieces(kind, payload, self._topics.message_bytes):
            self._sender.put(self._topics.name, key, value)

    def _send_head(self, begun: _Begun) -> None:
        """Send a topic range's head, and note its offset, which only the broker knows: readers find the range by it."""
        offsets: list[int] = []

        def note_offset(error: object, message: object) -> None:
            if error is None:
                offsets.append(message.offset())  # type: ignore[attr-defined]  # the library's Message

        tell = note_offset
        for key, value in pieces(HEAD, [head_of(begun.header)], self._topics.message_bytes):
            self._sender.put(self._topics.name, key, value, tell)
            tell = None  # type: ignore[assignment]  # only the first piece's offset is needed
        self._sender.settle()
        if not offsets:
            raise SinkUnavailable(f"{self._attempted}: the brokers did not accept the header of a topic range")
        self._topic_ranges.append(TopicRange(offsets[0], begun.header.first_offset, begun.newest_xid))
        self._sender.put(self._topics.state, *states.of_topic_range(self._topic_ranges[-1]))

    @contextlib.contextmanager
    def _deadly(self) -> Iterator[None]:
        """Make the log unusable if an error happens inside the block, in whichever thread."""
        try:
            yield
        except Fenced as error:
            self._dead = self._dead or self._refusal(error)
            raise self._dead from None
        except SinkUnavailable as error:
            self._dead = self._dead or self._deleted_topic_error() or error
            raise self._dead from None
        except CdcflowError as error:
            self._dead = self._dead or error
            raise
        except OSError as error:
            self._dead = SinkUnavailable(f"{self._attempted}: reading a spool in {self._scratch}: {error.strerror}")
            raise self._dead from error

    def _deleted_topic_error(self) -> InvariantViolated | None:
        """Return an error if a topic was deleted; otherwise None.

        The brokers are queried, because the library waits for a deleted topic as for one that does not exist yet.
        """
        with contextlib.suppress(CdcflowError):
            there = Admin(self._topics, self._attempted).partitions()
            for topic in (self._topics.name, self._topics.state):
                if topic not in there:
                    return InvariantViolated(
                        f"{self._attempted}: topic {topic} is gone", remedy=GONE, runbook="topic-gone"
                    )
        return None

    def _refusal(self, error: Fenced) -> CdcflowError:
        """Return the error for a writer that the brokers refuse: another process took the log over, or a transaction
        took too long."""
        deadline = time.monotonic() + SUCCESSOR_S
        while time.monotonic() < deadline:
            with contextlib.suppress(SinkUnavailable):
                now = read_state(self._topics)
                if now.epoch > self.epoch:
                    return WriterReplaced(
                        f"{self._attempted}: this process has epoch {self.epoch}, and epoch {now.epoch} has begun: "
                        f"{now.writer} took the log over, and the brokers refuse this one; nothing that it wrote "
                        "since then counts",
                        remedy="a log has one writer: stop one of the two",
                    )
            time.sleep(0.2)
        return SinkUnavailable(
            f"{self._attempted}: the brokers aborted the open transaction ({error}), and no other "
            "process has opened the log",
            remedy="it may have taken longer than transaction.timeout.ms: raise that in log.kafka.options",
        )

    def _living(self) -> None:
        if self._dead is not None:
            raise type(self._dead)(f"the log in topic {self._topics.name} is closed after an error: {self._dead}")
        if not self._is_open:
            raise InvariantViolated(f"the log in topic {self._topics.name} is closed")


def _check_topics(topics: Topics, admin: Admin, attempted: str) -> None:
    """Raise ConfigurationError if the topics are set up so that the log would be wrong, or would stop."""
    there = admin.partitions_of_both()
    found = [*wrong(topics, there, None)]
    # Without the right to read the settings, wrong ones are noticed by their effects; `doctor` reports that it cannot.
    with contextlib.suppress(ConfigurationError, SinkUnavailable):
        found += wrong(topics, there, admin.settings(*there))
    if found:
        raise ConfigurationError(
            f"{attempted}: {found[0].subject}: {found[0].text}", remedy=found[0].remedy, runbook="topic-unusable"
        )


def _check_source(
    known: SourceIdentity, identity: SourceIdentity, attempted: str, *, renamed: bool, replaced: bool
) -> None:
    if identity.is_source_of(known, renamed=renamed, replaced=replaced):
        return
    remedy = "set log.kafka.topic to another topic, or source.url to the source of this log"
    remedy += if_replaced(known, identity)
    raise ConfigurationError(
        f"{attempted}: it belongs to {known.kind} system {known.system_id}, database {known.database}, and the "
        f"source is {identity.kind} system {identity.system_id}, database {identity.database}",
        remedy=remedy,
        runbook="other-log",
    )


def _owned_state(
    state: TopicState, identity: SourceIdentity, attempted: str, copy_of: str | None, *, accept_timeline: bool
) -> TopicState:
    """Return the state of a log of this source; a new state if no log exists."""
    if state.identity is None:
        return replace(state, log_id=copy_of or str(uuid.uuid4()), identity=identity)
    known = state.identity
    # A database keeps the name that it had when the log began: the server is queried whether it was renamed.
    identity = replace(identity, database=known.database)
    if known.system_id == identity.system_id and known.timeline != identity.timeline and not accept_timeline:
        raise HistoryLost(
            f"{attempted}: the source was on timeline {known.timeline} and is now on {identity.timeline}, as "
            f"after a restore or a promotion: it may lack changes that the log has",
            remedy="run `cdcflow run --accept-history-loss`, which reads all tables again",
            runbook="restored-source",
        )
    return replace(state, identity=identity)


def _newer(known: int | None, xids: Uint64s) -> int:
    """Return the latest of some transaction ids and the one known before, by 32 bits that wrap.

    The last one in order need not be the latest: a transaction may get its id early and commit late.
    """
    low = (xids & _LOW).astype(np.uint32)
    base = low[0] if known is None else np.uint32(known)
    return int(base + np.uint32(max(0, int((low - base).view(np.int32).max()))))


def _expired_ranges(state: TopicState, low: int) -> list[TopicRange]:
    """Topic ranges that the brokers have deleted: those before the topic offset `low`."""
    return [s for s in state.topic_ranges[:-1] if s.topic_offset < low]
