"""The tail that a publisher reads: the log in groups, while it grows; each record read once."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from tests.servers.kafka import KafkaBroker
from tests.support.kafka.log_pairs import IDENTITY, Step, history_of_a_shop, put, rows_of, topics_on, transactions_of

from cdcflow.log.format.rows import RowsDecoder
from cdcflow.model.table import OFFSET
from cdcflow.publish.kafka_tail import KafkaTail
from cdcflow.sinks.kafka.log import KafkaLog
from cdcflow.sinks.kafka.reader import KafkaReader
from cdcflow.sinks.kafka.topics import PartitionReader, Topics
from cdcflow.testing.sinks import Writer, orders

pytestmark = pytest.mark.kafka

Told = tuple[list[tuple[str, dict[str, Any]]], list[dict[str, Any]]]
"""Rows by offset, with the table and the version of its shape; and the headers of transactions."""


@pytest.fixture
def topics(broker: KafkaBroker) -> Topics:
    return topics_on(broker.address)


def written(topics: Topics, steps: list[Step], *, roll: bool) -> None:
    """Write some steps more and leave."""
    log = KafkaLog.open(topics, IDENTITY)
    put(Writer.of(log), steps, roll=roll)
    log.close()
    topics.wait_until_shown()


def told(tail: KafkaTail, first: int, rows_max: int, end: int | None = None) -> Told:
    """All that the tail has since an offset, taken as the publisher takes it: group by group, to its end."""
    rows: list[tuple[str, dict[str, Any]]] = []
    headers: list[dict[str, Any]] = []
    end = tail.next_offset() if end is None else end
    while first < end:
        if (newest := tail.ready(first)) == first:
            continue  # on its way there
        group = pa.concat_tables(tail.transactions(first, first + min(rows_max, newest - first) - 1))
        last = group.column("last_offset")[-1].as_py()
        found = [
            (f"{table.id}.{version}", row)
            for table, version, part in tail.rows(first, last)
            for row in part.to_pylist()
        ]
        assert len(found) == last - first + 1, "a group is whole"
        rows += sorted(found, key=lambda entry: int(entry[1][OFFSET]))
        headers += group.to_pylist()
        first = last + 1
    return rows, headers


@pytest.mark.spread(2)
@pytest.mark.parametrize(("held_bytes_max", "turn_s"), [(1, 0.5), (2000, 0.5), (64 << 20, 0.5), (64 << 20, 0.0)])
@pytest.mark.parametrize("rows_max", [3, 100_000])
@pytest.mark.parametrize("roll", [False, True], ids=["one topic range", "topic ranges"])
def test_groups_are_the_log_whatever_is_held(
    topics: Topics, held_bytes_max: int, turn_s: float, rows_max: int, roll: bool
) -> None:
    """O07: however little may be held, and wherever a topic range or a writer ends, nothing is missed and nothing
    appears twice, also of what was written after the tail had reached the end.
    """
    steps = history_of_a_shop()
    written(topics, steps[:4], roll=roll)
    tail = KafkaTail(topics, held_bytes_max, turn_s)
    first = told(tail, 1, rows_max)
    written(topics, steps[4:], roll=roll)
    second = told(tail, int(first[0][-1][1][OFFSET]) + 1, rows_max)
    log = KafkaReader(topics)
    assert first[0] + second[0] == rows_of(log)
    assert [h for h in transactions_of(log) if h["last_offset"] >= h["first_offset"]] == first[1] + second[1]


def test_tail_begins_in_the_middle_and_may_go_back(topics: Topics) -> None:
    """A publisher that restarts begins at its position, inside a run; and what failed is requested again."""
    written(topics, history_of_a_shop(), roll=False)
    log = KafkaReader(topics)
    tail = KafkaTail(topics)
    assert told(tail, 4, 100_000)[0] == rows_of(log, 4)
    assert told(tail, 2, 2)[0] == rows_of(log, 2)


def test_long_distance_to_the_start_is_read_in_turns(topics: Topics, monkeypatch: pytest.MonkeyPatch) -> None:
    """28 thousand small transactions were read before the first of them was returned, and SIGTERM was ignored. And
    records before the starting position are skipped, not decoded.
    """
    log = KafkaLog.open(topics, IDENTITY)
    writer = Writer.of(log)
    for number in range(1, 41):
        writer.put(orders(number))
    log.close()
    topics.wait_until_shown()
    tail = KafkaTail(topics, turn_s=0.0)
    assert tail.next_offset() == 41
    assert tail.ready(1) == 2
    assert tail.ready(1) == 3
    decoded: list[int] = []
    rows = RowsDecoder.rows

    def counted(decoder: RowsDecoder, payload: bytes, shapes: Any) -> Any:
        decoded.append(1)
        return rows(decoder, payload, shapes)

    monkeypatch.setattr(RowsDecoder, "rows", counted)
    again = KafkaTail(topics, turn_s=0.0)
    turns = 0
    while again.ready(40) == 40:
        turns += 1
    assert turns == 39
    assert len(decoded) == 2, "the first is needed by later ones, the second is the requested one"
    assert told(again, 40, 100)[0] == rows_of(KafkaReader(topics), 40)


def test_each_record_is_read_once(topics: Topics, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tail that begins at its range's beginning for every group costs more with each one, on an idle source too."""
    log = KafkaLog.open(topics, IDENTITY)
    writer = Writer.of(log)
    writer.put(orders(1))
    tail = KafkaTail(topics)
    topics.wait_until_shown()
    told(tail, 1, 1000)
    places: list[int] = []
    messages = PartitionReader.messages

    def counted(reader: PartitionReader, *span: int) -> Any:
        for message in messages(reader, *span):
            if reader.topic == topics.name:
                places.append(message.topic_offset)
            yield message

    monkeypatch.setattr(PartitionReader, "messages", counted)
    for number in range(2, 12):
        writer.put(orders(number))
        topics.wait_until_shown()
        assert len(told(tail, number, 1000, number + 1)[0]) == 1
    assert len(places) == len(set(places))
    log.close()
