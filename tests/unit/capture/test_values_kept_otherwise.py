"""Tables whose values are now stored differently: read again, once, whatever happens in between."""

from __future__ import annotations

import json
from dataclasses import replace
from queue import SimpleQueue
from typing import Any

import pytest
from tests.support.capture.small_source import AT, DONE, ITEMS, ORDERS, Small

from cdcflow.capture import attempt as attempts
from cdcflow.capture.attempt import Attempt, LoopIntervals, Orders
from cdcflow.capture.interleave.limits import Limits
from cdcflow.capture.interleave.messages import Input
from cdcflow.capture.interleave.progress import Progress
from cdcflow.capture.ports.source import TablesToReread
from cdcflow.capture.waker import Waker
from cdcflow.model.position import Checkpoint
from cdcflow.sinks.memory import Memory, MemoryLog

BOTH = json.dumps([["public", "items"], ["public", "orders"]], separators=(",", ":"))


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempts, "IDLE_WAIT_S", 0.001)


class Stage:
    def __init__(self, state: str, **fields: object) -> None:
        self.memory = Memory()
        orders = replace(DONE.tables[ORDERS.id], state=state, **fields)  # type: ignore[arg-type]
        log = MemoryLog(self.memory)
        log.cut(Checkpoint(AT, cut=1, progress=Progress({ORDERS.id: orders}).to_json()))
        log.sync()
        log.close()
        self.told: list[str] = []

    def run(self, turns: int | None, *, noted: bool = True) -> Progress:
        """An attempt of this many turns, or one that dies before the first (`None`), on a source that has both tables
        read again."""
        source: Any = Small(ORDERS)
        if noted:
            source.reread = TablesToReread(frozenset([ORDERS.id, ITEMS.id]))
        log, waker = MemoryLog(self.memory), Waker()
        requests: SimpleQueue[Input] = SimpleQueue()
        attempt = Attempt(
            source,
            log,
            log_id=log.log_id,
            epoch=log.epoch,
            limits=Limits(),
            orders=Orders(),
            pace=LoopIntervals(heartbeat_s=1e9, tables_look_s=1e9),
            requests=requests,
            waker=waker,
            on_event=lambda event, fields: self.told.append(f"{event} {fields.get('table', '')}"),
        )
        left = iter(range(turns or 0))
        try:
            if turns is not None:
                attempt.run(lambda: next(left, None) is None)
        finally:
            attempt.close()
            log.close()
            waker.close()
        return Progress.from_json(self.memory.checkpoint.progress)


def test_table_is_read_again_and_the_request_is_removed_by_its_cut() -> None:
    """The next start finds no order and reads nothing; a table that is not captured is not asked for."""
    stage = Stage("done")
    assert stage.run(500).tables[ORDERS.id].generation == 2
    assert "reread" not in stage.memory.checkpoint.source
    assert "table to be read again public.orders" in stage.told
    assert not [line for line in stage.told if "public.items" in line]
    assert stage.run(50, noted=False).tables[ORDERS.id].generation == 2


def test_request_that_no_cut_has_is_still_stored() -> None:
    """Killed right after the settings were noted: the next start finds the command next to them."""
    stage = Stage("done")
    assert stage.run(None).tables[ORDERS.id].generation == 1
    assert stage.memory.checkpoint.source["reread"] == BOTH
    assert stage.run(500, noted=False).tables[ORDERS.id].generation == 2


def test_request_for_an_excluded_table_is_removed_with_it() -> None:
    """The table is no longer captured, and is read again if it ever is captured again."""
    stage = Stage("done")
    stage.run(None)
    stage.run(None, noted=False)
    assert stage.memory.checkpoint.source["reread"] == json.dumps([["public", "orders"]], separators=(",", ":"))


def test_paused_table_is_read_when_it_is_resumed() -> None:
    """An operator paused it; changed settings are no reason to begin reading."""
    found = Stage("paused", plan="all").run(500).tables[ORDERS.id]
    assert (found.state, found.generation) == ("paused", 2)


def test_table_that_was_never_read_is_not_read_again() -> None:
    """No operator requested its rows; its changes are captured with the new settings."""
    assert Stage("cancelled", generation=0).run(100).tables[ORDERS.id].state == "cancelled"
    assert ITEMS.id not in Stage("done").run(10).tables
