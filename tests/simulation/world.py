"""One schedule: a database, a capture, a log, and a seed that decides what happens next."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from random import Random
from tempfile import TemporaryDirectory

from tests.simulation.capture import NO_ORDERS, SEAL, SYNC, Process
from tests.simulation.database import Database, Mode
from tests.simulation.disk import DiskLog
from tests.simulation.faults import NO_FAULTS, Faults
from tests.simulation.gaps import Gaps
from tests.simulation.log import Clock, ModelLog, Violation
from tests.simulation.servers import SERVERS, Server
from tests.simulation.source import ModelSource, Weather
from tests.simulation.transactions import Keys, plain_keys

from cdcflow.capture.attempt import LoopIntervals
from cdcflow.capture.interleave.limits import Limits
from cdcflow.capture.interleave.messages import Adjust, Backfill, Cancel, Input, Pause, Repair, Reread, Resume
from cdcflow.capture.source_polls import TablesChanged
from cdcflow.errors import CdcflowError, SinkUnavailable, SourceUnavailable
from cdcflow.model.table import TableId

SETTLE_ROUNDS = 600
SETTLED_POLLS = (10,)
ON_DISK_EVERY = 40
"""One in this many seeds writes the file log, on a disk that loses what it may; the others have a model."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a schedule. `violation` None: all invariants held."""

    seed: int
    violation: str | None
    cuts: int
    crashes: int
    counts: Counter[str]


class Crash(Exception):
    """The process is killed, or the machine loses its power."""


class Restart(Exception):
    """The process ends as on an error: what was cut stays."""


def run(
    seed: int,
    faults: Faults = NO_FAULTS,
    server: Server = SERVERS["postgres"],
    *,
    repairs: bool = False,
    gaps: bool = False,
    refusals: bool = False,
) -> Outcome:
    """Play one schedule to its end, where everything must be idle and equal. `repairs`: deletes get lost on their way
    into the log, and operators request repairs of rows, those and others. `gaps`: the source discards log that is still
    needed, and tables are compared with it instead of being read again. `refusals`: some rows cannot leave the
    source."""
    violation = None
    with ExitStack() as held:
        root = None if seed % ON_DISK_EVERY else Path(held.enter_context(TemporaryDirectory(dir=_in_memory())))
        world = World(seed, faults, server, root, repairs=repairs, gaps=gaps)
        world.database.refusing = Random(f"refusing {seed}") if refusals else None
        try:
            held.enter_context(faults.planted())
            world.play()
        except (Violation, CdcflowError) as error:
            violation = f"{type(error).__name__} {error}"
    counts = world.counts + world.database.counts + world.log.counts
    return Outcome(seed, violation, world.log.checked, world.counts["crashes"], counts)


def _in_memory() -> str | None:
    """Where a folder costs no disk; None: wherever temporary folders are."""
    return "/dev/shm" if Path("/dev/shm").is_dir() else None  # noqa: S108 - a file system, not a file name


