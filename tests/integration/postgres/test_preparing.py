"""Slot and publication: created once, checked at every later start, never silently recreated."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import psycopg
import pytest
import structlog
from tests.servers.postgres import Database, PostgresServer
from tests.support.polling import wait_for, wait_until
from tests.support.postgres.controlled_source import LOG_ID, SLOT, Capture, MakeCapture, table_id

from cdcflow.capture.ports.source import SourceHistory
from cdcflow.errors import ConfigurationError, HistoryLost, SourceUnavailable
from cdcflow.model.position import Checkpoint
from cdcflow.sources.postgres.lsn import Lsn, lsn_of, position_of

pytestmark = pytest.mark.postgres


@pytest.fixture
def items(database: Database) -> Database:
    database.execute("CREATE TABLE items (id int PRIMARY KEY, name text)")
    return database


def slots(database: Database) -> list[str]:
    found = database.execute(f"SELECT slot_name FROM pg_replication_slots WHERE database = '{database.name}'")
    return [name for (name,) in found]


def published(database: Database) -> list[str]:
    return [t for (t,) in database.execute("SELECT tablename FROM pg_publication_tables ORDER BY 1")]


def test_first_start_creates_publication_and_slot_under_the_logs_name(items: Database, capture: Capture) -> None:
    """P60: the publication must exist before the slot's first position in the log."""
    checkpoint = capture.prepare()
    assert checkpoint.position is not None
    assert checkpoint.source["slot"] == checkpoint.source["publication"] == SLOT
    assert slots(items) == [SLOT]
    assert published(items) == ["items"]
    items.execute("INSERT INTO items VALUES (1, 'a')")
    assert [r["_op"] for r in capture.changes()] == ["c"]


def test_restart_resumes_where_the_log_ends(items: Database, make_capture: MakeCapture) -> None:
    """A second start must neither create a new slot nor skip what happened while no capture ran."""
    before = make_capture(items).prepare()
    items.execute("INSERT INTO items VALUES (1, 'while away')")
    again = make_capture(items)
    assert again.prepare(before) == before
    assert [(r["_op"], r["id"]) for r in again.changes()] == [("c", 1)]


def test_slot_left_by_a_first_start_that_died_is_recreated(items: Database, make_capture: MakeCapture) -> None:
    """A crash between slot and first checkpoint must not need an operator, nor retain the server's log indefinitely."""
    first = make_capture(items).prepare()
    items.execute("INSERT INTO items VALUES (1, 'the backfill has it')")
    capture = make_capture(items)
    second = capture.prepare()
    assert slots(items) == [SLOT]
    assert first.position is not None
    assert second.position is not None
    assert lsn_of(second.position) > lsn_of(first.position)
    assert capture.changes() == []


def test_slot_created_by_an_administrator_is_used(items: Database, make_capture: MakeCapture) -> None:
    """A role without the right to create a slot or publication gets them from an administrator (S08), in any order."""
    items.execute(f"SELECT pg_create_logical_replication_slot('by_hand_{items.name}', 'pgoutput')")
    items.execute("INSERT INTO items VALUES (0, 'before the publication')")
    capture = make_capture(items, slot=f"by_hand_{items.name}")
    with structlog.testing.capture_logs() as said:
        capture.prepare()
    (told,) = [line for line in said if line["event"] == "slot taken over"]
    assert told["slot"] == f"by_hand_{items.name}"
    assert "its daemon must not be started again" in told["remedy"]
    items.execute("INSERT INTO items VALUES (1, 'a')")
    assert [r["id"] for r in capture.changes()] == [1]


def test_slot_of_another_plugin_is_refused(items: Database, make_capture: MakeCapture) -> None:
    """cdcflow must not drain a slot for another consumer's plugin."""
    name = f"foreign_{items.name}"
    items.execute(f"SELECT pg_create_logical_replication_slot('{name}', 'test_decoding')")
    with pytest.raises(ConfigurationError, match=r"does not belong to cdcflow: it is logical, plugin test_decoding"):
        make_capture(items, slot=name).prepare()


def test_slot_that_sends_prepared_transactions_is_refused(items: Database, make_capture: MakeCapture) -> None:
    """The first PREPARE TRANSACTION would have stopped the capture, at each start."""
    name = f"prepared_{items.name}"
    items.execute(f"SELECT pg_create_logical_replication_slot('{name}', 'pgoutput', twophase => true)")
    with pytest.raises(ConfigurationError, match=r"was created with two_phase") as refused:
        make_capture(items, slot=name).prepare()
    items.execute(str(refused.value.remedy).split("run ")[1].split(";")[0])
    capture = make_capture(items, slot=name)
    capture.prepare()
    items.execute("INSERT INTO items VALUES (1, 'a')")
    assert [r["id"] for r in capture.changes()] == [1]


def test_slot_creation_names_the_transaction_it_waits_for(items: Database, make_capture: MakeCapture) -> None:
    """P34: a forgotten transaction blocks the first start; an operator needs its pid, and no half-created slot
    stays.
    """
    capture = make_capture(items, creation_wait_s=1.0)
    with items.session(autocommit=False) as open_transaction:
        open_transaction.execute("INSERT INTO items VALUES (1, 'open')")
        with pytest.raises(SourceUnavailable, match=rf"pid {open_transaction.info.backend_pid} of postgres"):
            capture.prepare()
        assert slots(items) == []
    make_capture(items).prepare()


def test_closing_the_source_ends_the_wait_for_a_slot(items: Database, make_capture: MakeCapture) -> None:
    """P34: a stop comes while an older transaction is open; nothing half made may be in the way of the next start."""
    capture = make_capture(items, creation_wait_s=600.0)
    failures: list[BaseException] = []

    def prepare() -> None:
        try:
            capture.prepare()
        except SourceUnavailable as error:
            failures.append(error)

    with items.session(autocommit=False) as open_transaction:
        open_transaction.execute("INSERT INTO items VALUES (1, 'open')")
        preparing = threading.Thread(target=prepare)
        preparing.start()
        waiting = "SELECT 1 FROM pg_stat_activity WHERE application_name = 'cdcflow slot' AND wait_event_type = 'Lock'"
        wait_until(lambda: items.execute(waiting) or not preparing.is_alive(), "the slot's creation to wait")
        assert preparing.is_alive()
        capture.source.close()
        preparing.join(60)
        assert not preparing.is_alive()
        assert len(failures) == 1
        wait_for(lambda: slots(items), lambda found: not found, "the server to drop the half-made slot")


