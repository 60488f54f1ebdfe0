"""The capture around its attempts: what is retried, which commands an operator may give, what is visible of it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

import pytest
from tests.support.capture.small_source import ITEMS, ORDERS, Small

from cdcflow.capture import attempt as attempts
from cdcflow.capture.attempt import LoopIntervals, Orders
from cdcflow.capture.capture import Capture
from cdcflow.capture.interleave.limits import Limits
from cdcflow.capture.interleave.messages import Adjust, Backfill, Cancel, Command, Input, Pause, Resume
from cdcflow.capture.ports.source import Prepared
from cdcflow.capture.requests import Arguments
from cdcflow.capture.source_polls import TablesChanged
from cdcflow.errors import ConfigurationError, InvariantViolated, RightMissing, SinkUnavailable, SourceUnavailable
from cdcflow.model.position import Checkpoint, position_text
from cdcflow.sinks.memory import Memory, MemoryLog

FIRST = {"settings": {"number": 1, "given": 1}}


class Stage:
    """A capture whose sources and logs are taken from lists; an exception in a list is raised instead."""

    def __init__(
        self, *sources: Small | Exception, orders: Orders | None = None, wait: bool = True, **pace: float
    ) -> None:
        self.memory = Memory()
        self.sources = list(sources)
        self.accepted: list[bool] = []
        self.told: list[tuple[str, dict[str, object]]] = []
        self.logs = 0
        self.closed = 0
        self.on_log: Callable[[], None] = lambda: None
        self.on_source: Callable[[], None] = lambda: None
        given: Any = self._open_source
        self.capture = Capture(
            open_source=given,
            open_log=self._open_log,
            limits=Limits(),
            orders=orders or Orders(),
            pace=LoopIntervals(**({"heartbeat_s": 1e9, "tables_look_s": 1e9} | pace)),
            on_event=lambda event, fields: self.told.append((event, dict(fields))),
            wait=wait,
        )
        self.pauses: list[float] = []

    def _open_source(self) -> Small:
        self.on_source()
        found = self.sources.pop(0)
        if isinstance(found, Exception):
            raise found
        return found

    def _open_log(self, _: object, accept: bool) -> MemoryLog:
        self.accepted.append(accept)
        self.on_log()
        self.logs += 1
        return MemoryLog(self.memory)

    def events(self) -> list[str]:
        return [event for event, _ in self.told]

    @property
    def states(self) -> dict[str, str]:
        found: Any = self.memory.checkpoint.progress
        return {name: entry["state"] for name, entry in found["tables"].items()}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempts, "IDLE_WAIT_S", 0.001)
    # The pauses are recorded, not waited for.
    monkeypatch.setattr(Capture, "_wait", lambda self, seconds: None)


def pauses(stage: Stage) -> list[object]:
    return [fields["next_try_s"] for event, fields in stage.told if event == "capture interrupted"]


def test_unavailable_source_is_tried_again_after_growing_pauses() -> None:
    """A server that restarts needs seconds; a server that is down for the night must not be queried all the time."""
    gone = [SourceUnavailable(f"no answer {n}") for n in range(9)]
    stage = Stage(*gone, Small(), orders=Orders(once=True))
    stage.capture.run()
    assert pauses(stage) == [0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 30.0]
    first = next(fields for event, fields in stage.told if event == "capture interrupted")
    assert first == {"kind": "SourceUnavailable", "reason": "no answer 0", "next_try_s": 0.2}
    assert stage.states == {"public.orders": "done"}


def test_a_log_without_room_is_tried_again_too() -> None:
    """An operator will free space."""
    stage = Stage(Small(), Small(), orders=Orders(once=True))
    full = iter([SinkUnavailable("no room")])

    def on_log() -> None:
        for error in full:
            raise error

    stage.on_log = on_log
    stage.capture.run()
    assert stage.states == {"public.orders": "done"}


def test_revoked_right_is_waited_for() -> None:
    """The privilege may be granted again, and the slot keeps the changes until then. At the first start it was never
    granted."""
    lost = RightMissing("may not replicate")
    stage = Stage(Small(), lost, lost, Small(), orders=Orders(once=True))
    cut_off = iter([SourceUnavailable("the connection is gone")])
    run = attempts.Attempt.run

    def cut_off_once(attempt: attempts.Attempt, stopping: Callable[[], bool]) -> None:
        for error in cut_off:
            raise error
        run(attempt, stopping)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(attempts.Attempt, "run", cut_off_once)
        stage.capture.run()
    assert [fields["kind"] for event, fields in stage.told if event == "capture interrupted"] == [
        "SourceUnavailable",
        "RightMissing",
        "RightMissing",
    ]
    assert stage.states == {"public.orders": "done"}
    first = Stage(lost, Small())
    with pytest.raises(RightMissing):
        first.capture.run()


@pytest.mark.parametrize("error", [ConfigurationError("no such table"), InvariantViolated("two cuts at once")])
def test_what_trying_again_would_not_change_ends_the_capture(error: Exception) -> None:
    """It ends at once, with the error that was raised."""
    stage = Stage(error, Small())
    with pytest.raises(type(error), match=str(error)):
        stage.capture.run()
    assert len(stage.sources) == 1


def test_change_of_the_tables_is_applied_at_once() -> None:
    """Nothing is broken: no pause, and no report of an interruption."""
    first, second = Small(), Small(ITEMS, ORDERS)
    stage = Stage(first, second, tables_look_s=0.0)
    first.on_poll = lambda: first.listed.append(ITEMS)

    def stop_when_done() -> None:
        if stage.states == {"public.items": "done", "public.orders": "done"}:
            stage.capture.stop()

    second.on_poll = stop_when_done
    stage.capture.run()
    assert "captured tables changed" in stage.events()
    assert "capture interrupted" not in stage.events()


def test_accepted_loss_counts_for_one_attempt() -> None:
    """The accepted loss is then recorded in the log; the next loss is a different one, which no operator has
    accepted."""
    broken, again = Small(), Small()
    stage = Stage(broken, again, orders=Orders(backfill=(), accept_history_loss=True))

    def breaks() -> None:
        if stage.memory.checkpoint.cut >= 2:
            raise SourceUnavailable("cut off")

    def stop_when_done() -> None:
        if stage.states == {"public.orders": "done"}:
            stage.capture.stop()

    broken.on_poll, again.on_poll = breaks, stop_when_done
    stage.capture.run()
    assert stage.accepted == [True, False]
    generations: Any = stage.memory.checkpoint.progress["tables"]
    assert generations["public.orders"]["generation"] == 2, "ordered once, not again by the second attempt"


def running(stage: Stage, source: Small, during: Callable[[], None]) -> None:
    """Run the capture, with `during` on another thread once it reads."""
    reads, failed = threading.Event(), list[BaseException]()
    source.on_poll = reads.set

    def other() -> None:
        try:
            assert reads.wait(30)
            during()
        except BaseException as error:  # noqa: BLE001 - raised again by the test's thread
            failed.append(error)
        finally:
            stage.capture.stop()

    thread = threading.Thread(target=other)
    thread.start()
    stage.capture.run()
    thread.join()
    if failed:
        raise failed[0]


@pytest.mark.parametrize(
    ("op", "more", "inputs"),
    [
        ("backfill", {}, [Backfill((ITEMS.id, ORDERS.id))]),
        ("pause", {}, [Pause(ITEMS.id), Pause(ORDERS.id)]),
        ("resume", {}, [Resume(ITEMS.id), Resume(ORDERS.id)]),
        ("cancel", {}, [Cancel(ITEMS.id), Cancel(ORDERS.id)]),
        ("adjust", {"priority": 3}, [Adjust(ITEMS.id, priority=3), Adjust(ORDERS.id, priority=3)]),
        (
            "adjust",
            {"rows_per_second_max": 9},
            [Adjust(ITEMS.id, rows_per_second_max=9), Adjust(ORDERS.id, rows_per_second_max=9)],
        ),
        ("adjust", {"reset": True}, [Adjust(ITEMS.id, reset=True), Adjust(ORDERS.id, reset=True)]),
    ],
)
def test_an_order_reaches_the_machine_for_each_of_its_tables(
    op: str, more: dict[str, Any], inputs: list[object]
) -> None:
    """A command without names concerns all captured tables."""
    source = Small(ITEMS, ORDERS)
    stage = Stage(source)
    given: list[object] = []

    def during() -> None:
        answer: Any = stage.capture.request(op, (), Arguments(**more), asked_by="ann")
        assert (answer["op"], list(answer["tables"])) == (op, ["public.items", "public.orders"])

    class Queue(SimpleQueue[Input]):
        def put(self, item: Input, *_: object) -> None:
            assert isinstance(item, Command)
            assert (item.op, item.asked_by, item.details) == (op, "ann", more)
            given.extend(item.orders)
            super().put(item)

    stage.capture._requests = Queue()
    running(stage, source, during)
    assert given == inputs


def test_unknown_command_or_table_is_refused_with_an_error_that_names_it() -> None:
    """No command is executed either."""
    source = Small()
    stage = Stage(source)

    def during() -> None:
        with pytest.raises(ConfigurationError, match="unknown request 'frobnicate'"):
            stage.capture.request("frobnicate", ())
        with pytest.raises(ConfigurationError, match=r"table public\.x is not captured"):
            stage.capture.request("pause", ("public.x",))

    running(stage, source, during)


def test_status_reports_the_current_activity() -> None:
    """`cdcflow status` shows these values under these names."""
    source = Small()
    stage = Stage(source)
    assert stage.capture.status() == {"state": "waiting", "reason": "starting", **FIRST}
    with pytest.raises(SourceUnavailable, match="starting"):
        stage.capture.request("pause", ())
    seen: list[dict[str, Any]] = []

    def during() -> None:
        while not seen or seen[-1]["tables"]["public.orders"]["state"] != "done" or seen[-1]["next_offset"] != 2:
            seen.append(stage.capture.status())

    running(stage, source, during)
    status = seen[-1]
    assert status["state"] == "capturing"
    assert (status["epoch"], status["rows_captured"], status["rows_read"]) == (1, 0, 1)
    assert status["cut"] == stage.memory.checkpoint.cut
    assert status["position"] == position_text(stage.memory.checkpoint.position)
    assert status["syncs"] >= 1
    assert status["commit_clock"] == stage.memory.checkpoint.commit_clock
    assert status["events"]["range chunk read"] == 1
    assert status["rows_per_second"] >= 0
    assert stage.capture.status() == {"state": "waiting", "reason": "starting", **FIRST}


def test_status_of_a_waiting_capture_names_the_reason() -> None:
    """It is the first question that an operator has at night."""
    stage = Stage(SourceUnavailable("no answer from db:5432"), InvariantViolated("end"))
    seen: list[dict[str, object]] = []
    stage.on_source = lambda: seen.append(stage.capture.status())
    with pytest.raises(InvariantViolated):
        stage.capture.run()
    assert seen[-1] == {"state": "waiting", "reason": "no answer from db:5432", **FIRST}
    with pytest.raises(SourceUnavailable, match="no answer from db:5432"):
        stage.capture.request("pause", ())


def test_a_capture_that_was_halted_does_not_show_as_one_that_waits() -> None:
    """A client that waits for the capture would otherwise wait indefinitely."""
    stage = Stage(SourceUnavailable("no answer"), SourceUnavailable("no answer"), InvariantViolated("end"))
    with pytest.raises(InvariantViolated):
        stage.capture.run()
    assert stage.capture.status() == {"state": "halted", "kind": "InvariantViolated", "reason": "end", **FIRST}
    counts = stage.capture.counts()
    assert counts["attempts"] == 3
    assert counts["retries"] == {"SourceUnavailable": 2}
    assert counts["errors"] == {"SourceUnavailable": 2, "InvariantViolated": 1}


def test_unforeseen_fault_halts_without_its_text() -> None:
    """Its text may hold a row's values, and many users see the status. An error that may pass by itself does not halt
    the capture."""
    stage = Stage(ValueError("canary"))
    with pytest.raises(ValueError, match="canary"):
        stage.capture.run()
    assert stage.capture.status() == {"state": "halted", "kind": "ValueError", "reason": "a fault in cdcflow", **FIRST}
    away = Stage(SourceUnavailable("no answer"), wait=False)
    with pytest.raises(SourceUnavailable):
        away.capture.run()
    assert away.capture.status()["state"] == "waiting"


def test_what_was_known_before_an_outage_stays_known() -> None:
    """The log's position and all counters stay: metrics that vanish with the connection fire no alert."""
    source = Small()
    stage = Stage(source, InvariantViolated("end"))

    def fail_when_read() -> None:
        if "tables" in stage.memory.checkpoint.progress and stage.states == {"public.orders": "done"}:
            raise SourceUnavailable("the connection is gone")

    source.on_poll = fail_when_read
    with pytest.raises(InvariantViolated):
        stage.capture.run()
    known = stage.capture.last_known()
    assert known["cut"] == stage.memory.checkpoint.cut
    assert known["position"] == position_text(stage.memory.checkpoint.position)
    assert known["rows_per_second"] == 0.0
    counts = stage.capture.counts()
    assert counts["rows_read"] == 1
    assert counts["retries"] == {"SourceUnavailable": 1}
    for name in ("cuts", "syncs", "bytes_appended"):
        found: Any = counts[name]
        assert found > 0, name


