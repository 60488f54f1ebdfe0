"""Spark goes on where the local engine left off, and the other way round."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from mergehistories import assert_as_folded, make_world, write_round

from cdcflow import local
from cdcflow.local import replacing
from cdcflow.model.table import Table
from cdcflow.spark import job, published_cut, read_cut
from cdcflow.warehouse.formats import FORMATS

pytestmark = pytest.mark.spark


@pytest.mark.parametrize("table_format", FORMATS)
def test_each_engine_goes_on_where_the_other_left_off(
    spark: Any, hand_log: Any, warehouse: Path, table_format: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows, positions, descriptions, cuts and tags are the same: nothing says who wrote them, and no edit is seen."""
    monkeypatch.setattr(replacing, "TINY_BYTES", 0)  # rows are marked in small files, too
    seed = random.SystemRandom().randrange(10**6)
    world = make_world(seed, 100)

    def rows(table: Table) -> list[Any]:
        found: list[Any] = read_cut(spark, warehouse, incomplete=True)[str(table.id)].collect()
        return found

    cuts = []
    for round_ in range(3):
        for by_spark in (False, True) if round_ % 2 == 0 else (True, False):
            write_round(world, hand_log, round_ if by_spark == bool(round_ % 2) else 3)
            if by_spark:
                report = job.merge(spark, hand_log.root, warehouse, table_format=table_format)
            else:
                report = local.merge(hand_log.root, warehouse, table_format=table_format)
            assert report.published
            cuts.append(report.cut)
            assert {t.engine for t in report.tables} == {"spark" if by_spark else "local"}
            assert not [edit for t in report.tables for edit in t.edits]
            assert_as_folded(world, rows, f"seed {seed}")
    assert published_cut(spark, warehouse).cut == hand_log.cut
    early = read_cut(spark, warehouse, cuts[1], incomplete=True)
    assert early.keys() == {f"public.{name}" for name in world.tables}
    assert all(frame.count() for frame in early.values())