def test_transaction_open_while_the_slot_is_created_is_not_lost(items: Database, capture: Capture) -> None:
    """P35: its rows are either in the stream or visible to the backfill, whichever way the race went."""
    with items.session(autocommit=False) as session:
        session.execute("INSERT INTO items VALUES (1, 'raced')")
        preparing = threading.Thread(target=capture.prepare)
        preparing.start()
        waiting = "SELECT 1 FROM pg_stat_activity WHERE application_name = 'cdcflow slot' AND wait_event_type = 'Lock'"
        wait_until(lambda: items.execute(waiting) or not preparing.is_alive(), "the slot's creation to wait")
        assert preparing.is_alive()
        session.commit()
        preparing.join()
    streamed = [r["id"] for r in capture.changes()]
    read = [r["id"] for r in capture.rows("public.items")]
    assert set(streamed) | set(read) == {1}
    assert len(streamed) <= 1


def test_missing_slot_stops_and_is_not_recreated(items: Database, make_capture: MakeCapture) -> None:
    """P37: a new slot in place of a lost one would hide the changes in between permanently."""
    before = make_capture(items).prepare()
    items.execute(f"SELECT pg_drop_replication_slot('{SLOT}')")
    with pytest.raises(HistoryLost, match="--accept-history-loss"):
        make_capture(items).prepare(before)
    assert slots(items) == []


def test_unread_slots_of_other_logs_are_named_with_the_sql_that_drops_them(
    items: Database, make_capture: MakeCapture
) -> None:
    """P38: a log that was deleted leaves a slot, and the server keeps its log for it until the disk is full."""
    capture = make_capture(items)
    capture.prepare()
    items.execute("SELECT pg_create_logical_replication_slot('cdcflow_0ddba11c', 'pgoutput')")
    items.execute("SELECT pg_create_logical_replication_slot('cdcflow_of_somebody', 'pgoutput')")
    items.execute("SELECT pg_create_physical_replication_slot('cdcflow_0ddba11d', true)")
    (found,) = capture.source.left_behind(LOG_ID)
    assert (found.level, found.subject) == ("warning", "slot cdcflow_0ddba11c")
    assert "bytes of WAL" in found.text
    assert found.remedy is not None
    items.execute(found.remedy.partition(", run ")[2])
    assert capture.source.left_behind(LOG_ID) == []
    assert SLOT in [name for (name,) in items.execute("SELECT slot_name FROM pg_replication_slots")]
    items.execute("SELECT pg_drop_replication_slot('cdcflow_0ddba11d')")
    items.execute("SELECT pg_drop_replication_slot('cdcflow_of_somebody')")


def test_accepted_loss_creates_a_new_position_and_requests_a_new_backfill(
    items: Database, make_capture: MakeCapture
) -> None:
    """P36, P37: only at an operator's command; the caller is notified to read everything again."""
    before = make_capture(items).prepare()
    items.execute(f"SELECT pg_drop_replication_slot('{SLOT}')")
    items.execute("INSERT INTO items VALUES (1, 'missed')")
    capture = make_capture(items)
    after = capture.prepare(before, accept_history_loss=True)
    assert capture.history is SourceHistory.LOST
    assert before.position is not None
    assert after.position is not None
    assert lsn_of(after.position) > lsn_of(before.position)
    items.execute("INSERT INTO items VALUES (2, 'seen')")
    assert [r["id"] for r in capture.changes()] == [2]


def test_accepted_loss_creates_a_new_position_even_where_nothing_was_lost(
    items: Database, make_capture: MakeCapture
) -> None:
    """What stopped the stream may be right after the old position; continuing there would meet it every time."""
    before = make_capture(items).prepare()
    items.execute("INSERT INTO items VALUES (1, 'cannot be followed')")
    capture = make_capture(items)
    capture.prepare(before, accept_history_loss=True)
    assert capture.history is SourceHistory.LOST
    items.execute("INSERT INTO items VALUES (2, 'seen')")
    assert [r["id"] for r in capture.changes()] == [2]


def test_slot_recreated_under_the_same_name_is_found_out(items: Database, make_capture: MakeCapture) -> None:
    """P38: the name is right, and the changes between the old slot and the new one are gone."""
    before = make_capture(items).prepare()
    items.execute(f"SELECT pg_drop_replication_slot('{SLOT}')")
    items.execute("INSERT INTO items VALUES (1, 'missed')")
    items.execute(f"SELECT pg_create_logical_replication_slot('{SLOT}', 'pgoutput')")
    with pytest.raises(HistoryLost, match="to another client"):
        make_capture(items).prepare(before)


def test_slot_drained_by_another_consumer_is_detected(items: Database, make_capture: MakeCapture) -> None:
    """P38: another consumer acknowledged our changes."""
    before = make_capture(items).prepare()
    items.execute("INSERT INTO items VALUES (1, 'stolen')")
    items.execute(f"SELECT pg_replication_slot_advance('{SLOT}', pg_current_wal_lsn())")
    with pytest.raises(HistoryLost, match="to another client") as error:
        make_capture(items).prepare(before)
    assert "If a copy of this log is captured elsewhere" in str(error.value)


