"""Streams whose decoder errs in one column, to prove that comparisons find it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from cdcflow.capture.interleave.messages import Committed
from cdcflow.capture.ports.stream import StreamEvent
from cdcflow.model.change import ChangeBatch, Run

Decode = Callable[[StreamEvent], StreamEvent]


def wrong_in(column: str, change: Callable[[pa.Array], pa.Array]) -> Decode:
    """What makes of an event one in which this column of every table that has it is decoded wrong."""

    def batch_of(batch: ChangeBatch) -> ChangeBatch:
        at = batch.rows.schema.get_field_index(column)
        if at < 0:
            return batch
        columns = batch.rows.columns
        columns[at] = change(columns[at])
        return replace(batch, rows=pa.RecordBatch.from_arrays(columns, schema=batch.rows.schema))

    def decode(event: StreamEvent) -> StreamEvent:
        if isinstance(event, Committed) and isinstance(event.run, Run):
            return Committed(replace(event.run, batches=tuple(batch_of(b) for b in event.run.batches)))
        return event

    return decode


def make_wrong(monkeypatch: pytest.MonkeyPatch, stream: type[Any], decode: Decode) -> None:
    """Have streams of this class return the result of `decode` for their events."""
    poll = stream.poll
    monkeypatch.setattr(stream, "poll", lambda self: [decode(event) for event in poll(self)])


__all__ = ["Decode", "make_wrong", "wrong_in"]
