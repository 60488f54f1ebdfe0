"""Keeps the reading of existing rows within limits, so that a busy source stays fast for its applications.

    capture's loop  ──observe, count──▶ ┌──────────┐ ──load, commit──▶ SourceProbe   its own connection, its own thread
    a comparison    ──admit, count────▶ │ Governor │
                    ◀──────pace──────── └──────────┘ ──add──▶ DayLedger              what was read today

`pacing` decides; the governor measures, and watches the time. It measures only while rows are to be read. Nothing is
read before the first measurement, nor while the source cannot be measured: an unknown load may be above its limit.

With a limit on commits, reading pauses now and then (`QUIET_EVERY_S`). The commits measured in such a pause, and
between two windows, are the base: commits during reading are compared with them. So the limit follows the load as it
changes.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Protocol

from cdcflow.capture.interleave.limits import ReadingPace
from cdcflow.capture.observations import OnEvent
from cdcflow.capture.pacing import CommitPace, Decision, Reason, day_of, decide
from cdcflow.capture.ports.source_probe import SourceProbe
from cdcflow.errors import CdcflowError
from cdcflow.model.source_load import DayUse, ReadingLimits, SourceLoad

LOAD_EVERY_S = 1.0
COMMIT_EVERY_S = 0.025
FIRST_COMMITS_EVERY_S = 0.01
"""The interval of commits until enough were measured to begin reading."""
QUIET_EVERY_S, QUIET_S = 20.0, 2.0
SETTLED_S = 0.05
"""A commit that begins within this time after a window is not part of the base: it may still wait for work that the
window caused."""
TOLD_EVERY_S = 10.0
ADMIT_EVERY_S = 0.05
PAUSE_MAX_S = 10.0

OpenProbe = Callable[[], SourceProbe]


class DayLedger(Protocol):
    """Adds up how much existing data all processes of one log have read on a day. Survives restarts."""

    def add(self, use: DayUse) -> DayUse:
        """Add this use to its day, and return the day's new total. The total of an earlier day is forgotten."""
        ...