@pytest.mark.spread(4)
@pytest.mark.parametrize(
    "loss",
    [
        f"SELECT pg_drop_replication_slot('{SLOT}')",
        f"SELECT pg_replication_slot_advance('{SLOT}', pg_current_wal_flush_lsn())",
        f"SELECT pg_drop_replication_slot('{SLOT}'); INSERT INTO items VALUES (8, 'x');"
        f"SELECT pg_create_logical_replication_slot('{SLOT}', 'pgoutput')",
        f"DROP PUBLICATION {SLOT}",
        f"ALTER PUBLICATION {SLOT} DROP TABLE items; ALTER PUBLICATION {SLOT} ADD TABLE items",
        f"ALTER PUBLICATION {SLOT} SET (publish = 'insert')",
    ],
)
def test_what_a_start_would_stop_for_can_be_seen_before_it(
    items: Database, make_capture: MakeCapture, loss: str
) -> None:
    """Doctor and status use this, so it must be the start's own answer, word for word; the check repairs nothing."""
    capture = make_capture(items)
    before = capture.prepare()
    assert [f.level for f in make_capture(items).source.continues(lambda: before, LOG_ID)] == ["ok"]
    assert make_capture(items).source.continues(lambda: Checkpoint(), LOG_ID) == ()
    items.execute("INSERT INTO items VALUES (7, 'x')")
    for statement in loss.split(";"):
        items.execute(statement)
    for _ in range(2):
        (seen,) = make_capture(items).source.continues(lambda: before, LOG_ID)
    with pytest.raises(HistoryLost) as stopped:
        make_capture(items).prepare(before)
    assert str(stopped.value) == f"{seen.text}\n  {seen.remedy}"
    assert (seen.level, seen.subject) == ("error", "position")


def test_check_during_a_running_daemon_finds_nothing_missing(items: Database, make_capture: MakeCapture) -> None:
    """Between a check of the log and one of the slot the daemon confirms more: that is no loss."""
    capture = make_capture(items)
    checkpoints = [capture.prepare()]

    def confirmed_meanwhile() -> Checkpoint:
        found = checkpoints[-1]
        items.execute("INSERT INTO items SELECT count(*), 'x' FROM items")
        items.execute(f"SELECT pg_replication_slot_advance('{SLOT}', pg_current_wal_flush_lsn())")
        ((at,),) = items.execute(f"SELECT confirmed_flush_lsn FROM pg_replication_slots WHERE slot_name = '{SLOT}'")
        checkpoints.append(replace(found, position=position_of(Lsn.parse(str(at)))))
        return found

    assert [f.level for f in make_capture(items).source.continues(confirmed_meanwhile, LOG_ID)] == ["ok"]


def test_stored_position_ahead_of_the_slot_is_fine(items: Database, make_capture: MakeCapture) -> None:
    """P40: after a server crash the slot is where it was last saved; what the log has is skipped."""
    capture = make_capture(items)
    before = capture.prepare()
    items.execute("INSERT INTO items VALUES (1, 'in the log already')")
    capture.events()
    (end,) = items.execute("SELECT pg_current_wal_lsn()::text")[0]
    capture.close()
    items.execute("INSERT INTO items VALUES (2, 'new')")
    again = make_capture(items)
    again.prepare(replace(before, position=position_of(Lsn.parse(end))))
    assert [r["id"] for r in again.changes()] == [2]


@pytest.mark.parametrize(
    ("changed", "kind", "said"),
    [
        ({"system_id": "1"}, ConfigurationError, "belongs to database"),
        ({"timeline": "7"}, HistoryLost, "restored or promoted"),
        ({"slot": "another"}, ConfigurationError, "began with source.slot = another"),
        ({"publication": "another"}, ConfigurationError, "began with source.publication = another"),
    ],
)
def test_log_of_another_server_is_refused(
    items: Database,
    make_capture: MakeCapture,
    changed: dict[str, str],
    kind: type[Exception],
    said: str,
) -> None:
    """P43, P44, O04: positions of one server mean nothing, or something else, on another."""
    before = make_capture(items).prepare()
    with pytest.raises(kind, match=said):
        make_capture(items).prepare(replace(before, source={**before.source, **changed}))


def test_log_of_another_database_is_refused_unless_its_slot_is_in_this_one(
    items: Database, make_capture: MakeCapture
) -> None:
    """O04: the slot identifies the database that a log is of: a database may be renamed."""
    before = make_capture(items).prepare()
    of_another_name = replace(before, source={**before.source, "database": "elsewhere"})
    assert make_capture(items).prepare(of_another_name) == before
    items.execute(f"SELECT pg_drop_replication_slot('{SLOT}')")
    with pytest.raises(ConfigurationError, match="belongs to database elsewhere"):
        make_capture(items).prepare(of_another_name)


def test_server_restored_to_an_older_state_is_found_out(items: Database, make_capture: MakeCapture) -> None:
    """P43: same identity, same names, but its log ends before what we have."""
    before = make_capture(items).prepare()
    with pytest.raises(HistoryLost, match="restored from an older state"):
        make_capture(items).prepare(replace(before, position=position_of(Lsn(1 << 60))))


def test_dropped_publication_stops_the_capture(items: Database, make_capture: MakeCapture) -> None:
    """P61: changes without it are in no stream, and PostgreSQL 18 would continue silently."""
    before = make_capture(items).prepare()
    items.execute(f"DROP PUBLICATION {SLOT}")
    items.execute("INSERT INTO items VALUES (1, 'unseen')")
    with pytest.raises(HistoryLost, match="is gone"):
        make_capture(items).prepare(before)
    items.execute(f"CREATE PUBLICATION {SLOT} FOR TABLE items WITH (publish_via_partition_root)")
    with pytest.raises(HistoryLost, match="dropped and recreated"):
        make_capture(items).prepare(before)


def test_table_removed_from_the_publication_and_added_again_is_detected(
    items: Database, make_capture: MakeCapture
) -> None:
    """P61: its changes in between are lost though everything appears unchanged."""
    before = make_capture(items).prepare()
    items.execute(f"ALTER PUBLICATION {SLOT} DROP TABLE items")
    with pytest.raises(HistoryLost, match=r"table public\.items was taken out"):
        make_capture(items).prepare(before)
    items.execute(f"ALTER PUBLICATION {SLOT} ADD TABLE items")
    with pytest.raises(HistoryLost, match=r"table public\.items was taken out"):
        make_capture(items).prepare(before)


