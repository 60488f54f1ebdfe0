"""Merges into Delta tables in an object store without Spark: the tables are the fold of the log, whatever the store
does."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from tests.integration.local.test_random_histories import MANY, SEED, TOGETHER, Dying, few_small_files, run
from tests.servers.objects import ObjectServer
from tests.support.objects.store_proxy import StoreProxy

from cdcflow import local
from cdcflow.model.table import TableId
from cdcflow.stores.bucket import Bucket
from cdcflow.tables.job import store_lease
from cdcflow.tables.paths import Warehouse, table_path

__all__ = ["few_small_files"]

HISTORIES = 200
_buckets = count(1)


@dataclass
class StoredLake:
    """A warehouse in a bucket, and the same one as reached through the proxy."""

    server: ObjectServer
    bucket: str
    proxy: StoreProxy

    @property
    def direct(self) -> Warehouse:
        return Warehouse(f"s3a://{self.bucket}/ware", self.server.objects(self.bucket).address(self.bucket))

    @property
    def proxied(self) -> Warehouse:
        objects = self.server.objects(self.bucket, endpoint=self.proxy.endpoint)
        return Warehouse(f"s3a://{self.bucket}/ware", objects.address(self.bucket))

    def folder_of(self, table: TableId) -> MovedFolder:
        return MovedFolder(Bucket(self.server.objects(self.bucket)), "/".join(("ware", *table_path(table))))


@dataclass
class MovedFolder:
    """A folder in a bucket that an operator moves away."""

    bucket: Bucket
    name: str

    def with_name(self, name: str) -> MovedFolder:
        return MovedFolder(self.bucket, f"{self.name.rpartition('/')[0]}/{name}")

    def rename(self, target: MovedFolder) -> None:
        names = list(self.bucket.list_objects(self.name))
        for name in names:
            self.bucket.put(f"{target.name}/{name}", self.bucket.get(f"{self.name}/{name}"))
        self.bucket.delete([f"{self.name}/{name}" for name in names])


@pytest.fixture
def lake(object_server: ObjectServer) -> Iterator[StoredLake]:
    with StoreProxy(object_server.port) as proxy:
        yield StoredLake(object_server, f"lake-{next(_buckets)}", proxy)


@pytest.fixture(autouse=True)
def lease_of_the_dead_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """A merge that died holds its lease for a minute."""
    monkeypatch.setattr(store_lease, "LEASED_FOR_S", -1)


@pytest.mark.spread(1)
@pytest.mark.parametrize("first", range(0, HISTORIES, TOGETHER))
def test_histories_in_a_store_give_what_the_fold_gives(first: int, tmp_path: Path, lake: StoredLake) -> None:
    """The same histories as in a folder, by one engine for each merge."""
    run(SEED + first, TOGETHER, tmp_path, table_format="delta", rounds=3, into=lake.direct, folder_of=lake.folder_of)


@pytest.mark.long
@pytest.mark.parametrize("part", range(10))
def test_many_histories_in_a_store_give_what_the_fold_gives(part: int, tmp_path: Path, object_server: Any) -> None:
    """Thousands of them; every second log is merged by jobs that die before a commit."""
    for first in range(part * MANY // 10, (part + 1) * MANY // 10, TOGETHER):
        number = min(TOGETHER, (part + 1) * MANY // 10 - first)
        merge = Dying(SEED + first) if first // TOGETHER % 2 else local.merge
        with StoreProxy(object_server.port) as proxy:
            stored = StoredLake(object_server, f"many-{part}-{first}", proxy)
            folder = tmp_path / str(first)
            into, folder_of = stored.direct, stored.folder_of
            run(SEED + 2_000_000 + first, number, folder, merge, table_format="delta", into=into, folder_of=folder_of)
