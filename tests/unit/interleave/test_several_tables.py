"""A window of several tables that abandons all of them: in the order of their names, each once; then the machine
continues."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from tests.simulation.transactions import Plain, Row, Shape, Transaction, position_of

from cdcflow.capture.interleave.limits import Limits
from cdcflow.capture.interleave.machine import Interleave
from cdcflow.capture.interleave.messages import (
    Append,
    ChunkFailed,
    ChunkRead,
    Committed,
    Effect,
    Event,
    Input,
    MarkSeen,
    MarkWritten,
    Planned,
    PlanTable,
    ReadChunk,
    Tick,
    WriteMark,
)
from cdcflow.errors import InvariantViolated
from cdcflow.model.position import Checkpoint, Epoch, Token
from cdcflow.model.table import TableId
from cdcflow.sources.postgres.xid_snapshot import XidSnapshot

TABLES = [TableId("public", name) for name in ("a", "b", "c", "d", "e", "f", "g", "h")]
SHAPE = Shape(("id", "a"))
ALL, NOT_7 = XidSnapshot(100, 100), XidSnapshot(7, 100, frozenset({7}))


class Reading:
    """A machine that reads eight tables in each window, advanced until their chunks are requested."""

    def __init__(self, *, held_bytes_max: int = 1 << 20) -> None:
        self.machine = Interleave(
            epoch=Epoch(1),
            checkpoint=Checkpoint(position=position_of(0)),
            tables=dict.fromkeys(TABLES, SHAPE),
            limits=Limits(chunks_per_window=len(TABLES), held_bytes_max=held_bytes_max),
            delivered=np.empty(0, np.uint64),
            partial={},
        )
        asked = [e.table for e in self.machine.step(Tick(0)) if isinstance(e, PlanTable)]
        assert asked == TABLES
        self._begun([e for t in asked for e in self.machine.step(Planned(t, 1, "plan", 4, 8, SHAPE))])
        # The first table planned has a window for itself; after it they are all read together.
        self.low_comes_back()
        self.all_are_read(ALL)
        self._begun(self.machine.step(MarkSeen(self.high, position_of(1), 0)))
        assert [read.chunk.table for read in self.chunks] == TABLES

    def _begun(self, effects: list[Effect]) -> None:
        (write,) = (e for e in effects if isinstance(e, WriteMark))
        self.chunks: list[ReadChunk] = list(write.reads)
        self.low, self.high = write.token, Token(write.token.text.replace("low", "high"))
        self.machine.step(MarkWritten(self.low))

    def low_comes_back(self) -> list[Effect]:
        return self.machine.step(MarkSeen(self.low, position_of(8), 0))

    def all_are_read(self, *visibilities: XidSnapshot) -> None:
        for read in reversed(self.chunks):  # a source may answer in any order
            rows = Plain((Transaction(0, 0, (Row(read.chunk.table, SHAPE, "r", {"id": 1, "a": 1}),)),), read=True)
            self.machine.step(ChunkRead(read.chunk, rows, SHAPE, visibilities, "1", 1))


def changes(xid: int, op: str, *unchanged: str) -> Input:
    rows = tuple(Row(table, SHAPE, op, {"id": 1, "a": 1}, frozenset(unchanged)) for table in TABLES)
    return Committed(Plain((Transaction(xid, xid, rows),)))


def given_up(effects: list[Effect]) -> list[object]:
    fields = [dict(e.fields) for e in effects if isinstance(e, Event) and e.event == "chunk given up"]
    return [entry["table"] for entry in fields]


NAMES = [str(table) for table in TABLES]


def truncated() -> list[Effect]:
    """All are truncated in the window."""
    reading = Reading()
    reading.low_comes_back()
    return reading.machine.step(changes(9, "t"))


def not_visible() -> list[Effect]:
    """No chunk has seen what was delivered before low."""
    reading = Reading()
    reading.machine.step(changes(7, "u"))
    reading.all_are_read(NOT_7)
    return reading.low_comes_back()


def no_beginning() -> list[Effect]:
    """Two snapshots of a chunk do not agree on what came before it, where that matters."""
    reading = Reading()
    reading.low_comes_back()
    reading.machine.step(changes(7, "c", "a"))
    reading.all_are_read(ALL, NOT_7)
    return reading.machine.step(MarkSeen(reading.high, position_of(9), 0))


def too_much() -> list[Effect]:
    """More is held than may be."""
    reading = Reading(held_bytes_max=100)
    reading.low_comes_back()
    return reading.machine.step(changes(9, "u"))


def connection_lost() -> list[Effect]:
    """Nothing is known of the request."""
    return Reading().machine.step(ChunkFailed(None, "the connection is gone", retry=True))


@pytest.mark.parametrize("happens", [truncated, not_visible, no_beginning, too_much, connection_lost])
def test_tables_of_a_window_are_abandoned_in_the_order_of_their_names(happens: Callable[[], list[Effect]]) -> None:
    """The same inputs give the same effects, or a run could never be repeated from its seed."""
    assert given_up(happens()) == NAMES


def test_tables_that_saw_different_beginnings_are_laid_between_what_was_held() -> None:
    """Each chunk follows the transactions that it saw; several at one place are in the order of names."""
    reading = Reading()
    reading.low_comes_back()
    reading.machine.step(changes(7, "c", "a"))
    for read, visibility in zip(reading.chunks, [NOT_7, ALL] * 4, strict=True):
        rows = Plain((Transaction(0, 0, (Row(read.chunk.table, SHAPE, "r", {"id": 1, "a": 1}),)),), read=True)
        reading.machine.step(ChunkRead(read.chunk, rows, SHAPE, (visibility,), "4", 4))
    effects = reading.machine.step(MarkSeen(reading.high, position_of(9), 0))
    runs = [e.run for e in effects if isinstance(e, Append)]
    found = [(r.read, [row.table.name for t in r.items for row in t.rows]) for r in runs if isinstance(r, Plain)]
    before, after = [(True, [n]) for n in "aceg"], [(True, [n]) for n in "bdfh"]
    assert found == [*before, (False, list("abcdefgh")), *after]


def test_a_high_mark_that_overtakes_its_low_mark_is_refused() -> None:
    """All chunks have arrived, but what was delivered before low is unknown: rows that they missed would be lost."""
    reading = Reading()
    reading.all_are_read(ALL)
    with pytest.raises(InvariantViolated, match=r"mark 1/2/high returned before its low mark"):
        reading.machine.step(MarkSeen(reading.high, position_of(9), 0))
