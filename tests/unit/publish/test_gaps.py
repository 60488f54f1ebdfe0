"""Notifications of gaps: which, in what order with the rows, and each once."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from tests.unit.publish.test_publishing import MemoryTail, SlowBrokers, publisher

from cdcflow.capture.interleave.progress import Gap, Progress, TableProgress
from cdcflow.errors import SinkUnavailable
from cdcflow.model.position import Epoch, Offset
from cdcflow.model.table import TableId
from cdcflow.publish.events import Messages
from cdcflow.publish.gaps import GapNotice, next_gap, notices
from cdcflow.publish.position import Published

KEPT, KEYLESS, NEW = TableId("shop", "kept"), TableId("shop", "keyless"), TableId("shop", "new")
GAP = Gap(Offset(7), 1, Epoch(2), "0/1", "0/9")
AT_GAP = Progress(
    {
        KEPT: TableProgress("done", 1, Offset(1), gap=GAP, whole_since=Offset(1)),
        KEYLESS: TableProgress("waiting", 1, Offset(1)),
        TableId("shop", "dropped"): TableProgress("forgotten", 1, Offset(1)),
    }
).with_gap(5_000_000, "0/1", "0/9", Offset(7))
REPAIRED = replace(
    AT_GAP,
    tables={
        **AT_GAP.tables,
        KEPT: replace(AT_GAP.tables[KEPT], gap=replace(GAP, proven="0/20", until=Offset(12))),
        KEYLESS: TableProgress("done", 2, Offset(9)),
        NEW: TableProgress("done", 1, Offset(8)),
    },
)


def due(progress: Progress, at: int, published: Published) -> tuple[list[tuple[str, str | None]], Published]:
    found, after = notices(progress.to_json(), at, published, 0)
    return [(one.table, one.how) for one in found], after


def test_each_table_is_unverified_from_the_gap_until_it_is_right_again() -> None:
    """O20: a consumer must not treat rows as right that were not compared, and must learn when they are."""
    before = Published("log", 6)
    assert due(AT_GAP, 7, before) == ([], before), "what precedes the gap is not published yet"
    assert next_gap(AT_GAP.to_json(), before) == 7
    begun, after = due(AT_GAP, 7, replace(before, next_offset=7))
    assert begun == [("shop.kept", None), ("shop.keyless", None)]
    assert next_gap(AT_GAP.to_json(), after) is None
    assert due(AT_GAP, 7, after) == ([], after)
    assert due(REPAIRED, 13, replace(after, next_offset=12))[0] == [], "the repair's rows are not published yet"
    ended, last = due(REPAIRED, 13, replace(after, next_offset=13))
    assert ended == [("shop.kept", "compared"), ("shop.keyless", "read")]
    assert (last.gap, dict(last.unverified)) == (1, {})
    assert due(REPAIRED, 13, last)[0] == []


def test_publisher_that_was_stopped_reports_a_gap_that_is_over() -> None:
    """Its readers may have kept a state from before the gap; a table that was added later had none."""
    found, _ = due(REPAIRED, 13, Published("log", 13))
    assert found == [("shop.kept", None), ("shop.keyless", None), ("shop.kept", "compared"), ("shop.keyless", "read")]


def test_table_that_is_not_right_again_stays_unverified() -> None:
    """A failed repair, and a second gap before the first one is repaired."""
    _, after = due(AT_GAP, 7, Published("log", 7))
    second = replace(GAP, offset=Offset(10))
    tables = {**AT_GAP.tables, KEPT: replace(AT_GAP.tables[KEPT], gap=second)}
    again = replace(AT_GAP, tables=tables).with_gap(6_000_000, "0/30", "0/40", Offset(10))
    found, after = due(again, 10, replace(after, next_offset=10))
    assert found == [("shop.kept", None), ("shop.keyless", None)]
    assert after.unverified["shop.kept"] == (2, 10)
    late = replace(again, tables={**tables, KEPT: replace(tables[KEPT], gap=replace(GAP, proven="0/20"))})
    assert due(late, 11, replace(after, next_offset=11))[0] == [], (
        "a proof of the first gap proves nothing of the second"
    )


def test_notification_has_the_shape_of_those_of_debezium() -> None:
    """The remaining names are cdcflow's: Debezium has no notification of lost changes."""
    found = json.loads(GapNotice("shop.kept", 1, 5000, "0/1", "0/9").to_json("id", "prefix"))
    assert found == {
        "id": "id/1/shop.kept",
        "aggregate_type": "Gap",
        "type": "STARTED",
        "additional_data": {
            "connector_name": "prefix",
            "data_collection": "shop.kept",
            "gap": "1",
            "before": "0/1",
            "after": "0/9",
        },
        "timestamp": 5000,
    }
    ended = json.loads(GapNotice("shop.kept", 1, 6000, how="read").to_json("id", "prefix"))
    assert (ended["type"], ended["additional_data"]["how"]) == ("COMPLETED", "read")


def test_position_of_an_earlier_version_is_read() -> None:
    """Its publisher notified of no gaps."""
    stored = b'{"format": 1, "log_id": "a", "next_offset": 5, "position": "0/1"}'
    assert Published.from_json(stored, "t") == Published("a", 5, "0/1")
    now = Published("a", 5, "0/1", 2, {"shop.kept": (2, 10)})
    assert Published.from_json(now.to_json(), "t") == now


class Brokers(SlowBrokers):
    """Remembers what each committed transaction had, and fails some commits."""

    def __init__(self) -> None:
        super().__init__(1 << 30)
        self.open: list[tuple[str, int]] = []
        self.committed: list[list[tuple[str, int]]] = []
        self.fails = 0

    def begin(self) -> None:
        super().begin()
        self.open = []

    def send(self, messages: Messages) -> None:
        self.open.append((messages.topic, len(messages.values)))
        super().send(messages)

    def commit(self, published: Published) -> None:
        if self.fails:
            self.fails -= 1
            raise SinkUnavailable("committing: no broker answers")
        super().commit(published)
        self.committed.append(self.open)


@pytest.mark.parametrize("fails", [0, 1, 2])
def test_group_ends_at_a_gap_and_its_notification_precedes_what_follows(
    monkeypatch: pytest.MonkeyPatch, fails: int
) -> None:
    """All of it would be one group; and what was not committed is published at the next attempt."""
    tail, brokers = MemoryTail(6, 2), Brokers()
    progress: Mapping[str, Any] = AT_GAP.to_json()
    tail.progress, tail.progress_at, brokers.fails = progress, tail.end, fails
    publisher(tail, brokers, monkeypatch).run(once=True)
    rows, first, second = "shop.shop.orders", brokers.committed[0], brokers.committed[2]
    assert (first, second) == ([(rows, 6)], [(rows, 6)])
    assert brokers.committed[1] == [("shop.cdcflow-gaps", 2)]
    assert len(brokers.committed) == 3
