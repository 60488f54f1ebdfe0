"""Position deletes: one delete file may cover several data files, also those of other writers."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.manifest import DataFile, DataFileContent
from pyiceberg.table import FileScanTask, Table

from cdcflow.tables.local import compaction, position_deletes
from cdcflow.tables.local.iceberg import IcebergTable, IcebergTables
from cdcflow.tables.local.scan import Numbers, RowMarks, each_once
from cdcflow.tables.port import Kept

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


def test_only_the_snapshots_since_a_version_are_searched(table: IcebergTable, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each merge reads the edits since the last one. PyIceberg searches its list for each snapshot, and a table may
    have thousands."""
    for cut in range(2, 12):
        table.append(pa.table([[cut]], schema=COLUMNS), {"upkeep": "compact"} if cut == 10 else {"cut": cut}, "", 0, 99)
    mark_shared(table, {task.file.file_path: [0] for task in table.files()[:2]})
    asked, right = list[int](), Table.snapshot_by_id

    def searched(given: Table, id_: int) -> Any:
        asked.append(id_)
        return right(given, id_)

    monkeypatch.setattr(Table, "snapshot_by_id", searched)
    versions = [int(snapshot.sequence_number or 0) for snapshot in table._table.snapshots()]
    assert table.edits_since(versions[-3]) == [f"overwrite@{versions[-1]}"]
    assert table.edits_since(versions[-1]) == []
    assert table.compactions_since(versions[-3]) == []
    assert len(asked) < len(versions)
    assert table.compactions_since(0) == table.compactions_since(versions[-4]) == [(versions[-4], versions[-3])]
    assert table.edits_since(0) == [f"overwrite@{versions[-1]}"]


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


