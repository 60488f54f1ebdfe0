"""Capture, with retries: attempt after attempt until it is told to stop or an error says that it must.

`SourceUnavailable` and `SinkUnavailable` are tried again with growing pauses; a try that ran for a while starts the
pauses anew. Every other error ends the capture, because trying again would not change it (O08).
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from queue import SimpleQueue
from typing import Protocol

import tenacity

from cdcflow.errors import (
    CdcflowError,
    ConfigurationError,
    OutcomeUnknown,
    RightMissing,
    SinkUnavailable,
    SourceUnavailable,
)
from cdcflow.interleave.machine import Limits
from cdcflow.interleave.messages import Adjust, Backfill, Cancel, Input, Pause, Resume
from cdcflow.interleave.progress import Progress
from cdcflow.model.position import Epoch, SourceIdentity
from cdcflow.pipeline.attempt import Attempt, OnEvent, Orders, Pace, TablesChanged, table_ids
from cdcflow.pipeline.freshness import Freshness
from cdcflow.pipeline.spans import OnSpan
from cdcflow.pipeline.waker import Waker
from cdcflow.ports import Log, Source

HEALTHY_AFTER_S = 30.0


class OpenedLog(Log, Protocol):
    """A log that a pipeline owns: it also knows its id and the epoch of this opening."""

    @property
    def log_id(self) -> str: ...
    @property
    def epoch(self) -> Epoch: ...


class Capture:
    """A capture of one source into one log. `run` blocks; everything else may be called from any thread."""

    def __init__(
        self,
        *,
        open_source: Callable[[], Source],
        open_log: Callable[[SourceIdentity, bool], OpenedLog],
        limits: Limits,
        orders: Orders,
        pace: Pace,
        on_event: OnEvent,
        freshness: Freshness | None = None,
        on_span: OnSpan | None = None,
    ) -> None:
        self._open_source = open_source
        self._open_log = open_log
        self._limits = limits
        self._orders = orders
        self._pace = pace
        self._on_event = on_event
        self._requests: SimpleQueue[Input] = SimpleQueue()
        self._stop = threading.Event()
        self._waker: Waker | None = None
        self._attempt: Attempt | None = None
        self._waiting_for: str | None = None
        self._attempts = 0
        self._has_captured = False
        self._starting: Source | None = None
        self._starting_lock = threading.Lock()
        self._broke_off = False
        self._freshness = freshness
        self._on_span = on_span
        self._tally = _Tally()
        self._halted: Exception | None = None

    def run(self) -> None:
        """Capture until `stop`, or until the orders are served. Everything that was cut is durable on return.

        Raises:
            ConfigurationError, HistoryLost, InvariantViolated: trying again would not help.
        """
        self._waker = Waker()
        try:
            self._try_on()
        except Exception as error:
            if not self._is_tried_again(error):
                self._halted = error
            raise
        finally:
            self._waker.close()

    def _try_on(self) -> None:
        for attempt in tenacity.Retrying(
            retry=tenacity.retry_if_exception(self._is_tried_again),
            wait=self._pause_s,
            stop=tenacity.stop_when_event_set(self._stop),
            sleep=self._wait,
            before_sleep=self._tell_retry,
            reraise=True,
        ):
            with attempt:
                try:
                    self._once()
                except TablesChanged:
                    # No error: who was told to stop has no more attempt that could take the new list up.
                    if not self._stop.is_set():
                        raise

    def _is_tried_again(self, error: BaseException) -> bool:
        """A right that is missing at the start is a mistake; one that was there a moment ago may be given back."""
        if isinstance(error, RightMissing):
            return self._has_captured
        return isinstance(error, SourceUnavailable | SinkUnavailable | OutcomeUnknown | TablesChanged)

    def stop(self) -> None:
        """Ask it to stop at the next cut, or to give up a start that is under way. Safe in a signal handler."""
        self._stop.set()
        self._wake()
        if (source := self._starting) is not None:
            # In a thread: a signal handler must not wait for locks that the code it interrupts may hold.
            threading.Thread(target=self._break_off, args=(source,), name="break-off", daemon=True).start()

    def _break_off(self, source: Source) -> None:
        """End a start that waits for the server: making a slot may wait a minute for other people's transactions."""
        with self._starting_lock:
            if self._starting is source:
                self._broke_off = True
                source.close()

    def _wake(self) -> None:
        if self._waker is not None:
            self._waker.wake()

    def _once(self) -> None:
        self._attempts += 1
        self._tally.attempts += 1
        self._began = time.monotonic()
        source = self._open_source()
        self._starting = source
        try:
            if self._stop.is_set():
                return  # it came too early to see what is starting
            log = self._open_log(source.identity(), self._orders.accept_history_loss)
            try:
                self._run_on(source, log)
            finally:
                log.close()
        except SourceUnavailable:
            if not self._broke_off:
                raise
            self._on_event("start broken off", {})
        finally:
            self._started()
            source.close()

    def _started(self) -> None:
        """From here on a stop is heard by the attempt itself, and ends at a cut."""
        with self._starting_lock:
            self._starting = None

    def _run_on(self, source: Source, log: OpenedLog) -> None:
        assert self._waker is not None  # noqa: S101 - made by `run`
        attempt = Attempt(
            source,
            log,
            log_id=log.log_id,
            epoch=log.epoch,
            limits=self._limits,
            orders=self._orders,
            pace=self._pace,
            requests=self._requests,
            waker=self._waker,
            on_event=self._on_event,
            freshness=self._freshness,
            on_span=self._on_span,
        )
        self._attempt, self._waiting_for = attempt, None
        self._has_captured = True
        self._started()
        try:
            attempt.run(self._stop.is_set)
        finally:
            with self._tally.lock:
                self._tally.add(attempt)
                self._attempt = None
            attempt.close()
            # An operator's order counts once: what is durable is not ordered again by the next attempt.
            given = self._orders.given or attempt.order_is_kept()
            self._orders = replace(self._orders, given=given, accept_history_loss=False)

    def _wait(self, seconds: float) -> None:
        self._stop.wait(seconds)

    def _pause_s(self, state: tenacity.RetryCallState) -> float:
        if state.outcome is not None and isinstance(state.outcome.exception(), TablesChanged):
            return 0.0
        if time.monotonic() - self._began > HEALTHY_AFTER_S:
            self._attempts = 1
        return float(min(0.2 * 2 ** (self._attempts - 1), 30.0))

    def _tell_retry(self, state: tenacity.RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome else None
        if isinstance(error, TablesChanged):
            self._on_event("captured tables changed", {})
            return
        pause = state.next_action.sleep if state.next_action else 0.0
        self._waiting_for = str(error)
        self._tally.retries[type(error).__name__] += 1
        remedy = getattr(error, "remedy", None)
        self._on_event(
            "capture interrupted",
            {
                "kind": type(error).__name__,
                "reason": str(error).split("\n")[0],
                **({"remedy": remedy} if remedy else {}),
                "next_try_s": round(pause, 1),
            },
        )

    def request(self, op: str, tables: Sequence[str], **adjustment: int | None) -> dict[str, object]:
        """Order something of the running capture: backfill, pause, resume, cancel or adjust, of these tables.

        Returns the names it was ordered for. The effect shows in `status`.

        Raises:
            ConfigurationError: an unknown table or operation.
            SourceUnavailable: it is not capturing just now.
        """
        attempt = self._attempt
        if attempt is None:
            raise SourceUnavailable(f"the capture is waiting to try again: {self._waiting_for or 'starting'}")
        ids = table_ids(tables, attempt.tables)
        match op:
            case "backfill":
                wanted: list[Input] = [Backfill(ids)]
            case "pause":
                wanted = [Pause(t) for t in ids]
            case "resume":
                wanted = [Resume(t) for t in ids]
            case "cancel":
                wanted = [Cancel(t) for t in ids]
            case "adjust":
                wanted = [Adjust(t, adjustment.get("priority"), adjustment.get("rows_per_second_max")) for t in ids]
            case _:
                raise ConfigurationError(
                    f"unknown request {op!r}", remedy="use backfill, pause, resume, cancel or adjust"
                )
        for item in wanted:
            self._requests.put(item)
        self._wake()
        return {"op": op, "tables": [str(t) for t in ids]}

    def status(self) -> dict[str, object]:
        """What is going on, as JSON-able values. `halted` is for good; `waiting` is tried again by itself."""
        attempt = self._attempt
        if (halted := self._halted) is not None:
            return {"state": "halted", "kind": type(halted).__name__, "reason": _said(halted)}
        if attempt is None:
            return {"state": "waiting", "reason": self._waiting_for or "starting"}
        return {"state": "capturing", **attempt.status()}

    def last_known(self) -> dict[str, object]:
        """What the latest attempt knew when it ended: where the log stands while nothing is captured. {}: none ran."""
        return dict(self._tally.last_known)

    def counts(self) -> dict[str, object]:
        """What was done since the process was started, over all attempts. It only grows."""
        tally = self._tally
        with tally.lock:
            attempt = self._attempt
            done = tally.done + Counter(attempt.counts() if attempt else {})
            events = tally.events + (attempt.events if attempt else Counter[str]())
            retries = Counter(tally.retries)
        errors = retries + Counter(ChunkFailed=events["chunk given up"] + events["plan given up"])
        if self._halted is not None:
            errors[type(self._halted).__name__] += 1
        return {
            **{name: done[name] for name in _DONE},
            "attempts": tally.attempts,
            "retries": dict(retries),
            "errors": dict(errors),
            "events": dict(events),
        }

    def freshness(self) -> dict[str, dict[str, object]]:
        """What is proven of each table's freshness (see `pipeline.freshness`); {} before the first attempt."""
        if self._freshness is None:
            return {}
        attempt, interrupted = self._attempt, None
        if self._halted is not None:
            interrupted = f"the capture was halted: {_said(self._halted).splitlines()[0]}"
        elif attempt is None:
            interrupted = f"nothing is captured just now: {(self._waiting_for or 'starting').splitlines()[0]}"
        return self._freshness.states(attempt.progress if attempt else Progress({}), interrupted)


def _said(error: Exception) -> str:
    """An error's text; that of one which nobody foresaw may hold a row's values."""
    return str(error) if isinstance(error, CdcflowError) else "a fault in cdcflow"


_DONE = ("rows_captured", "rows_read", "bytes_appended", "cuts", "syncs")


class _Tally:
    """What attempts that ended have done, and what the latest of them knew."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.done: Counter[str] = Counter()
        self.events: Counter[str] = Counter()
        self.retries: Counter[str] = Counter()
        self.attempts = 0
        self.last_known: dict[str, object] = {}

    def add(self, attempt: Attempt) -> None:
        self.done.update(attempt.counts())
        self.events.update(attempt.events)
        self.last_known = {**attempt.status(), "rows_per_second": 0.0, "held_rows": 0, "held_bytes": 0}
