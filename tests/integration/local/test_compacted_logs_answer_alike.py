"""A log answers after `log compact` as before, at each of its offsets."""

from __future__ import annotations

import os
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from handlog import HandLog
from mergehistories import make_table

import cdcflow
from cdcflow.changelog.layout import Layout
from cdcflow.changelog.segment import manifest_hash
from cdcflow.errors import CdcflowError
from cdcflow.sinks.retention import Retention

SEED = int(os.environ.get("CDCFLOW_COMPACT_SEED", "0")) or random.SystemRandom().randrange(1, 10**8)
ITEMS = make_table("items", id="int64", v="int32")
NAME = "public.items"
KEYS = range(4)


def written(log: HandLog, chance: random.Random) -> None:
    """Segments with changes, and backfills that begin, end, are given up and begin again; a gap now and then."""
    generation, since, whole, state = 0, 1, None, "waiting"
    gap: dict[str, Any] = {}
    for _ in range(chance.randint(5, 9)):
        match chance.randrange(4):
            case 0 if state in ("waiting", "done", "cancelled"):
                whole = since if state == "done" else whole
                generation, since, state = generation + 1, log.next_offset, "reading"
            case 1 if state == "reading":
                state = chance.choice(("done", "done", "cancelled"))
            case 2 if chance.random() < 0.3:
                gap = {"gap": {"offset": log.next_offset, "until": 0, "proven": None}}
        op = "r" if state == "reading" or chance.random() < 0.2 else chance.choice("cu")
        log.state(ITEMS, state, generation, since, **({} if whole is None else {"whole_since": whole}), **gap)
        log.segment([(ITEMS, op, {"id": key, "v": chance.randrange(9)}) for key in chance.sample(KEYS, 2)])


def chained(layout: Layout) -> None:
    """Have each manifest name the one before it, as sealing does."""
    before = None
    for bounds in layout.segment_offsets():
        segment, text = layout.manifest(*bounds)
        if before is not None:
            segment = replace(segment, previous=before[0].stands_for or manifest_hash(before[1]))
            text = segment.to_json().encode()
            (layout.segment(*bounds) / "segment.json").write_bytes(text)
        before = segment, text


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


@pytest.mark.parametrize("number", range(4))
def test_each_offset_has_the_answers_that_it_had(tmp_path: Path, number: int) -> None:
    """Two backfills in one segment: the last checkpoint alone says of most offsets that nothing is known."""
    chance = random.Random(SEED + number)
    log = HandLog(tmp_path / "log", has_transactions=True)
    log.segment([(ITEMS, "c", {"id": 0, "v": 0})])
    written(log, chance)
    last, told = log.next_offset - 1, f"CDCFLOW_COMPACT_SEED={SEED + number}"
    before = answers(log.root, last)
    for _ in range(2):
        chained(Layout(log.root))
        # What is compacted once is compacted again, with what came since.
        assert Retention(Layout(log.root), grace_s=0).compact(), told
        assert answers(log.root, last) == before, told
        for key in (1, 2):
            log.segment([(ITEMS, "u", {"id": key, "v": 9})])
