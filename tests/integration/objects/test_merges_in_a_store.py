"""Merges into Delta tables in an object store without Spark: the tables are the fold of the log, whatever the store
does."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from tests.integration.local.test_random_histories import MANY, SEED, TOGETHER, Dying, few_small_files, run
from tests.servers.objects import ObjectServer
from tests.servers.postgres import PostgresServer
from tests.support.objects.store_proxy import StoreProxy
from tests.support.objects.stored_lakes import StoredLake
from tests.support.tables.catalogs import NamedTable, catalog_of

from cdcflow import local
from cdcflow.tables.job import store_lease

__all__ = ["few_small_files"]

HISTORIES, ICEBERG = 200, MANY // 9
"""With `MANY` these are 5,000 histories of both formats, and 200 that come first."""
_buckets = count(1)


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgresServer]:
    with PostgresServer() as server:
        yield server


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
def test_many_histories_of_iceberg_tables_in_a_store_give_what_the_fold_gives(
    part: int, tmp_path: Path, object_server: ObjectServer, postgres: PostgresServer
) -> None:
    """Their names are in PostgreSQL; every second log is merged by jobs that die before a commit."""
    for first in range(part * ICEBERG // 10, (part + 1) * ICEBERG // 10, TOGETHER):
        number = min(TOGETHER, (part + 1) * ICEBERG // 10 - first)
        merge = Dying(SEED + first) if first // TOGETHER % 2 else local.merge
        with StoreProxy(object_server.port) as proxy, catalog_of("sql", "", postgres) as catalog:
            stored = StoredLake(object_server, f"iceberg-{part}-{first}", proxy)
            into = replace(stored.direct, catalog=catalog)
            run(
                SEED + 3_000_000 + first,
                number,
                tmp_path / str(first),
                merge,
                table_format="iceberg",
                into=into,
                folder_of=lambda table, into=into: NamedTable(into, table),  # type: ignore[misc]
            )


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
