"""Tables in mode history, merged without Spark: versions of rows, in both formats, against the oracle."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from embeddedhistory import SHAPE
from handlog import HandLog
from versionhistories import KEY, Piece, make, split
from versionlogs import versions, write

from cdcflow import local
from cdcflow.local.engine import LocalEngine
from cdcflow.merge.ends import AUTO_CDC, Names
from cdcflow.merge.fold import History, Key, Version, history
from cdcflow.merge.policy import Policies, TablePolicy
from cdcflow.warehouse.paths import table_path
from cdcflow.warehouse.reports import MergeReport

HISTORIES = Policies(TablePolicy("history"))


@pytest.fixture
def hand_log(tmp_path: Path) -> HandLog:
    return HandLog(tmp_path / "log", has_transactions=True)


def told(merges: Sequence[Sequence[Piece]]) -> list[tuple[Key, Version]]:
    """What the oracle says after these merges."""
    found = History()
    for pieces in merges:
        last = pieces[-1]
        changes = [change for piece in pieces for change in piece.changes]
        step = history(found.open, changes, KEY, since=last.since, swept=last.since if last.is_done else 0)
        found = History([*found.ended, *step.ended], step.open)
    return sorted([*found.ended, *found.open.items()], key=lambda kv: (str(kv[0]), kv[1].start.offset))


def rows(warehouse: Path, format_name: str) -> list[dict[str, Any]]:
    with closing(LocalEngine(warehouse, format_name)) as engine:
        there = engine.table(table_path(SHAPE.id))
        assert there.snapshot() is not None
        found: list[dict[str, Any]] = there.rows().to_pylist()
    return found


@pytest.mark.parametrize("seed", range(20))
def test_versions_in_a_table_are_those_of_the_oracle(
    seed: int, hand_log: HandLog, warehouse: Path, merge: Callable[..., MergeReport], format_name: str
) -> None:
    """After every merge, also when some segments were made one."""
    log = make(seed, blocks=20)
    transactions = {c.offset: c.transaction for c in log.changes(log.pieces)}
    merges = split(random.Random(seed), log.pieces)
    for number, pieces in enumerate(merges, start=1):
        write(hand_log, pieces)
        if seed % 3 == 0:
            hand_log.compact(len(pieces))
        report = merge(hand_log.root, warehouse, policies=HISTORIES)
        assert [t.left_out for t in report.tables] == [None]
        assert versions(rows(warehouse, format_name), transactions) == told(merges[:number])