def test_heartbeat_notices_what_happens_to_the_publication(items: Database, capture: Capture) -> None:
    """P61: on PostgreSQL 18 the stream itself would never report it."""
    capture.prepare()
    capture.chunks.heartbeat()
    items.execute(f"ALTER PUBLICATION {SLOT} DROP TABLE items")
    with pytest.raises(HistoryLost, match="taken out"):
        capture.chunks.heartbeat()


def test_dropped_table_loses_nothing(items: Database, make_capture: MakeCapture) -> None:
    """A table that was dropped on purpose must not stop the others, now or at the next start."""
    items.execute("CREATE TABLE doomed (id int PRIMARY KEY)")
    capture = make_capture(items)
    before = capture.prepare()
    items.execute("INSERT INTO doomed VALUES (1)")
    items.execute("DROP TABLE doomed")
    items.execute("INSERT INTO items VALUES (1, 'a')")
    capture.chunks.heartbeat()
    rows = capture.changes()
    assert [r["id"] for r in rows] == [1, 1]
    capture.close()
    make_capture(items).prepare(before)


def test_settings_decide_what_the_publication_has(items: Database, make_capture: MakeCapture) -> None:
    """O05, P61: the settings add and remove tables, and the publication never has to be changed by hand."""
    items.execute("CREATE TABLE more (id int PRIMARY KEY)")
    first = make_capture(items, tables=["public.items"])
    before = first.prepare()
    assert published(items) == ["items"]
    first.close()
    both = make_capture(items, tables=["public.items", "public.more"])
    after = both.prepare(before)
    assert published(items) == ["items", "more"]
    items.execute("INSERT INTO more VALUES (1)")
    assert len(both.changes("public.more")) == 1
    both.close()
    one = make_capture(items, tables=["public.more"])
    one.prepare(after)
    assert published(items) == ["more"]
    items.execute("INSERT INTO items VALUES (1, 'not ours now')")
    items.execute("INSERT INTO more VALUES (2)")
    # From before the last change of the settings, 1 comes again; of items, nothing.
    assert [r["id"] for r in one.changes()] == [1, 2]


def test_added_table_waits_for_transactions_that_know_the_old_publication(
    items: Database, make_capture: MakeCapture
) -> None:
    """P62: older servers do not decode such a transaction's later rows, so the backfill must come after it."""
    items.execute("CREATE TABLE more (id int PRIMARY KEY)")
    before = make_capture(items, tables=["public.items"]).prepare()
    with items.session(autocommit=False) as session:
        session.execute("INSERT INTO items VALUES (1, 'open')")
        for _ in range(2):  # the second try finds the table in the publication already
            running = make_capture(items, tables=["public.*"], older_wait_s=0.3)
            between = running.prepare(before)
            assert published(items) == ["items", "more"]
            assert [str(t.id) for t in running.source.tables()] == ["public.items"]
            assert [str(t) for t in running.source.left_out()] == ["public.more"]
            running.close()
        running = make_capture(items, tables=["public.*"], older_wait_s=0.3)
        running.prepare(between)
        items.execute("INSERT INTO items VALUES (2, 'not held up'); INSERT INTO more VALUES (1)")
        assert [r["id"] for r in running.changes()] == [2]
        session.commit()
    with items.session(autocommit=False) as session:
        session.execute("INSERT INTO items VALUES (3, 'open')")  # it began later, and does not count
        assert [str(t.id) for t in running.source.tables()] == ["public.items", "public.more"]
        running.close()
        after = make_capture(items, tables=["public.*"], older_wait_s=0.3)
        at_last = after.prepare(between)
        assert [str(t.id) for t in after.source.tables()] == ["public.items", "public.more"]
        make_capture(items, tables=["public.*"], older_wait_s=0.3).prepare(at_last)
    assert "joining" in between.source
    assert "joining" not in at_last.source


def test_table_that_another_session_added_to_the_publication_is_waited_for_too(
    items: Database, make_capture: MakeCapture
) -> None:
    """P62: who added it makes no difference; a log that does not know the table must not read it too early."""
    items.execute("CREATE TABLE more (id int PRIMARY KEY)")
    before = make_capture(items, tables=["public.items"]).prepare()
    with items.session(autocommit=False) as session:
        session.execute("INSERT INTO items VALUES (1, 'open')")
        items.execute(f"ALTER PUBLICATION {SLOT} ADD TABLE ONLY more")
        capture = make_capture(items, tables=["public.*"], older_wait_s=0.3)
        capture.prepare(before)
        assert [str(t.id) for t in capture.source.tables()] == ["public.items"]
        session.rollback()  # the server notices a closed connection later
    assert [str(t.id) for t in capture.source.tables()] == ["public.items", "public.more"]


def test_publication_of_another_owner_is_checked_and_not_changed(items: Database, make_capture: MakeCapture) -> None:
    """Others may read it too: they decide how it publishes, and cdcflow may refuse it."""
    items.execute("CREATE PUBLICATION theirs FOR TABLE items WITH (publish = 'insert')")
    with pytest.raises(ConfigurationError, match=r'ALTER PUBLICATION "theirs" SET \(publish = '):
        make_capture(items, publication="theirs").prepare()
    items.execute("ALTER PUBLICATION theirs SET (publish = 'insert, update, delete, truncate')")


def test_filtered_publication_is_refused(items: Database, make_capture: MakeCapture) -> None:
    """Rows that the stream excludes but the backfill reads would stay downstream indefinitely."""
    items.execute(
        "CREATE PUBLICATION theirs FOR TABLE items WHERE (id > 5) WITH (publish_via_partition_root)"
        if items.server.version >= 150000
        else "CREATE PUBLICATION theirs FOR TABLE items WITH (publish_via_partition_root)"
    )
    if items.server.version >= 180000:
        items.execute("ALTER PUBLICATION theirs SET (publish_generated_columns = stored)")
    with pytest.raises(ConfigurationError, match="excludes rows or columns"):
        make_capture(items, publication="theirs").prepare()


