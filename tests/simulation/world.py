"""One schedule: a database, a capture, a log, and a seed that decides what happens next."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from random import Random
from unittest import mock

from tests.simulation.capture import Capture, Faults
from tests.simulation.database import SERVERS, Database, Mode, Server
from tests.simulation.log import ModelLog, Violation
from tests.simulation.transactions import Keys

from cdcflow.errors import InvariantViolated
from cdcflow.interleave.machine import Limits
from cdcflow.interleave.messages import Adjust, Backfill, Cancel, Input, Pause, ReadChunk, Resume
from cdcflow.model.table import TableId

SETTLE_ROUNDS = 600


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a schedule came to. `violation` None: all invariants held."""

    seed: int
    violation: str | None
    cuts: int
    crashes: int
    counts: Counter[str]


NO_FAULTS = Faults()


def run(seed: int, faults: Faults = NO_FAULTS, server: Server = SERVERS["postgres"]) -> Outcome:
    """Play one schedule to its end, where everything must have come to rest and be equal."""
    world = World(seed, faults, server)
    violation = None
    try:
        with nullcontext() if faults.patch is None else mock.patch.object(*faults.patch):
            world.play()
            world.settle()
    except (Violation, InvariantViolated) as error:
        violation = f"{type(error).__name__} {error}"
    counts = world.counts + world.database.counts + world.log.counts + world.capture.counts
    return Outcome(seed, violation, world.log.checked, world.counts["crashes"], counts)