class Governor:
    """Decides the pace of reading while rows are read. Any thread may use it.

    `open_probe` opens a probe that measures the source; None if it cannot be measured. `tell` gets an event when
    reading is held or slowed, with the reason, and when it continues.
    """

    def __init__(
        self,
        limits: ReadingLimits,
        open_probe: OpenProbe | None,
        ledger: DayLedger,
        tell: OnEvent,
        *,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._ledger = ledger
        self._tell = tell
        self._clock = clock
        self._now = now
        self._lock = threading.RLock()
        self._woken = threading.Event()
        self._stopping = False
        self._thread: threading.Thread | None = None
        self._is_wanted = self._in_window = self._is_quiet = False
        self._window_ended_at = self._quiet_changed_at = clock()
        self._told: tuple[object, float] = (("free", ()), 0.0)
        self._added, self._used = DayUse(), DayUse()
        self._begin(limits, open_probe)

    def _begin(self, limits: ReadingLimits, open_probe: OpenProbe | None) -> None:
        self._limits = limits
        self._open_probe = open_probe
        self._load = SourceLoad()
        self._failure: str | None = None
        ratio = limits.load.commit_latency_ratio
        self._commits = None if ratio is None else CommitPace(ratio)
        if limits.day:
            self._used = self._ledger.add(DayUse(day_of(limits.day, self._now())))
        self._decide()

    def use(self, limits: ReadingLimits, open_probe: OpenProbe | None) -> None:
        """Apply other limits at once. Limits equal to the current ones change nothing."""
        with self._lock:
            self._open_probe = open_probe
            if limits != self._limits:
                self._store_use()
                self._begin(limits, open_probe)
            self._start_if_due()
        self._woken.set()

    @property
    def limits(self) -> ReadingLimits:
        """The limits in use."""
        return self._limits

    @property
    def open_probe(self) -> OpenProbe | None:
        """The function in use that opens a probe."""
        return self._open_probe

    # ── the reader ──────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def pace(self) -> ReadingPace:
        """How fast rows may be read now."""
        pace = self._decision.pace
        return replace(pace, all_held=True) if self._is_quiet else pace

    def observe(self, *, is_reading: bool, in_window: bool) -> None:
        """Note whether rows are to be read, and whether a window is open to read some. Called often; it does
        not wait."""
        if self._in_window and not in_window:
            self._window_ended_at = self._clock()
        self._in_window = in_window
        if is_reading != self._is_wanted:
            self._want(is_reading)

    def _want(self, is_reading: bool) -> None:
        with self._lock:
            self._is_wanted = is_reading
            self._load = SourceLoad()  # an old measurement no longer counts
            self._decide()
            self._start_if_due()
        self._woken.set()

    def _start_if_due(self) -> None:
        if self._is_wanted and self._limits and self._thread is None and not self._stopping:
            self._thread = threading.Thread(target=self._run, name="governor", daemon=True)
            self._thread.start()

    def count(self, rows: int, size: int, seconds: float) -> None:
        """Note how much was read from the source: rows, bytes, and seconds of reading."""
        if not self._limits.day:
            return
        with self._lock:
            day = day_of(self._limits.day, self._now())
            self._added = self._added + DayUse(day, rows, size, seconds)
            self._used = self._used + DayUse(day, rows, size, seconds)
            self._decide()

    def admit(self, sleep: Callable[[float], None] = time.sleep) -> None:
        """Wait until more may be read: for a caller that reads piece by piece in its own thread."""
        self.observe(is_reading=True, in_window=False)
        while self.pace.all_held or self.pace.ranges_held:
            sleep(ADMIT_EVERY_S)
        self.observe(is_reading=True, in_window=True)

    def yield_after(self, seconds: float, sleep: Callable[[float], None] = time.sleep) -> None:
        """Pause after a piece that took `seconds` to read, if reading may take only a share of the time."""
        self.observe(is_reading=True, in_window=False)
        if (share := self.pace.share) < 1:
            sleep(min(PAUSE_MAX_S, seconds * (1 / share - 1)))

    # ── measuring ───────────────────────────────────────────────────────────────────────────────────────────────

    def _run(self) -> None:
        probe: SourceProbe | None = None
        opened_by: OpenProbe | None = None
        load_due_at = 0.0
        while not self._stopping:
            self._woken.clear()
            if not self._is_wanted or opened_by is not self._open_probe:
                _close(probe)
                probe, opened_by = None, self._open_probe
            if not self._is_wanted:
                self._store_use()
                self._woken.wait()
                load_due_at = 0.0
                continue
            try:
                if probe is None and self._limits.load and opened_by is not None:
                    probe = opened_by()
                if self._clock() >= load_due_at:
                    load_due_at = self._clock() + LOAD_EVERY_S
                    self._measure(probe)
                if self._commits is not None and probe is not None:
                    self._follow(probe, self._commits)
                self._failure = None
            except Exception as error:  # noqa: BLE001  whatever it is, the load is unknown, and is measured again
                self._failure = _first_line(error)
                load_due_at = self._clock() + LOAD_EVERY_S
                _close(probe)
                probe = None
            with self._lock:
                self._turn_quiet()
                self._decide()
            self._tell_change()
            self._woken.wait(self._pause_s())
        _close(probe)
        self._store_use()

    def _pause_s(self) -> float:
        """How long to wait before the next measurement."""
        if self._commits is None or self._failure is not None:
            return LOAD_EVERY_S
        return COMMIT_EVERY_S if self._commits.is_known else FIRST_COMMITS_EVERY_S

    def _measure(self, probe: SourceProbe | None) -> None:
        """Measure the load, if a limit depends on it, and add what was read to the day's total."""
        self._store_use()
        if probe is not None and self._limits.load.gauges:
            self._load = probe.load()

    def _follow(self, probe: SourceProbe, commits: CommitPace) -> None:
        began = self._clock()
        is_base = not self._in_window and began - self._window_ended_at >= SETTLED_S
        seconds = probe.commit()
        if is_base and not self._in_window:
            commits.add_base(seconds)
        commits.add(seconds)

    def _turn_quiet(self) -> None:
        """Begin or end a pause in which nothing is read, if it is time: commits are compared with those
        measured in it."""
        now = self._clock()
        lasts_s = QUIET_S if self._is_quiet else QUIET_EVERY_S
        if self._commits is None:
            self._is_quiet = False
        elif now - self._quiet_changed_at >= lasts_s:
            self._is_quiet, self._quiet_changed_at = not self._is_quiet, now

    def _decide(self) -> None:
        if self._failure is not None and self._is_wanted:
            text = f"the source could not be measured: {self._failure}"
            self._decision = Decision(ReadingPace(all_held=True), (Reason("measurement", text, is_unmeasured=True),))
            return
        self._decision = decide(self._limits, self._load, self._commits, self._used, self._now())

    def _store_use(self) -> None:
        with self._lock:
            if self._added.rows or self._added.seconds:
                self._used, self._added = self._ledger.add(self._added), DayUse()

    # ── what operators see ──────────────────────────────────────────────────────────────────────────────────────

    def _tell_change(self) -> None:
        decision = self._decision
        what = decision.state, tuple(reason.limit for reason in decision.reasons)
        before, told_at = self._told
        if what == before or self._clock() - told_at < TOLD_EVERY_S:
            return
        self._told = what, self._clock()
        self._tell(f"reading {decision.state}", _fields(decision))

    def status(self) -> dict[str, Any] | None:
        """The pace and its reasons, as JSON-able values; None without limits, or while nothing is to be read."""
        if not self._limits or not self._is_wanted:
            return None
        decision = self._decision
        used = self._used if self._limits.day else None
        return {
            "state": decision.state,
            "share": 0.0 if decision.state == "held" else round(decision.pace.share, 4),
            "until": _text(decision.until),
            "unmeasured": int(any(reason.is_unmeasured for reason in decision.reasons)),
            "reasons": [
                {"limit": r.limit, "text": r.text, "until": _text(r.until), "share": round(r.share, 4)}
                for r in decision.reasons
            ],
            "measured": {gauge: round(value, 4) for gauge, value in self._load.values.items()},
            "today": None if used is None else {"rows": used.rows, "bytes": used.bytes, "seconds": used.seconds},
        }

    def close(self) -> None:
        """Stop measuring, and add what was read to the day's total."""
        self._stopping = True
        self._woken.set()
        if self._thread is not None:
            self._thread.join(2.0)
        self._store_use()


def _first_line(error: Exception) -> str:
    """Return an error's first line; if the error is not cdcflow's, only its type, since its text may contain
    anything."""
    return str(error).splitlines()[0] if isinstance(error, CdcflowError) else type(error).__name__


def _close(probe: SourceProbe | None) -> None:
    if probe is not None:
        with contextlib.suppress(CdcflowError):
            probe.close()


def _fields(decision: Decision) -> Mapping[str, object]:
    why = "; ".join(reason.text for reason in decision.reasons)
    return {"why": why or None, "until": _text(decision.until), "share": round(decision.pace.share, 3)}


def _text(at: datetime | None) -> str | None:
    return None if at is None else at.isoformat(timespec="minutes")