@pytest.mark.parametrize(
    ("ddl", "said"),
    [
        (
            "CREATE TABLE t (a int)",
            r'public\.t has no primary key.*ADD PRIMARY KEY.*"public"\."t" REPLICA IDENTITY FULL',
        ),
        (
            "CREATE TABLE t (a int PRIMARY KEY); ALTER TABLE t REPLICA IDENTITY NOTHING",
            r'public\.t has REPLICA IDENTITY NOTHING.*ALTER TABLE "public"\."t" REPLICA IDENTITY DEFAULT',
        ),
        (
            "CREATE TABLE t (a int NOT NULL); CREATE UNIQUE INDEX i ON t (a);"
            "ALTER TABLE t REPLICA IDENTITY USING INDEX i; DROP INDEX i",
            "that index is gone",
        ),
        (
            "CREATE TABLE t (a int PRIMARY KEY DEFERRABLE)",
            r'public\.t has a primary key that is DEFERRABLE.*run ALTER TABLE "public"\."t" REPLICA IDENTITY FULL',
        ),
        ("CREATE TABLE t (a int PRIMARY KEY, _op text)", r'column _op.*RENAME COLUMN "_op"'),
        (
            "CREATE TABLE t (a int PRIMARY KEY) PARTITION BY RANGE (a);"
            "CREATE TABLE t1 PARTITION OF t DEFAULT; ALTER TABLE t1 REPLICA IDENTITY NOTHING",
            r'partition public\.t1 of public\.t.*ALTER TABLE "public"\."t1" REPLICA IDENTITY DEFAULT',
        ),
        (
            "CREATE TABLE t (a int PRIMARY KEY, b int NOT NULL) PARTITION BY RANGE (a);"
            "CREATE TABLE t1 PARTITION OF t DEFAULT; CREATE UNIQUE INDEX i ON t1 (b);"
            "ALTER TABLE t1 REPLICA IDENTITY USING INDEX i",
            r'partition public\.t1 of public\.t .* the columns \(a\).*TABLE "public"\."t1" REPLICA IDENTITY DEFAULT',
        ),
        (
            "CREATE TABLE t (a int PRIMARY KEY, b int NOT NULL) PARTITION BY RANGE (a);"
            "CREATE TABLE t1 PARTITION OF t DEFAULT; CREATE UNIQUE INDEX i ON t (a, b);"
            "ALTER TABLE t REPLICA IDENTITY USING INDEX i",
            r'partition public\.t1 of public\.t .* the columns \(a, b\).*TABLE "public"\."t1" REPLICA IDENTITY FULL',
        ),
        (
            "CREATE TABLE t (a int NOT NULL, b int) PARTITION BY RANGE (a); ALTER TABLE t REPLICA IDENTITY FULL;"
            "CREATE TABLE t1 PARTITION OF t DEFAULT; ALTER TABLE t1 ADD PRIMARY KEY (a)",
            r'partition public\.t1 of public\.t .* all columns.*TABLE "public"\."t1" REPLICA IDENTITY FULL',
        ),
        (
            "CREATE TABLE t (a int PRIMARY KEY) PARTITION BY RANGE (a);CREATE UNLOGGED TABLE t1 PARTITION OF t DEFAULT",
            r'partition public\.t1 of public\.t is UNLOGGED.*ALTER TABLE "public"\."t1" SET LOGGED',
        ),
    ],
)
def test_table_whose_old_rows_have_no_identity_is_refused_with_an_error_that_names_it(
    database: Database, capture: Capture, ddl: str, said: str
) -> None:
    """P05, P08: publishing it would make its owner's UPDATEs fail; the remedy is in the message."""
    database.execute(ddl)
    with pytest.raises(ConfigurationError, match=f"(?s){said}"):
        capture.prepare()
    assert database.execute("SELECT 1 FROM pg_publication") == []


def test_generated_column_in_the_key_is_refused_until_an_index_replaces_it(
    postgres_server: PostgresServer, database: Database, make_capture: MakeCapture
) -> None:
    """Before PostgreSQL 18 the server does not send it. The remedy was a statement with a placeholder in it."""
    database.execute("CREATE TABLE t (a int NOT NULL, b int GENERATED ALWAYS AS (a * 2) STORED PRIMARY KEY)")
    capture = make_capture(database)
    if postgres_server.version < 180000:
        with pytest.raises(ConfigurationError, match=r"public\.t has the generated column b in its key") as refused:
            capture.prepare()
        assert "or else give it a unique index of other columns, all of them NOT NULL" in str(refused.value)
        database.execute("CREATE UNIQUE INDEX own ON t (a); ALTER TABLE t REPLICA IDENTITY USING INDEX own")
    capture.prepare()
    database.execute("INSERT INTO t VALUES (1); UPDATE t SET a = 3")
    changed = [(row["_op"], row["a"]) for row in capture.changes()]
    assert [changed[0], *changed[2:], changed[1][0]] == [("c", 1), ("c", 3), "d"]


def test_table_that_became_uncapturable_is_read_again_by_its_remedy(
    database: Database, make_capture: MakeCapture
) -> None:
    """Its backfill fails, and stays so after the statement that helps: no change of rows reaches the daemon. The remedy
    has to name the backfill, too."""
    database.execute("CREATE TABLE t (a int PRIMARY KEY)")
    capture = make_capture(database)
    capture.prepare()
    database.execute("ALTER TABLE t REPLICA IDENTITY NOTHING")

    with pytest.raises(ConfigurationError, match="NOTHING") as refused:
        capture.plan("public.t")

    assert refused.value.remedy == (
        'run ALTER TABLE "public"."t" REPLICA IDENTITY DEFAULT; then run `cdcflow backfill public.t`'
    )
    database.execute("ALTER TABLE t REPLICA IDENTITY DEFAULT")
    assert capture.plan("public.t").shape is not None


