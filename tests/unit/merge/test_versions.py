"""The history's oracle: what it says is what was so at the source, however the log is cut."""

from __future__ import annotations

import os
import random

import pytest
from embeddedhistory import EmbeddedHistory
from versionhistories import KEY, Log, Piece, as_text, make, split, untrue

from cdcflow.merge.fold import History, Key, Version, history

SEEDS = int(os.environ.get("CDCFLOW_VERSION_HISTORIES", "400"))
SQL_SEEDS = SEEDS // 4


def told(pieces: list[list[Piece]]) -> History:
    found = History()
    for group in pieces:
        changes = [change for piece in group for change in piece.changes]
        last = group[-1]
        step = history(found.open, changes, KEY, since=last.since, swept=last.is_done)
        found.open = step.open
        found.ended += step.ended
    return found


def all_of(found: History) -> list[tuple[Key, Version]]:
    return sorted([*found.ended, *found.open.items()], key=lambda kv: (str(kv[0]), kv[1].start.offset))


def test_versions_say_what_was_so_at_the_source() -> None:
    """Each version, in each of its columns, over all of the time that it names."""
    for seed in range(SEEDS):
        log: Log = make(seed)
        found = all_of(told([log.pieces])) if log.pieces else []
        wrong = untrue(log, found)
        assert not wrong, f"seed {seed}\n" + "\n".join(wrong) + "\n" + as_text(log.changes(log.pieces))


@pytest.mark.parametrize("generations", [1])
def test_versions_are_the_same_however_merges_cut_the_log(generations: int) -> None:
    """A merge more or less must not change what history says."""
    for seed in range(SEEDS):
        log = make(seed, generations=generations)
        if not log.pieces:
            continue
        whole = all_of(told([log.pieces]))
        cut = all_of(told(split(random.Random(seed), log.pieces)))
        assert cut == whole, f"seed {seed}\n" + as_text(log.changes(log.pieces))


def merged(groups: list[list[Piece]]) -> list[tuple[Key, Version]]:
    there = EmbeddedHistory()
    try:
        for group in groups:
            there.merge(group)
        return there.versions()
    finally:
        there.close()


def test_the_sql_gives_what_the_oracle_says() -> None:
    """For any log, and however merges cut it."""
    for seed in range(SQL_SEEDS):
        log = make(seed)
        groups = split(random.Random(seed), log.pieces)
        if log.pieces:
            expected = all_of(told(groups))
            found = merged(groups)
            assert found == expected, f"seed {seed}\n{differences(expected, found)}\n{as_text(log.changes(log.pieces))}"


def differences(expected: list[tuple[Key, Version]], found: list[tuple[Key, Version]]) -> str:
    lines = [f"  lacks {v}" for v in expected if v not in found] + [f"  has {v}" for v in found if v not in expected]
    return "\n".join(lines)