def test_capture_that_is_stopped_while_it_waits_ends() -> None:
    """Without half a minute's delay and without an error: a requested stop is not a failure, whatever the capture
    waited for."""
    for wait in (True, False):
        stage = Stage(SourceUnavailable("gone"), Small(), wait=wait)
        stage.capture.stop()
        stage.capture.run()
        assert len(stage.sources) == 1
        assert stage.told == [
            ("stopped while it was interrupted", {"kind": "SourceUnavailable", "reason": "gone"}),
        ]


def test_a_source_that_never_answered_ends_the_start_unless_it_is_to_be_waited_for() -> None:
    """A mistyped host was retried indefinitely, and only the retry lines showed it."""
    stage = Stage(SourceUnavailable("no answer"), Small(), wait=False)
    with pytest.raises(SourceUnavailable, match="no answer"):
        stage.capture.run()
    assert (len(stage.sources), stage.events(), stage.capture.has_begun) == (1, [], False)
    patient = Stage(SourceUnavailable("no answer"), Small(), orders=Orders(once=True))
    patient.capture.run()
    assert patient.capture.has_begun
    assert patient.states == {"public.orders": "done"}


def test_a_log_that_never_answered_ends_the_start_too() -> None:
    """Brokers are mistyped as easily as hosts."""
    stage = Stage(Small(), Small(), wait=False)

    def on_log() -> None:
        raise SinkUnavailable("no broker")

    stage.on_log = on_log
    with pytest.raises(SinkUnavailable, match="no broker"):
        stage.capture.run()
    assert (len(stage.sources), stage.capture.has_begun) == (1, False)