@pytest.mark.parametrize("partitions", ["", "PARTITION BY RANGE (a)"])
def test_full_ends_the_refusal_of_a_generated_column_in_the_key(
    postgres_server: PostgresServer, database: Database, make_capture: MakeCapture, partitions: str
) -> None:
    """Before PostgreSQL 18 nothing that is sent tells such rows apart: all columns together do then, as without a key.
    There was no statement that helps where no other columns are unique."""
    database.execute(
        "CREATE TABLE t (a int, c int, b int GENERATED ALWAYS AS (c * 2) STORED, PRIMARY KEY (a, b)) " + partitions
    )
    if partitions:
        database.execute("CREATE TABLE t1 PARTITION OF t DEFAULT")
    rels = ["t", *(["t1"] if partitions else [])]
    capture = make_capture(database)
    if postgres_server.version < 180000:
        mends = "; ".join(f'ALTER TABLE "public"."{rel}" REPLICA IDENTITY FULL' for rel in rels)
        with pytest.raises(ConfigurationError, match=f"(?s)b in its key.*run {mends}, or else"):
            capture.prepare()
    for rel in rels:
        database.execute(f"ALTER TABLE {rel} REPLICA IDENTITY FULL")
    database.execute("INSERT INTO t VALUES (1, 1), (1, 2), (2, 3)")
    capture.prepare()
    key = ("a", "b") if postgres_server.version >= 180000 else ()
    assert capture.shape("public.t").key == key
    rows = Counter(row["c"] for row in capture.rows("public.t"))
    assert rows == Counter((1, 2, 3))

    database.execute("UPDATE t SET c = 7 WHERE c = 2; DELETE FROM t WHERE c = 1")

    for batch in capture.batches():
        assert batch.table.key == key
        for row in batch.rows.to_pylist():
            rows[row["c"]] += -1 if row["_op"] == "d" else 1
    assert +rows == Counter((7, 3))


@pytest.mark.parametrize(
    ("ddl", "table", "said"),
    [
        ("CREATE VIEW v AS SELECT 1 AS a", "public.v", "is a view"),
        ("CREATE UNLOGGED TABLE u (a int PRIMARY KEY)", "public.u", "UNLOGGED.*SET LOGGED"),
        (
            "CREATE TABLE p (a int PRIMARY KEY) PARTITION BY RANGE (a); CREATE TABLE p1 PARTITION OF p DEFAULT",
            "public.p1",
            "is a partition",
        ),
        (
            "CREATE EXTENSION postgres_fdw; CREATE SERVER s FOREIGN DATA WRAPPER postgres_fdw;"
            "CREATE FOREIGN TABLE f (a int) SERVER s",
            "public.f",
            "is a foreign table",
        ),
        ("SELECT 1", "public.absent", "there is no table public.absent"),
    ],
)
def test_name_that_is_not_a_captured_table_is_refused_with_an_error_that_names_it(
    database: Database, make_capture: MakeCapture, ddl: str, table: str, said: str
) -> None:
    """A name in the settings that means nothing must not be passed over."""
    for statement in ddl.split(";"):
        database.execute(statement)
    with pytest.raises(ConfigurationError, match=f"(?s){said}"):
        make_capture(database, tables=[table]).prepare()


def test_hostile_names_are_names(database: Database, make_capture: MakeCapture) -> None:
    """S01: a table may be called anything, and nothing of it is ever run."""
    table = 'x"; DROP TABLE important; --'
    sql_name = '"we.ird ""schema"""."x""; DROP TABLE important; --"'
    database.execute("CREATE TABLE important (id int PRIMARY KEY)")
    database.execute('CREATE SCHEMA "we.ird ""schema"""')
    database.execute(f'CREATE TABLE {sql_name} ("k""ey\'s" text PRIMARY KEY, "per%cent" int)')
    capture = make_capture(database, tables=['"we.ird ""schema""".*', "public.*"])
    capture.prepare()
    database.execute(f"""INSERT INTO {sql_name} VALUES ('it''s "quoted" \\', 1)""")
    database.execute(f'UPDATE {sql_name} SET "per%cent" = 2')
    full = f'we.ird "schema".{table}'
    changes = capture.changes(full)
    assert [(r["_op"], r["k\"ey's"], r["per%cent"]) for r in changes] == [
        ("c", 'it\'s "quoted" \\', 1),
        ("u", 'it\'s "quoted" \\', 2),
    ]
    planned = capture.chunks.plan(capture.source.tables()[1].id, 1)
    assert str(planned.table) == full
    read = capture.read(planned)
    assert read.run is not None
    assert read.run.rows == 1
    assert database.execute("SELECT count(*) FROM important") == [(0,)]


def test_patterns_exclude_the_tables_that_they_match(database: Database, make_capture: MakeCapture) -> None:
    """The settings' own example: everything but the audit tables."""
    for name in ("orders", "audit_a", "audit_b", '"Orders"'):
        database.execute(f"CREATE TABLE {name} (id int PRIMARY KEY)")
    capture = make_capture(database, tables=["public.*", "!public.audit_*"])
    capture.prepare()
    assert [str(t.id) for t in capture.source.tables()] == ["public.Orders", "public.orders"]


def test_refused_newcomer_does_not_stop_a_running_capture(database: Database, capture: Capture) -> None:
    """A migration creates a table first and its key later: in the meantime the capture of all others continues."""
    database.execute("CREATE TABLE items (id int PRIMARY KEY)")
    capture.prepare()
    database.execute("CREATE TABLE half_made (id int)")
    assert [str(t.id) for t in capture.source.tables()] == ["public.items"]
    database.execute("ALTER TABLE half_made ADD PRIMARY KEY (id)")
    assert [str(t.id) for t in capture.source.tables()] == ["public.half_made", "public.items"]
    database.execute("ALTER TABLE items DROP CONSTRAINT items_pkey")
    assert [str(t.id) for t in capture.source.tables()] == ["public.half_made", "public.items"]
    assert "public.items has no primary key" in capture.source.compare_rows({}).refused[table_id("public.items")]


