"""Capture, with retries: attempt after attempt, until it is stopped or an error must end it.

`SourceUnavailable` and `SinkUnavailable` are retried with growing pauses; an attempt that ran for a while resets the
pauses. Every other error ends the capture, because retrying would not change it. If source or log have never been
reached since the start, a wrong address is more likely than an unavailable server: with `wait` False these two errors
then end the capture as well. A requested stop is no failure, whatever the capture was waiting for.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from queue import SimpleQueue

import tenacity

from cdcflow.capture.attempt import Attempt, LoopIntervals, Orders
from cdcflow.capture.commands import Commands
from cdcflow.capture.freshness import Freshness
from cdcflow.capture.governor import Governor
from cdcflow.capture.interleave.limits import Limits
from cdcflow.capture.interleave.messages import (
    Answered,
    Command,
    Input,
    Outcome,
    PauseCapture,
    ResumeCapture,
)
from cdcflow.capture.interleave.progress import Progress
from cdcflow.capture.leadership import Leadership
from cdcflow.capture.observations import OnEvent
from cdcflow.capture.offline_audit import LateTraces
from cdcflow.capture.ports.source import Source
from cdcflow.capture.requests import NO_ARGUMENTS, Arguments, answer_json, orders_of
from cdcflow.capture.settings import CaptureSettings, OwnedLog, SettingsInUse
from cdcflow.capture.shadow import Shadow
from cdcflow.capture.source_polls import TablesChanged
from cdcflow.capture.spans import OnSpan
from cdcflow.capture.waker import Waker
from cdcflow.errors import (
    CdcflowError,
    ConfigurationError,
    HistoryLost,
    InvariantViolated,
    LeaseLost,
    OutcomeUnknown,
    RightMissing,
    SinkUnavailable,
    SourceUnavailable,
    WriterReplaced,
)
from cdcflow.model.position import Checkpoint, Position, SourceIdentity, position_text

DONE = ("rows_captured", "rows_read", "bytes_appended", "cuts", "syncs")


HEALTHY_AFTER_S = 30.0
ANSWER_WAIT_S = 5.0
"""How long the caller of a command waits for its answer."""
PAUSED_LOOK_S = 1.0
_NOT_ACTIVE = "this daemon is the standby"
MAY_BE_RELEASED = ("slot-lost", "binlog-purged")
"""The runbook's sections of errors that a stream raises when the source no longer keeps log for it."""


class SettingsChanged(Exception):
    """Ends an attempt because the settings have changed; the next attempt uses the new ones."""


