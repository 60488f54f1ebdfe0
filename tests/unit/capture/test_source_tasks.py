"""SourceTasks: the work at the source that the machine requests, next to the stream, and the order of that work and its
answers."""

from __future__ import annotations

from contextlib import closing
from queue import SimpleQueue

import pytest
from tests.support.polling import PATIENCE_S

from cdcflow.capture.interleave.messages import (
    Chunk,
    ChunkFailed,
    ChunkRead,
    Input,
    MarkWritten,
    Planned,
    PlanTable,
    ReadChunk,
    Visibility,
    WriteMark,
)
from cdcflow.capture.source_tasks import SourceTask, SourceTasks
from cdcflow.errors import SourceUnavailable
from cdcflow.model.change import KeySet
from cdcflow.model.position import Token
from cdcflow.model.table import Table, TableId
from cdcflow.sources.postgres.xid_snapshot import XidSnapshot

LOW = Token("1/1/low")


class Recording:
    """Implements `cdcflow.ports.ChunkSource`: notes what is done, in order."""

    def __init__(self, *, refuses_marks: bool = False) -> None:
        self.done: list[str] = []
        self._refuses_marks = refuses_marks

    def plan(self, table: TableId, generation: int) -> Planned:
        self.done.append(f"plan {table.name} {generation}")
        return Planned(table, generation, "plan", 1, 1, Table(table, 1, (), ()))

    def write_mark(self, token: Token) -> None:
        if self._refuses_marks:
            raise SourceUnavailable("the connection was reset")
        self.done.append(f"write {token}")

    def read_chunk(self, chunk: Chunk) -> ChunkRead:
        self.done.append(f"read {chunk.table.name}")
        return ChunkRead(chunk, None, None, ())

    def heartbeat(self) -> None:
        self.done.append("heartbeat")

    def keys_where(self, table: TableId, predicate: str, keys_max: int) -> KeySet:
        raise AssertionError("these tests request no rows")

    def snapshot(self) -> Visibility:
        return XidSnapshot(1, 1)

    def close(self) -> None:
        pass


def chunk_of(name: str) -> Chunk:
    return Chunk(TableId("public", name), 1, 1, "plan", None, size=10, low=LOW)


def answers_of(source: Recording, task: SourceTask, count: int) -> list[Input]:
    """The first answers to one task."""
    waker: SimpleQueue[None] = SimpleQueue()
    with closing(SourceTasks(source, 4, lambda: waker.put(None))) as tasks:
        tasks.send(task)
        answers: list[Input] = []
        while len(answers) < count:
            waker.get(timeout=PATIENCE_S)
            answers += tasks.answers()
        return answers


def test_chunks_are_read_once_their_mark_is_written_and_answered_after_it() -> None:
    """W01: a snapshot from before its low mark could miss a change that is held nowhere."""
    source = Recording()
    names = ["items", "orders", "people"]
    answers = answers_of(source, WriteMark(LOW, tuple(ReadChunk(chunk_of(name)) for name in names)), 4)
    assert source.done[0] == f"write {LOW}"
    assert sorted(source.done[1:]) == [f"read {name}" for name in names]
    assert answers[0] == MarkWritten(LOW)
    assert sorted(a.chunk.table.name for a in answers[1:] if isinstance(a, ChunkRead)) == names


def test_nothing_is_read_for_a_mark_that_could_not_be_written() -> None:
    """It would be unknown which changes the rows follow."""
    source = Recording(refuses_marks=True)
    answers = answers_of(source, WriteMark(LOW, (ReadChunk(chunk_of("orders")),)), 1)
    assert answers == [ChunkFailed(None, "the connection was reset", retry=True)]
    assert source.done == []


@pytest.mark.parametrize(("keys_only", "begun"), [(False, 3), (True, 0)])
def test_plan_for_keys_begins_no_generation_at_the_source(keys_only: bool, begun: int) -> None:
    """Its rows stay those of the version at which the whole table was read; the machine knows its own number."""
    source = Recording()
    (planned,) = answers_of(source, PlanTable(TableId("public", "orders"), 3, keys_only), 1)
    assert isinstance(planned, Planned)
    assert (source.done, planned.generation) == ([f"plan orders {begun}"], 3)
