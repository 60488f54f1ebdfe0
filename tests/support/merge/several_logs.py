"""Two logs merged into one warehouse, by any engine: what must hold for the published cuts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random
from typing import Any

from tests.support.log.several_logs import START, Branch, go_on

from cdcflow.model.table import Table
from cdcflow.tables.cut import Cut
from cdcflow.tables.job.reports import SeveralReport

MergeLogs = Callable[..., SeveralReport]
"""merge(logs by their names, warehouse, without=…)"""
ReadIds = Callable[[Path], Mapping[str, set[int]]]
"""The ids of the rows of each table of the latest cut, by table name."""


def pair(folder: Path) -> tuple[Branch, Branch]:
    """Two logs whose tables have different names."""
    return Branch(folder / "crm", "crm", "people"), Branch(folder / "shop", "shop", "trade")


def roots(*branches: Branch) -> dict[str, Path]:
    return {branch.name: branch.root for branch in branches}


def check_cut(cut: Cut, ids: Mapping[str, set[int]], *branches: Branch) -> None:
    """Check that every table of every log is as of the position that the cut records for that log, and that no log is
    ahead of the time that all of them had reached."""
    parts = {part.name: part for part in cut.logs.values()}
    assert sorted(parts) == sorted(branch.name for branch in branches)
    assert cut.commit_clock == min(part.commit_clock for part in parts.values())
    limit = min(branch.clock for branch in branches)
    for branch in branches:
        part = parts[branch.name]
        assert part.commit_clock <= limit
        within = [t for t in branch.written if t.rows[-1][2] <= part.offset]
        assert all(t.clock <= part.commit_clock for t in within), "the log is ahead of what the cut says"
        for table in (branch.orders, branch.products):
            assert ids.get(str(table.id), set()) == branch.rows(table, part.offset), f"{table.id} at {part.offset}"


def check_random(folder: Path, rng: Random, rounds: int, merge: MergeLogs, published: Any, read: ReadIds) -> None:
    """Random logs, merged at random times."""
    branches = pair(folder)
    for _ in range(rounds):
        for branch in branches:
            go_on(branch, rng, rng.choice([0, 3, 8]), rng.choice([40, 4000]))
            if rng.random() < 0.8:
                branch.seal()
        report = merge(roots(*branches), folder / "warehouse")
        if report.cut:
            check_cut(published(folder / "warehouse"), read(folder / "warehouse"), *branches)
    for branch in branches:
        if not branch.written:  # a log that never had a row holds every cut, which names it
            branch.insert(9000)
        branch.beat(10_000)
        branch.seal()
        branch.log.close()
    merge(roots(*branches), folder / "warehouse")
    last = published(folder / "warehouse")
    check_cut(last, read(folder / "warehouse"), *branches)
    assert {p.name: p.offset for p in last.logs.values()} == {
        b.name: int(b.writer.checkpoint.next_offset) - 1 for b in branches
    }


__all__ = ["START", "MergeLogs", "ReadIds", "Table", "check_cut", "check_random", "pair", "roots"]
