"""Commands on their way to the capture's loop, and their answers on the way back.

A command is answered twice: once when the machine has carried it out, and once when the cut with its record is durable.
The caller waits some seconds for the second: what a crash could still undo is not reported as done.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from queue import SimpleQueue

from cdcflow.capture.interleave.messages import Answered, Command, Input, Order


@dataclass(slots=True)
class _Waiting:
    kept: threading.Event = field(default_factory=threading.Event)
    answer: Answered | None = None


class Commands:
    """Passes commands to the loop, which takes them from `queue`. Thread-safe."""

    def __init__(self) -> None:
        self.queue: SimpleQueue[Input] = SimpleQueue()
        self._ids = itertools.count(1)
        self._waiting: dict[int, _Waiting] = {}

    def new(self, op: str, asked_by: str, orders: tuple[Order, ...], details: Mapping[str, object]) -> Command:
        """Create a command whose caller will wait for the answer."""
        command = Command(next(self._ids), op, asked_by, int(time.time() * 1e6), orders, details)
        self._waiting[command.id] = _Waiting()
        return command

    def wait(self, command: Command, seconds: float) -> tuple[Answered | None, bool]:
        """Wait for the answer. Return the answer (None if the loop has not carried out the command) and whether its
        record is durable."""
        waiting = self._waiting[command.id]
        kept = waiting.kept.wait(seconds) and waiting.answer is not None
        del self._waiting[command.id]
        return waiting.answer, kept

    def refuse(self, command: Command) -> None:
        """End the wait of a command's caller, because the loop will not take the command."""
        if (waiting := self._waiting.get(command.id)) is not None:
            waiting.kept.set()

    def answer(self, answer: Answered, durable: bool) -> None:
        """Pass the loop's answer to the caller that waits for it, if a caller still waits. See
        `log_writes.OnAnswer`."""
        waiting = self._waiting.get(answer.id)
        if waiting is None:
            return
        waiting.answer = answer
        if durable:
            waiting.kept.set()
