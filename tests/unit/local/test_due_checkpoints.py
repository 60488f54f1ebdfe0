"""Checkpoints of Delta tables that are written after later commits: whenever that is, and also if never, a table has
the same files, and no needed file counts as removed."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest
from deltalake import DeltaTable as ForeignTable
from tests.unit.local.test_removed_files import COLUMNS, EVERY, continue_with, names_since, opened

from cdcflow.tables.formats.delta import CHECKPOINTS
from cdcflow.tables.local.delta import DeltaTable, DeltaTables
from cdcflow.tables.local.deltalog import DeltaLog

SEEDS = 8


@pytest.fixture
def warehouse(tmp_path: Path) -> Path:
    return tmp_path / "warehouse"  # delta-rs does not read a folder whose name has a percent sign


def create(tables: DeltaTables) -> DeltaTable:
    table = tables.table(("t",))
    table.snapshot()
    table.create(COLUMNS, {CHECKPOINTS: str(EVERY), "delta.enableDeletionVectors": "true"}, {"cut": 0})
    return table


def commit(tables: DeltaTables, number: int) -> None:
    """A commit by a table that is opened for it, as a merge does."""
    table = tables.table(("t",))
    table.snapshot()
    continue_with(table, number)


def checkpoints_of(folder: Path) -> list[int]:
    return sorted(int(path.name[:20]) for path in (folder / "_delta_log").glob("*.checkpoint.parquet"))


@pytest.mark.spread(1)
@pytest.mark.parametrize("seed", range(SEEDS))
def test_state_is_the_same_whenever_checkpoints_are_written(warehouse: Path, seed: int) -> None:
    chance = random.Random(seed)
    folder = warehouse / "t"
    tables = DeltaTables(warehouse, None)
    later = tables.defer_checkpoints()
    create(tables)
    often = chance.choice([0.0, 0.05, 0.3])
    for number in range(1, 6 * EVERY):
        before = checkpoints_of(folder)
        commit(tables, number)
        assert checkpoints_of(folder) == before, "no commit writes one"
        if later.is_due and chance.random() < often:
            later.do_next()
            assert len(checkpoints_of(folder)) == len(before) + 1
        if chance.random() < 0.1:
            tables = DeltaTables(warehouse, None)  # the process was killed
            later = tables.defer_checkpoints()
    there = tables.table(("t",))
    there.snapshot()
    late, late_files = opened(folder), DeltaLog(folder)
    late_files.update()
    assert sorted(map(str, there.files())) == sorted(map(str, late_files.files()))
    for oldest in range(0, 6 * EVERY, 5):
        needed = names_since(folder, oldest)
        for table in (there, late):
            used = table._used_since(oldest)
            assert used is not None
            assert used >= needed
    assert ForeignTable(folder).version() == late_files.version
    for path in (folder / "_delta_log").glob("*checkpoint*"):
        path.unlink()
    early = DeltaLog(folder)
    early.update()
    assert sorted(map(str, early.files())) == sorted(map(str, late_files.files()))


def test_log_in_memory_begins_at_a_checkpoint_that_was_written(warehouse: Path) -> None:
    """Otherwise it would keep each removed file in memory for as long as the process runs."""
    tables = DeltaTables(warehouse, None)
    later = tables.defer_checkpoints()
    create(tables)
    for number in range(1, 2 * EVERY + 3):
        commit(tables, number)
        while later.is_due:
            later.do_next()
    table = tables.table(("t",))
    table.snapshot()
    assert checkpoints_of(warehouse / "t") == [EVERY, 2 * EVERY]
    assert min(version for version, _ in table._log._removed) > 2 * EVERY


def test_no_checkpoint_comes_into_another_table_of_that_name(warehouse: Path) -> None:
    """An operator may have moved the table away before its checkpoint is written."""
    tables = DeltaTables(warehouse, None)
    later = tables.defer_checkpoints()
    create(tables)
    for number in range(1, EVERY + 1):
        commit(tables, number)
    assert later.is_due
    shutil.move(warehouse / "t", warehouse / "moved")
    create(tables)
    commit(tables, 1)
    later.do_next()
    assert checkpoints_of(warehouse / "t") == []
    found = DeltaLog(warehouse / "t")
    assert found.update() == 1
    for number in range(2, EVERY + 2):
        commit(tables, number)
    later.do_next()
    assert checkpoints_of(warehouse / "t") == [EVERY]
