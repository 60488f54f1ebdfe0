"""Processes that write to one table in a store without Spark, at the same time: nothing is lost or doubled."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from tests.servers.objects import ObjectServer
from tests.servers.postgres import PostgresServer
from tests.support.merge import local_driver
from tests.support.objects.store_proxy import StoreProxy
from tests.support.objects.stored_lakes import Changing, StoredLake, merge_by
from tests.support.polling import wait_until
from tests.support.tables.catalogs import catalog_of

from cdcflow.tables.local.engine import LocalEngine

SEED = int(os.environ.get("CDCFLOW_RACE_SEED", "0")) or random.SystemRandom().randrange(1, 10**6)
WRITERS = 2

_buckets = count(1)


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgresServer]:
    with PostgresServer() as server:
        yield server


class Writer:
    """A process that appends rows to the table `raced`, each in a commit."""

    def __init__(self, lake: StoredLake, who: str, room: Path, **more: object) -> None:
        log = lake.server.objects(lake.bucket).model_dump(mode="json", exclude_none=True)
        told = {"log": log, "warehouse": str(lake.direct), "bucket": lake.bucket, "who": who, **more}
        self._said = room / f"{who}.out"
        with self._said.open("wb") as out, (room / f"{who}.err").open("wb") as err:
            self._process = subprocess.Popen(
                [sys.executable, str(local_driver.__file__), json.dumps(told)],
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=err,
            )

    def said(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self._said.read_text().splitlines() if line.endswith("}")]

    def go(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    @property
    def is_done(self) -> bool:
        errors = self._said.with_suffix(".err").read_text()
        assert self._process.poll() in (None, 0), errors[-3000:]
        return self._process.poll() == 0

    def end(self) -> None:
        self._process.kill()
        self._process.wait()


@pytest.mark.spread(1)
@pytest.mark.parametrize(
    ("table_format", "appends", "stops"),
    [("delta", 200, 5), ("iceberg", 6, 1), pytest.param("iceberg", 200, 8, marks=pytest.mark.long)],
)
def test_racing_commits_are_neither_lost_nor_doubled(
    object_server: ObjectServer,
    postgres: PostgresServer,
    tmp_path: Path,
    table_format: str,
    appends: int,
    stops: int,
) -> None:
    """Commits of two processes, one of which is stopped now and then, across commits of the other."""
    chance = random.Random(SEED)
    print(f"seed {SEED}")
    with StoreProxy(object_server.port) as proxy, catalog_of("sql", "", postgres) as catalog:
        lake = StoredLake(object_server, f"races-{next(_buckets)}", proxy)
        object_server.objects(lake.bucket)
        named = catalog if table_format == "iceberg" else None
        place = replace(lake.direct, catalog=named)
        with closing(LocalEngine(place, table_format)) as engine, closing(engine.table(("public", "raced"))) as there:
            there.create(local_driver.RACED, {}, {})
            more = {"format": table_format, "catalog": named, "appends": appends}
            writers = [Writer(lake, who, tmp_path, **more) for who in "ab"[:WRITERS]]
            try:
                wait_until(lambda: all(w.said() or w.is_done for w in writers), "the writers to be ready")
                for one in writers:
                    one.go()
                for _ in range(stops):
                    stale, other = chance.sample(writers, 2)
                    stale.signal(signal.SIGSTOP)
                    before = len(other.said())
                    wait_until(lambda w=other, n=before: len(w.said()) > n + 3 or w.is_done, "the other to commit")  # type: ignore[misc]
                    stale.signal(signal.SIGCONT)
                    time.sleep(chance.random() * 0.2)
                wait_until(lambda: all(w.is_done for w in writers), "all commits", patience_s=600)
            finally:
                for one in writers:
                    one.end()
            found = there.snapshot()
            assert found is not None
            rows = there.rows()
            assert table_format == "iceberg" or found.version == WRITERS * appends
            assert sorted(zip(rows.column("who").to_pylist(), rows.column("n").to_pylist(), strict=True)) == [
                (who, n) for who in "ab"[:WRITERS] for n in range(appends)
            ]


def test_engine_that_merged_before_sees_what_a_second_one_has_merged(
    object_server: ObjectServer, tmp_path: Path
) -> None:
    """Each keeps what it has read of the tables' logs."""
    changing = Changing(tmp_path / "log")
    with StoreProxy(object_server.port) as proxy:
        lake = StoredLake(object_server, f"races-{next(_buckets)}", proxy)
        with closing(LocalEngine(lake.direct, "delta")) as a, closing(LocalEngine(lake.direct, "delta")) as b:
            for number in range(8):
                changing.segment()
                assert merge_by((a, b)[number % 3 == 0], changing.log.root, lake.direct).published
                assert changing.check(lake.direct) == changing.log.cut
            # The whole table is moved away, and read again from the log: an engine's memory is of the old one.
            for table in changing.tables:
                there = lake.folder_of(table.id)
                there.rename(there.with_name(f"old {table.id.name}"))
                changing.log.state(table, generation=2, since=1)
            changing.segment()
            report = merge_by(a, changing.log.root, lake.direct)
            assert {table.name for table in report.tables if table.changes} == {str(t.id) for t in changing.tables}
            assert changing.check(lake.direct) == changing.log.cut
