"""The control table as an interface: what happens to its rows."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import pytest
from tests.support.polling import wait_for

from cdcflow.capture.ports.control import ControlRow
from cdcflow.config import load
from cdcflow.daemon.interfaces.control_table import TableDoor
from cdcflow.errors import CdcflowError, ConfigurationError, SourceUnavailable


class Rows:
    """A control table as a list."""

    def __init__(self, *rows: tuple[str, str | None]) -> None:
        self.rows = [ControlRow(n, op, arguments, "ann") for n, (op, arguments) in enumerate(rows, 1)]
        self.states: dict[int, str] = {row.number: "new" for row in self.rows}
        self.answers: dict[int, Any] = {}
        self.failing: list[CdcflowError] = []
        self.closed = False

    def check(self) -> None:
        raise AssertionError("doctor requests it")

    def waiting(self) -> Sequence[ControlRow]:
        return [row for row in self.rows if self.states[row.number] == "new"]

    def claimed(self) -> Sequence[int]:
        return [number for number, state in self.states.items() if state == "claimed"]

    def claim(self, number: int) -> bool:
        is_new, self.states[number] = self.states[number] == "new", "claimed"
        return is_new

    def answer(self, number: int, state: Literal["done", "refused"], text: str) -> None:
        if self.failing:
            raise self.failing.pop()
        self.states[number], self.answers[number] = state, text

    def close(self) -> None:
        self.closed = True


class Asked:
    """A daemon that records the requests it gets, and who sent them."""

    def __init__(self) -> None:
        self.requests: list[tuple[dict[str, Any], str]] = []
        self.told: list[tuple[str, dict[str, object]]] = []
        self.heard = threading.Event()

    def answer(self, request: Mapping[str, Any], asked_by: str) -> object:
        self.requests.append((dict(request), asked_by))
        match request["op"]:
            case "status":
                return {"state": "capturing"}
            case "cancel":
                raise ConfigurationError("table public.x is not captured", remedy="name another")
            case "break":
                raise KeyError("secret")
            case "stop":
                return {"op": "stop", "capture": {"outcome": "stopping"}, "tables": {}}
        outcome = "paused" if request.get("tables") else "nothing to do"
        return {"op": request["op"], "tables": {"public.orders": {"outcome": outcome}}}

    def tell(self, event: str, fields: Mapping[str, object]) -> None:
        self.told.append((event, dict(fields)))
        self.heard.set()


def door(rows: Rows, asked: Asked) -> TableDoor:
    return TableDoor(rows, asked.answer, 3600.0, asked.tell)


def test_rows_are_executed_in_order_and_answered_in_place() -> None:
    """Each as the request that another interface would send, with the name of the user who inserted it."""
    rows, asked = Rows(("pause", '{"tables": ["public.orders"]}'), ("status", None), ("stop", "")), Asked()
    door(rows, asked).look()
    assert [request for request, _ in asked.requests] == [
        {"op": "pause", "tables": ["public.orders"]},
        {"op": "status"},
        {"op": "stop"},
    ]
    assert {by for _, by in asked.requests} == {"control table, ann"}
    assert rows.states == {1: "done", 2: "done", 3: "done"}
    assert json.loads(rows.answers[1])["tables"] == {"public.orders": {"outcome": "paused"}}


@pytest.mark.parametrize(
    ("operation", "arguments", "said"),
    [
        ("pause", "{}", "nothing to do"),
        ("cancel", None, "public.x is not captured\n  name another"),
        ("pause", "[1]", "arguments is not a JSON object"),
        ("pause", "{", "arguments is not a JSON object"),
        ("pause", '{"op": "stop"}', "arguments is not a JSON object"),
        ("break", None, "the daemon could not answer: KeyError"),
    ],
)
def test_rows_that_change_nothing_are_refused_with_the_reason(operation: str, arguments: str | None, said: str) -> None:
    """A user who has only SQL reads the reason in the row; a fault's own text, which may hold values, is not in it
    (S03)."""
    rows, asked = Rows((operation, arguments), ("status", None)), Asked()
    door(rows, asked).look()
    assert rows.states == {1: "refused", 2: "done"}
    assert said in rows.answers[1]
    assert "secret" not in rows.answers[1]


def test_row_that_another_daemon_claimed_is_not_executed() -> None:
    """Two daemons read the same table for a short time."""
    rows, asked = Rows(("stop", None)), Asked()
    rows.claim = lambda number: False  # type: ignore[method-assign]
    door(rows, asked).look()
    assert (asked.requests, rows.answers) == ([], {})


def test_an_answer_that_could_not_be_written_is_written_later_and_the_order_is_not_repeated() -> None:
    """The connection to the server failed between the two."""
    rows, asked = Rows(("stop", None), ("status", None)), Asked()
    rows.failing = [SourceUnavailable("away")]
    opened = door(rows, asked)
    with pytest.raises(SourceUnavailable):
        opened.look()
    assert rows.states == {1: "claimed", 2: "new"}
    opened.look()
    assert rows.states == {1: "done", 2: "done"}
    assert [request["op"] for request, _ in asked.requests] == ["stop", "status"]


def test_rows_that_a_dead_process_left_claimed_are_reported_and_not_executed() -> None:
    """It is unknown whether they were executed; executing them again might be worse than not."""
    rows, asked = Rows(("stop", None)), Asked()
    rows.claim(1)
    opened = door(rows, asked)
    opened.look()
    opened.look()
    ((event, fields),) = asked.told
    assert (event, fields["ids"]) == ("control rows unanswered", [1])
    assert (asked.requests, rows.states) == ([], {1: "claimed"})


def test_missing_control_table_is_reported_once_and_checked_again() -> None:
    """The capture continues, and the statement that creates it is in the log."""
    rows, asked = Rows(("status", None)), Asked()
    waiting, missing = rows.waiting, [ConfigurationError("the table does not exist", remedy="run CREATE TABLE"), None]

    def looked_for() -> Sequence[ControlRow]:
        if (error := missing.pop(0) if missing else None) is not None:
            raise error
        return waiting()

    rows.waiting = looked_for  # type: ignore[method-assign]
    opened = TableDoor(rows, asked.answer, 0.001, asked.tell)
    opened.start()
    assert asked.heard.wait(30)
    wait_for(lambda: rows.states[1], lambda state: state == "done", "the first row to be done")
    opened.close()
    fields = {"kind": "ConfigurationError", "reason": "the table does not exist", "remedy": "run CREATE TABLE"}
    assert asked.told == [("control table not read", fields)]
    assert rows.closed


def test_read_only_source_accepts_no_control_table(tmp_path: Any) -> None:
    """A control table whose rows can never be answered is of no use."""
    path = tmp_path / "cdcflow.yaml"
    path.write_text(
        "source: {kind: mysql, url: 'mysql://a@b/', tables: [a.b], fence: read-only, control_table: c.d}\n"
        "log: {path: ./log}\n"
    )
    with pytest.raises(ConfigurationError, match="read-only it writes nothing"):
        load(path)
