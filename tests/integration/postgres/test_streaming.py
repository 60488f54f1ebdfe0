"""The stream on a real server: every kind of change, schema changes on the way, and all the ways it can end."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import threading
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from operator import ne

import numpy as np
import psycopg
import pytest
from tests.servers.postgres import Database, PostgresServer
from tests.support.polling import wait_for, wait_until
from tests.support.postgres.controlled_source import SLOT, Capture, MakeCapture, Row, table_id

from cdcflow.capture.interleave.messages import Advanced, ChangesRefused, Committed, RowsFilled
from cdcflow.capture.ports.stream import StreamEvent
from cdcflow.errors import ConfigurationError, HistoryLost, SourceUnavailable
from cdcflow.model.change import Run, SpooledTransaction
from cdcflow.model.table import Identity
from cdcflow.sources.postgres.lsn import Lsn, lsn_of, position_of
from cdcflow.testing.sources import collect

pytestmark = pytest.mark.postgres


def brief(rows: list[Row], *columns: str) -> list[tuple[object, ...]]:
    """Rows as op and these columns."""
    return [(row["_op"], *(row[c] for c in columns)) for row in rows]


def refusal(events: list[StreamEvent], pattern: str) -> ChangesRefused:
    """The first refusal of a table among these events; it precedes all transactions, and its reason has `pattern`."""
    found = next(e for e in events if isinstance(e, ChangesRefused | Committed))
    assert isinstance(found, ChangesRefused)
    assert found.is_checked
    assert re.search(pattern, found.reason)
    return found


# ── changes ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_key_change_is_a_delete_and_an_insert_in_one_transaction(database: Database, capture: Capture) -> None:
    """P09, P10: also in a chain, and as the last operation of a transaction."""
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    capture.prepare()
    with database.session(autocommit=False) as session:
        session.execute("INSERT INTO t VALUES (1, 'a')")
        session.execute("UPDATE t SET id = 2")
        session.execute("UPDATE t SET id = 3")
        session.commit()
    assert brief(capture.changes(), "id") == [("c", 1), ("d", 1), ("c", 2), ("d", 2), ("c", 3)]


def test_truncate_arrives_once_a_table_in_its_place(database: Database, capture: Capture) -> None:
    """P17: TRUNCATE of several tables, with CASCADE and RESTART IDENTITY."""
    database.execute("CREATE TABLE a (id serial PRIMARY KEY)")
    database.execute("CREATE TABLE b (id int PRIMARY KEY, a int REFERENCES a)")
    capture.prepare()
    with database.session(autocommit=False) as session:
        session.execute("INSERT INTO a DEFAULT VALUES")
        session.execute("TRUNCATE a RESTART IDENTITY CASCADE")
        session.execute("INSERT INTO a DEFAULT VALUES")
        session.commit()
    rows = [(row["_op"], "a" in row) for row in capture.changes()]
    assert sorted(rows[1:3]) == [("t", False), ("t", True)]
    assert [op for op, _ in rows] == ["c", "t", "t", "c"]


def test_unchanged_toast_value_is_marked_and_never_null(database: Database, capture: Capture) -> None:
    """P01, P03, T37: the most common silent loss of CDC tools. Under FULL the old row has the value."""
    for name in ("d", "f"):
        database.execute(f"CREATE TABLE {name} (id int PRIMARY KEY, n int, wide text)")
        database.execute(f"ALTER TABLE {name} ALTER wide SET STORAGE EXTERNAL")
    database.execute("ALTER TABLE f REPLICA IDENTITY FULL")
    capture.prepare()
    for name in ("d", "f"):
        database.execute(f"INSERT INTO {name} VALUES (1, 1, repeat('x', 9000)), (2, 2, NULL)")
        database.execute(f"UPDATE {name} SET n = n + 10")
    rows = capture.changes()
    plain, full = rows[2:4], rows[6:8]
    assert [(r["wide"], r["_unchanged"]) for r in plain] == [(None, ["wide"]), (None, None)]
    assert [(r["wide"], r["_unchanged"]) for r in full] == [("x" * 9000, None), (None, None)]
    assert [r["_before"]["n"] for r in full] == [1, 2]


def test_identity_decides_what_a_delete_carries(database: Database, capture: Capture) -> None:
    """P04, P06: a partial old row must be marked as such; a unique index that is the identity is the key."""
    database.execute("CREATE TABLE k (id int PRIMARY KEY, code text NOT NULL, v text)")
    database.execute("CREATE UNIQUE INDEX by_code ON k (code)")
    database.execute("ALTER TABLE k REPLICA IDENTITY USING INDEX by_code")
    capture.prepare()
    assert capture.shape("public.k").key == ("code",)
    database.execute("INSERT INTO k VALUES (1, 'A', 'v')")
    database.execute("UPDATE k SET id = 2")
    database.execute("UPDATE k SET code = 'B'")
    database.execute("DELETE FROM k")
    rows = capture.changes()
    assert brief(rows, "code") == [("c", "A"), ("u", "A"), ("d", "A"), ("c", "B"), ("d", "B")]
    assert set(rows[-1]["_unchanged"]) == {"id", "v"}


def test_table_without_a_key_keeps_its_duplicates(database: Database, capture: Capture) -> None:
    """P08, G18: two equal rows are two rows; an update is a delete and an insert of whole rows."""
    database.execute("CREATE TABLE bag (a int, b text)")
    database.execute("ALTER TABLE bag REPLICA IDENTITY FULL")
    capture.prepare()
    shape = capture.shape("public.bag")
    assert (shape.key, shape.identity) == ((), Identity.FULL)
    database.execute("INSERT INTO bag VALUES (1, 'x'), (1, 'x')")
    database.execute("UPDATE bag SET b = 'y' WHERE ctid = '(0,1)'")
    database.execute("DELETE FROM bag WHERE b = 'x'")
    rows = brief(capture.changes(), "a", "b")
    assert rows == [("c", 1, "x"), ("c", 1, "x"), ("d", 1, "x"), ("c", 1, "y"), ("d", 1, "x")]


def test_partitions_are_streamed_as_their_root(database: Database, capture: Capture) -> None:
    """P11, P16: also a row that moves between partitions, and leaves whose columns are in another order."""
    database.execute("CREATE TABLE p (id int PRIMARY KEY, v text) PARTITION BY RANGE (id)")
    database.execute("CREATE TABLE p_low PARTITION OF p FOR VALUES FROM (0) TO (10)")
    database.execute("CREATE TABLE p_high (junk int, v text, id int NOT NULL)")
    database.execute("ALTER TABLE p_high DROP COLUMN junk")
    database.execute("ALTER TABLE p ATTACH PARTITION p_high FOR VALUES FROM (10) TO (20)")
    capture.prepare()
    database.execute("INSERT INTO p VALUES (1, 'one'), (11, 'eleven')")
    database.execute("UPDATE p SET id = 12 WHERE id = 1")
    database.execute("DELETE FROM p WHERE id = 11")
    streamed = [r for r in capture.changes("public.p") if r["_op"] != "d"]
    assert brief(streamed, "id", "v") == [("c", 1, "one"), ("c", 11, "eleven"), ("c", 12, "one")]
    assert brief(capture.rows("public.p"), "id", "v") == [("r", 12, "one")]


def test_generated_columns_agree_between_stream_and_chunk(database: Database, capture: Capture) -> None:
    """A column that only one of both paths carried would flicker between value and NULL."""
    database.execute("CREATE TABLE g (id int PRIMARY KEY, n int, twice int GENERATED ALWAYS AS (n * 2) STORED)")
    if database.server.version >= 180000:
        database.execute("ALTER TABLE g ADD COLUMN thrice int GENERATED ALWAYS AS (n * 3) VIRTUAL")
    capture.prepare()
    database.execute("INSERT INTO g (id, n) VALUES (1, 5)")
    (streamed,) = capture.changes()
    (read,) = capture.rows("public.g")
    assert {**streamed, "_op": "r"} == read
    assert streamed.get("twice") == (10 if database.server.version >= 180000 else None)
    assert "thrice" not in streamed


# ── shapes ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_rows_are_decoded_with_the_shape_they_were_written_in(database: Database, capture: Capture) -> None:
    """P19, P20, P22, P24: while the stream lags, the catalog shows a later table. A column is identified by its
    number.
    """
    database.execute("CREATE TABLE t (id int PRIMARY KEY, old text, gone int, narrow varchar(5))")
    capture.prepare()
    database.execute("INSERT INTO t VALUES (1, 'a', 10, 'n')")
    with database.session(autocommit=False) as session:
        session.execute("ALTER TABLE t RENAME COLUMN old TO renamed")
        session.execute("INSERT INTO t VALUES (2, 'b', 20, 'n')")
        session.execute("ALTER TABLE t DROP COLUMN gone, ADD COLUMN gone text")
        session.execute("ALTER TABLE t ALTER COLUMN narrow TYPE text")
        session.execute("INSERT INTO t VALUES (3, 'c', 'n', 'text')")
        session.commit()
    batches = capture.batches()
    shapes = [{c.name: (c.number, c.type.source) for c in b.table.columns} for b in batches]
    narrow = "character varying(5)"
    assert shapes[0] == {"id": (1, "integer"), "old": (2, "text"), "gone": (3, "integer"), "narrow": (4, narrow)}
    assert shapes[1] == {"id": (1, "integer"), "renamed": (2, "text"), "gone": (3, "integer"), "narrow": (4, narrow)}
    assert shapes[2] == {"id": (1, "integer"), "renamed": (2, "text"), "narrow": (4, "text"), "gone": (5, "text")}
    assert [row["id"] for b in batches for row in b.rows.to_pylist()] == [1, 2, 3]


def test_column_with_a_default_shows_what_older_rows_have(database: Database, capture: Capture) -> None:
    """P18: no change in the log records that the old rows got the default; the shape does, as the server prints it."""
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    database.execute("INSERT INTO t VALUES (1)")
    capture.prepare()
    database.execute(
        "ALTER TABLE t ADD a text DEFAULT 'it''s, \"quoted\" {x}', ADD b timestamptz DEFAULT '2020-01-01 12:00+02',"
        " ADD c int[] DEFAULT '{1,NULL}', ADD d bytea DEFAULT '\\x00ff', ADD e int, ADD f box DEFAULT '((0,0),(1,1))',"
        " ADD g box[] DEFAULT '{((0,0),(1,1));((2,2),(3,3))}'"
    )
    database.execute("INSERT INTO t VALUES (2, NULL)")
    (batch,) = capture.batches()
    missing = {c.name: c.missing for c in batch.table.columns}
    assert missing == {
        "id": None,
        "a": 'it\'s, "quoted" {x}',
        "b": "2020-01-01 10:00:00+00",
        "c": "{1,NULL}",
        "d": "\\x00ff",
        "e": None,
        "f": "(1,1),(0,0)",
        "g": None,  # the table is read again
    }
    assert capture.shape("public.t") == batch.table


def test_constant_of_a_column_is_kept_if_its_type_was_changed_on_the_way(database: Database, capture: Capture) -> None:
    """The first row with the column names its first type, and the catalog shows the second one. Older rows had NULL."""
    database.execute("CREATE TABLE t (id int PRIMARY KEY); CREATE DOMAIN small AS int; INSERT INTO t VALUES (1)")
    capture.prepare()
    with database.connect(autocommit=True) as session:
        session.execute(
            "ALTER TABLE t ADD a varchar(10) DEFAULT 'x', ADD b numeric(5,2) DEFAULT 1.5,"
            " ADD c timestamp(3) DEFAULT '2020-01-01 12:00', ADD d small DEFAULT 7, ADD e int DEFAULT 8"
        )
        session.execute("INSERT INTO t VALUES (2)")
        session.execute(
            "ALTER TABLE t ALTER a TYPE text, ALTER b TYPE numeric(8,2), ALTER c TYPE timestamp, ALTER d TYPE int"
        )
        session.execute("INSERT INTO t VALUES (3)")
    first, second = capture.batches()
    assert first.table.columns[1].type.source == "character varying(10)"
    for batch in (first, second):
        assert [c.missing for c in batch.table.columns] == [None, "x", "1.50", "2020-01-01 12:00:00", "7", "8"]


def test_identity_changed_on_the_way_counts_from_the_next_row(database: Database, capture: Capture) -> None:
    """P07: FULL and back; and a table that loses its key altogether fails."""
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    capture.prepare()
    database.execute("INSERT INTO t VALUES (1, 'a')")
    database.execute("ALTER TABLE t REPLICA IDENTITY FULL")
    database.execute("UPDATE t SET v = 'b'")
    database.execute("ALTER TABLE t REPLICA IDENTITY DEFAULT")
    database.execute("UPDATE t SET v = 'c'")
    rows = capture.changes()
    assert [(r["_op"], r["_before"] and r["_before"].get("v")) for r in rows] == [("c", None), ("u", "a"), ("u", None)]
    database.execute("ALTER TABLE t DROP CONSTRAINT t_pkey")
    database.execute("INSERT INTO t VALUES (2, 'd')")
    refusal(capture.events(), r"public\.t has lost its key.*ADD PRIMARY KEY")


@pytest.mark.parametrize("remedy", ["ADD PRIMARY KEY (id)", "REPLICA IDENTITY FULL"])
def test_table_that_lost_its_key_is_captured_further_by_the_error_s_remedy(
    database: Database, make_capture: MakeCapture, remedy: str
) -> None:
    """The row that came without a key stays in the server's log, so the next start meets it again."""
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    capture = make_capture(database)
    before = capture.prepare()
    database.execute("ALTER TABLE t DROP CONSTRAINT t_pkey")
    database.execute("INSERT INTO t VALUES (2, 'd')")
    refusal(capture.events(), re.escape(remedy.replace("(id)", "(…)")))
    capture.close()
    database.execute(f"ALTER TABLE t {remedy}")
    again = make_capture(database)
    again.prepare(before)
    database.execute("UPDATE t SET v = 'e'")
    rows = [(r["_op"], r["id"], r["v"]) for r in again.changes()]
    assert (rows[0], rows[-1][1:]) == (("c", 2, "d"), (2, "e"))