class Changes:
    """Changes of a table's rows by cdcflow and by other programs, and the ids that the table should have."""

    def __init__(self, table: IcebergTable, seed: int) -> None:
        self.table = table
        self.chance = np.random.default_rng(seed)
        self.cut = 1
        self.ids = set(ids(table))
        self.ids_of: dict[int, set[int]] = {}
        self.delete_files = 0

    def file(self) -> FileScanTask | None:
        """One of its files, usually the first: so it gets many delete files."""
        files = by_first_id(self.table)
        return files[int(self.chance.integers(len(files))) if self.chance.random() < 0.3 else 0] if files else None

    def some_rows(self, task: FileScanTask) -> Numbers:
        """Numbers of a few rows of a file that then have to be deleted; some of them are deleted already."""
        with self.table.open_file(task) as rows:
            every = rows.read(rows.groups, ["id"]).column(0).to_numpy()
        found: Numbers = np.sort(self.chance.choice(len(every), int(self.chance.integers(1, 4)), replace=False))
        self.ids -= set(every[found].tolist())
        return found

    def merge(self) -> None:
        """Mark rows, and now and then add some."""
        self.cut += 1
        task, new = self.file(), None
        if task is None or self.chance.random() < 0.3:
            first = 1000 * self.cut
            new = pa.table([range(first, first + 30)], schema=COLUMNS)
            self.ids |= set(range(first, first + 30))
        marks = [] if task is None else [(task, RowMarks.of(self.table.deleted_rows(task), self.some_rows(task)))]
        self.table.replace([], new, {"cut": self.cut}, "", 0, marks)

    def delete_by_another(self) -> None:
        """Add a delete file, whatever others list."""
        if (task := self.file()) is not None:
            self._commit(
                [], [position_deletes.write(self.table._table, task.file, _listed(task, self.some_rows(task)))]
            )

    def join_by_another(self) -> None:
        """Replace the delete files of one data file by one."""
        task = self.file()
        own = [] if task is None else [delete for delete in task.delete_files if len(self._listed(delete)) == 1]
        if task is not None and own:
            rows = each_once([self._listed(delete)[task.file.file_path] for delete in own])
            self._commit(own, [position_deletes.write(self.table._table, task.file, _listed(task, rows))])

    def join_all_by_another(self) -> None:
        """Replace all delete files by one."""
        files = [task for task in self.table.files() if task.delete_files]
        if len(files) > 1:
            deleted = {task.file.file_path: self.table.deleted_rows(task) for task in files}
            old = {delete for task in files for delete in task.delete_files}
            self._commit(old, [position_deletes.write(self.table._table, files[0].file, deleted)])

    def compact(self) -> None:
        """Rewrite two files while a merge marks rows."""
        files = by_first_id(self.table)[:2]
        done = compaction.rewrite(self.table, files, self.table.recall_rows(files), ())
        self.merge()
        self.table.snapshot()
        assert compaction.finish(self.table, done)

    def roll_back(self) -> None:
        """Return to one of the snapshots before the latest."""
        table = self.table._table
        latest = table.current_snapshot()
        back, snapshot = int(self.chance.integers(1, 4)), latest
        while back and snapshot is not None and snapshot.parent_snapshot_id in self.ids_of:
            snapshot, back = table.snapshot_by_id(snapshot.parent_snapshot_id), back - 1
        if snapshot is not None and snapshot is not latest:
            table.manage_snapshots().rollback_to_snapshot(snapshot.snapshot_id).commit()
            self.ids = set(self.ids_of[snapshot.snapshot_id])

    def expire(self) -> None:
        """Remove all snapshots but the latest, with their files."""
        self.table.let_go(Kept({}, self.cut + 1, time.time() + 1))
        self.ids_of.clear()

    def forget(self) -> None:
        """Continue as another process."""
        self.table._deletes._known.forget_all()

    def check(self, context: object) -> None:
        """The table, and PyIceberg's plan of it, have the right rows, and the summary has the right counts."""
        assert ids(self.table) == sorted(self.ids), context
        assert plan_of(self.table.files()) == plan_of(self.table._table.scan().plan_files()), context
        snapshot = self.table._table.current_snapshot()
        assert snapshot is not None
        assert snapshot.summary is not None
        self.ids_of[snapshot.snapshot_id] = set(self.ids)
        self.delete_files = max([0, *(len(task.delete_files) for task in self.table.files())])
        living = {delete for task in self.table.files() for delete in task.delete_files}
        counts = {name: int(snapshot.summary[f"total-{name}"] or 0) for name in ("delete-files", "position-deletes")}
        assert counts["delete-files"] == len(delete_files(self.table)), context
        assert counts["position-deletes"] >= sum(delete.record_count for delete in living), context

    def _listed(self, delete: DataFile) -> position_deletes.Listed:
        return self.table._deletes.content_of(self.table._table, delete)

    def _commit(self, old: Iterable[DataFile], new: Iterable[DataFile]) -> None:
        with self.table._changing() as change:
            producer = position_deletes.OverwrittenFiles(change, self.table._table, {}, self.table._manifests)
            with producer:
                producer.let_go(old)
                for made in new:
                    producer.mark(made)


def _listed(task: FileScanTask, rows: Numbers) -> dict[str, Numbers]:
    return {task.file.file_path: rows}


@pytest.mark.spread(2)
@pytest.mark.parametrize("seed", range(6))
def test_marks_of_large_files_stay_right_whatever_other_programs_do_in_between(
    table: IcebergTable, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """A merge adds to delete files that others replaced, that compaction dropped, or that an older snapshot has."""
    monkeypatch.setattr(position_deletes, "SHARING_BYTES", 0)
    monkeypatch.setattr(position_deletes, "OWN_TIMES", seed % 3)
    table.append(pa.table([range(100, 400)], schema=COLUMNS), {"cut": 1}, "", 0, 9)
    table.replace(by_first_id(table)[:2], None, {"cut": 1}, "", 0)
    changes, most = Changes(table, seed), 0
    changes.check("at first")
    others = [
        changes.delete_by_another,
        changes.join_by_another,
        changes.join_all_by_another,
        changes.compact,
        changes.roll_back,
        changes.expire,
        changes.forget,
    ]
    for number in range(40):
        is_other = changes.chance.random() < 0.4
        step = others[int(changes.chance.integers(len(others)))] if is_other else changes.merge
        step()
        changes.check((seed, number, step.__name__))
        most = max(most, changes.delete_files)
    assert most > 1
