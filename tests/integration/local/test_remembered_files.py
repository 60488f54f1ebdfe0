"""Processes that merge repeatedly remember what they have written, and other processes change the same tables."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.support.log.hand_log import HandLog
from tests.support.merge.histories import Step, make_table

from cdcflow.tables.formats import delta_commits
from cdcflow.tables.job import job
from cdcflow.tables.job.engines import Engines
from cdcflow.tables.job.reports import MergeReport
from cdcflow.tables.local import deltalog, file_rewrites, row_changes, table_files
from cdcflow.tables.local.delta import DeltaTable
from cdcflow.tables.local.engine import LocalEngine
from cdcflow.tables.local.file_keys import KnownKeys
from cdcflow.tables.local.iceberg import IcebergTable
from cdcflow.tables.local.recently_used import RecentlyUsed
from cdcflow.tables.paths import table_path

NUMBERED = make_table("orders", id="int64", qty="int32", note="string")
NAMED = make_table("orders", id="string", qty="int32", note="string")
WIDER = make_table("orders", id="int64", qty="int64", note="string", more="string")


@pytest.fixture(autouse=True)
def marked_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are marked in small files, too, and few files are enough to be merged."""
    monkeypatch.setattr(file_rewrites, "TINY_BYTES", 0)
    monkeypatch.setattr(file_rewrites, "DEAD_SHARE_MAX", 0.9)
    monkeypatch.setattr(file_rewrites, "SMALL_FILES_MAX", 3)


class Process:
    """What one process remembers, and its merges."""

    def __init__(self, log: HandLog, warehouse: Path, format_name: str) -> None:
        self._log, self._warehouse = log, warehouse
        self.engine = LocalEngine(warehouse, format_name)
        self._known = KnownKeys()
        self._written: RecentlyUsed[Any] = RecentlyUsed(table_files.WRITTEN_BYTES_MAX)

    @contextmanager
    def remembering(self) -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(row_changes, "KNOWN", self._known)
            patch.setattr(table_files, "WRITTEN", self._written)
            yield

    def merge(self) -> MergeReport:
        with self.remembering():
            return job.merge(Engines(self.engine), self._log.root, self._warehouse)

    def compact(self) -> None:
        with self.remembering(), closing(self.engine.table(table_path(NUMBERED.id))) as table:
            assert table.snapshot() is not None
            table.compact()


def rows_of(warehouse: Path, format_name: str) -> dict[Any, Any]:
    """The rows of the table, as a process reads them that remembers nothing."""
    process = Process(HandLog(warehouse.parent / "none"), warehouse, format_name)
    with (
        process.remembering(),
        closing(process.engine) as engine,
        closing(engine.table(table_path(NUMBERED.id))) as found,
    ):
        assert found.snapshot() is not None
        return {row["id"]: (row["qty"], row["note"]) for row in found.rows().to_pylist()}


@pytest.mark.spread(2)
@pytest.mark.parametrize("shape", [NUMBERED, NAMED], ids=["numbers", "texts"])
def test_what_a_process_remembers_is_right_after_merges_and_compactions_by_others(
    shape: Any, hand_log: HandLog, warehouse: Path, format_name: str
) -> None:
    """Each of three processes merges, and compacts, in any order: each remembers files that others have replaced, and
    files whose rows others have deleted. Columns are added, and types are widened, in between."""
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    processes = [Process(hand_log, warehouse, format_name) for _ in range(3)]
    hand_log.state(shape)
    rows: dict[Any, Any] = {}
    for turn in range(14):
        steps: list[Step] = []
        now = WIDER if shape is NUMBERED and turn > 8 else shape
        for _ in range(chance.randrange(1, 9)):
            key: Any = chance.randrange(30)
            key = key if shape is NUMBERED else f"k{key}"
            if key in rows and chance.random() < 0.3:
                del rows[key]
                steps.append((now, "d", {"id": key}))
            else:
                steps.append((now, "u" if key in rows else "c", {"id": key, "qty": turn, "note": f"n{turn}"}))
                rows[key] = turn, f"n{turn}"
        hand_log.segment(steps)
        chance.choice(processes).merge()
        if chance.random() < 0.3:
            chance.choice(processes).compact()
        assert rows_of(warehouse, format_name) == rows, f"turn {turn}"
    for process in processes:
        process.engine.close()


def test_merge_opens_no_file_that_the_process_has_written(
    hand_log: HandLog, warehouse: Path, format_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also not to merge small files into one."""
    opened: list[Any] = []
    for of in (DeltaTable, IcebergTable):
        for name in ("open_file", "read"):
            right = getattr(of, name)

            def counted(table: Any, file: Any, *given: Any, right: Any = right) -> Any:
                if table.name.endswith("orders"):
                    opened.append(file)
                return right(table, file, *given)

            monkeypatch.setattr(of, name, counted)
    process = Process(hand_log, warehouse, format_name)
    hand_log.state(NUMBERED)
    for turn in range(9):
        ids = [turn, turn + 20, turn + 1] if turn else range(30)
        hand_log.segment([(NUMBERED, "u" if turn else "c", {"id": n, "qty": turn, "note": "x"}) for n in ids])
        assert process.merge().published
    assert not opened
    process.engine.close()
    assert rows_of(warehouse, format_name)[28] == (8, "x")


def test_commits_of_others_alone_are_searched_for_torn_ones(
    hand_log: HandLog, warehouse: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power cut ends the process that merges: whatever it has seen whole stays whole. Listing the folder of a table's
    log would take longer with each commit."""
    looked: list[Path] = []

    def counted(log: Path, published: int | None) -> list[int]:
        looked.append(log)
        return delta_commits.torn_since(log, published)

    monkeypatch.setattr(deltalog, "torn_since", counted)
    process, other = (Process(hand_log, warehouse, "delta") for _ in range(2))
    hand_log.state(NUMBERED)

    def merge_by(who: Process, turn: int) -> int:
        looked.clear()
        hand_log.segment([(NUMBERED, "u" if turn else "c", {"id": n, "qty": turn, "note": "x"}) for n in range(5)])
        assert who.merge().published
        return sum(one.parent.name == "orders" for one in looked)

    assert merge_by(process, 0) == 1
    assert [merge_by(process, turn) for turn in (1, 2, 3)] == [0, 0, 0]
    assert merge_by(other, 4) == 1
    assert merge_by(process, 5) == 1, "the other process has committed since"
    log = warehouse / "public" / "orders" / "_delta_log"
    latest = max(int(name.stem) for name in log.glob("*.json") if name.stem.isdigit())
    (log / f"{latest + 1:020d}.json").write_text('{"add": {"pa')
    assert merge_by(process, 6) == 1
    assert rows_of(warehouse, "delta") == dict.fromkeys(range(5), (6, "x"))
    for who in (process, other):
        who.engine.close()
