"""One merge or maintenance step at a time works in a warehouse in a store."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing
from itertools import count
from pathlib import Path

import pytest
from tests.servers.objects import ObjectServer
from tests.support.objects.store_proxy import StoreProxy
from tests.support.objects.stored_lakes import Changing, StoredLake, merge
from tests.support.polling import wait_until

from cdcflow.errors import SinkUnavailable
from cdcflow.tables.job import lease, store_lease
from cdcflow.tables.local.engine import LocalEngine
from cdcflow.tables.paths import LEASE

BY_MAINTENANCE = f"merging into .*: {lease.held_by(lease.MERGE, by_upkeep=True)} there"
_buckets = count(1)


@pytest.fixture
def lake(object_server: ObjectServer) -> Iterator[StoredLake]:
    with StoreProxy(object_server.port) as proxy:
        yield StoredLake(object_server, f"lease-{next(_buckets)}", proxy)


@pytest.fixture
def changing(tmp_path: Path) -> Changing:
    found = Changing(tmp_path / "log")
    found.segment()
    return found


def test_merge_waits_for_a_maintenance_step(
    lake: StoredLake, changing: Changing, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a folder: a step is short, and a merge that fails for it would alert an operator for nothing."""
    monkeypatch.setattr(store_lease, "LOOK_S", 0.05)
    with closing(LocalEngine(lake.direct, "delta")) as engine:
        step = engine.upkeep_lease()
        step.__enter__()
        merging = threading.Thread(target=merge, args=(changing.log.root, lake.proxied))
        merging.start()
        seen = lake.proxy.requests
        wait_until(lambda: sum(r.method == "GET" and r.name.endswith(LEASE) for r in seen) > 1, "the merge to wait")
        assert merging.is_alive()
        step.__exit__(None, None, None)
        merging.join()
    assert changing.check(lake.direct) == 1


def test_wait_for_a_maintenance_step_has_an_end(
    lake: StoredLake, changing: Changing, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error names what holds the lease for longer."""
    monkeypatch.setattr(lease, "UPKEEP_WAIT_S", 0.0)
    with (
        closing(LocalEngine(lake.direct, "delta")) as engine,
        engine.upkeep_lease(),
        pytest.raises(SinkUnavailable, match=BY_MAINTENANCE),
    ):
        merge(changing.log.root, lake.direct)


def test_neither_waits_for_a_merge(lake: StoredLake, changing: Changing) -> None:
    """A merge may take hours."""
    with closing(LocalEngine(lake.direct, "delta")) as engine, engine.lease():
        with pytest.raises(SinkUnavailable, match=r"merging into .*: another merge works there"):
            merge(changing.log.root, lake.direct)
        with pytest.raises(SinkUnavailable, match=r"a merge or another maintenance run works there"):
            engine.upkeep_lease().__enter__()
