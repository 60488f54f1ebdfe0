"""Chunks on a real server: every row once, in one snapshot each, whatever concurrently happens to the table."""

from __future__ import annotations

import threading

import pyarrow as pa
import pytest
from tests.servers.postgres import Database
from tests.support.polling import PATIENCE_S, wait_until
from tests.support.postgres.controlled_source import Capture, MakeCapture, rows_of, table_id

from cdcflow.capture.interleave.messages import Chunk
from cdcflow.errors import ConfigurationError, SourceUnavailable
from cdcflow.model.change import KeySet, Run
from cdcflow.model.position import Token
from cdcflow.sources.postgres.catalog_entries import Relid
from cdcflow.sources.postgres.pages import Leaf, PageCursor, PagePlan, PageRange, shares_of
from cdcflow.sources.postgres.xid_snapshot import XidSnapshot

pytestmark = pytest.mark.postgres


def make_table(database: Database, rows: int = 5000) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    database.execute(f"INSERT INTO t SELECT i, repeat('x', 50) FROM generate_series(1, {rows}) i")


def key_set(**columns: pa.Array) -> KeySet:
    return KeySet(pa.table(dict(columns)))


def test_chunks_of_any_size_bring_every_row_once(database: Database, capture: Capture) -> None:
    """What a backfill is for; the sizes that matter are one page, some, and all."""
    make_table(database)
    capture.prepare()
    for size in (1, 7, 10_000):
        assert sorted(r["id"] for r in capture.rows("public.t", size)) == list(range(1, 5001))


def test_pages_are_read_by_a_tid_range_scan(database: Database, capture: Capture) -> None:
    """Any other plan would read the whole table once a chunk."""
    make_table(database)
    leaf = Leaf(Relid(0, table_id("public.t")), 0, 9, 0)
    for part in (PageRange(leaf, 3, 9), PageRange(leaf, 3, 9, behind=5)):
        plan = database.execute(f"EXPLAIN SELECT id FROM {part.source} AS t WHERE {part.condition}")
        assert "Tid Range Scan on t" in plan[0][0]


def test_rows_beyond_the_bound_are_left_to_the_log(database: Database, capture: Capture) -> None:
    """W28: otherwise the backfill of a growing table would never end."""
    make_table(database, 1000)
    capture.prepare()
    planned = capture.plan("public.t")
    database.execute("INSERT INTO t SELECT i, repeat('x', 50) FROM generate_series(1001, 5000) i")
    read = capture.read(planned)
    assert read.exhausted
    assert read.run is not None
    assert 1000 <= read.run.rows < 1300, "the rest of the last page at most"
    assert len(capture.changes()) == 4000


def test_a_large_chunk_is_read_by_several_connections_each_with_its_fence(
    database: Database, make_capture: MakeCapture
) -> None:
    """W26: two snapshots show two states; the machine must see both."""
    make_table(database, 40_000)
    capture = make_capture(database, backfill={"ranges_at_once": 3})
    capture.prepare()
    planned = capture.plan("public.t")
    read = capture.read(planned)
    assert isinstance(read.run, Run)
    assert len(read.visibilities) == 3
    assert sorted(r["id"] for r in rows_of(read.run)) == list(range(1, 40_001))
    assert read.run.transactions == 1
    assert len(capture.read(planned, size=10).visibilities) == 1
    single = capture.read(planned, single_connection=True)
    assert len(single.visibilities) == 1
    assert single.run is not None
    assert single.run.rows == 40_000