def test_source_or_log_that_was_reached_once_is_tried_again_without_the_wait_option() -> None:
    """Source and log were both reached once: if one is unavailable later it will return, also before the first row (a
    slot that waits)."""
    waiting, away = Small(), SourceUnavailable("restarting")

    def prepare(_: Checkpoint) -> Checkpoint:
        raise SourceUnavailable("an older transaction did not end")

    waiting.prepared = prepare
    stage = Stage(waiting, away, Small(), orders=Orders(once=True), wait=False)
    stage.capture.run()
    assert [fields["reason"] for event, fields in stage.told if event == "capture interrupted"] == [
        "an older transaction did not end",
        "restarting",
    ]
    assert stage.states == {"public.orders": "done"}


def test_rows_that_the_log_could_not_take_at_the_stop_are_reported_as_a_failure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An operator who stops a daemon whose disk is full must not read that all is well. An unavailable source is not a
    failure."""
    for error, is_told in ((SinkUnavailable("no room"), True), (SourceUnavailable("gone"), False)):
        stage = Stage(Small())

        def stopped(_: object, __: object, error: Exception = error, capture: Capture = stage.capture) -> None:
            capture.stop()
            raise error

        monkeypatch.setattr(attempts.Attempt, "run", stopped)
        if is_told:
            with pytest.raises(SinkUnavailable):
                stage.capture.run()
        else:
            stage.capture.run()
            assert stage.events() == ["stopped while it was interrupted"]


class Slow(Small):
    """Its `prepare` ends only when it is closed, like the creation of a slot during a transaction that stays open."""

    def __init__(self) -> None:
        super().__init__()
        self.preparing, self.gone = threading.Event(), threading.Event()

    def prepare(self, *_: object, **__: object) -> Prepared:
        self.preparing.set()
        assert self.gone.wait(60), "nobody closed it"
        raise SourceUnavailable("the connection is gone")

    def close(self) -> None:
        self.gone.set()


def test_stop_ends_a_start_that_waits_for_the_server() -> None:
    """Creating a slot waits for other clients' transactions; a service manager kills a process that does not stop."""
    source = Slow()
    stage = Stage(source, Small())
    running = threading.Thread(target=stage.capture.run)
    running.start()
    assert source.preparing.wait(60)
    stage.capture.stop()
    running.join(60)
    assert not running.is_alive()
    assert stage.events() == ["start broken off"]
    assert len(stage.sources) == 1


