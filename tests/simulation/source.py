"""The model database as a source: `Source`, `Stream` and `ChunkSource` of `cdcflow.ports` over it, in steps.

One `ModelSource` is one start of the capture: its connections end with it, or when the server goes down. The server
forgets what was acknowledged, once it is notified of it: a reader that returns for that finds it missing.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from random import Random

from tests.simulation.database import Database, Filled, Mark, Statement
from tests.simulation.faults import Faults
from tests.simulation.log import Violation
from tests.simulation.servers import Places
from tests.simulation.steps import Later
from tests.simulation.transactions import Keys, Plain, Row, Transaction, lsn_of, plain_keys, position_of

from cdcflow.capture.interleave.messages import (
    Advanced,
    ChangesRefused,
    Chunk,
    ChunkRead,
    Committed,
    KnownRows,
    MarkSeen,
    Planned,
    RowsCompared,
    RowsFilled,
    RowVersion,
    Visibility,
)
from cdcflow.capture.ports.findings import Dropped, Finding
from cdcflow.capture.ports.log import OpenSpool
from cdcflow.capture.ports.source import Prepared, Preview, SourceHistory, SourceStatus, TransactionsBack
from cdcflow.capture.ports.stream import StreamEvent
from cdcflow.errors import HistoryLost, SourceUnavailable
from cdcflow.model.change import KeySet
from cdcflow.model.position import Checkpoint, Position, SourceIdentity, Token
from cdcflow.model.table import Table, TableId


@dataclass(slots=True)
class Weather:
    """The source's current behaviour: how often a request fails, how many records a poll may bring.

    `silent_polls`: the number of polls that bring nothing. `settled`: nothing more happens except what was requested.
    """

    failing: float
    polls: Sequence[int]
    silent_polls: int = 0
    settled: bool = False


@dataclass(slots=True)
class Reading:
    """A plan or a chunk under way: parts still to be read, rows and snapshots so far. `before`: what was visible before
    the next part's snapshot, where that must be queried, `beat` a place in the log that has to be visible for it."""

    table: TableId
    chunk: Chunk | None = None
    parts: list[tuple[int, int]] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    snapshots: list[Visibility] = field(default_factory=list)
    before: Visibility | None = None
    beat: int | None = None