@pytest.mark.parametrize("bytes_max", [None, 100_000])
def test_chunk_in_slices_brings_the_same_rows(database: Database, capture: Capture, bytes_max: int | None) -> None:
    """Below the full pace: short statements in one snapshot, also where a chunk ends early at its size."""
    make_table(database, 40_000)
    capture.prepare()
    if bytes_max is not None:
        capture.chunks._dialect._bytes_max = bytes_max  # type: ignore[attr-defined]  # the dialect's own limit
    planned = capture.plan("public.t")
    ids: list[int] = []
    after, idle_s, reads = None, 0.0, 0
    while True:
        read = capture.read(planned, after, 200, share=0.5, single_connection=True)
        assert isinstance(read.run, Run)
        assert 0 <= read.idle_seconds < read.seconds
        ids += [row["id"] for row in rows_of(read.run)]
        after, idle_s, reads = read.reached, idle_s + read.idle_seconds, reads + 1
        if read.exhausted:
            break
    assert ids == list(range(1, 40_001)), "in the order of the pages"
    assert idle_s > 0
    assert reads > 20 if bytes_max else reads < 10


def test_empty_table_is_done_with_its_first_chunk(database: Database, capture: Capture) -> None:
    """A table without pages has no range, and still must end."""
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    capture.prepare()
    planned = capture.plan("public.t")
    read = capture.read(planned)
    assert (planned.units, read.exhausted, read.run and read.run.rows) == (0, True, 0)


@pytest.mark.parametrize(
    "rewrite",
    ["VACUUM FULL t", "CLUSTER t USING t_pkey", "TRUNCATE t", "ALTER TABLE t ALTER v TYPE varchar(60)", "DROP TABLE t"],
)
def test_rewritten_table_is_read_from_the_start(database: Database, capture: Capture, rewrite: str) -> None:
    """W27, P26, W14: after a rewrite, pages that were read hold rows that were not."""
    make_table(database)
    if "varchar" in rewrite:
        rewrite = "ALTER TABLE t ALTER id TYPE bigint"
    capture.prepare()
    planned = capture.plan("public.t")
    first = capture.read(planned, size=10)
    assert not first.rewritten
    database.execute(rewrite)
    read = capture.read(planned, first.reached, 10)
    assert read.rewritten
    assert read.run is None


def test_table_recreated_under_its_name_is_not_read_by_the_old_plan(database: Database, capture: Capture) -> None:
    """P25: another table of the same name has other rows on the same pages."""
    make_table(database)
    capture.prepare()
    planned = capture.plan("public.t")
    database.execute("DROP TABLE t")
    make_table(database, 10)
    assert capture.read(planned).rewritten
    with pytest.raises(SourceUnavailable, match="was replaced by another"):
        capture.plan("public.t")
    capture.prepare(capture.checkpoint)
    assert len(capture.rows("public.t")) == 10


def test_column_added_between_two_chunks_shows_in_the_shape(database: Database, capture: Capture) -> None:
    """W15: the machine compares shapes; adding a column does not rewrite the table."""
    make_table(database)
    capture.prepare()
    planned = capture.plan("public.t")
    first = capture.read(planned, size=10)
    database.execute("ALTER TABLE t ADD n int DEFAULT 7")
    second = capture.read(planned, first.reached, 10)
    assert first.shape == planned.shape != second.shape
    assert isinstance(second.run, Run)
    assert {r["n"] for r in rows_of(second.run)} == {7}
    assert second.shape == capture.shape("public.t")


def test_partitions_are_read_one_by_one_in_one_plan(database: Database, capture: Capture) -> None:
    """P11: leaves with columns in another order, empty ones, and sub-partitions."""
    database.execute("CREATE TABLE p (id int PRIMARY KEY, v text) PARTITION BY RANGE (id)")
    database.execute("CREATE TABLE p1 (gone int, v text, id int NOT NULL)")
    database.execute("ALTER TABLE p1 DROP gone")
    database.execute("ALTER TABLE p ATTACH PARTITION p1 FOR VALUES FROM (0) TO (1000)")
    database.execute("CREATE TABLE p2 PARTITION OF p FOR VALUES FROM (1000) TO (3000) PARTITION BY RANGE (id)")
    database.execute("CREATE TABLE p2a PARTITION OF p2 FOR VALUES FROM (1000) TO (2000)")
    database.execute("CREATE TABLE p2b PARTITION OF p2 FOR VALUES FROM (2000) TO (3000)")
    database.execute("CREATE TABLE p3 PARTITION OF p DEFAULT")
    database.execute("INSERT INTO p SELECT i, 'v' || i FROM generate_series(1, 2999) i")
    capture.prepare()
    for size in (3, 10_000):
        rows = capture.rows("public.p", size)
        assert sorted((r["id"], r["v"]) for r in rows) == sorted((i, f"v{i}") for i in range(1, 3000))


