"""What the decoder makes of transactions that a real server wrote: order, old rows, marks, pieces, roll-backs."""

from __future__ import annotations

import re
from datetime import UTC, datetime

import pytest
from tests.support.postgres.wire import Lab, Row, advanced, marks, transactions

from cdcflow.capture.interleave.messages import ChangesRefused, Committed
from cdcflow.errors import CdcflowError
from cdcflow.model.change import Run, SpooledTransaction
from cdcflow.model.table import TableId
from cdcflow.sources.postgres.types import DescribedTable

pytestmark = pytest.mark.postgres

WIDE = "(SELECT string_agg(md5(n::text), '') FROM generate_series(1, 200) AS n)"


def _ops(lab: Lab) -> list[list[Row]]:
    decoder, spools = lab.decoder()
    return [rows for _, _, rows in transactions(decoder.decode(lab.peek()), spools)]


def test_a_transaction_keeps_its_order_over_tables(lab: Lab) -> None:
    """Rows of several tables are decoded table by table, and must still be numbered as the source wrote them."""
    lab.execute("CREATE TABLE a (id int PRIMARY KEY, v text); CREATE TABLE b (id int PRIMARY KEY, v text)")
    lab.slot()
    lab.execute("BEGIN; INSERT INTO a VALUES (1, 'x'); INSERT INTO b VALUES (1, 'y'); UPDATE a SET v = 'z'; COMMIT")
    lab.execute("BEGIN; DELETE FROM b; INSERT INTO a VALUES (2, NULL); COMMIT")
    assert _ops(lab) == [
        [("a", "c", {"id": 1, "v": "x"}), ("b", "c", {"id": 1, "v": "y"}), ("a", "u", {"id": 1, "v": "z"})],
        [("b", "d", {"id": 1, "v": None, "_unchanged": ["v"]}), ("a", "c", {"id": 2, "v": None})],
    ]


def test_a_key_change_is_a_delete_and_an_insert_that_follows_it(lab: Lab) -> None:
    """Otherwise the old key stays downstream indefinitely. Later rows move on by one (P09, P10, W11)."""
    lab.execute("CREATE TABLE a (id int PRIMARY KEY, v text); ALTER TABLE a ALTER v SET STORAGE EXTERNAL")
    lab.execute(f"INSERT INTO a VALUES (1, 'x'), (2, {WIDE})")
    lab.slot()
    lab.execute(
        "BEGIN; UPDATE a SET id = 9 WHERE id = 1; UPDATE a SET id = 1 WHERE id = 2; UPDATE a SET v = 'q'; COMMIT"
    )
    assert _ops(lab) == [
        [
            ("a", "d", {"id": 1, "v": None, "_unchanged": ["v"]}),
            ("a", "c", {"id": 9, "v": "x", "_before": {"id": 1}}),
            ("a", "d", {"id": 2, "v": None, "_unchanged": ["v"]}),
            ("a", "c", {"id": 1, "v": None, "_unchanged": ["v"], "_before": {"id": 2}}),
            ("a", "u", {"id": 9, "v": "q"}),
            ("a", "u", {"id": 1, "v": "q"}),
        ]
    ]


def test_null_empty_and_unchanged_stay_three_things(lab: Lab) -> None:
    """An unchanged TOAST value read as NULL would erase it downstream (P01, T37)."""
    lab.execute(
        "CREATE TABLE a (id int PRIMARY KEY, n int, v text, w text); ALTER TABLE a ALTER v SET STORAGE EXTERNAL"
    )
    lab.execute(f"INSERT INTO a VALUES (1, 0, {WIDE}, ''), (2, 0, NULL, NULL), (3, 0, '', 'w')")
    lab.slot()
    lab.execute("UPDATE a SET n = 1")
    assert _ops(lab) == [
        [
            ("a", "u", {"id": 1, "n": 1, "v": None, "w": "", "_unchanged": ["v"]}),
            ("a", "u", {"id": 2, "n": 1, "v": None, "w": None}),
            ("a", "u", {"id": 3, "n": 1, "v": "", "w": "w"}),
        ]
    ]


