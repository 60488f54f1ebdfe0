"""Position deletes: one delete file may cover several data files, also those of other writers."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.manifest import DataFile, DataFileContent
from pyiceberg.table import FileScanTask

from cdcflow.tables.local import position_deletes
from cdcflow.tables.local.iceberg import IcebergTable, IcebergTables
from cdcflow.tables.local.scan import RowMarks

SCHEMA = position_deletes._SCHEMA
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
    """A delete file of several data files, as other writers make them: neither sorted nor each row once."""
    made = position_deletes.write(table._table, table.files()[0].file, {path: np.array([0]) for path in gone})
    pairs = [(path, number) for path, numbers in gone.items() for number in numbers]
    plain = pa.schema([field.with_type(pa.string()) if n == 0 else field for n, field in enumerate(SCHEMA)])
    pq.write_table(pa.table([*zip(*pairs, strict=True)], schema=plain), made.file_path, row_group_size=2)
    size = Path(made.file_path).stat().st_size
    bounds: dict[str, Any] = {"lower_bounds": made.lower_bounds, "upper_bounds": made.upper_bounds}
    kept: dict[str, Any] = {name: getattr(made, name) for name in ("content", "file_path", "file_format", "partition")}
    found = DataFile.from_args(**kept, **bounds, record_count=len(pairs), file_size_in_bytes=size)
    found.spec_id = 0
    return found


def mark_shared(table: IcebergTable, gone: dict[str, list[int]]) -> DataFile:
    """Commit it."""
    made = shared(table, gone)
    with table._changing() as change:
        producer = position_deletes.OverwrittenFiles(change, table._table, {}, table._manifests)
        with producer:
            producer.mark(made)
    table.snapshot()
    return made


def delete_files(table: IcebergTable) -> dict[str, set[str]]:
    """The data files of the table that each of its delete files lists."""
    found: dict[str, set[str]] = {}
    newest = table._table.current_snapshot()
    assert newest is not None
    entries = [
        e for manifest in newest.manifests(table._table.io) for e in manifest.fetch_manifest_entry(table._table.io)
    ]
    there = {e.data_file.file_path for e in entries if e.data_file.content == DataFileContent.DATA}
    for entry in entries:
        if entry.data_file.content == DataFileContent.POSITION_DELETES:
            rows = pq.read_table(entry.data_file.file_path)
            assert len(rows) == entry.data_file.record_count
            found[entry.data_file.file_path] = set(rows["file_path"].to_pylist()) & there
    return found


def plan_of(tasks: Iterable[FileScanTask]) -> dict[str, set[str]]:
    """The delete files of each data file."""
    return {task.file.file_path: {delete.file_path for delete in task.delete_files} for task in tasks}


def test_marks_of_several_files_at_once_are_read_and_stay_if_they_are_many(
    table: IcebergTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each file has its own marked rows; later marks add to them, and go with the file."""
    monkeypatch.setattr(position_deletes, "SHARED_ROWS_MAX", 3)
    first, second = by_first_id(table)
    both = mark_shared(table, {second.file.file_path: [9], first.file.file_path: [2, 1, 2]})
    assert ids(table) == [0, *range(3, 19)]
    first, second = by_first_id(table)
    for task, told in ((first, [1, 2]), (second, [9])):
        with table.open_file(task) as rows:
            assert rows.deleted_rows.tolist() == told
    table.replace([], None, {"cut": 2}, "", 0, [(first, RowMarks(np.array([1, 2, 5])))])
    assert ids(table) == [0, 3, 4, *range(6, 19)]
    first, second = by_first_id(table)
    assert [len(task.delete_files) for task in (first, second)] == [2, 1]
    table.replace([first], None, {"cut": 3}, "", 0, [(second, RowMarks(np.array([0, 9])))])
    assert ids(table) == [*range(11, 19)]
    (left,) = table.files()
    (own,) = left.delete_files
    assert own.file_path != both.file_path, "all that it lists is listed by the new one, or gone"