class ModelSource:
    """Implements `Source` and `ChunkSource`. What takes several steps raises `Later` in between."""

    def __init__(self, database: Database, rng: Random, weather: Weather, faults: Faults, begun: Counter[str]) -> None:
        self._database = database
        self._rng = rng
        self._weather = weather
        self._faults = faults
        self._counts = begun
        self._begins_at = 0
        self._written: dict[Token, int] = {}
        self._beyond = 0
        self._readings: dict[object, Reading] = {}
        self.is_lost = False
        self.reader: ModelStream | None = None
        self.repairing: Chunk | None = None

    @property
    def wanted(self) -> list[Chunk]:
        """The chunks that a reader is about to read."""
        return [r.chunk for r in self._readings.values() if r.chunk is not None and not r.snapshots]

    # ── Source ──────────────────────────────────────────────────────────────────────────────────────────────

    def identity(self) -> SourceIdentity:
        return SourceIdentity("model", "1", "public")

    def prepare(
        self,
        checkpoint: Checkpoint,
        log_id: str,
        transactions_back: TransactionsBack | None = None,
        *,
        accept_history_loss: bool = False,
    ) -> Prepared:
        """Check that the source still has the log that follows.

        It waits for transactions that began before tables were added.
        """
        database = self._database
        if checkpoint.position is None:
            return Prepared(replace(checkpoint, position=position_of(0), source={"slot": log_id}))
        if accept_history_loss:
            return Prepared(replace(checkpoint, position=position_of(len(database.wal))), SourceHistory.LOST)
        if lsn_of(checkpoint.position) < database.confirmed:
            raise HistoryLost(
                f"the log is at {checkpoint.position}, the source has forgotten all to {database.confirmed}"
            )
        if database.older & database.open.keys() and not self._faults.runs_over_running:
            raise SourceUnavailable("transactions that began before tables were added are still running")
        return Prepared(checkpoint)

    def tables(self) -> Sequence[Table]:
        """Names and key only: the machine learns a shape when rows arrive with it."""
        known = sorted((t.id, t.shape.incarnation, t.keyed) for t in self._database.tables.values())
        return [
            Table(table, incarnation, (), ("id",) if keyed else ())
            for table, incarnation, keyed in known
            if table in self._database.published
        ]

    def left_out(self, checkpoint: Checkpoint | None = None) -> Sequence[TableId]:
        return ()

    def preview(self, checkpoint: Checkpoint, log_id: str) -> Preview:
        return Preview(())

    def compare_rows(self, known: Mapping[TableId, KnownRows]) -> RowsCompared:
        found = []
        for table, rows in known.items():
            version = rows.version
            now = str(self._database.tables[table].version)
            if version != now and not self._faults.fills_unsaid:
                found.append(RowVersion(table, version, now, version is not None))
        return RowsCompared(tuple(found))

    def left_behind(self, log_id: str) -> Sequence[Finding]:
        return ()

    def drop(self, log_id: str, checkpoint: Checkpoint) -> Sequence[Dropped]:
        return ()

    def stream(self, checkpoint: Checkpoint, open_spool: OpenSpool) -> ModelStream:
        self._begins_at = lsn_of(checkpoint.position)
        if self._database.server.has_binlog:
            self._database.send_also(self._begins_at)
        self.reader = ModelStream(self, self._database, self._rng, self._weather, self._faults, self._begins_at)
        self.reader.counts = self._counts
        return self.reader

    def chunks(self) -> ModelSource:
        return self

    def doctor(self) -> Sequence[Finding]:
        return ()

    def continues(self, newest: Callable[[], Checkpoint], log_id: str) -> Sequence[Finding]:
        return ()

    def status(self, acknowledged: Position | None, log_id: str = "") -> SourceStatus:
        return SourceStatus(None, None, {})

    def close(self) -> None:
        self.is_lost = True

    def check(self) -> None:
        if self.is_lost:
            raise SourceUnavailable("the server went down")

    # ── ChunkSource ─────────────────────────────────────────────────────────────────────────────────────────

    def plan(self, table: TableId, generation: int) -> Planned:
        known = self._database.tables[table]
        with self._under_way((table, generation), lambda: Reading(table)) as reading:
            self._try("the plan was cut off")
            if not self._database.readable(table) or not self._may_read():
                raise Later
            if self._database.server.has_binlog:
                self._look(reading)
            elif self._database.server.fence == "replay":
                reading.snapshots.append(self._sees())
        bound = self._database.bound(table)
        plan = json.dumps({"rel": known.rel, "bound": bound})
        fence = () if self._faults.plans_without_fence else tuple(reading.snapshots)
        size = self._rng.randint(1, 3)
        return Planned(
            table,
            generation,
            plan,
            size,
            max(1, bound),
            known.shape,
            whole=not known.keyed,
            visibilities=fence,
            row_version=str(known.version),
        )

    def write_mark(self, token: Token) -> None:
        self.check()
        failing = self._rng.random() < self._weather.failing
        if not failing or self._rng.random() < 0.5:  # the mark may have been written although the answer is lost
            self._write(token)
        if failing:
            raise SourceUnavailable("a mark was cut off")
        if not self._answered(token):
            raise Later

    def read_chunk(self, chunk: Chunk) -> ChunkRead:
        database = self._database
        self.repairing = chunk if chunk.repairs else None
        with self._under_way((chunk.low, chunk.table), lambda: self._begin(chunk)) as reading:
            self._try("a chunk was cut off")
            if not self._may_read() or not database.readable(chunk.table):
                raise Later
            shape = database.tables[chunk.table].shape
            if chunk.kind == "range" and not self._as_planned(chunk):
                return ChunkRead(chunk, None, shape, (), rewritten=True)
            if any(r.shape != shape for r in reading.rows):
                raise SourceUnavailable("the shape changed between two parts")
            self._look(reading)
            self._read_part(chunk, reading)
            if reading.parts:
                raise Later
            return self._answer(chunk, reading)

    def keys_where(self, table: TableId, predicate: str, keys_max: int) -> KeySet:
        raise AssertionError("the simulation orders rows by their keys")

    def snapshot(self) -> Visibility:
        self._counts["looks asked"] += self.reader is not None
        return self._sees()

    def _sees(self) -> Visibility:
        self.check()
        return self._database.end() if self._faults.takes_log_end_for_visible else self._database.sees()

    def heartbeat(self) -> None:
        self.check()
        if not self._weather.settled:
            self._counts["heartbeats"] += 1
            time = self._database.sendable
            end = self._database.write_mark(Token("heartbeat"))
            if self.reader is not None and not self._database.server.writes_marks:
                self.reader.expected_times.append((end, time))

    # ── inside ──────────────────────────────────────────────────────────────────────────────────────────────

    def _try(self, failure: str) -> None:
        self.check()
        if self._rng.random() < self._weather.failing:
            raise SourceUnavailable(failure)

    @contextmanager
    def _under_way(self, key: object, begin: Callable[[], Reading]) -> Iterator[Reading]:
        """What was begun under this key. The first call begins, the next ones continue until it ends."""
        if key not in self._readings:
            self._readings[key] = begin()
            raise Later
        try:
            yield self._readings[key]
        except Later:
            raise
        except BaseException:
            del self._readings[key]
            raise
        del self._readings[key]

    def _write(self, token: Token) -> None:
        if token in self._written:
            return
        self._written[token] = max(self._database.write_mark(token), self._beyond)
        if not self._database.server.writes_marks and self.reader is not None:
            self.reader.expected.append((self._written[token], token))

    def _answered(self, token: Token) -> bool:
        """A row's commit is answered once it is visible, and where commits are ordered, all before it then are too."""
        server = self._database.server
        if not (server.has_binlog and server.writes_marks and server.ordered):
            return True
        return self._database.shows(self._written[token])

    def _may_read(self) -> bool:
        """A binary log identifies transactions by their place in it, so everything in cdcflow's log precedes the place
        where this start began: nothing is read before all of that is visible."""
        server = self._database.server
        return not server.has_binlog or self._faults.chunks_before_visible or self._database.shows(self._begins_at)

    def _as_planned(self, chunk: Chunk) -> bool:
        """Pages are others after a rewrite; keys are not."""
        if self._database.server.has_binlog:
            return True
        return bool(json.loads(chunk.plan)["rel"] == self._database.tables[chunk.table].rel)

    def _begin(self, chunk: Chunk) -> Reading:
        parts = [(0, 0)]
        if chunk.kind == "range":
            first, last, _ = _units(chunk)
            middle = (first + last) // 2
            several = last > first and self._rng.random() < 0.5
            parts = [(first, middle), (middle + 1, last)] if several else [(first, last)]
        self._counts[f"{chunk.kind} chunks asked"] += 1
        return Reading(chunk.table, chunk, parts)

    def _look(self, reading: Reading) -> None:
        """Get all that the snapshot, which is taken now, sees; otherwise try again later."""
        database = self._database
        if not database.server.looks_twice:
            reading.snapshots.append(self._sees())
        elif reading.chunk is not None and reading.chunk.kind == "whole" and database.server.has_binlog:
            if not database.is_at_rest(reading.table):
                raise Later
            reading.snapshots.append(database.end())
        elif reading.before is None:
            reading.before = self._before(reading)
            raise Later
        else:
            reading.snapshots += [reading.before, self._after()]
            reading.before = reading.beat = None

    def _after(self) -> Places:
        """What the snapshot, which is taken now, sees at most."""
        database = self._database
        if database.server.fence != "replay":
            return database.end()
        unseen = database.replayed if self._faults.forgets_record_in_replay else database.unseen()
        if not self._faults.marks_before_what_was_seen:
            self._beyond = max(self._beyond, unseen)
        return Places(unseen)

    def _before(self, reading: Reading) -> Visibility | None:
        database = self._database
        if database.server.fence in ("replay", "gtids"):
            return self._sees()
        if reading.beat is None:
            reading.beat = len(database.wal)
            database.write_mark(Token("heartbeat"))
        shown = database.shows(reading.beat) or not database.server.ordered
        return Places(reading.beat) if shown else None

    def _read_part(self, chunk: Chunk, reading: Reading) -> None:
        first, last = reading.parts.pop(0)
        match chunk.kind:
            case "range":
                reading.rows += self._database.rows_in(chunk, first, last)
            case "keys":
                reading.rows += self._database.rows_with(chunk)
            case "whole":
                reading.rows += self._database.rows_of(chunk)

    def _answer(self, chunk: Chunk, reading: Reading) -> ChunkRead:
        if chunk.repairs:
            return self._repaired(chunk, reading)
        run = Plain((Transaction(0, 0, tuple(reading.rows)),), read=True)
        seconds = self._rng.choice([0.001, 0.1, 0.3, 2.0])
        shape = self._database.tables[chunk.table].shape
        looks = tuple(reading.snapshots)
        if chunk.kind != "range":
            return ChunkRead(chunk, run, shape, looks, seconds=seconds)
        _, last, bound = _units(chunk)
        return ChunkRead(chunk, run, shape, looks, str(last), last, last >= bound, seconds)

    def _repaired(self, chunk: Chunk, reading: Reading) -> ChunkRead:
        """A chunk of keys, with a delete of each missing key; some keys may be left for the next one."""
        asked = plain_keys(chunk.keys or Keys(()))
        looked_for = self._rng.randint(1, len(asked)) if self._rng.random() < 0.6 else len(asked)
        left = asked[looked_for:]
        rows = [row for row in reading.rows if row.values["id"] not in left]
        there = {row.values["id"] for row in rows}
        if self._faults.deletes_behind_rows:
            there.clear()
        gone = [key for key in asked if key not in there and (key not in left or self._faults.deletes_keys_left)]
        if self._faults.deletes_nothing:
            gone.clear()
        deletes = self._database.gone(chunk, gone)
        found = (*rows, *deletes) if self._faults.deletes_behind_rows else (*deletes, *rows)
        self._counts["repair chunks with deletes"] += bool(deletes)
        self._counts["repair chunks with keys left"] += bool(left)
        return ChunkRead(
            chunk,
            Plain((Transaction(0, 0, found),), read=True),
            self._database.tables[chunk.table].shape,
            tuple(reading.snapshots),
            seconds=0.1,
            keys_left=Keys(left) if left else None,
            deleted=len(deletes),
        )


