"""The expected live view of random histories: the fold of everything sealed, without a merge."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, Protocol

import pytest
from tests.support.log.hand_log import HandLog
from tests.support.merge.histories import differences
from tests.support.tables.folds import Merged
from tests.support.tables.histories import Histories, History

from cdcflow import local
from cdcflow.model.table import Table
from cdcflow.tables.job import job
from cdcflow.tables.job.live import Live
from cdcflow.tables.job.reports import MergeReport
from cdcflow.tables.local.deltalog import DeltaLog
from cdcflow.tables.local.engine import LocalCuts, LocalEngine
from cdcflow.tables.local.iceberg import IcebergTable
from cdcflow.tables.merge.policy import DEFAULTS, Mode, Policies
from cdcflow.tables.paths import table_path


class Parties(Protocol):
    """An engine that merges and reads, with these policies."""

    policies: Policies

    def merge(self, log: Path, warehouse: Path) -> MergeReport: ...

    def merge_and_die(self, log: Path, warehouse: Path, before: int) -> None:
        """A merge that dies before a commit of that number, or before it publishes."""

    def read_live(self, log: Path, warehouse: Path) -> Live[Any]:
        """With tables that are not complete."""

    def rows(self, shown: Any) -> Iterable[Mapping[str, Any]]:
        """The rows of a table in a live view."""

    def merged_rows(self, warehouse: Path, table: Table) -> Iterable[Mapping[str, Any]]:
        """The rows of a table as a merge left it."""


COMMITS: list[tuple[Any, str]] = [(IcebergTable, "create"), (IcebergTable, "_changing"), (DeltaLog, "commit")]
"""Where each commit begins."""


class Here:
    """Implements `Parties` in this process."""

    def __init__(self, table_format: str) -> None:
        self._format = table_format
        self.policies = DEFAULTS

    def merge(self, log: Path, warehouse: Path) -> MergeReport:
        return local.merge(log, warehouse, table_format=self._format, policies=self.policies)

    def merge_and_die(self, log: Path, warehouse: Path, before: int) -> None:
        left = before

        def dying(right: Callable[..., Any]) -> Callable[..., Any]:
            def commits(*given: Any, **more: Any) -> Any:
                nonlocal left
                if not left:
                    raise KeyboardInterrupt
                left -= 1
                return right(*given, **more)

            return commits

        def never(*_: Any) -> None:
            raise KeyboardInterrupt

        with pytest.MonkeyPatch.context() as patch, suppress(KeyboardInterrupt):
            patch.setattr(job, "TABLES_AT_ONCE", 1)
            patch.setattr(LocalCuts, "publish", never)
            for of, method in COMMITS:
                patch.setattr(of, method, dying(getattr(of, method)))
            self.merge(log, warehouse)

    def read_live(self, log: Path, warehouse: Path) -> Live[Any]:
        return local.read_live(log, warehouse, incomplete=True, policies=self.policies)

    def rows(self, shown: Any) -> Iterable[Mapping[str, Any]]:
        found: list[dict[str, Any]] = shown.to_pylist()
        return found

    def merged_rows(self, warehouse: Path, table: Table) -> Iterable[Mapping[str, Any]]:
        with closing(LocalEngine(warehouse, self._format)) as engine:
            there = engine.table(table_path(table.id))
            assert there.snapshot() is not None
            return self.rows(there.rows())


def run(
    parties: Parties,
    seed: int,
    count: int,
    folder: Path,
    rounds: int,
    modes: Sequence[Mode] = ("current",),
    *,
    with_policies: bool = False,
) -> Histories:
    """Compare the live view before merges, between their commits, and after them."""
    warehouse = folder / "warehouse"
    made = Histories(range(seed, seed + count), HandLog(folder / "log"), modes, with_policies)
    chance = random.Random(seed)
    lost: set[str] = set()
    published: set[str] = set()

    def check(told: str) -> None:
        live = parties.read_live(made.log.root, warehouse)
        assert live.cut == made.log.cut
        wrong = [
            f"CDCFLOW_HISTORY_SEED={history.seed} CDCFLOW_HISTORIES=1, {told}, cut {made.log.cut},"
            f" {history.merged.mode}: {found}"
            for history in made.listed
            if (found := _difference(history, live, parties, is_lost=str(history.id) in lost)) is not None
        ]
        assert not wrong, "\n".join(wrong)

    for number in range(rounds):
        made.write_round()
        parties.policies = made.policies
        made.move_away(lambda table: warehouse.joinpath(*table_path(table)))
        lost |= {str(h.id) for h in made.listed if h.is_moved_away} & published
        check("before a merge")
        if number < rounds - 1 and chance.random() < 0.3:
            continue  # the tail grows
        if chance.random() < 0.5:
            parties.merge_and_die(made.log.root, warehouse, chance.randrange(count * 6))
            lost = {name for name in lost if name in published}
            check("after a merge that died")
        report = parties.merge(made.log.root, warehouse)
        made.check(report, lambda table: parties.merged_rows(warehouse, table))
        lost = set()
        published = {table.name for table in report.tables if table.left_out is None}
        check("after a merge")
    return made


def _difference(history: History, live: Live[Any], parties: Parties, *, is_lost: bool) -> str | None:
    name = str(history.id)
    is_left_out = history.merged.is_left_out
    expected = _merged_now(history)
    if is_left_out or is_lost or expected.is_left_out:
        return None if name in live.left_out and name not in live else "it is shown, and should be skipped"
    if expected.folded is None or expected.folded.shape is None:
        return None if name not in live else "the log has no row of it, and it is shown"
    if name not in live:
        return f"it is not shown: {live.left_out.get(name)}"
    shape = expected.folded.shape
    differ = differences(expected.expected(), expected.folded.actual(shape, parties.rows(live[name])))
    if differ:
        return "\n  ".join([f"{len(differ)} keys differ", *differ[:5]])
    if (name not in live.incomplete) != expected.is_whole(history.entry):
        return f"it is {'not ' if name in live.incomplete else ''}complete"
    return None


def _merged_now(history: History) -> Merged:
    """The table after a merge now."""
    found = copy.copy(history.merged)
    if found.folded is not None:
        found.folded = copy.copy(found.folded)
        found.folded.known = set(found.folded.known)
    found.types = dict(found.types)
    found.merge(history.entry)
    return found
