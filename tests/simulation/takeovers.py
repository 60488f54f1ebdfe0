"""Two daemons with one lease and one log, and either of them may be suspended at any request and any file operation.

The lease, the terms and the file log are the real ones; the register, the source and the clocks are models. A daemon is
suspended by running the other one in its place: within a request, between two file operations, between the check of
the epoch and what follows it. Clocks run at different speeds, requests and answers take time or get lost, and writes
fail.

The source has the transactions 1, 2, 3, …, and forgets what is acknowledged. What must hold:

    T1  a daemon that opens the log finds everything that either has acknowledged
    T2  at the end the log has the transactions in order, each once, and everything that was acknowledged
    T3  at no time do both daemons count on the lease
"""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

from cdcflow.capture.numbered_lease import NumberedLease
from cdcflow.capture.term import Term
from cdcflow.errors import CdcflowError, InvariantViolated, SinkUnavailable, WriterReplaced
from cdcflow.log.disk.layer import FileLayer, OsLayer
from cdcflow.log.read.reader import check, read_rows
from cdcflow.model.position import SourceIdentity
from cdcflow.sinks.files.log import FileLog
from cdcflow.testing.sinks import Writer, orders

IDENTITY = SourceIdentity("model", "1", "public")
TTL_S = 3.0
STEPS = 60


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a schedule. `violation` None: everything held."""

    seed: int
    violation: str | None
    counts: Counter[str] = field(compare=False)


class Violation(Exception):
    """Something that must hold does not."""


def run(seed: int, plant: Callable[[], Any] | None = None) -> Outcome:
    """Play one schedule. `plant` returns a context in which a bug is planted."""
    shm = Path("/dev/shm")  # noqa: S108 - a file system, not a file name
    with TemporaryDirectory(dir=shm if shm.is_dir() else None) as folder:
        world = World(seed, Path(folder) / "log")
        violation = None
        try:
            if plant is None:
                world.play()
            else:
                with plant():
                    world.play()
        except Violation as error:
            violation = str(error)
        except (WriterReplaced, SinkUnavailable) as error:
            violation = f"at the end: {error}"
        except InvariantViolated as error:
            violation = f"{type(error).__name__} {error}"
        finally:
            world.end()
    return Outcome(seed, violation, world.counts)


class World:
    """The two daemons, the register of the lease, the source, and the time."""

    def __init__(self, seed: int, root: Path) -> None:
        self.dice = Random(seed)
        self.root = root
        self.now_s = 0.0
        self.counts: Counter[str] = Counter()
        self.records: dict[int, bytes] = {}
        self.acknowledged = 0
        self.failing = self.dice.choice([0.0, 0.0, 0.02])
        self.suspending = self.dice.choice([0.02, 0.1])
        self.losing = self.dice.choice([0.0, 0.1])
        self.is_suspended = False
        self.violation: str | None = None
        self.daemons = [Daemon(self, number) for number in range(2)]

    def play(self) -> None:
        for _ in range(STEPS):
            self.advance()
            self.dice.choice(self.daemons).step()
            if self.violation is not None:
                raise Violation(self.violation)
        self.failing = self.suspending = self.losing = 0.0
        for daemon in self.daemons:
            daemon.abandon()
        log = FileLog.open(self.root, IDENTITY, replaces=True)
        try:
            self.check_found(log)
            if self.violation is not None:
                raise Violation(self.violation)
        finally:
            log.close()
        self.check_rows()

    def end(self) -> None:
        for daemon in self.daemons:
            with suppress(CdcflowError, OSError):
                daemon.abandon()

    def advance(self) -> None:
        self.now_s += self.dice.choice([0.05, 0.3, 0.3, 1.0])

    def pause(self, daemon: Daemon) -> None:
        """What happens between two steps of a daemon: perhaps the other one runs for a while."""
        if self.is_suspended or self.dice.random() >= self.suspending:
            return
        self.is_suspended = True
        self.counts["suspended"] += 1
        other = self.daemons[1 - daemon.number]
        for _ in range(self.dice.choice([1, 5, 20])):
            self.advance()
            other.step()
        self.is_suspended = False

    def check_found(self, log: FileLog) -> None:
        found = log.checkpoint.next_offset - 1
        if found < self.acknowledged:
            self.note(f"T1: {self.acknowledged} was acknowledged, and the log ends at {found}")

    def check_terms(self) -> None:
        holders = [daemon.number for daemon in self.daemons if daemon.term.is_held(daemon.clock())]
        if len(holders) > 1:
            self.note("T3: both daemons count on the lease")

    def note(self, violation: str) -> None:
        """Not raised where it is found: there the other daemon is in the middle of something."""
        self.violation = self.violation or violation

    def check_rows(self) -> None:
        found = [row for _, _, rows in read_rows(self.root) for row in rows.column("id").to_pylist()]
        if found != list(range(1, len(found) + 1)) or len(found) < self.acknowledged:
            raise Violation(f"T2: {self.acknowledged} acknowledged, the log has {len(found)} rows: {found[-20:]}")
        if faults := check(self.root, deep=True).faults:
            raise Violation(f"T2: {faults[0]}")


class Daemon:
    """One daemon: what `capture.leadership` and the capture do, step by step."""

    def __init__(self, world: World, number: int) -> None:
        self.number = number
        self._world = world
        self._speed = world.dice.choice([0.96, 1.0, 1.04])
        self._layer = Suspending(world, self)
        self._lease = self._new_lease()
        self.term = Term(TTL_S)
        self._writer: Writer | None = None

    def clock(self) -> float:
        return 1000.0 * self.number + self._world.now_s * self._speed

    def _new_lease(self) -> NumberedLease:
        register = ModelRegister(self._world, self)
        return NumberedLease(register, str(self.number), TTL_S, watched_every_s=0.2, clock=self.clock)

    def step(self) -> None:
        """Ask the lease, or capture a little."""
        self._world.check_terms()
        dice = self._world.dice
        if dice.random() < 0.3:
            self._ask()
        elif not self.term.is_held(self.clock()):
            self.abandon()
        elif self._writer is None:
            self._attempt(self._open)
        elif dice.random() < 0.1:
            self._attempt(self._seal)
        else:
            self._attempt(self._capture)

    def _ask(self) -> None:
        asked_at = self.clock()
        try:
            held = self._lease.hold()
        except SinkUnavailable:
            return
        self.term.record_answer(asked_at, held=held)
        self._world.check_terms()

    def _attempt(self, act: Callable[[], None]) -> None:
        try:
            act()
        except (WriterReplaced, SinkUnavailable) as error:
            self._world.counts[type(error).__name__] += 1
            self.abandon()

    def _open(self) -> None:
        log = FileLog.open(self._world.root, IDENTITY, layer=self._layer, replaces=True)
        self._writer = Writer.of(log)
        self._world.counts["opened"] += 1
        log.sync()  # it may have been replaced since
        self._world.check_found(log)

    def _capture(self) -> None:
        assert self._writer is not None
        writer, first = self._writer, int(self._writer.checkpoint.next_offset)
        writer.append(orders(*range(first, first + self._world.dice.choice([1, 3]))))
        writer.cut()
        durable = writer.log.sync().next_offset - 1
        self._world.pause(self)
        self._world.acknowledged = max(self._world.acknowledged, durable)

    def _seal(self) -> None:
        assert self._writer is not None
        assert isinstance(self._writer.log, FileLog)
        self._writer.log.roll()
        self._writer.log.seal_pending()

    def abandon(self) -> None:
        """Leave the log as an attempt leaves it that ends with an error."""
        writer, self._writer = self._writer, None
        if writer is not None:
            with suppress(WriterReplaced, SinkUnavailable):
                writer.log.close()


class ModelRegister:
    """Records of a lease, with requests and answers that take time or get lost."""

    def __init__(self, world: World, daemon: Daemon) -> None:
        self._world = world
        self._daemon = daemon

    def latest(self) -> tuple[int, bytes] | None:
        self._travel()
        found = max(self._world.records.items(), default=None)
        self._travel()
        return found

    def add(self, number: int, content: bytes) -> bool:
        self._travel()
        added = number not in self._world.records
        if added:
            self._world.records[number] = content
            self._world.records.pop(number - 8, None)
        self._travel()
        return added

    def close(self) -> None:
        pass

    def _travel(self) -> None:
        self._world.pause(self._daemon)
        self._world.now_s += self._world.dice.choice([0.0, 0.01, 0.2])
        if self._world.dice.random() < self._world.losing:
            raise SinkUnavailable("no answer")


class Suspending(OsLayer):
    """The system's files; before and after each operation the daemon may be suspended, and a write may fail midway."""

    def __init__(self, world: World, daemon: Daemon) -> None:
        self._world = world
        self._daemon = daemon

    def write(self, fd: int, parts: Sequence[bytes | memoryview]) -> int:
        self._world.pause(self._daemon)
        if self._world.dice.random() < self._world.failing:
            super().write(fd, [memoryview(b"".join(parts))[: self._world.dice.choice([10, 1 << 20])]])
            self._world.pause(self._daemon)
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().write(fd, parts)


def _suspended(name: str) -> Callable[..., Any]:
    original = getattr(OsLayer, name)

    def act(self: Suspending, *given: Any) -> Any:
        self._world.pause(self._daemon)
        found = original(self, *given)
        self._world.pause(self._daemon)
        return found

    return act


for _name in ("create", "open", "fsync", "fsync_dir", "rename", "unlink", "truncate", "mkdir", "rmdir", "link"):
    setattr(Suspending, _name, _suspended(_name))

__all__ = ["FileLayer", "Outcome", "run"]