PARTED = (
    "CREATE TABLE t (id int PRIMARY KEY, code int NOT NULL, v text, big text) PARTITION BY RANGE (id);"
    "CREATE TABLE t_1 PARTITION OF t FOR VALUES FROM (0) TO (100);"
    "CREATE TABLE t_2 PARTITION OF t FOR VALUES FROM (100) TO (200);"
    "ALTER TABLE t_1 ALTER big SET STORAGE EXTERNAL; ALTER TABLE t_2 ALTER big SET STORAGE EXTERNAL;"
    "INSERT INTO t SELECT i, i, 'a', repeat('x', 5000) FROM generate_series(1, 150) i"
)


def test_old_rows_of_a_partition_without_full_are_not_taken_for_whole_ones(
    database: Database, capture: Capture
) -> None:
    """The server does not pass REPLICA IDENTITY FULL on to partitions, but describes their rows as the table's. A value
    that they do not carry is not NULL, neither in the new row nor in the one before it (P03)."""
    database.execute(PARTED)
    database.execute("ALTER TABLE t REPLICA IDENTITY FULL; ALTER TABLE t_1 REPLICA IDENTITY FULL")
    capture.prepare()
    database.execute("UPDATE t SET v = 'b' WHERE id IN (50, 150)")
    database.execute("UPDATE t SET id = 199 WHERE id = 149; DELETE FROM t WHERE id IN (49, 148)")
    rows = [(r["_op"], r["id"], r["v"], bool(r["big"]), r.get("_unchanged")) for r in capture.changes()]
    assert rows == [
        ("u", 50, "b", False, ["big"]),
        ("u", 150, "b", False, ["big"]),
        ("d", 149, None, False, ["code", "v", "big"]),
        ("c", 199, "a", False, ["big"]),
        ("d", 49, None, False, ["code", "v", "big"]),
        ("d", 148, None, False, ["code", "v", "big"]),
    ]


