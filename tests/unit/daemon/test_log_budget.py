"""What the watch of a log's budget does when: it warns at each level, and releases at the end, but not too early."""

from __future__ import annotations

from collections.abc import Mapping

from cdcflow.capture.ports.budgeted_log import Release
from cdcflow.daemon.log_budget import GRACE_S, BudgetWatch
from cdcflow.errors import SourceUnavailable
from cdcflow.model.log_budget import KeptLog, LogBudget, LogLimit


class ScriptedLog:
    """A kept log whose measures a test sets."""

    def __init__(self) -> None:
        self.kept: KeptLog | None = KeptLog(0)
        self.released: list[str] = []
        self.is_begun = False

    def measure(self) -> KeptLog:
        if self.kept is None:
            raise SourceUnavailable("asking for the kept log: no answer\n  more")
        return self.kept

    def limits(self) -> tuple[LogLimit, ...]:
        return ()

    def is_release_begun(self) -> bool:
        return self.is_begun

    def release(self, why: str, by: str) -> Release:
        self.released.append(why)
        self.is_begun = False
        self.kept = KeptLog(None)
        return Release("released", why)

    def close(self) -> None: ...


class Watched:
    """A watch with its log, its events and its clock."""

    def __init__(self, *, releases: bool = True) -> None:
        self.log = ScriptedLog()
        self.events: list[tuple[str, Mapping[str, object]]] = []
        self.now = 0.0
        self.watch = BudgetWatch(
            self.log,
            LogBudget(100),
            releases=releases,
            by="a test",
            tell=lambda event, fields: self.events.append((event, fields)),
            clock=lambda: self.now,
        )

    def check(self, kept: int | None) -> None:
        self.log.kept = KeptLog(kept)
        self.watch.check()

    def percents(self) -> list[object]:
        return [fields["percent"] for event, fields in self.events if event == "log budget"]


def test_each_level_is_reported_once_until_less_than_half_is_used() -> None:
    """An operator who gets a message every five seconds stops reading."""
    watched = Watched(releases=False)
    for kept in (10, 51, 60, 79, 81, 79, 82, 96, 120, 130):
        watched.check(kept)
    assert watched.percents() == [50, 80, 95, 100]
    watched.check(60)
    assert watched.events[-1][0] != "log budget free"
    watched.check(10)
    assert watched.events[-1][0] == "log budget free"
    watched.check(55)
    assert watched.percents()[-1] == 50
    assert watched.log.released == []


def test_log_that_grows_past_the_budget_is_released_at_once() -> None:
    """Each second of patience is log on the source's disk."""
    watched = Watched()
    watched.check(99)
    assert watched.log.released == []
    watched.check(100)
    assert watched.log.released == ["100 bytes kept, and the budget is 100 bytes"]
    assert watched.watch.status()["released_why"] == watched.log.released[0]
    watched.watch.check()
    assert len(watched.log.released) == 1


def test_reader_that_catches_up_keeps_its_log() -> None:
    """A guard that starts, or a budget that was lowered, must not throw away what a daemon is about to read."""
    watched = Watched()
    for kept in range(500, 100, -50):
        watched.check(kept)
        watched.now += GRACE_S - 1
    assert watched.log.released == []
    watched.check(90)
    watched.check(101)
    assert len(watched.log.released) == 1


def test_reader_that_does_not_advance_beyond_the_budget_loses_its_log() -> None:
    """The patience ends: the log does not shrink."""
    watched = Watched()
    watched.check(500)
    watched.now += GRACE_S / 2
    watched.check(510)
    assert watched.log.released == []
    watched.now += GRACE_S / 2
    watched.check(505)
    assert len(watched.log.released) == 1


def test_release_that_was_begun_is_finished() -> None:
    """Its process was killed between the note and the drop, and nothing else would drop the slot."""
    watched = Watched()
    watched.log.is_begun = True
    watched.check(1)
    assert watched.log.released == ["a release that was begun is finished"]


def test_source_that_does_not_answer_is_reported_once() -> None:
    """During an outage of the network a guard next to the source has to act."""
    watched = Watched()
    for _ in range(3):
        watched.log.kept = None
        watched.watch.check()
    assert [event for event, _ in watched.events] == ["log budget unknown"]
    assert watched.watch.status()["error"] == "asking for the kept log: no answer"
    watched.check(1)
    assert "error" not in watched.watch.status()