class World:
    def __init__(self, seed: int, faults: Faults, server: Server) -> None:
        self.rng = rng = Random(seed)
        self._keys = Random(f"keys {seed}")
        self.counts: Counter[str] = Counter()
        modes: list[list[Mode]] = [["sync"], ["async"], ["standby"], ["sync", "async", "standby"]]
        if server.has_binlog:
            modes = [["sync"], ["standby"], ["sync", "standby"]]
        self.database = Database(rng, rng.choice(modes), server)
        self.log = ModelLog(self.database)
        limits = Limits(
            chunks_per_window=rng.choice([1, 2, 3]),
            chunk_rows_max=rng.choice([2, 100]),
            keys_per_chunk=rng.choice([1, 2, 100]),
            keys_waiting_max=self._keys.choice([0, 2, 1_000, 1_000, 1_000, 1_000]),
            keys_max=self._keys.choice([3, 1_000, 1_000, 1_000, 1_000]),
            rows_per_second_max=rng.choice([0, 0, 20]),
            held_bytes_max=rng.choice([1_000, 10_000_000]),
            delivered_max=rng.choice([0, 3, 1_000]),
            retry_pause_us=rng.choice([0, 50_000]),
        )
        self.capture = Capture(self.database, self.log, rng, limits, faults)
        self._failing = rng.choice([0.0, 0.05])
        self._steps = rng.choice([150, 300, 600])
        hostile = rng.choice([0, 1, 3])
        weights: list[tuple[Callable[[], object], float]] = [
            (self._write, rng.choice([2, 8, 20])),
            (self._commit, rng.choice([2, 8])),
            (self._transact, rng.choice([3, 10, 30])),
            (self.database.flush, rng.choice([3, 15])),
            (self._standby, rng.choice([0.5, 5])),
            (self._show, rng.choice([3, 15])),
            (self._poll, rng.choice([3, 10, 40])),
            (self._ask, rng.choice([8, 20, 50])),
            (self._answer, rng.choice([8, 20, 50])),
            (self._tick, rng.choice([3, 10])),
            (self.log.sync, rng.choice([1, 5])),
            (self._acknowledge, rng.choice([1, 5])),
            (self._spite, rng.choice([0, 8, 25])),
            (self._again, 0.3 * rng.choice([0, 1, 4])),
            (self._order, 0.4 * hostile),
            (self._truncate, 0.4 * hostile),
            (self.database.rewrite, 0.2 * hostile),
            (self.database.add_column, 0.2 * hostile),
            (self.database.change_rows, 0 if server.has_binlog else 0.4 * hostile),
            (self._compare_rows, rng.choice([0.3, 3])),
            (self._capture_others, rng.choice([0, 0, 1, 3])),
            (self._crash_capture, 0.3 * rng.choice([0, 1, 3])),
            (self._crash_server, 0.2 * rng.choice([0, 1, 3])),
        ]
        self._actions = [action for action, _ in weights]
        self._weights = [weight for _, weight in weights]

    def play(self) -> None:
        for action in self.rng.choices(self._actions, self._weights, k=self._steps):
            action()

    def settle(self) -> None:
        """No more writing and no more faults: every backfill must come to its end, and the log to the source's."""
        for txn in list(self.database.open.values()):
            if txn.lsn is None:
                self.database.rollback(txn)
        self.capture.feed(Adjust(next(iter(self.database.tables)), priority=1, rows_per_second_max=0))
        for table in sorted(self.database.tables.keys() - self.database.published):
            self._publish(table, published=True)
        self._failing = 0.0
        for _ in range(SETTLE_ROUNDS):
            self._order_what_is_left()
            self._standby()
            self.database.flush()
            for txn in self.database.showable():
                self.database.show(txn)
            self.capture.ask_source(0.0)
            self.capture.poll(10)
            self.capture.compare_rows()
            self.capture.answer()
            self.capture.tick()
            self.log.sync()
            self.capture.acknowledge()
            if self._at_rest():
                return
        states = {str(t): p.state for t, p in self.capture.machine.progress.tables.items()}
        raise Violation(f"I7: no rest after {SETTLE_ROUNDS} rounds: {states}, log {self.log.cuts[-1].lsn}")

    def _order_what_is_left(self) -> None:
        """Resume and order again, as an operator would. A table may only fail for the one reason that is allowed."""
        for table, known in self.capture.machine.progress.tables.items():
            if known.state == "failed" and "held_bytes_max" not in (known.reason or ""):
                raise Violation(f"I7: {table} failed: {known.reason}")
            if known.state in ("cancelled", "failed"):
                self.capture.feed(Backfill((table,)))
            elif known.state == "paused":
                self.capture.resume(table)

    def _at_rest(self) -> bool:
        last = self.log.cuts[-1]
        done = all(p.state == "done" for p in self.capture.machine.progress.tables.values())
        return (
            done
            and not (last.incomplete or last.stale)
            and last.lsn >= len(self.database.wal)
            and self.log.acknowledged == last.lsn
        )

    # ── what may happen ─────────────────────────────────────────────────────────────────────────────────────

    def _write(self) -> None:
        writing = [t for t in self.database.open.values() if t.lsn is None]
        if len(writing) < 3 and (not writing or self.rng.random() < 0.3):
            writing.append(self.database.begin())
        self.database.change(self.rng.choice(writing))

    def _transact(self) -> None:
        """A short transaction at once."""
        txn = self.database.begin()
        for _ in range(self.rng.choice([1, 1, 2, 4])):
            self.database.change(txn)
        self.database.commit(txn)

    def _commit(self) -> None:
        writing = [t for t in self.database.open.values() if t.lsn is None]
        if writing:
            txn = self.rng.choice(writing)
            if self.rng.random() < 0.1:
                self.database.rollback(txn)
            else:
                self.database.commit(txn)

    def _truncate(self) -> None:
        txn = self.database.begin()
        self.database.truncate(txn)
        if self.rng.random() < 0.5:
            self.database.change(txn)
        if self.rng.random() < 0.8:
            self.database.commit(txn)
        else:
            self.database.rollback(txn)

    def _standby(self) -> None:
        self.database.standby = self.database.flushed

    def _show(self) -> None:
        if ready := self.database.showable():
            self.database.show(self.rng.choice(ready))

    def _poll(self) -> None:
        self.capture.poll(self.rng.choice([1, 3, 10]))

    def _ask(self) -> None:
        self.capture.ask_source(self._failing)

    def _answer(self) -> None:
        self.capture.answer()

    def _compare_rows(self) -> None:
        self.capture.compare_rows()

    def _tick(self) -> None:
        self.capture.tick()

    def _acknowledge(self) -> None:
        self.capture.acknowledge()

    def _again(self) -> None:
        self.counts["ordered backfill"] += 1
        self.capture.feed(Backfill((self.rng.choice(list(self.database.tables)),)))

    def _spite(self) -> None:
        """Change keys of a table just while one of its chunks is about to be read, and make it durable at once."""
        wanted = [r.chunk for r in self.capture.requests if isinstance(r, ReadChunk)]
        if wanted:
            chunk = self.rng.choice(wanted)
            keys = chunk.keys.plain if isinstance(chunk.keys, Keys) else ()
            self.database.move_a_key(chunk.table, keys, again=not keys or self.rng.random() < 0.3)
            self.database.flush()
            for txn in self.database.showable():
                self.database.show(txn)

    def _order(self) -> None:
        table = self.rng.choice(list(self.database.tables))
        orders: list[Input] = [
            Backfill((table,)),
            Pause(table),
            Resume(table),
            Cancel(table),
            Adjust(table, priority=2),
        ]
        order = self.rng.choice([orders[0], *orders])
        self.counts[f"ordered {type(order).__name__.lower()}"] += 1
        if isinstance(order, Resume) and self._keys.random() < 0.9:
            self.capture.resume(table)
        else:
            self.capture.feed(order)

    def _capture_others(self) -> None:
        """Take a table out of what is captured, or in again, and start anew with that (O05)."""
        missing = sorted(self.database.tables.keys() - self.database.published)
        table = self.rng.choice(missing or sorted(self.database.tables))
        published = table in missing
        # Not covered: a transaction that spans both, so that only a part of what it did to the table is ever sent.
        sent = {r.table for t in self.database.open.values() for r in t.rows if r.published}
        if published and table in sent:
            return
        if published or len(self.database.published) > 1:
            self.counts["tables captured again" if published else "tables no longer captured"] += 1
            self._publish(table, published=published)

    def _publish(self, table: TableId, *, published: bool) -> None:
        self.database.publish(table, published=published)
        self.capture.start()
        # What became of the table is durable before anything else may happen to it.
        self.capture.tick()
        self.log.sync()

    def _crash_capture(self) -> None:
        self.counts["crashes"] += 1
        self.counts["capture crashes"] += 1
        self.capture.start()

    def _crash_server(self) -> None:
        self.counts["crashes"] += 1
        self.counts["server crashes"] += 1
        self.database.crash()
        self.capture.start()