def test_a_full_identity_completes_rows_and_keeps_what_was_before(lab: Lab) -> None:
    """Under FULL the old row holds what the new one did not repeat; it is also the before-image (P03)."""
    lab.execute("CREATE TABLE a (id int PRIMARY KEY, n int, v text); ALTER TABLE a ALTER v SET STORAGE EXTERNAL")
    lab.execute("ALTER TABLE a REPLICA IDENTITY FULL")
    lab.execute(f"INSERT INTO a VALUES (1, 0, {WIDE})")
    (wide,) = lab.execute("SELECT v FROM a")[0]
    lab.slot()
    lab.execute("BEGIN; UPDATE a SET n = 1; UPDATE a SET id = 2; DELETE FROM a; COMMIT")
    assert _ops(lab) == [
        [
            ("a", "u", {"id": 1, "n": 1, "v": wide, "_before": {"id": 1, "n": 0, "v": wide}}),
            ("a", "d", {"id": 1, "n": 1, "v": wide}),
            ("a", "c", {"id": 2, "n": 1, "v": wide, "_before": {"id": 1, "n": 1, "v": wide}}),
            ("a", "d", {"id": 2, "n": 1, "v": wide}),
        ]
    ]


def test_a_keyless_table_has_no_updates(lab: Lab) -> None:
    """Equal rows are counted downstream, so an update must take one away and add one (P08)."""
    lab.execute("CREATE TABLE a (n int, v text); ALTER TABLE a REPLICA IDENTITY FULL")
    lab.execute("INSERT INTO a VALUES (1, 'x'), (1, 'x')")
    lab.slot()
    lab.execute("UPDATE a SET v = NULL WHERE ctid = '(0,1)'")
    assert _ops(lab) == [
        [
            ("a", "d", {"n": 1, "v": "x"}),
            ("a", "c", {"n": 1, "v": None, "_before": {"n": 1, "v": "x"}}),
        ]
    ]


def test_truncate_is_one_row_a_table_in_its_place(lab: Lab) -> None:
    """Earlier rows are gone, later rows stay (P17)."""
    lab.execute("CREATE TABLE a (id int PRIMARY KEY); CREATE TABLE b (id int PRIMARY KEY REFERENCES a)")
    lab.slot()
    lab.execute("BEGIN; INSERT INTO a VALUES (1); TRUNCATE a CASCADE; INSERT INTO a VALUES (2); COMMIT")
    (rows,) = _ops(lab)
    assert [(table, op) for table, op, _ in rows] in (
        [("a", "c"), ("a", "t"), ("b", "t"), ("a", "c")],
        [("a", "c"), ("b", "t"), ("a", "t"), ("a", "c")],
    )


def test_table_whose_identity_index_is_not_its_key_fails_with_a_reason_that_names_it(lab: Lab) -> None:
    """Deletes would carry columns that downstream does not merge by (P06)."""
    lab.execute(
        "CREATE TABLE a (id int PRIMARY KEY, u int NOT NULL UNIQUE); ALTER TABLE a REPLICA IDENTITY USING INDEX a_u_key"
    )
    lab.execute("INSERT INTO a VALUES (1, 1)")
    lab.slot()
    lab.execute("DELETE FROM a")
    decoder, _ = lab.decoder()
    refused = next(event for event in decoder.decode(lab.peek()) if isinstance(event, ChangesRefused))
    assert re.search(r"key column.*id.*REPLICA IDENTITY DEFAULT", refused.reason)