@pytest.mark.parametrize("fixed", [False, True])
def test_partition_whose_old_rows_lack_the_key_fails_its_table_until_it_is_fixed(
    database: Database, make_capture: MakeCapture, fixed: bool
) -> None:
    """Its deletes would name no row. Once the partition is fixed, the table is read again: the rows that arrived
    before are still in the server's log."""
    database.execute(PARTED)
    capture = make_capture(database)
    capture.prepare()
    capture.plan("public.t")
    database.execute("CREATE UNIQUE INDEX i ON t_1 (code); ALTER TABLE t_1 REPLICA IDENTITY USING INDEX i")
    database.execute("DELETE FROM t WHERE id = 1")
    if not fixed:
        refusal(capture.events(), r'columns \(id\).*"public"."t_1" REPLICA IDENTITY DEFAULT')
        return
    database.execute("ALTER TABLE t_1 REPLICA IDENTITY DEFAULT")
    assert [e.table.name for e in capture.events() if isinstance(e, RowsFilled)] == ["t"]


def test_enum_value_added_on_the_way_arrives(database: Database, capture: Capture) -> None:
    """T20: labels are looked up by the server, so a new one is just a value."""
    database.execute("CREATE TYPE mood AS ENUM ('sad', 'it''s \"ok\"')")
    database.execute("CREATE TABLE t (id int PRIMARY KEY, m mood, ms mood[])")
    capture.prepare()
    database.execute("""INSERT INTO t VALUES (1, 'it''s "ok"', '{sad}')""")
    database.execute("ALTER TYPE mood ADD VALUE 'new'")
    database.execute("INSERT INTO t VALUES (2, 'new', '{new,sad}')")
    assert brief(capture.changes(), "m", "ms") == [("c", 'it\'s "ok"', ["sad"]), ("c", "new", ["new", "sad"])]


