"""A capture that is given other settings: applied at a cut, applied in place, or abandoned for the previous ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.support.capture.small_source import ITEMS, ORDERS, Small

from cdcflow.capture import attempt as attempts
from cdcflow.capture.attempt import LoopIntervals, Orders
from cdcflow.capture.capture import Capture
from cdcflow.capture.governor import Governor
from cdcflow.capture.interleave.limits import Limits
from cdcflow.capture.interleave.machine import Interleave
from cdcflow.capture.settings import CaptureSettings
from cdcflow.errors import CdcflowError, ConfigurationError, HistoryLost, SourceUnavailable
from cdcflow.log.maintenance.day_ledger import FileLedger
from cdcflow.model.source_load import LoadLimits, ReadingLimits
from cdcflow.sinks.memory import Memory, MemoryLog


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempts, "IDLE_WAIT_S", 0.001)


class Stage:
    """A capture whose first settings open `first`. `change` gives it others, which open `second`."""

    def __init__(self, first: Any, second: Any) -> None:
        self.memory = Memory()
        self.first, self.second = first, second
        self.opened: list[str] = []
        self.told: list[tuple[str, dict[str, object]]] = []
        self.old = self.settings("first")
        self.capture = self.governed(None)

    def governed(self, governor: Governor | None) -> Capture:
        return Capture(
            open_source=self.old.open_source,
            open_log=self.old.open_log,
            limits=self.old.limits,
            orders=Orders(),
            pace=self.old.pace,
            on_event=lambda event, fields: self.told.append((event, dict(fields))),
            governor=governor,
        )

    def settings(self, which: str) -> CaptureSettings:
        def open_source() -> Any:
            self.opened.append(which)
            found = getattr(self, which)
            if isinstance(found, Exception):
                raise found
            return found

        opening: Any = open_source
        return CaptureSettings(
            opening, lambda _, __: MemoryLog(self.memory), Limits(), LoopIntervals(heartbeat_s=1e9, tables_look_s=1e9)
        )

    def change(self, **limits: Any) -> None:
        changed = replace(self.settings("second"), limits=replace(Limits(), **limits))
        self.number = self.capture.reload(changed, in_place=bool(limits))

    @property
    def state(self) -> Any:
        return self.capture.status()["settings"]

    def events(self) -> list[str]:
        return [event for event, _ in self.told]


def once(*acts: Callable[[], object]) -> Callable[[], None]:
    """One after another, one at each call."""
    left = iter(acts)

    def act() -> None:
        for one in left:
            one()
            return

    return act


def test_other_settings_are_applied_at_a_cut_in_the_same_process() -> None:
    """No interruption, no pause: the next attempt begins after the last cut, with the other tables."""
    first, second = Small(ORDERS), Small(ITEMS, ORDERS)
    stage = Stage(first, second)
    first.on_poll = once(stage.change)
    second.on_poll = once(stage.capture.stop)
    stage.capture.run()
    assert stage.opened == ["first", "second"]
    assert stage.state == {"number": 2, "given": 2}
    assert ("settings taken up", {"number": 2}) in stage.told
    assert "capture interrupted" not in stage.events()
    assert stage.events().count("capture stopped") == 2, "each attempt ended at a cut"


@pytest.mark.parametrize(
    "error",
    [ConfigurationError("no such table", remedy="mend it"), HistoryLost("gone"), SourceUnavailable("no answer")],
)
def test_settings_that_cannot_be_captured_with_are_abandoned(error: CdcflowError) -> None:
    """A running capture must not end because of a typing mistake: it continues with its old settings and reports
    why."""
    first = Small(ORDERS)
    stage = Stage(first, error)
    first.on_poll = once(stage.change, stage.capture.stop)
    stage.capture.run()
    assert stage.opened == ["first", "second", "first"]
    assert (stage.state["number"], stage.state["given"]) == (1, 2)
    assert stage.state["refused"]["reason"] == str(error).split("\n")[0]
    assert stage.state["refused"].get("remedy") == getattr(error, "remedy", None)
    assert "settings given up" in stage.events()
    assert "capture interrupted" not in stage.events()


def test_the_last_of_several_counts_and_those_that_captured_are_gone_back_to() -> None:
    """Two changes arrived before the first was applied: there was no capture with the settings in between."""
    first = Small(ORDERS)
    stage = Stage(first, ConfigurationError("no such table"))

    def twice() -> None:
        stage.change()
        stage.change()

    first.on_poll = once(twice, stage.capture.stop)
    stage.capture.run()
    assert stage.opened == ["first", "second", "first"]
    assert (stage.state["number"], stage.state["given"], stage.state["refused"]["number"]) == (1, 3, 3)


def test_settings_given_while_others_are_tried_keep_their_number() -> None:
    """An operator who waits for the third must not read that it is in use when it is the second."""
    first, second = Small(ORDERS), Small(ITEMS, ORDERS)
    stage = Stage(first, second)
    numbers: list[int] = []
    first.on_poll = once(stage.change)
    second.on_opening = once(stage.change, lambda: None)
    second.on_poll = once(stage.capture.stop)
    real = stage.capture._settings.keep

    def keep() -> bool:
        kept = real()
        numbers.append(stage.state["number"])
        return kept

    stage.capture._settings.keep = keep  # type: ignore[method-assign]
    stage.capture.run()
    assert numbers == [1, 2, 3]


def test_limits_are_applied_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is reopened, and the machine continues with them."""
    first = Small(ORDERS)
    stage = Stage(first, AssertionError("opened"))
    used: list[Limits] = []
    monkeypatch.setattr(Interleave, "use", lambda machine, limits: used.append(limits))
    first.on_poll = once(lambda: stage.change(rows_per_second_max=7), lambda: None, stage.capture.stop)
    stage.capture.run()
    assert stage.opened == ["first"]
    assert [limits.rows_per_second_max for limits in used] == [7]
    assert stage.state == {"number": 2, "given": 2}


