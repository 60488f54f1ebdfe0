"""What the daemon does with its merge process, shown with small programs in its place."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.support.polling import wait_until

from cdcflow.config import Config
from cdcflow.daemon import merge_component, supervisor
from cdcflow.daemon.merge_child import MergeLoop
from cdcflow.daemon.merge_component import MergeComponent
from cdcflow.daemon.merge_process import with_short_upkeep
from cdcflow.daemon.supervised_process import Reports
from cdcflow.errors import SinkUnavailable
from cdcflow.log.maintenance import state_files

LIBRARY = """
import json, os, sys, time
os.set_blocking(0, True)
settings = json.loads(sys.stdin.readline())
def send(**fields):
    print(json.dumps(fields), flush=True)
"""
NEWS = """
send(state="idle")
for line in sys.stdin:
    send(state="merging")
    send(state="idle", merged={"cut": 7}, event=f"got {line.strip()}", fields={})
"""
READY = """
send(state="idle", merged={"cut": 1})
send(ready=True)
for line in sys.stdin:
    send(state="merging")
    send(state="idle", merged={"cut": 2})
    send(ready=True)
"""
EATS = """
send(state="merging", table="shop.orders")
held = []
while True:
    held.append(bytearray(b"x") * (8 << 20))
    time.sleep(0.01)
"""
SILENT = """
send(state="idle")
time.sleep(600)
"""
STUCK = """
send(state="merging", table="shop.orders")
while True:
    send(beat=True)
    time.sleep(0.05)
"""
FAILS = """
send(state="merging")
send(failure={"kind": "ConfigurationError", "reason": "no room in the lake", "remedy": "make room"})
sys.exit(78)
"""
BUSY = """
import uuid
for number in range(20):
    send(failure={"kind": "SinkUnavailable", "remedy": None,
                  "reason": f"writing s3a://lake/x/_probe_{uuid.uuid4()}: another merge did {number} s ago"})
send(failure={"kind": "SinkUnavailable", "reason": "no answer", "remedy": None})
while True:
    send(beat=True)
    time.sleep(0.05)
"""
FAILS_LATER = """
send(failure={"kind": "SinkUnavailable", "reason": "another merge works", "remedy": None})
send(merged={"cut": 7})
sys.exit(1)
"""
GARBLED = """
print("not an object", flush=True)
time.sleep(600)
"""
UNWILLING = """
import signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
send(state="merging")
while True:
    send(beat=True)
    time.sleep(0.05)
"""


class Daemon:
    """The merge component of a daemon, with a program in place of the merge process."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.events: list[tuple[str, Mapping[str, object]]] = []
        self.asked_to_seal = 0
        self.component = MergeComponent(lambda event, fields: self.events.append((event, fields)), self._seal_soon)
        self._running: Any = None

    def has_asked(self, times: int) -> bool:
        return self.asked_to_seal == times

    def _seal_soon(self) -> None:
        self.asked_to_seal += 1

    def config(self, **merge: object) -> Config:
        source = {"kind": "postgres", "url": "postgresql://reader@127.0.0.1:1/none"}
        settings = {"every": "10ms", "warehouse": str(self.folder.parent / f"{self.folder.name}-lake"), **merge}
        return Config.model_validate({"source": source, "log": {"path": str(self.folder)}, "merge": settings})

    def start(self, **merge: object) -> None:
        self._running = self.component.prepare(self.config(**merge))
        self._running.begin()

    def end(self) -> None:
        if self._running is not None:
            self._running.end(wait=True)

    def wait_until(self, wished: Callable[[dict[str, Any]], object], what: str) -> dict[str, Any]:
        def status() -> dict[str, Any] | None:
            found = self.component.status()
            return found if found is not None and wished(found) else None

        return wait_until(status, what, more=self.component.status)


@pytest.fixture
def daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Daemon]:
    monkeypatch.setattr(supervisor, "POLL_EVERY_S", 0.02)
    monkeypatch.setattr(supervisor, "STOP_WITHIN_S", 0.5)
    monkeypatch.setattr(supervisor, "PATIENCE_MIN_S", 0.1)
    made = Daemon(tmp_path)
    yield made
    made.end()


def run_instead(monkeypatch: pytest.MonkeyPatch, program: str) -> None:
    monkeypatch.setattr(merge_component, "COMMAND", (sys.executable, "-c", LIBRARY + program))


