"""The timeline of a pipeline: as a picture and as text, out of a log's folder."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from itertools import pairwise
from pathlib import Path

import pytest

from cdcflow.config import Config
from cdcflow.daemon.activity_component import ActivityThread
from cdcflow.log.maintenance import activity
from cdcflow.log.maintenance.activity import ActivitySpan
from cdcflow.reports.timeline_picture import svg_of
from cdcflow.wiring.timelines import RateStep, Timeline, TimelineMark, TimelineSpan, _captures

NASTY = '</text><script>alert("x")</script>\x00\x1b[31m&'
SVG = "{http://www.w3.org/2000/svg}"


def capture(begin: float, end: float, state: str = "capturing", of: str = "1", *, ended: bool = False) -> ActivitySpan:
    return ActivitySpan(begin, end, state, of, ended=ended)


def absences(*spans: ActivitySpan, now: float) -> list[tuple[float, float, str]]:
    found = [one for one in _captures(spans, now) if one.state in ("outage", "stopped")]
    return [(one.begin, one.end, one.state) for one in found]


def test_daemon_that_was_killed_is_an_outage_until_the_next_one_starts() -> None:
    """It wrote nothing at its end: the next start shows that it was gone."""
    assert absences(capture(0, 100), capture(112, 200, of="2"), now=205) == [(100, 112, "outage")]


def test_daemon_that_was_stopped_is_no_outage() -> None:
    """An operator did it."""
    spans = [capture(0, 100), capture(100, 100, "stopped", ended=True), capture(160, 200, of="2")]
    assert absences(*spans, now=205) == [(100, 160, "stopped")]


def test_daemon_that_is_no_longer_seen_is_an_outage_until_now() -> None:
    """It was not started again."""
    assert absences(capture(0, 100), now=140) == []
    assert absences(capture(0, 100), now=500) == [(100, 500, "outage")]


def test_daemon_that_was_suspended_is_an_outage() -> None:
    """The same process, and nothing was captured."""
    assert absences(capture(0, 100), capture(400, 500), now=505) == [(100, 400, "outage")]


def test_spans_of_the_same_state_are_one(tmp_path: Path) -> None:
    """A file of a daemon that runs for a year must stay small."""
    for second in range(0, 2_000, 10):
        activity.note(tmp_path, "capture", capture(second, second + 10), joins_within_s=60)
    (one,) = activity.of_log(tmp_path).capture
    assert (one.begin, one.end) == (0, 2_000)
    activity.note(tmp_path, "capture", capture(2_000, 2_010, "waiting"), joins_within_s=60)
    activity.note(tmp_path, "capture", capture(2_010, 2_020), joins_within_s=60)
    assert [one.state for one in activity.of_log(tmp_path).capture] == ["capturing", "waiting", "capturing"]


def test_number_of_spans_is_bounded_and_a_garbled_file_is_replaced(tmp_path: Path) -> None:
    """It is read and written every ten seconds."""
    for second in range(activity.SPANS_MAX + 20):
        activity.note_comparison(tmp_path, second, "public.a", "log", 0)
    found = activity.of_log(tmp_path).comparisons
    assert (len(found), found[0].begin) == (activity.SPANS_MAX, 20)
    (tmp_path / activity.FOLDER / "merges.json").write_text('{"spans": [{"begin": 1')
    activity.note_merge(tmp_path, 5.0, 6.0, rows=3)
    assert [one.rows for one in activity.of_log(tmp_path).merges] == [3]


def test_merges_are_joined_while_they_succeed(tmp_path: Path) -> None:
    """A failure between them is what an operator looks for."""
    activity.note_merge(tmp_path, 0, 1, rows=5)
    activity.note_merge(tmp_path, 60, 61, rows=7)
    activity.note_merge(tmp_path, 120, 121, failure="no answer")
    activity.note_merge(tmp_path, 180, 181, rows=1)
    activity.note_merge(tmp_path, 9_000, 9_001)
    found = activity.of_log(tmp_path).merges
    assert [(one.state, one.times, one.rows) for one in found] == [
        *(("merged", 2, 12), ("failed", 1, 0), ("merged", 1, 1), ("merged", 1, 0)),
    ]


def picture(**parts: object) -> str:
    given = {"name": "log", "begin": 0.0, "end": 3_600.0, "spans": (), "marks": (), "rates": ()}
    return svg_of(Timeline(**{**given, **parts}))  # type: ignore[arg-type]  # what a test gives


@pytest.mark.parametrize("length_s", [1.0, 90.0, 7_200.0, 1e6, 1e9])
def test_picture_is_valid_for_any_length(length_s: float) -> None:
    """Ten seconds or thirty years."""
    spans = [TimelineSpan("capture", 0, length_s, "capturing", "capturing")]
    root = ET.fromstring(picture(end=length_s, spans=spans, rates=[RateStep(0, length_s, 100)]))  # noqa: S314
    ticks = [one for one in root.iter(f"{SVG}text") if one.get("text-anchor") == "middle"]
    assert len(ticks) <= 12


def test_texts_of_a_source_are_text() -> None:
    """A table's name or an error may hold anything, and a picture is opened in browsers."""
    spans = [
        TimelineSpan("capture", 0, 60, "waiting", NASTY),
        TimelineSpan("backfill", 0, 9, "failed", f"{NASTY} was read"),
    ]
    text = picture(name=NASTY, spans=spans, marks=[TimelineMark("schema", 5, "changed", NASTY)])
    root = ET.fromstring(text)  # noqa: S314
    assert {one.tag for one in root.iter()}.isdisjoint({f"{SVG}script", "script"})
    assert "<script" not in text


