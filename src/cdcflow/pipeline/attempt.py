"""One attempt at capturing: from the log's checkpoint, until it is told to stop or something breaks.

Nothing of an attempt outlives it but the log. After a broken connection, a full disk or a changed list of tables the
next attempt begins from the log's last durable cut with a new epoch, exactly as a new process would: one way to
start, tried all the time, instead of a repair for each thing that can break.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from queue import Empty, SimpleQueue

import numpy as np

from cdcflow.errors import ConfigurationError, KeysUnknown, RightMissing, SourceUnavailable
from cdcflow.interleave.machine import Interleave, Limits
from cdcflow.interleave.messages import (
    Answered,
    Append,
    Backfill,
    ChunkRead,
    Command,
    Cut,
    Effect,
    Event,
    Input,
    Order,
    PlanTable,
    Resume,
    SnapshotTaken,
    TakeSnapshot,
    Tick,
    Visibility,
    WriteMark,
    XidSnapshot,
)
from cdcflow.interleave.progress import Progress
from cdcflow.model.change import NO_KEYS, KeySet, Run, SpooledTransaction, Uint64s, commit_clock
from cdcflow.model.position import Checkpoint, Epoch
from cdcflow.model.table import Table, TableId
from cdcflow.pipeline import reread
from cdcflow.pipeline.durability import Durability
from cdcflow.pipeline.freshness import Freshness
from cdcflow.pipeline.observing import Observed
from cdcflow.pipeline.reading_rate import ReadingRate
from cdcflow.pipeline.reread import unread
from cdcflow.pipeline.source_tasks import SourceTasks
from cdcflow.pipeline.spans import OnSpan
from cdcflow.pipeline.threads import Clock, Threads
from cdcflow.pipeline.waker import Waker
from cdcflow.ports import ChunkSource, Log, Numbered, Source, Stream, StreamEvent

OnEvent = Callable[[str, Mapping[str, object]], None]
OnAnswer = Callable[[Answered, bool], None]
"""What became of a command; and whether its trace is durable, for it is called once before and once when it is."""

IDLE_WAIT_S = 0.1
UNSYNCED_BYTES_MAX = 256 << 20
"""Stop reading the source while this much is appended and not yet durable: the disk sets the pace then."""
UNSEALED_MAX = 16
"""Stop reading the source while so many closed journals wait to be sealed: a merge sees only what is sealed, and a
daemon that is told to stop seals the rest first."""
SMALL_BYTES_MAX = 64 << 10
"""Above this a cut is handed to the syncing thread at once, so that the rest of the turn overlaps with its writing."""

IDS_ABOVE_XMAX = 100_000


@dataclass(frozen=True, slots=True)
class Orders:
    """What an attempt is for. `backfill`: None reads new tables only; else these are read (again), () being all.

    `given`: the log knows of this order already, from an earlier attempt; it is only waited for. `once`: stop when
    the ordered tables are read. `accept_history_loss`: the operator accepts that the source has discarded log that
    cdcflow still needs: take a new position in its log, and read every table anew. `asked_by`: who ordered it.
    """

    backfill: tuple[str, ...] | None = None
    asked_by: str = "this program"
    given: bool = False
    once: bool = False
    accept_history_loss: bool = False


@dataclass(frozen=True, slots=True)
class Pace:
    """How often the loop looks after things, in seconds."""

    heartbeat_s: float = 10.0
    tables_look_s: float = 30.0
    stop_s: float = 8.0


class TablesChanged(Exception):
    """The list of captured tables is another one now; the next attempt takes it up."""


class Attempt:
    """Opens nothing itself: it is given a source and a log, and leaves both to its caller to close."""

    def __init__(
        self,
        source: Source,
        log: Log,
        *,
        log_id: str,
        epoch: Epoch,
        limits: Limits,
        orders: Orders,
        pace: Pace,
        requests: SimpleQueue[Input],
        waker: Waker,
        on_event: OnEvent,
        on_answer: OnAnswer = lambda answer, durable: None,
        threads: Threads | None = None,
        clock: Clock = time.monotonic,
        freshness: Freshness | None = None,
        on_span: OnSpan | None = None,
    ) -> None:
        self._on_answer = on_answer
        self._answered: list[Answered] = []
        self._rate_of_settings = limits.rows_per_second_max
        self._source = source
        self._log = log
        self._pace = pace
        self._orders = orders
        self._requests = requests
        self._waker = waker
        self._on_event = on_event
        self._clock = clock
        self._epoch = epoch
        checkpoint = self._placed(log_id)
        self.tables: tuple[Table, ...] = tuple(source.tables())
        self._chunks: ChunkSource = source.chunks()
        self._machine = self._machine_from(checkpoint, limits)
        self._stream: Stream = source.stream(checkpoint, log.open_spool)
        self._tasks = SourceTasks(self._chunks, limits.chunks_per_window + 2, waker.wake, threads)
        self._durability = Durability(log, waker.wake, threads, clock)
        self._checkpoint = checkpoint
        self._acknowledged = checkpoint
        self._unsynced: deque[tuple[int, int]] = deque()  # (cut number, bytes appended before it)
        self._bytes_since_cut = 0
        self._is_due = False
        self._looked_at: Progress | None = None
        self._new_limits: Limits | None = None
        self._settled = False
        self._ordered: tuple[TableId, ...] = ()
        self._began_at_cut = checkpoint.cut + 1
        self._looked_at_tables = self._beat_at = clock()
        self._observed = Observed(freshness, on_span, self.tables, epoch)
        self._rate: deque[tuple[float, int]] = deque(maxlen=64)
        self._reading = ReadingRate()
        self._events: Counter[str] = Counter()
        self.rows = {"captured": 0, "read": 0}

    # ── starting ────────────────────────────────────────────────────────────────────────────────────────────

    def _placed(self, log_id: str) -> Checkpoint:
        """The checkpoint to start from, durable in the log before anything is read from there."""
        before = self._log.checkpoint
        asked = {**before.source, **({"accept_history_loss": "yes"} if self._orders.accept_history_loss else {})}
        placed = self._source.prepare(replace(before, source=asked), log_id, self._log.transactions_back)
        if before.position is None:
            # A log that begins may be there instead of one that was lost, whose slot still holds the server's log.
            for left in self._source.left_behind(log_id):
                self._on_event("left behind", {"what": left.subject, "found": left.text, "remedy": left.remedy})
        # "history" stays in the checkpoint until the cut that orders the new backfill: a crash between the two must
        # not leave a log with a hole and nobody who knows.
        lost = "lost" in (before.source.get("history"), placed.source.get("history"))
        kept = {k: v for k, v in placed.source.items() if k != "accept_history_loss"} | (
            {"history": "lost"} if lost else {}
        )
        placed = replace(placed, source=kept, epoch=self._epoch)
        if placed.position != before.position or kept != dict(before.source):
            progress = unread(placed.progress) if lost else placed.progress
            placed = replace(placed, cut=placed.cut + 1, progress=progress)
            self._log.cut(placed)
            self._log.sync()
        return placed

    def _machine_from(self, checkpoint: Checkpoint, limits: Limits) -> Interleave:
        """A machine that remembers what only the log still knows: ids delivered earlier, keys of partial rows."""
        progress = Progress.from_json(checkpoint.progress)
        reading = (t for t, p in progress.tables.items() if p.state != "paused" and p.collects_from is not None)
        partial = {table: self._partial_keys(table, progress) for table in reading}
        return Interleave(
            epoch=self._epoch,
            checkpoint=checkpoint,
            tables={t.id: t for t in self.tables},
            limits=limits,
            delivered=self._log.delivered(maybe_hidden(self._chunks.snapshot())),
            partial=partial,
        )

    def _partial_keys(self, table: TableId, progress: Progress) -> KeySet | None:
        """The keys of a table's partial rows in the log; None when the log does not know them any more."""
        known = progress.tables[table]
        try:
            found = self._log.partial_keys(table, known.collects_from or known.since) or NO_KEYS
            return self._with_ordered(table, found, known.keys_ordered)
        except KeysUnknown as unknown:
            self._on_event("partial rows unknown", {"table": str(table), "reason": str(unknown).split("\n")[0]})
            return None

    def _with_ordered(self, table: TableId, found: KeySet, text: str | None) -> KeySet:
        """These keys, and those that people ordered to be read, which the log's rows do not tell."""
        if text is None:
            return found
        ordered = KeySet.from_text(text)
        key = next((t.key_columns for t in self.tables if t.id == table), ())
        if set(ordered.keys.column_names) != set(key):
            raise KeysUnknown(f"rows of {table} are to be read again by a key that it no longer has")
        return found.union(ordered) if len(found) else ordered

    def _begin(self) -> None:
        if self._orders.backfill is not None:
            self._ordered = table_ids(self._orders.backfill, self.tables)
        source = self._checkpoint.source
        again = reread.kept_otherwise(source, self._machine.progress)
        # Out of the checkpoint with the cut that has the order: a crash before it finds both as they were.
        self._checkpoint = replace(self._checkpoint, source=reread.without_orders(source))
        if source.get("history") == "lost":
            self._handle(Backfill(tuple(t.id for t in self.tables)))
        else:
            self._read_anew(() if self._orders.given else self._ordered, again)
        if self.capture_paused:  # only who resumes it starts an attempt on a capture that is paused
            self._take_requests()
        # A statement may have changed rows while nobody captured, and the order to read them again may not have been
        # durable when the last attempt ended: the version they were read at is.
        self._handle(self._source.compare_rows(self._row_versions()))
        self._began_at_cut = self._checkpoint.cut

    def _read_anew(self, ordered: tuple[TableId, ...], again: tuple[TableId, ...]) -> None:
        """What an operator ordered, and what other settings have read again."""
        if ordered:
            at_us = int(time.time() * 1e6)
            self._handle(Command(0, "backfill", self._orders.asked_by, at_us, (Backfill(ordered),)))
        for table in again:
            self._on_event("table to be read again", {"table": str(table), "reason": reread.WHY})
        rest = tuple(table for table in again if table not in ordered)
        for order in reread.orders(rest, self._machine.progress):
            self._handle(order)

    def order_is_kept(self) -> bool:
        """The order to backfill is in a durable cut; a later attempt need not give it again."""
        return self._durability.durable.cut >= self._began_at_cut

    # ── the loop ────────────────────────────────────────────────────────────────────────────────────────────

    def run(self, stopping: Callable[[], bool]) -> None:
        """Capture until `stopping` says so, somebody pauses the capture, or with `once` until the ordered tables are
        read. Ends at a cut.

        Raises whatever ends the attempt early; what is durable stays, and the rest counts as never read.
        """
        self._on_event("capture started", {"epoch": self._epoch, "tables": len(self.tables)})
        self._begin()
        while not stopping() and not self.capture_paused and not self._served():
            self._turn()
        self._finish()

    def _turn(self) -> None:
        if self._unsynced_bytes() > UNSYNCED_BYTES_MAX or self._durability.unsealed > UNSEALED_MAX:
            self._waker.wait(None, IDLE_WAIT_S)
            events: Sequence[StreamEvent] = ()
        else:
            if not self._stream.ready:
                self._waker.wait(self._stream.fileno(), IDLE_WAIT_S)
            events = self._stream.poll()
        self._durability.check()
        self._handle(Tick(int(self._clock() * 1e6)))
        for event in events:
            self._handle(event)
            self._observed.came(event)
        for answer in self._tasks.answers():
            self._tell_read(answer)
            self._handle(answer)
        self._use_new_limits()
        self._take_requests()
        self._make_durable()
        self._acknowledge()
        self._look_after()

    @property
    def capture_paused(self) -> bool:
        """Somebody has paused the capture."""
        return self._machine.progress.capture_paused

    def _take_requests(self) -> None:
        for request in self._requested():
            self._handle(self._looked_up(request))

    def _handle(self, given: Input) -> None:
        effects = self._machine.step(given)
        # The source first: it works on the next chunk while this one goes into the log. Neither needs the other.
        for effect in effects:
            if isinstance(effect, PlanTable | WriteMark | TakeSnapshot):
                self._tasks.send(effect)
            self._observed.asked(effect)
        for effect in effects:
            self._carry_out(effect)

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case Append():
                self._append(effect)
            case Cut():
                self._cut(effect)
            case PlanTable() | WriteMark() | TakeSnapshot():
                pass
            case Answered():
                self._answered.append(effect)
                self._on_answer(effect, False)
            case Event(event, fields):
                self._events[event] += 1
                self._on_event(event, dict(fields))
                self._observed.told(event, dict(fields))

    def _tell_read(self, answer: Input) -> None:
        if not isinstance(answer, ChunkRead):
            return
        chunk, rows = answer.chunk, answer.run.rows if answer.run else 0
        event = "table rewritten" if answer.rewritten else f"{chunk.kind} chunk read"
        self._events[event] += 1
        seconds = round(answer.seconds, 3)
        self._on_event(event, {"table": str(chunk.table), "number": chunk.number, "rows": rows, "seconds": seconds})

    def _append(self, append: Append) -> None:
        run = append.run
        assert isinstance(run, Run | SpooledTransaction)  # noqa: S101 - the product's only two kinds of Transactions
        stamps = run.commit_ts if isinstance(run, Run) else np.array([run.commit_ts], np.int64)
        clock = commit_clock(self._checkpoint.commit_clock, stamps)
        self._log.append(Numbered(run, append.first_offset, append.first_transaction, clock))
        self._checkpoint = replace(self._checkpoint, commit_clock=int(clock[-1]))
        self._bytes_since_cut += self._observed.appended(run)
        self.rows["read" if run.kind == "read" else "captured"] += run.rows

    def _cut(self, cut: Cut) -> None:
        self._checkpoint = replace(
            self._checkpoint,
            position=cut.position,
            next_offset=cut.next_offset,
            next_transaction=cut.next_transaction,
            cut=cut.number,
            progress=cut.progress,
        )
        self._log.cut(self._checkpoint)
        self._observed.cut(cut.number)
        self._unsynced.append((cut.number, self._bytes_since_cut))
        self._bytes_since_cut = 0
        self._is_due = True
        if self._unsynced_bytes() > SMALL_BYTES_MAX:
            self._ask_sync()
        if self._log.seal_due(self._clock()):
            self._roll()

    def _make_durable(self) -> None:
        """What this turn has cut: here, where nothing waits to be read and the disk is quick; else beside the loop."""
        if self._is_due and (self._stream.ready or not self._durability.sync_now()):
            self._ask_sync()
        self._is_due = False

    def _ask_sync(self) -> None:
        self._is_due = False
        self._durability.ask_sync()

    def _roll(self) -> None:
        self._log.roll()
        self._durability.ask_seal()

    def _acknowledge(self) -> None:
        # The server drops log that it believes we have. Only a checkpoint that `sync` has returned is said to it:
        # an early word here is data lost on the next crash, and nothing would tell us.
        durable = self._durability.durable
        if durable is self._acknowledged or durable.position is None:
            return
        self._acknowledged = durable
        self._observed.durable(durable.cut)
        while self._unsynced and self._unsynced[0][0] <= durable.cut:
            self._unsynced.popleft()
        self._stream.acknowledge(durable.position)
        self._tell_kept(durable)

    def _tell_kept(self, durable: Checkpoint) -> None:
        """Tell who gave commands that their traces are durable."""
        if not self._answered:
            return
        kept = durable.progress.get("commands", {})
        assert isinstance(kept, dict)  # noqa: S101 - our own progress JSON
        for answer in [a for a in self._answered if str(a.number) in kept]:
            self._answered.remove(answer)
            self._on_answer(answer, True)

    def _look_after(self) -> None:
        now = self._clock()
        if self._bytes_since_cut == 0 and self._log.seal_due(now):
            self._roll()
        if now - self._beat_at >= self._pace.heartbeat_s:
            self._beat_at = now
            self._tasks.call(self._heartbeat)
        if now - self._looked_at_tables >= self._pace.tables_look_s:
            self._looked_at_tables = now
            self._tasks.call(self._look_at_tables)
        self._observed.prove(self._machine, self._checkpoint.cut, self._durability.durable.cut)
        self._observed.look(now, self._tasks, self._source, self._chunks, self._machine)
        if not self._rate or now - self._rate[-1][0] >= 0.25:
            self._rate.append((now, self.rows["captured"] + self.rows["read"]))
            self._reading.seen(now, self.rows["read"], is_reading=self._machine.is_reading)

    def use(self, limits: Limits) -> None:
        """Go on with other limits from the next turn on. May be called from any thread."""
        self._new_limits = limits

    def _use_new_limits(self) -> None:
        limits, self._new_limits = self._new_limits, None
        if limits is not None:
            self._rate_of_settings = limits.rows_per_second_max
            self._machine.use(limits)

    def _looked_up(self, request: Input) -> Input:
        """The request with what only the log knows: who resumes a table asks it for the keys of partial rows."""
        match request:
            case Command():
                return replace(request, orders=tuple(self._with_keys(order) for order in request.orders))
            case Resume():
                return self._with_keys(request)
            case _:
                return request

    def _with_keys(self, order: Order) -> Order:
        known = self._machine.progress.tables.get(order.table) if isinstance(order, Resume) else None
        if not isinstance(order, Resume) or known is None or known.state != "paused" or known.collects_from is None:
            return order
        return replace(order, partial=self._partial_keys(order.table, self._machine.progress))

    def _requested(self) -> list[Input]:
        found: list[Input] = []
        with contextlib.suppress(Empty):
            while True:
                found.append(self._requests.get_nowait())
        return found

    def _heartbeat(self) -> Input | None:
        with contextlib.suppress(
            SourceUnavailable, RightMissing
        ):  # the stream notices too, and has the better words for it
            self._chunks.heartbeat()
            return SnapshotTaken(self._chunks.snapshot())
        return None

    def _look_at_tables(self) -> Input | None:
        with contextlib.suppress(SourceUnavailable, RightMissing):
            now = {(t.id, t.incarnation) for t in self._source.tables()}
            if now != {(t.id, t.incarnation) for t in self.tables}:
                raise TablesChanged
            return self._source.compare_rows(self._row_versions())
        return None

    def _row_versions(self) -> dict[TableId, str | None]:
        """Of the tables whose rows were read, are being read, or are still to be read (None: no version yet)."""
        tables = self._machine.progress.tables
        return {t: p.row_version for t, p in tables.items() if p.state == "done" or p.active}

    # ── ending ──────────────────────────────────────────────────────────────────────────────────────────────

    def _served(self) -> bool:
        if not self._orders.once:
            return False
        wanted = self._ordered or tuple(t.id for t in self.tables)
        if self._looked_at is not (progress := self._machine.progress):
            self._looked_at = progress
            states = progress.tables
            self._settled = all(states[t].state in ("done", "failed", "cancelled") for t in wanted)
        return self._settled and self._checkpoint.cut == self._durability.durable.cut and self._reported(wanted)

    def _reported(self, wanted: Sequence[TableId]) -> bool:
        """The log's last cut knows how the ordered tables ended."""
        logged = self._checkpoint.progress.get("tables", {})
        now = self._machine.progress
        assert isinstance(logged, dict)  # noqa: S101 - our own progress JSON
        return all(logged.get(str(t), {}).get("state") == now.tables[t].state for t in wanted)

    def _finish(self) -> None:
        """Make the last cut durable and tell the source, then let go of it."""
        self._durability.ask_sync()
        if not self._durability.settle(self._pace.stop_s):
            self._durability.check()
        self._acknowledge()
        self._on_event(
            "capture stopped", {"cut": self._acknowledged.cut, "next_offset": self._acknowledged.next_offset}
        )

    def close(self) -> None:
        """Stop the threads and leave the source's connections. The log stays open: its owner closes it."""
        with contextlib.suppress(SourceUnavailable):
            self._stream.close()
        self._tasks.close()
        self._durability.stop()

    def keys_where(self, table: TableId, predicate: str, keys_max: int) -> KeySet:
        """The keys of a table's rows that a predicate (SQL of the source) is true for, one more than `keys_max` at
        most. May be called from any thread.

        Raises:
            ConfigurationError: the source does not understand it, or it takes too long.
        """
        return self._chunks.keys_where(table, predicate, keys_max + 1)

    # ── looking in from outside ─────────────────────────────────────────────────────────────────────────────

    def _unsynced_bytes(self) -> int:
        return sum(size for _, size in self._unsynced) + self._bytes_since_cut

    def status(self) -> dict[str, object]:
        """What is going on, as JSON-able values. May be called from any thread."""
        durable = self._durability.durable
        held_rows, held_bytes = self._machine.held
        return {
            "epoch": self._epoch,
            "cut": durable.cut,
            "position": durable.position,
            "next_offset": durable.next_offset,
            "commit_clock": durable.commit_clock,
            "syncs": self._durability.syncs,
            "rows_captured": self.rows["captured"],
            "rows_read": self.rows["read"],
            "rows_per_second": self._rows_per_second(),
            "rows_read_per_second": self._reading.rows_per_second,
            "held_rows": held_rows,
            "held_bytes": held_bytes,
            "window": sorted(map(str, self._machine.window_tables)),
            "tables": self._machine.progress.to_status(self._rate_of_settings),
            "left_out": [str(t) for t in self._source.left_out()],
            "events": dict(self._events),
        }

    def counts(self) -> dict[str, int]:
        return {**self._observed.counts, "syncs": self._durability.syncs}

    @property
    def events(self) -> Counter[str]:
        return Counter(dict(self._events))  # copied at once: the loop goes on counting

    @property
    def progress(self) -> Progress:
        return self._machine.progress

    def _rows_per_second(self) -> float:
        rate = list(self._rate)
        recent = [point for point in rate if point[0] >= self._clock() - 5]
        if len(recent) < 2:
            return 0.0
        return round((recent[-1][1] - recent[0][1]) / max(recent[-1][0] - recent[0][0], 0.001), 1)


def table_ids(names: Sequence[str], tables: Sequence[Table]) -> tuple[TableId, ...]:
    """The captured tables with these names (`schema.table`); () gives all.

    Raises:
        ConfigurationError: a name is not among the captured tables; the message lists them.
    """
    known = {str(t.id): t.id for t in tables}
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ConfigurationError(
            f"table {', '.join(unknown)} is not captured; captured are: {', '.join(sorted(known)) or 'none'}",
            remedy="name it as schema.table, and add it to source.tables in cdcflow.yaml if it is missing there",
            runbook="table-not-found",
        )
    return tuple(known[name] for name in names) or tuple(known.values())


def maybe_hidden(visibility: Visibility) -> Uint64s:
    """Ids of transactions that an earlier epoch may have delivered although this look does not see them.

    Those listed as running, and those from xmax on: a transaction that waits for a standby may bear the highest id of
    all, and then it stands above xmax and in no list.
    """
    if not isinstance(visibility, XidSnapshot):
        return np.empty(0, np.uint64)
    running = np.array(sorted(visibility.in_progress), np.uint64)
    above = np.arange(visibility.xmax, visibility.xmax + IDS_ABOVE_XMAX, dtype=np.uint64)
    return np.concatenate([running, above])
