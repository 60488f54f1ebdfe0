"""Schedules by the thousand through the real pipeline, and bugs planted to prove that they would be found."""

from __future__ import annotations

import os
from collections import Counter

import pytest
from tests.simulation.planted import EARLY, IN_BINLOGS, IN_GAPS, IN_REFUSALS, IN_REPAIRS, MORE, ON_STANDBYS, PLANTED
from tests.simulation.run import replay
from tests.simulation.servers import SERVERS
from tests.simulation.world import ON_DISK_EVERY, Outcome, run

SEEDS = int(os.environ.get("CDCFLOW_SEEDS", "300"))
SEEDS_TO_FIND = 1000
"""How many schedules a planted bug may survive. Most are found in the first ten."""

FOUND_LATE = {"table captured again over running transactions": pytest.mark.long}
"""Needs more than a thousand schedules, and gets three times as many: for `make test-long`."""

SEEDS_TO_FIND_EARLY = 150
"""How many an early acknowledgement may survive."""

EXERCISED = [
    "appended and lost",
    "async commits erased",
    "capture crashes",
    "chunk given up: a chunk was cut off",
    "chunk given up: a mark was cut off",
    "chunk given up: delivered transactions are not visible yet",
    "chunk given up: the table was rewritten",
    "chunk given up: too many changes were held back",
    "chunk given up: truncated in the window",
    "columns added",
    "columns filled",
    "commit clocks moved by heartbeats",
    "crashes inside of a sync",
    "ended by Restart",
    "ended by SinkUnavailable",
    "ended by SourceUnavailable",
    "executor dies before",
    "executor dies behind",
    "executor dies within",
    "executor writes",
    "heartbeats",
    "keys chunks asked",
    "keys moved at a bad time",
    "looks asked",
    "ordered backfill",
    "ordered cancel",
    "ordered pause",
    "range chunks asked",
    "rewrites",
    "rolled",
    "rollbacks",
    "savepoints rolled back",
    "sealed",
    "server crashes",
    "skipped after a restart",
    "starts put off",
    "statements that changed rows",
    "stopped",
    "syncs in the loop",
    "table done",
    "table to be read again",
    "tables captured again",
    "tables no longer captured",
    "truncates",
    "whole chunks asked",
    "windows closed with several chunks",
    "windows closed with transactions held",
]


EXERCISED_IN_BINLOGS = [
    "commit clocks moved by heartbeats",
    "keys chunks asked",
    "partitions emptied",
    "range chunks asked",
    "rows inserted into a partition before it was emptied",
    "server crashes",
    "table done",
    "table to be read again",
]

EXERCISED_ON_STANDBYS = [
    "columns filled",
    "commit clocks moved by heartbeats",
    "keys chunks asked",
    "keys moved at a bad time",
    "range chunks asked",
    "server crashes",
    "statements that changed rows",
    "table done",
    "table to be read again",
    "whole chunks asked",
    "windows closed with transactions held",
]

EXERCISED_IN_REPAIRS = [
    "crashes",
    "deletes lost",
    "keys moved at a bad time",
    "ordered repair",
    "repair chunks with deletes",
    "repair chunks with keys left",
    "rows inserted while they are repaired",
    "rows repaired",
]

EXERCISED_IN_GAPS = [
    "compared too early",
    "crashes",
    "gaps",
    "repaired after a gap",
    "repair chunks with deletes",
    "rows in gaps",
    "table in doubt",
]

BINLOG_SEEDS = SEEDS // 5
"""Of each kind of server with a binary log."""

STANDBY_SEEDS = SEEDS // 5

REPAIR_SEEDS = SEEDS // 5
"""Of each of two servers, with deletes that the log never gets."""


