"""Commands and ends of processes while no log is open to record them: the next attempt writes their audit records."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest
from tests.support.capture.small_capture import Stage, paused, stages

from cdcflow.capture.interleave.messages import Command, Input, ResumeCapture
from cdcflow.capture.interleave.progress import CommandRecord, commands_of
from cdcflow.capture.offline_audit import KEPT_MAX, LateTraces
from cdcflow.capture.settings import SettingsInUse
from cdcflow.errors import HistoryLost, SourceUnavailable
from cdcflow.log.maintenance import state_files
from cdcflow.sinks.memory import Memory


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Stage]]:
    """Start captures; they are stopped after the test."""
    with stages(monkeypatch) as start:
        yield start


def resumed(stage: Callable[..., Stage], memory: Memory, notes: list[Any]) -> Stage:
    """The next process, which continues the capture, once no note is left."""
    on = stage(memory, notes=notes)
    on.until("capture is paused")
    assert on.capture.request("resume-capture", asked_by="bob")["durable"]
    while on.notes:
        on.until("noted")
    return on


def test_a_stop_while_the_capture_is_paused_is_in_the_log_of_the_next_process(stage: Callable[..., Stage]) -> None:
    """The log is closed during a pause, and who ended the daemon is the first question of the next morning."""
    on = stage(paused(stage))
    on.until("capture is paused")
    on.capture.request("stop", asked_by="ann")
    on.thread.join(30)
    assert [(note["asked_by"], note["op"]) for note in on.notes] == [("ann", "stop")]
    after = resumed(stage, on.memory, on.notes)
    assert after.commands()[1:] == [
        ("ann", "stop", {"capture": "stopping"}),
        ("bob", "resume-capture", {"capture": "resumed"}),
    ]
    (stopped,) = [c for c in commands_of(after.memory.checkpoint.progress) if c.op == "stop"]
    (resume,) = [c for c in commands_of(after.memory.checkpoint.progress) if c.op == "resume-capture"]
    assert stopped.at_us < resume.at_us, "it has the time at which it was given"


def test_an_error_that_ends_the_daemon_is_in_the_log_of_the_next_process(stage: Callable[..., Stage]) -> None:
    """`halted.json` has the last one only, until the next start."""
    on = stage(paused(stage))
    on.until("capture is paused")
    on.down = [HistoryLost("the slot is gone\nat 0/1")]
    on.capture._resuming = on.capture._commands.new("resume-capture", "bob", (ResumeCapture(),), {})
    on.capture._wake()
    on.thread.join(30)
    assert isinstance(on.failures[0], HistoryLost)
    after = resumed(stage, on.memory, on.notes)
    assert ("cdcflow", "end", {"capture": "ended: HistoryLost: the slot is gone"}) in after.commands()


def test_an_order_while_the_capture_waits_to_try_again_is_in_the_log(stage: Callable[..., Stage]) -> None:
    """It was refused, and the operator who gave it may want to know what happened to it."""
    on = stage(paused(stage))
    on.until("capture is paused")
    refused: list[str] = []

    def gives_an_order() -> Any:
        with pytest.raises(SourceUnavailable) as error:
            on.capture.request("pause", ["public.items"], asked_by="ann")
        refused.append(str(error.value))
        raise SourceUnavailable("away")

    # Once, while the attempt that is to resume the capture begins.
    begin = on.capture._settings.take()
    on.capture._settings = SettingsInUse(replace(begin, open_source=once_then(gives_an_order, begin.open_source)))
    on.capture.request("resume-capture", asked_by="bob")
    assert refused == ["the capture is waiting to try again: starting"]
    (trace,) = [c for c in commands_of(on.memory.checkpoint.progress) if c.op == "pause"]
    assert (trace.asked_by, dict(trace.details)) == ("ann", {"tables": "public.items"})
    assert dict(trace.outcomes) == {"capture": "refused: the capture is waiting to try again: starting"}


def once_then(first: Callable[[], Any], rest: Callable[[], Any]) -> Callable[[], Any]:
    left = [first]
    return lambda: (left.pop() if left else rest)()


def test_audit_record_that_the_log_has_is_not_written_again() -> None:
    """A crash between the cut and the notes leaves both; nor does a second attempt find it twice in its queue."""
    notes: list[Any] = []
    late = LateTraces(lambda: notes, lambda now: notes.__setitem__(slice(None), now))
    late.add("stop", "ann", "stopping", None)
    late.add("pause", "bob", "refused", "the capture is paused", ["public.a"])
    known = CommandRecord(1, notes[0]["at_us"], "ann", "stop")
    after = LateTraces(lambda: list(notes), lambda now: notes.__setitem__(slice(None), now))
    after.begin([known])
    requests: SimpleQueue[Input] = SimpleQueue()
    other = Command(7, "pause", "cat", 1)
    requests.put(other)
    for _ in range(2):
        after.give(requests)
    given: list[Any] = [requests.get() for _ in range(requests.qsize())]
    assert [(one.op, one.asked_by) for one in given] == [("pause", "bob"), ("pause", "cat")]
    after.record_written(given[0].id)
    assert notes == []


def test_only_the_latest_of_many_are_kept() -> None:
    """A service manager that restarts a halted daemon indefinitely must not fill the log with its ends."""
    notes: list[Any] = []
    late = LateTraces(lambda: notes, lambda now: notes.__setitem__(slice(None), now))
    for number in range(KEPT_MAX + 2):
        late.add("end", "cdcflow", "ended", str(number))
    assert [note["reason"] for note in notes] == [str(number) for number in range(2, KEPT_MAX + 2)]


def test_unreadable_notes_count_as_absent(tmp_path: Path) -> None:
    """The notes are not state of the log: a process that cannot read them continues without them."""
    state_files.write_late(tmp_path, [{"op": "stop"}])
    assert state_files.of_late(tmp_path) == []
    whole = {"op": "stop", "asked_by": "a", "at_us": 1, "details": {}, "outcome": "stopping", "reason": None}
    state_files.write_late(tmp_path, [whole])
    assert state_files.of_late(tmp_path) == [whole]
    state_files.write_late(tmp_path, [])
    assert not (tmp_path / "late.json").exists()