class World:
    """Everything of a schedule. `play` starts one process after another; each takes its turns between what happens at
    the source, and what happens is drawn from the seed."""

    def __init__(
        self, seed: int, faults: Faults, server: Server, root: Path | None, *, repairs: bool, gaps: bool
    ) -> None:
        self.rng = rng = Random(seed)
        self.counts: Counter[str] = Counter()
        modes: list[list[Mode]] = [["sync"], ["async"], ["standby"], ["sync", "async", "standby"]]
        if server.has_binlog:
            modes = [["sync"], ["standby"], ["sync", "standby"]]
        elif server.fence == "replay":
            modes = [["sync"]]
        self.database = Database(rng, rng.choice(modes), server)
        self._clock = Clock(sync_s=rng.choice([0.0, 0.01]))
        self.log = ModelLog(self.database, self._clock)
        if root is not None:
            self.log = DiskLog(self.database, self._clock, root, seed)
        self._limits = Limits(
            chunks_per_window=rng.choice([1, 2, 3]),
            chunk_rows_max=rng.choice([2, 100]),
            keys_per_chunk=rng.choice([1, 2, 100]),
            keys_waiting_max=rng.choice([0, 2, 1_000, 1_000, 1_000, 1_000]),
            keys_max=rng.choice([3, 1_000, 1_000, 1_000, 1_000]),
            rows_per_second_max=rng.choice([0, 0, 20]),
            held_bytes_max=rng.choice([1_000, 10_000_000]),
            delivered_max=rng.choice([0, 3, 1_000]),
            retry_pause_us=rng.choice([1_000, 50_000]),
            statements_gather_us=20_000,
            statements_pause_us=100_000,
        )
        self._pace = LoopIntervals(heartbeat_s=rng.choice([1.0, 1e9]), tables_look_s=rng.choice([1.0, 10.0]))
        self._faults = faults
        self._weather = Weather(failing=rng.choice([0.0, 0.05]), polls=rng.choice([(0, 0, 1), (0, 1, 3), (1, 3, 10)]))
        self._requests: SimpleQueue[Input] = SimpleQueue()
        self._process: Process | None = None
        self._source = ModelSource(self.database, rng, self._weather, faults, self.counts)
        self._others = Random(f"others {seed}")  # so that everything else happens as it did without these
        self._repairs = Random(f"repairs {seed}") if repairs else None
        if repairs:
            self.database.losing = Random(f"losing {seed}")
        self._gaps = Gaps(Random(f"gaps {seed}"), self.database, self.log, faults, self.counts) if gaps else None
        self._rounds = 0
        self._hurries = 0
        self._is_over = False
        hostile = rng.choice([0, 1, 3])
        weights: list[tuple[Callable[[], object], float]] = [
            (self._write, rng.choice([2, 8, 20])),
            (self._commit, rng.choice([2, 8])),
            (self._transact, rng.choice([3, 10, 30])),
            (self.database.flush, rng.choice([3, 15])),
            (self._standby, rng.choice([0.5, 5])),
            (self._show, rng.choice([3, 15])),
            (self._turn, rng.choice([15, 30, 60])),
            (self._task, rng.choice([20, 50, 100])),
            (self._stall, rng.choice([0, 0, 1, 3])),
            (self._tick, rng.choice([3, 10])),
            (self._sync, rng.choice([3, 15])),
            (self._tell_server, rng.choice([1, 5])),
            (self._spite, rng.choice([0, 15, 40])),
            (self._again, 0.3 * rng.choice([0, 1, 4])),
            (self._order, 0.4 * hostile),
            (self._truncate, 0.4 * hostile),
            (self.database.rewrite, 0.2 * hostile),
            (self.database.empty_part, 0.4 * hostile if self.database.server.has_binlog else 0.0),
            (self.database.change_rows, 0 if server.has_binlog else 0.4 * hostile),
            (self._add_column, 1.0 * hostile),
            (self._capture_others, rng.choice([0, 0, 1, 3])),
            (self._stop, 0.3 * rng.choice([0, 0, 1])),
            (self._crash_capture, 0.3 * rng.choice([0, 1, 3]) + (root is not None)),
            (self._crash_server, 0.2 * rng.choice([0, 1, 3])),
            (self.database.count_replayed, 10.0 if server.fence == "replay" else 0.0),
        ]
        self._actions, self._shares = zip(*weights, strict=True)
        many = rng.choice([200, 400, 800])
        self._coming: Iterator[Callable[[], object]] = iter(rng.choices(self._actions, self._shares, k=many))

    def play(self) -> None:
        """Start the capture again and again, until the schedule is over and everything is idle."""
        while not self._is_over:
            if self._gaps is not None and self._gaps.is_due:
                self._lose()
            self._source = ModelSource(self.database, self.rng, self._weather, self._faults, self.counts)
            try:
                self._live()
            except Crash:
                self.log.crash(self.rng)
                if self._gaps is not None:
                    self._gaps.comparisons.clear()
            except (SourceUnavailable, SinkUnavailable, TablesChanged, Restart) as error:
                self.log.close()
                self.counts[f"ended by {type(error).__name__}"] += 1
            else:
                self.log.close()
            self._source.close()
            if self._process is None:
                self._wait_a_while()
            self._process = None

    def _live(self) -> None:
        """One process, from its start to its end."""
        self._process = None
        self._hurries = 2 if self._hurries else 0
        self._process = Process(
            self._source,
            self.log,
            limits=self._limits,
            pace=self._pace,
            requests=self._requests,
            clock=lambda: self._clock.now_s,
            faults=self._faults,
            counts=self.counts,
            orders=NO_ORDERS if self._gaps is None else self._gaps.orders,
        )
        if self._gaps is not None:
            self._gaps.orders = NO_ORDERS
        self._process.run(self._between_turns)

    def _between_turns(self) -> bool:
        """What happens before the loop's next turn; True when the process is to end."""
        if self._hurries:
            return self._hurry()
        for action in self._coming:
            if action == self._turn:
                return False
            if action == self._stop:
                self.counts["stopped"] += 1
                return True
            action()
            if self._repairs is not None:
                self._order_repair(self._repairs)
            if self._gaps is not None:
                self._compare(self._gaps, 0.1)
                if self._process is not None and self._gaps.happens(self._process.progress):
                    raise Restart
        return self._settle()

    def _hurry(self) -> bool:
        """What happened to the tables is durable before anything else may happen to them."""
        assert self._process is not None
        self._hurries -= 1
        if self._hurries:
            self._weather.silent_polls = 2
        else:
            self._process.steps.workers[SYNC].settle(0)
        return False

    def _wait_a_while(self) -> None:
        """No capture: it could not start yet. Not covered: a table that is removed and added again in the meantime."""
        self.counts["starts put off"] += 1
        for _, action in zip(range(20), self._coming, strict=False):
            if action not in (self._turn, self._stop, self._crash_capture, self._capture_others):
                action()
        if next(self._coming, None) is None:
            self._settle_database()

    def _settle(self) -> bool:
        """No more writing and no more faults: every backfill must end, and the log must reach the source's position."""
        process = self._process
        assert process is not None
        if not self._weather.settled:
            self._weather.settled, self._weather.failing, self._weather.polls = True, 0.0, SETTLED_POLLS
            self._weather.silent_polls = 0
            self._requests.put(Adjust(next(iter(self.database.tables)), priority=1, rows_per_second_max=0))
        for table in sorted(self.database.tables.keys() - self.database.published):
            self._publish(table, published=True)
        self._settle_database()
        if self._at_rest(process):
            # Now every table would stay incomplete after a gap; and it is written to again.
            self._is_over = self._gaps is None or not self._gaps.begins_last()
            if not self._is_over:
                self._coming = iter(self._gaps_actions())
            return True
        self._rounds += 1
        if self._rounds > SETTLE_ROUNDS:
            states = {str(t): p.state for t, p in process.progress.tables.items()}
            raise Violation(f"I7: no rest after {SETTLE_ROUNDS} rounds: {states}, log {self.log.cuts[-1].lsn}")
        self._order_what_is_left(process)
        if self._gaps is not None:
            self._compare(self._gaps, 1.0)
        if self._rounds % 50 == 0:  # after a mark alone there is no cut: commit something uncaptured
            self.database.commit(self.database.begin())
        for _ in range(3):
            self._task()
            self._sync()
        self._tick()
        self._tell_server()
        return False

    def _settle_database(self) -> None:
        for txn in list(self.database.open.values()):
            if txn.lsn is None:
                self.database.rollback(txn)
        self._standby()
        self.database.flush()
        self.database.show_all()
        self.database.count_replayed()

    def _order_what_is_left(self, process: Process) -> None:
        """Resume and request again, as an operator would. A table may only fail for the one reason that is allowed."""
        for table, known in process.progress.tables.items():
            is_allowed = "held_bytes_max" in (known.reason or "") or known.reason == "unfit"
            if known.state == "failed" and not is_allowed:
                raise Violation(f"I7: {table} failed: {known.reason}")
            if known.state in ("cancelled", "failed"):
                self._requests.put(Backfill((table,)))
            elif known.state == "paused":
                self._requests.put(Resume(table))
            elif known.state == "done" and not known.in_doubt and (wrong := self.log.cuts[-1].wrong.get(table)):
                self._requests.put(Repair(table, Keys(int(str(key[0])) for key in wrong)))

    def _at_rest(self, process: Process) -> bool:
        last = self.log.cuts[-1]
        done = all(p.state == "done" for p in process.progress.tables.values())
        return (
            done
            and not (last.incomplete or last.stale or any(last.wrong.values()) or last.lossy)
            and not any(p.in_doubt for p in process.progress.tables.values())
            and last.lsn >= len(self.database.wal)
            and self.database.confirmed == last.lsn
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
            if txn.dawdles:
                txn.dawdles -= 1
            elif self.rng.random() < 0.1:
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

    def _turn(self) -> None:
        """A turn of the loop: `_between_turns` sees to it."""

    def _stop(self) -> None:
        """An operator ends the process and starts it again: `_between_turns` sees to it."""

    def _task(self) -> None:
        """The source works on one of the requests, or the answer of one reaches the loop; perhaps one after another."""
        if self._process is None or not len(tasks := self._process.steps.tasks):
            return
        count, number = len(tasks), self.rng.randrange(len(tasks))
        for _ in range(self.rng.choice([1, 2, 3])):
            tasks.go(number)
            if len(tasks) < count:
                break

    def _stall(self) -> None:
        """The stream brings nothing for a while, and the source keeps working."""
        self._weather.silent_polls = self.rng.choice([3, 10, 30])

    def _tick(self) -> None:
        self._clock.now_s += self.rng.choice([0.001, 0.1, 1.0])

    def _sync(self) -> None:
        if self._process is not None:
            self._process.work(self.rng.choice([SYNC, SYNC, SYNC, SEAL]))

    def _tell_server(self) -> None:
        if self._process is not None and self._source.reader is not None:
            self._source.reader.tell_server()

    def _add_column(self) -> None:
        self.database.add_column(fills=self.rng.random() < 0.5)

    def _spite(self) -> None:
        """Change keys of a table just while one of its chunks is about to be read, and make it durable at once; perhaps
        the stream is slow to bring it."""
        if wanted := self._source.wanted:
            chunk = self.rng.choice(wanted)
            keys = () if chunk.keys is None else plain_keys(chunk.keys)
            self.database.move_a_key(chunk.table, keys, again=not keys or self.rng.random() < 0.3)
            self.database.flush()
            self.database.show_all()
            if self.rng.random() < 0.3:
                self._stall()

    def _again(self) -> None:
        self.counts["ordered backfill"] += 1
        self._requests.put(Backfill((self.rng.choice(list(self.database.tables)),)))

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
        if self._others.random() < 0.3:
            order = Reread(table, Keys(self._others.sample(range(30), 3)))
        self.counts[f"ordered {type(order).__name__.lower()}"] += 1
        self._requests.put(order)

    def _order_repair(self, chance: Random) -> None:
        """Of keys with rows and without, in the source and in the log: wrong ones are among them sooner or later. And
        while some are read, a session may insert one that is missing, or give a row another key."""
        table = chance.choice([t for t in self.database.tables.values() if t.keyed]).id
        known = self._process.progress.tables.get(table) if self._process is not None else None
        is_done = known is not None and known.state == "done"
        if chance.random() < (0.2 if is_done else 0.005):
            self.counts["ordered repair"] += 1
            self._requests.put(Repair(table, Keys(chance.sample(range(12), chance.choice([1, 3, 12])))))
        if (chunk := self._source.repairing) is not None and chance.random() < 0.2:
            keys = plain_keys(chunk.keys) if chunk.keys is not None else ()
            self.database.insert_one_of(chunk.table, keys)
            self.database.move_a_key(chunk.table, keys, again=False)
            self.database.flush()
            self.database.show_all()

    def _gaps_actions(self) -> list[Callable[[], object]]:
        assert self._gaps is not None
        return self._gaps.chance.choices(self._actions, self._shares, k=self._gaps.chance.choice([50, 200]))

    def _lose(self) -> None:
        """What the log does not have yet is lost: rows that were changed in the meantime, too."""
        assert self._gaps is not None
        for _ in range(self._gaps.chance.choice([1, 4, 10])):
            self._transact()
        self._settle_database()
        self._gaps.lose()

    def _compare(self, gaps: Gaps, probability: float) -> None:
        if self._process is not None and gaps.chance.random() < probability:
            for order in gaps.compare(self._process.progress):
                self._requests.put(order)

    def _capture_others(self) -> None:
        """Remove a table from the captured ones, or add it again, and restart with that (O05)."""
        missing = sorted(self.database.tables.keys() - self.database.published)
        table = self.rng.choice(missing or sorted(self.database.tables))
        published = table in missing
        # Not covered: a transaction that spans both, so that only a part of its changes to the table is ever sent.
        sent = {r.table for t in self.database.open.values() for r in t.rows if r.published}
        if published and table in sent:
            return
        if published and self.rng.random() < 0.7:  # another session is changing it
            txn = self.database.begin()
            txn.dawdles = self.rng.choice([5, 40])
            self.database.change(txn, self.database.tables[table])
        if published or len(self.database.published) > 1:
            self.counts["tables captured again" if published else "tables no longer captured"] += 1
            self._publish(table, published=published)

    def _publish(self, table: TableId, *, published: bool) -> None:
        self.database.publish(table, published=published)
        self._hurries = 2
        if self._process is not None:
            raise Restart

    def _crash_capture(self) -> None:
        self.counts["crashes"] += 1
        self.counts["capture crashes"] += 1
        raise Crash

    def _crash_server(self) -> None:
        self.counts["crashes"] += 1
        self.counts["server crashes"] += 1
        self.database.crash()
        self._source.is_lost = True
