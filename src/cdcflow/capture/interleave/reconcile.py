"""Adapts the stored progress to the tables that are captured now."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from cdcflow.capture.interleave.messages import Shape
from cdcflow.capture.interleave.progress import Gap, Progress, TableProgress
from cdcflow.model.position import Offset
from cdcflow.model.table import Table, TableId


def taken_up(
    stored: Progress, tables: Mapping[TableId, Shape], next_offset: Offset, *, backfill_new: bool
) -> dict[TableId, TableProgress]:
    """Return every table's progress, including new tables and tables that are no longer captured (O05).

    `next_offset` is the log's next offset. `backfill_new`: a table that was never captured is to be read at once.
    """
    return dict([*_known_tables(stored, tables, next_offset), *_new(stored, tables, next_offset, backfill_new)])


def _known_tables(
    stored: Progress, tables: Mapping[TableId, Shape], next_offset: Offset
) -> Iterator[tuple[TableId, TableProgress]]:
    for table, known in stored.tables.items():
        if table in tables:
            incarnation = getattr(tables[table], "incarnation", known.incarnation)
            same = known.state != "forgotten" and known.incarnation == incarnation
            # The log lacks changes of this table: it was not captured for a while, or it is new under this name.
            lost = replace(known, whole_since=None, gap=without_base(known.gap))
            now = known if same else lost.next_generation(next_offset, incarnation)
            now = with_shape(now, tables[table])
        else:
            now = replace(known, state="forgotten", plan=None, cursor=None, keys_since=None, keys_ordered=None)
            now = replace(now, shape=None, to_repair=())
        yield table, now


def _new(
    stored: Progress, tables: Mapping[TableId, Shape], next_offset: Offset, backfill_new: bool
) -> Iterator[tuple[TableId, TableProgress]]:
    for table in sorted(tables.keys() - stored.tables.keys()):
        incarnation = getattr(tables[table], "incarnation", 0)
        new = TableProgress("cancelled", 0, Offset(0), incarnation, reason="not requested: run a backfill")
        taken = new.next_generation(next_offset) if backfill_new else new
        yield table, with_shape(taken, tables[table])


def without_base(gap: Gap | None) -> Gap | None:
    """Return the gap, or None if it only records a base: the table's rows are no longer those of the base."""
    return None if gap is not None and gap.base else gap


def with_shape(known: TableProgress, shape: Shape) -> TableProgress:
    """Return the progress with the table's shape, which is stored until rows of the table in the log show it."""
    text = None if known.rows or not isinstance(shape, Table) else shape.to_text()
    return known if known.shape == text else replace(known, shape=text)
