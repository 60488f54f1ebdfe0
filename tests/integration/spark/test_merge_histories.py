"""Random change histories, merged by Spark at random cuts, against the fold in plain Python.

Hundreds of histories go through each Spark job: the history's number is part of the key. Three tables share the log,
each with its own kind of trouble. A failure prints the seed; `CDCFLOW_SPARK_SEED=<seed>` replays it.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import pytest
from tests.support.merge.histories import (
    State,
    Step,
    World,
    assert_as_folded,
    differences,
    make_world,
    state_of,
    write_round,
)
from tests.support.spark.cuts import rows_between, rows_of_cut

from cdcflow.log.fold.fold import sweep
from cdcflow.model.table import Table
from cdcflow.spark.cuts import read_cut
from cdcflow.spark.job import MergeReport
from cdcflow.spark.sql import SparkSql
from cdcflow.tables.job import changes as view_of_changes
from cdcflow.tables.job.spans import shapes_over_time
from cdcflow.tables.merge import reduce as reduction
from cdcflow.tables.merge.evolution import evolve
from cdcflow.tables.segments import sealed_range

pytestmark = pytest.mark.spark

Merge = Callable[..., MergeReport]

SEED = int(os.environ.get("CDCFLOW_SPARK_SEED", "0")) or random.SystemRandom().randrange(1, 10**6)
HISTORIES = int(os.environ.get("CDCFLOW_SPARK_HISTORIES", "400"))


class Log(Protocol):
    root: Path
    next_offset: int

    def segment(self, rows: list[Step]) -> int: ...
    def state(self, table: Table, state: str = ..., generation: int = ..., since: int = ...) -> None: ...


@pytest.mark.spread(1)
def test_merges_at_random_cuts_give_what_the_fold_gives(
    spark: Any, hand_log: Any, warehouse: Path, merge: Merge
) -> None:
    """The fold is the meaning: hundreds of histories with every kind of change must come out of Spark the same.

    Hard cases G01, G02, G03, G04, G05, G06, G16, G18, G21, G23, G26, P08, P10, P18.
    """
    world = make_world(SEED, HISTORIES)
    print(f"seed {SEED}, {HISTORIES} histories a table")
    for round_ in range(3):
        write_round(world, hand_log, round_)
        assert merge(hand_log.root, warehouse).published
        rows = rows_between(warehouse) if round_ < 2 else rows_of_cut(spark, warehouse)
        assert_as_folded(world, rows, f"seed {SEED}, round {round_}")
    assert min(world.covered.values()) > 10, world.covered


@pytest.mark.spread(1)
def test_a_backfill_that_is_done_removes_what_it_did_not_find(
    spark: Any, hand_log: Any, warehouse: Path, merge: Merge
) -> None:
    """Rows deleted while no capture ran must not stay downstream indefinitely; the fold's `sweep` lists them."""
    world = make_world(SEED, HISTORIES)
    table = world.tables["keyed"]
    hand_log.state(table, "done", 1, 1)
    hand_log.segment([s for s in world.steps("keyed", 4 * HISTORIES) if "_unchanged" not in s[2]])
    merge(hand_log.root, warehouse)
    since = hand_log.next_offset
    hand_log.state(table, "reading", 2, since)
    hand_log.segment([(table, "r", {"h": h, "id": 1, "a": 5, "doc": "read", "note": None}) for h in range(HISTORIES)])
    merge(hand_log.root, warehouse)
    world.apply("keyed", list(hand_log.written))
    assert not differences(world.expected("keyed"), state_of(table, rows_of_cut(spark, warehouse)(table)))
    assert str(table.id) not in read_cut(spark, warehouse), "its backfill is not done: skipped unless requested"

    hand_log.state(table, "done", 2, since)
    hand_log.segment([(table, "d", {"h": 0, "id": 1})])
    merge(hand_log.root, warehouse)
    world.apply("keyed", list(hand_log.written[-1:]))
    standing = len(world.rows["keyed"])
    world.rows["keyed"] = sweep(world.rows["keyed"], since)
    assert len(world.rows["keyed"]) < standing
    assert not differences(world.expected("keyed"), state_of(table, rows_of_cut(spark, warehouse)(table)))
    assert str(table.id) in read_cut(spark, warehouse)


def reduced(spark: Any, log: Any, table: Table) -> State:
    """The reduction alone, of a whole log into a table that is empty."""
    files = sealed_range(log.root).files(table.id, 0)
    evolution = evolve(None, shapes_over_time(files))
    layout = reduction.ColumnLayout.of(evolution, shapes_over_time(files))
    names = [c.name for c in table.columns]
    found: State = {}
    session = SparkSql(spark)
    with view_of_changes.view(session, layout, files, view_of_changes.last_truncate(session, files), None) as seen:
        kinds = reduction.families(layout, seen.masks)
        sql = reduction.reduction(layout, kinds, seen.name, emptied=True, sweep_before=0)
        for row in spark.sql(sql).where("NOT gone").collect():
            missing = frozenset(row.miss or ())
            values = {n: row[f"c{i}"] for i, n in enumerate(names)}
            key = tuple(values[k] for k in table.key_columns)
            found[key] = ({n: v for n, v in values.items() if n not in missing}, missing, row.o, 1)
    return found


def _whole_newest_row(patch: pytest.MonkeyPatch) -> None:
    found = reduction.families
    patch.setattr(reduction, "families", lambda layout, masks: found(layout, ()))


def _no_barriers(patch: pytest.MonkeyPatch) -> None:
    _without(patch, "WHEN op IN ('c', 'r', 'd') THEN o", "WHEN false THEN o")


def _deletes_ignored(patch: pytest.MonkeyPatch) -> None:
    _without(patch, "(op = 'd' OR", "(false OR")


def _moves_not_followed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(view_of_changes, "_complete_moves", lambda _, views, layout, masks, name, *more: name)


def _truncates_ignored(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(view_of_changes, "last_truncate", lambda *_: 0)


def _without(patch: pytest.MonkeyPatch, right: str, wrong: str) -> None:
    built = reduction.reduction

    def planted(*given: Any, **more: Any) -> str:
        sql = built(*given, **more)
        assert right in sql, "the planted bug must be planted"
        return sql.replace(right, wrong)

    patch.setattr(reduction, "reduction", planted)


BUGS = (_whole_newest_row, _no_barriers, _deletes_ignored, _moves_not_followed, _truncates_ignored)


@pytest.fixture(scope="module")
def small_world(hand_log_at: Callable[..., Any]) -> tuple[World, Any]:
    # Always the same changes: not every seed has, for every bug, one that it spoils.
    world = make_world(7, 100)
    log = hand_log_at("planted")
    truncate: Step = (world.tables["keyed"], "t", {})
    log.segment([*world.steps("keyed", 50), truncate, *world.steps("keyed", 600)])
    world.apply("keyed", log.written)
    return world, log


def test_reduction_alone_equals_the_fold(spark: Any, small_world: tuple[World, Any]) -> None:
    """The planted bugs below mean something only if without them nothing differs."""
    world, log = small_world
    assert not differences(world.expected("keyed"), reduced(spark, log, world.tables["keyed"]))


@pytest.mark.spread(1)
@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__.strip("_"))
def test_a_planted_bug_is_seen(
    bug: Callable[[pytest.MonkeyPatch], None],
    spark: Any,
    small_world: tuple[World, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A comparison that cannot fail proves nothing: each of these wrong reductions must differ from the fold."""
    world, log = small_world
    bug(monkeypatch)
    assert differences(world.expected("keyed"), reduced(spark, log, world.tables["keyed"]))
