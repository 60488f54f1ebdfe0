"""A change log in a topic, with the file sink's contract.

    append, cut ─▶ queue ─▶ one Kafka transaction a sync ─▶ log's topic:        │ head │ frames … cut │ frames … cut │
       loop                  rows and checkpoint together    checkpoint's topic:        │ cut          │ cut          │

The topic has one partition, and the order of the log is its order. `read_committed` readers see whole cuts or nothing.
Whoever opens the log takes the transactional id over: from then on the brokers refuse the one before, and what it had
not committed is gone. A commit whose outcome nobody knows is decided by that as well, before anything is read.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import threading
import uuid
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
from confluent_kafka import KafkaException, Producer
from confluent_kafka import Message as Delivered

from cdcflow.changelog import spool as spools
from cdcflow.changelog.framing import FrameKind, Part
from cdcflow.changelog.journal import Attach, Encoder, JournalHeader, cut_number
from cdcflow.changelog.lookup import keys_of_partial
from cdcflow.changelog.rows import Rows
from cdcflow.changelog.sealing import check_storable
from cdcflow.changelog.transactions import Transactions
from cdcflow.errors import CdcflowError, ConfigurationError, HistoryLost, InvariantViolated, SinkUnavailable
from cdcflow.model.change import ChangeBatch, KeySet, Kind, Run, SpooledTransaction, Uint64s
from cdcflow.model.position import Checkpoint, Epoch, Offset, SourceIdentity
from cdcflow.model.table import Table, TableId
from cdcflow.ports import Numbered
from cdcflow.sinks.files import SpoolFile
from cdcflow.sinks.kafka import state as states
from cdcflow.sinks.kafka.reading import frames, read_state
from cdcflow.sinks.kafka.records import HEAD, head_of, pieces
from cdcflow.sinks.kafka.state import State, Stretch
from cdcflow.sinks.kafka.topics import TAIL, WAIT_S, Topics, named
from cdcflow.sinks.layer import OS_LAYER
from cdcflow.sinks.numbering import Numbering

STRETCH_BYTES_MAX = 64 << 20
QUEUED_BYTES_MAX = 64 << 20
"""So much may wait in memory for a sync; beyond it frames wait in a file."""
TRANSACTION_TIMEOUT_MS = 600_000
_LOW = np.uint64(0xFFFFFFFF)

Payload = tuple[int, list[Part]]


@dataclass(frozen=True, slots=True)
class _Begun:
    """A stretch begins here, when this is sent."""

    header: JournalHeader
    newest_xid: int | None


class KafkaLog:
    """A change log in Kafka, opened by its only writer. Implements `cdcflow.ports.Log`.

    `append`, `cut`, `seal_due` and `roll` belong to one thread; `sync` may run in another one at the same time. After
    an error the log is dead: every call says so, and only `close` is left.
    """

    def __init__(self, topics: Topics, producer: Producer, state: State, scratch: Path) -> None:
        self._topics = topics
        self._producer = producer
        self._scratch = scratch
        self.log_id = state.log_id
        self.epoch = Epoch(state.checkpoint.epoch + 1)
        self._history = state.shapes
        self._stretches = list(state.stretches)
        self._begun: deque[Stretch] = deque()
        self._dead: CdcflowError | None = None
        self._syncing = threading.Lock()
        self._spools: dict[str, SpoolFile] = {}
        self._spools_opened = 0
        self._numbering = Numbering(state.checkpoint)
        self._newest_xid: int | None = None
        self._queue: deque[Payload | _Begun] = deque()
        self._queued = self._sent = 0
        self._shapes: deque[tuple[Table, int]] = deque()
        self._durable = replace(state.checkpoint, epoch=self.epoch)
        self._said = state.checkpoint
        self._identity = state.identity
        self._cut = (self._durable, 0)
        self._begin_stretch()
        self._cut = (self._durable, self._queued)
        with self._syncing, self._deadly():
            self._synced()

    @classmethod
    def open(cls, topics: Topics, identity: SourceIdentity, *, accept_timeline: bool = False) -> KafkaLog:
        """Open the log for writing, made when there is none; a writer that still has it is refused from here on.

        Raises:
            ConfigurationError: the brokers refuse, or the log belongs to another source.
            HistoryLost: the source is on another timeline than the log.
            InvariantViolated: a topic is gone, or what was committed is not all there.
            SinkUnavailable: the brokers do not answer.
        """
        topics.make()
        producer = Producer(
            topics.client(
                **{
                    "transactional.id": f"cdcflow/{topics.name}",
                    "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS,
                    "enable.idempotence": True,
                    "linger.ms": 1,
                    "queue.buffering.max.kbytes": 128 << 10,
                }
            )
        )
        attempted = f"opening the log in topic {topics.name}"
        try:
            producer.init_transactions(WAIT_S)
        except KafkaException as error:
            raise named(error, attempted) from None
        state = _owned(read_state(topics), identity, attempted, accept_timeline=accept_timeline)
        _check_end(topics, state.checkpoint)
        scratch = Path(tempfile.mkdtemp(prefix="cdcflow-kafka-"))
        try:
            return cls(topics, producer, state, scratch)
        except BaseException:
            shutil.rmtree(scratch, ignore_errors=True)
            raise

    # ── writing ─────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def checkpoint(self) -> Checkpoint:
        """The last durable cut's checkpoint."""
        return self._durable

    def append(self, numbered: Numbered) -> None:
        """Put transactions at the end. They count with the next cut, once it is synced."""
        self._living()
        self._numbering.check(numbered)
        run = numbered.run
        first = numbered.first_offset
        spooled = None if isinstance(run, Run) else self._spool_of(run)
        batches = run.batches if isinstance(run, Run) else ()
        for table in spooled.shapes if spooled is not None else [b.table for b in batches]:
            self._introduce(table)
        self._encoder.transactions(Transactions.of(run, first, numbered.first_transaction, numbered.commit_clock))
        for batch in batches:
            if batch.rows.num_rows:
                self._encoder.rows(batch, first)
        self._put_all()
        if spooled is not None and not isinstance(run, Run):
            self._unspool(run, spooled, first)
        if run.kind is Kind.SOURCE and run.transactions:
            self._newest_xid = int(run.xids[-1] & _LOW)
        self._numbering.advance(numbered)

    def cut(self, checkpoint: Checkpoint) -> None:
        """Everything appended so far may become visible with this checkpoint, once it is synced."""
        self._living()
        self._numbering.cut(checkpoint)
        self._encoder.cut(checkpoint, 0)
        self._put_all()
        self._cut = (checkpoint, self._queued)

    def sync(self) -> Checkpoint:
        """Commit everything up to the last cut written before this call, and return its checkpoint.

        Raises:
            SinkUnavailable: the brokers do not answer; nothing after the last durable cut counts.
            OutcomeUnknown: nobody knows whether it was committed; whoever opens the log next finds out.
            InvariantViolated: another process has taken the log over; stop.
        """
        with self._syncing, self._deadly():
            self._living()
            return self._synced()

    def open_spool(self) -> SpoolFile:
        """A new spool. Counted only when a `SpooledTransaction` that names it is appended."""
        self._living()
        self._spools_opened += 1
        name = f"{self.epoch}-{self._spools_opened}.spool"
        head = spools.header(self.log_id, self.epoch, self._spools_opened)
        self._spools[name] = made = SpoolFile(self._scratch / name, head, OS_LAYER, self._spools)
        return made

    # ── stretches ───────────────────────────────────────────────────────────────────────────────────────────

    def seal_due(self, now_s: float) -> bool:
        """Whether a new stretch should begin, by the bytes of this one."""
        return self._numbering.at_cut and self._encoder.bytes >= STRETCH_BYTES_MAX

    def roll(self) -> bool:
        """Begin a new stretch; only at a cut, and only when this one has rows."""
        self._living()
        if not self._numbering.at_cut or self._cut[0].next_offset == self._head.first_offset:
            return False
        self._begin_stretch()
        self._cut = (self._cut[0], self._queued)
        return True

    def seal_pending(self) -> None:
        """A stretch needs no sealing: it is a part of the topic."""

    # ── looking back ────────────────────────────────────────────────────────────────────────────────────────

    def delivered(self, xids: Uint64s) -> Uint64s:
        """Those of these transaction ids (compared by their low 32 bits) that are in the log already."""
        self._living()
        wanted = (xids & _LOW).astype(np.uint32)
        found = np.zeros(len(xids), np.bool_)
        if not len(xids):
            return xids
        with self._topics.reader(self._topics.name) as reader:
            ends = [*(s.place for s in self._stretches[1:]), None]
            for stretch, end in reversed(list(zip(self._stretches, ends, strict=True))):
                ids: list[int] = []
                for placed in frames(reader, stretch.place, end, (FrameKind.TRANSACTIONS,)):
                    if isinstance(placed.record, Transactions) and placed.record.kind is Kind.SOURCE:
                        ids += placed.record.xid.tolist()
                found |= np.isin(wanted, np.array(ids, np.uint64).astype(np.uint32))
                left = wanted[~found]
                before = stretch.newest_xid
                if before is None or ((left - np.uint32(before)).view(np.int32) > 0).all():
                    break
        return xids[found]

    def partial_keys(self, table: TableId, since: Offset) -> KeySet | None:
        """Keys of this table's rows from offset `since` on that came with unchanged columns."""
        self._living()
        shape = self._history.newest(table)
        if shape is None or not shape.key:
            return None
        begin = max((s.place for s in self._stretches if s.first_offset <= since), default=None)
        if begin is None:
            raise ConfigurationError(
                f"looking for partial rows of {table}: the topic no longer has offset {since}",
                remedy=f"run `cdcflow backfill {table}` to read it anew, and let the topic keep its records longer",
            )
        found: KeySet | None = None
        with self._topics.reader(self._topics.name) as reader:
            for placed in frames(reader, begin, None, (FrameKind.ROWS,)):
                rows = placed.record
                if not isinstance(rows, Rows) or rows.shape.table.id != table or rows.offsets[-1] < since:
                    continue
                batch = rows.rows.slice(int(np.searchsorted(rows.offsets, since)))
                keys = KeySet(keys_of_partial(pa.Table.from_batches([batch]), rows.shape.table, shape))
                found = keys if found is None else found.union(keys)
                if len(found) > 256 << 10:
                    found = found.distinct()
        found = found.distinct() if found is not None else None
        return found if found is not None and len(found) else None

    def close(self) -> None:
        """Drop what no cut covers and leave the brokers. Also after an error."""
        if self._dead is None:
            with contextlib.suppress(CdcflowError):
                self.sync()
            self._dead = InvariantViolated(f"the log in topic {self._topics.name} is closed")
        for left in list(self._spools.values()):
            left.abandon()
        shutil.rmtree(self._scratch, ignore_errors=True)

    # ── inside ──────────────────────────────────────────────────────────────────────────────────────────────

    def _begin_stretch(self) -> None:
        checkpoint = self._cut[0]
        self._head = JournalHeader(self.log_id, self.epoch, checkpoint)
        self._encoder = Encoder(0, checkpoint)
        self._put(_Begun(self._head, self._newest_xid))

    def _introduce(self, table: Table) -> None:
        if not self._encoder.knows(table):
            check_storable(table)
            known = len(self._history)
            number = self._history.number(table)
            if len(self._history) > known:
                self._shapes.append((table, number))
            self._encoder.shape(table, number)

    def _put_all(self) -> None:
        for kind, payload in self._encoder.payloads():
            self._put((int(kind), payload))

    def _put(self, item: Payload | _Begun) -> None:
        self._queue.append(item)
        self._queued += 1

    def _spool_of(self, run: SpooledTransaction) -> SpoolFile:
        found = self._spools.get(run.spool)
        if found is None:
            raise InvariantViolated(f"attaching spool {run.spool} to the log in Kafka: no such spool is open")
        kept = found.rows_without(run.aborted)
        if kept != run.rows:
            raise InvariantViolated(f"attaching spool {run.spool}: it has {kept} rows, {run.rows} were announced")
        return found

    def _unspool(self, run: SpooledTransaction, spooled: SpoolFile, first: Offset) -> None:
        """The rows of a spool, as frames like all others."""
        path = self._scratch / spooled.name
        spooled.sync()
        attach = Attach(spooled.name, first, run.rows, spooled.bytes, spooled.crc, run.aborted)
        with path.open("rb") as file:
            for rows in spools.rows(file, attach):
                self._encoder.rows(ChangeBatch(rows.shape.table, rows.offsets - first, rows.rows), first)
                self._put_all()
        path.unlink()

    def _synced(self) -> Checkpoint:
        checkpoint, upto = self._cut
        if upto == self._sent:
            return self._durable
        attempted = f"writing to the log in topic {self._topics.name}"
        try:
            self._producer.begin_transaction()
            while self._sent < upto:
                self._send(self._queue.popleft())
                self._sent += 1
            for key, value in self._sayings(checkpoint):
                self._produce(self._topics.state, key, value)
            self._producer.commit_transaction(WAIT_S)
        except KafkaException as error:
            raise named(error, attempted) from None
        self._said = self._durable = checkpoint
        return checkpoint

    def _sayings(self, checkpoint: Checkpoint) -> Iterator[tuple[bytes, bytes]]:
        if self._identity is not None:
            yield states.of_log(self.log_id, self._identity)
            self._identity = None
        if checkpoint.progress is not self._said.progress or checkpoint.source is not self._said.source:
            yield states.of_progress(checkpoint.progress, checkpoint.source)
        while self._shapes:
            yield states.of_shape(*self._shapes.popleft())
        while self._begun:
            self._stretches.append(self._begun.popleft())
            yield states.of_stretch(self._stretches[-1])
        yield states.of_cut(checkpoint)

    def _send(self, item: Payload | _Begun) -> None:
        if not isinstance(item, _Begun):
            for key, value in pieces(item[0], item[1], self._topics.message_bytes):
                self._produce(self._topics.name, key, value)
            return
        place: list[int] = []

        def delivered(error: object, message: Delivered) -> None:
            if error is None:
                place.append(message.offset() or 0)

        tell: object = delivered
        for key, value in pieces(HEAD, [head_of(item.header)], self._topics.message_bytes):
            self._produce(self._topics.name, key, value, tell)
            tell = None
        self._producer.flush(WAIT_S)
        if not place:
            raise SinkUnavailable(f"writing to the log in topic {self._topics.name}: the brokers do not answer")
        self._begun.append(Stretch(place[0], item.header.first_offset, item.newest_xid))

    def _produce(self, topic: str, key: bytes, value: bytes, on_delivery: object = None) -> None:
        while True:
            try:
                self._producer.produce(topic, value, key, 0, on_delivery)
                return
            except BufferError:  # the brokers are slower than we are: wait here, so that nothing more is read
                self._producer.poll(0.05)

    @contextlib.contextmanager
    def _deadly(self) -> Iterator[None]:
        """What goes wrong in here leaves the log unusable."""
        try:
            yield
        except CdcflowError as error:
            self._dead = self._dead or error
            raise

    def _living(self) -> None:
        if self._dead is not None:
            raise InvariantViolated(f"the log in topic {self._topics.name} is closed, or has failed: {self._dead}")


