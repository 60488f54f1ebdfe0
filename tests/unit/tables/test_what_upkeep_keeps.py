"""What maintenance may remove, decided without any table."""

from __future__ import annotations

import pytest

from cdcflow.tables.cut import ListedCut
from cdcflow.tables.formats.delta import removals_known_since, retention
from cdcflow.tables.formats.iceberg import (
    BRANCH_S,
    KeptSnapshot,
    abandoned_branches,
    branch,
    expired_snapshots,
    expired_tags,
)
from cdcflow.tables.job.maintenance import first_kept

DAY = 86_400.0


def listed(*published: float) -> list[ListedCut]:
    return [ListedCut(10 * n, n, "p", n, int(at * 1e6), 1) for n, at in enumerate(published, start=1)]


@pytest.mark.parametrize(
    ("keep_s", "now", "oldest"),
    [(None, 1e9, 10), (100, 150, 10), (100, 150.5, 20), (100, 201, 30), (100, 10_000, 30), (1, 301, 30)],
)
def test_cuts_as_young_as_keep_stay_and_always_the_latest(keep_s: float | None, now: float, oldest: int) -> None:
    """Without the latest one, no reader could read the tables as of one cut until the next merge."""
    assert first_kept(listed(50, 100, 200), keep_s, now) == oldest


def test_tag_is_removed_when_its_cut_expired_and_no_younger_cut_shows_its_version() -> None:
    """The tag of a table that has not changed since is that of an old cut, and kept cuts read by it. A merge that is
    about to publish has a tag of a cut that is not listed yet."""
    tags = {"main": 9, "cdcflow_cut_1": 3, "cdcflow_cut_4": 5, "cdcflow_cut_7": 7, "cdcflow_cut_9": 9, "mine": 3}
    assert expired_tags(tags, {5, 7}, 6) == ["cdcflow_cut_1"]
    assert expired_tags(tags, {7}, 7) == ["cdcflow_cut_1", "cdcflow_cut_4"]
    assert expired_tags(tags, set(), 1) == []


def chain(*tells: bool) -> list[KeptSnapshot]:
    """Snapshots 1, 2, … each created from the previous one, committed a second after another."""
    return [KeptSnapshot(n, n, n - 1 or None, float(n), said) for n, said in enumerate(tells, start=1)]


@pytest.mark.parametrize(
    ("tells", "referred", "kept", "since", "gone"),
    [
        ([True] * 5, {5}, set(), 100, [1, 2, 3, 4]),
        ([True] * 5, {5, 2}, {3}, 100, [1, 4]),
        ([True] * 5, {5}, set(), 3, [1, 2]),
        ([True, True, True, False, False], {5}, set(), 100, [1, 2]),
        ([False] * 5, {5}, set(), 100, []),
    ],
)
def test_snapshots_that_record_a_table_s_position_stay(
    tells: list[bool], referred: set[int], kept: set[int], since: float, gone: list[int]
) -> None:
    """Another program's rewrite of files does not contain cdcflow's position; without its ancestors a table would be
    merged from the log's beginning once more."""
    assert expired_snapshots(chain(*tells), 5, referred, kept, since) == gone


def test_branches_that_no_process_uses_are_removed() -> None:
    """Only cdcflow's, and only a day after their creation: until then a merge may be using them."""
    now = 1e9
    old, young = branch(now - BRANCH_S - 1), branch(now - BRANCH_S + 1)
    assert old != branch(now - BRANCH_S - 1)
    assert abandoned_branches(["main", "cdcflow_cut_7", "cdcflow_fold_mine", old, young], now) == [old]


FILES, LOG = "delta.deletedFileRetentionDuration", "delta.logRetentionDuration"
KNOWN = "cdcflow.removals_known_since"


@pytest.mark.parametrize(
    ("keep_s", "settings", "set_to"),
    [
        (DAY, {}, {}),
        (7 * DAY, {}, {FILES: "interval 210 hours", KNOWN: str(int(93 * DAY))}),
        (40 * DAY, {}, {FILES: "interval 1200 hours", LOG: "interval 1200 hours", KNOWN: str(int(93 * DAY))}),
        (7 * DAY, {FILES: "interval 60 days"}, {}),
        (7 * DAY, {FILES: "interval 8 days"}, {FILES: "interval 210 hours", KNOWN: str(int(92 * DAY))}),
        (7 * DAY, {FILES: "interval 210 hours"}, {}),
        (7 * DAY, {FILES: "INTERVAL '1' MONTH"}, {}),
    ],
)
def test_table_remembers_removed_files_for_longer_than_cuts_are_kept(
    keep_s: float, settings: dict[str, str], set_to: dict[str, str]
) -> None:
    """A VACUUM removes files that Delta's log has forgotten as unreferenced. A user's longer setting stays; a setting
    that cdcflow does not understand stays too, and VACUUM is skipped."""
    assert retention(keep_s, settings, 100 * DAY) == set_to


def test_what_a_log_has_forgotten_stays_forgotten() -> None:
    """A table that keeps its removals longer from now on does not know the earlier ones: a VACUUM would remove their
    files as unreferenced. A setting that is not understood is not guessed at."""
    assert removals_known_since({}, 100 * DAY) == 93 * DAY
    assert removals_known_since({FILES: "interval 36 hours"}, 100 * DAY) == 98.5 * DAY
    assert removals_known_since({FILES: "soon"}, 100 * DAY) == 100 * DAY
    longer = retention(40 * DAY, {}, 100 * DAY)
    assert removals_known_since(longer, 100 * DAY) == 93 * DAY
    assert removals_known_since(longer, 120 * DAY) == 93 * DAY
    assert removals_known_since(longer, 150 * DAY) == 100 * DAY
