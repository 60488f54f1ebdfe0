"""How long a capture pauses between its attempts, what it reports during that time, and what ends a wait."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from tests.support.capture.small_source import ITEMS, ORDERS, Small

from cdcflow.capture import attempt as attempts
from cdcflow.capture import capture as captures
from cdcflow.capture.attempt import LoopIntervals, Orders
from cdcflow.capture.capture import HEALTHY_AFTER_S, Capture
from cdcflow.capture.interleave.limits import Limits
from cdcflow.capture.settings import SettingsInUse
from cdcflow.capture.source_polls import TablesChanged
from cdcflow.capture.waker import Waker
from cdcflow.errors import CdcflowError, InvariantViolated, OutcomeUnknown, SinkUnavailable, SourceUnavailable
from cdcflow.sinks.memory import Memory, MemoryLog

ONCE = Orders(once=True)


class Stage:
    """A capture whose sources are taken from a list; an exception in the list is raised instead. `pauses` are not
    waited for."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, *sources: Small | Exception, orders: Orders = ONCE, **pace: float
    ) -> None:
        self.memory = Memory()
        self.sources = list(sources)
        self.opened: list[Small] = []
        self.told: list[tuple[str, dict[str, object]]] = []
        self.pauses: list[float] = []
        self.now_s = 0.0
        self.takes_s = 0.0
        monkeypatch.setattr(captures.time, "monotonic", lambda: self.now_s)  # type: ignore[attr-defined]
        given: Any = self._open_source
        self.capture = Capture(
            open_source=given,
            open_log=lambda *_: MemoryLog(self.memory),
            limits=Limits(),
            orders=orders,
            pace=LoopIntervals(**({"heartbeat_s": 1e9, "tables_look_s": 1e9} | pace)),
            on_event=lambda event, fields: self.told.append((event, dict(fields))),
        )
        self.capture._wait = lambda seconds: self.pauses.append(seconds)  # type: ignore[method-assign]  # not waited for

    def _open_source(self) -> Small:
        found = self.sources.pop(0)
        self.now_s += self.takes_s
        if isinstance(found, Exception):
            raise found
        self.opened.append(found)
        return found


def gone(count: int) -> list[Exception]:
    return [SourceUnavailable("no answer") for _ in range(count)]


def test_attempt_that_ran_for_a_while_resets_the_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that restarts once a night must not be waited for half a minute after a week."""
    stage = Stage(monkeypatch, *gone(5), Small())
    waits = iter([0.0, 0.0, HEALTHY_AFTER_S, HEALTHY_AFTER_S + 0.1, 0.0])

    def takes() -> Small:
        stage.takes_s = next(waits, 0.0)
        return Stage._open_source(stage)

    given: Any = takes
    stage.capture._settings = SettingsInUse(replace(stage.capture._settings.take(), open_source=given))
    stage.capture.run()
    assert stage.pauses == [0.2, 0.4, 0.8, 0.2, 0.4]


def test_pause_is_reported_while_it_lasts(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the first line of the reason, and the remedy where there is one."""
    error: Any = SourceUnavailable("no answer\nfrom anywhere", remedy="start it")
    stage = Stage(monkeypatch, error, *gone(2), Small())
    stage.capture.run()
    told = [fields for event, fields in stage.told if event == "capture interrupted"]
    reason = str(error).split("\n")[0]
    assert told[0] == {"kind": "SourceUnavailable", "reason": reason, "remedy": "start it", "next_try_s": 0.2}
    assert [fields["next_try_s"] for fields in told] == stage.pauses == [0.2, 0.4, 0.8]
    assert "remedy" not in told[1]


@pytest.mark.parametrize("error", [SinkUnavailable("x"), OutcomeUnknown("x"), SourceUnavailable("x")])
def test_what_may_pass_is_tried_again(monkeypatch: pytest.MonkeyPatch, error: CdcflowError) -> None:
    """O08: a full disk, an unreachable server, an answer that never arrived."""
    stage = Stage(monkeypatch, error, Small())
    stage.capture.run()
    assert stage.pauses == [0.2]


