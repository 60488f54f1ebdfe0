"""Active or standby: a daemon that may write the log only while it holds a lease.

    standby ──takes the lease──▶ active ──lease lost, handover──▶ standby
       │ tries every 0.2 s          │ renews in a thread; the capture checks the term before each attempt, at each turn

The thread requests the lease; the capture only compares times. So an answer that does not arrive ends the term as well.
The clock also counts the time in which the machine was suspended.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable

from cdcflow.capture.observations import OnEvent
from cdcflow.capture.ports.lease import DaemonLease, Holder
from cdcflow.capture.term import Term
from cdcflow.capture.threads import Clock
from cdcflow.errors import CdcflowError, ConfigurationError, LeaseLost

SLICE_S = 0.2
"""How long the main thread waits at a time: signals are handled in between."""
REST_S = 5.0
"""A daemon that gave the lease back requests it again after this time, unless another daemon has taken it."""
LOOKED_EVERY_S = 1.0
"""How often a standby finds out who holds the lease."""
CONFIRMED_WITHIN_S = 10.0
REPORTED_EVERY_S = 30.0
"""How often a lease that does not answer is reported."""


_UNKNOWN = Holder("another daemon")


def boot_clock() -> float:
    """Return the seconds since the machine was started, including the time in which it was suspended.

    Setting the time of day does not change it.
    """
    clock = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    return time.clock_gettime(clock)


def this_process() -> str:
    """Return the name of this process in messages and leases."""
    return f"{socket.gethostname()} (process {os.getpid()})"


class Leadership:
    """The lease of one daemon. The capture calls `take`, `is_held`, `confirm` and `give_up`; `status` is for any
    thread."""

    def __init__(
        self,
        open_lease: Callable[[], DaemonLease],
        on_event: OnEvent,
        clock: Clock = boot_clock,
        *,
        log_is_on_peers: bool = False,
    ) -> None:
        """`log_is_on_peers`: a machine that becomes active gets the log from its peers, and need not have it before."""
        self.log_is_on_peers = log_is_on_peers
        self._open_lease = open_lease
        self._on_event = on_event
        self._clock = clock
        self._lease: DaemonLease | None = None
        self._term = Term(0.0)
        self._changed = threading.Condition()
        self._latest_answered = float("-inf")
        self._rests_until = float("-inf")
        self._gives_up = False
        self._holder: Holder | None = None
        self._waited_for: Holder | None = None
        self._is_active = False
        self._since = time.time()
        self._error: CdcflowError | None = None
        self._reported_at = float("-inf")
        self._changes = 0
        self.terms = 0
        """How often this process took the lease. If the number has changed, the process was without the lease in
        between."""
        self._closed = threading.Event()
        self._asks = threading.Event()
        self._returns = False
        self._looked_at = float("-inf")
        self._has_answered = False
        self._thread: threading.Thread | None = None

    # ── for the capture ─────────────────────────────────────────────────────────────────────────────────────

    def take(self, is_stopped: Callable[[], bool], *, wait: bool = True) -> bool:
        """Wait as the standby until this process holds the lease. Return False if it was stopped first.

        Raises:
            ConfigurationError: the lease's place refuses this process, and has answered no request of it before.
            SourceUnavailable, SinkUnavailable: the place does not answer, and has answered no request before. With
            `wait`, the request is repeated instead.
        """
        self._start()
        self._set_active(False)
        with self._changed:
            while not is_stopped():
                if self._may_write():
                    break
                is_final = not wait or isinstance(self._error, ConfigurationError)
                if self._error is not None and is_final and not self._has_answered:
                    raise self._error
                self._changed.wait(SLICE_S)
            else:
                return False
        self._set_active(True)
        return True

    @property
    def is_held(self) -> bool:
        """Whether this process may write: it holds the lease, and no handover was requested. Cheap."""
        return self._may_write() and not self._gives_up

    def confirm(self) -> None:
        """Request the lease again, and return when its place has answered that this process holds it.

        Raises:
            LeaseLost: this process does not hold it, or no answer arrived.
        """
        asked_at = self._clock()
        self._asks.set()
        with self._changed:
            while self._latest_answered < asked_at and self._clock() < asked_at + CONFIRMED_WITHIN_S:
                self._changed.wait(SLICE_S)
        if self._latest_answered < asked_at or not self._may_write():
            raise self.loss_error()

    def loss_error(self) -> LeaseLost:
        """The error of an attempt that ends because this process does not hold the lease."""
        who = self._holder
        why = f"the lease did not answer ({_line(self._error)})" if self._error is not None else "the lease has expired"
        if self._gives_up:
            why = "an operator requested a handover"
        elif who is not None and not self._may_write():
            why = f"{who.name} holds the lease"
        return LeaseLost(f"writing the log: {why}; this daemon is the standby now")

    def request_handover(self) -> None:
        """Have the capture stop at its next cut and release the lease. Any thread may call it."""
        self._gives_up = True

    def give_up(self) -> None:
        """Release the lease if a handover was requested, and leave it to others for a while. Call it once the log is
        closed."""
        if self._gives_up:
            self._rests_until = self._clock() + REST_S
            self._return_lease()
            self._gives_up = False

    def leave_to_others(self) -> None:
        """Release the lease for a while, because another process writes the log although this one holds the lease."""
        self._gives_up = True
        self.give_up()

    @property
    def waited_for(self) -> Holder | None:
        """The daemon that held the lease last, before this one; None if this process saw none."""
        return self._waited_for

    def close(self) -> None:
        """Release the lease, and end the thread."""
        self._closed.set()
        self._asks.set()
        if self._thread is not None:
            self._thread.join(timeout=CONFIRMED_WITHIN_S)

    def status(self) -> dict[str, object]:
        """Whether this daemon is active or the standby, and since when; who holds the lease, and since when."""
        found: dict[str, object] = {
            "role": "active" if self._is_active else "standby",
            "since": round(self._since, 3),
            "changes": self._changes,
        }
        if (holder := self._holder) is not None:
            found |= {"holder": holder.name, "holder_since": holder.since}
        if (error := self._error) is not None:
            found["error"] = _line(error)
        return found

    # ── inside ──────────────────────────────────────────────────────────────────────────────────────────────

    def _start(self) -> None:
        if self._thread is None:
            self._lease = self._open_lease()
            self._term = Term(self._lease.ttl_s)
            self._thread = threading.Thread(target=self._run, name="lease", daemon=True)
            self._thread.start()

    def _may_write(self) -> bool:
        return self._term.is_held(self._clock())

    def _set_active(self, active: bool) -> None:
        if self._is_active == active:
            return
        self._is_active, self._since = active, time.time()
        self._changes += 1
        holder = None if active or self._holder is None else self._holder.name
        self._on_event("lease taken" if active else "lease released", {"holder": holder})

    def _run(self) -> None:
        assert self._lease is not None  # noqa: S101 - see `_start`
        while not self._closed.is_set():
            if self._returns:
                self._release(self._lease)
            elif self._clock() >= self._rests_until:
                self._ask(self._lease)
            else:
                self._end_rest(self._lease)
            self._asks.wait(self._lease.renewed_every_s if self._may_write() else self._lease.watched_every_s)
            self._asks.clear()
        self._release(self._lease)

    def _ask(self, lease: DaemonLease) -> None:
        asked_at = self._clock()
        try:
            held = lease.hold()
            if held:
                self._holder = Holder(this_process(), self._since)
            elif asked_at - self._looked_at >= LOOKED_EVERY_S:
                self._looked_at = asked_at
                self._see(lease.holder())
        except CdcflowError as error:
            self._report(error)
            return
        with self._changed:
            self._error, self._has_answered = None, True
            self.terms += held and not self._term.is_held(asked_at)
            self._term.record_answer(asked_at, held=held)
            self._latest_answered = asked_at  # `confirm` ignores the answer if its request began earlier
            self._changed.notify_all()

    def _end_rest(self, lease: DaemonLease) -> None:
        """End the time in which this process leaves the released lease to others, as soon as another process holds it.
        From then on this process waits for the lease as any standby does."""
        try:
            holder = lease.holder()
        except CdcflowError as error:
            self._report(error)
            return
        if holder is not None and not _is_this_process(holder):
            self._rests_until = float("-inf")
            self._see(holder)

    def _see(self, holder: Holder | None) -> None:
        """Note that another process holds the lease. Ignore a record of this process itself, which was stored although
        its answer came too late."""
        if holder is not None and holder.is_own:
            return
        before, self._holder, self._waited_for = self._waited_for, holder, holder or _UNKNOWN
        if before is None or before.name != self._waited_for.name:
            self._on_event("standing by", {"active": self._waited_for.name})

    def _report(self, error: CdcflowError) -> None:
        self._error = error
        if self._clock() - self._reported_at >= REPORTED_EVERY_S:
            self._reported_at = self._clock()
            self._on_event("lease does not answer", {"reason": _line(error), "remedy": error.remedy})

    def _return_lease(self) -> None:
        """Have the thread release the lease, and wait until it has."""
        self._term.held_until = None
        self._returns = True
        self._asks.set()
        with self._changed:
            self._changed.wait_for(lambda: not self._returns, CONFIRMED_WITHIN_S)

    def _release(self, lease: DaemonLease) -> None:
        self._term.held_until = None
        try:
            lease.release()
        except CdcflowError as error:  # it expires by itself
            self._report(error)
        with self._changed:
            self._returns, self._holder, self._looked_at = False, None, float("-inf")
            self._changed.notify_all()


def _is_this_process(holder: Holder) -> bool:
    """Whether the holder is this process: a lease that was just released may still be shown as its own.

    The host's name in the holder's name may be cut short.
    """
    host, _, process = holder.name.rpartition(" (")
    return process == f"process {os.getpid()})" and socket.gethostname().startswith(host)


def _line(error: BaseException | None) -> str:
    return str(error).partition("\n")[0]
