"""Publications of all tables, or of all of a schema: they give more than is captured, and a table may leave one."""

from __future__ import annotations

from functools import partial
from typing import Any

import pyarrow as pa
import pytest
from tests.servers.postgres import Database
from tests.support.postgres.controlled_source import LOG_ID, Capture, MakeCapture

from cdcflow.capture.interleave.messages import Committed
from cdcflow.errors import HistoryLost
from cdcflow.model.change import Run, SpooledTransaction
from cdcflow.model.position import Checkpoint, Position
from cdcflow.testing.sources.reading import headers

pytestmark = pytest.mark.postgres


def publish(database: Database, what: str) -> None:
    options = "publish_via_partition_root"
    if database.server.version >= 180000:
        options += ", publish_generated_columns = stored"
    database.execute(f"CREATE PUBLICATION theirs FOR {what} WITH ({options})")


def tables_of(capture: Capture) -> tuple[set[str], list[int]]:
    """The tables that came, in memory and in spools, and the xids of the transactions."""
    tables: set[str] = set()
    xids: list[int] = []
    for event in capture.events():
        if isinstance(event, Committed):
            assert isinstance(event.run, Run | SpooledTransaction)
            xids += event.run.xids.tolist()
            if isinstance(event.run, Run):
                tables |= {batch.table.id.name for batch in event.run.batches}
    for spool in capture.spools.values():
        if spool.state == "finished":
            tables |= {batch.table.id.name for batches, _ in spool.pieces for batch in batches}
    return tables, xids


def test_rows_of_tables_that_are_not_captured_are_skipped(database: Database, make_capture: MakeCapture) -> None:
    """Rows, truncates, rows of a spooled transaction, a table made later, and one whose shape no log could hold."""
    database.execute("CREATE TABLE mine (id int PRIMARY KEY, v text); CREATE TABLE other (id int PRIMARY KEY, v text)")
    database.execute("CREATE TABLE odd (offset_ int, _offset int, r int4range)")
    publish(database, "ALL TABLES")
    settings: dict[str, Any] = {"tables": ["public.mine"], "publication": "theirs", "spool_bytes_max": 64 << 10}
    capture = make_capture(database, **settings)
    capture.prepare()
    database.execute("INSERT INTO mine VALUES (1, 'a')")
    database.execute("INSERT INTO other VALUES (1, 'a')")
    database.execute("INSERT INTO odd VALUES (1, 2, '[1,5)')")
    database.execute("TRUNCATE other, mine")
    database.execute("CREATE TABLE later (id int PRIMARY KEY); INSERT INTO later VALUES (1)")
    with database.session(autocommit=False) as session:
        for table in ("other", "mine"):
            session.execute(f"INSERT INTO {table} SELECT i, repeat('x', 20) FROM generate_series(10, 25000) i")
        session.commit()
    with database.session(autocommit=False) as session:
        session.execute("INSERT INTO other SELECT i, repeat('x', 20) FROM generate_series(30000, 55000) i")
        session.commit()
    tables, xids = tables_of(capture)
    assert tables == {"mine"}
    assert len(xids) == 3
    assert any(spool.state == "finished" for spool in capture.spools.values())


def back_of(capture: Capture) -> tuple[Checkpoint, pa.Table]:
    """The current position as a log would store it: a checkpoint, and the transactions before it."""
    found = headers(capture.events())
    before = capture.checkpoint
    last = Position(found.column("position")[-1].as_py())
    return Checkpoint(epoch=before.epoch, position=last, source=before.source), found


def given(found: pa.Table, since: object) -> pa.Table:
    return found


@pytest.mark.parametrize("tables", ["public.*", "public.mine"])
def test_additional_rows_of_a_broad_publication_are_no_other_history(
    database: Database, make_capture: MakeCapture, tables: str
) -> None:
    """After a crash cdcflow's log is compared with what the slot sends. Transactions of tables that are not captured,
    or were captured only later, are not in the log; a logged transaction that the server does not send is a loss, and
    so is an additional one.
    """
    database.execute("CREATE TABLE mine (id int PRIMARY KEY, v text)")
    publish(database, "ALL TABLES")
    settings: dict[str, Any] = {"tables": [tables], "publication": "theirs"}
    capture = make_capture(database, **settings)
    capture.prepare()
    database.execute("CREATE TABLE other (id int PRIMARY KEY); INSERT INTO other VALUES (1)")
    database.execute("INSERT INTO mine VALUES (1, 'a')")
    database.execute("INSERT INTO other VALUES (2)")
    database.execute("INSERT INTO mine VALUES (2, 'a')")
    checkpoint, ours = back_of(capture)
    assert len(ours) == 2
    capture.close()  # nothing is acknowledged
    for table, is_same in (
        (ours, True),
        (ours.slice(1), False),
        (pa.concat_tables([ours.slice(1), ours.slice(1)]), False),
    ):
        again = make_capture(database, **settings)
        if is_same:
            again.source.prepare(checkpoint, LOG_ID, partial(given, table))
        else:
            with pytest.raises(HistoryLost, match="gives other transactions"):
                again.source.prepare(checkpoint, LOG_ID, partial(given, table))


