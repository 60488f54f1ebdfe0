"""Which files of a Delta table maintenance may remove: few commits are read, and no needed file is ever among them."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable as ForeignTable
from tests.support.polling import wait_until

from cdcflow.tables.folders import DiskFolder
from cdcflow.tables.formats.delta import CHECKPOINTS, REMOVED_KEPT_S
from cdcflow.tables.local import checkpoints
from cdcflow.tables.local.checkpoints import name_of_checkpoint
from cdcflow.tables.local.delta import DeltaTable, _names_of
from cdcflow.tables.local.deltalog import DeltaLog
from cdcflow.tables.local.scan import RowMarks

COLUMNS = pa.schema([("id", pa.int64())])
VERSIONS, EVERY = 64, 8


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of small files that are read from now on."""
    found: list[str] = []
    read_each = DiskFolder.read_each

    def noted(folder: DiskFolder, names: Sequence[str]) -> list[bytes | None]:
        found.extend(names)
        return read_each(folder, names)

    monkeypatch.setattr(DiskFolder, "read_each", noted)
    return found


def filled(folder: Path, versions: int = VERSIONS) -> DeltaTable:
    """A table in which each version marks rows, and removes files with and without marks."""
    table = DeltaTable(folder, None)
    table.create(COLUMNS, {CHECKPOINTS: str(EVERY), "delta.enableDeletionVectors": "true"}, {"cut": 0})
    for number in range(1, versions):
        continue_with(table, number)
    return table


def continue_with(table: DeltaTable, number: int) -> None:
    files = table.files()
    marked = [(file, RowMarks(np.arange(1 + number % 9))) for file in files[-2:-1]]
    table.replace(files[:-3], pa.table({"id": range(10)}, COLUMNS), {"cut": number}, "", 0, marked)


def names_since(folder: Path, oldest: int) -> set[str]:
    """The files that any version since this one has, from each version's own state."""
    found: set[str] = set()
    newest = DeltaLog(folder).update()
    for version in range(oldest, newest + 1):
        then = DeltaLog(folder)
        assert then.update(version) == version
        found |= {name for file in then.files() for name in _names_of(file)}
    return found


def opened(folder: Path) -> DeltaTable:
    """The table in a new process."""
    table = DeltaTable(folder, None)
    table.snapshot()
    return table


@pytest.mark.parametrize("oldest", [3, EVERY, VERSIONS - EVERY - 1, VERSIONS - 2])
def test_removed_files_are_known_without_reading_each_commit(tmp_path: Path, oldest: int, reads: list[str]) -> None:
    """Three days at a commit a second are 259,200 of them, and in a store each is a request."""
    table = filled(tmp_path / "t")
    needed = names_since(tmp_path / "t", oldest)
    for there in (table, opened(tmp_path / "t")):
        reads.clear()
        used = there._used_since(oldest)
        assert used is not None
        assert used >= needed
        assert len(reads) <= 1, reads


def test_only_files_of_versions_that_are_not_needed_are_missing(tmp_path: Path) -> None:
    """As long as the commits since the last checkpoint are in memory, it is exact."""
    table = filled(tmp_path / "t", EVERY - 1)
    for oldest in range(EVERY - 1):
        assert table._used_since(oldest) == names_since(tmp_path / "t", oldest)


@pytest.mark.spread(1)
@pytest.mark.parametrize("writer", ["delta-rs", "another"])
def test_checkpoints_of_other_programs_do_not_tell_removed_files(tmp_path: Path, writer: str, reads: list[str]) -> None:
    """Some omit deletion vectors of removed files: kept cuts would lose the vectors' files. cdcflow's later ones tell
    what was removed since."""
    folder = tmp_path / "t"
    table = filled(folder)
    last = folder / "_delta_log" / name_of_checkpoint(VERSIONS - EVERY)
    if writer == "delta-rs":
        for name in (last.name, "_last_checkpoint"):
            last.with_name(name).unlink()
        ForeignTable(folder, version=VERSIONS - EVERY).create_checkpoint()
    else:
        rows = pq.read_table(last).replace_schema_metadata({})
        removed = rows.column("remove").combine_chunks()
        names = [field.name for field in removed.type]
        parts = [
            pa.nulls(len(removed), field.type) if field.name == "deletionVector" else removed.field(field.name)
            for field in removed.type
        ]
        bare = pa.StructArray.from_arrays(parts, names, mask=removed.is_null())
        pq.write_table(rows.set_column(rows.column_names.index("remove"), "remove", bare), last)
    table = opened(folder)
    reads.clear()
    used = table._used_since(3)
    assert len({name for name in reads if name.endswith(".json")}) == VERSIONS - EVERY - 3
    assert used is not None
    assert used >= names_since(folder, 3)

    for number in range(VERSIONS, VERSIONS + 2 * EVERY):
        continue_with(table, number)
    for oldest in (3, VERSIONS - EVERY, VERSIONS):
        used = opened(folder)._used_since(oldest)
        assert used is not None
        assert used >= names_since(folder, oldest)
    reads.clear()
    table._used_since(VERSIONS - EVERY)
    assert len(reads) <= 1, reads