def test_detached_partition_is_not_read_as_part_of_its_root(database: Database, capture: Capture) -> None:
    """P13: its rows are no longer rows of the table."""
    database.execute("CREATE TABLE p (id int PRIMARY KEY) PARTITION BY RANGE (id)")
    database.execute("CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (1000)")
    database.execute("CREATE TABLE p2 PARTITION OF p FOR VALUES FROM (1000) TO (3000)")
    database.execute("INSERT INTO p SELECT generate_series(1, 2999)")
    capture.prepare()
    planned = capture.plan("public.p")
    database.execute("ALTER TABLE p DETACH PARTITION p2")
    assert capture.read(planned).rewritten
    assert len(capture.rows("public.p")) == 999


def test_partition_attached_during_the_backfill_is_read_too(database: Database, capture: Capture) -> None:
    """P12: the rows that it had before are in no log."""
    database.execute("CREATE TABLE p (id int PRIMARY KEY) PARTITION BY RANGE (id)")
    database.execute("CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (1000)")
    database.execute("INSERT INTO p SELECT generate_series(1, 999)")
    database.execute("CREATE TABLE p2 (id int PRIMARY KEY)")
    database.execute("INSERT INTO p2 SELECT generate_series(1000, 1999)")
    capture.prepare()
    planned = capture.plan("public.p")
    database.execute("ALTER TABLE p ATTACH PARTITION p2 FOR VALUES FROM (1000) TO (2000)")
    found: list[int] = []
    after: str | None = None
    while True:
        read = capture.read(planned, after, 1000)
        assert isinstance(read.run, Run)
        found += [r["id"] for r in rows_of(read.run)]
        after = read.reached
        if read.exhausted:
            break
    assert sorted(found) == list(range(1, 2000))


def test_children_by_inheritance_are_separate_tables(database: Database, capture: Capture) -> None:
    """A read of the parent with its children would bring rows that the stream gives to another table."""
    database.execute("CREATE TABLE parent (id int PRIMARY KEY)")
    database.execute("CREATE TABLE child (PRIMARY KEY (id)) INHERITS (parent)")
    capture.prepare()
    database.execute("INSERT INTO parent VALUES (1)")
    database.execute("INSERT INTO child VALUES (2)")
    changes = capture.events()
    assert changes
    assert [r["id"] for r in capture.rows("public.parent")] == [1]
    assert [r["id"] for r in capture.rows("public.child")] == [2]


def test_table_without_a_key_is_read_whole_after_a_truncate(database: Database, capture: Capture) -> None:
    """P08, G18: its rows cannot be replayed over each other, so they replace the previous ones; duplicates are kept."""
    database.execute("CREATE TABLE bag (a int, b text)")
    database.execute("ALTER TABLE bag REPLICA IDENTITY FULL")
    database.execute("INSERT INTO bag VALUES (1, 'x'), (1, 'x'), (NULL, NULL)")
    capture.prepare()
    planned = capture.plan("public.bag")
    assert planned.whole
    read = capture.read(planned, kind="whole")
    assert isinstance(read.run, Run)
    assert len(read.visibilities) == 1
    rows = rows_of(read.run)
    assert [r["_op"] for r in rows] == ["t", "r", "r", "r"]
    assert [r["a"] for r in rows] == [None, 1, 1, None]
    assert read.exhausted


