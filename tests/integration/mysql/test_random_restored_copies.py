"""Servers that are restored to a copy of their files and run a workload similar to the one in cdcflow's logs."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
import pytest
from tests.servers.mysql import Flavor, MySQLDatabase, MySQLServer
from tests.support.capture.restored_copies import Transaction, copied, drawn_job, folded, put_back
from tests.support.mysql.controlled_source import MySQLCapture
from tests.support.postgres.controlled_source import LOG_ID, rows_of

from cdcflow.capture.interleave.messages import Committed
from cdcflow.errors import HistoryLost
from cdcflow.model.change import Run
from cdcflow.model.position import Checkpoint, Position
from cdcflow.testing.sources.reading import headers, position_at

pytestmark = pytest.mark.mysql

LOGS = 4
SERVERS: Mapping[str, tuple[Flavor, Mapping[str, str] | None]] = {
    "mysql with GTIDs": ("mysql", None),
    "mysql without GTIDs": ("mysql", {"gtid_mode": "OFF", "enforce_gtid_consistency": "OFF"}),
    "mariadb": ("mariadb", None),
}


@dataclass
class Log:
    """One log of one database: what it has after the original's job, and what the copy then does."""

    database: MySQLDatabase
    dice: random.Random
    captures: list[MySQLCapture] = field(default_factory=list)
    before: Checkpoint = field(default_factory=Checkpoint)
    rows: dict[int, str] = field(default_factory=dict)
    table: pa.Table | None = None
    ours: int = 0  # transactions of the log that the copy does not have

    def capture(self) -> MySQLCapture:
        self.captures.append(MySQLCapture(self.database, tables=[f"{self.database.name}.t"]))
        return self.captures[-1]

    def run(self, job: list[Transaction]) -> None:
        with self.database.session(autocommit=False) as connection, connection.cursor() as cursor:
            for transaction in job:
                for statement in transaction:
                    cursor.execute(statement)
                connection.commit()

    def source_rows(self) -> dict[int, str]:
        return dict(self.database.execute("SELECT id, v FROM t"))

    def begin(self) -> None:
        self.database.execute(
            "CREATE TABLE t (id int PRIMARY KEY, v char(36))", "CREATE TABLE u (id int PRIMARY KEY, v char(36))"
        )
        capture = self.capture()
        self.before = capture.prepare()
        capture.close()
        self.run(drawn_job(self.dice, "uuid()", 1, self.dice.randint(0, 4)))

    def follow(self) -> None:
        """Have the log follow the source to its end."""
        capture = self.capture()
        capture.prepare(self.before)
        events = capture.events()
        capture.close()
        found = headers(events)
        changes = [r for e in events if isinstance(e, Committed) and isinstance(e.run, Run) for r in rows_of(e.run)]
        self.rows = folded(self.rows, changes)
        self.table = found if self.table is None else pa.concat_tables([self.table, found])
        self.table = self.table.set_column(0, "number", pa.array(range(1, len(self.table) + 1), pa.int64()))
        self.ours = len(found)
        last = next(p for e in reversed(events) if (p := position_at(e)) is not None)
        self.before = replace(self.before, position=last, next_transaction=len(self.table) + 1)

    def back(self, is_enough: Callable[[Position], bool]) -> Any:
        return self.table

    def assert_never_silent(self) -> str:
        """Either the copy is distinguished from the original, or nothing of the original's is in the log, and all of
        the copy's follows.
        """
        capture = self.capture()
        try:
            prepared = capture.source.prepare(self.before, LOG_ID, self.back).checkpoint
        except HistoryLost:
            return "told apart"
        assert not self.ours, "the log has transactions that this server never had"
        capture.checkpoint = prepared
        capture.source.tables()
        assert folded(self.rows, capture.changes("t")) == self.source_rows()
        return "one history"

    def close(self) -> None:
        for capture in self.captures:
            capture.close()


@pytest.fixture(params=list(SERVERS))
def server(request: pytest.FixtureRequest) -> Iterator[MySQLServer]:
    with MySQLServer(*SERVERS[request.param]) as made:
        yield made


@pytest.mark.spread(1)
@pytest.mark.parametrize("seed", range(17))
def test_restored_copy_with_a_similar_job_is_never_captured_on_silently(server: MySQLServer, seed: int) -> None:
    """A server that repeats its job has the same positions and GTIDs: new uuids are as long as the old ones."""
    logs = [Log(server.create_database(f"copied_{n}"), random.Random(f"{seed}/{n}")) for n in range(LOGS)]
    try:
        for log in logs:
            log.begin()
        for log in logs:
            log.follow()
            log.ours = 0
        server.stop()
        kept = server.directory / "copy"
        copied(server.data, kept)
        server.start()
        jobs = [drawn_job(log.dice, "uuid()", 50_000, log.dice.choice((0, 1, 1, 2, 5))) for log in logs]
        for log, job in zip(logs, jobs, strict=True):
            log.run(job)
        for log in logs:
            log.follow()
        server.stop()
        put_back(kept, server.data)
        server.start()
        for log, job in zip(logs, jobs, strict=True):
            log.run(job if log.dice.random() < 0.8 else drawn_job(log.dice, "uuid()", 60_000, log.dice.randint(0, 3)))
        for log in logs:
            # So that only the content differs: the copy's log continues past every position of cdcflow.
            log.run([(f"INSERT INTO u VALUES ({n}, repeat('x', 36))",) for n in range(1_000_000, 1_000_040)])
        for log in logs:
            log.assert_never_silent()
    finally:
        for log in logs:
            log.close()
