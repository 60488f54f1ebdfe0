"""The capture process of the simulation: the loop around the real machine, one small step at a time.

Requests to the source and their answers wait in bags and are taken out in any order. Everything here is lost at a
crash; the log is not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

import numpy as np
from tests.simulation.database import Database, Mark, Places, Statement
from tests.simulation.log import ModelLog
from tests.simulation.transactions import Keys, Plain, Row, Transaction, position_of

from cdcflow.interleave.machine import Interleave, Limits
from cdcflow.interleave.messages import (
    Advanced,
    Append,
    ChunkFailed,
    ChunkRead,
    Committed,
    Cut,
    Input,
    MarkSeen,
    MarkWritten,
    PlanTable,
    ReadChunk,
    Resume,
    RowsCompared,
    RowVersion,
    SnapshotTaken,
    TakeSnapshot,
    Tick,
    Told,
    Visibility,
    WriteMark,
)
from cdcflow.interleave.progress import Progress
from cdcflow.model.change import Uint64s
from cdcflow.model.position import Epoch, Token
from cdcflow.model.table import TableId


@dataclass(frozen=True, slots=True)
class Faults:
    """Bugs that can be planted. `machine` replaces the machine itself, `patch` one attribute of a class; the others
    are in the capture around it."""

    machine: type[Interleave] = Interleave
    patch: tuple[type, str, object] | None = None
    epoch_forgotten: bool = False
    unchanged_as_null: bool = False
    acknowledges_cuts: bool = False
    skips_after_restart: int = 0
    runs_over_running: bool = False
    takes_log_end_for_visible: bool = False
    chunks_before_visible: bool = False


@dataclass(slots=True)
class Reading:
    """A chunk that is being read: parts still to be read, rows and snapshots so far. `before`: what was visible before
    the next part's snapshot, where that has to be asked, `beat` a place in the log that has to be visible for it."""

    request: ReadChunk
    parts: list[tuple[int, int]]
    rows: list[Row]
    snapshots: list[Visibility]
    before: Visibility | None = None
    beat: int | None = None


Request = PlanTable | WriteMark | ReadChunk | TakeSnapshot


