"""Tables in mode history, merged by Spark and by the local engine in turn: both write the same versions."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.support.log.hand_log import HandLog
from tests.support.versions.histories import make, split
from tests.support.versions.logs import versions, write
from tests.support.versions.tables import HISTORIES, rows, told

from cdcflow import local
from cdcflow.spark import job
from cdcflow.tables.formats import FORMATS
from cdcflow.tables.job.reports import MergeReport

pytestmark = pytest.mark.spark


@pytest.mark.parametrize("table_format", FORMATS)
@pytest.mark.parametrize("seed", [3])
@pytest.mark.long
def test_versions_are_the_same_by_every_engine(seed: int, table_format: str, spark: Any, tmp_path: Path) -> None:
    """Each merges into what the other left: partial rows, key changes, truncates, a backfill that finds less."""
    log = make(seed, blocks=24)
    hand_log, warehouse = HandLog(tmp_path / "log", has_transactions=True), tmp_path / "warehouse"
    transactions = {c.offset: c.transaction for c in log.changes(log.pieces)}
    merges = split(random.Random(seed), log.pieces)[-4:]
    first = len(log.pieces) - sum(map(len, merges))
    merges[0] = [*log.pieces[:first], *merges[0]]
    by: list[Callable[..., MergeReport]] = [functools.partial(job.merge, spark), local.merge]
    for number, pieces in enumerate(merges):
        write(hand_log, pieces)
        report = by[number % 2](hand_log.root, warehouse, table_format=table_format, policies=HISTORIES)
        assert [t.left_out for t in report.tables] == [None]
        assert versions(rows(warehouse, table_format), transactions) == told(merges[: number + 1])
