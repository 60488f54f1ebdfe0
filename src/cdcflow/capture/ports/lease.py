"""A lease: which of several daemons may write a log.

A lease only decides which daemon tries to write. The epoch is what keeps a log right: a daemon that believes too long
that it holds the lease cannot make anything durable once a different one has opened the log.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Holder:
    """The daemon that holds a lease. `since`: when it took the lease, in seconds since 1970; None if the lease's place
    does not record it. `is_own`: this very lease holds it, although its `hold` may have returned False."""

    name: str
    since: float | None = None
    is_own: bool = False


class DaemonLease(Protocol):
    """A lease at one place. Used by one thread, including `holder`."""

    @property
    def ttl_s(self) -> float:
        """For how many seconds after the beginning of a successful `hold` this process may count on the lease. Infinite
        if the lease is lost only when the process ends."""
        ...

    @property
    def renewed_every_s(self) -> float:
        """How often the holder calls `hold`, in seconds."""
        ...

    @property
    def watched_every_s(self) -> float:
        """How often a standby calls `hold`, in seconds."""
        ...

    def hold(self) -> bool:
        """Take the lease if it is free, or renew it. Return whether this process holds it.

        Raises:
            CdcflowError: the lease's place does not answer, or refuses, so it is unknown which process holds the lease.
        """
        ...

    def holder(self) -> Holder | None:
        """Return the lease's holder; None if no process holds it, or its place does not know. Raises as `hold`."""
        ...

    def release(self) -> None:
        """Release the lease, if this process holds it, and close the connection. `hold` may be called again."""
        ...


class Register(Protocol):
    """A place that stores numbered records, and accepts each number once: a compare-and-set for leases that expire."""

    def latest(self) -> tuple[int, bytes] | None:
        """Return the number and content of the latest record; None if no record exists."""
        ...

    def add(self, number: int, content: bytes) -> bool:
        """Store a record after the latest one, whose number is one less. Return False if another process was first."""
        ...

    def close(self) -> None:
        """Close the connection. It is opened again when needed."""
        ...
