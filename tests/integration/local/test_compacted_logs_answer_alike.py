"""A log answers after `log compact` as before, at each of its offsets."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
from tests.support.log.backfill_histories import write_backfills
from tests.support.log.hand_log import HandLog, chain
from tests.support.merge.histories import make_table

import cdcflow
from cdcflow.errors import CdcflowError
from cdcflow.log.files.compaction import CompactionRule
from cdcflow.log.files.layout import Layout
from cdcflow.log.maintenance.retention import LogRetention

SEED = int(os.environ.get("CDCFLOW_COMPACT_SEED", "0")) or random.SystemRandom().randrange(1, 10**8)
ITEMS = make_table("items", id="int64", v="int32")
NAME = "public.items"
KEYS = range(4)
ALL = CompactionRule(256 << 20, growth=1)
"""Whatever their sizes."""


def answers(root: Path, last: int) -> list[object]:
    asked = cdcflow.open(root)
    found: list[object] = []
    for offset in range(last + 1):
        found.append(asked.lacks(NAME, offset))
        for key in KEYS:
            row = asked.get(NAME, key, as_of=offset)
            found.append((row.state, row.values, row.notes, row.unknown))
        try:
            found.append(sorted(asked.current(NAME, offset).to_pylist(), key=str))
        except CdcflowError as error:
            found.append(str(error))
    return found


@pytest.mark.spread(1)
@pytest.mark.parametrize("number", range(4))
def test_each_offset_has_the_answers_that_it_had(tmp_path: Path, number: int) -> None:
    """Two backfills in one segment: the last checkpoint alone would report most offsets as unknown."""
    chance = random.Random(SEED + number)
    log = HandLog(tmp_path / "log", has_transactions=True)
    log.segment([(ITEMS, "c", {"id": 0, "v": 0})])
    write_backfills(log, ITEMS, chance, KEYS)
    last, told = log.next_offset - 1, f"CDCFLOW_COMPACT_SEED={SEED + number}"
    before = answers(log.root, last)
    for _ in range(2):
        chain(Layout(log.root))
        # What is compacted once is compacted again, with what came since.
        assert LogRetention(Layout(log.root), grace_s=0).compact(ALL), told
        assert answers(log.root, last) == before, told
        for key in (1, 2):
            log.segment([(ITEMS, "u", {"id": key, "v": 9})])
