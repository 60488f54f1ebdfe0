"""Iceberg tables in an object store, with names in a catalog server, merged without Spark."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, suppress
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from tests.servers.gate import TokenGate
from tests.servers.objects import ACCESS_KEY, SECRET_KEY, ObjectServer
from tests.servers.postgres import PostgresServer
from tests.support.log.hand_log import HandLog
from tests.support.merge.histories import make_table
from tests.support.objects.store_proxy import StoreProxy, StoreRequest, gone_since
from tests.support.objects.stored_lakes import look_after
from tests.support.tables.catalogs import (
    NamedTable,
    catalog_of,
    check_next_merge_resumes,
    hadoop_of,
    rows_of,
    sorted_rows,
)
from tests.support.tables.histories import Histories

from cdcflow import local
from cdcflow.errors import CdcflowError, HistoryLost, SinkUnavailable
from cdcflow.tables import bucket_folders
from cdcflow.tables.job import store_lease
from cdcflow.tables.job.engines import Engines
from cdcflow.tables.job.maintenance import UpkeepPolicy, upkeep
from cdcflow.tables.job.reports import MergeReport
from cdcflow.tables.local import file_rewrites, unneeded_files
from cdcflow.tables.local.engine import LocalEngine
from cdcflow.tables.merge.policy import Mode
from cdcflow.tables.paths import Warehouse

ORDERS = make_table("orders", schema="shop", id="int64", item="string")
SEED = random.SystemRandom().randrange(1, 10**8)
IN_LONG_RUNS = ("sql", "glue", "hive")
_buckets = count(1)


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgresServer]:
    with PostgresServer() as server:
        yield server


@pytest.fixture
def hand_log(tmp_path: Path) -> HandLog:
    return HandLog(tmp_path / "log")


@pytest.fixture(autouse=True)
def lease_of_the_dead_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """A merge that died holds its lease for a minute."""
    monkeypatch.setattr(store_lease, "LEASED_FOR_S", -1)


@pytest.fixture
def proxy(object_server: ObjectServer) -> Iterator[StoreProxy]:
    with StoreProxy(object_server.port) as found:
        yield found


def lake_of(server: ObjectServer, catalog: dict[str, str], bucket: str, endpoint: str | None = None) -> Warehouse:
    address = server.objects(bucket, **({} if endpoint is None else {"endpoint": endpoint})).address(bucket)
    return Warehouse(f"s3a://{bucket}/lake", address, catalog)


@pytest.fixture(params=["sql", "rest", "hive", "glue"])
def lake(request: pytest.FixtureRequest, object_server: ObjectServer, postgres: PostgresServer) -> Iterator[Warehouse]:
    bucket = f"iceberg-{next(_buckets)}"
    place = lake_of(object_server, {}, bucket)
    with catalog_of(request.param, str(place.root), postgres, hadoop_of(object_server)) as catalog:
        yield lake_of(object_server, catalog, bucket)


def merge(log: HandLog, lake: Warehouse, **more: Any) -> MergeReport:
    return local.merge(log.root, lake, table_format="iceberg", **more)


@pytest.mark.spread(1)
def test_next_process_resumes_where_the_first_ended(hand_log: HandLog, lake: Warehouse) -> None:
    """Data, deletes, manifests and metadata are in the bucket; the position and the pointer are the catalog's."""
    check_next_merge_resumes(hand_log, ORDERS, lake)


