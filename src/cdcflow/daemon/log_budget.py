"""Hold the budget of the log that a source keeps: measure it, warn at each level, and release the log at the end.

    BudgetComponent ──▶ BudgetThread ──▶ BudgetWatch ──▶ port BudgetedLog      cdcflow run
    cdcflow guard ─────────────────────▶ BudgetWatch ──▶ port BudgetedLog      the same, without a daemon

It shares nothing with the capture, so an outage of the log or a hanging stream does not stop it. It records a release
in the source before it releases the log, where the next start of the capture finds the record
(`sources.postgres.slot_release`).
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from cdcflow import wiring
from cdcflow.capture.ports.budgeted_log import BudgetedLog
from cdcflow.config import Config
from cdcflow.daemon.events import OnEvent
from cdcflow.daemon.running_components import Running
from cdcflow.daemon.signals import obeying_signals, wait_for
from cdcflow.errors import CdcflowError
from cdcflow.model.log_budget import CHECK_MAX_S, LEVELS, KeptLog, LogBudget, level_of

GRACE_S = 10.0
"""If the source keeps more log than the budget when the watch begins, a reader that is catching up gets this much
time before the log is released."""
GRACE_CHECK_S = 1.0


class BudgetWatch:
    """Measures the kept log and acts on it. `releases`: at the end of the budget the log is released. `by`: a text for
    operators that names this process. Used by one thread, except `status`."""

    def __init__(
        self,
        log: BudgetedLog,
        budget: LogBudget,
        *,
        releases: bool,
        by: str,
        tell: OnEvent,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._log = log
        self._budget = budget
        self._releases = releases
        self._by = by
        self._tell = tell
        self._clock = clock
        self._level = 0
        self._has_seen_room = False
        self._over_since: float | None = None
        self._least_bytes = 0
        self._failure: CdcflowError | None = None
        self._status: dict[str, Any] = {}

    def check(self) -> float:
        """Measure once, and act. Return the seconds until the next check is due."""
        try:
            if self._releases and self._log.is_release_begun():
                self._release("a release that was begun is finished")
            kept = self._log.measure()
            self._note(kept)
            if self._releases and self._is_used_up(kept):
                self._release(f"{_amounts(kept)} kept, and the budget is {_amounts(self._budget)}")
                return GRACE_CHECK_S
        except CdcflowError as error:
            self._over_since = None
            self._note_failure(error)
            return CHECK_MAX_S
        self._note_failure(None)
        wait_s = self._budget.check_after_s(kept)
        return wait_s if self._over_since is None else GRACE_CHECK_S

    def _is_used_up(self, kept: KeptLog) -> bool:
        """Return whether the budget is used up. A reader that the watch finds beyond it may be catching up, and gets
        some time."""
        if self._budget.share(kept) < 1:
            self._has_seen_room, self._over_since = True, None
            return False
        if self._has_seen_room:
            return True
        now, size = self._clock(), kept.bytes or 0
        if self._over_since is None or size < self._least_bytes:
            self._over_since, self._least_bytes = now, size
        return now - self._over_since >= GRACE_S

    def _release(self, why: str) -> None:
        found = self._log.release(why, self._by)
        if found.outcome == "released":
            self._status = {**self._status, "released_at": time.time(), "released_why": why}
        if found.outcome != "impossible":
            self._tell("log released", {"outcome": found.outcome, "text": found.text, "by": self._by})
        self._over_since = None

    def _note(self, kept: KeptLog) -> None:
        bound = self._budget.tightest(kept.limit)
        share = bound.share(kept)
        level = level_of(share)
        found = {
            "kept_bytes": kept.bytes,
            "kept_age_seconds": None if kept.age_s is None else round(kept.age_s, 1),
            "budget_bytes": bound.bytes,
            "budget_age_seconds": bound.age_s,
            "used": round(share, 4),
            "percent": level,
            "then": "release" if self._releases else "stop",
        }
        earlier = {k: v for k, v in self._status.items() if k.startswith("released_")}
        self._status = {**found, **earlier}
        if level > self._level:
            self._tell("log budget", {**found, "text": f"{level} % of the log's budget is used"})
        elif self._level and level < self._level and share * 100 < LEVELS[0]:
            self._tell("log budget free", found)
        else:
            level = max(level, self._level)
        self._level = level

    def _note_failure(self, error: CdcflowError | None) -> None:
        text, before = _first_line(error), _first_line(self._failure)
        if text and text != before:
            self._tell("log budget unknown", {"reason": text})
        self._failure = error

    @property
    def is_waiting(self) -> bool:
        """Whether more is kept than the budget allows, and the watch waits for a reader that may be catching up."""
        return self._over_since is not None

    def raise_failure(self) -> None:
        """Raise the error of the last check, if it failed."""
        if self._failure is not None:
            raise self._failure

    def status(self) -> dict[str, Any]:
        """Return the last measurement as JSON-able values; {} before the first one. Any thread may call it."""
        return {**self._status, **({} if self._failure is None else {"error": _first_line(self._failure)})}

    def close(self) -> None:
        self._log.close()


class BudgetComponent:
    """The budget of a daemon whose settings have `source.log_budget`, `log_budget_age` or `log_budget_then`."""

    def __init__(self, tell: OnEvent) -> None:
        self._tell = tell
        self._latest: BudgetThread | None = None

    def made_of(self, config: Config) -> object:
        if not has_budget(config):
            return None
        # The settings for reading tables do not affect what the server keeps.
        return config.database.model_copy(update={"backfill": None, "tables": ()}), config.log.folder

    def prepare(self, config: Config) -> Running | None:
        watch = budget_watch(config, self._tell, by=f"the daemon on {place()}")
        self._latest = None if watch is None else BudgetThread(watch)
        return self._latest

    def status(self) -> Mapping[str, Any] | None:
        """Return the last measurement; `None` without a budget."""
        return None if self._latest is None else self._latest.status()


class BudgetThread:
    """A watch in a thread."""

    def __init__(self, watch: BudgetWatch) -> None:
        self._watch = watch
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="log-budget", daemon=True)

    def begin(self) -> None:
        self._thread.start()

    def end(self, *, wait: bool) -> None:
        self._stop.set()
        threading.Thread(target=self._watch.close, name="log-budget-end", daemon=True).start()
        if wait and self._thread.ident is not None:
            self._thread.join(2.0)

    def _run(self) -> None:
        while not self._stop.wait(self._watch.check()):
            pass

    def status(self) -> dict[str, Any]:
        return self._watch.status()


def has_budget(config: Config) -> bool:
    """Whether the settings have a budget for the source's log, or let it be released."""
    return wiring.releases(config) or bool(wiring.budget(config))


