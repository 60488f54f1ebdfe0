"""Plans that arrive late: a table was requested again while it was being planned."""

from __future__ import annotations

import numpy as np
from tests.simulation.transactions import Plain, Row, Shape, Transaction, position_of

from cdcflow.capture.interleave.limits import Limits
from cdcflow.capture.interleave.machine import Interleave
from cdcflow.capture.interleave.messages import (
    Backfill,
    Committed,
    Effect,
    Event,
    Planned,
    PlanTable,
    Tick,
)
from cdcflow.model.position import Checkpoint, Epoch
from cdcflow.model.table import TableId
from cdcflow.sources.postgres.xid_snapshot import XidSnapshot

ORDERS = TableId("public", "orders")
SHAPE = Shape(("id", "a"))
BEFORE_7 = XidSnapshot(7, 7)


def planned(generation: int) -> Planned:
    return Planned(ORDERS, generation, "plan", 1, 1, SHAPE, visibilities=(BEFORE_7,))


def told(effects: list[Effect]) -> list[str]:
    return [e.event for e in effects if isinstance(e, Event)]


def test_late_plan_of_an_earlier_generation_does_not_lift_the_fence_of_the_next() -> None:
    """The right one's bound lacks a row that was delivered and is not visible: no chunk would show that row, and the
    sweep would delete it."""
    machine = Interleave(
        epoch=Epoch(1),
        checkpoint=Checkpoint(position=position_of(0)),
        tables={ORDERS: SHAPE},
        limits=Limits(),
        delivered=np.empty(0, np.uint64),
        partial={},
    )
    assert PlanTable(ORDERS, 1) in machine.step(Tick(0))
    machine.step(Committed(Plain((Transaction(7, 1, (Row(ORDERS, SHAPE, "c", {"id": 9, "a": 1}),)),))))
    assert PlanTable(ORDERS, 2) in machine.step(Backfill((ORDERS,)))
    assert told(machine.step(planned(1))) == [], "no table waits for it now"
    assert told(machine.step(planned(2))) == ["plan given up"]
