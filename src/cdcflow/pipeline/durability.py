"""What makes the log durable: the loop itself, or a thread beside it; and a thread that seals.

Group commit needs no timer: the loop writes while the last fsync runs, and asks for the next one; whatever was cut
before it begins is in it. The loop acknowledges a position to the source only after reading it from `durable`.

While changes come one by one, handing each sync to another thread and its answer back costs more than a quick disk
takes, and makes three threads wait for the interpreter instead of one. Then the loop syncs itself, in between.

Sealing is work for idle processors. While a backlog comes in and the server and the loop want them all, it gets the
smaller part: what was rolled waits in its journal, durable and readable, a little longer. Not without end: the loop
waits when too much does (`attempt.UNSEALED_MAX`).
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable

from cdcflow.model.position import Checkpoint
from cdcflow.ports import Log

QUICK_S = 0.002
"""A sync that takes longer than this is worth another thread, so that the loop can go on reading."""
SEALING_NICE = 5
"""How far sealing stands back: of a processor that both want the loop gets three quarters."""


class Worker:
    """A thread that does one thing whenever it was asked since it last began. Its error waits for `check`.

    `nice`: how far it stands back where processors are scarce, as in nice(1); Linux only.
    """

    def __init__(self, name: str, work: Callable[[], None], nice: int = 0) -> None:
        self._work = work
        self._nice = nice
        self._turn = threading.Condition()
        self._asked = 0
        self._done = 0
        self._stopping = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def ask(self) -> None:
        with self._turn:
            self._asked += 1
            self._turn.notify_all()

    @property
    def idle(self) -> bool:
        """Everything asked for is done."""
        return self._done == self._asked

    @property
    def behind(self) -> int:
        """How often it was asked since it last began what it has done."""
        return self._asked - self._done

    def check(self) -> None:
        """Raise what the thread ended with, in the caller's thread."""
        if self._error is not None:
            raise self._error

    def settle(self, seconds: float) -> bool:
        """Wait until everything asked for is done; False when it took longer, or the thread has ended with an error."""
        with self._turn:
            asked = self._asked
            self._turn.wait_for(lambda: self._done >= asked or self._error is not None, seconds)
            return self._done >= asked and self._error is None

    def stop(self) -> None:
        """Let the work under way finish, and end the thread."""
        with self._turn:
            self._stopping = True
            self._turn.notify_all()
        self._thread.join()

    def _run(self) -> None:
        if self._nice and sys.platform == "linux":  # elsewhere a thread has no priority of its own
            with contextlib.suppress(OSError):
                own = os.getpriority(os.PRIO_PROCESS, 0)
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), own + self._nice)
        while True:
            with self._turn:
                self._turn.wait_for(lambda: self._asked > self._done or self._stopping)
                if self._stopping:
                    return
                asked = self._asked
            try:
                self._work()
            except BaseException as error:  # noqa: BLE001 - raised again by the loop's thread, in `check`
                with self._turn:
                    self._error = error
                    self._turn.notify_all()
                return
            with self._turn:
                self._done = asked
                self._turn.notify_all()


class Durability:
    """Syncs and seals a log beside the loop, and knows the newest durable checkpoint."""

    def __init__(self, log: Log, ring: Callable[[], None]) -> None:
        self._log = log
        self._ring = ring
        self.durable: Checkpoint = log.checkpoint
        self.syncs = 0
        self._took_s = QUICK_S
        self._syncer = Worker("cdcflow-sync", self._sync)
        self._sealer = Worker("cdcflow-seal", self._seal, SEALING_NICE)

    def ask_sync(self) -> None:
        self._syncer.ask()

    def sync_now(self) -> bool:
        """Make the last cut durable here and now, where the disk is quick and nobody syncs; else False.

        Raises what the log's `sync` raises.
        """
        if self._took_s >= QUICK_S or not self._syncer.idle:
            return False
        self._synced()
        return True

    def ask_seal(self) -> None:
        self._sealer.ask()

    @property
    def unsealed(self) -> int:
        """About how many closed journals wait to be sealed."""
        return self._sealer.behind

    def check(self) -> None:
        self._syncer.check()
        self._sealer.check()

    def settle(self, seconds: float) -> bool:
        """Wait until what was cut is durable; False when it is not."""
        return self._syncer.settle(seconds)

    def stop(self) -> None:
        self._syncer.stop()
        self._sealer.stop()

    def _sync(self) -> None:
        try:
            self._synced()
        finally:
            self._ring()

    def _synced(self) -> None:
        began = time.monotonic()
        self.durable = self._log.sync()
        self._took_s = time.monotonic() - began
        self.syncs += 1

    def _seal(self) -> None:
        try:
            self._log.seal_pending()
        finally:
            self._ring()