def budget_watch(config: Config, tell: OnEvent, *, by: str, slot: str | None = None) -> BudgetWatch | None:
    """Return the watch of the configured source's log; `None` if the settings have no budget for it, or the source
    keeps none. `slot`: see `wiring.budgeted_log`."""
    log = wiring.budgeted_log(config, slot) if has_budget(config) else None
    if log is None:
        return None
    return BudgetWatch(log, wiring.budget(config), releases=wiring.releases(config), by=by, tell=tell)


def place() -> str:
    """Return a text for operators that names this process."""
    return f"{socket.gethostname()}, process {os.getpid()}"


def _first_line(error: CdcflowError | None) -> str:
    return "" if error is None else str(error).splitlines()[0]


def _amounts(found: KeptLog | LogBudget) -> str:
    size = None if found.bytes is None else f"{found.bytes} bytes"
    age = None if found.age_s is None else f"{found.age_s:.0f} s"
    return " or ".join(one for one in (size, age) if one is not None)


def guard(config: Config, tell: OnEvent, *, slot: str | None = None, once: bool = False) -> None:
    """Hold the budget in the calling (main) thread, until SIGTERM or SIGINT. `once`: only until the budget is held.

    Raises:
        ConfigurationError: the slot's name is unknown, or the settings have no budget.
        SourceUnavailable: with `once`, the source does not answer.
    """
    watch = budget_watch(config, tell, by=f"cdcflow guard on {place()}", slot=wiring.known_slot(config, slot))
    assert watch is not None  # noqa: S101 - see `cli.guard.check_guarded`
    stop = threading.Event()
    with contextlib.closing(watch), obeying_signals(stop.set, tell):
        while not stop.is_set():
            wait_s = watch.check()
            if once and not watch.is_waiting:
                watch.raise_failure()
                return
            wait_for(stop, wait_s)
