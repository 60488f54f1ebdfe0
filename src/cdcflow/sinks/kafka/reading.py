"""Reading a log in Kafka: its state, its frames, its rows. Committed records only."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa

from cdcflow.changelog.framing import FrameKind
from cdcflow.changelog.journal import Owners
from cdcflow.changelog.rows import Rows
from cdcflow.changelog.transactions import Transactions
from cdcflow.errors import InvariantViolated
from cdcflow.model.table import Table
from cdcflow.sinks.kafka import state as states
from cdcflow.sinks.kafka.records import Placed, Stretches
from cdcflow.sinks.kafka.state import State
from cdcflow.sinks.kafka.topics import Reader, Topics


def read_state(topics: Topics) -> State:
    """What the checkpoint's topic says now."""
    with topics.reader(topics.state) as reader:
        return states.read(reader.messages(reader.bounds()[0]), topics.state)


def frames(reader: Reader, begin: int, end: int | None, wanted: Iterable[FrameKind] | None = None) -> Iterator[Placed]:
    """What the frames from a stretch's place on hold, up to the place `end` (None: to the end of what is committed)."""
    stretches = Stretches(f"topic {reader.topic}", wanted)
    for message in reader.messages(begin):
        if end is not None and message.place >= end:
            return
        placed = stretches.take(message)
        if placed is not None:
            yield placed


def read_rows(topics: Topics) -> Iterator[tuple[Table, pa.RecordBatch]]:
    """All rows as the log shows them (`Table.log_schema`): run by run, within a run shape by shape.

    Raises:
        InvariantViolated: cdcflow did not write the topic so.
    """
    begin = min((s.place for s in read_state(topics).stretches), default=None)
    if begin is None:
        return
    owners: Owners | None = None
    with topics.reader(topics.name) as reader:
        for placed in frames(reader, begin, None):
            match placed.record:
                case Transactions():
                    owners = Owners.of(placed.record.headers)
                case Rows(shape=shape, offsets=offsets) if owners is not None:
                    yield shape.table, owners.log_rows(shape.table, offsets, placed.record.rows)
                case Rows():
                    raise InvariantViolated(f"reading topic {topics.name}: rows of no transaction at {placed.place}")
                case _:
                    pass
