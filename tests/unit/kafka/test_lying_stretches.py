"""Rows and cuts of a topic with impossible numbers: a reader refuses them with an error that names them, as in a
journal."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from cdcflow.errors import InvariantViolated
from cdcflow.log.format.journal import Encoder, JournalHeader
from cdcflow.log.format.records import HEAD, Message, head_of, pieces
from cdcflow.log.format.transactions import TransactionHeaders
from cdcflow.model.position import Checkpoint, Epoch, Offset, Position
from cdcflow.sinks.kafka.reader import TopicCursor
from cdcflow.sinks.kafka.state import TopicRange
from cdcflow.testing.sinks import ORDERS, orders


def walked(rows_at: int, cut_at: int) -> list[object]:
    """A topic range of one run of three rows, which come at this offset, before a cut at that one."""
    header = JournalHeader("x", Epoch(1), Checkpoint())
    encoder = Encoder(0)
    run = orders(1, 2, 3)
    encoder.shape(ORDERS, 1)
    encoder.transactions(TransactionHeaders.of(run, 1, 1, np.array([1])))
    encoder.rows(run.batches[0], rows_at)
    encoder.cut(Checkpoint(Position("a"), Offset(cut_at), 2, 1), 0)
    records = [*pieces(HEAD, [head_of(header)], 1 << 20)]
    for kind, payload in encoder.payloads():
        records += pieces(kind, payload, 1 << 20)

    def messages(*span: int) -> Iterator[Message]:
        return (Message(place, key, value) for place, (key, value) in enumerate(records))

    topics: Any = SimpleNamespace(name="shop")
    reader: Any = SimpleNamespace(messages=messages)
    return [record for record, _ in TopicCursor(topics, TopicRange(0, Offset(1), None)).read(reader, len(records))]


def test_valid_topic_range_is_read() -> None:
    """Otherwise the refusals below would prove nothing."""
    assert len(walked(1, 4)) == 5


@pytest.mark.parametrize(("rows_at", "cut_at"), [(0, 4), (2, 4), (9, 4), (1, 3), (1, 5)])
def test_rows_and_cuts_with_wrong_offsets_are_refused(rows_at: int, cut_at: int) -> None:
    """They would be published, or merged, under the offsets of others."""
    with pytest.raises(InvariantViolated, match="topic shop"):
        walked(rows_at, cut_at)
