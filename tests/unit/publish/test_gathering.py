"""Many small parts of a log joined into few large ones, before messages are built from them."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest

from cdcflow.log.read.reader import LogRows
from cdcflow.model.table import Column, Table, TableId
from cdcflow.model.types import ColumnType
from cdcflow.publish import publisher
from cdcflow.publish.publisher import gather_rows

A, B = TableId("shop", "a"), TableId("shop", "b")


def shape(table: TableId, *columns: str) -> Table:
    numbered = enumerate(columns, start=1)
    return Table(
        table, 1, tuple(Column(name, n, ColumnType("bigint", pa.int64())) for n, name in numbered), columns[:1]
    )


def part(table: Table, *offsets: int) -> LogRows:
    return table, 1, pa.table({"_offset": pa.array(offsets, pa.int64())})


def offsets(parts: list[LogRows]) -> Iterator[tuple[str, int, list[int]]]:
    for table, rows in gather_rows(parts):
        assert len(rows.to_batches()) == 1
        yield table.id.name, len(table.columns), rows.column("_offset").to_pylist()


def test_rows_of_a_table_are_gathered_in_their_order() -> None:
    """One by one a part costs a hundred times what its row does: publishing would fall behind."""
    a, b = shape(A, "id"), shape(B, "id")
    parts = [part(a, 1), part(b, 2, 3), part(a, 4), part(b, 5), part(a, 6, 7)]
    assert list(offsets(parts)) == [("a", 1, [1, 4, 6, 7]), ("b", 1, [2, 3, 5])]


def test_rows_of_an_older_shape_precede_those_of_a_newer_one() -> None:
    """A consumer that gets the older row last has the older row."""
    old, new, b = shape(A, "id"), shape(A, "id", "x"), shape(B, "id")
    parts = [part(old, 1), part(b, 2), part(new, 3), part(new, 4), part(b, 5), part(old, 6)]
    assert list(offsets(parts)) == [("a", 1, [1]), ("a", 2, [3, 4]), ("a", 1, [6]), ("b", 1, [2, 5])]


def test_no_more_is_gathered_than_fits_well_into_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """A group may be as large as a transaction is."""
    monkeypatch.setattr(publisher, "SLICE_ROWS", 3)
    a = shape(A, "id")
    parts = [part(a, n) for n in range(1, 8)]
    assert list(offsets(parts)) == [("a", 1, [1, 2, 3]), ("a", 1, [4, 5, 6]), ("a", 1, [7])]