def test_column_without_binary_decoder_turns_the_stream_to_text(database: Database, capture: Capture) -> None:
    """T38: binary is requested while every column has a decoder; a new column must not stop the capture."""
    database.execute("CREATE TABLE t (id int PRIMARY KEY, n numeric(6,2))")
    capture.prepare()
    database.execute("INSERT INTO t VALUES (1, 1.5)")
    before = capture.changes()
    database.execute("INSERT INTO t VALUES (2, 2.5)")
    database.execute("ALTER TABLE t ADD r int4range")
    database.execute("INSERT INTO t VALUES (3, 3.5, '[1,5)')")
    after = capture.changes()
    assert [r["id"] for r in (*before, *after)] == [1, 2, 3]
    assert after[-1]["r"] == "[1,5)"


def test_table_recreated_under_its_name_is_another_incarnation(database: Database, make_capture: MakeCapture) -> None:
    """P25: rows of both must never be mixed; the table's OID distinguishes them."""
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    capture = make_capture(database)
    before = capture.prepare()
    old = capture.shape("public.t")
    capture.close()
    database.execute("DROP TABLE t")
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    again = make_capture(database)
    again.prepare(before)
    new = again.shape("public.t")
    assert old.incarnation != new.incarnation
    database.execute("INSERT INTO t VALUES (1)")
    (batch,) = again.batches()
    assert batch.table == new


