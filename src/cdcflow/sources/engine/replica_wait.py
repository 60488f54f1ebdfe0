"""Makes chunks that are read from a replica wait until it has replayed enough of the source's log
(`source.backfill.url`)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from cdcflow.errors import ConfigurationError, SourceUnavailable
from cdcflow.sources.engine.chunks import Rewritten
from cdcflow.sources.engine.connections import Connector

P = TypeVar("P")

SETTING = "source.backfill.url"
REPLAY_WAIT_S = 30.0
"""How long a chunk waits until the replica has replayed what it needs. Changes of its table wait with it."""
POLL_S = 0.01
POLL_MAX_S = 0.2


class ReplicaWait(Generic[P]):
    """The place in the source's log that a replica must have replayed before chunks are read from it. Thread-safe.

    `covers(one, other)`: whether everything before the place `other` is before `one`. `connector`: connects to the
    replica.
    """

    def __init__(self, connector: Connector[Any], covers: Callable[[P, P], bool]) -> None:
        self._connector = connector
        self._covers = covers
        self._lock = threading.Lock()
        self._needed: P | None = None
        self._missed: P | None = None
        self._marks = 0
        self._state = "no rows were read from it yet"

    @property
    def status(self) -> str:
        """The replica's address and its state, including what chunks wait for, for operators."""
        return f"{self._connector.address}: {self._state}"

    def require(self, place: P) -> None:
        """Have later chunks read at this place in the log or after it."""
        with self._lock:
            if self._needed is None or not self._covers(self._needed, place):
                self._needed = place

    def is_reached(self, place: P) -> bool:
        """Whether chunks need not wait for a replica that has replayed this place."""
        return self._needed is None or self._covers(place, self._needed)

    def end_waits(self) -> None:
        """End the waits in progress: a mark is about to be written, so the chunks that wait are no longer used."""
        with self._lock:
            self._marks += 1

    def until_replayed(self, replayed: Callable[[], P]) -> None:
        """Wait until `replayed` returns the required place or a later one.

        Raises:
            SourceUnavailable: the replica takes too long. The next chunk waits only if the replica has replayed what
                this one needed: the changes of a table must not wait for a replica that does not replay.
            Rewritten: the chunk was abandoned in the meantime, so its answer is ignored.
        """
        with self._lock:
            needed, missed, marks = self._needed, self._missed, self._marks
        pause_s, deadline = POLL_S, time.monotonic() + REPLAY_WAIT_S
        while needed is not None and not self._covers(reached := replayed(), needed):
            self._state = f"has replayed {reached}; chunks wait until it has replayed {needed}"
            if missed is not None and not self._covers(reached, missed):
                raise self.lagging(reached, needed)
            if time.monotonic() > deadline:
                self._missed = needed
                raise self.lagging(reached, needed)
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, POLL_MAX_S)
            self._connector.check_open()
            if self._marks != marks:
                # A mark is written when all chunks of a window are read or abandoned. An error would be taken for one
                # of the table's next chunk.
                raise Rewritten
        self._state = "rows are read from it"

    def refusal(self, why: str) -> SourceUnavailable:
        """Return the error for a server that no rows can be read from."""
        self._state = f"no rows are read from it: {why}"
        return SourceUnavailable(
            f"no rows are read from {self._connector.address} ({SETTING}): {why}",
            remedy=remedy(),
            runbook="backfill-replica",
        )

    def lagging(self, reached: P, needed: P) -> SourceUnavailable:
        """Return the error for a replica that has replayed less than a chunk needs."""
        return SourceUnavailable(
            f"{self._connector.address} ({SETTING}) lags: it has replayed {reached}, and a chunk needs {needed}",
            remedy="nothing: chunks are read once it has replayed that. If it does not get there, see that its "
            f"replication runs, is not paused, and is not delayed; or remove {SETTING}, and run `cdcflow apply`",
            runbook="backfill-replica",
        )


def remedy(then: str = "run `cdcflow apply`") -> str:
    """Return what to do about a server that does not replicate the source."""
    return (
        f"set {SETTING} to a running replica of the server of source.url; or remove it, and rows are read at "
        f"source.url; then {then}"
    )


def check_at_first_start(address: object, find_problem: Callable[[], str | None]) -> None:
    """Check that rows can be read at the replica that the settings name, if it answers. `find_problem` returns why rows
    cannot be read there; None if they can.

    Raises:
        ConfigurationError: rows cannot be read there.
    """
    try:
        why = find_problem()
    except SourceUnavailable:
        return  # it does not answer; chunks will wait for it
    if why is not None:
        raise ConfigurationError(
            f"no rows can be read from {address} ({SETTING}): {why}",
            remedy=remedy("start again"),
            runbook="backfill-replica",
        )


def executors_read_elsewhere() -> ConfigurationError:
    """Return the error for settings with both executors and a replica to read from."""
    return ConfigurationError(
        f"executors read rows at source.url, and {SETTING} names another server",
        remedy=f"remove {SETTING}, or run the same command without --on",
        runbook="settings",
    )
