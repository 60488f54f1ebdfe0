"""Turns in another thread: who owns them, in which order their answers arrive, and how it ends."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pytest
from tests.support import polling
from tests.support.polling import PATIENCE_S

from cdcflow.errors import SourceUnavailable
from cdcflow.sources.engine.decode_ahead import ANSWERS_MAX, DecodeAhead
from cdcflow.sources.engine.descriptors import READABLE, wait_until

MakeAhead = Callable[[Callable[[], int], Callable[[], bool]], DecodeAhead[int]]


@pytest.fixture
def ahead_of() -> Iterator[MakeAhead]:
    made: list[DecodeAhead[int]] = []

    def make(turn: Callable[[], int], goes_on: Callable[[], bool]) -> DecodeAhead[int]:
        made.append(DecodeAhead(turn, goes_on))
        return made[-1]

    yield make
    for ahead in made:
        ahead.close()


class Turns:
    """Answers 1, 2, 3 …; `upto` is the last one, and raises `error` in place of the next."""

    def __init__(self, upto: int, error: Exception | None = None) -> None:
        self.done = 0
        self.threads: set[str] = set()
        self._upto = upto
        self._error = error

    def __call__(self) -> int:
        self.threads.add(threading.current_thread().name)
        if self._error is not None and self.done == self._upto:
            raise self._error
        self.done += 1
        return self.done

    def go_on(self) -> bool:
        return self._error is not None or self.done < self._upto


def is_readable(ahead: DecodeAhead[int], seconds: float) -> bool:
    return wait_until(READABLE, ahead.fileno(), seconds)


def taken(ahead: DecodeAhead[int], found: list[int] | None = None) -> list[int]:
    """Return what it gives (added to `found`) until the turns are the caller's again, waiting as the loop does."""
    found = [] if found is None else found
    while ahead.active:
        if not ahead.ready:
            assert is_readable(ahead, PATIENCE_S), "no wake: neither an answer nor the end was announced"
        if (answer := ahead.take()) is not None:
            found.append(answer)
    return found


def test_answers_are_returned_in_order_and_the_caller_then_resumes_the_turns(ahead_of: MakeAhead) -> None:
    """A log has nothing but its order; and another thread is only worth it while many changes arrive."""
    turns = Turns(500)
    ahead = ahead_of(turns, turns.go_on)
    assert not ahead.active
    ahead.start()
    assert taken(ahead) == list(range(1, 501))
    assert not ahead.active
    assert turns.threads == {"cdcflow-decode_0"}


def test_decoding_can_be_moved_to_the_thread_again(ahead_of: MakeAhead) -> None:
    """Backlogs come and go."""
    turns = Turns(3)
    ahead = ahead_of(turns, turns.go_on)
    for _ in range(50):
        turns.done = 0
        ahead.start()
        assert taken(ahead) == [1, 2, 3]


def test_decoder_does_not_run_far_ahead_of_a_slow_loop(ahead_of: MakeAhead) -> None:
    """Memory is bounded while the disk sets the pace."""
    turns = Turns(100)
    ahead = ahead_of(turns, turns.go_on)
    ahead.start()
    polling.wait_until(lambda: turns.done >= ANSWERS_MAX, "as many answers as may wait")
    time.sleep(0.05)
    assert turns.done == ANSWERS_MAX
    assert ahead.take() == 1
    assert taken(ahead) == list(range(2, 101))


def test_error_is_raised_once_and_after_the_answers_before_it(ahead_of: MakeAhead) -> None:
    """What was decoded before the connection broke is whole transactions: they count."""
    turns = Turns(5, SourceUnavailable("the connection is gone"))
    ahead = ahead_of(turns, turns.go_on)
    ahead.start()
    found: list[int] = []
    with pytest.raises(SourceUnavailable, match="gone"):
        taken(ahead, found)
    assert found == [1, 2, 3, 4, 5]
    assert not ahead.active


def test_closing_waits_for_the_turn_under_way(ahead_of: MakeAhead) -> None:
    """The objects that the turns use are dismantled next."""
    begun, may_end = threading.Event(), threading.Event()
    ended = []

    def turn() -> int:
        begun.set()
        may_end.wait(PATIENCE_S)
        ended.append(True)
        return 1

    ahead = ahead_of(turn, lambda: True)
    ahead.start()
    assert begun.wait(PATIENCE_S)
    threading.Timer(0.05, may_end.set).start()
    ahead.close()
    assert ended == [True]
    assert not ahead.active


def test_closing_ends_a_thread_that_waits_for_room(ahead_of: MakeAhead) -> None:
    """A daemon that is asked to stop while the disk is slow stops."""
    turns = Turns(100)
    ahead = ahead_of(turns, turns.go_on)
    ahead.start()
    polling.wait_until(lambda: turns.done >= ANSWERS_MAX, "as many answers as may wait")
    ahead.close()
    assert turns.done == ANSWERS_MAX
    assert not ahead.active
