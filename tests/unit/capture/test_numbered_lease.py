"""A lease by time: what a holder may conclude from answers that arrive, arrive late, or get lost."""

from __future__ import annotations

from collections.abc import Callable

from cdcflow.capture.numbered_lease import NumberedLease
from cdcflow.errors import SinkUnavailable

TTL_S = 3.0
WATCHED_EVERY_S = 0.5
EXPIRED_AFTER_S = 3.31


class Place:
    """Stores records, as a store or a topic does. While `loses_answers`, a record is stored and the answer is lost."""

    def __init__(self) -> None:
        self.records: dict[int, bytes] = {}
        self.loses_answers = False
        self.takes: Callable[[], None] = lambda: None
        """Called before an answer."""

    def latest(self) -> tuple[int, bytes] | None:
        return max(self.records.items(), default=None)

    def add(self, number: int, content: bytes) -> bool:
        if number in self.records:
            return False
        self.records[number] = content
        self.takes()
        if self.loses_answers:
            raise SinkUnavailable("no answer")
        return True

    def close(self) -> None: ...


class Daemons:
    """Two daemons with one lease, and the time of both."""

    def __init__(self) -> None:
        self.place = Place()
        self.now_s = 100.0
        self.time_of_day_s = 1e9
        self.first, self.second = (
            NumberedLease(
                self.place,
                name,
                TTL_S,
                watched_every_s=WATCHED_EVERY_S,
                clock=lambda: self.now_s,
                time_of_day=lambda: self.time_of_day_s,
            )
            for name in ("first", "second")
        )

    def hold_without_answer(self, lease: NumberedLease) -> None:
        self.place.loses_answers = True
        try:
            lease.hold()
        except SinkUnavailable:
            pass
        finally:
            self.place.loses_answers = False


def test_holder_whose_answer_was_lost_keeps_the_lease() -> None:
    """Otherwise one lost answer of a store would stop the capture, and no daemon would write for seconds."""
    daemons = Daemons()
    assert daemons.first.hold()
    daemons.now_s += 1
    daemons.hold_without_answer(daemons.first)
    daemons.now_s += 1
    assert daemons.first.hold()
    assert not daemons.second.hold()


def test_lease_whose_taking_was_not_answered_is_taken_at_the_next_request() -> None:
    daemons = Daemons()
    daemons.hold_without_answer(daemons.first)
    daemons.now_s += 1
    assert not daemons.second.hold()
    assert daemons.first.hold()


def test_lost_answers_make_no_term_longer() -> None:
    """The term of a record begins before it was stored. One that was stored unnoticed must not count from later."""
    daemons = Daemons()
    assert daemons.first.hold()
    daemons.now_s += 1
    daemons.hold_without_answer(daemons.first)
    assert not daemons.second.hold()  # it has seen the unnoticed record
    daemons.now_s += EXPIRED_AFTER_S
    assert daemons.second.hold()
    assert not daemons.first.hold()


def test_released_lease_is_free_at_once_after_a_lost_answer() -> None:
    daemons = Daemons()
    assert daemons.first.hold()
    daemons.hold_without_answer(daemons.first)
    daemons.first.release()
    assert daemons.second.hold()


def test_time_of_day_that_jumps_changes_nothing() -> None:
    """A clock that is set forward must not expire a lease, and one that is set back must not prolong it."""
    daemons = Daemons()
    assert daemons.first.hold()
    assert not daemons.second.hold()
    for jump_s in (86_400.0, -200_000.0):
        daemons.time_of_day_s += jump_s
        daemons.now_s += 1
        assert daemons.first.hold()
        assert not daemons.second.hold()
    daemons.time_of_day_s += 86_400.0
    daemons.now_s += EXPIRED_AFTER_S
    assert daemons.second.hold()


def test_standby_requests_the_lease_when_it_expires() -> None:
    """A takeover does not wait for the next of the usual requests; those to a store cost money."""
    daemons = Daemons()
    assert daemons.first.hold()
    assert not daemons.second.hold()
    assert daemons.second.watched_every_s == WATCHED_EVERY_S
    daemons.now_s += EXPIRED_AFTER_S - 0.05
    assert not daemons.second.hold()
    assert 0 < daemons.second.watched_every_s < 0.1
    daemons.now_s += daemons.second.watched_every_s
    assert daemons.second.watched_every_s == WATCHED_EVERY_S  # a store that does not answer is spared
    assert daemons.second.hold()


def test_holder_whose_answer_came_too_late_is_no_other_daemon() -> None:
    """A new pipeline on a slow machine would take itself for the standby of a daemon whose log it does not find."""
    daemons = Daemons()
    daemons.place.takes = lambda: setattr(daemons, "now_s", daemons.now_s + TTL_S)
    assert not daemons.first.hold()
    daemons.place.takes = lambda: None
    for lease, is_own in ((daemons.first, True), (daemons.second, False)):
        holder = lease.holder()
        assert holder is not None
        assert holder.is_own == is_own
    assert daemons.first.hold()