def test_marks_are_delivered_between_the_parts_of_runs_around_them(lab: Lab) -> None:
    """A mark shows between which transactions a chunk's rows belong; heartbeats and other messages are no marks
    (P58).
    """
    lab.execute("CREATE TABLE a (id int PRIMARY KEY)")
    lab.slot()
    lab.execute("INSERT INTO a VALUES (1)")
    lab.execute("SELECT pg_logical_emit_message(true, 'cdcflow', '1/0/low')")
    lab.execute("INSERT INTO a VALUES (2)")
    lab.execute("SELECT pg_logical_emit_message(true, 'other', 'x')")
    lab.execute("SELECT pg_logical_emit_message(false, 'cdcflow', '1/0/nothing')")
    lab.execute("INSERT INTO a VALUES (3)")
    lab.execute("BEGIN; INSERT INTO a VALUES (4); SELECT pg_logical_emit_message(true, 'cdcflow', '1/0/high'); COMMIT")
    lab.execute("INSERT INTO a VALUES (5)")
    lab.execute("SELECT pg_logical_emit_message(true, 'cdcflow', 'heartbeat 7')")
    decoder, _ = lab.decoder()
    events = decoder.decode(lab.peek())
    seen = [
        [row["id"] for _, _, rows in transactions([e]) for _, _, row in rows]
        if isinstance(e, Committed)
        else type(e).__name__
        for e in events
    ]
    assert seen == [[1], "MarkSeen", [2, 3, 4], "MarkSeen", [5], "Advanced"]
    assert marks(events) == ["1/0/low", "1/0/high"]
    assert decoder.messages_ignored == 1
    assert decoder.idle
    positions = [(e.run.last_position if isinstance(e, Committed) else e.position).text for e in events]
    assert positions == sorted(positions)
    (end,) = lab.execute(
        "SELECT %s::pg_lsn = pg_current_wal_lsn() OR %s::pg_lsn < pg_current_wal_lsn()", [positions[-1]] * 2
    )[0]
    assert end


def test_messages_split_anywhere_decode_to_the_same_transactions(lab: Lab) -> None:
    """The socket splits messages arbitrarily; a transaction may arrive in many polls, or go to a spool."""
    lab.execute("CREATE TABLE a (id int PRIMARY KEY, v text)")
    lab.slot()
    for n in range(4):
        lab.execute(
            f"BEGIN; INSERT INTO a SELECT i, 'x' FROM generate_series({n * 10}, {n * 10 + 9}) i; "
            "DELETE FROM a WHERE id % 10 = 3; COMMIT"
        )
        lab.execute(f"SELECT pg_logical_emit_message(true, 'cdcflow', '1/{n}/low')")
    messages = lab.peek()
    whole = lab.decoder()[0].decode(messages)
    expected, seen = transactions(whole), marks(whole)
    for spool_bytes_max in (1 << 30, 200):
        for size in (1, 2, 3, 7, 30):
            decoder, spools = lab.decoder(spool_bytes_max=spool_bytes_max)
            events = [e for i in range(0, len(messages), size) for e in decoder.decode(messages[i : i + size])]
            assert transactions(events, spools) == expected
            assert marks(events) == seen
            assert decoder.idle
            assert bool(spools.all) == (spool_bytes_max == 200)


def test_what_the_log_has_already_is_dropped_whole(lab: Lab) -> None:
    """After a crash the server resumes at the last confirmed position, by whole transactions (P40, P54, L15)."""
    lab.execute("CREATE TABLE a (id int PRIMARY KEY, v text)")
    lab.slot()
    for n in range(6):
        lab.execute(f"BEGIN; INSERT INTO a VALUES ({n}, 'x'); UPDATE a SET v = 'y'; TRUNCATE a; COMMIT")
        lab.execute(f"SELECT pg_logical_emit_message(true, 'cdcflow', '{n}')")
    messages = lab.peek()
    all_of_it = transactions(lab.decoder()[0].decode(messages))
    for number in range(6):
        position = all_of_it[number][1]
        high, low = (int(part, 16) for part in position.split("/"))
        for size in (1, 5, 1000):
            decoder, spools = lab.decoder(skip_until=high << 32 | low, spool_bytes_max=100 if size == 5 else 1 << 30)
            events = [e for i in range(0, len(messages), size) for e in decoder.decode(messages[i : i + size])]
            assert transactions(events, spools) == all_of_it[number + 1 :]
            assert marks(events) == [str(n) for n in range(number, 6)]
            assert all(p > position for p in advanced(events))


