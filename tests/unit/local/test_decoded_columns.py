"""Rows of decoded columns are those that the file has."""

from __future__ import annotations

import io
import random
from decimal import Decimal
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cdcflow.tables.local import decoded_columns
from cdcflow.tables.local.decoded_columns import DecodedColumn, take_rows
from cdcflow.tables.local.file_keys import KnownColumns
from cdcflow.tables.local.scan import NONE, ScannedFile
from cdcflow.tables.local.tables import FileTable

SCHEMA = pa.schema(
    [
        ("id", pa.int64()), ("name", pa.string()), ("price", pa.decimal128(12, 2)), ("tags", pa.list_(pa.string())),
        ("missing", pa.int32()),
    ]
)  # fmt: skip


class Table:
    """What `take_rows` needs of a table."""

    schema = SCHEMA

    def content_of(self, file: str, column: str) -> tuple[str, str]:
        return file, column

    def stored_place(self, file: str, column: str, what: str) -> None:
        return None


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> KnownColumns[DecodedColumn]:
    found: KnownColumns[DecodedColumn] = KnownColumns(1 << 20, row_bytes=8)
    monkeypatch.setattr(decoded_columns, "DECODED", found)
    monkeypatch.setattr(decoded_columns, "ROWS_MIN", 1)
    return found


def scanned(rows: int) -> ScannedFile:
    chance = random.Random(rows)
    held = pa.table(
        {
            "id": pa.array([chance.choice([None, n]) for n in range(rows)], pa.int64()),
            "name": [f"row {n}" for n in range(rows)],
            "price": pa.array([Decimal(n) / 4 for n in range(rows)], pa.decimal128(12, 2)),
            "tags": [None if n % 3 else ["a", str(n)] for n in range(rows)],
        }
    )
    written = io.BytesIO()
    pq.write_table(held, written, row_group_size=7)
    return ScannedFile(pq.ParquetFile(pa.BufferReader(written.getvalue())), SCHEMA, SCHEMA, lambda: NONE)


def test_rows_are_those_of_the_file(known: KnownColumns[DecodedColumn]) -> None:
    """A row that is taken from a wrong place gives a wrong sum, and nothing else shows it."""
    chance = random.Random(4)
    table = cast("FileTable[Any]", Table())
    for rows in (1, 7, 50):
        opened = scanned(rows)
        for _ in range(8):
            numbers = np.array(sorted(chance.sample(range(rows), chance.randrange(rows + 1))), np.int64)
            columns = chance.sample(SCHEMA.names, chance.randrange(1, 6))
            found = take_rows(table, f"file {rows}", opened, numbers, columns)
            assert found.equals(opened.take(numbers, columns))
    assert known.get((("file 50", "name"), "string")) is not None


def test_column_is_decoded_once(known: KnownColumns[DecodedColumn], monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading rows at random places decodes all of a column, so that is kept at once."""
    opened, read = scanned(30), list[list[str]]()
    right = ScannedFile.read

    def counted(self: ScannedFile, groups: Any, columns: Any) -> pa.Table:
        read.append(list(columns))
        return right(self, groups, columns)

    monkeypatch.setattr(ScannedFile, "read", counted)
    for _ in range(2):
        take_rows(cast("FileTable[Any]", Table()), "file", opened, np.array([2, 9], np.int64), ["name"])
    assert len(read) == len(opened.groups)


def test_few_rows_are_read_as_before(known: KnownColumns[DecodedColumn], monkeypatch: pytest.MonkeyPatch) -> None:
    """Small row groups take milliseconds; a temporary file for each would not be worth it."""
    monkeypatch.setattr(decoded_columns, "ROWS_MIN", 8)
    opened = scanned(30)
    for _ in range(3):
        take_rows(cast("FileTable[Any]", Table()), "file", opened, np.array([1, 2], np.int64), ["name"])
    assert known.get((("file", "name"), "string")) is None
