"""What is remembered of events, for an operator who checks in the morning."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

from cdcflow.daemon.interfaces.recent import EVENTS_MAX, Recent

INTERRUPTED = {"kind": "SourceUnavailable", "reason": "asking db: refused", "remedy": "start it", "next_try_s": 3}


def test_events_are_passed_on_and_those_with_a_reason_are_kept_latest_first() -> None:
    """The output stays unchanged; the page shows the events that need an operator, with the remedy."""
    told: list[tuple[str, Mapping[str, object]]] = []
    recent = Recent(lambda event, fields: told.append((event, fields)), clock=itertools.count(100.0).__next__)
    recent("capture interrupted", INTERRUPTED)
    recent("capture started", {"epoch": 2})
    recent("table done", {"table": "a.b", "reason": None})
    recent("chunk given up", {"table": "a.b", "reason": "it was rewritten.\n  (a detail)"})
    recent("left behind", {"what": "slot x", "found": "slot x holds log", "remedy": "SELECT 1"})
    assert [event for event, _ in told] == [
        "capture interrupted",
        "capture started",
        "table done",
        "chunk given up",
        "left behind",
    ]
    assert [(one["text"], one["remedy"]) for one in recent.newest()] == [
        ("Left behind: slot x holds log.", "SELECT 1"),
        ("Chunk given up, a.b: it was rewritten.", None),
        ("Capture interrupted: asking db: refused.", "start it"),
    ]


def test_same_trouble_is_kept_once_and_counted() -> None:
    """A night without the server is one line, not a thousand, and does not push the cause out."""
    recent = Recent(lambda *_: None, clock=itertools.count(100.0).__next__)
    recent("chunk given up", {"table": "a.b", "reason": "x"})
    for _ in range(1000):
        recent("capture interrupted", INTERRUPTED)
    newest, oldest = recent.newest()
    assert (newest["times"], newest["first_at"], newest["last_at"]) == (1000, 101.0, 1100.0)
    assert oldest["text"] == "Chunk given up, a.b: x."


def test_memory_is_bounded() -> None:
    """Ten thousand tables that fail are ten thousand different sentences."""
    recent = Recent(lambda *_: None)
    for number in range(1000):
        recent("table failed", {"table": f"a.t{number}", "reason": "x"})
    assert len(recent.newest()) == EVENTS_MAX
    assert recent.newest()[0]["text"] == "Table failed, a.t999: x."