def test_merge_process_gets_a_line_for_each_new_segment(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    """A poll would add half of its interval to the age of every row."""
    run_instead(monkeypatch, NEWS)
    daemon.start()
    daemon.wait_until(lambda s: s["state"] == "idle", "an idle process")
    daemon.component.notify()
    wait_until(lambda: ("got news", {}) in daemon.events, "the news")
    wait_until(lambda: ("tables are merged", {"cut": 7, "every": 0.01}) in daemon.events, "the first merge")
    daemon.component.notify()
    wait_until(lambda: daemon.events.count(("got news", {})) == 2, "the second news")


def test_capture_gets_one_request_for_a_segment_each_time_a_merge_waits(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise rows wait until the journal is old enough, and then for the merge; asked more often, the log would
    consist of tiny segments."""
    run_instead(monkeypatch, READY)
    daemon.start()
    for count in (1, 2, 3):
        wait_until(partial(daemon.has_asked, count), f"request {count}")
        daemon.component.notify()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux reports memory this way")
def test_process_that_eats_memory_is_ended(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bound is on what it has, and each try gets the same one."""
    run_instead(monkeypatch, EATS)
    daemon.start(memory_max="128MiB")
    found = daemon.wait_until(lambda s: s["ends"]["memory"] >= 1, "its end")
    assert found["failing"]["cause"] == "memory"
    assert "may have 134 MB" in found["failing"]["reason"]
    assert state_files.of_merge(daemon.folder) is not None
    daemon.wait_until(lambda s: s["ends"]["memory"] >= 2, "the end of the next one")


def test_silent_process_is_ended(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was stopped, or waits for memory: nothing it could report by itself."""
    run_instead(monkeypatch, SILENT)
    daemon.start(progress_timeout="300ms")
    assert daemon.wait_until(lambda s: s["ends"]["silent"], "its end")["failing"]["cause"] == "silent"


def test_stuck_merge_is_ended_and_the_next_try_gets_twice_the_time(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A table that takes longer than the limit would otherwise never be merged."""
    run_instead(monkeypatch, STUCK)
    daemon.start(progress_timeout="300ms")
    found = daemon.wait_until(lambda s: s["ends"]["stuck"], "its end")
    assert "(shop.orders)" in found["failing"]["reason"]
    assert found["progress_timeout_seconds"] == 0.6


def test_failing_process_is_replaced_after_growing_pauses(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reason that stays is one event, and the pauses keep a broken warehouse from using the processor."""
    run_instead(monkeypatch, FAILS)
    daemon.start()
    found = daemon.wait_until(lambda s: s["ends"]["failed"] >= 2, "two failures")
    assert (found["failing"]["reason"], found["failing"]["remedy"]) == ("no room in the lake", "make room")
    pauses = [fields["next_in_seconds"] for event, fields in daemon.events if event == "merge process ended"]
    assert pauses[:2] == [1, 2]
    assert sum(event == "merge failed" for event, _ in daemon.events) == 1


def test_short_time_for_progress_ends_no_healthy_process(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would be ended before its second beat, again and again, and nothing would ever be merged."""
    monkeypatch.setattr(supervisor, "PATIENCE_MIN_S", 15.0)
    run_instead(monkeypatch, STUCK.replace("0.05", "0.2"))
    daemon.start(progress_timeout="50ms")
    daemon.wait_until(lambda s: s["state"] == "merging", "a merge")
    time.sleep(1)
    assert not any(daemon.wait_until(lambda s: s, "a status")["ends"].values())


def test_reason_that_differs_by_its_numbers_is_one_event(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    """Random names and ages are in many reasons: a warehouse that is busy would fill the daemon's output."""
    run_instead(monkeypatch, BUSY)
    daemon.start()
    daemon.wait_until(lambda s: (s["failing"] or {}).get("reason") == "no answer", "the last failure")
    assert [event for event, _ in daemon.events].count("merge failed") == 2


def test_failure_that_is_over_is_no_reason_for_a_later_end(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    run_instead(monkeypatch, FAILS_LATER)
    daemon.start()
    failing = daemon.wait_until(lambda s: any(s["ends"].values()), "its end")["failing"]
    assert failing["cause"] == "killed"
    assert "exit code 1" in failing["reason"]


def test_process_that_sends_anything_else_is_replaced(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault in what it sends must not end the thread that would start the next one."""
    run_instead(monkeypatch, GARBLED)
    daemon.start()
    assert "JSONDecodeError" in daemon.wait_until(lambda s: s["ends"]["killed"], "its end")["failing"]["reason"]


def test_merge_that_does_not_reach_a_commit_in_time_is_abandoned(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The daemon itself has ten seconds to stop; the next merge finishes what this one began."""
    run_instead(monkeypatch, UNWILLING)
    daemon.start()
    daemon.wait_until(lambda s: s["state"] == "merging", "a merge")
    daemon.end()
    assert daemon.component.status() is None
    assert not any(thread.name == "merge" for thread in threading.enumerate())


@pytest.mark.parametrize(("every", "budget", "expected"), [("10ms", "60s", 0.5), ("2s", "60s", 2), ("2s", "1s", 1)])
def test_maintenance_between_two_merges_is_short(every: str, budget: str, expected: float, tmp_path: Path) -> None:
    """All tables are due at the same time: together they took seconds in which no reader got anything new."""
    settings = Daemon(tmp_path).config(every=every, upkeep={"budget": budget})
    short = with_short_upkeep(settings)
    assert short.merge.upkeep.budget == expected
    assert short.model_copy(update={"merge": settings.merge}) == settings


def _has(merges: list[int], count: int) -> bool:
    return len(merges) >= count


def _has_reported(file: Path, name: str, times: int) -> bool:
    """Whether this number of lines to the daemon has a field."""
    return sum(name in json.loads(line) for line in file.read_text().splitlines()) == times


def test_merge_begins_when_there_is_news(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without news a merge is due after half a minute; with news once the interval has passed. News that arrived during
    a merge needs no further segment; a merge that waits requests one once."""
    monkeypatch.setattr("cdcflow.daemon.merge_child.IDLE_MAX_S", 3600.0)
    monkeypatch.setattr("cdcflow.daemon.merge_process.has_log", lambda _: True)
    merges: list[int] = []

    class Report:
        cut, seconds, tables = 1, 0.0, ()

    def merge() -> Report:
        merges.append(1)
        if len(merges) == 2:
            news.set()  # it is of a segment that this merge may have missed
        if len(merges) == 5:
            raise SinkUnavailable("no room")
        return Report()

    monkeypatch.setattr("cdcflow.daemon.merge_process.prepare_merge", lambda *_, **__: merge)
    stop, news = threading.Event(), threading.Event()
    reports = tmp_path / "reports"
    with reports.open("wb") as file:
        loop = MergeLoop(Daemon(tmp_path).config(), Reports(file), stop, news)
        running = threading.Thread(target=loop.run)
        running.start()
        # The second one is followed by the third at once, and the fifth, which fails, by another try.
        for asked, count in enumerate((1, 3, 4, 6), 1):
            wait_until(partial(_has_reported, reports, "ready", asked), f"request {asked}")
            assert len(merges) == count
            news.set()
        wait_until(partial(_has, merges, 7), "the last merge")
        stop.set()
        running.join()
    assert _has_reported(reports, "failure", 1)


@pytest.mark.parametrize(("every", "expected"), [("10ms", "during the merge"), ("1h", "not before the interval")])
def test_segment_is_requested_when_the_tables_are_done(
    every: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sealing takes as long as publishing the cut does, so both happen at once; once for each merge."""
    monkeypatch.setattr("cdcflow.daemon.merge_process.has_log", lambda _: True)
    stop, reports = threading.Event(), tmp_path / "reports"

    class Report:
        cut, seconds, tables = 1, 0.0, ()

    def prepare(*_: object, tables_done: Callable[[], None], **__: object) -> Callable[[], Report]:
        def merge() -> Report:
            time.sleep(0.02)
            tables_done()
            tables_done()
            return Report()

        return merge

    monkeypatch.setattr("cdcflow.daemon.merge_process.prepare_merge", prepare)
    with reports.open("wb") as file:
        loop = MergeLoop(Daemon(tmp_path).config(every=every), Reports(file), stop, threading.Event())
        running = threading.Thread(target=loop.run)
        running.start()
        wait_until(partial(_has_reported, reports, "merged", 1), "a merge")
        stop.set()
        running.join()
    lines = [json.loads(line) for line in reports.read_text().splitlines()]
    assert [next(iter(line)) for line in lines].count("ready") == (1 if expected == "during the merge" else 0)
    if expected == "during the merge":
        assert lines.index({"ready": True}) < next(n for n, line in enumerate(lines) if "merged" in line)
