"""A capture in this process that gets commands: it runs alongside the test, over a small source and a log in memory."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from queue import Empty, SimpleQueue
from typing import Any

import pytest
from tests.support.capture.small_source import ITEMS, ORDERS, Small
from tests.support.polling import PATIENCE_S, wait_for

from cdcflow.capture import attempt as attempts
from cdcflow.capture import capture as captures
from cdcflow.capture.attempt import LoopIntervals, Orders
from cdcflow.capture.capture import Capture
from cdcflow.capture.interleave.limits import Limits
from cdcflow.capture.interleave.progress import Progress, commands_of
from cdcflow.capture.offline_audit import LateTraces
from cdcflow.sinks.memory import Memory, MemoryLog


class Closing(Small):
    """A source that remembers whether it was closed."""

    closed = False

    def close(self) -> None:
        self.closed = True


class Stage:
    """A capture that runs concurrently with the test, over a source created for each attempt and one log."""

    def __init__(self, memory: Memory | None = None, *, once: bool = False, notes: list[Any] | None = None) -> None:
        self.memory = memory or Memory()
        self.opened: SimpleQueue[Closing] = SimpleQueue()
        self.told: SimpleQueue[str] = SimpleQueue()
        self.down: list[Exception] = []
        self.failures: list[BaseException] = []
        self.answers: list[dict[str, object]] = []
        self.notes: list[Any] = notes if notes is not None else []
        self.capture = Capture(
            open_source=self._open_source,
            open_log=lambda *_: MemoryLog(self.memory),
            limits=Limits(rows_per_second_max=500),
            orders=Orders(once=once),
            pace=LoopIntervals(heartbeat_s=1e9, tables_look_s=1e9),
            on_event=lambda event, fields: self.told.put(event),
            newest_checkpoint=lambda: self.memory.checkpoint,
            late=LateTraces(lambda: list(self.notes), self._note),
        )
        self.thread = threading.Thread(target=self._run)

    def _note(self, notes: Any) -> None:
        self.notes[:] = notes
        self.told.put("noted")

    def _open_source(self) -> Any:
        if self.down:
            raise self.down.pop()
        source = Closing(ITEMS, ORDERS)
        self.opened.put(source)
        return source

    def _run(self) -> None:
        try:
            self.capture.run()
        except BaseException as error:  # noqa: BLE001 - checked by the test's thread
            self.failures.append(error)

    def until(self, event: str) -> None:
        while self.told.get(timeout=PATIENCE_S) != event:
            pass

    def until_done(self, name: str = "public.orders", behind: int = 0) -> None:
        """Wait until it is read and the log has it, and rows starting at this offset: the status reports it shortly
        before the checkpoint does, and no event has to report that."""

        def states() -> tuple[str | None, str | None, int]:
            return self.states().get(name), self.kept_states().get(name), self.memory.checkpoint.next_offset

        def are_done(states: tuple[str | None, str | None, int]) -> bool:
            if states[:2] == ("done", "done") and states[2] > behind:
                return True
            with contextlib.suppress(Empty):
                self.told.get(timeout=0.01)
            return False

        wait_for(states, are_done, f"{name} to be read, in the status and in the log", pause_max_s=0.0)

    def kept_states(self) -> dict[str, str]:
        progress = Progress.from_json(self.memory.checkpoint.progress)
        return {str(table): entry.state for table, entry in progress.tables.items()}

    def states(self) -> dict[str, str]:
        tables: Any = self.capture.status().get("tables", {})
        return {name: entry["state"] for name, entry in tables.items()}

    def commands(self) -> list[tuple[str, str, dict[str, str]]]:
        return [(c.asked_by, c.op, dict(c.outcomes)) for c in commands_of(self.memory.checkpoint.progress)]


@contextlib.contextmanager
def stages(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Stage]]:
    """Starts captures; they are stopped at the end."""
    monkeypatch.setattr(attempts, "IDLE_WAIT_S", 0.001)
    monkeypatch.setattr(captures, "PAUSED_LOOK_S", 3600.0)  # one that is not woken hangs
    monkeypatch.setattr(captures, "ANSWER_WAIT_S", 30.0)
    monkeypatch.setattr(Capture, "_wait", lambda self, seconds: None)
    made: list[Stage] = []

    def start(memory: Memory | None = None, *, once: bool = False, notes: list[Any] | None = None) -> Stage:
        made.append(Stage(memory, once=once, notes=notes))
        made[-1].thread.start()
        return made[-1]

    yield start
    for one in made:
        one.capture.stop()
        one.thread.join(30)
        assert not one.thread.is_alive()


def paused(stage: Callable[..., Stage]) -> Memory:
    """A log whose capture was paused by a process that has ended."""
    on = stage()
    on.until_done()
    on.capture.request("pause-capture")
    on.capture.stop()
    on.thread.join(30)
    return on.memory