def _owned(state: State, identity: SourceIdentity, attempted: str, *, accept_timeline: bool) -> State:
    """The state of a log of this source; a new one where there is none."""
    if state.identity is None:
        return replace(state, log_id=str(uuid.uuid4()), identity=identity)
    known = state.identity
    if replace(known, timeline="") != replace(identity, timeline=""):
        raise ConfigurationError(
            f"{attempted}: it belongs to {known.kind} system {known.system_id}, database {known.database}, and the "
            f"source is {identity.kind} system {identity.system_id}, database {identity.database}",
            remedy="name another topic, or go back to the source that this log is of",
        )
    if known.timeline != identity.timeline and not accept_timeline:
        raise HistoryLost(
            f"{attempted}: the source was on timeline {known.timeline} and is on {identity.timeline} now, as after a "
            "restore or a promotion: it may lack changes that the log has",
            remedy="if it was promoted without loss, accept the timeline; else begin a new log with a backfill",
        )
    return replace(state, identity=identity)


def _check_end(topics: Topics, checkpoint: Checkpoint) -> None:
    """InvariantViolated unless the log's topic ends with the checkpoint's cut."""
    with topics.reader(topics.name) as reader:
        low, high = reader.bounds()
        last = 0
        back = TAIL
        while not last and high > low:
            begin = max(low, high - back)
            for message in reader.messages(begin):
                if message.key == bytes((FrameKind.CUT, 0)):
                    last = cut_number(message.value)
            if begin == low:
                break
            back *= 8
    if last != checkpoint.cut:
        raise InvariantViolated(
            f"opening the log in topic {topics.name}: it ends with cut {last}, and topic {topics.state} says "
            f"{checkpoint.cut}: one of them was made anew, or lost records"
        )