def test_refused_newcomer_does_not_stop_a_restart(items: Database, make_capture: MakeCapture) -> None:
    """A lost connection restarts the capture, and a half-created table must not prevent that; status shows the
    table.
    """
    before = make_capture(items).prepare()
    items.execute("CREATE TABLE half_made (id int)")
    capture = make_capture(items)
    assert capture.prepare(before) == before
    assert [str(t.id) for t in capture.source.tables()] == ["public.items"]
    assert capture.source.status(None).details["left_out"] == "public.half_made"
    with pytest.raises(ConfigurationError, match=r"public\.half_made has no primary key"):
        make_capture(items, tables=["public.items", "public.half_made"]).prepare(before)
    items.execute("ALTER TABLE items DROP CONSTRAINT items_pkey")
    again = make_capture(items)
    again.prepare(before)
    assert "public.items has no primary key" in again.source.compare_rows({}).refused[table_id("public.items")]


def test_publication_that_temporarily_excluded_operations_is_detected(
    items: Database, make_capture: MakeCapture
) -> None:
    """P11, P61: what it excluded in the meantime is lost; repairing it would only hide that."""
    before = make_capture(items).prepare()
    items.execute(f"ALTER PUBLICATION {SLOT} SET (publish = 'insert')")
    items.execute("INSERT INTO items VALUES (1, 'a'); DELETE FROM items")
    capture = make_capture(items)
    with pytest.raises(HistoryLost, match="changes that it excludes are not in the stream"):
        capture.prepare(before)
    capture.prepare(before, accept_history_loss=True)
    items.execute("INSERT INTO items VALUES (2, 'b'); DELETE FROM items")
    assert [r["_op"] for r in capture.changes()] == ["c", "d"]


@pytest.fixture
def set_back(items: Database) -> Callable[[], None]:
    """Let the publication exclude changes for a while, so that it appears unchanged afterwards."""

    def leave_out_for_a_while() -> None:
        items.execute(f"ALTER PUBLICATION {SLOT} SET (publish = 'insert')")
        items.execute("DELETE FROM items")
        items.execute(f"ALTER PUBLICATION {SLOT} SET (publish = 'insert, update, delete, truncate')")

    return leave_out_for_a_while


def test_publication_that_excluded_operations_between_checks_is_detected(
    items: Database, make_capture: MakeCapture, set_back: Callable[[], None]
) -> None:
    """P11, P61: it appears unchanged, and the changes between are in no stream; its row in the catalog is a new one."""
    items.execute("INSERT INTO items VALUES (1, 'a')")
    before = make_capture(items).prepare()
    set_back()
    capture = make_capture(items)
    with pytest.raises(HistoryLost, match=rf"publication {SLOT} was altered(.|\n)*--accept-history-loss"):
        capture.prepare(before)
    after = capture.prepare(before, accept_history_loss=True)
    assert capture.history is SourceHistory.LOST
    assert make_capture(items).prepare(after) == after


def test_heartbeat_notices_a_publication_that_excluded_operations_between_checks(
    items: Database, capture: Capture, set_back: Callable[[], None]
) -> None:
    """P61: between two checks it may change and change back."""
    capture.prepare()
    capture.chunks.heartbeat()
    set_back()
    with pytest.raises(HistoryLost, match="was altered"):
        capture.chunks.heartbeat()


def test_own_changes_to_the_publication_are_no_loss(items: Database, make_capture: MakeCapture) -> None:
    """A publication that cdcflow repairs for an empty log has a new row in the catalog, and that row is the one to
    remember.
    """
    items.execute(f"CREATE PUBLICATION {SLOT} FOR TABLE items WITH (publish = 'insert')")
    after = make_capture(items).prepare()
    assert make_capture(items).prepare(after) == after


def test_log_without_the_publications_rows_is_accepted(items: Database, make_capture: MakeCapture) -> None:
    """A log of an earlier cdcflow has numbers only; it learns the rest at its first start, without complaint."""
    after = make_capture(items).prepare()
    state = json.loads(after.source["publication_state"])
    older = {
        "publication": state["publication"],
        "tables": {name: entry[:2] for name, entry in state["tables"].items()},
    }
    before = replace(after, source={**after.source, "publication_state": json.dumps(older)})
    assert make_capture(items).prepare(before) == after


def test_schema_removed_from_the_publication_and_added_again_is_detected(
    items: Database, make_capture: MakeCapture
) -> None:
    """P61: a publication of whole schemas has no entry for a table, but one for its schema."""
    if items.server.version < 150000:
        return
    options = "publish_via_partition_root" + (
        ", publish_generated_columns = stored" if items.server.version >= 180000 else ""
    )
    items.execute(f"CREATE PUBLICATION theirs FOR TABLES IN SCHEMA public WITH ({options})")
    before = make_capture(items, publication="theirs").prepare()
    assert make_capture(items, publication="theirs").prepare(before) == before
    items.execute("ALTER PUBLICATION theirs DROP TABLES IN SCHEMA public")
    items.execute("INSERT INTO items VALUES (1, 'unseen')")
    items.execute("ALTER PUBLICATION theirs ADD TABLES IN SCHEMA public")
    with pytest.raises(HistoryLost, match="schema public was taken out of publication theirs"):
        make_capture(items, publication="theirs").prepare(before)


def test_nothing_is_connected_before_the_first_query(make_capture: MakeCapture, database: Database) -> None:
    """Reading settings must not need a server."""
    capture = make_capture(database, url="postgresql://nobody@127.0.0.1:1/nowhere")
    with pytest.raises(SourceUnavailable, match=r"connecting to 127\.0\.0\.1:1/nowhere"):
        capture.prepare(Checkpoint())


