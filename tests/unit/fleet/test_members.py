"""Which members still report: judged without trusting any machine's clock."""

from __future__ import annotations

import pytest
from tests.support.fleet.simulated import report

from cdcflow.fleet.members import Member, Members, UnknownMember

NOW = 1_000_000.0


class Clocks:
    def __init__(self) -> None:
        self.wall, self.monotonic = NOW, 50.0

    def forward(self, seconds: float) -> None:
        self.wall += seconds
        self.monotonic += seconds


@pytest.fixture
def clocks() -> Clocks:
    return Clocks()


@pytest.fixture
def members(clocks: Clocks) -> Members:
    return Members(lambda: clocks.wall, lambda: clocks.monotonic)


def only(members: Members) -> Member:
    (found,) = members.current()
    return found


def test_member_is_silent_after_three_of_its_intervals(members: Members, clocks: Clocks) -> None:
    """A killed daemon cannot report its end."""
    last = report(at=NOW)
    members.note("here", {"a": last})
    clocks.forward(45)
    members.note("here", {"a": last})
    assert not only(members).is_silent
    clocks.forward(1)
    assert only(members).is_silent
    assert only(members).reported_at == NOW


def test_short_interval_gets_half_a_minute(members: Members, clocks: Clocks) -> None:
    """A busy machine must not make a page flicker."""
    members.note("here", {"a": report(at=NOW, every_s=1.0)})
    clocks.forward(29)
    assert not only(members).is_silent
    clocks.forward(2)
    assert only(members).is_silent


def test_old_report_is_silent_the_first_time(members: Members) -> None:
    """`cdcflow fleet` that was started this minute must not show yesterday's state as today's."""
    members.note("here", {"a": report(at=NOW - 86_400)})
    assert only(members).is_silent
    assert only(members).reported_at == NOW - 86_400


def test_report_from_the_future_proves_nothing_the_first_time(members: Members, clocks: Clocks) -> None:
    """A member whose clock was an hour ahead when it was killed would be shown as well for an hour."""
    members.note("here", {"a": report(at=NOW + 3_600)})
    assert only(members).is_silent
    assert only(members).clock_ahead_s == 3_600
    clocks.forward(15)
    last = report(at=NOW + 3_615)
    members.note("here", {"a": last})
    assert not only(members).is_silent
    clocks.forward(46)
    members.note("here", {"a": last})
    assert only(members).is_silent
    assert only(members).reported_at == NOW + 15


def test_member_whose_clock_is_slow_is_not_silent_while_it_reports(members: Members, clocks: Clocks) -> None:
    """Its clock is wrong, and its capture is not."""
    members.note("here", {"a": report(at=NOW - 500)})
    assert only(members).is_silent
    clocks.forward(15)
    members.note("here", {"a": report(at=NOW - 485)})
    assert not only(members).is_silent
    assert only(members).clock_ahead_s == -500


def test_register_that_cannot_be_read_makes_its_members_silent(members: Members, clocks: Clocks) -> None:
    """What is not known to be well is not shown as well; and the reason is the register."""
    members.note("here", {"a": report(at=NOW)})
    members.note_failure("here", "no answer")
    clocks.forward(46)
    members.note_failure("here", "no answer yet")
    assert only(members).is_silent
    (outage,) = members.outages()
    assert (outage.since, outage.reason) == (NOW, "no answer yet")
    members.note("here", {"a": report(at=NOW + 46)})
    assert members.outages() == []
    assert not only(members).is_silent


def test_member_that_never_answered_has_a_row(members: Members) -> None:
    """A pipeline that is missing from a page of 200 is not missed by anyone."""
    members.note_failure("https://shop", "no answer", "shop")
    found = only(members)
    assert (found.name, found.report, found.is_silent, found.problem) == ("shop", None, True, "no answer")
    members.note("https://shop", {"shop": report(at=NOW)})
    members.note_failure("https://shop", "no answer", "shop")
    assert only(members).report is not None


def test_report_that_was_removed_is_gone(members: Members) -> None:
    """Operators remove a pipeline that has ended."""
    members.note("here", {"a": report("a"), "b": UnknownMember("b", "it is not JSON")})
    assert sorted(one.name for one in members.current()) == ["a", "b"]
    members.note("here", {"a": report("a")})
    assert only(members).name == "a"


def test_process_that_has_ended_does_not_report(members: Members) -> None:
    """Its last report stays, and is not current."""
    members.note("here", {"a": report(at=NOW, ended=True)})
    assert not only(members).reports
