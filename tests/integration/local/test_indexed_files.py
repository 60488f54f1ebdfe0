"""Merges by one process that finds the rows to change by the indexes of files (`tables.local.file_keys`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.support.log.hand_log import HandLog
from tests.support.merge.histories import Step, make_table

from cdcflow.tables.job.reports import MergeReport
from cdcflow.tables.local import file_keys, file_rewrites, row_changes
from cdcflow.tables.local.engine import LocalEngine
from cdcflow.tables.local.file_keys import FileKeys, KnownKeys
from cdcflow.tables.paths import table_path

Merge = Callable[..., MergeReport]
ORDERS = make_table("orders", id="int32", qty="int32")
WIDER = make_table("orders", id="int64", qty="int32")
RENAMED = make_table("orders", key=("number",), number="int64", qty="int32")
OTHER = make_table("orders", key=("number",), number="int64", qty="int32", note="string", id="int64")


@pytest.fixture
def finds(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many rows were found by an index, each time. Rows are marked in small files, too."""
    monkeypatch.setattr(file_rewrites, "TINY_BYTES", 0)
    monkeypatch.setattr(file_rewrites, "DEAD_SHARE_MAX", 1.0)
    monkeypatch.setattr(row_changes, "KNOWN", KnownKeys())
    monkeypatch.setattr(file_keys, "IN_MEMORY_BYTES_MAX", 64)
    found: list[int] = []
    right = FileKeys.find

    def counted(self: FileKeys, *given: Any) -> Any:
        rows = right(self, *given)
        found.append(len(rows.numbers))
        return rows

    monkeypatch.setattr(FileKeys, "find", counted)
    return found


def put(shape: Any, op: str, key: int, **values: Any) -> Step:
    return shape, op, {shape.key[0]: key, **values}


def test_rows_are_found_by_index_through_renames_and_wider_keys(
    merge: Merge, format_name: str, hand_log: HandLog, warehouse: Path, finds: list[int]
) -> None:
    """A file's index stays right whatever its columns are called since, whichever rows of it were deleted, and if a
    later column takes the key's earlier name."""
    rounds: Sequence[Sequence[Step]] = [
        [put(ORDERS, "c", key, qty=key) for key in range(9, 0, -1)],
        [put(ORDERS, "u", 2, qty=20), put(ORDERS, "d", 3), put(ORDERS, "c", 12, qty=12)],
        [put(ORDERS, "u", 2, qty=21), put(ORDERS, "u", 4, qty=40), put(ORDERS, "c", 3, qty=30)],
        [put(WIDER, "u", 5, qty=50), put(WIDER, "u", 12, qty=120), put(WIDER, "c", 1 << 40, qty=0)],
        [put(RENAMED, "u", 6, qty=60), put(RENAMED, "d", 1 << 40), put(RENAMED, "u", 2, qty=22)],
        [put(OTHER, "u", 7, qty=70, note="n", id=1), put(OTHER, "c", 13, qty=13, note="m", id=7)],
        [put(OTHER, "u", 1, qty=10, note="k", id=2), put(OTHER, "d", 7), put(OTHER, "u", 8, _unchanged=["qty"])],
    ]
    for steps in rounds:
        hand_log.segment(steps)
        assert merge(hand_log.root, warehouse).published
    with closing(LocalEngine(warehouse, format_name)) as engine:
        table = engine.table(table_path(ORDERS.id))
        assert table.snapshot() is not None
        rows = {row["number"]: row["qty"] for row in table.rows().to_pylist()}
        table.close()
    assert rows == {1: 10, 2: 22, 3: 30, 4: 40, 5: 50, 6: 60, 8: 8, 9: 9, 12: 120, 13: 13}
    assert sum(finds) >= 7, "rows were found by reading the files"
