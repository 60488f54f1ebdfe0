"""Each request of a merge into a store: how many there are, and what if one is the last, fails, or its answer is
lost."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, suppress
from itertools import count
from pathlib import Path
from typing import Any

import deltalake
import pytest
from tests.servers.objects import ObjectServer
from tests.support.log.hand_log import HandLog
from tests.support.merge.histories import make_table
from tests.support.objects.store_proxy import Fault, StoreProxy, gone_since
from tests.support.objects.stored_lakes import Changing, StoredLake, look_after, merge, merge_by

from cdcflow import local
from cdcflow.errors import ConfigurationError, HistoryLost, SinkUnavailable
from cdcflow.stores import bucket
from cdcflow.tables import bucket_folders
from cdcflow.tables.formats import delta
from cdcflow.tables.job import store_lease
from cdcflow.tables.local import deltalog, engine
from cdcflow.tables.local.checkpoints import name_of_checkpoint
from cdcflow.tables.local.deltalog import DeltaLog
from cdcflow.tables.local.engine import LocalEngine
from cdcflow.tables.local.warehouse_folder import open_folder

REQUESTS_MAX = 12
"""For each table and commit, in a process that merges repeatedly."""

MAINTENANCE_REQUESTS_MAX = 150
"""Of three tables, in a new process."""

TABLES, CYCLES, CHANGES = 3, 55, 20

_buckets = count(1)


@pytest.fixture
def lake(object_server: ObjectServer) -> Iterator[StoredLake]:
    with StoreProxy(object_server.port) as proxy:
        yield StoredLake(object_server, f"requests-{next(_buckets)}", proxy)


@pytest.fixture
def changing(tmp_path: Path) -> Changing:
    return Changing(tmp_path / "log")


@pytest.fixture
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """The lease of a dead merge is over, and a request is not sent again: a store that is gone stays gone."""
    monkeypatch.setattr(store_lease, "LEASED_FOR_S", -1)
    monkeypatch.setattr(bucket, "RETRIES_MAX", 0)
    monkeypatch.setattr(bucket_folders, "WAITS_S", ())
    # A new process reads all commits since a checkpoint: with few of them it sends as many requests in each round.
    monkeypatch.setattr(deltalog, "checkpoint_every", lambda _: 4)


EACH = [
    ("lost", 13),
    pytest.param("lost", 1, marks=pytest.mark.long),
    pytest.param("cut", 1, marks=pytest.mark.long),
]
"""How requests end, and how many are skipped from one to the next."""


@pytest.mark.parametrize(("how", "step"), EACH)
def test_merge_may_end_at_every_request(
    lake: StoredLake, changing: Changing, how: Fault, step: int, no_waiting: None
) -> None:
    """Whether the store has got the last request or not, the next merge continues, and each cut is the fold."""
    changing.segment()
    merge(changing.log.root, lake.direct)
    ended = Counter[str]()
    with closing(LocalEngine(lake.direct, "delta")) as merging:
        for number in count(3, step):
            changing.segment()
            lake.proxy.forget()
            lake.proxy.fault = gone_since(number, how)
            try:
                merge(changing.log.root, lake.proxied)
                ended["whole"] += 1
            except SinkUnavailable:
                ended["unavailable"] += 1
            if len(lake.proxy.requests) < number:
                break
            assert merge_by(merging, changing.log.root, lake.direct).cut == changing.log.cut
            assert changing.check(lake.direct) == changing.log.cut
    assert ended["unavailable"] > 20 // step, ended


@pytest.mark.parametrize(("how", "step"), [("lost", 29), *EACH[1:]])
def test_maintenance_may_end_at_every_request(
    lake: StoredLake, changing: Changing, how: Fault, step: int, no_waiting: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compaction and expiry: kept cuts stay readable, and the next run continues."""
    monkeypatch.setattr(delta, "REMOVED_KEPT_S", 0.0)
    monkeypatch.setattr(engine, "VERSIONS_KEPT_S", 0.0)
    for number in count(3, step):
        for _ in range(2):
            changing.segment()
            merge(changing.log.root, lake.direct)
        lake.proxy.forget()
        lake.proxy.fault = gone_since(number, how)
        with suppress(SinkUnavailable):
            look_after(lake.proxied, 2, time.time() + 60)
        if len(lake.proxy.requests) < number:
            break
        for cut in (changing.log.cut - 1, changing.log.cut):
            assert changing.check(lake.direct, cut) == cut
        assert number < MAINTENANCE_REQUESTS_MAX, len(lake.proxy.requests)
        # Otherwise there would be more cuts to read each time, and the number would never reach the end of a run.
        look_after(lake.direct, 2, time.time() + 60)
    with pytest.raises(HistoryLost, match="expired"):
        local.read_cut(lake.direct, 1)
    assert number > 20, number


