"""One attempt at capturing: it starts at the log's checkpoint, and ends when it is stopped or something breaks.

Nothing of an attempt outlives it except the log. After a broken connection, a full disk or a changed list of tables the
next attempt begins at the log's last durable cut with a new epoch, exactly as a new process would. So there is one way
to start, used all the time, instead of a repair for each thing that can break.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from queue import Empty, SimpleQueue
from weakref import WeakValueDictionary

from cdcflow.capture import reread
from cdcflow.capture.durability import Durability
from cdcflow.capture.freshness import Freshness
from cdcflow.capture.governor import Governor
from cdcflow.capture.interleave.limits import Limits
from cdcflow.capture.interleave.machine import Interleave
from cdcflow.capture.interleave.messages import (
    Answered,
    Append,
    Backfill,
    ChunkRead,
    Command,
    Cut,
    DiscardSpool,
    Effect,
    Event,
    Input,
    PlanTable,
    TakeSnapshot,
    Tick,
    WriteMark,
)
from cdcflow.capture.interleave.progress import Progress
from cdcflow.capture.log_writes import OnAnswer, Recording
from cdcflow.capture.observations import Observed, OnEvent
from cdcflow.capture.partial_keys import PartialKeys
from cdcflow.capture.ports.chunks import ChunkSource
from cdcflow.capture.ports.log import Log, Spool
from cdcflow.capture.ports.source import RowsElsewhere, Source
from cdcflow.capture.ports.stream import Stream, StreamEvent
from cdcflow.capture.reread import StoredOrders
from cdcflow.capture.shadow import Shadow
from cdcflow.capture.source_polls import SourceLooks, known_rows
from cdcflow.capture.source_tasks import SourceTasks
from cdcflow.capture.spaced_positions import SpacedPositions
from cdcflow.capture.spans import OnSpan
from cdcflow.capture.start_position import prepare_position
from cdcflow.capture.threads import Clock, Threads
from cdcflow.capture.waker import Waker
from cdcflow.errors import ConfigurationError, SourceUnavailable
from cdcflow.model.change import KeySet
from cdcflow.model.position import Checkpoint, Epoch, Position, position_text
from cdcflow.model.table import Table, TableId, word

IDLE_WAIT_S = 0.1
RATE_EACH_S = 0.25
"""A rate is recorded at most this often."""
RATE_RECENT_S = 5
"""The time over which the recent rate is computed."""
RATE_LEAST_S = 1.0
"""The shortest time of reading for which a rate is reported."""


@dataclass(frozen=True, slots=True)
class Orders:
    """What an attempt is to do, apart from capturing changes.

    `backfill`: the tables to read (again); () means all, and None only new tables. `given`: an earlier attempt has
    already recorded this order in the log, so only wait until the tables are read. `once`: stop when the requested
    tables are read. `accept_history_loss`: the operator accepts that the source has discarded log that cdcflow still
    needs: take a new position in its log, and read every table again; with `keep_rows` only the tables that cannot be
    compared with the source. `asked_by`: the caller.
    """

    backfill: tuple[str, ...] | None = None
    asked_by: str = "this program"
    given: bool = False
    once: bool = False
    accept_history_loss: bool = False
    keep_rows: bool = False


@dataclass(frozen=True, slots=True)
class LoopIntervals:
    """How often the loop runs its periodic checks, and how long it waits for the last sync and then for the last
    segment when it stops, in seconds."""

    heartbeat_s: float = 10.0
    tables_look_s: float = 30.0
    stop_s: float = 8.0
    sealing_s: float = 3.0


class Attempt:
    """One attempt at capturing a source into a log. The caller opens the source and the log, and closes both
    afterwards."""

    def __init__(
        self,
        source: Source,
        log: Log,
        *,
        log_id: str,
        epoch: Epoch,
        limits: Limits,
        orders: Orders,
        pace: LoopIntervals,
        requests: SimpleQueue[Input],
        waker: Waker,
        on_event: OnEvent,
        on_answer: OnAnswer = lambda answer, durable: None,
        threads: Threads | None = None,
        clock: Clock = time.monotonic,
        freshness: Freshness | None = None,
        shadow: Shadow | None = None,
        on_span: OnSpan | None = None,
        on_sealed: Callable[[], None] = lambda: None,
        seal_wanted: threading.Event | None = None,
        governor: Governor | None = None,
        repairs_gaps: bool = False,
    ) -> None:
        self._governor = governor
        self._repairs_gaps = repairs_gaps
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
        lost, keep = orders.accept_history_loss, orders.keep_rows
        checkpoint = prepare_position(source, log, log_id, epoch, on_event, accept_history_loss=lost, keep_rows=keep)
        self.tables: tuple[Table, ...] = tuple(source.tables())
        self._chunks: ChunkSource = source.chunks()
        self._partial_keys = PartialKeys(log, self.tables, on_event)
        self._machine = self._machine_from(checkpoint, limits)
        self._spools: WeakValueDictionary[str, Spool] = WeakValueDictionary()
        """The spools that the log holds open. A spool that was attached or discarded disappears from here."""
        self._stream: Stream = source.stream(checkpoint, self._open_spool)
        self._tasks = SourceTasks(self._chunks, limits.chunks_per_window + 2, waker.wake, threads)
        self._durability = Durability(log, waker.wake, threads, clock, on_sealed)
        self._observed = Observed(freshness, on_span, self.tables, epoch, shadow)
        self._recording = Recording(
            log,
            self._stream,
            self._durability,
            self._observed,
            checkpoint,
            clock,
            on_answer,
            seal_wanted or threading.Event(),
        )
        self._looks = SourceLooks(
            source,
            self._chunks,
            self._tasks,
            self.tables,
            lambda: self._machine.progress,
            heartbeat_s=pace.heartbeat_s,
            tables_look_s=pace.tables_look_s,
            now_s=clock(),
        )
        self._looked_at: Progress | None = None
        self._spaced = SpacedPositions(clock)
        self._new_limits: Limits | None = None
        self._settled = False
        self._ordered: tuple[TableId, ...] = ()
        self._began_at_cut = checkpoint.cut + 1
        self._rate = RecentRate()
        self._reading = ReadingRate()
        self._events: Counter[str] = Counter()
        self._left_out: Sequence[TableId] = ()

    def _open_spool(self) -> Spool:
        made = self._log.open_spool()
        self._spools[made.name] = made
        return made

    # ── starting ────────────────────────────────────────────────────────────────────────────────────────────

    def _machine_from(self, checkpoint: Checkpoint, limits: Limits) -> Interleave:
        """Create the machine, with the facts that only the log has: ids delivered earlier, and keys of partial rows."""
        progress = Progress.from_json(checkpoint.progress)
        reading = (t for t, p in progress.tables.items() if p.state != "paused" and p.collects_from is not None)
        partial = {table: self._partial_keys.of(table, progress) for table in reading}
        return Interleave(
            epoch=self._epoch,
            checkpoint=checkpoint,
            tables={t.id: t for t in self.tables},
            limits=limits,
            delivered=self._log.delivered(self._chunks.snapshot().maybe_hidden()),
            partial=partial,
        )

    def _begin(self) -> None:
        if self._orders.backfill is not None:
            self._ordered = self._ordered_tables(self._orders.backfill)
        if not self.tables:
            self._on_event(
                "no table to capture yet", {"why": "source.tables matches none; one that is created is captured"}
            )
        self._report_left_out()
        source = self._recording.checkpoint.source
        orders = StoredOrders.read(source)
        again = orders.tables_to_read(self._machine.progress)
        # The next cut removes these requests from the checkpoint, and records that the tables are to be read. After a
        # crash before that cut, the requests are still stored.
        self._recording.checkpoint = replace(self._recording.checkpoint, source=reread.without_orders(source))
        left = self._read_after_loss(orders.history) if orders.history else frozenset(t.id for t in self.tables)
        ordered = () if self._orders.given else self._ordered
        self._read_again(tuple(t for t in ordered if t in left), tuple(t for t in again if t in left))
        if self.capture_paused:  # a paused capture starts an attempt only when it is resumed
            self._take_requests()
        # A statement may have changed rows while nothing was captured, or the order to read such rows again may not
        # have been durable when the last attempt ended. But the row version they were read at is durable, so it is
        # compared.
        self._handle(self._source.compare_rows(known_rows(self._machine.progress)))
        self._began_at_cut = self._recording.checkpoint.cut

    def _report_left_out(self) -> None:
        """Report each table that the settings select and that cannot be captured, once in an attempt."""
        found, reported = self._source.left_out(), self._left_out
        if found == reported:
            return
        for table in (t for t in found if t not in reported):
            self._on_event("table skipped", {"table": str(table), "remedy": "`cdcflow doctor` shows why"})
        self._left_out = found

    def _ordered_tables(self, names: tuple[str, ...]) -> tuple[TableId, ...]:
        """Return the tables that the order names. If the log already has the order, return only those that
        still exist."""
        left = {str(table.id) for table in self.tables}
        kept = tuple(name for name in names if name in left) if self._orders.given else names
        return tables_to_read(kept, self.tables, self._machine.progress) if kept or not names else ()

    def _read_after_loss(self, history: str) -> frozenset[TableId]:
        """After a gap in the log, read all tables again but two kinds: tables that keep their rows, unverified, and
        tables that lack changes. Return the tables of these two kinds.

        A table that lacks changes stays failed: settings that no longer fit it may read it without an error, for
        example if two columns exchanged their names.
        """
        known = self._machine.progress.tables
        kept = [t.id for t in self.tables if history == reread.KEPT and reread.is_kept(known.get(t.id))]
        for table in kept:
            self._on_event("table in doubt", {"table": str(table), "remedy": f"cdcflow repair {word(table)}"})
        failed = [t.id for t in self.tables if t.id in self._machine.progress.lacking]
        for table in failed:
            self._on_event("table failed", {"table": str(table), "reason": known[table].reason})
        left = frozenset((*kept, *failed))
        self._handle(Backfill(tuple(t.id for t in self.tables if t.id not in left)))
        return left

    def _read_again(self, ordered: tuple[TableId, ...], again: tuple[TableId, ...]) -> None:
        """Read the tables that an operator requested, and those that other settings require to be read again."""
        if ordered:
            at_us = int(time.time() * 1e6)
            self._handle(Command(0, "backfill", self._orders.asked_by, at_us, (Backfill(ordered),)))
        for table in again:
            self._on_event("table to be read again", {"table": str(table), "reason": reread.WHY})
        rest = tuple(table for table in again if table not in ordered)
        for order in reread.orders(rest, self._machine.progress):
            self._handle(order)

    def order_is_kept(self) -> bool:
        """Whether the command to backfill is in a durable cut, so that a later attempt need not repeat it."""
        return self._durability.durable.cut >= self._began_at_cut

    # ── the loop ────────────────────────────────────────────────────────────────────────────────────────────

    def run(self, stopping: Callable[[], bool]) -> None:
        """Capture until `stopping` returns true, the capture is paused, or (`once`) the requested tables are read.

        Ends at a cut. Raises whatever ends the attempt early; what is durable stays, and the rest counts as never read.
        """
        self._on_event("capture started", {"epoch": self._epoch, "tables": len(self.tables)})
        self._keep_pace()  # before anything is handled: the first input may open a window
        self._begin()
        while not stopping() and not self.capture_paused and not self._is_served():
            self._turn()
        self._finish()

    def _turn(self) -> None:
        if self._recording.is_behind:
            self._waker.wait(None, IDLE_WAIT_S)
            events: Sequence[StreamEvent] = ()
        else:
            if not self._stream.ready:
                self._waker.wait(self._stream.fileno(), IDLE_WAIT_S)
            events = self._spaced.after(self._stream.poll())
        self._durability.check()
        self._keep_pace()
        self._handle(Tick(int(self._clock() * 1e6)))
        for event in events:
            self._handle(event)
            self._observed.came(event)
        for answer in self._tasks.answers():
            self._tell_read(answer)
            self._handle(answer)
        self._use_new_limits()
        self._take_requests()
        self._recording.make_durable()
        self._recording.acknowledge()
        self._look_after()

    def _keep_pace(self) -> None:
        if (governor := self._governor) is not None:
            if governor.limits:  # otherwise nothing is measured, and each turn would go through all tables for nothing
                governor.observe(is_reading=self._is_to_be_read(), in_window=bool(self._machine.window_tables))
            self._machine.keep_pace(governor.pace)

    def _is_to_be_read(self) -> bool:
        """Whether existing rows are to be read, by this attempt or by the daemon's repairs. The status then shows the
        limits."""
        tables = self._machine.progress.tables.values()
        return self._machine.is_reading or any(
            table.is_repaired_by_daemon(after_any_gap=self._repairs_gaps) for table in tables
        )

    @property
    def durable_position(self) -> Position | None:
        """The position in the source's log through which everything is durable in the change log."""
        return self._durability.durable.position

    @property
    def capture_paused(self) -> bool:
        """Whether the capture is paused."""
        return self._machine.progress.capture_paused

    def _take_requests(self) -> None:
        for request in self._queued_requests():
            self._handle(self._partial_keys.looked_up(request, self._machine.progress))

    def _handle(self, given: Input) -> None:
        effects = self._machine.step(given)
        # Requests to the source go first, so that it reads the next chunk while this chunk is written to the log.
        for effect in effects:
            if isinstance(effect, PlanTable | WriteMark | TakeSnapshot):
                self._tasks.send(effect)
            self._observed.effect_requested(effect)
        for effect in effects:
            self._carry_out(effect)

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case Append():
                self._recording.append(effect)
            case DiscardSpool(name):
                if (spool := self._spools.get(name)) is not None:
                    spool.discard()
            case Cut():
                self._recording.cut(effect)
            case PlanTable() | WriteMark() | TakeSnapshot():
                pass
            case Answered():
                self._recording.record_answer(effect)
            case Event(event, fields):
                self._events[event] += 1
                self._on_event(event, dict(fields))
                self._observed.on_event(event, dict(fields))

    def _tell_read(self, answer: Input) -> None:
        if not isinstance(answer, ChunkRead):
            return
        chunk, rows = answer.chunk, answer.run.rows if answer.run else 0
        if self._governor is not None and answer.run is not None:
            self._governor.count(rows, answer.run.bytes, answer.seconds - answer.idle_seconds)
        kind = "repair" if chunk.repairs else chunk.kind
        event = "table rewritten" if answer.rewritten else f"{kind} chunk read"
        self._events[event] += 1
        seconds = round(answer.seconds, 3)
        self._on_event(event, {"table": str(chunk.table), "number": chunk.number, "rows": rows, "seconds": seconds})

    def _look_after(self) -> None:
        now = self._clock()
        self._recording.roll_if_due(now)
        self._looks.send_due(now)
        self._report_left_out()
        self._observed.prove(self._machine, self._recording.checkpoint.cut, self._durability.durable.cut)
        self._observed.look(now, self._tasks, self._source, self._chunks, self._machine)
        if self._rate.is_due(now):
            rows = self._recording.rows
            self._rate.record(now, rows["captured"] + rows["read"])
            self._reading.record(now, rows["read"], is_reading=self._machine.is_reading)

    def use(self, limits: Limits) -> None:
        """Apply other limits at the next turn. May be called from any thread."""
        self._new_limits = limits

    def _use_new_limits(self) -> None:
        limits, self._new_limits = self._new_limits, None
        if limits is not None:
            self._rate_of_settings = limits.rows_per_second_max
            self._machine.use(limits)

    def _queued_requests(self) -> list[Input]:
        found: list[Input] = []
        with contextlib.suppress(Empty):
            while True:
                found.append(self._requests.get_nowait())
        return found

    # ── ending ──────────────────────────────────────────────────────────────────────────────────────────────

    def _is_served(self) -> bool:
        if not self._orders.once:
            return False
        return self._are_read(tuple(t.id for t in self.tables) if self._orders.backfill is None else self._ordered)

    def has_read_all(self) -> bool:
        """Whether every table was read or cannot be read, and the log's last durable cut records that."""
        return self._are_read(tuple(t.id for t in self.tables))

    def _are_read(self, wanted: Sequence[TableId]) -> bool:
        if self._looked_at is not (progress := self._machine.progress):
            self._looked_at = progress
            states = progress.tables
            self._settled = all(states[t].state in ("done", "failed", "cancelled") for t in wanted)
        is_durable = self._recording.checkpoint.cut == self._durability.durable.cut
        return self._settled and is_durable and self._all_reported(wanted)

    def _all_reported(self, wanted: Sequence[TableId]) -> bool:
        """Whether the log's last cut records the states that these tables have now."""
        logged = self._recording.checkpoint.progress.get("tables", {})
        now = self._machine.progress
        assert isinstance(logged, dict)  # noqa: S101 - cdcflow's own progress JSON
        return all(logged.get(str(t), {}).get("state") == now.tables[t].state for t in wanted)

    def _finish(self) -> None:
        """Make the last cut durable and acknowledge it to the source."""
        self._durability.ask_sync()
        if not self._durability.settle(self._pace.stop_s):
            self._durability.check()
        self._recording.acknowledge()
        told = self._recording.acknowledged
        self._on_event("capture stopped", {"cut": told.cut, "next_offset": told.next_offset})

    def close(self, *, seals: bool = True) -> None:
        """Stop the threads and close the connections to the source. The log stays open: its owner closes it.

        `seals` False: another process waits for the log, and will seal what is not sealed yet.
        """
        if self._governor is not None:
            self._governor.observe(is_reading=False, in_window=False)
        with contextlib.suppress(SourceUnavailable):
            self._stream.close()
        self._tasks.close()
        self._durability.stop(self._pace.sealing_s if seals else 0.0)

    def keys_where(self, table: TableId, predicate: str, keys_max: int) -> KeySet:
        """The keys of the rows for which a predicate (the source's SQL) is true, at most `keys_max` + 1.

        Any thread may call it.

        Raises:
            ConfigurationError: the source does not understand the predicate, or it takes too long.
        """
        return self._chunks.keys_where(table, predicate, keys_max + 1)

    # ── status ──────────────────────────────────────────────────────────────────────────────────────────────

    def status(self) -> dict[str, object]:
        """The current state, as JSON-able values. May be called from any thread."""
        durable = self._durability.durable
        held_rows, held_bytes = self._machine.held_size
        return {
            "epoch": self._epoch,
            "cut": durable.cut,
            "position": position_text(durable.position),
            "next_offset": durable.next_offset,
            "commit_clock": durable.commit_clock,
            "syncs": self._durability.syncs,
            "rows_captured": self._recording.rows["captured"],
            "rows_read": self._recording.rows["read"],
            "rows_per_second": self._rate.rows_per_second(self._clock()),
            "rows_read_per_second": self._reading.rows_per_second,
            "held_rows": held_rows,
            "held_bytes": held_bytes,
            "window": sorted(map(str, self._machine.window_tables)),
            "tables": self._machine.progress.to_status(self._rate_of_settings),
            "left_out": [str(t) for t in self._source.left_out()],
            "events": dict(self._events),
            **self._rows_from(),
        }

    def _rows_from(self) -> dict[str, str]:
        found = self._source.rows_from() if isinstance(self._source, RowsElsewhere) else ""
        return {"rows_from": found} if found else {}

    def counts(self) -> dict[str, int]:
        return {**self._observed.counts, "syncs": self._durability.syncs}

    @property
    def events(self) -> Counter[str]:
        return Counter(dict(self._events))  # copied at once: the loop keeps counting

    @property
    def progress(self) -> Progress:
        return self._machine.progress


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


