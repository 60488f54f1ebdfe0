"""Rows a thousand times as large as the pages tell: a backfill's memory stays flat, and no row is lost or doubled."""

from __future__ import annotations

import threading
from collections import Counter

import pyarrow as pa
import pytest
from tests.servers.postgres import Database
from tests.support.postgres.controlled_source import Capture, MakeCapture, rows_of

from cdcflow.capture.interleave.messages import ChunkRead
from cdcflow.errors import ConfigurationError
from cdcflow.model.change import KeySet, Run

pytestmark = pytest.mark.postgres

MB = 1 << 20


def make_table(database: Database, rows: int, *, size: int = MB, key: str = "PRIMARY KEY") -> None:
    database.execute(f"CREATE TABLE t (id int {key}, n int, v text)")
    database.execute("ALTER TABLE t ALTER v SET STORAGE EXTERNAL")
    database.execute(f"INSERT INTO t SELECT i, 0, repeat('x', {size}) FROM generate_series(1, {rows}) i")


def size_of(read: ChunkRead) -> int:
    assert isinstance(read.run, Run)
    return read.run.bytes


def ids_of(read: ChunkRead) -> list[int]:
    assert isinstance(read.run, Run)
    return [row["id"] for row in rows_of(read.run)]


def test_chunk_of_large_rows_ends_at_its_bound_inside_a_page(database: Database, make_capture: MakeCapture) -> None:
    """120 rows of 1 MB are on one or two pages. Concurrent updates move rows; each row still appears once per snapshot,
    and a restart continues inside a page.
    """
    make_table(database, 120)
    bound = 12 * MB
    capture = make_capture(database, chunk_bytes_max=bound)
    capture.prepare()
    planned = capture.plan("public.t")
    assert planned.units < 10
    stop = threading.Event()

    def update() -> None:
        with database.connect(autocommit=True) as connection:
            while not stop.is_set():
                connection.execute("UPDATE t SET n = n + 1 WHERE id % 50 = 7")

    writer = threading.Thread(target=update)
    writer.start()
    seen: Counter[int] = Counter()
    cursors: list[str | None] = [None]
    try:
        while True:
            read = capture.read(planned, cursors[-1])
            assert size_of(read) < bound + 2 * MB
            seen.update(ids_of(read))
            cursors.append(read.reached)
            if read.exhausted:
                break
            if len(cursors) == 4:
                capture.close()
                capture = make_capture(database, chunk_bytes_max=bound)
                capture.prepare(capture.checkpoint)
    finally:
        stop.set()
        writer.join()
    assert len(cursors) > 120 * MB // bound
    assert any(cursor and "." in cursor for cursor in cursors)
    quiet = {row: count for row, count in seen.items() if row % 50 != 7}
    assert quiet == {row: 1 for row in range(1, 121) if row % 50 != 7}


def test_cursor_inside_a_page_begins_after_that_row(database: Database, make_capture: MakeCapture) -> None:
    """The cursor of a plan that reads several partitions, each row ended by the bound."""
    database.execute("CREATE TABLE p (id int PRIMARY KEY, v text) PARTITION BY RANGE (id)")
    database.execute("CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (30)")
    database.execute("CREATE TABLE p2 PARTITION OF p FOR VALUES FROM (30) TO (1000)")
    database.execute("INSERT INTO p SELECT i, repeat('x', 100) FROM generate_series(1, 60) i")
    database.execute("DELETE FROM p WHERE id % 3 = 0")
    capture = make_capture(database, chunk_bytes_max=1)
    capture.prepare()
    planned = capture.plan("public.p")
    found: list[int] = []
    after: str | None = None
    while True:
        read = capture.read(planned, after)
        assert len(ids_of(read)) <= 1
        found += ids_of(read)
        after = read.reached
        if read.exhausted:
            break
    assert found == [i for i in range(1, 61) if i % 3]


def test_part_that_ends_early_ends_the_chunk(database: Database, make_capture: MakeCapture) -> None:
    """What other connections read after it is dropped, or its rows would be skipped."""
    make_table(database, 30_000, size=200)
    capture = make_capture(database, chunk_bytes_max=MB, backfill={"ranges_at_once": 3})
    capture.prepare()
    found: Counter[int] = Counter(row["id"] for row in capture.rows("public.t"))
    assert found == dict.fromkeys(range(1, 30_001), 1)


def test_keys_of_large_rows_return_where_they_were_not_read(database: Database, make_capture: MakeCapture) -> None:
    """Ten thousand keys of rows of 1 MB would be 10 GB."""
    make_table(database, 40)
    capture = make_capture(database, chunk_bytes_max=8 * MB)
    capture.prepare()
    planned = capture.plan("public.t")
    left: KeySet | None = KeySet(pa.table({"id": pa.array(range(-10, 41), pa.int32())}))
    found: Counter[int] = Counter()
    gone: Counter[int] = Counter()
    while left is not None:
        before = len(left)
        read = capture.read(planned, "0", kind="keys", keys=left, repairs=True)
        assert size_of(read) < 10 * MB
        assert isinstance(read.run, Run)
        rows = rows_of(read.run)
        found.update(row["id"] for row in rows if row["_op"] == "r")
        gone.update(row["id"] for row in rows if row["_op"] == "d")
        left = read.keys_left
        assert left is None or len(left) < before
    assert found == dict.fromkeys(range(1, 41), 1)
    assert gone == dict.fromkeys(range(-10, 1), 1), "a key that was left for another chunk is not gone"


def test_table_without_a_key_that_is_too_large_is_refused_with_an_error_that_names_it(
    database: Database, make_capture: MakeCapture
) -> None:
    """It is read in one piece, and would take all memory. The setting that the error names lets it in."""
    make_table(database, 10, key="")
    database.execute("ALTER TABLE t REPLICA IDENTITY FULL")
    capture = make_capture(database, backfill={"whole_bytes_max": 4 * MB})
    capture.prepare()
    planned = capture.plan("public.t")
    assert planned.whole
    with pytest.raises(ConfigurationError, match=r"public\.t.*no key") as stopped:
        capture.read(planned, kind="whole")
    assert "source.backfill.whole_bytes_max" in str(stopped.value)
    assert "cdcflow backfill public.t" in str(stopped.value)
    capture.close()
    larger: Capture = make_capture(database, backfill={"whole_bytes_max": 20 * MB})
    larger.prepare(capture.checkpoint)
    assert len(ids_of(larger.read(planned, kind="whole"))) == 11, "a truncate and ten rows"