def test_what_an_operator_looks_for_has_a_number_and_its_text() -> None:
    """Also on paper, where no pointer shows a title; in the order in which it happened."""
    spans = [
        TimelineSpan("capture", 0, 600, "capturing", "capturing"),
        TimelineSpan("capture", 600, 900, "outage", "no daemon ran"),
        TimelineSpan("merge", 100, 200, "failed", "1 merge failed: no answer"),
    ]
    root = ET.fromstring(picture(spans=spans, marks=[TimelineMark("schema", 1_000, "changed", "a.b: + c int4")]))  # noqa: S314
    texts = [one.text or "" for one in root.iter(f"{SVG}text")]
    listed = [text for text in texts if text[:2] in ("1 ", "2 ", "3 ")]
    assert [text.split("  ")[2].split(" (")[0] for text in listed] == [
        *("1 merge failed: no answer", "no daemon ran", "a.b: + c int4"),
    ]
    assert [one.text for one in root.iter(f"{SVG}text") if one.get("class") == "badge-text"].count("2") == 1


def test_picture_shows_that_something_is_not_known() -> None:
    """An empty lane could mean that nothing happened."""
    assert "nothing is known" in picture()


def test_states_of_a_daemon_are_recorded_when_they_change_and_at_its_end(tmp_path: Path) -> None:
    """A pause of some seconds is one, too; and without an end the next start would show an outage."""
    state = {"state": "waiting", "reason": "starting"}
    source = {"kind": "postgres", "url": "postgresql://localhost/shop", "tables": ["public.a"]}
    config = Config.model_validate({"source": source, "log": {"path": str(tmp_path)}})
    thread = ActivityThread(config, lambda: state, 10.0)
    for now in ("capturing", "paused", "capturing"):
        thread._record()
        state.update(state=now, reason="")
    thread._record()
    thread.end(wait=True)
    found = activity.of_log(tmp_path).capture
    assert [one.state for one in found] == ["starting", "capturing", "paused", "capturing", "stopped"]
    assert [one.ended for one in found] == [False, False, False, False, True]
    assert all(before.end == after.begin for before, after in pairwise(found))