GAP_SEEDS = {"postgres": SEEDS // 5, "mysql": SEEDS // 10, "mariadb-read-only": SEEDS // 10}


@pytest.fixture(scope="module")
def outcomes() -> list[Outcome]:
    return [run(seed) for seed in range(SEEDS)]


def test_every_schedule_keeps_the_invariants(outcomes: list[Outcome]) -> None:
    """I1 to I9 at every cut, over crashes of both sides and restarts from older positions (W01, W02, W08, W10-W15,
    W23, W24, W27, L15, O01, O05)."""
    broken = [f"{o.violation}; play it again with: {replay(o.seed)}" for o in outcomes if o.violation is not None]
    assert not broken, "\n".join(broken[:5])


@pytest.mark.long
def test_the_schedules_exercise_what_they_claim(outcomes: list[Outcome]) -> None:
    """A simulation in which nothing dangerous ever happens would always be green."""
    counts: Counter[str] = Counter()
    for outcome in outcomes:
        counts += outcome.counts
    assert [what for what in EXERCISED if not counts[what]] == []
    assert sum(o.cuts for o in outcomes) > 10 * len(outcomes)


@pytest.mark.spread(1)
@pytest.mark.parametrize("server", [name for name, server in SERVERS.items() if server.has_binlog])
def test_schedules_of_a_binary_log_keep_the_invariants(server: str) -> None:
    """W03, W04: MySQL and MariaDB deliver a transaction before they show it, also while they wait for a replica, and
    where nothing is written into the source, a chunk's place is given by GTIDs or by a place in the log."""
    outcomes = [run(seed, server=SERVERS[server]) for seed in range(BINLOG_SEEDS)]
    broken = [f"{o.violation}; again with: {replay(o.seed, server)}" for o in outcomes if o.violation is not None]
    assert not broken, "\n".join(broken[:5])
    counts: Counter[str] = Counter()
    for outcome in outcomes:
        counts += outcome.counts
    assert [what for what in EXERCISED_IN_BINLOGS if not counts[what]] == []
    hidden = counts["chunk given up: delivered transactions are not visible yet"]
    assert hidden or SERVERS[server].writes_marks  # when a mark is answered, all that was logged before it is visible


def test_schedules_on_a_standby_keep_the_invariants() -> None:
    """W06: nothing is written, a snapshot is known by two places in the replayed log, and a commit is visible shortly
    before its record counts as replayed."""
    outcomes = [run(seed, server=SERVERS["postgres-standby"]) for seed in range(STANDBY_SEEDS)]
    broken = [f"{o.violation}; again with: {replay(o.seed, 'postgres-standby')}" for o in outcomes if o.violation]
    assert not broken, "\n".join(broken[:5])
    counts: Counter[str] = Counter()
    for outcome in outcomes:
        counts += outcome.counts
    assert [what for what in EXERCISED_ON_STANDBYS if not counts[what]] == []


@pytest.mark.spread(1)
@pytest.mark.parametrize("bug", ON_STANDBYS)
def test_bug_planted_in_a_standbys_source_is_found(bug: str) -> None:
    """Each of the two places, and each mark, is needed."""
    server = SERVERS["postgres-standby"]
    assert any(run(seed, ON_STANDBYS[bug], server).violation is not None for seed in range(SEEDS_TO_FIND))


@pytest.mark.spread(1)
@pytest.mark.parametrize("server", ["postgres", "mysql-read-only"])
def test_repairs_restore_rows_that_the_log_lost(server: str) -> None:
    """A row whose delete the log never got stays indefinitely, unless a repair finds it. Repairs of rows that are
    right, of keys that no row has, and of rows that change just then do no harm at any cut, over crashes of both
    sides."""
    outcomes = [run(seed, server=SERVERS[server], repairs=True) for seed in range(REPAIR_SEEDS)]
    again = [replay(o.seed, server, repairs=True) for o in outcomes]
    broken = [
        f"{o.violation}; again with: {a}" for o, a in zip(outcomes, again, strict=True) if o.violation is not None
    ]
    assert not broken, "\n".join(broken[:5])
    counts: Counter[str] = Counter()
    for outcome in outcomes:
        counts += outcome.counts
    assert [what for what in EXERCISED_IN_REPAIRS if not counts[what]] == []


@pytest.mark.spread(1)
@pytest.mark.parametrize("bug", IN_REPAIRS)
def test_bug_planted_in_repairs_is_found(bug: str) -> None:
    """Deletes belong to low, before the rows, and only to keys that were read."""
    assert any(run(seed, IN_REPAIRS[bug], repairs=True).violation is not None for seed in range(SEEDS_TO_FIND))


@pytest.mark.spread(1)
@pytest.mark.parametrize("server", ["postgres", "mysql", "mariadb-read-only"])
def test_comparisons_complete_the_tables_after_a_gap(server: str) -> None:
    """The source has discarded log. A table counts as whole again only when it is, over crashes of both sides, and all
    of them do in the end."""
    outcomes = [run(seed, server=SERVERS[server], gaps=True) for seed in range(GAP_SEEDS[server])]
    again = [replay(o.seed, server, gaps=True) for o in outcomes]
    broken = [
        f"{o.violation}; again with: {a}" for o, a in zip(outcomes, again, strict=True) if o.violation is not None
    ]
    assert not broken, "\n".join(broken[:5])
    counts: Counter[str] = Counter()
    for outcome in outcomes:
        counts += outcome.counts
    assert [what for what in EXERCISED_IN_GAPS if not counts[what]] == []


@pytest.mark.spread(1)
@pytest.mark.parametrize("bug", IN_GAPS)
def test_bug_planted_after_gaps_is_found(bug: str) -> None:
    """A table that lost changes must never be reported as complete."""
    assert any(run(seed, IN_GAPS[bug], gaps=True).violation is not None for seed in range(SEEDS_TO_FIND))


@pytest.mark.spread(1)
@pytest.mark.parametrize("server", ["postgres", "mysql", "mariadb-read-only"])
def test_tables_whose_rows_cannot_leave_fail_alone_and_become_whole_again(server: str) -> None:
    """Over crashes of both sides, in windows, while tables are read: no cut reports such a table as whole, all others
    have every row, and in the end all are equal."""
    outcomes = [run(seed, server=SERVERS[server], refusals=True) for seed in range(GAP_SEEDS[server])]
    broken = [f"{o.violation}; again with: {replay(o.seed, server, refusals=True)}" for o in outcomes if o.violation]
    assert not broken, "\n".join(broken[:5])
    assert sum(outcome.counts["changes refused"] for outcome in outcomes) > 0


@pytest.mark.spread(1)
@pytest.mark.parametrize("bug", IN_REFUSALS)
def test_bug_planted_in_refusals_is_found(bug: str) -> None:
    assert any(run(seed, IN_REFUSALS[bug], refusals=True).violation is not None for seed in range(SEEDS_TO_FIND))


@pytest.mark.parametrize("seed", [7, ON_DISK_EVERY])
def test_a_seed_plays_the_same_schedule_again(seed: int) -> None:
    """A failing seed is worth nothing if it does not fail again, whatever its log is stored in."""
    assert run(seed) == run(seed)


@pytest.mark.spread(3)
@pytest.mark.parametrize("bug", [pytest.param(bug, marks=FOUND_LATE.get(bug, ())) for bug in [*PLANTED, *MORE]])
def test_planted_bug_is_found(bug: str) -> None:
    """The check can fail: each of these bugs loses, doubles or falsifies data, and some schedule shows it."""
    faults = {**PLANTED, **MORE}[bug]
    seeds = SEEDS_TO_FIND * (3 if bug in FOUND_LATE else 1)
    assert any(run(seed, faults).violation is not None for seed in range(seeds))


@pytest.mark.parametrize("bug", EARLY)
def test_early_acknowledgement_is_found_soon(bug: str) -> None:
    """Invariant 2: the source forgets what is acknowledged; acknowledged before the sync, it is lost in a power cut."""
    assert any(run(seed, EARLY[bug]).violation is not None for seed in range(SEEDS_TO_FIND_EARLY))


@pytest.mark.spread(1)
@pytest.mark.parametrize("bug", IN_BINLOGS)
def test_bug_planted_in_a_binary_logs_source_is_found(bug: str) -> None:
    """The check can fail here too."""
    server, faults = IN_BINLOGS[bug]
    assert any(run(seed, faults, server).violation is not None for seed in range(SEEDS_TO_FIND))