def test_other_tables_need_no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is broken. A failure that follows is paused for as if the tables had never changed."""
    monkeypatch.setattr(attempts, "IDLE_WAIT_S", 0.001)
    first = Small()
    stage = Stage(monkeypatch, first, *gone(1), Small(ITEMS, ORDERS), orders=Orders(), tables_look_s=0.0)
    first.on_poll = lambda: first.listed.append(ITEMS)
    stage.opened = []
    last: Any = stage.sources[-1]
    last.on_poll = stage.capture.stop
    stage.capture.run()
    assert stage.pauses == [0.0, 0.2]


@pytest.mark.parametrize("error", [TablesChanged(), SourceUnavailable("no answer"), SinkUnavailable("no answer")])
def test_a_stop_between_an_attempt_and_the_decision_about_the_next_is_no_error(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    stage = Stage(monkeypatch, error, orders=Orders())
    decide = stage.capture._is_tried_again

    def stop_first(error: BaseException) -> bool:
        stage.capture.stop()
        return decide(error)

    monkeypatch.setattr(stage.capture, "_is_tried_again", stop_first)
    stage.capture.run()
    assert stage.pauses == []
    reported = [event for event, _ in stage.told if event == "stopped while it was interrupted"]
    assert len(reported) == (not isinstance(error, TablesChanged))


def test_every_source_and_log_is_closed_whatever_ends_its_try(monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection left open is one connection less; a log left open fences out no other process."""
    closed: list[str] = []

    class Closing(Small):
        def close(self) -> None:
            closed.append("source")

    class ClosingLog(MemoryLog):
        def close(self) -> None:
            closed.append("log")
            super().close()

    broken = Closing()
    breaks = iter([SourceUnavailable("cut off")])

    def on_poll() -> None:
        for error in breaks:
            raise error

    broken.on_poll = on_poll
    refused = Closing()
    stage = Stage(monkeypatch, broken, refused, InvariantViolated("end"))
    given: Any = lambda *_: ClosingLog(stage.memory)  # noqa: E731 - typed as the attribute that it replaces
    stage.capture._settings = SettingsInUse(replace(stage.capture._settings.take(), open_log=given))
    refused.identity = lambda: (_ for _ in ()).throw(SourceUnavailable("refused"))  # type: ignore[method-assign]
    with pytest.raises(InvariantViolated):
        stage.capture.run()
    # Of an attempt the stream, the chunks and then the source itself; the log before the source.
    assert closed == ["source", "source", "log", "source", "source"]


# ── what ends a wait ────────────────────────────────────────────────────────────────────────────────────────


def beside(work: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def test_a_stop_ends_the_pause_before_the_next_try() -> None:
    """A service manager kills what does not stop; a pause may be half a minute."""
    capture = Capture(
        open_source=lambda: (_ for _ in ()).throw(AssertionError("nothing is opened")),
        open_log=lambda *_: (_ for _ in ()).throw(AssertionError("nothing is opened")),
        limits=Limits(),
        orders=Orders(),
        pace=LoopIntervals(),
        on_event=lambda *_: None,
    )
    ended = threading.Event()

    def waits() -> None:
        capture._wait(3600)
        ended.set()

    waiting = beside(waits)
    assert not ended.wait(0.05), "it waits for the whole pause"
    capture.stop()
    waiting.join(30)
    assert ended.is_set()


class Quiet(Small):
    """Nothing ever arrives, and the loop waits for hours."""

    def __init__(self, *tables: Any) -> None:
        super().__init__(*tables)
        self.polled = threading.Semaphore(0)
        self.on_poll = self.polled.release


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loop that is not woken hangs, and so does its test."""
    monkeypatch.setattr(attempts, "IDLE_WAIT_S", 3600.0)


@pytest.mark.usefixtures("patient")
def test_stops_orders_answers_and_syncs_wake_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """It waits for the stream's socket; whatever else there is for it has to end that wait."""
    source = Quiet(ORDERS)
    source.write_mark = lambda token: None  # type: ignore[method-assign]  # a mark that never arrives: nothing advances
    stage = Stage(monkeypatch, source, orders=Orders())
    running = beside(stage.capture.run)
    while stage.capture.status().get("cut", 0) == 0 or not source.acknowledged:
        assert source.polled.acquire(timeout=30), "syncs and answers wake it"
    state = ""
    stage.capture.request("pause", ("public.orders",))
    while state != "paused":
        assert source.polled.acquire(timeout=30), "an order wakes it"
        tables: Any = stage.capture.status()["tables"]
        state = tables["public.orders"]["state"]
    stage.capture.stop()
    running.join(30)
    assert not running.is_alive()


@pytest.mark.usefixtures("patient")
def test_orders_and_stops_wake_the_loop_by_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a silent stream no answer and no sync ends the wait in their place."""
    woken_by: list[threading.Thread] = []

    class Heard(Waker):
        def wake(self) -> None:
            woken_by.append(threading.current_thread())
            super().wake()

    monkeypatch.setattr(captures, "Waker", Heard)
    source = Quiet(ORDERS)
    stage = Stage(monkeypatch, source, orders=Orders())
    running = beside(stage.capture.run)
    assert source.polled.acquire(timeout=30)
    assert threading.current_thread() not in woken_by
    for act in (lambda: stage.capture.request("pause", ("public.orders",)), stage.capture.stop):
        act()
        assert threading.current_thread() in woken_by
        woken_by.clear()
    running.join(30)
    assert not running.is_alive()


def test_a_start_is_broken_off_by_a_thread_that_keeps_no_process_from_ending(monkeypatch: pytest.MonkeyPatch) -> None:
    """Closing may wait for a server that is gone; and its name shows in a dump of a daemon that hangs."""
    closing: list[tuple[str, bool]] = []
    preparing, closed = threading.Event(), threading.Event()

    class Slow(Small):
        def prepare(self, *_: object, **__: object) -> Any:
            preparing.set()
            assert closed.wait(30)
            raise SourceUnavailable("the connection is gone")

        def close(self) -> None:
            thread = threading.current_thread()
            closing.append((thread.name, thread.daemon))
            closed.set()

    stage = Stage(monkeypatch, Slow())
    running = beside(stage.capture.run)
    assert preparing.wait(30)
    stage.capture.stop()
    running.join(30)
    assert closing[0] == ("break-off", True)
    assert [event for event, _ in stage.told] == ["start broken off"]
