"""The rows of a fleet's page: what needs an operator comes first, and what is silent is never well."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

from tests.support.fleet.simulated import finding, report, with_numbers

from cdcflow.fleet.members import Member
from cdcflow.fleet.pipelines import Pipeline, counts, pipelines

NOW = time.time()


def member(name: str = "shop", *, silent: bool = False, reported_at: float = NOW - 3, **fields: Any) -> Member:
    return Member(name, report(name, **fields), reported_at, silent)


def merging(name: str = "shop", *, silent: bool = False, **numbers: float) -> Member:
    made = with_numbers(report(name, kind="merge", place="spark-1", state="idle"), **numbers)
    return Member(name, made, NOW - 3, silent)


def row(*members: Member) -> Pipeline:
    (found,) = pipelines(members, NOW)
    return found


def texts(found: Pipeline) -> str:
    return " ".join(one.text for one in found.findings)


def test_rows_that_need_an_operator_come_first() -> None:
    """A page of 200 is not read to its end."""
    members = [
        member("a"),
        member("late", findings=[finding("warning", "It lags.")]),
        member("b", findings=[finding("note", "It is paused.")]),
        member("lost", findings=[finding("error", "The slot is gone.")]),
        member("z", silent=True),
        Member("garbled", None, 0.0, is_silent=True, problem="its report cannot be read: it is not JSON"),
    ]
    found = pipelines(members, NOW)
    assert [one.name for one in found] == ["z", "garbled", "lost", "late", "b", "a"]
    assert [one.level for one in found] == ["error", "error", "error", "warning", "note", "good"]
    assert counts(found)["capturing"] == 4
    assert counts(found)["unknown"] == 1


def test_silent_daemon_is_an_error_with_the_time_and_its_last_numbers() -> None:
    """It may have captured well until it was killed."""
    found = row(member(silent=True, reported_at=0.0))
    assert (found.state, found.level) == ("silent", "error")
    assert "The daemon on cdc-shop has been silent since 1970-01-01 00:00:00Z" in texts(found)
    assert found.row()["lag_seconds"] == 0.8


def test_daemon_that_was_stopped_is_a_warning_and_one_that_halted_an_error() -> None:
    """One was an operator's decision."""
    assert (row(member(ended=True, state="stopped")).state, row(member(ended=True)).level) == ("stopped", "warning")
    halted = row(member(ended=True, state="halted", findings=[finding("error", "The slot is gone.")]))
    assert (halted.state, halted.level, texts(halted)) == ("halted", "error", "The slot is gone.")


def test_process_that_was_killed_after_its_end_report_is_not_silent() -> None:
    """After such a report no other is expected."""
    assert row(member(ended=True, silent=True, state="stopped")).state == "stopped"


def test_standby_is_part_of_the_pipeline_of_its_active_daemon() -> None:
    """Two machines, one pipeline, one row."""
    found = row(member(place="b", state="standby"), member(place="a"))
    assert (found.state, found.level) == ("capturing", "good")
    assert [one["place"] for one in found.details()["members"]] == ["a", "b"]


def test_silent_standby_is_a_warning_for_a_day() -> None:
    """A takeover would fail, and the active daemon does not know; the pod of last week is no news."""
    active, gone = member(place="a"), member(place="b", state="standby", silent=True, reported_at=NOW - 600)
    assert "A second daemon of this pipeline, on b, is silent" in texts(row(active, gone))
    assert row(active, member(place="b", silent=True, reported_at=NOW - 100_000)).level == "good"
    assert row(active, member(place="b", ended=True, silent=True)).level == "good"


def test_standby_alone_is_not_well() -> None:
    """Its state is fine, and nothing is captured."""
    found = row(member(place="b", state="standby"), member(place="a", silent=True))
    assert found.state == "standby"
    assert found.level == "warning"
    assert "No daemon of this pipeline reports that it captures" in texts(found)
    assert "on a, is silent" in texts(found)


def test_two_pipelines_with_one_name_are_an_error() -> None:
    """One copied settings file would hide a pipeline."""
    assert "2 daemons publish under this name: " in texts(row(member(place="a"), member(place="b")))


def test_later_merge_counts_wherever_it_was() -> None:
    """The capture's machine has only the results of merges on it."""
    capture = with_numbers(report(), durable_offset=500, merge_offset=100, merge_ended_at=NOW - 900, merge_left_out=4)
    elsewhere = merging(merge_offset=480, merge_ended_at=NOW - 5)
    found = row(Member("shop", capture, NOW, is_silent=False), elsewhere)
    assert found.row()["merge_behind_rows"] == 20
    assert found.row()["merge_place"] == "spark-1"
    earlier = row(Member("shop", capture, NOW, is_silent=False), merging(merge_offset=50, merge_ended_at=NOW - 9_000))
    assert earlier.row()["merge_behind_rows"] == 400


def test_silent_merges_elsewhere_are_an_error_of_the_pipeline() -> None:
    """The capture is well, and the tables become old."""
    found = row(member(), merging(silent=True))
    assert (found.state, found.level) == ("capturing", "error")
    assert "The process that merges on spark-1 has been silent" in texts(found)


def test_single_merge_that_has_ended_is_no_finding() -> None:
    """A cron job ends after each merge. Its numbers stay; only a process that repeats merges should be running."""
    done = report(kind="merge", place="spark-1", state="idle", ended=True)
    numbers = {"merge_cut": 7, "merge_offset": 31_337_000, "merge_ended_at": NOW - 2}
    once = Member("shop", replace(done, numbers=numbers), NOW - 900, is_silent=True)
    capture = with_numbers(report(), merge_ended_at=NOW - 900)
    found = row(Member("shop", capture, NOW, is_silent=False), once)
    assert (found.level, found.findings) == ("good", [])
    assert (found.row()["merge_cut"], found.row()["merge_place"]) == (7, "spark-1")
    again = with_numbers(done, merge_every_s=60)
    assert "Merges on spark-1 were stopped" in texts(row(member(), Member("shop", again, NOW, is_silent=False)))


def test_merges_without_a_daemon_in_the_fleet_are_shown() -> None:
    """Then nothing is known of the capture."""
    found = row(merging())
    assert (found.state, found.level) == ("merges only", "warning")


def test_rows_that_differ_from_the_source_are_an_error() -> None:
    """The daemon is well, and the copy is wrong."""
    found = row(Member("shop", with_numbers(report(), rows_different=3), NOW, is_silent=False))
    assert found.level == "error"
    assert "A comparison found 3 rows that differ." in texts(found)


def test_state_of_a_newer_version_is_shown_as_other() -> None:
    """Filters and metrics have a fixed list."""
    assert row(member(state="<b>dreaming</b>")).state == "other"
