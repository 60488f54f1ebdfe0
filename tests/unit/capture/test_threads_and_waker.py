"""The threads next to the loop, and what wakes it: requested work is done, errors reach the loop, stops end."""

from __future__ import annotations

import os
import select
import socket
import threading
from collections.abc import Iterator

import pytest
from tests.support.polling import wait_until

from cdcflow.capture.threads import Threads, Worker
from cdcflow.capture.waker import Waker


class Held:
    """Work that waits until the test releases it, and counts how often it was done."""

    def __init__(self) -> None:
        self.begun, self.may_go = threading.Semaphore(0), threading.Semaphore(0)
        self.done = 0

    def __call__(self) -> None:
        self.begun.release()
        assert self.may_go.acquire(timeout=30)
        self.done += 1


@pytest.fixture
def held() -> Held:
    return Held()


@pytest.fixture
def worker(held: Held) -> Iterator[Worker]:
    made = Worker("held", held)
    yield made
    held.may_go.release(100)
    made.stop()


def test_requests_during_the_work_give_one_more_turn_whatever_their_number(worker: Worker, held: Held) -> None:
    """Group commit: what was cut before a sync begins is in it, what is cut while it runs is in the next one."""
    assert (worker.idle, worker.behind) == (True, 0)
    worker.ask()
    assert held.begun.acquire(timeout=30)
    assert (worker.idle, worker.behind) == (False, 1)
    worker.ask()
    worker.ask()
    assert worker.behind == 3
    held.may_go.release()
    assert held.begun.acquire(timeout=30), "it starts the next turn by itself"
    assert (worker.idle, worker.behind) == (False, 2)
    held.may_go.release()
    assert worker.settle(30)
    assert (worker.idle, worker.behind, held.done) == (True, 0, 2)


def test_settling_waits_for_the_requests_and_reports_when_it_took_too_long(worker: Worker, held: Held) -> None:
    """False: what was cut may not be durable."""
    assert worker.settle(0), "nothing was requested"
    worker.ask()
    assert not worker.settle(0.01)
    held.may_go.release()
    assert worker.settle(30)


def test_error_ends_the_thread_and_waits_for_the_next_caller() -> None:
    """The loop must not continue after a sync that failed in its thread, and settling must not wait for a dead
    thread."""

    def fails() -> None:
        raise OSError("no room")

    worker = Worker("fails", fails)
    worker.check()
    worker.ask()
    assert not worker.settle(3600)
    for _ in range(2):
        with pytest.raises(OSError, match="no room"):
            worker.check()
    assert not worker.settle(3600), "the thread has ended"
    worker.stop()


def test_a_stop_lets_the_work_under_way_finish_and_begins_no_other(worker: Worker, held: Held) -> None:
    """A half-done seal would be repeated; a second one would keep this process from ending."""
    worker.ask()
    assert held.begun.acquire(timeout=30)
    worker.ask()
    stopping = threading.Thread(target=worker.stop)
    stopping.start()
    stopping.join(0.05)
    assert stopping.is_alive(), "the work is under way"
    wait_until(lambda: worker._stopping, "the stop")
    held.may_go.release()
    stopping.join(30)
    assert not stopping.is_alive()
    assert held.done == 1


def test_threads_bear_names_and_keep_no_process_from_ending() -> None:
    """Names show in a dump of a daemon that hangs; a thread that waits for a dead disk must not keep it from ending."""
    seen = threading.Event()
    worker = Threads().worker("cdcflow-x", seen.set)
    (thread,) = (t for t in threading.enumerate() if t.name == "cdcflow-x")
    assert thread.daemon
    worker.stop()
    with Threads().pool("cdcflow-y", 3) as pool:
        barrier = threading.Barrier(3)

        def name() -> str:
            barrier.wait(30)
            return threading.current_thread().name

        names = [task.result() for task in [pool.submit(name) for _ in range(3)]]
    assert sorted(names) == ["cdcflow-y_0", "cdcflow-y_1", "cdcflow-y_2"]


# ── the waker ───────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def waker() -> Iterator[Waker]:
    made = Waker()
    yield made
    made.close()


HOUR_S = 3600.0
"""A wait that nothing ends is a test that hangs."""


def waits_for_a_wake(waker: Waker) -> bool:
    """Whether the loop, which waits without a stream now, does so until it is woken."""
    ended = threading.Event()

    def waits() -> None:
        waker.wait(None, HOUR_S)
        ended.set()

    waiting = threading.Thread(target=waits)
    waiting.start()
    too_early = ended.wait(0.05)
    waker.wake()
    waiting.join(30)
    return ended.is_set() and not too_early


def test_a_wake_ends_the_wait_that_runs_or_the_next_one_and_no_other(waker: Waker) -> None:
    """It may arrive before the loop waits; if it were kept indefinitely, the loop would never wait again."""
    waker.wake()
    waker.wake()
    waker.wait(None, HOUR_S)
    assert waits_for_a_wake(waker), "both wakes were consumed already"


def test_the_stream_s_socket_ends_the_wait_as_long_as_it_is_the_stream_s(waker: Waker) -> None:
    """A recreated stream has another socket; the old one must no longer be watched, or the loop never waits."""
    near, far = socket.socketpair()
    other, beside = socket.socketpair()
    with near, far, other, beside:
        far.send(b"x")
        waker.wait(near.fileno(), HOUR_S)
        waker.wait(near.fileno(), HOUR_S)
        assert near.recv(9) == b"x", "reading it is the stream's"
        far.send(b"y")
        beside.send(b"z")
        waker.wait(other.fileno(), HOUR_S)
        assert other.recv(9) == b"z"
        assert waits_for_a_wake(waker), "neither socket is watched now"
        waker.wait(near.fileno(), HOUR_S)
        assert near.recv(9) == b"y", "and it can be watched again"


def test_stream_whose_socket_has_the_number_0_is_read_and_forgotten_like_any_other(waker: Waker) -> None:
    """A daemon that was started with its input closed gets such a socket."""
    near, far = socket.socketpair()
    kept = os.dup(0)
    with near, far:
        os.dup2(near.fileno(), 0)
        try:
            far.send(b"x")
            waker.wait(0, HOUR_S)
            waker.wake()
            waker.wait(None, HOUR_S)
            assert waits_for_a_wake(waker), "it is not watched now"
        finally:
            os.dup2(kept, 0)
            os.close(kept)


def test_a_wake_never_waits_for_the_loop(waker: Waker) -> None:
    """A busy loop takes none for a while; and after it has closed, no receiver is left."""
    for _ in range(100_000):
        waker.wake()
    waker.close()
    waker.wake()


def test_wait_is_as_long_as_requested(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seconds in, milliseconds for the system."""
    asked: list[float] = []

    class Poll:
        def register(self, *_: object) -> None:
            pass

        def poll(self, milliseconds: float) -> list[tuple[int, int]]:
            asked.append(milliseconds)
            return []

    monkeypatch.setattr(select, "poll", Poll)
    waker = Waker()
    waker.wait(None, 0.25)
    waker.close()
    assert asked == [250]