def test_stop_before_the_source_is_queried_takes_effect() -> None:
    """Between two attempts there is no source whose call could be interrupted."""
    source = Slow()
    stage = Stage(source)
    stage.capture.stop()
    stage.capture.run()
    assert not source.preparing.is_set()


def test_stop_while_the_list_of_tables_changes_ends_in_good_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """A changed list of tables causes another attempt; it is never an error that a requested stop ends with."""

    def unused(*_: object) -> None:
        raise AssertionError("nothing is opened")

    capture = Capture(
        open_source=unused,  # type: ignore[arg-type]  # never called
        open_log=unused,  # type: ignore[arg-type]  # never called
        limits=Limits(),
        orders=Orders(),
        pace=LoopIntervals(),
        on_event=lambda event, fields: None,
    )
    attempts = []

    def once() -> None:
        attempts.append(1)
        if len(attempts) == 2:
            capture.stop()
        raise TablesChanged

    monkeypatch.setattr(capture, "_once", once)
    capture.run()
    assert len(attempts) == 2


def test_tables_that_are_created_one_after_another_are_no_failures(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pause before the next attempt grew with each of them, so that one race with DDL cost all tables half a
    minute."""
    capture = Stage(Small()).capture
    away = SourceUnavailable("a table was renamed or dropped at the same time")
    errors: list[Exception] = [*[TablesChanged()] * 12, away, away, TablesChanged(), away]
    pauses: list[float] = []

    def once() -> None:
        capture._attempts += 1
        capture._began, capture.has_begun = time.monotonic(), True
        if errors:
            raise errors.pop(0)
        capture.stop()

    monkeypatch.setattr(capture, "_once", once)
    monkeypatch.setattr(capture, "_wait", pauses.append)
    capture.run()
    assert pauses[:12] == [0.0] * 12
    assert pauses[12:] == [0.2, 0.4, 0.0, 0.2]