@pytest.mark.spread(1)
def test_rows_are_found_again_by_their_keys(database: Database, capture: Capture) -> None:
    """W11, W16: keys of every kind go to the server and back without changing; a key without a row gives none."""
    database.execute("CREATE TYPE mood AS ENUM ('sad', 'so so')")
    database.execute("CREATE DOMAIN code AS varchar(10)")
    keys = {
        "b": ("boolean", ["true", "false"]),
        "i": ("bigint", ["-9223372036854775808", "5"]),
        "o": ("oid", ["4294967295", "1"]),
        "n": ("numeric(8,3)", ["-1.500", "2.000"]),
        "u": ("numeric", ["1.50", "1e40"]),
        "f": ("float8", ["'NaN'", "0.1"]),
        "r": ("real", ["'-Infinity'", "1.1"]),
        "t": ("text", ["E'a''\"\\\\ {},\\n'", "''"]),
        "c": ("char(4)", ["'a'", "'b'"]),
        "e": ("mood", ["'sad'", "'so so'"]),
        "d": ("code", ["'x'", "'y'"]),
        "y": ("bytea", ["'\\x00ff'", "''"]),
        "g": ("uuid", ["'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11'", "'00000000-0000-0000-0000-000000000000'"]),
        "dt": ("date", ["'0044-03-15 BC'", "'9999-12-31'"]),
        "ts": ("timestamp", ["'0044-03-15 12:00:00.000001 BC'", "'2020-01-01 00:00:00.123456'"]),
        "tz": ("timestamptz", ["'0001-01-01 00:00+00 BC'", "'1969-12-31 23:59:59.999999+00'"]),
        "iv": ("interval", ["'1 mon -2 days 00:00:01.5'", "'0'"]),
        "m": ("money", ["-12.34", "0"]),
        "ip": ("inet", ["'10.0.0.1/8'", "'::1'"]),
        "bi": ("bit(3)", ["B'101'", "B'000'"]),
    }
    columns = ", ".join(f"{name} {kind}" for name, (kind, _) in keys.items())
    # One table a type, and one with all of them as its key.
    names = ", ".join(keys)
    script = [f"CREATE TABLE wide ({columns}, v int, PRIMARY KEY ({names}))"]
    for name, (kind, values) in keys.items():
        script.append(f"CREATE TABLE k_{name} (k {kind} PRIMARY KEY, v int)")
        script += [f"INSERT INTO k_{name} VALUES (({value})::{kind}, {n})" for n, value in enumerate(values)]
    for row in (0, 1):
        script.append(f"INSERT INTO wide VALUES ({', '.join(f'({v[row]})::{k}' for k, v in keys.values())}, {row})")
    database.execute("; ".join(["SET lc_monetary = 'C'", *script]))
    capture.prepare()
    for table in (*(f"public.k_{name}" for name in keys), "public.wide"):
        planned = capture.plan(table)
        everything = capture.read(planned)
        assert isinstance(everything.run, Run)
        (batch,) = everything.run.batches
        wanted = pa.Table.from_batches([batch.rows]).select(list(batch.table.key))
        for one in (0, 1):
            read = capture.read(planned, kind="keys", keys=KeySet(wanted.slice(one, 1)))
            assert isinstance(read.run, Run), table
            found = [v for b in read.run.batches for v in b.rows["v"].to_pylist()]
            assert found == [batch.rows["v"][one].as_py()], table
        both = capture.read(planned, kind="keys", keys=KeySet(wanted))
        assert both.run is not None
        assert both.run.rows == 2
        database.execute(f"DELETE FROM {table} WHERE v = {batch.rows['v'][1].as_py()}")
        repaired = capture.read(planned, kind="keys", keys=KeySet(wanted), repairs=True)
        assert isinstance(repaired.run, Run)
        deletes, rows = repaired.run.batches
        assert repaired.deleted == 1
        assert pa.Table.from_batches([deletes.rows]).select(wanted.column_names) == wanted.slice(1, 1), table
        assert rows.rows["v"].to_pylist() == [batch.rows["v"][0].as_py()], table
    planned = capture.plan("public.k_i")
    absent = capture.read(planned, kind="keys", keys=key_set(k=pa.array([77], pa.int64())))
    assert absent.run is not None
    assert absent.run.rows == 0