@pytest.mark.spread(1)
@pytest.mark.parametrize("how", ["cut", "lost", "busy", "slow"])
def test_single_faults_are_not_noticed(lake: StoredLake, changing: Changing, how: Fault) -> None:
    """Each third request fails once and is sent again; a commit whose answer was lost is not taken for a different
    writer's."""
    lake.proxy.fault = lambda request: how if request.number % 3 == 0 else None
    for _ in range(3):
        changing.segment()
        merge(changing.log.root, lake.proxied)
    assert changing.check(lake.direct) == changing.log.cut
    commits = [r.name for r in lake.proxy.requests if r.method == "PUT" and "keyed/_delta_log" in r.name]
    assert len(set(commits)) == 4, commits


def test_store_that_lists_late_hides_no_commit(
    lake: StoredLake, changing: Changing, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A list without the latest objects, as some stores answer for a while: what counts is read by its name."""
    listed = bucket.Bucket.each_listed
    for _ in range(4):
        changing.segment()
        merge(changing.log.root, lake.direct)

    def late(place: bucket.Bucket, name: str, after: str = "") -> Iterator[Any]:
        found = list(listed(place, name, after))
        yield from (one for n, one in enumerate(found) if n % 2 == 0 and n + 2 < len(found))

    monkeypatch.setattr(bucket.Bucket, "each_listed", late)
    changing.segment()
    merge(changing.log.root, lake.direct)
    assert changing.check(lake.direct) == changing.log.cut


def test_store_without_conditional_writes_is_refused(own_object_server: ObjectServer, changing: Changing) -> None:
    """Of two merges each would believe that its commit is the version."""
    assert own_object_server.is_real, "only versitygw can be started so; `make servers` builds it with Go"
    own_object_server.kill()
    own_object_server.conditional_writes = False
    own_object_server.start()
    changing.segment()
    with StoreProxy(own_object_server.port) as proxy:
        place = StoredLake(own_object_server, "lake", proxy).direct
        with pytest.raises(ConfigurationError, match="no conditional writes") as found:
            merge(changing.log.root, place)
        assert found.value.runbook == "store-unsuitable"
        assert not bucket.Bucket(own_object_server.objects("lake")).list_objects("ware")


def test_table_and_commit_cost_few_requests(lake: StoredLake, tmp_path: Path) -> None:
    """In a process that merges repeatedly, over more than a checkpoint: the log of a table is neither listed nor read
    again."""
    log = HandLog(tmp_path / "log")
    tables = [make_table(f"t{n}", id="int64", v="int32") for n in range(TABLES)]
    for table in tables:
        log.state(table)
    costs = []
    with closing(LocalEngine(lake.proxied, "delta")) as merging:
        for cycle in range(CYCLES):
            ids = range(cycle * CHANGES, (cycle + 1) * CHANGES)
            rows: list[Any] = [(table, "c", {"id": n, "v": cycle}) for table in tables for n in ids]
            rows += [(table, "u", {"id": n * 7 % (ids[0] + 1), "v": -cycle}) for table in tables for n in range(5)]
            log.segment(rows)
            lake.proxy.forget()
            merge_by(merging, log.root, lake.proxied)
            costs.append(len(lake.proxy.requests) / TABLES)
            if cycle == 10:
                assert not [r for r in lake.proxy.requests if r.is_list]
    assert sum(costs) / len(costs) <= REQUESTS_MAX, costs
    check_checkpoint(lake, "public/t0")


def test_checkpoints_are_written_after_another_process_has_removed_the_last_one(
    lake: StoredLake, changing: Changing, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that merges for months would write none until it is restarted, and each reader would read all commits
    since. Files that were removed before its new beginning are known in the new checkpoint, or VACUUM would keep them.
    """
    monkeypatch.setattr(deltalog, "checkpoint_every", lambda _: 4)
    folder = open_folder(lake.direct).folder("public", "keyed")
    log = folder.folder("_delta_log")

    def merge_until(version: int, merging: LocalEngine) -> DeltaLog:
        while (found := DeltaLog(folder)).update() < version:
            changing.segment()
            merge_by(merging, changing.log.root, lake.direct)
        return found

    with closing(LocalEngine(lake.direct, "delta")) as merging:
        merge_until(5, merging)
        with closing(LocalEngine(lake.direct, "delta")) as other:
            before = merge_until(9, other)
        merge_until(10, merging)
        log.delete([name for name in log.names() if name < name_of_checkpoint(8)])
        after = merge_until(13, merging)
    assert (before._checkpoint, after._checkpoint) == (name_of_checkpoint(8), name_of_checkpoint(12))
    known, kept = (
        {action["path"] for action in found._in_checkpoint(str(found._checkpoint), "remove")}
        for found in (after, before)
    )
    assert kept
    assert kept <= known
    since = [action for version in range(9, 13) for action in after.actions(version) or () if "remove" in action]
    assert {action["remove"]["path"] for action in since} <= known
    assert changing.check(lake.direct) == changing.log.cut


def check_checkpoint(lake: StoredLake, table: str) -> None:
    """The table's state after its latest checkpoint is the same for who reads the checkpoint, for who does not, and for
    delta-rs; removed files are known in it."""
    folder = open_folder(lake.direct).folder(*table.split("/"))
    names = [name for name in folder.folder("_delta_log").names() if "checkpoint" in name]
    begun, whole = DeltaLog(folder), DeltaLog(folder)
    begun.update()
    assert names[-1] == "_last_checkpoint"
    assert not begun.is_short
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DeltaLog, "_hint", lambda _: 0)
        patch.setattr(deltalog, "_CHECKPOINT", re.compile("none"))
        whole.update()
    assert whole.is_short
    assert begun.version == whole.version
    assert sorted(map(str, begun.files())) == sorted(map(str, whole.files()))
    assert (begun.metadata["configuration"], begun.transactions) == (
        whole.metadata["configuration"],
        whole.transactions,
    )
    address = lake.direct.store
    assert address is not None
    options = {
        "AWS_ENDPOINT_URL": str(address.endpoint),
        "AWS_REGION": address.region,
        "AWS_ACCESS_KEY_ID": str(address.access_key),
        "AWS_SECRET_ACCESS_KEY": str(address.secret_key),
        "AWS_ALLOW_HTTP": "true",
    }
    other = deltalake.DeltaTable(f"s3://{lake.bucket}/ware/{table}", storage_options=options)
    assert other.version() == whole.version
    assert sorted(other.file_uris()) == sorted({f"s3://{lake.bucket}/ware/{table}/{f.path}" for f in whole.files()})
    removed = {a["remove"]["path"] for n in range(whole.version + 1) for a in whole.actions(n) or () if "remove" in a}
    assert removed
    assert removed <= {action["path"] for action in begun._in_checkpoint(names[-2], "remove")} | {
        a["remove"]["path"] for n in range(50, whole.version + 1) for a in whole.actions(n) or () if "remove" in a
    }
