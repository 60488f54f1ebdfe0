"""Position deletes of other writers, which may cover several files at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.manifest import DataFile
from pyiceberg.table.delete_file_index import PATH_FIELD_ID

from cdcflow.tables.local import position_deletes
from cdcflow.tables.local.iceberg import IcebergTable, IcebergTables

COLUMNS = pa.schema([("id", pa.int64())])


@pytest.fixture
def table(tmp_path: Path) -> Any:
    """A table of two files with ten rows each."""
    tables = IcebergTables(tmp_path, None)
    made = tables.table(("shop", "orders"))
    made.create(COLUMNS, {}, {"cut": 1})
    for first in (0, 10):
        made.snapshot()
        made.append(pa.table([range(first, first + 10)], schema=COLUMNS), {"cut": 1}, "", 0, 9)
    made.snapshot()
    yield made
    tables.close()


def ids(table: IcebergTable) -> list[int]:
    assert table.snapshot() is not None
    return sorted(table.rows().column("id").to_pylist())


def by_first_id(table: IcebergTable) -> list[Any]:
    """Its files, that with the least ids first."""
    return sorted(table.files(), key=lambda task: table.bounds([task], "id")[0] or (0, 0))


def shared(table: IcebergTable, gone: dict[str, list[int]]) -> DataFile:
    """A delete file of several data files, as other writers make them."""
    made = position_deletes.write(table._table, table.files()[0].file, np.array([0]))
    paths = [path for path, numbers in sorted(gone.items()) for _ in numbers]
    numbers = [number for _, numbers in sorted(gone.items()) for number in numbers]
    rows = pa.table([paths, numbers], schema=position_deletes._SCHEMA)
    pq.write_table(rows, made.file_path)
    ends = min(gone).encode(), max(gone).encode()
    fields: dict[str, Any] = {
        "lower_bounds": {PATH_FIELD_ID: ends[0]},
        "upper_bounds": {PATH_FIELD_ID: ends[1]},
        "record_count": len(rows),
        "file_size_in_bytes": Path(made.file_path).stat().st_size,
    }
    kept = ("content", "file_path", "file_format", "partition")
    found = DataFile.from_args(**{name: getattr(made, name) for name in kept}, **fields)
    found.spec_id = 0
    return found


def test_marks_of_several_files_at_once_are_read_and_stay(table: IcebergTable) -> None:
    """Each file has its own marked rows; later marks add to them, and go with the file."""
    first, second = by_first_id(table)
    both = shared(table, {first.file.file_path: [2, 1, 2], second.file.file_path: [9]})
    with table._changing() as change:
        producer = position_deletes.OverwrittenFiles(change, table._table, {}, table._manifests)
        with producer:
            producer.mark(both)
    assert ids(table) == [0, *range(3, 19)]
    first, second = by_first_id(table)
    for task, told in ((first, [1, 2]), (second, [9])):
        with table.open_file(task) as rows:
            assert rows.deleted_rows.tolist() == told
    table.replace([], None, {"cut": 2}, "", 0, [(first, np.array([1, 2, 5]))])
    assert ids(table) == [0, 3, 4, *range(6, 19)]
    first, second = by_first_id(table)
    assert [len(task.delete_files) for task in (first, second)] == [2, 1]
    table.replace([first], None, {"cut": 3}, "", 0, [(second, np.array([0, 9]))])
    assert ids(table) == [*range(11, 19)]
    (left,) = table.files()
    assert {delete.file_path for delete in left.delete_files} > {both.file_path}
    assert len(left.delete_files) == 2