def test_active_slot_is_waited_for_and_named(
    items: Database, make_capture: MakeCapture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P46: after a crash the server holds the slot for the dead daemon; cdcflow never replaces it."""
    monkeypatch.setattr("cdcflow.sources.postgres.stream.ACTIVE_WAIT_S", 0.3)
    first = make_capture(items)
    checkpoint = first.prepare()
    first.events()
    second = make_capture(items)
    second.prepare(checkpoint)
    with pytest.raises(SourceUnavailable, match=r"is active for PID \d+, which is cdcflow stream at ") as error:
        second.events()
    assert "if it captures into a copy of this log, do not start this one" in str(error.value)
    assert error.value.runbook == "slot-in-use"
    first.close()
    monkeypatch.setattr("cdcflow.sources.postgres.stream.ACTIVE_WAIT_S", 60.0)  # the server may take a while to notice
    items.execute("INSERT INTO items VALUES (1, 'a')")
    assert [r["id"] for r in second.changes()] == [1]


def test_server_side_objects_of_cdcflow_survive_a_lost_race_for_the_slot(
    items: Database, make_capture: MakeCapture
) -> None:
    """P46: an orphaned slot that another session still uses is not dropped."""
    first = make_capture(items)
    first.prepare()
    stream = first.stream
    with items.connect() as connection, pytest.raises(psycopg.errors.ObjectInUse):
        connection.execute(f"SELECT pg_drop_replication_slot('{SLOT}')")
    stream.close()


def test_new_table_that_breaks_a_rule_is_skipped_and_shown(items: Database, make_capture: MakeCapture) -> None:
    """It must not stop the others, neither at a check while the capture runs nor at the next start."""
    capture = make_capture(items, tables=["public.*"], special_values="null")
    before = capture.prepare()
    items.execute("CREATE TABLE odd_key (n numeric(4,2) PRIMARY KEY)")
    items.execute("CREATE TABLE bare (); ALTER TABLE bare REPLICA IDENTITY FULL")
    known = {str(table.id) for table in capture.source.tables()}
    assert known == {"public.items"}
    assert capture.source.status(None).details["left_out"] == "public.bare, public.odd_key"
    problems = {f.subject: f for f in capture.source.doctor() if f.level == "error"}
    assert {"public.bare", "public.odd_key"} <= problems.keys()
    again = make_capture(items, tables=["public.*"], special_values="null")
    again.prepare(before)
    assert {str(table.id) for table in again.source.tables()} == {"public.items"}
    assert "public.odd_key" in again.source.status(None).details["left_out"]


def test_table_that_is_briefly_missing_is_checked_again(items: Database, make_capture: MakeCapture) -> None:
    """Renamed and back, as in a migration: it must not count as permanently failed."""
    capture = make_capture(items)
    capture.prepare()
    items.execute("ALTER TABLE items RENAME TO elsewhere")
    with pytest.raises(SourceUnavailable):
        capture.plan("public.items")
    items.execute("ALTER TABLE elsewhere RENAME TO items")
    assert capture.plan("public.items").units == 0
    items.execute("DROP TABLE items")
    with pytest.raises(SourceUnavailable, match=r"public\.items no longer exists"):
        capture.plan("public.items")


def test_tables_that_a_dot_joins_to_one_name_are_refused_and_a_captured_one_continues(
    items: Database, make_capture: MakeCapture
) -> None:
    """S11: `"a.b".c` and `a."b.c"` were one table in log, topics and cuts, with the rows of both."""
    items.execute('CREATE SCHEMA "a.b"')
    items.execute('CREATE TABLE "a.b".c (id int PRIMARY KEY)')
    items.execute("CREATE SCHEMA a")
    before = make_capture(items, tables=["a*.*"]).prepare()
    items.execute('CREATE TABLE a."b.c" (id int PRIMARY KEY)')
    with pytest.raises(ConfigurationError, match="rename one of the two at the source"):
        make_capture(items, tables=["a*.*"]).prepare()
    again = make_capture(items, tables=["a*.*"])
    again.prepare(before)
    assert [str(t.id) for t in again.source.tables()] == ["a.b.c"]
    assert [(t.schema, t.name) for t in again.source.left_out()] == [("a", "b.c")]
    # The remedy.
    items.execute('ALTER TABLE a."b.c" RENAME TO bc')
    renamed = make_capture(items, tables=["a*.*"])
    renamed.prepare(before)
    assert sorted(str(t.id) for t in renamed.source.tables()) == ["a.b.c", "a.bc"]
    assert not renamed.source.left_out()


def test_captured_table_that_became_a_partition_of_a_root_stops_nothing_and_its_root_is_named(
    items: Database, make_capture: MakeCapture
) -> None:
    """P12: the server publishes its changes as those of the root. Doctor counted it as captured through its root, and
    a name without wildcards stopped the capture of all tables."""
    items.execute("CREATE TABLE other (id int PRIMARY KEY)")
    capture = make_capture(items, tables=["public.items", "public.other"])
    before = capture.prepare()
    items.execute(
        "CREATE TABLE root (LIKE items INCLUDING ALL) PARTITION BY RANGE (id);"
        "ALTER TABLE root ATTACH PARTITION items DEFAULT"
    )
    assert [str(t.id) for t in capture.source.tables()] == ["public.other"]
    (found,) = [f for f in make_capture(items, tables=["public.*", "!public.root"]).source.doctor() if "root" in f.text]
    assert (found.level, found.remedy) == ("warning", "add public.root to source.tables")
    assert "public.items, which became partitions of public.root" in found.text
    capture.close()
    again = make_capture(items, tables=["public.items", "public.other"])
    again.prepare(before)
    assert [str(t.id) for t in again.source.tables()] == ["public.other"]
    again.close()
    with_root = make_capture(items, tables=["public.root", "public.other"])
    with_root.prepare(before)
    items.execute("INSERT INTO root (id) VALUES (77)")
    assert [row["id"] for row in with_root.changes("public.root")] == [77]