def test_changes_of_a_new_table_that_is_not_captured_yet_are_no_other_history(
    database: Database, make_capture: MakeCapture
) -> None:
    """It is published, and waits for an older transaction; a table that is locked stays published for a while, too."""
    database.execute("CREATE TABLE mine (id int PRIMARY KEY); CREATE TABLE old (id int PRIMARY KEY)")
    first = make_capture(database)
    before = first.prepare()
    first.close()
    database.execute("CREATE TABLE new (id int PRIMARY KEY)")
    settings: dict[str, Any] = {"tables": ["public.*", "!public.old"], "older_wait_s": 0.2}
    with database.session(autocommit=False) as session, database.session(autocommit=False) as holder:
        session.execute("INSERT INTO mine VALUES (1)")
        holder.execute("LOCK TABLE old IN SHARE MODE")
        capture = make_capture(database, **settings)
        capture.prepare(before)
        for statement in ("new VALUES (1)", "mine VALUES (2)", "new VALUES (2)", "mine VALUES (3)"):
            database.execute(f"INSERT INTO {statement}")
        checkpoint, ours = back_of(capture)
        assert len(ours) == 2
        capture.close()  # nothing is acknowledged
        make_capture(database, **settings).source.prepare(checkpoint, LOG_ID, partial(given, ours))
        with pytest.raises(HistoryLost, match="gives other transactions"):
            make_capture(database, **settings).source.prepare(checkpoint, LOG_ID, partial(given, ours.slice(1)))
    make_capture(database, **settings).source.prepare(checkpoint, LOG_ID, partial(given, ours))


def test_large_transactions_are_compared_without_temporary_files(database: Database, make_capture: MakeCapture) -> None:
    """A limit for temporary files must not keep a daemon from starting after a crash."""
    database.execute("CREATE TABLE mine (id int PRIMARY KEY, v text)")
    capture = make_capture(database, spool_bytes_max=64 << 20)
    capture.prepare()
    database.execute("INSERT INTO mine SELECT i, repeat('x', 500) FROM generate_series(1, 20000) i")
    database.execute("INSERT INTO mine VALUES (0, 'last')")
    checkpoint, ours = back_of(capture)
    capture.close()
    assert len(ours) == 2
    database.execute(f"ALTER DATABASE {database.name} SET temp_file_limit = '64kB'")
    database.execute(f"ALTER DATABASE {database.name} SET work_mem = '64kB'")
    again = make_capture(database)
    again.source.prepare(checkpoint, LOG_ID, lambda since: ours)


def test_table_moved_out_of_a_published_schema_and_back_is_found_out(
    database: Database, make_capture: MakeCapture
) -> None:
    """The schema's entry in the publication is unchanged, and the table is back in its schema; its changes are gone."""
    if database.server.version < 150000:
        return
    database.execute("CREATE SCHEMA shelf; CREATE TABLE t (id int PRIMARY KEY); CREATE TABLE u (id int PRIMARY KEY)")
    publish(database, "TABLES IN SCHEMA public")
    settings: dict[str, Any] = {"tables": ["public.*"], "publication": "theirs"}
    before = make_capture(database, **settings).prepare()
    # What else happens to a table does not look like that.
    database.execute("ALTER TABLE t ADD n int; GRANT SELECT ON t TO public; CREATE INDEX ON t (n)")
    database.execute(
        "ALTER TABLE u RENAME TO w; ALTER TABLE w RENAME TO u; DROP TABLE u; CREATE TABLE u (id int PRIMARY KEY)"
    )
    running = make_capture(database, **settings)
    running.prepare(before)
    running.chunks.heartbeat()
    database.execute("ALTER TABLE t SET SCHEMA shelf")
    database.execute("INSERT INTO shelf.t VALUES (1)")
    database.execute("ALTER TABLE shelf.t SET SCHEMA public")
    with pytest.raises(HistoryLost, match=r"table public\.t was moved out of its schema"):
        running.chunks.heartbeat()
    with pytest.raises(HistoryLost, match=r"table public\.t was moved out of its schema"):
        make_capture(database, **settings).prepare(before)
