"""A daemon with a lease: what its capture does when it loses the lease, and what a standby refuses."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.support.capture.small_source import Small
from tests.support.polling import wait_until

from cdcflow.capture import attempt as attempts
from cdcflow.capture import leadership as leaderships
from cdcflow.capture.attempt import LoopIntervals, Orders
from cdcflow.capture.capture import Capture
from cdcflow.capture.interleave.limits import Limits
from cdcflow.capture.interleave.messages import PauseCapture
from cdcflow.capture.leadership import Leadership
from cdcflow.capture.ports.lease import Holder
from cdcflow.errors import CdcflowError, ConfigurationError, LeaseLost, SourceUnavailable
from cdcflow.sinks.memory import Memory, MemoryLog


class Lease:
    """A lease that the test gives and takes."""

    ttl_s = 60.0
    renewed_every_s = watched_every_s = 0.005

    def __init__(self, *, held: bool = True) -> None:
        self.held = held
        self.asked = 0
        self.error: CdcflowError | None = None
        self.other: Holder | None = Holder("db-2 (process 7)")
        self.on_hold: Callable[[], object] = lambda: None
        self.on_release: Callable[[], object] = lambda: None

    def hold(self) -> bool:
        self.asked += 1
        if self.error is not None:
            raise self.error
        held = self.held
        self.on_hold()
        return held

    def holder(self) -> Holder | None:
        return self.other

    def release(self) -> None:
        self.on_release()


class Stage:
    """A capture in a thread, with a lease."""

    def __init__(
        self,
        lease: Lease,
        orders: Orders | None = None,
        *,
        wait: bool = True,
        open_log: Callable[[Memory], MemoryLog] = MemoryLog,
    ) -> None:
        self.memory = Memory()
        self.lease = lease
        self.told: list[tuple[str, dict[str, object]]] = []
        self.failure: BaseException | None = None
        given: Any = Small
        self.capture = Capture(
            open_source=given,
            open_log=lambda *_: open_log(self.memory),
            limits=Limits(),
            orders=orders or Orders(),
            pace=LoopIntervals(heartbeat_s=1e9, tables_look_s=1e9),
            on_event=self.tell,
            wait=wait,
            leadership=Leadership(lambda: self.lease, self.tell, log_is_on_peers=True),
            prepare_takeover=lambda: self.tell("prepared", {}),
        )
        self.thread = threading.Thread(target=self._run)

    def tell(self, event: str, fields: Any) -> None:
        self.told.append((event, dict(fields)))

    def _run(self) -> None:
        try:
            self.capture.run()
        except BaseException as error:  # noqa: BLE001 - the test looks at it
            self.failure = error

    def is_in(self, state: str) -> bool:
        return self.capture.status()["state"] == state

    def wait_for(self, state: str) -> None:
        wait_until(lambda: self.is_in(state), f"the state {state}", more=lambda: str(self.told))

    def events(self, name: str) -> list[dict[str, object]]:
        return [fields for event, fields in self.told if event == name]


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Stage]]:
    monkeypatch.setattr(attempts, "IDLE_WAIT_S", 0.001)
    monkeypatch.setattr(leaderships, "SLICE_S", 0.005)
    started: list[Stage] = []

    def start(*args: Any, **options: Any) -> Stage:
        started.append(Stage(*args, **options))
        started[-1].thread.start()
        return started[-1]

    yield start
    for one in started:
        one.capture.stop()
        one.thread.join(10)


def test_answer_to_an_earlier_request_confirms_nothing() -> None:
    """The question is whether this process holds the lease now. An earlier request may be older than a takeover."""
    lease = Lease()
    leadership = Leadership(lambda: lease, lambda event, fields: None)
    try:
        assert leadership.take(lambda: False)
        in_request, answers = threading.Event(), threading.Event()

        def wait_in_request() -> None:
            in_request.set()
            answers.wait(10)

        lease.on_hold = wait_in_request
        assert in_request.wait(10)
        has_ended = threading.Event()
        lease.on_hold = lambda: has_ended.wait(0.2)  # a call that takes the earlier answer ends before the next one
        lease.held = False  # another process takes it after this request
        found: list[CdcflowError] = []

        def confirm() -> None:
            try:
                leadership.confirm()
            except LeaseLost as error:
                found.append(error)
            has_ended.set()

        thread = threading.Thread(target=confirm)
        thread.start()
        wait_until(leadership._asks.is_set, "the request to be repeated")
        answers.set()
        thread.join(10)
        assert len(found) == 1
    finally:
        leadership.close()


def test_command_that_no_attempt_accepted_is_refused_when_the_lease_is_lost(stage: Callable[..., Stage]) -> None:
    """Weeks later another daemon has carried it out, or an operator has given the opposite command."""
    found = stage(Lease())
    found.wait_for("capturing")
    found.lease.held = False
    wait_until(lambda: found.events("lease released"), "the standby to wait")
    command = found.capture._commands.new("pause-capture", "an operator", (PauseCapture(),), {})
    found.capture._submit(command)  # its caller saw a running attempt, just before the lease was lost
    found.lease.held = True
    assert found.capture._commands.wait(command, 10) == (None, False)
    found.wait_for("capturing")
    assert found.events("command refused") == [
        {"op": "pause-capture", "by": "an operator", "reason": "this daemon is the standby"}
    ]


@pytest.mark.parametrize(("end", "seals"), [("lease lost", False), ("handover", False), ("stop", True)])
def test_daemon_that_is_replaced_leaves_sealing_to_the_other_one(
    stage: Callable[..., Stage], end: str, *, seals: bool
) -> None:
    """The other daemon waits for the lease in the meantime. After a stop no other daemon may exist."""
    limits: list[float] = []

    class BoundedLog(MemoryLog):
        def end_sealing_within(self, seconds: float) -> None:
            limits.append(seconds)

    found = stage(Lease(), open_log=BoundedLog)
    found.wait_for("capturing")
    match end:
        case "lease lost":
            found.lease.held = False
        case "handover":
            found.lease.on_release = lambda: setattr(found.lease, "held", False)
            found.capture.request("handover")
        case _:
            found.capture.stop()
    wait_until(lambda: limits, "the attempt to end")
    assert [limit > 0 for limit in limits] == [seals]


def test_standby_is_prepared_before_it_is_active(stage: Callable[..., Stage]) -> None:
    """What it loads only then makes the takeover longer."""
    found = stage(Lease(held=False))
    found.wait_for("standby")
    wait_until(lambda: found.events("prepared"), "the standby to be prepared")
    assert not found.events("lease taken")


def test_standby_names_the_active_daemon_in_its_status(stage: Callable[..., Stage]) -> None:
    """An operator who finds the standby needs the other machine."""
    lease = Lease(held=False)
    lease.other = Holder("db-2 (process 7)", since=1_700_000_000.0)
    found = stage(lease)
    wait_until(lambda: found.events("standing by"), "the standby to see the holder")
    status: Any = found.capture.status()["lease"]
    assert (status["role"], status["holder"], status["holder_since"]) == (
        "standby",
        "db-2 (process 7)",
        1_700_000_000.0,
    )


@pytest.mark.parametrize("op", ["resume-capture", "pause-capture", "handover", "backfill"])
def test_standby_refuses_commands(stage: Callable[..., Stage], op: str) -> None:
    """A standby that accepted `resume` would resume a capture that was paused at the active daemon since."""
    found = stage(Lease(held=False))
    found.wait_for("standby")
    with pytest.raises(SourceUnavailable, match="this daemon is the standby") as refused:
        found.capture.request(op)
    assert "active daemon's machine" in str(refused.value.remedy)
    assert found.capture._resuming is None


def test_order_to_abandon_the_position_does_not_wait_for_a_takeover(stage: Callable[..., Stage]) -> None:
    """It would be carried out weeks later, when nothing is lost."""
    found = stage(Lease(held=False), Orders(accept_history_loss=True))
    found.thread.join(10)
    assert isinstance(found.failure, ConfigurationError)
    assert "db-2 (process 7) is active" in str(found.failure)
    assert "stop it and run this command again" in str(found.failure.remedy)


def test_order_to_abandon_the_position_is_carried_out_by_the_active_daemon(stage: Callable[..., Stage]) -> None:
    found = stage(Lease(), Orders(accept_history_loss=True))
    found.wait_for("capturing")
    assert found.failure is None


@pytest.mark.parametrize("orders", [Orders(), Orders(once=True)])
def test_lease_that_never_answered_ends_a_start_that_does_not_wait(stage: Callable[..., Stage], orders: Orders) -> None:
    """A wrong address is more likely than an outage: `cdcflow run` without --wait ends, as does `cdcflow backfill`."""
    lease = Lease()
    lease.error = SourceUnavailable("no answer")
    found = stage(lease, orders, wait=False)
    found.thread.join(10)
    assert found.failure is lease.error
    assert found.capture.waits_for_lease


def test_lease_that_does_not_answer_is_waited_for(stage: Callable[..., Stage]) -> None:
    lease = Lease()
    lease.error = SourceUnavailable("no answer")
    found = stage(lease)
    wait_until(lambda: lease.asked > 3, "some requests")
    lease.error = None
    found.wait_for("capturing")
    lease.error = SourceUnavailable("no answer")
    wait_until(lambda: found.events("lease does not answer"), "the report")
    assert found.failure is None


def test_start_that_waits_for_an_answer_of_the_lease_can_be_stopped(stage: Callable[..., Stage]) -> None:
    lease = Lease()
    lease.error = SourceUnavailable("no answer")
    found = stage(lease, Orders(once=True))
    wait_until(lambda: lease.asked > 3, "some requests")
    found.capture.stop()
    found.thread.join(10)
    assert not found.thread.is_alive()


@pytest.mark.parametrize("is_taken", [True, False])
def test_daemon_that_gave_the_lease_back_waits_as_a_standby_once_it_is_taken(is_taken: bool) -> None:
    """A machine that fails just after a handover must not wait until the other daemon has rested."""
    lease = Lease()
    leadership = Leadership(lambda: lease, lambda event, fields: None)
    try:
        assert leadership.take(lambda: False)
        lease.other = Holder(leaderships.this_process())  # as a session that has just been closed
        leadership.request_handover()
        leadership.give_up()
        before = lease.asked
        if is_taken:
            lease.other = Holder("db-2 (process 7)")
            wait_until(
                lambda: lease.asked > before, "the lease to be requested again", patience_s=leaderships.REST_S / 2
            )
        else:
            threading.Event().wait(0.2)
            assert lease.asked == before
    finally:
        leadership.close()


def test_lease_whose_own_record_was_answered_too_late_makes_no_standby() -> None:
    """A new pipeline on a slow machine would refuse to begin its log: a standby continues the log of another daemon."""
    lease = Lease(held=False)
    lease.other = Holder(leaderships.this_process(), is_own=True)
    told: list[str] = []
    leadership = Leadership(lambda: lease, lambda event, fields: told.append(event))
    try:
        lease.on_hold = lambda: setattr(lease, "held", lease.asked > 2)
        assert leadership.take(lambda: False)
        assert leadership.waited_for is None
        assert told == ["lease taken"]
    finally:
        leadership.close()