def test_settings_of_the_role_do_not_alter_values(database: Database, make_capture: MakeCapture) -> None:
    """P67: a role or database with its own DateStyle gave other tools other dates."""
    database.execute("CREATE ROLE odd LOGIN SUPERUSER") if not database.execute(
        "SELECT 1 FROM pg_roles WHERE rolname = 'odd'"
    ) else None
    for name, value in (
        ("datestyle", "'German, DMY'"),
        ("intervalstyle", "'sql_standard'"),
        ("timezone", "'America/New_York'"),
        ("extra_float_digits", "-5"),
        ("bytea_output", "'escape'"),
        ("search_path", "'nowhere'"),
        ("default_transaction_read_only", "on"),
        ("statement_timeout", "'1ms'"),
        ("lc_monetary", "'C.UTF-8'"),
        ("quote_all_identifiers", "on"),
        ("default_transaction_isolation", "'serializable'"),
    ):
        database.execute(f"ALTER ROLE odd SET {name} = {value}")
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, d date, z timestamptz, i interval, f float8, b bytea, m money,"
        " r tstzrange, c regclass)"
    )
    capture = make_capture(database, url=database.url_as("odd"))
    capture.prepare()
    database.execute(
        "SET lc_monetary = 'C'; INSERT INTO t VALUES (1, '2020-02-01', '2020-07-01 12:00+00', '1 mon -2 days 3 h',"
        " 0.1, '\\x0041ff', 12.34, '[2020-01-01 00:00+00,2020-07-01 00:00+00)', 't')"
    )
    (streamed,) = capture.changes()
    (read,) = capture.rows("public.t")
    assert {**streamed, "_op": "r"} == read
    assert streamed["r"] == '["2020-01-01 00:00:00+00","2020-07-01 00:00:00+00")'
    assert streamed["f"] == 0.1
    assert streamed["b"] == b"\x00A\xff"
    assert str(streamed["d"]) == "2020-02-01"
    assert streamed["c"] == "public.t"


LEFT_ALONE = (
    *(
        "allow_",
        "backtrace_",
        "createrole_",
        "debug_",
        "default_tablespace",
        "default_table_access",
        "dynamic_",
        "ignore_",
    ),
    *(
        "jit_",
        "local_preload",
        "log_",
        "max_stack_depth",
        "role",
        "session_",
        "temp_tablespaces",
        "trace_",
        "transaction_",
    ),
    *("wal_consistency", "wal_sender_timeout", "zero_damaged_pages"),
)
"""Beginnings of the names of settings that are not for use, that a role cannot have, or that end sessions by design."""
CHOSEN = {
    "DateStyle": "'German, DMY'",
    "IntervalStyle": "'sql_standard'",
    "TimeZone": "'America/New_York'",
    "client_encoding": "'latin1'",
    "lc_monetary": "'C.UTF-8'",
    "restrict_nonsystem_relation_kind": "'view'",
    "search_path": "'nowhere'",
    "transaction_timeout": "'300ms'",
    "xmloption": "'document'",
}
"""Values for settings whose least or other value is not the worst."""


def test_no_setting_of_a_role_changes_what_is_captured(database: Database, make_capture: MakeCapture) -> None:
    """P67: every setting that a role can have, from the server's own list, each with a value that it does not have."""
    database.execute("CREATE TABLE t (id int PRIMARY KEY, d date, i interval, f float8, b bytea, v text)")
    before = make_capture(database)
    before.prepare()
    row = "date '2020-02-01', interval '1 mon -2 days 3 h', 0.1::float8 / 3, bytea '\\x0041ff', 'ü' || repeat('x', 300)"
    database.execute(f"INSERT INTO t SELECT n, {row} FROM generate_series(1, 10) n")
    expected = before.rows("public.t")
    role = f"hostile_{database.name}"
    database.execute(f"CREATE ROLE {role} LOGIN SUPERUSER")
    asked = "SELECT name, setting, vartype, min_val, enumvals FROM pg_settings WHERE context IN ('user', 'superuser')"
    taken = 0
    for name, value, kind, least, choices in database.execute(asked):
        other = CHOSEN.get(name) or _other(value, kind, least, choices)
        if other is not None and (name in CHOSEN or not name.startswith(LEFT_ALONE)):
            with contextlib.suppress(psycopg.Error):
                database.execute(f"ALTER ROLE {role} SET {name} = {other}")
                taken += 1
    assert taken > 100
    capture = make_capture(database, url=database.url_as(role))
    capture.prepare()
    assert capture.rows("public.t") == expected
    database.execute(f"INSERT INTO t SELECT n, {row} FROM generate_series(11, 20) n")
    assert [{**c, "_op": "r"} for c in capture.changes()] == before.rows("public.t")[10:]
    database.execute(f"INSERT INTO t SELECT n, {row} FROM generate_series(21, 100000) n")
    assert sum(e.run.rows for e in capture.events() if isinstance(e, Committed)) == 99980


def _other(value: str, kind: str, least: str | None, choices: list[str] | None) -> str | None:
    match kind:
        case "bool":
            return "off" if value == "on" else "on"
        case "enum":
            return next((f"'{c}'" for c in choices or () if c != value), None)
        case "integer" | "real":
            return f"'{least}'"
    return None


# ── large transactions ──────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def small_decoding_memory(database: Database) -> Iterator[Database]:
    """The server streams transactions before they are committed once they have this much."""
    database.server.reload(logical_decoding_work_mem="64kB")
    yield database
    database.server.reload(logical_decoding_work_mem="")