def tables_to_read(names: Sequence[str], tables: Sequence[Table], progress: Progress) -> tuple[TableId, ...]:
    """Return the captured tables with these names, for a backfill; () gives all.

    Raises:
        ConfigurationError: as `table_ids`; also if () is given and one of the tables lacks changes, because the
            settings may not fit it.
    """
    found = table_ids(names, tables)
    lacking = [] if names else [t for t in found if t in progress.lacking and not progress.tables[t].is_refused]
    if lacking:
        raise ConfigurationError(
            f"reading all tables again: changes of {', '.join(map(str, lacking))} could not leave the source with the "
            "settings, and they may read the wrong columns without an error",
            remedy=f"do what `cdcflow status` shows for it, then run `cdcflow backfill {' '.join(map(word, lacking))}`"
            "; to read the other tables only, name them",
            runbook="changes-refused",
        )
    return found


class RecentRate:
    """The rate, in rows per second, over the last few seconds. Used by one thread, readable from any."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque(maxlen=64)

    def is_due(self, now_s: float) -> bool:
        """Whether it is time to call `record` again."""
        return not self._seen or now_s - self._seen[-1][0] >= RATE_EACH_S

    def record(self, now_s: float, rows: int) -> None:
        """Record the number of rows so far."""
        self._seen.append((now_s, rows))

    def rows_per_second(self, now_s: float) -> float:
        recent = [point for point in list(self._seen) if point[0] >= now_s - RATE_RECENT_S]
        if len(recent) < 2:
            return 0.0
        return round((recent[-1][1] - recent[0][1]) / max(recent[-1][0] - recent[0][0], 0.001), 1)


class ReadingRate:
    """The rate, in rows per second, over the time in which backfills were reading. Used by one thread, readable from
    any."""

    def __init__(self) -> None:
        self._seconds = 0.0
        self._rows = 0
        self._before: tuple[float, int] | None = None

    def record(self, now_s: float, rows: int, *, is_reading: bool) -> None:
        """Record the number of rows read so far, and whether there are more to read."""
        if self._before is not None and (is_reading or rows > self._before[1]):
            self._seconds += now_s - self._before[0]
            self._rows += rows - self._before[1]
        self._before = now_s, rows

    @property
    def rows_per_second(self) -> float | None:
        """The rate; None if reading did not last long enough to measure it."""
        return self._rows / self._seconds if self._rows and self._seconds >= RATE_LEAST_S else None
