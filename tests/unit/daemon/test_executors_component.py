"""Executors of a daemon with a lease: they run while it is active, and nothing waits for them."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from tests.support.capture.small_source import ORDERS
from tests.support.polling import wait_until

from cdcflow.capture.interleave.messages import Chunk
from cdcflow.capture.ports.part_readers import HeldPart, Readers
from cdcflow.daemon.executors_component import ExecutorsComponent
from cdcflow.errors import SourceUnavailable

CONFIG: Any = None


class Executors:
    """Executors that connect when the test lets them."""

    count = 2
    unavailable = False

    def __init__(self) -> None:
        self.may_connect = threading.Event()
        self.running = 0
        self.refusal: SourceUnavailable | None = None

    @contextlib.contextmanager
    def start(self) -> Iterator[Readers]:
        assert self.may_connect.wait(10)
        if self.refusal is not None:
            raise self.refusal
        self.running += 1
        try:
            yield self
        finally:
            self.running -= 1

    def read(self, chunk: Chunk, part: Any) -> Future[HeldPart]:
        found: Future[HeldPart] = Future()
        found.set_result(part)
        return found


class Stage:
    def __init__(self) -> None:
        self.executors = Executors()
        self.told: list[tuple[str, dict[str, object]]] = []
        self.component = ExecutorsComponent(2, self.executors.start, self.tell)

    def tell(self, event: str, fields: Any) -> None:
        self.told.append((event, dict(fields)))

    def activate(self) -> Any:
        running = self.component.prepare(CONFIG)
        assert running is not None
        running.begin()
        return running


CHUNK: Any = SimpleNamespace(table=ORDERS.id)


def test_daemon_that_becomes_active_reads_by_itself_until_they_have_connected() -> None:
    """A takeover must not wait for a cluster."""
    stage = Stage()
    assert stage.component.unavailable
    running = stage.activate()
    assert stage.component.unavailable
    stage.executors.may_connect.set()
    wait_until(lambda: not stage.component.unavailable, "the executors")
    part: Any = "part"
    assert stage.component.read(CHUNK, part).result(10) == part
    running.end(wait=True)
    assert (stage.component.unavailable, stage.executors.running) == (True, 0)
    with pytest.raises(SourceUnavailable, match="the executors were ended"):
        stage.component.read(CHUNK, part).result(10)


def test_daemon_that_becomes_active_again_starts_others() -> None:
    stage = Stage()
    stage.executors.may_connect.set()
    for _ in range(2):
        running = stage.activate()
        wait_until(lambda: not stage.component.unavailable, "the executors")
        assert stage.executors.running == 1
        running.end(wait=True)
    assert stage.executors.running == 0


def test_executors_that_connect_after_the_daemon_became_the_standby_are_ended() -> None:
    stage = Stage()
    running = stage.activate()
    ending = threading.Thread(target=lambda: running.end(wait=True))
    ending.start()
    stage.executors.may_connect.set()
    ending.join(10)
    assert (stage.component.unavailable, stage.executors.running) == (True, 0)
    assert stage.told == []


def test_executors_that_cannot_be_started_are_reported_and_the_capture_reads_alone() -> None:
    stage = Stage()
    stage.executors.refusal = SourceUnavailable("no executor has begun to read", remedy="check the cluster's page")
    stage.executors.may_connect.set()
    stage.activate()
    wait_until(lambda: stage.told, "the report")
    assert stage.told[0][0] == "executors not used"
    assert stage.told[0][1]["remedy"] == "check the cluster's page"
    assert stage.component.unavailable
