"""Changes in columns, one batch per table shape: numbers their rows in a run, splits runs at marks, adds truncates and
deletes. Pure.

Both a source's decoder and its chunks create such changes, and they must be alike in every dialect.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cdcflow.capture.interleave.messages import Committed, MarkSeen
from cdcflow.capture.ports.stream import StreamEvent
from cdcflow.model.change import DELETE, TRUNCATE, ChangeBatch, Int64s, Kind, Run
from cdcflow.model.table import OP, UNCHANGED, Table


@dataclass(frozen=True, slots=True)
class ShapedRows:
    """Changes of one table shape in order. `message`: for each row, the number of the message that it is from,
    ascending; a message may have several rows."""

    table: Table
    message: Int64s
    rows: pa.RecordBatch


Truncate = tuple[int, Table]
"""The number of a message that empties a table, and the table's shape; a message may empty several."""


def number_rows(
    found: Sequence[ShapedRows], truncates: Sequence[Truncate], messages: int
) -> tuple[list[ChangeBatch], Int64s]:
    """Return one batch per table shape, with the indices of its rows in the run, and how many rows precede each
    message.

    `messages`: the number of messages. The second result has one more entry, which is the number of all rows.
    """
    emptying = np.array([message for message, _ in truncates], np.int64)
    rows_before = counted_rows([*(one.message for one in found), emptying], messages)
    indexed = [(one.table, row_indices(one.message, rows_before), one.rows) for one in found]
    return batches_by_shape(indexed, truncates, rows_before), rows_before


def batches_by_shape(
    indexed: Iterable[tuple[Table, Int64s, pa.RecordBatch]], truncates: Sequence[Truncate], rows_before: Int64s
) -> list[ChangeBatch]:
    """Combine rows, with their indices in the run, and truncates into one batch per table shape.

    `rows_before`: how many rows precede each message.
    """
    by_shape: dict[Table, list[tuple[Int64s, pa.RecordBatch]]] = {}
    for table, index, rows in indexed:
        by_shape.setdefault(table, []).append((index, rows))
    emptied: Counter[int] = Counter()
    for message, table in truncates:
        index = rows_before[message : message + 1] + emptied[message]
        by_shape.setdefault(table, []).append((index, truncation(table)))
        emptied[message] += 1
    return [merge_batches(table, parts) for table, parts in by_shape.items()]


def merge_batches(table: Table, parts: Sequence[tuple[Int64s, pa.RecordBatch]]) -> ChangeBatch:
    """Combine parts, each with rows and their indices in the run, into one batch; the indices may interleave."""
    if len(parts) == 1:
        return ChangeBatch(table, *parts[0])
    index, rows = np.concatenate([i for i, _ in parts]), pa.concat_batches([r for _, r in parts])
    if (np.diff(index) > 0).all():
        return ChangeBatch(table, index, rows)
    order = np.argsort(index)
    return ChangeBatch(table, index[order], rows.take(pa.array(order)))


def row_indices(message: Int64s, rows_before: Int64s) -> Int64s:
    """Return the indices of rows in a run.

    `message`: for each row, the number of the message that it is from, ascending; `rows_before`: how many rows precede
    each message.
    """
    first = np.flatnonzero(np.diff(message, prepend=-1))
    nth = np.arange(len(message)) - np.repeat(first, np.diff(first, append=len(message)))
    return np.asarray(rows_before[message] + nth)


def counted_rows(messages: Iterable[Int64s], count: int) -> Int64s:
    """Return how many rows precede each of `count` messages, and, as one more entry, the number of all rows.
    `messages`: see `row_indices`."""
    rows_before = np.zeros(count + 1, np.int64)
    for message in messages:
        rows_before[1:] += np.bincount(message, minlength=count)
    return np.cumsum(rows_before, out=rows_before)


