"""Simulated takeovers: what is acknowledged is in the log, once and in order."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any
from unittest import mock

import pytest
from tests.simulation.takeovers import run

from cdcflow.capture.term import Term
from cdcflow.log.disk.lease import Lease
from cdcflow.sinks.files import recovery

SEEDS = int(os.environ.get("SEEDS", "25"))
SEEDS_TO_FIND = 400
EXERCISED = ("suspended", "opened", "WriterReplaced", "SinkUnavailable")


def counts_from_the_answer(term: Term, asked_at: float, *, held: bool) -> None:
    term.held_until = asked_at + 2 * term.ttl_s if held else None


PLANTED: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "the lease is believed indefinitely": lambda: mock.patch.object(
        Term, "is_held", lambda term, now: term.held_until is not None
    ),
    "the lease is believed twice as long": lambda: mock.patch.object(Term, "record_answer", counts_from_the_answer),
    "the epoch is not checked": lambda: mock.patch.object(Lease, "check", return_value=None),
    "a start leaves journals that earlier writers have not named yet": lambda: mock.patch.object(
        recovery, "_journals_without_name", return_value=[]
    ),
    "an epoch may be that of a journal that exists": lambda: mock.patch.object(
        recovery, "_newest_epoch", return_value=0
    ),
}


def test_nothing_is_lost_doubled_or_reordered_by_takeovers() -> None:
    """L10, L11, L12. Again with: `run(seed)` of tests/simulation/takeovers.py."""
    outcomes = [run(seed) for seed in range(SEEDS)]
    broken = [f"seed {o.seed}: {o.violation}" for o in outcomes if o.violation is not None]
    assert not broken, "\n".join(broken[:5])
    counts: Counter[str] = Counter()
    for outcome in outcomes:
        counts += outcome.counts
    assert [what for what in EXERCISED if not counts[what]] == []


def test_a_seed_plays_the_same_takeovers_again() -> None:
    assert run(3).counts == run(3).counts


@pytest.mark.spread(2)
@pytest.mark.parametrize("bug", PLANTED)
def test_bug_planted_in_takeovers_is_found(bug: str) -> None:
    """The check can fail: with each of these, some schedule shows it."""
    assert any(run(seed, PLANTED[bug]).violation is not None for seed in range(SEEDS_TO_FIND))