def test_small_files_have_one_delete_file_and_large_ones_their_own(
    table: IcebergTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each merge leaves a small file, in which the next ones change rows: a delete file for each of them was most of a
    merge's cost, and readers open all of them."""
    first, second = by_first_id(table)
    paths = first.file.file_path, second.file.file_path
    table.replace([], None, {"cut": 2}, "", 0, [(first, RowMarks(np.array([1]))), (second, RowMarks(np.array([2])))])
    ((before, listed),) = delete_files(table).items()
    assert (listed, ids(table)) == (set(paths), [0, *range(2, 12), *range(13, 20)])
    first, second = by_first_id(table)
    table.replace(
        [], None, {"cut": 3}, "", 0, [(first, RowMarks(np.array([1, 4])))]
    )  # what it lists of the other one stays
    ((after, listed),) = delete_files(table).items()
    assert (listed, ids(table)) == (set(paths), [0, 2, 3, *range(5, 12), *range(13, 20)])
    assert after != before
    first, second = by_first_id(table)
    monkeypatch.setattr(position_deletes, "SHARING_BYTES", 0)
    table.replace(
        [], None, {"cut": 4}, "", 0, [(first, RowMarks(np.array([1, 4, 5]))), (second, RowMarks(np.array([2, 3])))]
    )
    assert sorted(delete_files(table).values(), key=sorted) == sorted([{paths[0]}, {paths[1]}], key=sorted)
    assert ids(table) == [0, 2, 3, *range(6, 12), *range(14, 20)]


def test_a_shared_delete_file_stays_as_long_as_one_of_its_data_files(table: IcebergTable) -> None:
    """Removed with the first of them, it would bring deleted rows of the other one back."""
    first, second = by_first_id(table)
    both = mark_shared(table, {first.file.file_path: [2, 1], second.file.file_path: [9]})
    first, second = by_first_id(table)
    table.replace([first], None, {"cut": 2}, "", 0)
    assert delete_files(table) == {both.file_path: {second.file.file_path}}
    assert ids(table) == [*range(10, 19)]
    (second,) = table.files()
    table.replace([second], None, {"cut": 3}, "", 0)
    assert (delete_files(table), ids(table)) == ({}, [])


def test_marks_of_a_large_file_are_added_to_and_seldom_written_again(
    table: IcebergTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each merge marks a few more of its rows; writing all of them again was most of a merge."""
    monkeypatch.setattr(position_deletes, "SHARING_BYTES", 0)
    rows = 6000
    table.append(pa.table([range(100, 100 + rows)], schema=COLUMNS), {"cut": 1}, "", 0, 9)
    chance = np.random.default_rng(1)
    order = chance.permutation(rows)
    files, written = [], dict[str, int]()
    for cut in range(100):
        table.snapshot()
        *_, large = by_first_id(table)
        gone = RowMarks.of(table.deleted_rows(large), order[cut * 50 : cut * 50 + 50])
        table.replace([], None, {"cut": cut + 2}, "", 0, [(large, gone)])
        *_, large = by_first_id(table)
        files.append(len(large.delete_files))
        written |= {delete.file_path: delete.record_count for delete in large.delete_files}
        if cut % 20 == 0:
            table._deletes._known.forget_all()
    assert table.deleted_rows(large).tolist() == sorted(order[:5000].tolist())
    assert ids(table) == sorted([*range(20), *(100 + order[5000:]).tolist()])
    assert plan_of(table.files()) == plan_of(table._table.scan().plan_files()), "PyIceberg finds the same"
    assert 1 < max(files) < 8
    assert sum(written.values()) < 8 * 5000, "one file with all rows: 50 times"


@pytest.mark.spread(2)
@pytest.mark.parametrize("seed", range(6))
def test_marks_at_random_leave_what_a_model_has(
    table: IcebergTable, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Files come and go, and delete files of all kinds are mixed, also those of other writers."""
    chance = np.random.default_rng(seed)
    expected, came = set(ids(table)), 20
    for cut in range(2, 25):
        monkeypatch.setattr(position_deletes, "SHARING_BYTES", int(chance.choice([0, 4 << 20])))
        monkeypatch.setattr(position_deletes, "SHARED_ROWS_MAX", int(chance.choice([6, 1 << 20])))
        monkeypatch.setattr(position_deletes, "OWN_TIMES", int(chance.choice([0, 1, 4])))
        table.snapshot()
        files = {int(n): task for n, task in enumerate(by_first_id(table))}
        first = {n: table.read(task, ["id"]) for n, task in files.items()}
        chosen = [n for n in files if chance.random() < 0.5]
        removed = {n for n in chosen if chance.random() < 0.2}
        marked, foreign = [], dict[str, list[int]]()
        for n in chosen:
            with table.open_file(files[n]) as rows:
                now, every = rows.deleted_rows, rows.read(rows.groups, ["id"]).column(0).to_numpy()
            more = chance.choice(len(every), 2, replace=False)
            if n in removed:
                expected -= set(first[n].column(0).to_pylist())
                continue
            expected -= set(every[more].tolist())
            marked.append((files[n], RowMarks.of(now, more)))
            foreign[files[n].file.file_path] = more.tolist()
        if chance.random() < 0.3 and len(foreign) > 1 and not removed:
            mark_shared(table, foreign)
        else:
            new = pa.table([range(came, came + 8)], schema=COLUMNS)
            expected |= set(range(came, came + 8))
            came += 8
            table.replace([files[n] for n in removed], new, {"cut": cut}, "", 0, marked)
        assert ids(table) == sorted(expected), (seed, cut)
        assert plan_of(table.files()) == plan_of(table._table.scan().plan_files()), "PyIceberg finds the same"
        assert all(delete_files(table).values()), "each lists a file of the table"
