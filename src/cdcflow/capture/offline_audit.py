"""Records of what happened while no log was open: commands that were refused or carried out, and exits.

    paused, or waiting to try again ──▶ noted, in memory and in a file ──▶ the next attempt passes them to its log
                                                                            └─ durable: the note is deleted

A record belongs to a cut, and a cut needs the log's next number, which only its one writer may assign. So no record is
written before an attempt has the log, in this process or in the next one. A crash after a record is durable and before
its note is deleted leaves both; a record that the log already has is not written again.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from queue import SimpleQueue
from typing import Any

from cdcflow.capture.interleave.messages import Command, Input, Late, Outcome, OutcomeKind
from cdcflow.capture.interleave.progress import CommandRecord

KEPT_MAX = 20
"""How many notes are kept, the latest ones: a daemon that a service manager restarts over and over must not fill a log
with its exits."""

Load = Callable[[], Sequence[Mapping[str, Any]]]
Store = Callable[[Sequence[Mapping[str, Any]]], None]


class LateTraces:
    """Notes what happened while no log was open, until a log records it. Used by the capture's thread and by callers
    that give commands.

    `load` and `store` keep the notes outside the process; they must not raise.
    """

    def __init__(self, load: Load = lambda: (), store: Store = lambda notes: None) -> None:
        self._load = load
        self._store = store
        self._lock = threading.Lock()
        self._ids = itertools.count(-1, -1)  # no caller waits for them
        self._commands: list[Command] | None = None

    def begin(self, known: Sequence[CommandRecord]) -> None:
        """Load the notes of earlier processes, except those that the log already has as records."""
        there = {(one.at_us, one.op, one.asked_by) for one in known}
        with self._lock:
            self._commands = [one for one in self._load_commands() if (one.at_us, one.op, one.asked_by) not in there]

    def add(self, op: str, asked_by: str, outcome: OutcomeKind, reason: str | None, tables: Sequence[str] = ()) -> None:
        """Note something that has just happened. `tables`: the tables that the command named; no row values."""
        details = {"tables": ", ".join(tables)} if tables else {}
        told = Late(Outcome(None, outcome, reason))
        with self._lock:
            command = Command(next(self._ids), op, asked_by, int(time.time() * 1e6), (told,), details)
            self._keep([*self._load_commands(), command][-KEPT_MAX:])

    def give(self, requests: SimpleQueue[Input]) -> None:
        """Queue the notes in `requests`, before the other inputs of an attempt.

        Notes that the previous attempt took but did not make durable are queued again. Notes that are still in
        `requests` are not queued twice.
        """
        with self._lock:
            late = self._load_commands()
        others = [requests.get() for _ in range(requests.qsize())]
        for given in (*late, *(one for one in others if not (isinstance(one, Command) and one.id < 0))):
            requests.put(given)

    def record_written(self, number: int) -> None:
        """Delete the note with this id, because its record is durable in the log. Other commands have positive ids and
        no note."""
        if number < 0:
            with self._lock:
                self._keep([one for one in self._load_commands() if one.id != number])

    def _load_commands(self) -> list[Command]:
        if self._commands is None:
            self._commands = [_command(next(self._ids), note) for note in self._load()]
        return self._commands

    def _keep(self, commands: list[Command]) -> None:
        self._commands = commands
        self._store([_note(one) for one in commands])


def _note(command: Command) -> dict[str, Any]:
    (late,) = command.orders
    assert isinstance(late, Late)  # noqa: S101 - created by `add` or `_command`
    return {
        "op": command.op,
        "asked_by": command.asked_by,
        "at_us": command.at_us,
        "details": dict(command.details),
        "outcome": late.outcome.outcome,
        "reason": late.outcome.reason,
    }


def _command(number: int, note: Mapping[str, Any]) -> Command:
    told = Late(Outcome(None, note["outcome"], note["reason"]))
    return Command(number, note["op"], note["asked_by"], note["at_us"], (told,), note["details"])