class Capture:
    def __init__(self, database: Database, log: ModelLog, rng: Random, limits: Limits, faults: Faults) -> None:
        self.counts: Counter[str] = Counter()
        self._database = database
        self._log = log
        self._rng = rng
        self._limits = limits
        self._faults = faults
        self._epoch = 0
        self._now_us = 0
        self.start()

    def start(self) -> None:
        """A new process, or a new attempt after a lost connection: from the log's last cut."""
        checkpoint = self._log.recover(self._rng)
        self._epoch += 1
        self._begins_at = int(checkpoint.position or 0)
        if self._database.server.has_binlog:
            self._database.send_also(self._begins_at)
        progress = Progress.from_json(checkpoint.progress)
        self.machine = self._faults.machine(
            epoch=Epoch(1 if self._faults.epoch_forgotten else self._epoch),
            checkpoint=checkpoint,
            tables={t.id: t.shape for t in self._database.tables.values() if t.id in self._database.published},
            limits=self._limits,
            delivered=self._unseen(progress),
            partial={
                table: keys
                for table, known in progress.tables.items()
                if known.state == "reading" and (keys := self._log.partial_keys(table, known.since)) is not None
            },
        )
        self.answers: list[Input] = []
        self.requests: list[Request] = []
        self.readings: list[Reading] = []
        self._written: dict[Token, int] = {}
        self._expected: list[tuple[int, Token]] = []
        # The source sends from the last acknowledged position on; what the checkpoint has is skipped here.
        self._sent = self._log.acknowledged
        self._skip_to = int(checkpoint.position or 0)
        self._skip_more = max(0, self._faults.skips_after_restart) if self._skip_to else 0
        if self._faults.skips_after_restart < 0:
            self._skip_to -= 1
        self.feed(self._compared())

    def _unseen(self, progress: Progress) -> Uint64s:
        """Ids that a chunk must see although this epoch will not deliver them.

        Those that the log has and that are not visible yet. And while no chunk of a table is in the log since it is
        captured, all that are running now: they may have written to it before it was published, and what they wrote
        then is never sent.

        A binary log tells ids by their place in it, so all that the log has lies before the place to begin at: there
        chunks wait until all that is visible.
        """
        if self._database.server.has_binlog:
            return np.empty(0, np.uint64)
        known = progress.tables
        captured = (known.get(table) for table in self._database.published)
        anew = any(p is None or p.state == "forgotten" or (p.active and not p.chunks) for p in captured)
        hidden = self._database.snapshot().hidden(self._log.delivered())
        if not anew or self._faults.runs_over_running:
            return hidden
        self._database.heartbeat()
        running = [xid & 0xFFFFFFFF for xid in self._database.snapshot().in_progress]
        return np.concatenate([hidden, np.array(running, np.uint64)])

    # ── steps ───────────────────────────────────────────────────────────────────────────────────────────────

    def resume(self, table: TableId) -> None:
        known = self.machine.progress.tables.get(table)
        partial = None if known is None else self._log.partial_keys(table, known.since) or Keys(())
        self.feed(Resume(table, partial))

    def feed(self, given: Input) -> None:
        for effect in self.machine.step(given):
            match effect:
                case Append():
                    self._log.append(effect)
                    self.counts["chunks appended"] += effect.run.xids[0] == 0
                case Cut():
                    self._log.cut(effect, Epoch(self._epoch))
                    if self._faults.acknowledges_cuts:
                        self._log.acknowledge(int(effect.position))
                case PlanTable() | WriteMark() | TakeSnapshot():
                    self.requests.append(effect)
                    if isinstance(effect, TakeSnapshot):
                        self.counts["looks asked"] += 1
                case Told(event, fields):
                    self._count(event, dict(fields))

    def _count(self, event: str, fields: dict[str, object]) -> None:
        self.counts[event] += 1
        if event == "chunk given up":
            self.counts[f"{event}: {fields['reason']}"] += 1
        if event == "window closed":
            self.counts["windows closed with transactions held"] += bool(fields["held"])
            self.counts["windows closed with several chunks"] += fields["chunks"] != 1

    def poll(self, count: int) -> None:
        """Take up to `count` records from the stream; a batch ends at a mark."""
        batch: list[Transaction] = []
        wal, flushed = self._database.wal, self._database.flushed
        while count:
            if self._expected and self._expected[0][0] <= self._sent:
                self._deliver(batch)
                batch = []
                self.feed(MarkSeen(self._expected.pop(0)[1], position_of(self._sent), 0))
                continue
            if self._sent >= flushed:
                break
            record = wal[self._sent]
            self._sent += 1
            count -= 1
            if self._sent <= self._skip_to:
                self.counts["skipped after a restart"] += 1
                continue
            if isinstance(record, Statement):
                continue
            if isinstance(record, Mark):
                self._deliver(batch)
                batch = []
                self.feed(MarkSeen(record.token, position_of(self._sent), 0))
            elif self._skip_more and record.rows:
                self._skip_more -= 1
            else:
                batch.append(self._decoded(record))
        self._deliver(batch)
        if self._sent == flushed and self._sent > self._skip_to and self._rng.random() < 0.3:
            self.feed(Advanced(position_of(self._sent)))

    def _deliver(self, batch: Sequence[Transaction]) -> None:
        if batch:
            self.feed(Committed(Plain(tuple(batch))))

    def _decoded(self, record: Transaction) -> Transaction:
        rows = tuple(r for r in record.rows if r.published)
        if self._faults.unchanged_as_null:
            filled = (r._replace(values={**r.values, **dict.fromkeys(r.unchanged)}) for r in rows)
            rows = tuple(r._replace(unchanged=frozenset()) for r in filled)
        return record._replace(rows=rows)

    def compare_rows(self) -> None:
        """A look at the catalog, one at a time."""
        under_way = any(isinstance(answer, RowsCompared) for answer in self.answers)
        if not under_way and (compared := self._compared()).found:
            self.answers.append(compared)

    def _compared(self) -> RowsCompared:
        found = []
        for table, known in self.machine.progress.tables.items():
            now = str(self._database.tables[table].version)
            if (known.state == "done" or known.active) and known.row_version != now:
                found.append(RowVersion(table, known.row_version, now, known.row_version is not None))
        return RowsCompared(tuple(found))

    def answer(self) -> None:
        """One of the answers that are there reaches the machine. Only those of a mark and of the chunks that were read
        for it keep their order."""
        written = {a.token for a in self.answers if isinstance(a, MarkWritten)}
        free = [a for a in self.answers if not (isinstance(a, ChunkRead) and a.chunk.low in written)]
        if free:
            answer = self._rng.choice(free)
            self.answers = [a for a in self.answers if a is not answer]
            self.feed(answer)

    def tick(self) -> None:
        self._now_us += self._rng.choice([1_000, 100_000, 1_000_000])
        self.feed(Tick(self._now_us))

    def acknowledge(self) -> None:
        self._log.acknowledge(max(self._log.acknowledged, self._log.cuts[self._log.durable].lsn))

    def ask_source(self, failing: float) -> None:
        """The source works on one of our requests, or on one more part of a chunk that is being read."""
        pick = self._rng.randrange(len(self.requests) + len(self.readings)) if self.requests or self.readings else -1
        if pick >= len(self.requests):
            self._read_on(self.readings[pick - len(self.requests)])
        elif pick >= 0:
            request = self.requests[pick]
            if self._begin(request, failing=self._rng.random() < failing):
                self.requests.remove(request)

    def _begin(self, request: Request, *, failing: bool) -> bool:
        """Whether the source has begun to work on it; else it comes again."""
        match request:
            case PlanTable(table, generation):
                if not self._database.readable(table):
                    return False
                plan = self._database.plan(table, generation)
                self.answers.append(ChunkFailed(table, "the plan was cut off", retry=True) if failing else plan)
            case WriteMark(token, reads):
                if not failing or self._rng.random() < 0.5:  # a mark may be there although the answer is lost
                    if token not in self._written:
                        self._write_mark(token)
                    if not failing and not self._answered(token):
                        return False
                if failing:
                    self.answers.append(ChunkFailed(None, "a mark was cut off", retry=True))
                else:
                    self.answers.append(MarkWritten(token))
                    self.requests += reads
                    self.counts.update(f"{read.chunk.kind} chunks asked" for read in reads)
            case TakeSnapshot():
                self.answers.append(SnapshotTaken(self._sees()))
            case ReadChunk(chunk):
                if not self._may_read():
                    return False
                if failing:
                    self.answers.append(ChunkFailed(chunk.table, "a chunk was cut off", retry=True))
                else:
                    self._begin_chunk(request)
        return True

    def _write_mark(self, token: Token) -> None:
        self._written[token] = self._database.write_mark(token)
        if not self._database.server.writes_marks:
            self._expected.append((self._written[token], token))

    def _answered(self, token: Token) -> bool:
        """A row's commit is answered once it is visible, and where commits are ordered, all before it then are too."""
        server = self._database.server
        if not (server.has_binlog and server.writes_marks and server.ordered):
            return True
        return self._database.shows(self._written[token])

    def _may_read(self) -> bool:
        server = self._database.server
        return not server.has_binlog or self._faults.chunks_before_visible or self._database.shows(self._begins_at)

    def _looked(self, reading: Reading) -> bool:
        """Whether all is known of what the snapshot, which is taken now, sees."""
        database = self._database
        if not database.server.looks_twice:
            reading.snapshots.append(self._sees())
            return True
        if reading.request.chunk.kind == "whole":
            if not database.is_at_rest(reading.request.chunk.table):
                return False
            reading.snapshots.append(database.end())
            return True
        if reading.before is None:
            reading.before = self._before(reading)
            return False
        reading.snapshots += [reading.before, database.end()]
        reading.before = reading.beat = None
        return True

    def _before(self, reading: Reading) -> Visibility | None:
        database = self._database
        if database.server.fence == "gtids":
            return self._sees()
        if reading.beat is None:
            reading.beat = len(database.wal)
            database.write_mark(Token("heartbeat"))
        shown = database.shows(reading.beat) or not database.server.ordered
        return Places(reading.beat) if shown else None

    def _sees(self) -> Visibility:
        return self._database.end() if self._faults.takes_log_end_for_visible else self._database.sees()

    def _begin_chunk(self, request: ReadChunk) -> None:
        chunk = request.chunk
        parts = [(0, 0)]
        if chunk.kind == "range":
            first, last, _ = self._database.pages_of(chunk)
            middle = (first + last) // 2
            several = last > first and self._rng.random() < 0.5
            parts = [(first, middle), (middle + 1, last)] if several else [(first, last)]
        self.readings.append(Reading(request, parts, [], []))

    def _read_on(self, reading: Reading) -> None:
        chunk, database = reading.request.chunk, self._database
        if not database.readable(chunk.table):
            return
        shape = database.tables[chunk.table].shape
        if chunk.kind == "range" and not database.same_pages(chunk):
            self.readings.remove(reading)
            self.answers.append(ChunkRead(chunk, None, shape, (), rewritten=True))
            return
        if reading.rows and any(r.shape != shape for r in reading.rows):
            self.readings.remove(reading)
            self.answers.append(ChunkFailed(chunk.table, "the shape changed between two parts", retry=True))
            return
        if not self._looked(reading):
            return
        first, last = reading.parts.pop(0)
        match chunk.kind:
            case "range":
                reading.rows += database.rows_on(chunk, first, last)
            case "keys":
                reading.rows += database.rows_with(chunk)
            case "whole":
                reading.rows += database.rows_of(chunk)
        if not reading.parts:
            self.readings.remove(reading)
            self.answers.append(self._read(reading))

    def _read(self, reading: Reading) -> ChunkRead:
        chunk = reading.request.chunk
        run = Plain((Transaction(0, 0, tuple(reading.rows)),), read=True)
        seconds = self._rng.choice([0.001, 0.1, 0.3, 2.0])
        shape = self._database.tables[chunk.table].shape
        looks = tuple(reading.snapshots)
        if chunk.kind != "range":
            return ChunkRead(chunk, run, shape, looks, seconds=seconds)
        _, last, bound = self._database.pages_of(chunk)
        return ChunkRead(chunk, run, shape, looks, str(last), last, last >= bound, seconds)
