"""Merges of changes that bring whole rows, which are done without SQL, against a fold in plain Python."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.support.log.hand_log import HandLog
from tests.support.merge.histories import Step, make_table

from cdcflow.tables.job.reports import MergeReport
from cdcflow.tables.local import file_rewrites, row_changes, whole_rows
from cdcflow.tables.local.engine import LocalEngine
from cdcflow.tables.local.row_changes import RowChanges
from cdcflow.tables.local.whole_rows import LatestChanges
from cdcflow.tables.paths import table_path

Merge = Callable[..., MergeReport]
SEED = random.SystemRandom().randrange(1, 10**6)
ROUNDS, KEYS = 6, 24
ORDERS = make_table("orders", id="int64", qty="int32", gone="string", note="string")
"""`gone`, `note`: columns of any name."""


@pytest.fixture
def folds(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Of each range that was merged into rows: whether that was done without SQL. Rows are marked in small files, too,
    and some are only marked."""
    monkeypatch.setattr(file_rewrites, "TINY_BYTES", 0)
    monkeypatch.setattr(file_rewrites, "DEAD_SHARE_MAX", 0.9)
    found: list[bool] = []
    right = RowChanges._fold_whole_rows

    def counted(self: RowChanges[Any], *given: Any) -> bool:
        found.append(right(self, *given))
        return found[-1]

    monkeypatch.setattr(RowChanges, "_fold_whole_rows", counted)
    return found


def steps_of(chance: random.Random, rows: dict[int, dict[str, Any]]) -> list[Step]:
    """Changes of the rows of a table, which also change `rows`: some keys several times, some moved to another key."""
    steps: list[Step] = []
    for _ in range(chance.randrange(1, 30)):
        key = chance.randrange(KEYS) - 3
        row: dict[str, Any] = {"id": key, "qty": chance.choice([None, chance.randrange(99)])}
        row |= {"gone": chance.choice([None, "g"]), "note": chance.choice([None, "", "n" * 40])}
        if key not in rows:
            steps.append((ORDERS, "c", row))
        elif chance.random() < 0.3:
            steps.append((ORDERS, "d", {"id": key}))
            del rows[key]
            continue
        elif chance.random() < 0.2 and (free := [k for k in range(KEYS) if k not in rows]):
            moved = row | {"id": chance.choice(free)}
            steps += [(ORDERS, "d", {"id": key}), (ORDERS, "c", {**moved, "_before": {"id": key}})]
            del rows[key]
            row = moved
        else:
            steps.append((ORDERS, "u", row))
        rows[row["id"]] = row
    return steps


def run(seed: int, log: HandLog, warehouse: Path, merge: Merge, table_format: str) -> None:
    chance, rows = random.Random(seed), dict[int, dict[str, Any]]()
    log.segment([(ORDERS, "c", rows.setdefault(k, {"id": k, "qty": k, "gone": "", "note": "n"})) for k in range(9)])
    merge(log.root, warehouse)
    for number in range(ROUNDS):
        log.segment(steps_of(chance, rows))
        merge(log.root, warehouse)
        with (
            closing(LocalEngine(warehouse, table_format)) as engine,
            closing(engine.table(table_path(ORDERS.id))) as table,
        ):
            assert table.snapshot() is not None
            found = sorted(table.rows().select(["id", "qty", "gone", "note"]).to_pylist(), key=lambda r: r["id"])
        assert found == [rows[key] for key in sorted(rows)], f"seed {seed}, round {number}"


@pytest.mark.spread(2)
@pytest.mark.parametrize("way", ["without SQL", "by SQL"])
def test_whole_rows_give_what_the_fold_gives(
    way: str,
    merge: Merge,
    format_name: str,
    hand_log: HandLog,
    warehouse: Path,
    folds: list[bool],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Both ways of the same changes, of one key, in one merge: inserted, changed, deleted, moved, inserted again."""
    if way == "by SQL":
        monkeypatch.setattr(whole_rows, "CHANGES_MAX", 0)
    run(SEED, hand_log, warehouse, merge, format_name)
    assert any(folds) == (way == "without SQL"), folds


@contextmanager
def first_change_counts() -> Iterator[None]:
    right = np.lexsort
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(np, "lexsort", lambda by: right((-by[0], by[1])))
        yield


@contextmanager
def deletes_are_ignored() -> Iterator[None]:
    right = LatestChanges.new_rows

    def every(self: LatestChanges, *given: Any) -> Any:
        return right(LatestChanges(self.keys, self.rows, np.zeros(len(self.keys), bool)), *given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LatestChanges, "new_rows", every)
        yield


@contextmanager
def old_rows_stay() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(row_changes, "_numbers_by_file", lambda _: {})
        yield


@pytest.mark.parametrize("bug", [first_change_counts, deletes_are_ignored, old_rows_stay])
def test_a_planted_bug_is_seen(bug: Callable[[], Any], folds: list[bool], tmp_path: Path) -> None:
    from cdcflow import local

    def merge(log: Path, warehouse: Path) -> MergeReport:
        return local.merge(log, warehouse, table_format="delta")

    with bug(), pytest.raises(AssertionError, match="seed 7, round"):
        run(7, HandLog(tmp_path / "log"), tmp_path / "warehouse", merge, "delta")
    assert any(folds)