def test_schema_changes_inside_a_transaction_apply_to_the_rows_after_them(lab: Lab) -> None:
    """Each row is decoded with the shape it was written in (P22)."""
    lab.execute("CREATE TABLE a (id int PRIMARY KEY, v text)")
    first = lab.described("a")
    lab.slot()
    lab.execute(
        "BEGIN; INSERT INTO a VALUES (1, 'x'); ALTER TABLE a ADD w int; INSERT INTO a VALUES (2, 'y', 3); COMMIT"
    )
    lab.execute("BEGIN; ALTER TABLE a DROP v; INSERT INTO a VALUES (3, 4); COMMIT")
    last = lab.described("a")
    lab.execute("ALTER TABLE a RENAME TO b; CREATE TABLE a (id int PRIMARY KEY, v text, w int)")
    middle = lab.described("a")
    shapes: dict[int, dict[tuple[str, ...], DescribedTable]] = {
        2: {("id", "v"): first, ("id", "w"): last},
        3: {("id", "v", "w"): middle},
    }
    decoder, _ = lab.decoder(describe=lambda r: shapes[len(r.columns)][tuple(c.name for c in r.columns)])
    (run,) = [e.run for e in decoder.decode(lab.peek()) if isinstance(e, Committed)]
    assert isinstance(run, Run)
    assert [rows for _, _, rows in transactions([Committed(run)])] == [
        [("a", "c", {"id": 1, "v": "x"}), ("a", "c", {"id": 2, "v": "y", "w": 3})],
        [("a", "c", {"id": 3, "w": 4})],
    ]
    assert len(run.shapes_of(TableId("public", "a"))) == 3


def test_enum_labels_are_those_of_their_time(lab: Lab) -> None:
    """A value added or renamed while we stream must neither stop us nor change rows that were written before (T20)."""
    lab.execute("CREATE TYPE mood AS ENUM ('sad', 'ok'); CREATE TABLE a (id int PRIMARY KEY, v mood)")
    lab.slot()
    lab.execute("INSERT INTO a VALUES (1, 'ok')")
    lab.execute("ALTER TYPE mood ADD VALUE 'so, so' BEFORE 'ok'")
    lab.execute("INSERT INTO a VALUES (2, 'so, so')")
    lab.execute("ALTER TYPE mood RENAME VALUE 'ok' TO 'good'")
    lab.execute("INSERT INTO a VALUES (3, 'good')")
    for binary in (False, True):
        rows = [row for _, _, found in transactions(lab.streamed(binary=binary)) for _, _, row in found]
        assert [row["v"] for row in rows] == ["ok", "so, so", "good"]


def test_the_origin_of_one_transaction_is_not_the_next_ones(lab: Lab) -> None:
    """A loop filter that sees a wrong origin drops another transaction's change (P59)."""
    lab.execute("CREATE TABLE a (id int PRIMARY KEY); SELECT pg_replication_origin_create('elsewhere')")
    lab.slot()
    lab.execute("SELECT pg_replication_origin_session_setup('elsewhere')")
    lab.execute("INSERT INTO a VALUES (1)")
    lab.execute("SELECT pg_replication_origin_session_reset(); SELECT pg_replication_origin_drop('elsewhere')")
    lab.execute("INSERT INTO a VALUES (2)")
    (event,) = lab.decoder()[0].decode(lab.peek())
    assert isinstance(event, Committed)
    assert isinstance(event.run, Run)
    assert event.run.origin is not None
    # The server no longer knows the name of a dropped origin, but reports that the transaction has one.
    assert event.run.origin.to_pylist()[1] is None