def test_large_transaction_is_spooled_without_the_rows_that_were_rolled_back(
    small_decoding_memory: Database, capture: Capture
) -> None:
    """P29, P31, P33: it arrives before its commit, in blocks, and memory holds none of it."""
    database = small_decoding_memory
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    capture.prepare()
    with database.session(autocommit=False) as session:
        session.execute("INSERT INTO t SELECT i, repeat('x', 100) FROM generate_series(1, 3000) i")
        session.execute("SAVEPOINT s")
        session.execute("INSERT INTO t SELECT i, repeat('y', 100) FROM generate_series(3001, 6000) i")
        session.execute("ROLLBACK TO SAVEPOINT s")
        session.execute("INSERT INTO t SELECT i, repeat('z', 100) FROM generate_series(6001, 7000) i")
        database.execute("INSERT INTO t VALUES (0, 'another')")
        session.commit()
    runs = [e.run for e in capture.events() if isinstance(e, Committed)]
    (large,) = [run for run in runs if isinstance(run, SpooledTransaction)]
    assert large.rows == 4000
    spool = capture.spools[large.spool]
    assert spool.state == "finished"
    kept = []
    for batches, subxids in spool.pieces:
        for batch in batches:
            keep = np.ones(len(batch.index), np.bool_)
            if subxids is not None:
                keep = ~np.isin(subxids[batch.index], list(large.aborted))
            kept += [i for i, k in zip(batch.rows["id"].to_pylist(), keep, strict=True) if k]
    assert sorted(kept) == [*range(1, 3001), *range(6001, 7001)]


def test_many_small_transactions_are_delivered_whole_and_in_order(database: Database, capture: Capture) -> None:
    """I1, I3, I4 over a backlog of several polls."""
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    capture.prepare()
    database.execute(
        "DO $$ BEGIN FOR i IN 1..3000 LOOP INSERT INTO t SELECT i * 10 + j FROM generate_series(0, 9) j; COMMIT;"
        " END LOOP; END $$"
    )
    runs = [e.run for e in capture.events() if isinstance(e, Committed)]
    ids = [row["id"] for run in runs for b in getattr(run, "batches", ()) for row in b.rows.to_pylist()]
    assert ids == list(range(10, 30010))
    assert sum(run.transactions for run in runs) == 3000


# ── positions ───────────────────────────────────────────────────────────────────────────────────────────────


def confirmed(database: Database) -> Lsn:
    rows = database.execute(f"SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = '{SLOT}'")
    return Lsn.parse(rows[0][0])


