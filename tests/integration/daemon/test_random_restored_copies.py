"""Servers that are restored to a copy of their files and run a workload similar to the one in cdcflow's logs."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
import pytest
from tests.servers.postgres import Database, PostgresServer
from tests.support.capture.restored_copies import Transaction, copied, drawn_job, exchanged, folded, put_back
from tests.support.postgres.controlled_source import LOG_ID, Capture, rows_of

from cdcflow.capture.interleave.messages import Committed
from cdcflow.errors import HistoryLost
from cdcflow.model.change import Run
from cdcflow.model.position import Checkpoint, Position
from cdcflow.testing.sources.reading import headers, position_at

pytestmark = pytest.mark.postgres

LOGS = 6
UNLIKE = "gen_random_uuid()"


@dataclass
class Log:
    """One log of one database: what it has after the original's job, and what the copy then does."""

    database: Database
    dice: random.Random
    captures: list[Capture] = field(default_factory=list)
    before: Checkpoint = field(default_factory=Checkpoint)
    rows: dict[int, str] = field(default_factory=dict)
    table: pa.Table | None = None
    ours: int = 0  # transactions of the log that the copy does not have

    def capture(self) -> Capture:
        self.captures.append(Capture(self.database, tables=["public.t"], slot=f"slot_{self.database.name}"))
        return self.captures[-1]

    def run(self, job: list[Transaction]) -> None:
        with self.database.connect(autocommit=True) as connection:
            for transaction in job:
                with connection.transaction():
                    for statement in transaction:
                        connection.execute(statement.encode())

    def source_rows(self) -> dict[int, str]:
        return dict(self.database.execute("SELECT id, v::text FROM t"))

    def begin(self) -> None:
        self.database.execute(
            "CREATE TABLE t (id int PRIMARY KEY, v uuid); CREATE TABLE u (id int PRIMARY KEY, v uuid)"
        )
        capture = self.capture()
        self.before = capture.prepare()
        capture.close()
        self.run(drawn_job(self.dice, UNLIKE, 1, self.dice.randint(0, 4)))

    def follow(self) -> None:
        """Have the log follow the source to its end, without an acknowledgement: as if the daemon had been killed."""
        capture = self.capture()
        capture.prepare(self.before)
        events = capture.events()
        capture.close()
        found = headers(events)
        changes = [r for e in events if isinstance(e, Committed) and isinstance(e.run, Run) for r in rows_of(e.run)]
        self.rows = folded(self.rows, changes)
        self.table = found if self.table is None else pa.concat_tables([self.table, found])
        self.ours = len(found)
        last = next(p for e in reversed(events) if (p := position_at(e)) is not None)
        self.before = replace(self.before, position=last)

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
        assert folded(self.rows, capture.changes("public.t")) == self.source_rows()
        return "one history"

    def close(self) -> None:
        for capture in self.captures:
            capture.close()


@pytest.fixture
def logs(own_postgres: PostgresServer, request: pytest.FixtureRequest) -> Iterator[list[Log]]:
    made = [
        Log(own_postgres.create_database(f"copied_{n}"), random.Random(f"{request.param}/{n}")) for n in range(LOGS)
    ]
    yield made
    for log in made:
        log.close()


def copys_job(dice: random.Random, job: list[Transaction]) -> list[Transaction]:
    """The original's workload, mostly; or the same on the other table; or a different one."""
    match dice.randint(0, 9):
        case 0 | 1 | 2:
            return exchanged(job)
        case 3:
            return drawn_job(dice, UNLIKE, 60_000, dice.randint(0, 3))
        case _:
            return job


@pytest.mark.spread(1)
@pytest.mark.parametrize("logs", range(34), indirect=True, ids=str)
def test_restored_copy_with_a_similar_job_is_never_captured_on_silently(
    own_postgres: PostgresServer, logs: list[Log]
) -> None:
    """A server that repeats its job has the same positions and ids: new uuids are as long as the old ones."""
    for log in logs:
        log.begin()
        log.follow()
        log.ours = 0
    own_postgres.stop()
    kept = own_postgres.directory / "copy"
    copied(own_postgres.data, kept)
    own_postgres.start()
    jobs = [drawn_job(log.dice, UNLIKE, 50_000, log.dice.choice((0, 1, 1, 2, 5))) for log in logs]
    for log, job in zip(logs, jobs, strict=True):
        log.run(job)
    for log in logs:
        log.follow()
    own_postgres.stop()
    put_back(kept, own_postgres.data)
    own_postgres.start()
    for log, job in zip(logs, jobs, strict=True):
        log.run(copys_job(log.dice, job))
    # So that only the content differs: the copy's log continues past every position of cdcflow.
    own_postgres.execute(
        "SELECT pg_logical_emit_message(false, 'test', repeat('x', 1 << 20)) FROM generate_series(1, 4)"
    )
    for log in logs:
        log.assert_never_silent()