def test_keys_of_a_partitioned_table_are_found_in_any_leaf(database: Database, capture: Capture) -> None:
    """W11 through the root: the row may have moved to another partition since."""
    database.execute("CREATE TABLE p (id int PRIMARY KEY) PARTITION BY RANGE (id)")
    database.execute("CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (10)")
    database.execute("CREATE TABLE p2 PARTITION OF p FOR VALUES FROM (10) TO (20)")
    database.execute("INSERT INTO p VALUES (1), (11), (12)")
    capture.prepare()
    planned = capture.plan("public.p")
    read = capture.read(planned, kind="keys", keys=key_set(id=pa.array([1, 12, 12], pa.int32())))
    assert isinstance(read.run, Run)
    assert sorted(r["id"] for r in rows_of(read.run)) == [1, 12]


def test_snapshot_lists_what_is_not_visible_yet(database: Database, capture: Capture) -> None:
    """W01: the fence needs the ids that the chunk cannot see, not what was committed."""
    make_table(database, 10)
    capture.prepare()
    with database.session(autocommit=False) as session:
        session.execute("INSERT INTO t VALUES (100, 'open')")
        (xid,) = session.execute("SELECT pg_current_xact_id()::text::bigint").fetchone() or (0,)
        read = capture.read(capture.plan("public.t"))
        (visibility,) = read.visibilities
        assert isinstance(visibility, XidSnapshot)
        assert xid in visibility.in_progress or xid >= visibility.xmax
        taken = capture.chunks.snapshot()
        assert isinstance(taken, XidSnapshot)
        assert xid in taken.in_progress or xid >= taken.xmax


def test_mark_does_not_wait_for_a_standby(database: Database, capture: Capture) -> None:
    """E1: a mark must not queue after commits that wait for a standby."""
    make_table(database, 10)
    capture.prepare()
    with database.server.holding_commits():
        capture.chunks.write_mark(Token("1/1/low"))
        capture.chunks.heartbeat()