def _units(chunk: Chunk) -> tuple[int, int, int]:
    """First and last unit of a range chunk, and the plan's bound."""
    bound = json.loads(chunk.plan)["bound"]
    first = 1 if chunk.after is None else int(chunk.after) + 1
    return first, min(first + chunk.size - 1, bound), bound


class ModelStream:
    """Implements `Stream`: the source sends from the acknowledged position; what the checkpoint has is skipped."""

    def __init__(
        self, source: ModelSource, database: Database, rng: Random, weather: Weather, faults: Faults, skip_to: int
    ) -> None:
        self._source = source
        self._database = database
        self._rng = rng
        self._weather = weather
        self._faults = faults
        self._sent = database.confirmed
        self._skip_to = skip_to - (faults.skips_after_restart < 0)
        self._skip_more = max(0, faults.skips_after_restart) if skip_to else 0
        self._acknowledged = skip_to
        self.expected: list[tuple[int, Token]] = []
        self.expected_times: list[tuple[int, int]] = []
        self.counts: Counter[str] = Counter()

    def fileno(self) -> int:
        return -1

    @property
    def ready(self) -> bool:
        return self._sent < self._database.sendable

    def acknowledge(self, position: Position) -> None:
        if lsn_of(position) < self._acknowledged:
            raise Violation(f"I6: the acknowledged position goes back from {self._acknowledged} to {position}")
        self._acknowledged = lsn_of(position)

    def tell_server(self) -> None:
        """What was acknowledged reaches the server, which forgets it."""
        self._database.confirmed = max(self._database.confirmed, self._acknowledged)

    def close(self) -> None:
        """It has no connection."""

    def poll(self) -> Sequence[StreamEvent]:
        """A random number of records, up to a limit; a batch ends at a mark."""
        self._source.check()
        events: list[StreamEvent] = []
        batch: list[Transaction] = []

        def deliver() -> None:
            if batch:
                events.extend(self._as_they_leave(Plain(tuple(batch))))
                batch.clear()

        if self._weather.silent_polls:
            self._weather.silent_polls -= 1
            return []
        count = self._rng.choice(self._weather.polls)
        while count:
            if self.expected and self.expected[0][0] <= self._sent:
                deliver()
                events.append(MarkSeen(self.expected.pop(0)[1], position_of(self._sent), 0))
                continue
            if self.expected_times and self.expected_times[0][0] <= self._sent:
                deliver()
                time = self._time(self.expected_times.pop(0)[1])
                events.append(Advanced(position_of(self._sent), time))
                continue
            if self._sent >= self._database.sendable:
                break
            record = self._database.wal[self._sent]
            self._sent += 1
            count -= 1
            if self._sent <= self._skip_to:
                self.counts["skipped after a restart"] += 1
            elif isinstance(record, Transaction):
                if self._skip_more and record.rows:
                    self._skip_more -= 1
                else:
                    batch.append(self._decoded(record))
            else:
                deliver()
                events += self._event(record)
        deliver()
        # Requests to read again go first, so that no position after a statement is durable without its request.
        events.sort(key=lambda event: not isinstance(event, RowsFilled))
        if self._sent == self._database.sendable and self._sent > self._skip_to and self._rng.random() < 0.3:
            events.append(Advanced(position_of(self._sent)))
        return events

    def _as_they_leave(self, run: Plain) -> Sequence[StreamEvent]:
        """Transactions without the tables that have an unfit row, after an event for each such table."""
        unfit = frozenset(row.table for item in run.items for row in item.rows if row.unfit)
        self.counts["changes refused"] += len(unfit)
        before = position_of(run.items[0].lsn - 1)
        return [*(ChangesRefused(table, "unfit", before) for table in sorted(unfit)), Committed(run.without(unfit))]

    def _event(self, record: Mark | Filled | Statement) -> Sequence[StreamEvent]:
        if isinstance(record, Mark):
            return [MarkSeen(record.token, position_of(self._sent), self._time(self._sent))]
        if isinstance(record, Statement) or not self._database.server.has_binlog:
            return []
        if record.table not in self._database.published or self._faults.fills_unsaid:
            return []
        # Some of those that delete rows name other tables: a trigger deleted them.
        is_possible = any(key % 2 for key in record.gone)
        return [RowsFilled(record.table, position_of(self._sent - 1), possible=is_possible)]

    def _time(self, known: int) -> int:
        """The source's clock is the length of its log; one that is queried late has advanced since."""
        return self._database.flushed if self._faults.asks_time_late else known

    def _decoded(self, record: Transaction) -> Transaction:
        rows = tuple(r for r in record.rows if r.published)
        if self._faults.unchanged_as_null:
            filled = (r._replace(values={**r.values, **dict.fromkeys(r.unchanged)}) for r in rows)
            rows = tuple(r._replace(unchanged=frozenset()) for r in filled)
        return record._replace(rows=rows)
