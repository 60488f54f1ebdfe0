"""The replicated journal, simulated: whatever fails, nothing that was acknowledged is lost or replaced."""

from __future__ import annotations

import os
from dataclasses import dataclass

import pytest
from tests.simulation.quorum_world import Lost, Rules, World

from cdcflow.sinks.quorum import promises
from cdcflow.sinks.quorum.promises import EpochWriter, Promise

SEEDS = int(os.environ.get("QUORUM_SEEDS", "200"))
STEPS = 1500


def test_nothing_acknowledged_is_lost_whatever_fails() -> None:
    """Writers that are halted across takeovers, broken links, crashes and lost disks. A failure names its seed."""
    acknowledged, epochs = 0, 0
    for seed in range(SEEDS):
        world = World(seed, Rules())
        try:
            world.run(STEPS)
        except Lost as lost:
            raise AssertionError(f"seed {seed}: {lost}") from lost
        acknowledged += len(world.acknowledged)
        epochs += max(peer.promise.promised for peer in world.peers)
    assert acknowledged > SEEDS * 5, "the simulation acknowledges too little to show anything"
    assert epochs > SEEDS * 3, "the simulation has too few takeovers to show anything"


def _one_is_enough(durable: list[int], peers: int) -> int:
    return max(durable, default=0)


def _believes_too_long(promise: Promise, writer: EpochWriter) -> None:
    """A peer that still stores what an older writer sends, as long as it has what that one installed."""


def _follows_anyone(promise: Promise, writer: EpochWriter) -> Promise:
    return Promise(promise.group or writer.group, max(writer.epoch, promise.promised), writer.id, promise.accepted)


def _any_answer_proves(known: list[Promise], peers: int) -> bool:
    return len(known) >= promises.majority(peers) and all(not promise.accepted for promise in known)


def _promise_is_not_checked(
    reports: list[promises.PeerReport], writer: EpochWriter, peers: int
) -> promises.PeerReport | None:
    return max(reports, key=lambda report: report.extent) if len(reports) >= promises.majority(peers) else None


@dataclass
class Planted:
    name: str
    rules: Rules


RARE = ("empty peers counted as new", "reports before a majority has promised")
"""Need thousands of seeds."""

PLANTED = [
    Planted("acknowledged before the quorum", Rules(acknowledged=_one_is_enough)),
    Planted("epoch believed too long", Rules(check_append=_believes_too_long)),
    Planted("an older writer fences", Rules(fencing_promise=_follows_anyone)),
    Planted("empty peers counted as new", Rules(proves_new=_any_answer_proves)),
    Planted("empty peer reports", Rules(blank_report=True)),
    Planted("empty peer counts after the copy", Rules(counts_again=lambda confirmed, peers: True)),
    Planted("reports before a majority has promised", Rules(reports_before_the_majority=True)),
    Planted("longest by size alone", Rules(longest=_promise_is_not_checked)),
]


@pytest.mark.spread(3)
@pytest.mark.parametrize(
    "planted",
    [pytest.param(one, id=one.name, marks=[pytest.mark.long] if one.name in RARE else []) for one in PLANTED],
)
def test_simulation_finds_a_planted_bug(planted: Planted) -> None:
    """A simulation that finds nothing shows nothing: each rule matters, and breaking it loses something."""
    for seed in range(40 * SEEDS):
        try:
            World(seed, planted.rules).run(STEPS)
        except Lost:
            return
    pytest.fail(f"no seed of {40 * SEEDS} loses anything")