def split_at_marks(run: Run, full: Int64s, marks: Iterable[tuple[int, MarkSeen]]) -> list[StreamEvent]:
    """Split a run where marks were seen, and return its parts and the marks in order.

    `full`: the numbers of the run's transactions among all that were received. `marks`: each mark with the number of
    the last transaction before it.
    """
    events: list[StreamEvent] = []
    taken = 0
    for number, mark in marks:
        upto = int(np.searchsorted(full, number, side="right"))
        if upto > taken:
            part, run = run.split_at(upto - taken)
            events.append(Committed(part))
            taken = upto
        events.append(mark)
    return [*events, Committed(run)] if run.transactions else events


def truncation(table: Table) -> pa.RecordBatch:
    """Return the one row that records a truncate of a table."""
    schema = table.change_schema
    columns = [pa.array([TRUNCATE], pa.string()) if f.name == OP else pa.nulls(1, f.type) for f in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def after_truncate(run: Run, table: Table) -> Run:
    """Return the run with a truncate of the table before its rows."""
    truncate = ChangeBatch(table, np.zeros(1, np.int64), truncation(table))
    shifted = tuple(ChangeBatch(b.table, b.index + 1, b.rows) for b in run.batches)
    return Run(run.xid, run.position, run.commit_ts, run.ends + 1, (truncate, *shifted), Kind.READ)


def after_deletes(run: Run, table: Table, keys: pa.Table) -> Run:
    """Return the run with a delete of each of these keys before its rows."""
    count = keys.num_rows
    if not count:
        return run
    others = [c.name for c in table.columns if c.name not in table.key]
    letters = pa.array(np.full(count, DELETE), pa.string())
    columns = []
    for field in table.change_schema:
        if field.name in table.key:
            columns.append(keys.column(field.name).combine_chunks().cast(field.type))
        elif field.name == UNCHANGED and others:
            ends = pa.array(np.arange(count + 1, dtype=np.int32) * len(others))
            columns.append(pa.ListArray.from_arrays(ends, pa.array(others * count, pa.string()), type=field.type))
        else:
            columns.append(letters if field.name == OP else pa.nulls(count, field.type))
    rows = pa.RecordBatch.from_arrays(columns, schema=table.change_schema)
    deletes = ChangeBatch(table, np.arange(count, dtype=np.int64), rows)
    shifted = tuple(ChangeBatch(b.table, b.index + count, b.rows) for b in run.batches)
    return Run(run.xid, run.position, run.commit_ts, run.ends + count, (deletes, *shifted), Kind.READ)


def absent(asked: pa.Table, found: Sequence[pa.RecordBatch]) -> pa.Table:
    """Return the keys of `asked` that none of these rows has, compared by value: 'A' is not 'a', however the server
    compares.

    Arrow cannot compare lists, so all keys are returned if a key column is one. That is harmless: a delete before the
    row itself changes nothing.
    """
    there = [pa.Table.from_batches([rows]).select(asked.column_names).cast(asked.schema) for rows in found]
    keys = _comparable(pa.concat_tables([asked, *there]))
    if any(pa.types.is_nested(t) for t in keys.schema.types):
        return asked
    at = pa.array(np.arange(keys.num_rows))
    numbered = pa.table([*keys.columns, at], names=[*map(str, range(keys.num_columns)), "at"])
    groups = numbered.group_by(numbered.column_names[:-1], use_threads=False)
    seen = groups.aggregate([("at", "min"), ("at", "max")])
    return asked.take(seen.filter(pc.less(seen.column("at_max"), asked.num_rows)).column("at_min"))


def _comparable(keys: pa.Table) -> pa.Table:
    """Return the table in a form that Arrow can compare: fields of structures as separate columns, and no
    dictionaries."""
    while any(pa.types.is_struct(t) for t in keys.schema.types):
        keys = keys.flatten()
    types = [f.type.value_type if pa.types.is_dictionary(f.type) else f.type for f in keys.schema]
    return pa.table([column.cast(t) for column, t in zip(keys.columns, types, strict=True)], keys.column_names)
