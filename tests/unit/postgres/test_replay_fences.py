"""What a standby's snapshot sees, as bounds in its log (W06)."""

from __future__ import annotations

import copy

import numpy as np
import pytest

from cdcflow.errors import SourceUnavailable
from cdcflow.model.change import Uint64s
from cdcflow.sources.postgres.lsn import Lsn
from cdcflow.sources.postgres.replay_fences import DeliveredCommits, ReplayVisibility, unseen_from


def ids(*xids: int) -> Uint64s:
    return np.array(xids, np.uint64)


def delivered(*commits: tuple[int, int], since: int = 0) -> DeliveredCommits:
    """A register with these (id, begin of the commit record), each delivered separately."""
    made = DeliveredCommits(Lsn(since))
    for xid, begin in commits:
        made.add(ids(xid), np.array([begin], np.int64))
    return made


def test_commits_that_begin_at_the_bound_are_hidden_whatever_their_ids() -> None:
    """The order is that of the log: a long transaction has a low id and a late commit."""
    commits = delivered((900, 100), (50, 200), (901, 300))
    fence = commits.fence(Lsn(200))
    assert fence.hidden(ids(900, 50, 901)).tolist() == [50, 901]
    assert commits.fence(Lsn(201)).hidden(ids(900, 50, 901)).tolist() == [901]
    assert fence.hidden(ids()).tolist() == []
    assert fence.maybe_hidden().tolist() == []


def test_what_every_fence_in_use_sees_is_forgotten_and_stays_visible() -> None:
    commits = delivered((1, 100), (2, 200), (3, 300))
    early = commits.fence(Lsn(150))
    with commits.look():
        late = commits.fence(Lsn(250))
    assert len(commits) == 2
    assert early.hidden(ids(1, 2, 3)).tolist() == [2, 3]
    del early
    with commits.look():
        pass
    assert len(commits) == 1
    assert late.hidden(ids(1, 2, 3)).tolist() == [3]


def test_end_is_a_bound_after_everything_that_was_delivered() -> None:
    assert delivered(since=70).end == Lsn(70)
    commits = delivered((900, 100), (50, 200))
    assert commits.fence(commits.end).hidden(ids(900, 50)).tolist() == []
    assert commits.fence(Lsn(commits.end.value - 1)).hidden(ids(900, 50)).tolist() == [50]


def test_nothing_is_forgotten_while_a_bound_has_no_fence_yet() -> None:
    commits = delivered((1, 100), (2, 200))
    with commits.look():
        with commits.look():
            newer = commits.fence(Lsn(300))
        older = commits.fence(Lsn(150))
        assert older.hidden(ids(1, 2)).tolist() == [2]
    assert newer.hidden(ids(1, 2)).tolist() == []


@pytest.mark.parametrize("bound", [99, 149])
def test_standby_that_lags_behind_what_was_forgotten_is_refused(bound: int) -> None:
    """Connections may lead to several standbys: one that has replayed less than the log has must not be read."""
    commits = delivered((1, 149), since=100)
    with commits.look():
        assert commits.fence(Lsn(200)).bound == Lsn(200)
        kept = commits.fence(Lsn(200))
    with pytest.raises(SourceUnavailable, match="replayed"):
        commits.fence(Lsn(bound))
    assert kept.hidden(ids(1)).tolist() == []


def test_bound_read_in_another_process_is_used_here() -> None:
    sent = copy.copy(ReplayVisibility(Lsn(200)))  # by pickle's protocol
    with pytest.raises(TypeError):
        sent.hidden(ids(1))
    assert delivered((1, 100), (2, 200)).fence(sent.bound).hidden(ids(1, 2)).tolist() == [2]


@pytest.mark.parametrize(
    ("replayed", "received", "is_receiving", "unseen"),
    [
        (5000, 5000, True, 5000),  # nothing was received that could be in replay
        (5000, 5001, True, 5001),  # one record may be: it begins at 5000
        (5000, 4000, True, 5000),  # the receiver has just begun again, at the segment's start
        (5000, 5000, False, 5001),  # the log is read from an archive now
        (5000, None, True, 5001),
        (8192, 9000, True, 8233),  # the next record is after a page's header
    ],
)
def test_record_in_replay_may_be_seen(replayed: int, received: int | None, is_receiving: bool, unseen: int) -> None:
    """A commit is visible before its record counts as replayed."""
    at = None if received is None else Lsn(received)
    assert unseen_from(Lsn(replayed), at, is_receiving=is_receiving) == Lsn(unseen)
