"""How chunks that are read from a replica wait for it, without a server."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest

from cdcflow.errors import SourceUnavailable
from cdcflow.sources.engine import replica_wait
from cdcflow.sources.engine.chunks import Rewritten
from cdcflow.sources.engine.replica_wait import ReplicaWait


class Connector:
    """The parts of a connector that a wait uses."""

    address = "replica:5432/shop"

    def __init__(self) -> None:
        self.checks = 0

    def check_open(self) -> None:
        self.checks += 1


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> ReplicaWait[int]:
    monkeypatch.setattr(replica_wait, "REPLAY_WAIT_S", 0.05)
    monkeypatch.setattr(replica_wait, "POLL_S", 0.001)
    return ReplicaWait(cast(Any, Connector()), operator.ge)


def places(*reached: int) -> Callable[[], int]:
    """What a replica has replayed at each query; the last one is repeated."""
    left: Iterator[int] = iter(reached)
    return lambda: next(left, reached[-1])


def test_chunk_waits_for_the_highest_place_that_was_required(
    waits: ReplicaWait[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    waits.require(20)
    waits.require(10)
    with monkeypatch.context() as patch:
        patch.setattr(replica_wait, "REPLAY_WAIT_S", 60.0)
        waits.until_replayed(places(9, 15, 20))
    with pytest.raises(SourceUnavailable, match=r"lags: it has replayed 15, and a chunk needs 20"):
        waits.until_replayed(places(15))


def test_nothing_is_waited_for_before_a_place_is_required(waits: ReplicaWait[int]) -> None:
    waits.until_replayed(places(0))


def test_chunk_after_one_that_waited_in_vain_fails_at_once(waits: ReplicaWait[int]) -> None:
    """Changes of its table are held while it waits: a replica that does not replay must not hold them."""
    waits.require(20)
    with pytest.raises(SourceUnavailable):
        waits.until_replayed(places(15))
    waits.require(30)
    asked = []

    def reached() -> int:
        asked.append(1)
        return 19

    with pytest.raises(SourceUnavailable):
        waits.until_replayed(reached)
    assert len(asked) == 1
    waits.until_replayed(places(20, 25, 30))


def test_wait_of_an_abandoned_chunk_ends_with_the_next_mark(waits: ReplicaWait[int]) -> None:
    """An error would be taken for one of the chunk that is read next."""
    waits.require(20)

    def reached() -> int:
        waits.end_waits()
        return 15

    with pytest.raises(Rewritten):
        waits.until_replayed(reached)


def test_status_names_the_server_and_what_is_waited_for(waits: ReplicaWait[int]) -> None:
    waits.require(20)
    with pytest.raises(SourceUnavailable):
        waits.until_replayed(places(15))
    assert waits.status == "replica:5432/shop: has replayed 15; chunks wait until it has replayed 20"
    waits.until_replayed(places(20))
    assert waits.status == "replica:5432/shop: rows are read from it"
    assert "never was a standby" in str(waits.refusal("it never was a standby"))
    assert waits.status == "replica:5432/shop: no rows are read from it: it never was a standby"
