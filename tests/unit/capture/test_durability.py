"""Which thread syncs: the loop itself on a quick disk, a separate thread on a slow one."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.support.polling import wait_until

from cdcflow.capture.durability import QUICK_S, SEALING_NICE, Durability
from cdcflow.errors import SinkUnavailable
from cdcflow.model.position import Checkpoint


class Disk:
    """A log whose syncs take a given time, on a clock that only they advance."""

    def __init__(self) -> None:
        self.checkpoint = Checkpoint()
        self.now = 0.0
        self.takes = QUICK_S / 2
        self.by: list[threading.Thread] = []
        self.error: Exception | None = None
        self.seal_pending: Callable[[], None] = lambda: None

    def sync(self) -> Checkpoint:
        if self.error is not None:
            raise self.error
        self.by.append(threading.current_thread())
        self.now += self.takes
        return Checkpoint(cut=len(self.by))

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def disk() -> Disk:
    return Disk()


@pytest.fixture
def durable(disk: Disk) -> Iterator[Durability]:
    log: Any = disk
    made = Durability(log, lambda: None, clock=disk.monotonic)
    yield made
    made.stop()


def synced_beside(durable: Durability) -> None:
    durable.ask_sync()
    assert durable.settle(30)


def test_quick_disk_is_synced_by_the_loop(disk: Disk, durable: Durability) -> None:
    assert not durable.sync_now(), "the disk's speed is still unknown"
    synced_beside(durable)
    assert durable.sync_now()
    assert disk.by[1] is threading.current_thread()
    assert durable.durable.cut == 2
    assert durable.syncs == 2


def test_slow_disk_is_synced_next_to_the_loop_until_it_is_quick_again(disk: Disk, durable: Durability) -> None:
    disk.takes = QUICK_S * 2
    synced_beside(durable)
    assert not durable.sync_now()
    disk.takes = QUICK_S / 2
    synced_beside(durable)
    assert durable.sync_now()
    disk.takes = QUICK_S * 2
    assert durable.sync_now()
    assert not durable.sync_now()


def test_error_of_a_sync_is_raised_at_once_and_nothing_counts(disk: Disk, durable: Durability) -> None:
    """L08: the loop must not continue after a sync that failed."""
    synced_beside(durable)
    disk.error = SinkUnavailable("no room")
    with pytest.raises(SinkUnavailable):
        durable.sync_now()
    assert durable.durable.cut == 1


def test_loop_does_not_sync_concurrently_with_the_thread_that_does(disk: Disk, durable: Durability) -> None:
    """Two concurrent syncs would return in any order, and the older checkpoint could be acknowledged last."""
    synced_beside(durable)
    held, begun = threading.Event(), threading.Event()
    sync = disk.sync

    def waits() -> Checkpoint:
        begun.set()
        assert held.wait(30)
        return sync()

    disk.sync = waits  # type: ignore[method-assign]  # it waits here
    durable.ask_sync()
    assert begun.wait(30)
    assert not durable.sync_now()
    held.set()
    assert durable.settle(30)
    assert durable.durable.cut == 2


def test_requested_sealing_that_is_not_done_is_counted(disk: Disk, durable: Durability) -> None:
    """The loop stops reading when too many journals wait for sealing: it must see that some wait, and later that none
    does."""
    held, begun = threading.Event(), threading.Event()

    def seal_pending() -> None:
        begun.set()
        assert held.wait(30)

    disk.seal_pending = seal_pending
    assert durable.unsealed_journals == 0
    durable.ask_seal()
    assert begun.wait(30)
    durable.ask_seal()
    durable.ask_seal()
    assert durable.unsealed_journals == 3
    held.set()
    while durable.unsealed_journals:
        begun.wait(0.01)


def test_new_segments_are_reported_and_only_they(disk: Disk) -> None:
    """A merge that waits for them begins at once, and none begins for nothing."""
    found: list[list[str]] = [[], ["segment"]]
    sealed = threading.Event()
    log: Any = disk
    log.seal_pending = lambda: found.pop(0)
    durable = Durability(log, lambda: None, clock=disk.monotonic, on_sealed=sealed.set)
    durable.ask_seal()
    wait_until(lambda: len(found) == 1 and durable.unsealed_journals == 0, "a seal of nothing")
    assert not sealed.is_set()
    durable.ask_seal()
    wait_until(sealed.is_set, "the news")
    durable.stop()


def test_sealing_yields_to_the_loop(disk: Disk, durable: Durability) -> None:
    """It is work for idle processors: the loop must not lose its own to it (Linux)."""
    seen: list[int] = []
    done = threading.Event()

    def seal_pending() -> None:
        seen.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))
        done.set()

    disk.seal_pending = seal_pending
    durable.ask_seal()
    assert done.wait(30)
    assert seen == [min(19, os.getpriority(os.PRIO_PROCESS, 0) + SEALING_NICE)]
