"""Makes the log durable, in the loop itself or in a separate thread, and seals it in another thread.

Group commit needs no timer: the loop writes while the last fsync runs, and requests the next one, which includes
everything cut before it begins. The loop acknowledges a position to the source only after reading it from `durable`.

While changes arrive one by one, passing each sync to another thread and its result back takes longer than the sync
itself on a quick disk, and makes three threads wait for the interpreter instead of one. The loop then syncs by itself.

Sealing has low priority. While a backlog arrives and the server and the loop need all processors, sealing gets the
smaller part: closed journals wait a little longer, durable and readable. They do not wait indefinitely: the loop stops
reading when too many of them wait (`log_writes.UNSEALED_MAX`).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from cdcflow.capture.ports.log import BoundedSealing, Log
from cdcflow.capture.threads import Clock, Threads
from cdcflow.model.position import Checkpoint

QUICK_S = 0.002
"""A sync that takes longer than this runs on another thread, so that the loop can keep reading."""
SEALING_NICE = 5
"""The nice value of the sealing thread: if it and the loop need the same processor, the loop gets three quarters of
it."""


class Durability:
    """Syncs and seals a log in the background or in the loop, and holds the latest durable checkpoint."""

    def __init__(
        self,
        log: Log,
        wake: Callable[[], None],
        threads: Threads | None = None,
        clock: Clock = time.monotonic,
        on_sealed: Callable[[], None] = lambda: None,
    ) -> None:
        """`on_sealed` is called by the sealing thread when there is more to merge; it must not wait."""
        self._on_sealed = on_sealed
        threads = threads or Threads()
        self._log = log
        self._wake = wake
        self._clock = clock
        self.durable: Checkpoint = log.checkpoint
        self.syncs = 0
        self._took_s = QUICK_S
        self._syncer = threads.worker("cdcflow-sync", self._sync)
        self._sealer = threads.worker("cdcflow-seal", self._seal, SEALING_NICE)

    def ask_sync(self) -> None:
        self._syncer.ask()

    def sync_now(self) -> bool:
        """Make the last cut durable in this thread, if the disk is quick and no sync runs; otherwise return False.

        Raises what the log's `sync` raises.
        """
        if self._took_s >= QUICK_S or not self._syncer.idle:
            return False
        self._sync_log()
        return True

    def ask_seal(self) -> None:
        self._sealer.ask()

    @property
    def unsealed_journals(self) -> int:
        """About how many closed journals wait to be sealed."""
        return self._sealer.behind

    def check(self) -> None:
        self._syncer.check()
        self._sealer.check()

    def settle(self, seconds: float) -> bool:
        """Wait until every cut is durable. Return False if one was not after `seconds`."""
        return self._syncer.settle(seconds)

    def stop(self, sealing_s: float = math.inf) -> None:
        """End the threads. A segment that is not sealed after this many seconds is abandoned, by the log's `close`
        as well."""
        if isinstance(self._log, BoundedSealing):
            self._log.end_sealing_within(sealing_s)
        self._syncer.stop()
        self._sealer.stop()

    def _sync(self) -> None:
        try:
            self._sync_log()
        finally:
            self._wake()

    def _sync_log(self) -> None:
        began = self._clock()
        self.durable = self._log.sync()
        self._took_s = self._clock() - began
        self.syncs += 1

    def _seal(self) -> None:
        try:
            if self._log.seal_pending():
                self._on_sealed()
        finally:
            self._wake()