class Capture:
    """A capture of one source into one log. `run` blocks; everything else may be called from any thread."""

    def __init__(
        self,
        *,
        open_source: Callable[[], Source],
        open_log: Callable[[SourceIdentity, bool], OwnedLog],
        limits: Limits,
        orders: Orders,
        pace: LoopIntervals,
        on_event: OnEvent,
        wait: bool = True,
        freshness: Freshness | None = None,
        shadow: Shadow | None = None,
        on_span: OnSpan | None = None,
        newest_checkpoint: Callable[[], Checkpoint] = Checkpoint,
        late: LateTraces | None = None,
        releases: bool = False,
        governor: Governor | None = None,
        leadership: Leadership | None = None,
        prepare_takeover: Callable[[], None] = lambda: None,
    ) -> None:
        self._governor = governor
        self._leadership = leadership
        self._prepare_takeover = prepare_takeover
        self._is_standby = False
        self.on_role: Callable[[bool], None] = lambda active: None
        """Called by the capture's thread when this process becomes active (True) or the standby (False)."""
        self._late = late or LateTraces()
        self._newest_checkpoint = newest_checkpoint
        self._found: Checkpoint | None = None  # kept by `_check_log_of`: reading it from a store takes long
        self._limits = limits
        first = CaptureSettings(open_source, open_log, limits, pace, releases=releases)
        if governor is not None:
            first = replace(first, reading=governor.limits, open_probe=governor.open_probe)
        self._settings = SettingsInUse(first)
        self._orders = orders
        self._on_event = on_event
        self._commands = Commands()
        self._requests: SimpleQueue[Input] = self._commands.queue
        self._paused: bool | None = None  # None until the log was read
        self._resuming: Command | None = None
        self._stop = threading.Event()
        self._nudged = threading.Event()
        self._waker: Waker | None = None
        self._attempt: Attempt | None = None
        self._waiting_for: str | None = None
        self._attempts = 0
        self._wait_for_first = wait
        self.has_begun = False
        """True once the source and the log have both been reached."""
        self._has_captured = False
        self._starting: Source | None = None
        self._starting_lock = threading.Lock()
        self._broke_off = False
        self._ran = False
        self._freshness = freshness
        self._shadow = shadow
        self._on_span = on_span
        self.on_sealed: Callable[[], None] = lambda: None
        """Called by the sealing thread when the log has a new segment; it must not wait."""
        self._seal_wanted = threading.Event()
        self._tally = Tally()
        self._halted: Exception | None = None
        self._lost_after: Position | None = None

    @property
    def is_starting(self) -> bool:
        """Whether interrupting the capture now would lose nothing.

        True while the current attempt has captured nothing yet, and before the log has been read to find out whether
        the capture is paused.
        """
        return self._starting is not None or self._paused is None

    @property
    def waits_for_lease(self) -> bool:
        """Whether this process is the standby, or does not know yet whether it is."""
        return self._is_standby

    def run(self) -> None:
        """Capture until `stop`, or until the orders are carried out. Everything that was cut is durable on return.

        Raises:
            ConfigurationError, HistoryLost, InvariantViolated: trying again would not help.
        """
        self._waker = Waker()
        try:
            self._try_on()
            while self._paused and not self._stop.is_set():
                self._hold()
                self._try_on()
        except Exception as error:
            # A source or log that does not answer may answer at the next start; any other error must be fixed first.
            is_away = isinstance(error, SourceUnavailable | SinkUnavailable) and not isinstance(error, RightMissing)
            if not (is_away or (self._stop.is_set() and self._is_tried_again(error))):
                self._halted = error
                if not self._orders.once:  # a one-time command reports its error itself
                    self._late.add(
                        "end", "cdcflow", "ended", f"{type(error).__name__}: {error_text(error).splitlines()[0]}"
                    )
            raise
        finally:
            if self._leadership is not None:
                self._leadership.close()
            self._waker.close()
            if self._governor is not None:
                self._governor.close()

    def _hold(self) -> None:
        """Wait until the paused capture is resumed or stopped.

        The log and the source are closed in the meantime; the source retains its log for cdcflow as it does for any
        disconnected client.
        """
        assert self._waker is not None  # noqa: S101 - created by `run`
        if self._orders.once:
            raise ConfigurationError(
                "reading tables: the capture of this log is paused",
                remedy="start `cdcflow run`, then run `cdcflow ctl resume`",
                runbook="order-refused",
            )
        self._take_resume()
        while self._resuming is None and not self._stop.is_set() and self._may_write():
            self._waker.wait(None, PAUSED_LOOK_S)
        self._attempts = 0

    def _try_on(self) -> None:
        attempts = tenacity.Retrying(
            retry=tenacity.retry_if_exception(self._is_tried_again),
            wait=self._pause_s,
            stop=tenacity.stop_when_event_set(self._stop),
            sleep=self._wait,
            before_sleep=self._tell_retry,
            reraise=True,
        )
        try:
            attempts(self._once)
        except (TablesChanged, SettingsChanged):
            pass  # stopped: no attempt follows that could use the new list
        except (SourceUnavailable, SinkUnavailable) as error:
            # If a running attempt could not write to its log at the end, that is still reported as an error.
            if not self._stop.is_set() or (self._ran and isinstance(error, SinkUnavailable)):
                raise
            self._on_event("stopped while it was interrupted", fields_of(error))

    def _is_tried_again(self, error: BaseException) -> bool:
        """Whether another attempt is to follow this error.

        A right that is missing at the start is a mistake, and is not retried; one that was revoked during the capture
        may be granted again.
        """
        if isinstance(error, RightMissing):
            return self._has_captured
        if isinstance(error, LeaseLost):
            return True
        if isinstance(error, SourceUnavailable | SinkUnavailable) and not self.has_begun:
            return self._wait_for_first
        return isinstance(error, SourceUnavailable | SinkUnavailable | OutcomeUnknown | TablesChanged | SettingsChanged)

    def stop(self) -> None:
        """Request a stop at the next cut, or cancel a start that is under way. Safe in a signal handler."""
        self._stop.set()
        self._nudged.set()
        self._wake()
        if (source := self._starting) is not None:
            # In a thread: a signal handler must not wait for locks that the code it interrupts may hold.
            threading.Thread(target=self._break_off, args=(source,), name="break-off", daemon=True).start()

    def _break_off(self, source: Source) -> None:
        """Close a source that is still starting, since that may take long: a new slot waits for other sessions'
        transactions."""
        with self._starting_lock:
            if self._starting is source:
                self._broke_off = True
                source.close()

    def _wake(self) -> None:
        if self._waker is not None:
            self._waker.wake()

    def _take_resume(self) -> None:
        """Take a command to resume that arrived while the last attempt ended. Leave other commands for the next
        attempt."""
        for given in [self._requests.get() for _ in range(self._requests.qsize())]:
            if isinstance(given, Command) and ResumeCapture() in given.orders:
                self._resuming = given
            else:
                self._requests.put(given)

    def _once(self) -> None:
        self._attempts += 1
        self._ran = False
        self._tally.attempts += 1
        self._began = time.monotonic()
        if not self._stop.is_set():
            self._nudged.clear()
        if self._leadership is not None and not self._lead(self._leadership):
            return
        if self._is_paused():
            return
        try:
            self._with_source(self._settings.take())
        except (ConfigurationError, HistoryLost, SourceUnavailable) as error:
            if self._broke_off and isinstance(error, SourceUnavailable):
                self._on_event("start broken off", {})
                return
            if not self._settings.give_up(error):
                raise
            self._on_event("settings given up", self._settings.refusal)
            raise SettingsChanged from error

    def _lead(self, leadership: Leadership) -> bool:
        """Become active: at once if this process holds the lease already, otherwise after waiting as the standby.
        Return False if the capture was stopped first."""
        leadership.give_up()
        if not leadership.is_held or self._paused is None:
            self._is_standby, self._waiting_for = True, "another daemon holds the lease"
            self._refuse_requests()
            self.on_role(False)
            self._prepare_takeover()
            self._refuse_to_wait(leadership)
            if not leadership.take(self._stop.is_set, wait=self._wait_for_first):
                return False
            self._refuse_requests()  # those that arrived while it lost the lease
            self._check_log_of(leadership)
            self._paused, self._attempts, self._is_standby = None, 1, False
            self._waiting_for = None
            self.on_role(True)
            if leadership.is_held:
                return True  # the place of the lease has just answered
        leadership.confirm()
        return True

    def _refuse_requests(self) -> None:
        """Refuse the commands that no attempt has accepted.

        Before this daemon is active again, the other daemon may carry them out, or an operator may give the opposite
        command.
        """
        resuming, self._resuming = self._resuming, None
        queued = [self._requests.get() for _ in range(self._requests.qsize())]
        for given in (*queued, resuming):
            if isinstance(given, Command) and given.id > 0:  # the others are notes, and stay with `_late`
                self._on_event("command refused", {"op": given.op, "by": given.asked_by, "reason": _NOT_ACTIVE})
                self._commands.refuse(given)

    def _refuse_to_wait(self, leadership: Leadership) -> None:
        orders = self._orders
        if not (orders.once or orders.accept_history_loss):
            return
        if leadership.take(lambda: leadership.waited_for is not None or self._stop.is_set(), wait=self._wait_for_first):
            return
        if self._stop.is_set():
            return
        who = leadership.waited_for
        active = f"{'another daemon' if who is None else who.name} is active and writes the log"
        if orders.once:
            raise ConfigurationError(
                f"reading tables: {active}",
                remedy="run this command on its machine, where the running daemon does it",
                runbook="two-daemons",
            )
        raise ConfigurationError(
            f"abandoning the log's position (--accept-history-loss): {active}",
            remedy="it needs no new position; if it is to take one, stop it and run this command again",
            runbook="two-daemons",
        )

    def _check_log_of(self, leadership: Leadership) -> None:
        """Raise an error if this standby has no log to continue. Otherwise it would begin a new log, and read all
        tables again."""
        who = leadership.waited_for
        if who is None or leadership.log_is_on_peers:
            return
        self._found = self._newest_checkpoint()
        if self._found.cut == 0:
            raise ConfigurationError(
                f"replacing {who.name}: this machine has no log at the place that the settings name",
                remedy="both daemons need the same log: a folder that both machines mount, a topic, or a replicated "
                "log. If the other daemon has not written anything yet, start this one again",
                runbook="standby-without-log",
            )

    def _may_write(self) -> bool:
        return self._leadership is None or self._leadership.is_held

    def _with_source(self, settings: CaptureSettings) -> None:
        leadership = self._leadership
        if leadership is None:
            self._with_open_source(settings)
            return
        term = leadership.terms
        try:
            self._with_open_source(settings)
        except WriterReplaced as error:
            if leadership.is_held and leadership.terms == term:
                leadership.leave_to_others()
            raise LeaseLost(str(error).splitlines()[0]) from error
        except (ConfigurationError, HistoryLost, InvariantViolated) as error:
            # The daemon that is active by now may have changed the log.
            leadership.confirm()
            if leadership.terms != term:
                raise LeaseLost(str(error).splitlines()[0]) from error
            raise

    def _with_open_source(self, settings: CaptureSettings) -> None:
        source = settings.open_source()
        self._starting = source
        try:
            if self._stop.is_set():
                return  # `stop` may have run before `_starting` was set
            log = settings.open_log(source.identity(), self._orders.accept_history_loss)
            self.has_begun = True
            try:
                self._run_on(source, log, settings)
            except HistoryLost as error:
                self._raise_unless_released(error, log.checkpoint.position, settings)
            finally:
                log.close()
        finally:
            self._begin_attempt()
            source.close()

    def _raise_unless_released(self, error: HistoryLost, after: Position | None, settings: CaptureSettings) -> None:
        """Raise `error`; if the source may have released its log during the attempt, raise SourceUnavailable instead.

        In that case the next attempt finds out at its start. If an attempt fails again after the same position, nothing
        was released, and `error` itself is raised.
        """
        if not settings.releases or error.runbook not in MAY_BE_RELEASED or after == self._lost_after:
            raise error
        self._lost_after = after
        raise SourceUnavailable(str(error).splitlines()[0], runbook=error.runbook) from error

    def _is_paused(self) -> bool:
        """Whether the capture is paused and not resumed yet. The log records a pause, so it outlasts this process."""
        if self._paused is None:
            found, self._found = self._found or self._newest_checkpoint(), None
            progress = Progress.from_json(found.progress)
            self._paused = progress.capture_paused
            self._late.begin(progress.commands)
            if self._paused:
                self._tally.last_known = status_of(found, progress, self._limits)
                self._on_event("capture is paused", {"since_cut": found.cut})
        return self._paused and self._resuming is None

    def _begin_attempt(self) -> None:
        """Note that the start is over: after this call, a stop no longer closes the source but ends the attempt at its
        next cut."""
        with self._starting_lock:
            self._starting = None

    def _run_on(self, source: Source, log: OwnedLog, settings: CaptureSettings) -> None:
        assert self._waker is not None  # noqa: S101 - created by `run`
        self._govern(settings)
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
            freshness=self._freshness,
            shadow=self._shadow,
            on_span=self._on_span,
            on_answer=self._on_answer,
            on_sealed=lambda: self.on_sealed(),
            seal_wanted=self._seal_wanted,
            governor=self._governor,
            repairs_gaps=settings.releases,
        )
        self._late.give(self._requests)
        if self._resuming is not None:
            self._requests.put(self._resuming)  # again, if the last attempt did not store it
        self._attempt, self._waiting_for = attempt, None
        self._has_captured = self._ran = True
        self._begin_attempt()
        if self._settings.keep():
            self._on_event("settings taken up", {"number": self._settings.number})
            settings.kept()
        try:
            attempt.run(lambda: self._stop.is_set() or self._settings.are_waiting or not self._may_write())
        finally:
            with self._tally.lock:
                self._tally.add(attempt)
                self._attempt = None
            self._paused = attempt.capture_paused or self._resuming is not None
            attempt.close(seals=self._stop.is_set() or self._may_write())
            # An operator's command counts once: if it is durable, the next attempt does not repeat it.
            given = self._orders.given or attempt.order_is_kept()
            self._orders = replace(self._orders, given=given, accept_history_loss=False)
        if self._settings.are_waiting:
            raise SettingsChanged
        if self._leadership is not None and not self._stop.is_set() and not self._leadership.is_held:
            raise self._leadership.loss_error()

    def _wait(self, seconds: float) -> None:
        """Wait, but return early if the capture is stopped or gets other settings."""
        self._nudged.wait(seconds)

    def _pause_s(self, state: tenacity.RetryCallState) -> float:
        if state.outcome is not None and isinstance(
            state.outcome.exception(), TablesChanged | SettingsChanged | LeaseLost
        ):
            self._attempts = 0  # the attempt captured, so its end for new tables is no failure
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
        self._tally.retries[type(error).__name__] += 1
        self._on_event("capture interrupted", {**fields_of(error), "next_try_s": round(pause, 1)})

    def request(
        self,
        op: str,
        tables: Sequence[str] = (),
        arguments: Arguments = NO_ARGUMENTS,
        *,
        asked_by: str = "this program",
    ) -> dict[str, object]:
        """Request an operation of the capture; `cdcflow.http.operations` lists them.

        Returns `{"op": …, "tables": {"public.orders": {"outcome": "paused"}, …}, "number": …, "durable": …}`, with a
        `reason` where nothing was changed; for a command about the capture itself its outcome is in `capture`. `number`
        is the number of the command's record in the log. If `durable` is false, that record is not safe on disk yet,
        and a crash may undo the command.

        Raises:
            ConfigurationError: an unknown table or operation, or keys that do not fit the table.
            SourceUnavailable: nothing is being captured currently.
        """
        match op:
            case "stop":
                return self._stop_by_order(asked_by)
            case "handover":
                return self._hand_over(asked_by)
            case "pause-capture":
                return self._pause_capture(asked_by)
            case "resume-capture":
                return self._resume_capture(asked_by)
        orders = orders_of(self._running(op, asked_by, tables), op, tables, arguments)
        return self._answer_of(self._submit(self._commands.new(op, asked_by, orders, arguments.details(orders))))

    def _running(self, op: str, asked_by: str, tables: Sequence[str] = ()) -> Attempt:
        if (attempt := self._attempt) is not None:
            return attempt
        self._refuse_as_standby()
        if self._paused and self._resuming is None:
            why, remedy = "the capture is paused", "run `cdcflow ctl resume` first"
        else:
            why, remedy = f"the capture is waiting to try again: {self._waiting_for or 'starting'}", None
        self._late.add(op, asked_by, "refused", why.splitlines()[0], tables)
        raise SourceUnavailable(why, remedy=remedy)

    def _refuse_as_standby(self) -> None:
        if self._is_standby:
            raise SourceUnavailable(_NOT_ACTIVE, remedy="run the command on the active daemon's machine")

    def _submit(self, command: Command) -> Command:
        self._requests.put(command)
        self._wake()
        return command

    def _answer_of(self, command: Command) -> dict[str, object]:
        answer, durable = self._commands.wait(command, ANSWER_WAIT_S)
        if answer is None:
            self._refuse_as_standby()
            raise SourceUnavailable(
                f"the capture did not accept the command within {ANSWER_WAIT_S:g} s; it will as soon as it can",
                remedy="`cdcflow log commands` then shows it",
            )
        return answer_json(command.op, answer.outcomes, number=answer.number, durable=durable)

    def _on_answer(self, answer: Answered, durable: bool) -> None:
        if durable:
            self._late.record_written(answer.id)
        if durable and self._resuming is not None and answer.id == self._resuming.id:
            self._resuming, self._paused = None, False
        self._commands.answer(answer, durable)

    def _stop_by_order(self, asked_by: str) -> dict[str, object]:
        command = self._commands.new("stop", asked_by, (), {})
        answer, durable = None, False
        if self._attempt is not None:
            answer, durable = self._commands.wait(self._submit(command), ANSWER_WAIT_S)
        else:
            self._late.add("stop", asked_by, "stopping", None)
        self.stop()
        number = None if answer is None else answer.number
        return answer_json("stop", (Outcome(None, "stopping"),), number=number, durable=durable)

    def _hand_over(self, asked_by: str) -> dict[str, object]:
        if self._leadership is None:
            raise ConfigurationError(
                "handover: these settings have no lease, so there is no standby",
                remedy="set service.lease for both daemons (docs/high-availability.md)",
            )
        self._running("handover", asked_by)
        command = self._commands.new("handover", asked_by, (), {})
        answer, durable = self._commands.wait(self._submit(command), ANSWER_WAIT_S)
        self._refuse_as_standby()
        self._leadership.request_handover()
        self._wake()
        number = None if answer is None else answer.number
        return answer_json(
            "handover", (Outcome(None, "stopping", "the standby becomes active"),), number=number, durable=durable
        )

    def _pause_capture(self, asked_by: str) -> dict[str, object]:
        if self._attempt is None and self._paused and self._resuming is None:
            again = Outcome(None, "nothing to do", "the capture is paused already")
            self._late.add("pause-capture", asked_by, again.outcome, again.reason)
            return answer_json("pause-capture", (again,))
        self._running("pause-capture", asked_by)
        return self._answer_of(self._submit(self._commands.new("pause-capture", asked_by, (PauseCapture(),), {})))

    def _resume_capture(self, asked_by: str) -> dict[str, object]:
        self._refuse_as_standby()
        command = self._commands.new("resume-capture", asked_by, (ResumeCapture(),), {})
        attempt = self._attempt
        if self._paused is False and not (attempt is not None and attempt.capture_paused):
            self._running("resume-capture", asked_by)
            return self._answer_of(self._submit(command))
        self._resuming = command
        self._wake()
        answer, durable = self._commands.wait(command, ANSWER_WAIT_S)
        if answer is None:  # it is in effect while this process is active
            self._refuse_as_standby()
            return answer_json("resume-capture", (Outcome(None, "resumed", "the source has not been reached yet"),))
        return answer_json("resume-capture", answer.outcomes, number=answer.number, durable=durable)

    def seal_soon(self) -> None:
        """Have the captured rows sealed once, however recent they are. If there are none, the next rows are sealed as
        soon as they arrive.

        Any thread may call it; it does not wait.
        """
        self._seal_wanted.set()
        self._wake()

    def reload(self, settings: CaptureSettings, *, in_place: bool) -> int:
        """Continue with other settings, and return their number. They are applied when `status` reports that number.

        `in_place`: only the limits differ, and the running attempt applies them. Otherwise it ends at its next cut, and
        the next attempt begins with them; if that one fails before it captures, they are rejected and the previous
        settings are used again.
        """
        attempt = self._attempt
        number = self._settings.change(settings, is_live=attempt is not None, in_place=in_place)
        if in_place and attempt is not None:
            attempt.use(settings.limits)
            self._govern(settings)
        self._nudged.set()
        self._wake()
        return number

    def _govern(self, settings: CaptureSettings) -> None:
        if self._governor is not None:
            self._governor.use(settings.reading, settings.open_probe)

    def observe(self, on_span: OnSpan | None, freshness_every_s: float, shadow_every_s: float | None = None) -> None:
        """Set the intervals of freshness proofs and of shadow checks, and the function that later attempts call with
        their spans.

        `shadow_every_s` None turns shadow checks off, `on_span` None the spans.
        """
        self._on_span = on_span
        if self._freshness is not None:
            self._freshness.every_s = freshness_every_s
        if self._shadow is not None:
            self._shadow.every_s = shadow_every_s

    @property
    def settings_number(self) -> int:
        """The number of the settings in use, counted from 1 by `reload`."""
        return self._settings.number

    def status(self) -> dict[str, object]:
        """The current state, as JSON-able values. `halted` is permanent; `waiting` is retried automatically."""
        attempt, settings = self._attempt, {"settings": self._settings.status(), **self._lease_status()}
        reading = None if self._governor is None else self._governor.status()
        if (halted := self._halted) is not None:
            return {"state": "halted", "kind": type(halted).__name__, "reason": error_text(halted), **settings}
        if attempt is None and self._is_standby:
            return {"state": "standby", "reason": self._waiting_for or "another daemon is active", **settings}
        if attempt is None and self._paused and self._resuming is None:
            return {**self._tally.last_known, "state": "paused", "reason": "until `cdcflow ctl resume`", **settings}
        if attempt is None:
            return {"state": "waiting", "reason": self._waiting_for or "starting", **settings}
        pace = {} if reading is None else {"reading": reading}
        return {"state": "capturing", **attempt.status(), **settings, **pace}

    def _lease_status(self) -> dict[str, object]:
        return {} if self._leadership is None else {"lease": self._leadership.status()}

    def last_known(self) -> dict[str, object]:
        """Return the log's status at the end of the latest attempt, to show while nothing is captured; {} if no attempt
        has ended."""
        return dict(self._tally.last_known)

    def counts(self) -> dict[str, object]:
        """Counts since the process was started, over all attempts. They only grow."""
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
            **{name: done[name] for name in DONE},
            **({} if self._shadow is None else self._shadow.counts),
            "attempts": tally.attempts,
            "retries": dict(retries),
            "errors": dict(errors),
            "events": dict(events),
        }

    def shadow(self) -> dict[str, dict[str, object]]:
        """The difference that a shadow check found, for each table that has one (see `capture.shadow`)."""
        if self._shadow is None:
            return {}
        attempt = self._attempt
        return self._shadow.states(attempt.progress if attempt else Progress({}))

    def freshness(self) -> dict[str, dict[str, object]]:
        """What is proven of each table's freshness (see `capture.freshness`); {} before the first attempt."""
        if self._freshness is None:
            return {}
        attempt, interrupted = self._attempt, None
        if self._halted is not None:
            interrupted = f"the capture has stopped with an error: {error_text(self._halted).splitlines()[0]}"
        elif attempt is None:
            why = "the capture is paused" if self._paused else (self._waiting_for or "starting").splitlines()[0]
            interrupted = f"nothing is currently captured: {why}"
        return self._freshness.states(attempt.progress if attempt else Progress({}), interrupted)


class Tally:
    """Totals of the attempts that have ended, and the last status of the latest one."""

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


def fields_of(error: BaseException | None) -> dict[str, object]:
    """Return an error as the fields of an event: `kind`, `reason` and, if it has one, `remedy`."""
    remedy = getattr(error, "remedy", None)
    found = {"kind": type(error).__name__, "reason": str(error).split("\n")[0]}
    return {**found, "remedy": remedy} if remedy else {**found}


def error_text(error: Exception) -> str:
    """Return an error's text. The text of an unexpected error is replaced, because it may contain a row's values."""
    return str(error) if isinstance(error, CdcflowError) else "a fault in cdcflow"


def status_of(found: Checkpoint, progress: Progress, limits: Limits) -> dict[str, object]:
    """The status of a log that no attempt has open."""
    return {
        "epoch": found.epoch,
        "cut": found.cut,
        "position": position_text(found.position),
        "next_offset": found.next_offset,
        "commit_clock": found.commit_clock,
        "tables": progress.to_status(limits.rows_per_second_max),
    }
