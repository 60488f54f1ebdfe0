"""Rights that are revoked from the capture's user while it runs: it names the statement, waits, and continues once it
was run.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pymysql
import pytest
from tests.servers.mysql import MySQLDatabase
from tests.support.daemon.mysql_bank import MySQLBank
from tests.support.mysql.controlled_source import MySQLCapture

from cdcflow.capture.interleave.progress import Progress
from cdcflow.errors import RightMissing
from cdcflow.model.table import TableId

pytestmark = pytest.mark.mysql

CLERK = "'clerk'@'127.%'"
"""Not the name of the client's machine, which the server's refusals contain."""


@pytest.fixture
def database(mysql_database: MySQLDatabase) -> Iterator[MySQLDatabase]:
    server, name = mysql_database.server, mysql_database.name
    monitor = "REPLICATION CLIENT" if server.flavor == "mysql" else "BINLOG MONITOR"
    digits = " UNION ALL ".join(f"SELECT {n} AS d" for n in range(10))
    joined = ", ".join(f"({digits}) t{n}" for n in range(4))
    mysql_database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v text)",
        f"INSERT INTO t SELECT * FROM (SELECT t0.d + 10 * t1.d + 100 * t2.d + 1000 * t3.d + 1 AS id, repeat('x', 100)"
        f" FROM {joined}) n WHERE id <= 6000",
        f"DROP USER IF EXISTS {CLERK}",
        f"CREATE USER {CLERK}",
        f"GRANT REPLICATION SLAVE, {monitor} ON *.* TO {CLERK}",
        f"GRANT SELECT ON `{name}`.t TO {CLERK}",
        f"GRANT CREATE, SELECT, INSERT, UPDATE ON `{name}_marks`.* TO {CLERK}",
    )
    yield mysql_database
    server.execute(f"DROP USER {CLERK}", f"DROP DATABASE IF EXISTS `{name}_marks`")


def statements_of(remedy: str) -> list[str]:
    """What a remedy says to run."""
    found = re.search(r"run (GRANT .*?)(?:, or |$)", remedy)
    assert found is not None, remedy
    return found[1].split("; ")


@pytest.mark.spread(1)
def test_printed_statements_restore_the_right_and_the_capture_continues(
    database: MySQLDatabase, tmp_path: Path
) -> None:
    """During the backfill, one right after another. No table fails, nothing restarts, no change is missed."""
    server, name = database.server, database.name
    taken = {
        "SELECT": f"REVOKE SELECT ON `{name}`.t FROM {CLERK}",
        "marks": f"REVOKE INSERT ON `{name}_marks`.* FROM {CLERK}",
        "REPLICATION": f"REVOKE REPLICATION SLAVE ON *.* FROM {CLERK}",
    }
    marks = f"{name}_marks.cdcflow_marks"
    bank = MySQLBank(database, tmp_path, create=False, url=server.url("clerk"), marks_table=marks)
    bank.tables = ("t",)
    bank.configure(backfill={"rows_per_second_max": 1500, "chunk_rows_max": 300})
    remedies: list[str] = []
    events: list[str] = []

    def on_event(event: str, fields: dict[str, object]) -> None:
        events.append(event)
        remedies.extend(f"{fields.get('reason', '')}\n{fields.get('remedy', '')}".split("\n"))

    def was_read_after(chunks: int) -> bool:
        return events.count("range chunk read") > chunks

    def named(right: str) -> list[str]:
        return [r for r in remedies if "run GRANT" in r and right in r]

    def is_named(right: str) -> bool:
        return bool(named(right))

    with bank.capturing(on_event=on_event):
        for number, (right, statement) in enumerate(taken.items()):
            chunks = events.count("range chunk read")
            bank.wait_until(partial(was_read_after, chunks), "a chunk")
            remedies.clear()
            database.execute(statement, f"INSERT INTO t VALUES ({10_000 + number}, 'meanwhile')")
            if right == "REPLICATION":
                for (connection,) in server.execute(
                    "SELECT id FROM information_schema.processlist WHERE user = 'clerk'"
                ):
                    with contextlib.suppress(pymysql.Error):  # it may have ended by itself
                        server.execute(f"KILL {connection}")
            bank.wait_until(partial(is_named, right), f"{right} to be named")
            server.execute(*statements_of(named(right)[0]))
        fence = bank.fence()
        bank.wait_until(lambda: bank.has_reached(fence), "the backfill to end")
    assert "table failed" not in events
    progress = Progress.from_json(bank.reader.newest_checkpoint().progress)
    assert progress.tables[TableId(name, "t")].generation == 1
    bank.assert_log_equals_source()


def test_table_without_a_select_right_is_not_taken_for_a_dropped_one(database: MySQLDatabase) -> None:
    """The catalog hides it. Its changes continue in the log; treated as dropped, it would be read again once it has its
    right.
    """
    settings: dict[str, Any] = {
        "url": database.server.url("clerk"),
        "marks_table": f"{database.name}_marks.cdcflow_marks",
    }
    first = MySQLCapture(database, **settings)
    before = first.prepare()
    first.source.tables()
    database.execute(f"REVOKE SELECT ON `{database.name}`.t FROM {CLERK}")
    with pytest.raises(RightMissing, match="no right to SELECT"):
        first.source.tables()
    first.close()
    again = MySQLCapture(database, **settings)
    with pytest.raises(RightMissing) as caught:
        again.prepare(before)
    database.server.execute(*statements_of(caught.value.remedy or ""))
    again.prepare(before)
    assert [t.id.name for t in again.source.tables()] == ["t"]
    again.close()
    database.execute("DROP TABLE t", "CREATE TABLE other (id int PRIMARY KEY)")
    database.execute(f"GRANT SELECT ON `{database.name}`.other TO {CLERK}")
    gone = MySQLCapture(database, **settings)
    gone.prepare(before)
    assert [t.id.name for t in gone.source.tables()] == ["other"], "a table that was dropped is one"
    gone.close()