def test_a_source_that_is_waited_for_is_tried_with_other_settings_at_once() -> None:
    """An operator who corrects source.url must not wait for the end of a pause; the settings are not reverted."""
    stage = Stage(SourceUnavailable("no answer"), Small(ORDERS))
    source = stage.second
    source.on_poll = once(stage.capture.stop)
    real, waits = stage.capture._wait, []

    def wait(seconds: float) -> None:
        waits.append(seconds)
        stage.change()
        real(1e6)  # ends at once, or never

    stage.capture._wait = wait  # type: ignore[method-assign]
    stage.capture.run()
    assert stage.opened == ["first", "second"]
    assert len(waits) == 1
    assert stage.state == {"number": 2, "given": 2}


def test_new_address_that_does_not_answer_either_is_waited_for() -> None:
    """The old address did not answer before: returning to it would undo the operator's correction."""
    stage = Stage(SourceUnavailable("old"), SourceUnavailable("new"))
    acts = once(stage.change, stage.capture.stop)
    stage.capture._wait = lambda seconds: acts()  # type: ignore[method-assign]
    stage.capture.run()
    assert stage.opened == ["first", "second", "second"]
    assert ("stopped while it was interrupted", {"kind": "SourceUnavailable", "reason": "new"}) in stage.told
    assert "settings given up" not in stage.events()


def test_stop_counts_more_than_other_settings() -> None:
    """Both at once: it ends at the cut, and the next start has the file anyway."""
    first = Small(ORDERS)
    stage = Stage(first, AssertionError("opened"))

    def both() -> None:
        stage.change()
        stage.capture.stop()

    first.on_poll = once(both)
    stage.capture.run()
    assert stage.opened == ["first"]


def test_limits_on_reading_apply_to_the_first_attempt(tmp_path: Path) -> None:
    """Not only once other settings came: a daemon must not read a busy source after its start."""
    stage = Stage(Small(ORDERS), Small(ORDERS))
    source = stage.first
    governor = Governor(ReadingLimits(LoadLimits(replica_lag=10.0)), None, FileLedger(tmp_path), lambda *_: None)
    states: list[str] = []

    def note() -> None:
        tables: Any = stage.capture.status()["tables"]
        states.append(tables.get("public.orders", {}).get("state", "new"))
        if len(states) == 20:
            stage.capture.stop()

    source.on_poll = note
    stage.capture = stage.governed(governor)
    stage.capture.run()
    assert governor.limits.load.replica_lag == 10.0
    assert "done" not in states, "a table was read although the lag is unknown"
    assert not [event for event in stage.events() if event.endswith("chunk read")], "nor was a first chunk"