@pytest.mark.parametrize(
    ("setting", "seen"),
    [
        ("SELECT pg_replication_origin_xact_setup('0/7', '2020-05-05 05:05:05Z')", datetime(2020, 5, 5, 5, 5, 5)),
        ("SELECT 1", datetime(2000, 1, 1)),
    ],
    ids=["set", "not set"],
)
def test_commit_time_of_a_transaction_with_an_origin_is_not_the_servers(lab: Lab, setting: str, seen: datetime) -> None:
    """So it does not tell a restored copy that repeats such a job (docs/postgres.md, Limits)."""
    lab.execute("CREATE TABLE a (id int PRIMARY KEY); SELECT pg_replication_origin_create('timed')")
    lab.slot()
    with lab.database.connect(autocommit=True) as session:
        session.execute("SELECT pg_replication_origin_session_setup('timed')")
        with session.transaction():
            session.execute(setting.encode())
            session.execute("INSERT INTO a VALUES (1)")
        session.execute("SELECT pg_replication_origin_session_reset()")
    lab.execute("SELECT pg_replication_origin_drop('timed')")
    (event,) = lab.decoder()[0].decode(lab.peek())
    assert isinstance(event, Committed)
    assert isinstance(event.run, Run)
    assert event.run.commit_ts.tolist() == [int(seen.replace(tzinfo=UTC).timestamp()) * 1_000_000]


def _streamed(lab: Lab, script: str) -> tuple[list[bytes], list[bytes]]:
    """The same work, as the server sends it while it runs and after its commit."""
    lab.execute("SET logical_decoding_work_mem = '64kB'")
    lab.slot("one")
    lab.slot("two")
    lab.execute(script)
    if lab.version >= 160000:
        lab.execute("SET debug_logical_replication_streaming = immediate")
    return lab.peek(slot="one"), lab.peek(slot="two", protocol=2, streaming=True)


SAVEPOINTS = """
BEGIN;
INSERT INTO a SELECT i, repeat('x', 200) FROM generate_series(1, 300) i;
SAVEPOINT s;
INSERT INTO b SELECT i, 'gone' FROM generate_series(1, 300) i;
UPDATE a SET n = 1 WHERE id <= 150;
SELECT pg_logical_emit_message(true, 'cdcflow', 'gone');
ROLLBACK TO s;
UPDATE a SET n = 2 WHERE id > 290;
SAVEPOINT t;
INSERT INTO b SELECT i, 'kept' FROM generate_series(1, 200) i;
SELECT pg_logical_emit_message(true, 'cdcflow', 'kept');
RELEASE t;
SAVEPOINT u;
TRUNCATE b;
ROLLBACK TO u;
COMMIT;
"""


def test_streamed_transactions_are_what_they_are_after_their_commit(lab: Lab) -> None:
    """Blocks of running transactions must end as the committed rows and nothing else (P29, P31, P33)."""
    lab.execute("CREATE TABLE a (id int PRIMARY KEY, v text, n int); CREATE TABLE b (id int PRIMARY KEY, v text)")
    lab.execute("ALTER TABLE a ALTER v SET STORAGE EXTERNAL")
    plain, streamed = _streamed(lab, SAVEPOINTS)
    decoder, _ = lab.decoder()
    expected = decoder.decode(plain)
    for size in (7, 100, 100_000):
        decoder, spools = lab.decoder()
        events = [e for i in range(0, len(streamed), size) for e in decoder.decode(streamed[i : i + size])]
        assert transactions(events, spools) == transactions(expected)
        assert marks(events) == marks(expected) == ["kept"]
        assert decoder.idle
        (committed,) = [e.run for e in events if isinstance(e, Committed)]
        assert isinstance(committed, SpooledTransaction)
        assert committed.rows == 510
        assert {t.id.name for t in committed.shapes} == {"a", "b"}
        assert not committed.truncated
        assert committed.partial == {}
        (run,) = [e.run for e in expected if isinstance(e, Committed)]
        assert committed.position == run.last_position
        assert committed.commit_ts == run.last_commit_ts