def test_files_whose_removal_a_checkpoint_has_forgotten_are_found_in_the_commits(tmp_path: Path) -> None:
    """A quiet table's version may be older than the time for which its checkpoints name removed files; a cut shows it
    still."""
    folder = tmp_path / "t"
    table = filled(folder)
    now = _committed(folder, VERSIONS - 1) + REMOVED_KEPT_S + 2 * checkpoints.DATED_BEFORE_S
    continue_with(table, VERSIONS)  # the version of a checkpoint
    (folder / "_delta_log" / name_of_checkpoint(VERSIONS)).unlink()
    table._log._write_state(now)
    assert table._log._in_checkpoint(name_of_checkpoint(VERSIONS), "remove") == []
    for there in (table, opened(folder)):
        used = there._used_since(3)
        assert used is not None
        assert used >= names_since(folder, 3)


def _committed(folder: Path, version: int) -> float:
    text = (folder / "_delta_log" / f"{version:020d}.json").read_text()
    found: float = json.loads(text.splitlines()[0])["commitInfo"]["timestamp"] / 1000
    return found


def _date(folder: Path, times: Sequence[int | None]) -> None:
    """Have each version committed at this time, in milliseconds; `None`: its writer does not say."""
    for version, at in enumerate(times):
        path = folder / "_delta_log" / f"{version:020d}.json"
        first, *others = path.read_text().splitlines()
        info = json.loads(first)
        info["commitInfo"].pop("timestamp")
        if at is not None:
            info["commitInfo"]["timestamp"] = at
        path.write_text("\n".join([json.dumps(info), *others]) + "\n")


@pytest.mark.spread(4)
def test_version_of_a_time_is_found_in_few_commits(tmp_path: Path, reads: list[str]) -> None:
    """Maintenance reads each commit since a week ago otherwise, to find the one of a week ago."""
    folder = tmp_path / "t"
    filled(folder)
    _date(folder, [1000 + 10 * version for version in range(VERSIONS)])
    table = opened(folder)
    for at in (0, 1000, 1005, 1010, 1300, 1629, 1630, 9999):
        assert table._log.about_time_ms(at) == table._log.at_time_ms(at) == min(max(0, (at - 1000) // 10), VERSIONS - 1)
        reads.clear()
        table._log.about_time_ms(at)
        assert len(reads) <= 7, reads


@pytest.mark.parametrize("seed", range(8))
def test_version_of_a_time_is_never_too_new(tmp_path: Path, seed: int) -> None:
    """Clocks of several writers differ, some give no time, and old commits are cleaned up: then more is kept."""
    chance = np.random.default_rng(seed)
    folder = tmp_path / "t"
    filled(folder, 40)
    times = [None if chance.random() < 0.1 else int(1000 + 10 * n + chance.integers(-60, 60)) for n in range(40)]
    _date(folder, times)
    log = opened(folder)._log
    for at in range(900, 1500, 7):
        assert log.about_time_ms(at) <= log.at_time_ms(at)
    first = int(chance.integers(1, 30))
    for version in range(first):
        (folder / "_delta_log" / f"{version:020d}.json").unlink()
    for at in range(900, 1500, 7):
        assert log.about_time_ms(at) <= log.at_time_ms(at)


def test_others_read_no_part_of_a_checkpoint_and_old_commits_are_removed_among_other_files(tmp_path: Path) -> None:
    """Spark leaves checksums next to the commits on a disk, whose names come before all others."""
    folder = tmp_path / "t"
    table = DeltaTable(folder, None)
    settings = {CHECKPOINTS: str(EVERY), "delta.logRetentionDuration": "interval 1 second"}
    table.create(COLUMNS, settings, {"cut": 0})
    log = folder / "_delta_log"
    (log / f".{0:020d}.json.crc").touch()
    for number in range(1, EVERY + 1):
        continue_with(table, number)
    wait_until(lambda: _is_older_than_a_second(log / name_of_checkpoint(EVERY)), "the time that commits are kept")
    for number in range(EVERY + 1, 2 * EVERY + 1):
        continue_with(table, number)
    assert sorted(path.name for path in log.glob("*.checkpoint.parquet")) == [
        name_of_checkpoint(EVERY),
        name_of_checkpoint(2 * EVERY),
    ]
    assert min(path.name for path in log.glob("0*.json")) == f"{EVERY:020d}.json"
    assert ForeignTable(folder).version() == 2 * EVERY
    assert sorted(ForeignTable(folder).file_uris()) == sorted(str(folder / file.path) for file in table.files())


def _is_older_than_a_second(path: Path) -> bool:
    return time.time() - path.stat().st_mtime > 1.0