def test_only_acknowledged_positions_are_confirmed_to_the_server(
    database: Database, capture: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P48, I6: confirming more than that in an answer to a keepalive is data lost at the next crash."""
    monkeypatch.setattr("cdcflow.sources.postgres.stream.STATUS_INTERVAL_S", 0.05)
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    first = capture.prepare().position
    assert first is not None
    begin = lsn_of(first)
    database.execute("INSERT INTO t VALUES (1)")
    events = capture.events()
    stream = capture.stream
    end = lsn_of(next(e.run.last_position for e in events if isinstance(e, Committed)))

    def heard() -> list[tuple[object, ...]]:
        """When the server last received feedback from cdcflow."""
        stream.poll()
        query = "SELECT reply_time::text FROM pg_stat_replication WHERE application_name = 'cdcflow stream'"
        return database.execute(query)

    def replied(times: int) -> None:
        for _ in range(times):
            before = heard()
            wait_for(heard, partial(ne, before), "another message at the server")

    replied(3)
    assert confirmed(database) == begin
    stream.acknowledge(position_of(end))
    replied(2)
    wait_for(lambda: confirmed(database), lambda lsn: lsn == end, "the last acknowledgement")
    stream.acknowledge(position_of(begin))
    replied(2)
    said = "SELECT flush_lsn::text FROM pg_stat_replication WHERE application_name = 'cdcflow stream'"
    assert Lsn.parse(database.execute(said)[0][0]) == end


def test_last_acknowledgement_is_sent_when_the_stream_closes(database: Database, capture: Capture) -> None:
    """A daemon that stops at a cut should not receive it all again at the next start."""
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    capture.prepare()
    database.execute("INSERT INTO t VALUES (1)")
    events = capture.events()
    end = next(e.run.last_position for e in events if isinstance(e, Committed))
    capture.stream.acknowledge(end)
    capture.stream.close()
    wait_for(lambda: confirmed(database), lambda lsn: lsn == lsn_of(end), "the slot to advance")


def test_position_moves_while_only_other_tables_change(database: Database, make_capture: MakeCapture) -> None:
    """Otherwise busy tables that are not captured fill the server's disk with retained log."""
    database.execute("CREATE TABLE ours (id int PRIMARY KEY)")
    database.execute("CREATE TABLE theirs (id int PRIMARY KEY)")
    capture = make_capture(database, tables=["public.ours"])
    capture.prepare()
    stream = capture.stream
    database.execute("INSERT INTO theirs SELECT generate_series(1, 1000)")
    (end,) = database.execute("SELECT pg_current_wal_lsn()::text")[0]
    database.execute("SELECT pg_switch_wal()")

    def reached(events: list[StreamEvent]) -> bool:
        return any(isinstance(e, Advanced) and lsn_of(e.position) >= Lsn.parse(end) for e in events)

    events = collect(stream, lambda found: reached(list(found)))
    assert not any(isinstance(e, Committed) for e in events)


def test_advance_never_overtakes_a_transaction_that_is_still_open(
    database: Database, make_capture: MakeCapture
) -> None:
    """P35, P48: its commit arrives later, and with a position after its rows it must still arrive whole."""
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    capture = make_capture(database)
    checkpoint = capture.prepare()
    stream = capture.stream
    with database.session(autocommit=False) as session:
        session.execute("INSERT INTO t VALUES (1)")
        capture.chunks.heartbeat()
        events = collect(stream, lambda found: any(isinstance(e, Advanced) for e in found))
        advanced = next(e.position for e in reversed(events) if isinstance(e, Advanced))
        stream.acknowledge(advanced)
        capture.events()
        while confirmed(database) != lsn_of(advanced):
            stream.poll()  # which still reports it
        session.commit()
    capture.close()
    again = make_capture(database)
    again.prepare(replace(checkpoint, position=advanced))
    assert [r["id"] for r in again.changes()] == [1]


# ── ends ────────────────────────────────────────────────────────────────────────────────────────────────────


def poll_until_it_ends(capture: Capture) -> None:
    def goes_on() -> bool:
        capture.stream.poll()
        return False

    wait_until(goes_on, "the stream to end", pause_max_s=0.002)


def test_server_that_stops_in_order_waits_only_for_what_we_acknowledge(
    own_postgres: PostgresServer, make_capture: MakeCapture
) -> None:
    """A server shuts down once every consumer has confirmed its log; one that never did would hang it."""
    database = own_postgres.create_database("shop")
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    capture = make_capture(database)
    capture.prepare()
    stream = capture.stream
    database.execute("INSERT INTO t VALUES (0)")
    capture.events()
    database.execute("INSERT INTO t VALUES (1)")
    stopping = threading.Thread(target=own_postgres.stop)
    stopping.start()
    rows = 0

    def consume() -> None:
        nonlocal rows
        while True:
            for event in stream.poll():
                if isinstance(event, Committed):
                    rows += event.run.rows
                    stream.acknowledge(event.run.last_position)
                if isinstance(event, Advanced):
                    stream.acknowledge(event.position)

    with pytest.raises(SourceUnavailable, match="as it does when it shuts down"):
        consume()
    stopping.join()
    assert rows == 1
    assert "received fast shutdown request" in own_postgres.log_tail()
    assert "database system is shut down" in own_postgres.log_tail()


def test_server_crash_is_unavailable_and_the_stream_then_resumes(
    own_postgres: PostgresServer, make_capture: MakeCapture
) -> None:
    """O07: the data is not affected, so the capture retries, at the same position."""
    database = own_postgres.create_database("shop")
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    capture = make_capture(database)
    before = capture.prepare()
    capture.events()
    own_postgres.restart(immediate=True)
    with pytest.raises(SourceUnavailable):
        poll_until_it_ends(capture)
    assert capture.rows("public.t") == [], "pooled connections that died are replaced"
    database.execute("INSERT INTO t VALUES (1)")
    again = make_capture(database)
    again.prepare(before)
    assert [r["id"] for r in again.changes()] == [1]
    own_postgres.kill()
    with pytest.raises(SourceUnavailable):
        poll_until_it_ends(again)


def test_slot_dropped_by_another_session_is_history_lost(database: Database, make_capture: MakeCapture) -> None:
    """P36, P37: the stream's end names the way on, and the next start does not pretend."""
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    capture = make_capture(database)
    checkpoint = capture.prepare()
    capture.events()
    with database.connect() as connection:
        connection.execute(
            "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = %s", (SLOT,)
        )
        active = "SELECT 1 FROM pg_replication_slots WHERE active"
        wait_until(lambda: not database.execute(active), "the slot to be released")
        connection.execute("SELECT pg_drop_replication_slot(%s)", (SLOT,))
    with pytest.raises(SourceUnavailable):
        poll_until_it_ends(capture)
    with pytest.raises(HistoryLost, match="--accept-history-loss"):
        make_capture(database).prepare(checkpoint)
    with pytest.raises(HistoryLost, match="--accept-history-loss"):
        capture.source.stream(checkpoint, lambda: pytest.fail("no spool"))


def test_publication_dropped_while_streaming_is_history_lost(database: Database, capture: Capture) -> None:
    """P61: older servers report it in the stream; since 18 they skip the rows, and the heartbeat detects it."""
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    capture.prepare()
    capture.events()
    database.execute(f"DROP PUBLICATION {SLOT}")
    database.execute("INSERT INTO t VALUES (1)")
    with pytest.raises(HistoryLost, match="publication"):
        capture.chunks.heartbeat()
    if database.server.version < 180000:
        with pytest.raises(HistoryLost, match=r"publication .* is gone"):
            poll_until_it_ends(capture)


def test_connection_to_a_silent_server_is_abandoned(database: Database, capture: Capture) -> None:
    """P70: a connection that a firewall forgot stays silent indefinitely."""
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    database.server.reload(wal_sender_timeout="1s")
    try:
        capture.prepare()
        capture.events()
        (pid,) = database.execute("SELECT active_pid FROM pg_replication_slots WHERE active")[0]
        os.kill(pid, signal.SIGSTOP)
        try:
            with pytest.raises(SourceUnavailable, match="has been silent"):
                poll_until_it_ends(capture)
        finally:
            os.kill(pid, signal.SIGCONT)
    finally:
        database.server.reload(wal_sender_timeout="")


def test_busy_caller_does_not_lose_its_connection(database: Database, capture: Capture) -> None:
    """P47: while the caller waits for its disk, the server keeps receiving the true position."""
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    database.server.reload(wal_sender_timeout="1500ms")
    try:
        capture.prepare()
        capture.events()
        begin = confirmed(database)
        for part in range(8):  # each too small to be sent ahead of its commit, or to be spooled
            rows = f"generate_series({part * 2500 + 1}, {part * 2500 + 2500})"
            database.execute(f"INSERT INTO t SELECT i, repeat('x', 1000) FROM {rows} i")
        query = (
            "SELECT now() - backend_start > '4 s' FROM pg_stat_replication WHERE application_name = 'cdcflow stream'"
        )
        # The stream is not polled here, for longer than the server's timeout, while its send buffer is full.
        wait_for(lambda: database.execute(query), lambda found: found != [(False,)], "time to pass")
        assert database.execute(query) == [(True,)], "the server gave us up"
        assert confirmed(database) == begin
        assert len(capture.changes()) == 20000
    finally:
        database.server.reload(wal_sender_timeout="")


def test_column_that_becomes_a_key_under_a_policy_that_keys_cannot_bear_fails_its_table(
    database: Database, make_capture: MakeCapture
) -> None:
    """At the start, in the stream, and at the check of the tables: rows must never become one silently."""
    database.execute("CREATE TABLE days (id int PRIMARY KEY, day date NOT NULL)")
    capture = make_capture(database, special_values="clamp")
    before = capture.prepare()
    assert capture.changes() == []
    database.execute("ALTER TABLE days DROP CONSTRAINT days_pkey, ADD PRIMARY KEY (day)")
    database.execute("INSERT INTO days VALUES (1, 'infinity')")
    why = r"public\.days\.day .* is part of the table's key, and source\.special_values is clamp"
    remedy = {"public.days.day": "text"}
    assert f"{{{next(iter(remedy))}: text}}" in refusal(capture.events(), why).reason
    capture.source.tables()
    assert re.search(why, capture.source.compare_rows({}).refused[table_id("public.days")])
    capture.close()
    with pytest.raises(ConfigurationError, match=why):
        make_capture(database, special_values="clamp").prepare(before)
    mended = make_capture(database, special_values="clamp", columns=remedy)
    mended.prepare(before)
    assert brief(mended.changes(), "id", "day") == [("c", 1, "infinity")]


def test_table_without_columns_is_refused_and_can_be_excluded(database: Database, make_capture: MakeCapture) -> None:
    """A log with such a row could never be sealed. The test follows the remedy to the letter, at the start and after a
    row has arrived in the stream, with other rows before and after it.
    """
    database.execute("CREATE TABLE t (a int); ALTER TABLE t REPLICA IDENTITY FULL; CREATE TABLE u (id int PRIMARY KEY)")
    capture = make_capture(database)
    before = capture.prepare()
    database.execute("INSERT INTO t VALUES (1)")
    database.execute("ALTER TABLE t DROP COLUMN a")
    database.execute("INSERT INTO t DEFAULT VALUES; DELETE FROM t; TRUNCATE t; INSERT INTO u VALUES (1)")
    events = capture.events()
    assert refusal(events, r"table public\.t has no column.*!public\.t").table == table_id("public.t")
    runs = [e.run for e in events if isinstance(e, Committed)]
    assert [str(b.table.id) for run in runs if isinstance(run, Run) for b in run.batches][-1] == "public.u"
    capture.close()
    still = make_capture(database)
    still.prepare(before)
    assert list(still.source.compare_rows({}).refused) == [table_id("public.t")]
    still.close()
    without = make_capture(database, tables=["public.*", "!public.t"])
    left_out = without.prepare(before)
    assert [(str(b.table.id), b.rows.num_rows) for b in without.batches()] == [("public.u", 1)]
    without.close()
    ((end,),) = database.execute("SELECT pg_current_wal_lsn()::text")
    left_out = replace(left_out, position=position_of(Lsn.parse(end)))
    database.execute("ALTER TABLE t ADD COLUMN b int")
    database.execute("INSERT INTO t VALUES (2)")
    again = make_capture(database)
    again.prepare(left_out)
    database.execute("INSERT INTO t VALUES (3)")
    assert [r["b"] for r in again.changes("public.t")][-1] == 3
