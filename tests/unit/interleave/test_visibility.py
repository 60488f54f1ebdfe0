"""Which delivered transactions a snapshot does not see, and what may be forgotten."""

from __future__ import annotations

import numpy as np
import pytest

from cdcflow.capture.interleave.delivered import Delivered
from cdcflow.model.change import Uint64s
from cdcflow.sources.memory_database import MemorySnapshot
from cdcflow.sources.mysql.fences import CoordinateVisibility
from cdcflow.sources.mysql.position import Coordinate
from cdcflow.sources.postgres.xid_snapshot import IDS_ABOVE_XMAX, XidSnapshot


def ids(*values: int) -> Uint64s:
    return np.array(values, np.uint64)


@pytest.mark.parametrize("epoch", [0, 1, 7])
def test_ids_are_compared_across_widths_after_a_wraparound(epoch: int) -> None:
    """The log has 32-bit ids, a snapshot 64-bit ones; around a wraparound small ids are the newer ones (W07)."""
    xmax = (epoch + 1) * 2**32 + 3
    snapshot = XidSnapshot(xmax - 6, xmax, frozenset({xmax - 5}))
    old, running, seen, next_one = ((xmax + d) & 0xFFFFFFFF for d in (-7, -5, -4, 0))
    assert snapshot.hidden(ids(old, running, seen, next_one)).tolist() == [running, next_one]


def test_an_id_at_xmax_is_hidden_although_it_is_in_no_list() -> None:
    """A transaction that waits for its standby may have the highest id of all (W01, E1)."""
    assert XidSnapshot(10, 10).hidden(ids(9, 10, 11)).tolist() == [10, 11]


def test_ids_that_an_earlier_epoch_may_have_delivered_unseen() -> None:
    """The running transactions, and those above the highest that was seen: a transaction that waits for a standby is in
    no list."""
    found = XidSnapshot(5, 10, frozenset({7, 5})).maybe_hidden()
    assert found[:4].tolist() == [5, 7, 10, 11]
    assert len(found) == 2 + IDS_ABOVE_XMAX
    assert CoordinateVisibility(Coordinate(15)).maybe_hidden().tolist() == []


def test_snapshot_of_the_database_in_memory_does_not_see_what_is_held() -> None:
    """It shows what a dialect's snapshot has to report, so it must be right itself."""
    snapshot = MemorySnapshot(10, frozenset({7}))
    assert snapshot.hidden(ids(6, 7, 9, 10, 11)).tolist() == [7, 10, 11]
    assert snapshot.maybe_hidden().tolist() == [7]


def test_ids_that_any_check_has_seen_are_forgotten() -> None:
    """Memory does not grow with what is captured; an id is only needed until a snapshot has seen it."""
    delivered = Delivered(ids(3), 100)
    delivered.add(ids(5, 7))
    delivered.record_snapshot(XidSnapshot(5, 8, frozenset({5})))
    assert delivered.ids().tolist() == [3, 5, 7]
    delivered.forget()
    assert delivered.ids().tolist() == [5]


def test_ids_taken_for_a_window_do_not_change_with_later_ones() -> None:
    """A window's ids from before low must not include those that arrived after it, which need not be visible."""
    delivered = Delivered(ids(1), 100)
    before = delivered.ids()
    delivered.add(ids(2))
    assert before.tolist() == [1]
    assert delivered.ids().tolist() == [1, 2]


def test_check_is_requested_once_and_again_when_ids_have_doubled() -> None:
    """A hanging commit must not make every step of the machine query the source."""
    delivered = Delivered(ids(), 3)
    asked = []
    for xid in range(1, 20):
        delivered.add(ids(xid))
        if delivered.wants_snapshot():
            asked.append(xid)
    assert asked == [4, 9, 19]


@pytest.mark.parametrize("parts", [1, 2, 3])
def test_only_what_every_part_of_a_snapshot_has_seen_is_forgotten(parts: int) -> None:
    """Several connections read parts of one chunk: a row that one of them missed is missing (W13)."""
    delivered = Delivered(ids(1, 2, 3, 4), 100)
    delivered.record_snapshot(*[XidSnapshot(1, 10, frozenset({n + 1})) for n in range(parts)])
    delivered.forget()
    assert delivered.ids().tolist() == list(range(1, parts + 1))
    delivered.record_snapshot(*[XidSnapshot(1, 10, frozenset({parts - n})) for n in range(parts)])
    delivered.forget()
    assert delivered.ids().tolist() == list(range(1, parts + 1))
    assert len(delivered) == parts