@pytest.mark.parametrize(
    "first", [0, pytest.param(10, marks=pytest.mark.long), pytest.param(20, marks=pytest.mark.long)]
)
def test_histories_of_tables_give_what_the_fold_gives(
    first: int, tmp_path: Path, object_server: ObjectServer, postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever a source does to a table, partitioned or not; rows are marked in files that are read by ranges."""
    monkeypatch.setattr(file_rewrites, "SMALL_FILES_MAX", 3)
    monkeypatch.setattr(file_rewrites, "TINY_BYTES", 0)
    log = HandLog(tmp_path / "log")
    modes: list[Mode] = ["current", "current", "soft_delete", "append"]
    made = Histories(range(SEED + first, SEED + first + 8), log, modes, with_layouts="iceberg")
    with catalog_of("sql", "", postgres) as catalog:
        lake = lake_of(object_server, catalog, f"iceberg-{next(_buckets)}")
        for _ in range(2):
            made.write_round()
            made.move_away(lambda table: NamedTable(lake, table))
            made.lay_out()
            report = merge(log, lake, policies=made.policies)
            made.check(report, lambda table: rows_of(lake, table.id))


def test_merge_dies_at_every_request_and_the_next_one_finishes_it(
    tmp_path: Path, object_server: ObjectServer, postgres: PostgresServer, proxy: StoreProxy
) -> None:
    """The n-th request is cut, or its answer is lost, and all later ones are cut: for all n of a merge."""
    rows = dict.fromkeys(range(20), 0)
    log = HandLog(tmp_path / "log")
    log.state(ORDERS)
    log.segment([(ORDERS, "c", {"id": n, "item": str(v)}) for n, v in rows.items()])
    with catalog_of("sql", "", postgres) as catalog:
        bucket = f"iceberg-{next(_buckets)}"
        direct, lake = lake_of(object_server, catalog, bucket), lake_of(object_server, catalog, bucket, proxy.endpoint)
        assert merge(log, direct).published
        number, deaths = 0, 0
        while True:
            number += 1
            rows[number % 20] = number
            log.segment([(ORDERS, "u", {"id": number % 20, "item": str(number)})])
            proxy.forget()

            def fault(request: StoreRequest, last: int = number) -> Any:
                if request.number < last:
                    return None
                return "lost" if request.number == last and last % 2 else "cut"

            proxy.fault = fault
            try:
                report = merge(log, lake)
            except CdcflowError:
                deaths += 1
            else:
                if report.published and len(proxy.requests) < number:
                    break
                deaths += 1
            merge(log, direct)
            assert sorted_rows(direct, ORDERS, "id", "item") == sorted((n, str(v)) for n, v in rows.items()), number
            number += 2  # every third request, so that the test stays short
    assert deaths > 5


@pytest.mark.parametrize("step", [31, pytest.param(1, marks=pytest.mark.long)])
def test_maintenance_dies_at_every_request_and_the_next_one_continues(
    tmp_path: Path,
    object_server: ObjectServer,
    postgres: PostgresServer,
    proxy: StoreProxy,
    step: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Compaction and expiry, for all n of a run: kept cuts stay readable, and what expired is deleted in the end."""
    monkeypatch.setattr("cdcflow.stores.bucket.RETRIES_MAX", 0)
    monkeypatch.setattr(bucket_folders, "WAITS_S", ())
    monkeypatch.setattr(file_rewrites, "TINY_BYTES", 0)
    log, rows, at = HandLog(tmp_path / "log"), dict[int, str](), dict[int, list[tuple[int, str]]]()
    log.state(ORDERS)

    def segment(number: int) -> None:
        """New rows, and a changed old one."""
        changed = {0: str(number), **dict.fromkeys((3 * number, 3 * number + 1), "new")}
        steps = [(ORDERS, "u" if key in rows else "c", {"id": key, "item": item}) for key, item in changed.items()]
        rows.update(changed)
        at[log.segment(steps)] = sorted(rows.items())

    def check(place: Warehouse) -> None:
        for cut in (log.cut - 1, log.cut):
            assert sorted_rows(place, ORDERS, "id", "item", cut=cut) == at[cut], cut

    with catalog_of("sql", "", postgres) as catalog:
        name = f"iceberg-{next(_buckets)}"
        direct, lake = lake_of(object_server, catalog, name), lake_of(object_server, catalog, name, proxy.endpoint)
        compacted = 0
        for number in count(3, step):
            monkeypatch.setattr(file_rewrites, "SMALL_FILES_MAX", 100)  # or merges leave nothing to compact
            for turn in range(2):
                segment(2 * number + turn)
                merge(log, direct)
            monkeypatch.setattr(file_rewrites, "SMALL_FILES_MAX", 1)
            proxy.forget()
            proxy.fault = gone_since(number, "lost" if number % 2 else "cut")
            with suppress(SinkUnavailable):
                look_after(lake, 2, time.time() + 60, "iceberg")
            check(direct)
            if len(proxy.requests) < number:
                break
            assert number < 200, len(proxy.requests)
            done = look_after(direct, 2, time.time() + 60, "iceberg")
            compacted += sum("files made" in what for table in done.tables for what in table.done)
            check(direct)
        with pytest.raises(HistoryLost, match="expired"):
            local.read_cut(direct, 1)
        assert number > 20, number
        assert compacted, "no run had anything to compact"
        folder = object_server.directory / "buckets" / name / "lake/shop/orders/data"
        # A run that dies between writing a file and its commit leaves that file, until it is surely abandoned.
        monkeypatch.setattr(unneeded_files, "ABANDONED_S", -60.0)
        look_after(direct, 2, time.time() + 60, "iceberg")
        check(direct)
        assert len(list(folder.iterdir())) < 10


@pytest.mark.parametrize("type_", ["rest", *(pytest.param(name, marks=pytest.mark.long) for name in IN_LONG_RUNS)])
def test_requests_of_a_merge_are_few(
    tmp_path: Path, object_server: ObjectServer, postgres: PostgresServer, proxy: StoreProxy, type_: str
) -> None:
    """Each is a round trip to a store that may be far away. Metadata, which have every snapshot, are read once."""
    log = HandLog(tmp_path / "log")
    log.state(ORDERS)
    log.segment([(ORDERS, "c", {"id": n, "item": "a"}) for n in range(2000)])
    place = lake_of(object_server, {}, bucket := f"iceberg-{next(_buckets)}")
    with catalog_of(type_, str(place.root), postgres, hadoop_of(object_server)) as catalog:
        lake = lake_of(object_server, catalog, bucket, proxy.endpoint)
        with closing(LocalEngine(lake, "iceberg")) as engine:
            from cdcflow.tables.job import job

            job.merge(Engines(engine), log.root, lake)
            for n in range(3):
                log.segment([(ORDERS, "u", {"id": n, "item": "b"})])
                proxy.forget()
                job.merge(Engines(engine), log.root, lake)
                found = Counter(f"{r.method} {_kind(r.name)}" for r in proxy.requests if "_cdcflow" not in r.name)
                print(type_, found)
            assert sum(found.values()) <= 12, found
            assert not [r for r in proxy.requests if r.method == "GET" and r.name.endswith(".metadata.json")]


def _kind(name: str) -> str:
    return "list" if name.startswith("?") else name.rpartition("/")[2].rpartition(".")[2]


def test_large_file_is_read_by_ranges(tmp_path: Path, object_server: ObjectServer, postgres: PostgresServer) -> None:
    """A file of more than a megabyte is not in memory: reading a cut took it for damaged."""
    log = HandLog(tmp_path / "log")
    log.state(ORDERS)
    texts = [random.Random(n).randbytes(40).hex() for n in range(30_000)]
    log.segment([(ORDERS, "c", {"id": n, "item": text}) for n, text in enumerate(texts)])
    with catalog_of("sql", "", postgres) as catalog:
        lake = lake_of(object_server, catalog, bucket := f"iceberg-{next(_buckets)}")
        merge(log, lake)
        folder = object_server.directory / "buckets" / bucket / "lake/shop/orders/data"
        assert max(path.stat().st_size for path in folder.iterdir()) > bucket_folders.WHOLE_BYTES
        assert sorted_rows(lake, ORDERS, "id", "item") == list(enumerate(texts))


def test_maintenance_deletes_files_that_no_kept_cut_needs(
    tmp_path: Path, object_server: ObjectServer, postgres: PostgresServer
) -> None:
    """A store has no other process that would."""
    log = HandLog(tmp_path / "log")
    log.state(ORDERS)
    with catalog_of("sql", "", postgres) as catalog:
        lake = lake_of(object_server, catalog, bucket := f"iceberg-{next(_buckets)}")
        for n in range(4):
            log.segment([(ORDERS, "c", {"id": n, "item": "a"}), (ORDERS, "u", {"id": 0, "item": str(n)})])
            merge(log, lake)
        folder = object_server.directory / "buckets" / bucket / "lake/shop/orders"
        before = {path.name for path in folder.rglob("*") if path.is_file()}
        with closing(LocalEngine(lake, "iceberg")) as engine:
            policy = UpkeepPolicy(keep_s=0.0, compact=False)
            (done,) = upkeep(Engines(engine), policy, lambda: time.time() + 10).tables
        left = {path.name for path in folder.rglob("*") if path.is_file()}
        assert "files deleted" in done.done[0]
        assert len(left) < len(before)
        assert all(name.endswith(".metadata.json") for name in left - before)
        assert sorted_rows(lake, ORDERS, "id", "item") == [(0, "3"), (1, "a"), (2, "a"), (3, "a")]


def test_keys_that_the_catalog_gives_are_used_and_renewed(hand_log: HandLog, object_server: ObjectServer) -> None:
    """The settings have no keys for the store. The first keys are refused, as expired ones are; the next are about to
    expire, and are replaced before they are used."""
    bucket = f"iceberg-{next(_buckets)}"
    hadoop = hadoop_of(object_server)
    lake_of(object_server, {}, bucket)  # makes the bucket
    with catalog_of("rest", f"s3a://{bucket}/lake", None, hadoop) as rest:
        port = int(rest["uri"].rpartition(":")[2])
        with TokenGate(port) as gate:
            right = {
                "s3.access-key-id": ACCESS_KEY,
                "s3.secret-access-key": SECRET_KEY,
                "s3.endpoint": object_server.endpoint,
                "s3.region": "us-east-1",
            }
            given = [
                {**right, "s3.secret-access-key": "refused-secret"},
                {**right, "s3.session-token-expires-at-ms": str(int(time.time() * 1000) + 1000)},
            ]
            gate.config = lambda: given.pop(0) if given else right
            catalog = {"type": "rest", "uri": gate.uri, "oauth2-server-uri": gate.token_server}
            address = object_server.objects(bucket).address(bucket)
            lake = Warehouse(f"s3a://{bucket}/lake", address, {**catalog, "credential": gate.credential})
            hand_log.segment([(ORDERS, "c", {"id": 1, "item": "pen"})])
            assert merge(hand_log, lake).published
            assert not given
            assert sorted_rows(lake, ORDERS, "id") == [(1,)]
