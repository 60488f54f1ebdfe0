"""A lease: which of several daemons may write a log.

A lease only decides who tries. What keeps a log right is its epoch: a daemon that believes too long that it holds the
lease cannot make anything durable once a different one has opened the log.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Holder:
    """The daemon that holds a lease. `since`: when it took it, in seconds since 1970; None if the lease's place does
    not record it."""

    name: str
    since: float | None = None


class DaemonLease(Protocol):
    """A lease at one place. Used by one thread; `holder` too."""

    @property
    def ttl_s(self) -> float:
        """How long this process may count on the lease after the beginning of a successful `hold`, in seconds.
        Infinite: it is lost with the process alone."""
        ...

    @property
    def renewed_every_s(self) -> float:
        """How often the holder calls `hold`."""
        ...

    @property
    def watched_every_s(self) -> float:
        """How often a standby calls `hold`."""
        ...

    def hold(self) -> bool:
        """Take the lease if it is free, or renew it. Whether this process holds it.

        Raises:
            CdcflowError: its place does not answer, or refuses: it is unknown who holds it.
        """
        ...

    def holder(self) -> Holder | None:
        """Who holds it; None if no process does, or its place does not know. Raises as `hold`."""
        ...

    def release(self) -> None:
        """Give it back, if this process holds it, and close the connection. `hold` may be called again."""
        ...


class Register(Protocol):
    """A place that stores numbered records, and accepts each number once: a compare-and-set for leases by time."""

    def latest(self) -> tuple[int, bytes] | None:
        """The latest record and its number; None without a record."""
        ...

    def add(self, number: int, content: bytes) -> bool:
        """Store a record after the latest one, whose number is one less. False if another process was first."""
        ...

    def close(self) -> None:
        """Close the connection. It is opened again when needed."""
        ...