def test_locked_table_is_tried_again_later(
    database: Database, capture: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An ALTER TABLE in an open transaction must not hang a chunk, nor make the application's queries queue after the
    chunk indefinitely.
    """
    make_table(database, 10)
    capture.prepare()
    planned = capture.plan("public.t")
    monkeypatch.setattr("cdcflow.sources.postgres.chunks.LOCK_WAIT", "100ms")
    with database.session(autocommit=False) as session:
        session.execute("LOCK TABLE t IN ACCESS EXCLUSIVE MODE")
        with pytest.raises(SourceUnavailable, match=r"reading public\.t.*lock timeout"):
            capture.read(planned)
    read = capture.read(planned)
    assert read.run is not None
    assert read.run.rows == 10


WAITS = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"


def test_snapshot_is_taken_after_the_lock_was_granted(database: Database, capture: Capture) -> None:
    """W15, W27: a chunk that waited for an ALTER TABLE must see the table after it, not before."""
    make_table(database, 10)
    capture.prepare()
    planned = capture.plan("public.t")
    found: list[str] = []

    def read() -> None:
        run = capture.read(planned).run
        assert isinstance(run, Run)
        found.extend(r["v"] for r in rows_of(run) if r["id"] == 1)

    with database.session(autocommit=False) as session:
        session.execute("LOCK TABLE t IN ACCESS EXCLUSIVE MODE")
        session.execute("UPDATE t SET v = 'new' WHERE id = 1")
        reading = threading.Thread(target=read)
        reading.start()
        wait_until(lambda: database.execute(WAITS) or not reading.is_alive(), "the reader to wait for the lock")
        assert reading.is_alive()
        session.commit()
    reading.join()
    assert found == ["new"]


def test_closing_ends_a_read_that_another_thread_waits_for(database: Database, make_capture: MakeCapture) -> None:
    """A daemon that is stopping must not wait for a table's lock."""
    make_table(database, 10)
    capture = make_capture(database)
    capture.prepare()
    planned = capture.plan("public.t")
    failed: list[BaseException] = []

    def read() -> None:
        try:
            capture.read(planned)
        except SourceUnavailable as error:
            failed.append(error)

    with database.session(autocommit=False) as session:
        session.execute("LOCK TABLE t IN ACCESS EXCLUSIVE MODE")
        reading = threading.Thread(target=read)
        reading.start()
        wait_until(lambda: database.execute(WAITS) or not reading.is_alive(), "the reader to wait for the lock")
        assert reading.is_alive()
        capture.close()
        reading.join(PATIENCE_S)
        assert not reading.is_alive()
    assert len(failed) == 1


def test_plan_survives_as_text() -> None:
    """It is stored in the log between two runs."""
    plan = PagePlan.from_json('{"version":1,"root":7,"leaves":[[8,"s","a",80,3],[9,"s","b",90,2]]}')
    assert PagePlan.from_json(plan.to_json()) == plan
    assert plan.units == 5
    assert [(p.leaf.rel.oid, p.a, p.b) for p in plan.parts(PageCursor(2), 4)] == [(8, 2, 3), (9, 0, 1)]


@pytest.mark.parametrize("text", ["0", "123", '123+{"version":1}', "123.45", '123.45+{"version":1}'])
def test_cursor_survives_as_text(text: str) -> None:
    """The first and the third form are in the logs of earlier versions."""
    assert str(PageCursor.parse(text)) == text


def test_shares_split_a_range_that_begins_inside_a_page() -> None:
    """Only the first share begins inside it; together they are the whole range, whatever the number of connections."""
    plan = PagePlan.from_json('{"version":1,"root":7,"leaves":[[8,"s","a",80,300],[9,"s","b",90,400]]}')
    chunk = Chunk(table_id("s.a"), 1, 1, plan.to_json(), "100.7", 500, Token("1/1/low"))
    for at_once in (1, 2, 3):
        shares = shares_of(chunk, at_once, 3000)
        parts = [p for share in shares for p in share.parts]
        assert len(shares) == at_once
        assert {share.bytes_max for share in shares} == {3000 // at_once}
        assert [p.behind for p in parts] == [7] + [0] * (len(parts) - 1)
        assert [p.begin.unit for p in parts] == [100, *(p.leaf.first + p.b for p in parts[:-1])]
        assert [share.end for share in shares] == [s.parts[-1].leaf.first + s.parts[-1].b for s in shares]
        assert shares[-1].end == 600
        pieces = [piece for p in parts for piece in p.pieces()]
        assert [piece.behind for piece in pieces] == [7] + [0] * (len(pieces) - 1)
        assert sum(piece.b - piece.a for piece in pieces) == 500
    assert shares_of(chunk, 1, 3000, pages_max=10)[0].end == 110


def test_select_revoked_during_a_backfill_names_the_grant(database: Database, make_capture: MakeCapture) -> None:
    """P65, P66: the table fails with the SQL that repairs it; filtered rows are an error, never a smaller table."""
    make_table(database, 10)
    if not database.execute("SELECT 1 FROM pg_roles WHERE rolname = 'reader'"):
        database.execute("CREATE ROLE reader LOGIN REPLICATION")
    database.execute(
        "GRANT SELECT ON t TO reader; CREATE PUBLICATION p_reader FOR TABLE t WITH (publish_via_partition_root)"
    )
    if database.server.version >= 180000:
        database.execute("ALTER PUBLICATION p_reader SET (publish_generated_columns = stored)")
    capture = make_capture(database, url=database.url_as("reader"), publication="p_reader")
    capture.prepare()
    planned = capture.plan("public.t")
    assert capture.read(planned).run is not None
    database.execute("ALTER TABLE t ENABLE ROW LEVEL SECURITY")
    with pytest.raises(ConfigurationError, match=r"(?s)row-level security.*BYPASSRLS"):
        capture.read(planned)
    database.execute("ALTER TABLE t DISABLE ROW LEVEL SECURITY; REVOKE SELECT ON t FROM reader")
    with pytest.raises(ConfigurationError, match=r"(?s)permission denied for table t.*GRANT SELECT"):
        capture.read(planned)
