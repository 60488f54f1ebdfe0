"""The same changes into a log in a folder and a log in Kafka, and logs compared as their readers see them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from cdcflow.config import Seal
from cdcflow.log.read.folder import FolderReader
from cdcflow.log.read.log_reader import LogReader
from cdcflow.model.change import Run
from cdcflow.model.position import SourceIdentity
from cdcflow.model.table import OFFSET, UNCHANGED, Table
from cdcflow.sinks.files.log import FileLog
from cdcflow.sinks.kafka.log import KafkaLog
from cdcflow.sinks.kafka.topics import Topics
from cdcflow.testing.sinks import ORDERS, ORDERS_WIDER, PRODUCTS, OpenedLog, Writer, changes, orders, transactions

IDENTITY = SourceIdentity("postgres", "7301", "shop", "1")
_numbers = itertools.count(1)

Step = Sequence[Run] | dict[str, Any]
"""Runs and a cut after them; or what the next cut records about tables' backfills, with no row before it."""


def history_of_a_shop() -> list[Step]:
    """Inserts, updates (one with an unchanged column), a delete, a key change, a truncate, a shape that grows."""
    moved = {"id": 21, "note": "was 3", "_op": "c", "_before": {"id": 3, "note": "n3"}}
    product = {"id": 1, "price": None, "tags": ["a", None], "picture": b"\0\xff"}
    return [
        [orders(1, 2, 3, xid=10), orders(4, 5, xid=11)],
        {"shop.orders": {"state": "done", "generation": 1, "since": 1}},
        [
            transactions(
                [12, 13],
                [2, 4],
                changes(ORDERS, [{"id": 1, "note": "new", "_op": "u"}, {"id": 2, "_op": "d"}], [0, 2]),
                changes(PRODUCTS, [product, {**product, "id": 2}], [1, 3]),
            )
        ],
        [orders(*range(100, 400), xid=14)],
        [transactions([15], [2], changes(ORDERS, [{"id": 3, "note": "n3", "_op": "d"}, moved]))],
        [
            transactions(
                [16],
                [2],
                changes(ORDERS_WIDER, [{"id": 4, "note": None, "_op": "u", UNCHANGED: ["note"]}, {"id": 6}]),
            )
        ],
        {"shop.orders": {"state": "done", "generation": 1, "since": 1}},
        [transactions([17, 18], [1, 2], changes(PRODUCTS, [{"_op": "t"}, {**product, "id": 9}]))],
    ]


def topics_on(address: str, **settings: Any) -> Topics:
    """A separate topic."""
    return Topics(address, f"pair{next(_numbers)}", message_bytes=settings.pop("message_bytes", 2000), **settings)


def put(writer: Writer, steps: Sequence[Step], *, roll: bool = True) -> None:
    """Write these steps, a cut after each; `roll`: each becomes a segment or a topic range."""
    for step in steps:
        if isinstance(step, dict):
            progress = {"version": 1, "tables": step}
            writer.checkpoint = replace(writer.checkpoint, progress=progress)
            writer.put()
        else:
            writer.put(*step)
        if roll and writer.log.roll():
            writer.log.sync()
            writer.log.seal_pending()


def into_folder(path: Path, steps: Sequence[Step], **more: Any) -> None:
    log = FileLog.open(path, IDENTITY, Seal())
    put(Writer.of(log), steps, **more)
    log.close()


def into_topic(topics: Topics, steps: Sequence[Step], **more: Any) -> None:
    log = KafkaLog.open(topics, IDENTITY)
    put(Writer.of(log), steps, **more)
    log.close()


def rows_of(log: LogReader, from_offset: int = 1, to_offset: int | None = None) -> list[tuple[str, dict[str, Any]]]:
    """All rows by offset, with the table and the version of its shape."""
    found = [
        (f"{table.id}.{version}", row)
        for table, version, rows in log.read_rows(from_offset, to_offset)
        for row in rows.to_pylist()
    ]
    return sorted(found, key=lambda entry: int(entry[1][OFFSET]))


def transactions_of(log: LogReader) -> list[dict[str, Any]]:
    return [dict(row) for headers in log.read_transactions() for row in headers.to_pylist()]


def shapes_of(log: LogReader) -> dict[str, dict[int, Table]]:
    return {str(table): shapes for table, shapes in log.table_shapes().items()}


def assert_equal(copy: LogReader, original: LogReader) -> None:
    """Check that two logs are identical (rows, transactions, shapes, latest checkpoint), and the copy complete."""
    assert rows_of(copy) == rows_of(original)
    assert transactions_of(copy) == transactions_of(original)
    assert shapes_of(copy) == shapes_of(original)
    assert copy.newest_checkpoint() == original.newest_checkpoint()
    report = copy.check(deep=True)
    assert report.is_whole, report.faults


__all__ = [
    "IDENTITY",
    "FolderReader",
    "OpenedLog",
    "Step",
    "assert_equal",
    "history_of_a_shop",
    "into_folder",
    "into_topic",
    "put",
    "rows_of",
    "shapes_of",
    "topics_on",
    "transactions_of",
]
