"""The control table interface: rows inserted into it in the source are commands, and are answered in place.

Each row is claimed, executed like a command of the other interfaces (`cdcflow.http.operations`), and answered. It
works while the capture is paused, so that an operator who has only SQL can resume it.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Mapping
from typing import Any, Literal

from cdcflow.capture.ports.control import ControlRow, ControlTable
from cdcflow.daemon.interfaces.control_socket import Answer
from cdcflow.errors import CdcflowError, ConfigurationError

State = Literal["done", "refused"]
OnEvent = Callable[[str, Mapping[str, object]], None]


class TableDoor:
    """Polls the control table every `every_s` seconds until closed. While the source is unavailable, it waits."""

    def __init__(self, table: ControlTable, answer: Answer, every_s: float, on_event: OnEvent) -> None:
        self._table = table
        self._answer = answer
        self._every_s = every_s
        self._on_event = on_event
        self._closed = threading.Event()
        self._unwritten: dict[int, tuple[State, str]] = {}
        self._told: str | None = None
        self._has_looked = False
        self._thread = threading.Thread(target=self._serve, name="control-table", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Stop. An answer that is being written is finished, if the source accepts it."""
        self._closed.set()
        if self._thread.is_alive():
            self._thread.join(timeout=5)
        self._table.close()

    def _serve(self) -> None:
        while True:
            try:
                self.look()
                self._told = None
            except CdcflowError as error:
                self._tell(error)
            if self._closed.wait(self._every_s):
                return

    def look(self) -> None:
        """Execute and answer the waiting rows, in order.

        Raises:
            SourceUnavailable: the source does not answer; rows without an answer get it later.
            ConfigurationError: the table is missing, or may not be used; the message has the statements.
        """
        for number, (state, text) in list(self._unwritten.items()):
            self._table.answer(number, state, text)
            del self._unwritten[number]
        if not self._has_looked:
            self._tell_unanswered()
        for row in self._table.waiting():
            if self._closed.is_set():
                return
            if self._table.claim(row.number):
                self._unwritten[row.number] = self._execute(row)
                self._table.answer(row.number, *self._unwritten[row.number])
                del self._unwritten[row.number]

    def _tell_unanswered(self) -> None:
        """Report rows that an earlier process claimed and did not answer: it is unknown whether they were executed."""
        if left := self._table.claimed():
            remedy = "`cdcflow log commands` shows which were executed; insert the others again"
            self._on_event("control rows unanswered", {"ids": list(left), "remedy": remedy})
        self._has_looked = True

    def _execute(self, row: ControlRow) -> tuple[State, str]:
        try:
            answer = self._answer(request_of(row), f"control table, {row.asked_by}")
        except (CdcflowError, ValueError) as error:
            return "refused", str(error)
        except Exception as error:  # noqa: BLE001 - a broken answer must not end the thread; its text may hold values
            return "refused", f"the daemon could not answer: {type(error).__name__}"
        return ("done" if changed_something(answer) else "refused"), json.dumps(answer, default=str)

    def _tell(self, error: CdcflowError) -> None:
        text = str(error).split("\n")[0]
        if text != self._told:
            remedy = getattr(error, "remedy", None)
            fields = {"kind": type(error).__name__, "reason": text, **({"remedy": remedy} if remedy else {})}
            with contextlib.suppress(Exception):  # a broken terminal must not end the thread
                self._on_event("control table not read", fields)
        self._told = text


def request_of(row: ControlRow) -> dict[str, Any]:
    """Return a row as a request of the other interfaces."""
    try:
        arguments = json.loads(row.arguments) if row.arguments else {}
    except ValueError:
        arguments = None
    if not isinstance(arguments, dict) or "op" in arguments:
        raise ConfigurationError(
            f"operation {row.operation}: arguments is not a JSON object",
            remedy='write it so: {"tables": ["public.orders"]}; or leave it NULL',
        )
    return {"op": row.operation, **arguments}


def changed_something(answer: object) -> bool:
    """Whether a command's answer reports a change. Other answers (`status`) always count."""
    if not isinstance(answer, Mapping) or "op" not in answer:
        return True
    outcomes = [*answer.get("tables", {}).values(), *([answer["capture"]] if "capture" in answer else [])]
    return any(one["outcome"] not in ("nothing to do", "refused") for one in outcomes)
