"""Capture, with retries: attempt after attempt until it is told to stop or an error says that it must.

`SourceUnavailable` and `SinkUnavailable` are tried again with growing pauses; a try that ran for a while starts the
pauses anew. Every other error ends the capture, because trying again would not change it (O08).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from queue import SimpleQueue

import tenacity

from cdcflow.errors import (
    ConfigurationError,
    HistoryLost,
    OutcomeUnknown,
    RightMissing,
    SinkUnavailable,
    SourceUnavailable,
)
from cdcflow.interleave.machine import Limits
from cdcflow.interleave.messages import Adjust, Backfill, Cancel, Input, Pause, Resume
from cdcflow.model.position import SourceIdentity
from cdcflow.pipeline.attempt import Attempt, OnEvent, Orders, Pace, TablesChanged, table_ids
from cdcflow.pipeline.settings import CaptureSettings, OpenedLog, SettingsInUse
from cdcflow.pipeline.waker import Waker
from cdcflow.ports import Source

HEALTHY_AFTER_S = 30.0


class SettingsChanged(Exception):
    """Other settings are to be gone on with; the next attempt takes them up."""


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
    ) -> None:
        self._settings = SettingsInUse(CaptureSettings(open_source, open_log, limits, pace))
        self._orders = orders
        self._on_event = on_event
        self._requests: SimpleQueue[Input] = SimpleQueue()
        self._stop = threading.Event()
        self._nudged = threading.Event()
        self._waker: Waker | None = None
        self._attempt: Attempt | None = None
        self._waiting_for: str | None = None
        self._attempts = 0
        self._has_captured = False
        self._starting: Source | None = None
        self._starting_lock = threading.Lock()
        self._broke_off = False

    def run(self) -> None:
        """Capture until `stop`, or until the orders are served. Everything that was cut is durable on return.

        Raises:
            ConfigurationError, HistoryLost, InvariantViolated: trying again would not help.
        """
        self._waker = Waker()
        try:
            self._try_on()
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
                except (TablesChanged, SettingsChanged):
                    # No error: who was told to stop has no more attempt that could take the new list up.
                    if not self._stop.is_set():
                        raise

    def _is_tried_again(self, error: BaseException) -> bool:
        """A right that is missing at the start is a mistake; one that was there a moment ago may be given back."""
        if isinstance(error, RightMissing):
            return self._has_captured
        return isinstance(error, SourceUnavailable | SinkUnavailable | OutcomeUnknown | TablesChanged | SettingsChanged)

    def stop(self) -> None:
        """Ask it to stop at the next cut, or to give up a start that is under way. Safe in a signal handler."""
        self._stop.set()
        self._nudged.set()
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
        self._began = time.monotonic()
        if not self._stop.is_set():
            self._nudged.clear()
        try:
            self._with_source(self._settings.taken())
        except (ConfigurationError, HistoryLost, SourceUnavailable) as error:
            if self._broke_off and isinstance(error, SourceUnavailable):
                self._on_event("start broken off", {})
                return
            if not self._settings.give_up(error):
                raise
            self._on_event("settings given up", self._settings.refusal)
            raise SettingsChanged from error

    def _with_source(self, settings: CaptureSettings) -> None:
        source = settings.open_source()
        self._starting = source
        try:
            if self._stop.is_set():
                return  # it came too early to see what is starting
            log = settings.open_log(source.identity(), self._orders.accept_history_loss)
            try:
                self._run_on(source, log, settings)
            finally:
                log.close()
        finally:
            self._started()
            source.close()

    def _started(self) -> None:
        """From here on a stop is heard by the attempt itself, and ends at a cut."""
        with self._starting_lock:
            self._starting = None

    def _run_on(self, source: Source, log: OpenedLog, settings: CaptureSettings) -> None:
        assert self._waker is not None  # noqa: S101 - made by `run`
        attempt = Attempt(
            source,
            log,
            log_id=log.log_id,
            epoch=log.epoch,
            limits=settings.limits,
            orders=self._orders,
            pace=settings.pace,
            requests=self._requests,
            waker=self._waker,
            on_event=self._on_event,
        )
        self._attempt, self._waiting_for = attempt, None
        self._has_captured = True
        self._started()
        if self._settings.keep():
            self._on_event("settings taken up", {"number": self._settings.number})
        try:
            attempt.run(lambda: self._stop.is_set() or self._settings.are_waiting)
        finally:
            self._attempt = None
            attempt.close()
            # An operator's order counts once: what is durable is not ordered again by the next attempt.
            given = self._orders.given or attempt.order_is_kept()
            self._orders = replace(self._orders, given=given, accept_history_loss=False)
        if self._settings.are_waiting:
            raise SettingsChanged

    def _wait(self, seconds: float) -> None:
        """Until then, or until it is told to stop or gets other settings."""
        self._nudged.wait(seconds)

    def _pause_s(self, state: tenacity.RetryCallState) -> float:
        if state.outcome is not None and isinstance(state.outcome.exception(), TablesChanged | SettingsChanged):
            return 0.0
        if time.monotonic() - self._began > HEALTHY_AFTER_S:
            self._attempts = 1
        return float(min(0.2 * 2 ** (self._attempts - 1), 30.0))

    def _tell_retry(self, state: tenacity.RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome else None
        if isinstance(error, TablesChanged):
            self._on_event("captured tables changed", {})
            return
        if isinstance(error, SettingsChanged):
            self._waiting_for = "taking other settings up"
            return
        pause = state.next_action.sleep if state.next_action else 0.0
        self._waiting_for = str(error)
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

    def reload(self, settings: CaptureSettings, *, in_place: bool) -> int:
        """Go on with other settings, and return their number. They are taken up when `status` says so.

        `in_place`: only the limits differ, and the running attempt takes them. Else it ends at its next cut, and the
        next one begins with them; if that does not come to capture, they are given up and those before go on.
        """
        attempt = self._attempt
        number = self._settings.change(settings, is_live=attempt is not None, in_place=in_place)
        if in_place and attempt is not None:
            attempt.use(settings.limits)
        self._nudged.set()
        self._wake()
        return number

    @property
    def settings_number(self) -> int:
        """The number of the settings in use, counted from 1 by `reload`."""
        return self._settings.number

    def status(self) -> dict[str, object]:
        """What is going on, as JSON-able values."""
        attempt, settings = self._attempt, {"settings": self._settings.status()}
        if attempt is None:
            return {"state": "waiting", "reason": self._waiting_for or "starting", **settings}
        return {"state": "capturing", **attempt.status(), **settings}
