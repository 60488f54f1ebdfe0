"""SourceTasks: what happens to an answer that is an error, and to the waiting tasks on close."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

import pytest

from cdcflow.capture.interleave.messages import (
    Chunk,
    ChunkFailed,
    Input,
    PlanTable,
    ReadChunk,
    SnapshotTaken,
    TakeSnapshot,
)
from cdcflow.capture.source_tasks import SourceTask, SourceTasks
from cdcflow.errors import ConfigurationError, InvariantViolated, RightMissing, SourceUnavailable
from cdcflow.model.position import Token
from cdcflow.model.table import TableId
from cdcflow.sources.postgres.xid_snapshot import XidSnapshot

ORDERS = TableId("public", "orders")
CHUNK = Chunk(ORDERS, 1, 1, "plan", None, size=10, low=Token("1/1/low"))


class Source:
    """Answers everything with one error, or with what is not one."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.error = error
        self.closed = threading.Event()

    def _answer(self, *_: object) -> Any:
        if self.error is not None:
            raise self.error
        return XidSnapshot(1, 1)

    plan = read_chunk = snapshot = _answer

    def close(self) -> None:
        self.closed.set()


class Stage:
    def __init__(self, error: BaseException | None = None, count: int = 1) -> None:
        self.source = Source(error)
        self.woken: SimpleQueue[None] = SimpleQueue()
        given: Any = self.source
        self.tasks = SourceTasks(given, count, lambda: self.woken.put(None))

    def answer(self) -> list[Input]:
        """The loop checks only when it is woken."""
        self.woken.get(timeout=30)
        return self.tasks.answers()


@pytest.mark.parametrize("error", [SourceUnavailable("gone"), RightMissing("no SELECT")])
@pytest.mark.parametrize(
    ("task", "table"), [(PlanTable(ORDERS, 1), ORDERS), (ReadChunk(CHUNK), ORDERS), (TakeSnapshot(), None)]
)
def test_temporary_failure_is_tried_again(error: Exception, task: SourceTask, table: TableId | None) -> None:
    """A window is cancelled and the capture continues; the machine learns which table it was."""
    stage = Stage(error)
    stage.tasks.send(task)
    assert stage.answer() == [ChunkFailed(table, str(error), retry=True)]
    assert stage.tasks.answers() == [], "each answer is given once"
    stage.tasks.close()


def test_a_table_that_cannot_be_read_fails_alone() -> None:
    """Trying again would not change it; the others are read on."""
    stage = Stage(ConfigurationError("no such type"))
    stage.tasks.send(ReadChunk(CHUNK))
    assert stage.answer() == [ChunkFailed(ORDERS, "no such type", retry=False)]
    stage.tasks.close()


def test_failed_backfill_names_what_reads_the_table_again() -> None:
    """The stream may raise its error as well, where a restart is enough; here only a setting helps."""
    remedy = "fix the rows, then start again"
    stage = Stage(ConfigurationError("bytes that are no text", remedy=remedy))
    stage.tasks.send(ReadChunk(CHUNK))
    (found,) = stage.answer()
    stage.tasks.close()
    assert isinstance(found, ChunkFailed)
    assert "run `cdcflow apply`" in found.reason
    assert f"`cdcflow backfill {ORDERS}`" in found.reason


@pytest.mark.parametrize("error", [ConfigurationError("of no table"), InvariantViolated("two at once"), KeyError("x")])
def test_an_error_that_is_no_table_s_ends_the_attempt(error: Exception) -> None:
    """It is raised where the loop looks for answers."""
    stage = Stage(error)
    stage.tasks.send(TakeSnapshot())
    with pytest.raises(type(error)):
        stage.answer()
    stage.tasks.close()


def test_several_answers_are_returned_in_the_order_they_were_given() -> None:
    """A mark's answer precedes those of the chunks after it."""
    stage = Stage()
    answers: list[Callable[[], Input | None]] = [
        lambda: SnapshotTaken(XidSnapshot(1, 2)),
        lambda: None,
        lambda: SnapshotTaken(XidSnapshot(3, 4)),
    ]
    for work in answers:
        stage.tasks.call(work)
    stage.woken.get(timeout=30)
    stage.woken.get(timeout=30)
    assert stage.tasks.answers() == [SnapshotTaken(XidSnapshot(1, 2)), SnapshotTaken(XidSnapshot(3, 4))]
    stage.tasks.close()
    assert stage.woken.empty(), "no input for the machine is no answer"


def test_closing_breaks_off_what_runs_and_begins_nothing_more() -> None:
    """A daemon that stops must not read the chunks that wait; and it waits until the last connection is released."""
    stage = Stage()
    running, ran = threading.Event(), []

    def waits() -> None:
        running.set()
        assert stage.source.closed.wait(30), "closing the source is what breaks it off"
        ran.append("first")

    stage.tasks.call(waits)
    stage.tasks.call(lambda: ran.append("second"))
    assert running.wait(30)
    stage.tasks.close()
    assert ran == ["first"]