def test_streamed_transaction_reports_its_partial_keys_and_truncates(lab: Lab) -> None:
    """The machine queries a spooled transaction as it would a run; rolled-back rows must not answer (P01, P31)."""
    lab.execute("CREATE TABLE a (id int PRIMARY KEY, v text, n int); ALTER TABLE a ALTER v SET STORAGE EXTERNAL")
    lab.execute("CREATE TABLE b (id int PRIMARY KEY, v text)")
    lab.execute(f"INSERT INTO a SELECT i, {WIDE}, 0 FROM generate_series(1, 30) i")
    script = """
    BEGIN; INSERT INTO b SELECT i, repeat('x', 100) FROM generate_series(1, 2000) i;
    SAVEPOINT s; UPDATE a SET n = 1 WHERE id <= 10; ROLLBACK TO s;
    UPDATE a SET n = 1 WHERE id = 20; TRUNCATE b; COMMIT;
    """
    _, streamed = _streamed(lab, script)
    decoder, _ = lab.decoder()
    (committed,) = [e.run for e in decoder.decode(streamed) if isinstance(e, Committed)]
    assert isinstance(committed, SpooledTransaction)
    a, b = TableId("public", "a"), TableId("public", "b")
    assert committed.truncated == {b}
    assert set(committed.partial) == {a}
    assert committed.partial[a].keys.to_pydict() == {"id": [20]}


def test_streamed_transaction_that_rolls_back_leaves_no_rows_or_shapes(lab: Lab) -> None:
    """Neither rows nor the schema that it changed (P22, P31)."""
    lab.execute("CREATE TABLE a (id int PRIMARY KEY, v text)")
    first = lab.described("a")
    lab.execute("ALTER TABLE a ADD w int")
    second = lab.described("a")
    lab.execute("ALTER TABLE a DROP w")
    script = """
    BEGIN; INSERT INTO a SELECT i, repeat('x', 100) FROM generate_series(1, 2000) i;
    ALTER TABLE a ADD w int;
    INSERT INTO a SELECT i, 'x', 1 FROM generate_series(2001, 2400) i;
    ROLLBACK;
    INSERT INTO a VALUES (1, 'kept');
    """
    _, streamed = _streamed(lab, script)
    decoder, spools = lab.decoder(describe=lambda r: first if len(r.columns) == 2 else second)
    events = decoder.decode(streamed)
    assert [rows for _, _, rows in transactions(events, spools)] == [[("a", "c", {"id": 1, "v": "kept"})]]
    assert decoder.idle
    assert all(spool.discarded for spool in spools.all.values() if not spool.finished)


def test_every_beginning_of_a_real_message_decodes_or_is_refused_with_an_error_that_names_it(lab: Lab) -> None:
    """A cut or malformed message must end in an error that the pipeline knows, not in a crash or a wrong row (O10)."""
    lab.execute("CREATE TABLE a (id int PRIMARY KEY, v text, n numeric(10,2)); ALTER TABLE a REPLICA IDENTITY FULL")
    lab.slot()
    lab.execute(
        "BEGIN; INSERT INTO a VALUES (1, 'x', 2); UPDATE a SET id = 2; DELETE FROM a; TRUNCATE a; "
        "SELECT pg_logical_emit_message(true, 'cdcflow', 'm'); COMMIT"
    )
    described = lab.described("a", identity="f")
    for binary in (False, True):
        messages = lab.peek(binary=binary)
        whole = transactions(lab.decoder(binary=binary, describe=lambda _: described)[0].decode(messages))
        for number, message in enumerate(messages):
            for size in range(len(message)):
                decoder, _ = lab.decoder(binary=binary, describe=lambda _: described)
                with pytest.raises(CdcflowError):
                    decoder.decode([*messages[:number], message[:size], *messages[number + 1 :]])
        assert whole
