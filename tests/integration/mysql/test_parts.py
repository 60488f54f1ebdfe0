"""One chunk read in parts, each in a separate snapshot: together they are what one part would have shown, or less."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pymysql
import pytest
from tests.servers.mysql import MySQLDatabase, MySQLServer
from tests.support.mysql.controlled_source import MakeMySQLCapture, MySQLCapture
from tests.support.postgres.controlled_source import rows_of

from cdcflow import wiring
from cdcflow.capture.interleave.messages import ChunkRead, Planned
from cdcflow.config import Config
from cdcflow.errors import SourceUnavailable
from cdcflow.model.change import Run
from cdcflow.sources.engine.chunks import Chunks
from cdcflow.sources.engine.key_ranges import KeyRange
from cdcflow.sources.mysql.ranges import Ordered
from cdcflow.testing.folded import folded_log

pytestmark = pytest.mark.mysql

Between = Callable[[], object]


@pytest.fixture(autouse=True)
def any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks and parts as small as these tests ask for."""
    monkeypatch.setattr("cdcflow.sources.engine.key_chunks.ROWS_MIN", 1)
    monkeypatch.setattr("cdcflow.sources.engine.key_chunks.PART_ROWS_MIN", 1)


@pytest.fixture
def between(monkeypatch: pytest.MonkeyPatch) -> Callable[[Between], None]:
    """Have something done once, after the first part's snapshot and before all others'."""
    part = Chunks._part

    def arrange(act: Between) -> None:
        left = [act]
        lock = threading.Lock()

        def watched(chunks: Any, *about: Any) -> Any:
            with lock:
                if left:
                    left.pop()()
            return part(chunks, *about)

        monkeypatch.setattr(Chunks, "_part", watched)

    return arrange


def make_table(database: MySQLDatabase, count: int = 40) -> None:
    """Rows with the even numbers, starting at 2."""
    rows = ", ".join(f"({n}, 'a{n}', {n})" for n in range(2, 2 * count + 2, 2))
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, a varchar(20) NOT NULL, b int)", f"INSERT INTO t VALUES {rows}"
    )


def in_four_parts(database: MySQLDatabase, make_capture: MakeMySQLCapture) -> tuple[MySQLCapture, Planned]:
    make_table(database)
    capture = make_capture(database, backfill={"ranges_at_once": 4})
    capture.prepare()
    return capture, capture.plan("t")


def seen(read: ChunkRead) -> list[dict[str, Any]]:
    assert isinstance(read.run, Run)
    return rows_of(read.run)


KEYS = {
    "text without case": "k varchar(30) COLLATE utf8mb4_general_ci NOT NULL PRIMARY KEY",
    "a key of two columns": "k varchar(1) COLLATE utf8mb4_general_ci NOT NULL, j int NOT NULL, PRIMARY KEY (k, j)",
    "an unsigned number beyond 2^63": "k bigint unsigned NOT NULL PRIMARY KEY",
}


@pytest.mark.spread(8)
@pytest.mark.parametrize("kind", KEYS)
@pytest.mark.parametrize("size", [2, 7, 60, 1000])
def test_parts_give_exactly_the_rows_of_one(
    mysql_database: MySQLDatabase, make_capture: MakeMySQLCapture, kind: str, size: int
) -> None:
    """W16, W21, W22: a split is one more place where the client instead of the server could compare keys."""
    mysql_database.execute(f"CREATE TABLE t ({KEYS[kind]}, n int NOT NULL)")
    with mysql_database.session() as connection, connection.cursor() as cursor:
        for n in range(60):
            letter = ("abcdefghij"[n % 10]).upper() if n % 3 else "abcdefghij"[n % 10]
            row = {"text without case": (f"{letter}{n // 10}", n), "a key of two columns": (letter, n // 10 - 3, n)}
            values = row.get(kind, (2**63 - 30 + n, n))
            cursor.execute(f"INSERT INTO t VALUES ({', '.join(['%s'] * len(values))})", values)
    found = []
    for parts in (1, 3):
        capture = make_capture(mysql_database, backfill={"ranges_at_once": parts})
        capture.prepare()
        reads = capture.all_reads("t", size)
        found.append([[row["n"] for row in seen(read)] for read in reads])
        assert reads[-1].units_done == 60
        if size == 60:
            assert max(len(read.visibilities) for read in reads) >= parts
    assert found[0] == found[1]
    assert [n for numbers in found[0] for n in numbers] == [
        row[0] for row in mysql_database.execute("SELECT n FROM t ORDER BY k, n")
    ]


GAPS = {
    "close, then far apart": [*range(1, 101), *range(1000, 101_000, 1000)],
    "far apart, then close": [*range(-100_000, 0, 1000), *range(1, 101)],
    "far apart and close by turns": [n * 10_000 + i for n in range(10) for i in range(20)],
}


@pytest.mark.spread(6)
@pytest.mark.parametrize("gaps", GAPS)
@pytest.mark.parametrize("size", [6, 40, 90])
def test_splits_of_whole_numbers_are_guessed_and_nothing_depends_on_the_guess(
    mysql_database: MySQLDatabase,
    make_capture: MakeMySQLCapture,
    monkeypatch: pytest.MonkeyPatch,
    gaps: str,
    size: int,
) -> None:
    """W16, W28: a part may be empty, or have twice its rows, and then the chunk ends there; none goes beyond the plan's
    bound. Only the first chunk's splits are the server's.
    """
    key_at = Ordered._key_at
    asked: list[str] = []

    def watched(table: Ordered, rest: str) -> Any:
        asked.append(rest)
        return key_at(table, rest)

    monkeypatch.setattr(Ordered, "_key_at", watched)
    ids = GAPS[gaps]
    mysql_database.execute("CREATE TABLE t (id bigint PRIMARY KEY)")
    mysql_database.execute(f"INSERT INTO t VALUES {', '.join(f'({n})' for n in ids)}")
    capture = make_capture(mysql_database, backfill={"ranges_at_once": 3})
    capture.prepare()
    planned = capture.plan("t")
    mysql_database.execute(f"INSERT INTO t VALUES {', '.join(f'({ids[-1] + n})' for n in range(1, 100))}")
    reads = [capture.read(planned, None, size)]
    while not reads[-1].exhausted:
        reads.append(capture.read(planned, reads[-1].reached, size))
    assert [row["id"] for read in reads for row in seen(read)] == ids
    assert max(len(seen(read)) for read in reads) <= 2 * size
    assert len([rest for rest in asked if "OFFSET" in rest]) == 2


def test_each_part_carries_its_own_fence(mysql_database: MySQLDatabase, make_capture: MakeMySQLCapture) -> None:
    """W26: two snapshots show two states; the machine must see both."""
    make_table(mysql_database)
    capture = make_capture(mysql_database, backfill={"ranges_at_once": 3})
    capture.prepare()
    read = capture.read(capture.plan("t"), None, 40)
    assert [row["id"] for row in seen(read)] == list(range(2, 82, 2))
    assert len(read.visibilities) == 3
    assert isinstance(read.run, Run)
    assert read.run.transactions == 1


def test_server_without_gtids_is_read_in_parts(make_capture: MakeMySQLCapture) -> None:
    """W03: each part writes its own mark before its snapshot, and has two bounds."""
    with MySQLServer("mysql", {"gtid_mode": "OFF", "enforce_gtid_consistency": "OFF"}) as server:
        database = server.create_database("shop")
        make_table(database)
        capture = make_capture(database)
        capture.prepare()
        read = capture.read(capture.plan("t"), None, 40)
        assert [row["id"] for row in seen(read)] == list(range(2, 82, 2))
        assert len(read.visibilities) == 4


@pytest.mark.spread(2)
@pytest.mark.parametrize("large", [1, 15, 20, 30])
def test_part_that_ends_early_ends_the_chunk(
    mysql_database: MySQLDatabase, make_capture: MakeMySQLCapture, monkeypatch: pytest.MonkeyPatch, large: int
) -> None:
    """O11, P69: what follows unread rows is not read either, as far as the cursor is concerned."""
    monkeypatch.setattr("cdcflow.sources.engine.key_chunks.CHUNK_BYTES_MAX", 3 << 16)
    mysql_database.execute("CREATE TABLE t (id int PRIMARY KEY, v longtext)")
    rows = ", ".join(f"({n}, REPEAT('x', {2_000_000 if n in (large, large + 1) else 10}))" for n in range(40))
    mysql_database.execute(f"INSERT INTO t VALUES {rows}")
    capture = make_capture(mysql_database, backfill={"ranges_at_once": 3})
    capture.prepare()
    planned = capture.plan("t")
    first = capture.read(planned, None, 40)
    assert [row["id"] for row in seen(first)] == list(range(len(seen(first))))
    assert large < len(seen(first)) < 40
    assert first.units_done == len(seen(first))
    assert not first.exhausted
    assert len({id(v) for v in first.visibilities}) == large * 3 // 40 + 1, "the fences of parts that were dropped"
    assert [row["id"] for row in capture.rows("t", 40)] == list(range(40))


def test_parts_without_rows_are_parts(
    mysql_database: MySQLDatabase, make_capture: MakeMySQLCapture, between: Callable[[Between], None]
) -> None:
    """W25: rows that vanish between the first snapshot and the others leave parts empty, and the table still ends."""
    capture, planned = in_four_parts(mysql_database, make_capture)
    between(lambda: mysql_database.execute("DELETE FROM t WHERE id > 20"))
    read = capture.read(planned, None, 40)
    assert [row["id"] for row in seen(read)] == list(range(2, 22, 2))
    assert read.exhausted
    assert seen(capture.read(planned, read.reached, 40)) == []


def test_rows_that_appear_in_a_middle_part_are_in_it(
    mysql_database: MySQLDatabase, make_capture: MakeMySQLCapture, between: Callable[[Between], None]
) -> None:
    """W16: a part extends to its split, however many rows it then has."""
    capture, planned = in_four_parts(mysql_database, make_capture)
    between(lambda: mysql_database.execute("INSERT INTO t VALUES (29, 'x', 0), (31, 'x', 0), (33, 'x', 0)"))
    ids = [row["id"] for row in seen(capture.read(planned, None, 30))]
    assert set(range(2, 40, 2)) <= set(ids)
    assert ids == sorted(set(ids))
    assert {29, 31, 33} <= set(ids)


def test_chunk_for_one_connection_is_read_through_one(
    mysql_database: MySQLDatabase, make_capture: MakeMySQLCapture
) -> None:
    """With traffic the server's processors are needed elsewhere."""
    capture, planned = in_four_parts(mysql_database, make_capture)
    assert len(capture.read(planned, None, 40).visibilities) == 4
    single = capture.read(planned, None, 40, single_connection=True)
    assert len(single.visibilities) == 1
    assert [row["id"] for row in seen(single)] == list(range(2, 82, 2))


def test_chunk_in_slices_brings_the_same_rows(mysql_database: MySQLDatabase, make_capture: MakeMySQLCapture) -> None:
    """Below the full pace: short statements in one snapshot, up to the chunk's rows, or the end of the table."""
    capture, planned = in_four_parts(mysql_database, make_capture)
    first = capture.read(planned, None, 25, share=0.5, single_connection=True)
    assert isinstance(first.run, Run)
    assert len(first.run.batches) > 1, "several statements"
    assert [row["id"] for row in seen(first)] == list(range(2, 52, 2))
    assert (first.exhausted, len(first.visibilities)) == (False, 1)
    rest = capture.read(planned, first.reached, 40, share=0.5, single_connection=True)
    assert [row["id"] for row in seen(rest)] == list(range(52, 82, 2))
    assert rest.exhausted
    assert 0 < first.idle_seconds < first.seconds
    assert first.units_done == 25
    assert seen(capture.read(planned, rest.reached, 40, share=0.5)) == []


def copied(database: MySQLDatabase, log: Path) -> tuple[bool, list[Mapping[str, Any]]]:
    """Read all tables into a log with the machine; return whether the log holds what the table holds, and what was
    reported.
    """
    config = Config.model_validate(
        {
            "source": {
                "kind": database.server.flavor,
                "url": database.url,
                "tables": [f"{database.name}.t"],
                "tls": {"mode": "off"},
            },
            "log": {"path": str(log)},
        }
    )
    told: list[Mapping[str, Any]] = []
    wiring.capture(config, once=True, on_event=lambda name, fields: told.append({"event": name, **fields})).run()
    (rows,) = folded_log(log).values()
    kept = sorted((row.values["id"], row.values["a"], row.values["b"]) for row in rows.values())
    return kept == sorted(database.execute("SELECT id, a, b FROM t")), told


@pytest.mark.parametrize("image", ["FULL", "MINIMAL"])
def test_row_whose_key_moves_across_a_split_ends_right(
    mysql_database: MySQLDatabase,
    tmp_path: Path,
    between: Callable[[Between], None],
    monkeypatch: pytest.MonkeyPatch,
    image: str,
) -> None:
    """W10, W11, W26: either both the first part and the second show it, or neither. Where the log has all of its
    columns, replaying is enough; otherwise the chunk has no place in the log and is read again.
    """
    monkeypatch.setattr("cdcflow.sources.engine.key_chunks.FIRST_ROWS", 40)
    make_table(mysql_database)
    between(
        lambda: mysql_database.execute(
            f"SET SESSION binlog_row_image = '{image}'",
            "UPDATE t SET id = 21 WHERE id = 60",
            "UPDATE t SET id = 61 WHERE id = 20",
            "UPDATE t SET b = 7 WHERE id = 61",
        )
    )
    is_right, told = copied(mysql_database, tmp_path / "log")
    assert is_right
    reasons = [fields["reason"] for fields in told if fields["event"] == "chunk given up"]
    assert reasons == ([] if image == "FULL" else ["its snapshot does not match a prefix of the log"])


def test_table_altered_between_two_snapshots_is_read_again(
    mysql_database: MySQLDatabase, make_capture: MakeMySQLCapture, between: Callable[[Between], None]
) -> None:
    """W15, M55: one chunk has one shape. The change of shape waits for the first part, and the second part for it."""
    make_table(mysql_database)
    capture = make_capture(mysql_database)
    capture.prepare()
    planned = capture.plan("t")
    altering: list[threading.Thread] = []

    def alter() -> None:
        statement = "ALTER TABLE t ADD COLUMN c int NOT NULL DEFAULT 7"
        altering.append(threading.Thread(target=mysql_database.execute, args=(statement,)))
        altering[0].start()
        altering[0].join()

    between(alter)
    with pytest.raises(SourceUnavailable, match="its columns changed between two parts of a chunk"):
        capture.read(planned, None, 40)
    read = capture.read(planned, None, 40)
    assert {row["c"] for row in seen(read)} == {7}
    assert len(seen(read)) == 40


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[bool], None]]:
    """Have the first part fail (True), or the second one (False), once."""
    read = Ordered.read
    left: list[bool] = []

    def watched(table: Ordered, part: KeyRange) -> Any:
        if left and left[0] == (part.after is None):
            left.pop()
            raise pymysql.err.OperationalError(1317, "Query execution was interrupted")
        return read(table, part)

    monkeypatch.setattr(Ordered, "read", watched)
    yield left.append
    assert not left


@pytest.mark.parametrize("is_first", [True, False])
def test_failed_part_fails_the_chunk_and_leaks_nothing(
    mysql_database: MySQLDatabase,
    capture: MySQLCapture,
    failing: Callable[[bool], None],
    is_first: bool,
) -> None:
    """W25: a chunk is whole or is read again, and a connection that a part used is free or closed."""
    make_table(mysql_database)
    capture.prepare()
    planned = capture.plan("t")
    chunks: Any = capture.chunks
    failing(is_first)
    with pytest.raises(SourceUnavailable, match=r"reading .*\.t"):
        capture.read(planned, None, 40)
    assert {id(c) for c in chunks._pool._connector._open} == {id(c) for c in chunks._pool._idle}
    assert [row["id"] for row in seen(capture.read(planned, None, 40))] == list(range(2, 82, 2))
    # The second part takes the first one's connection where it begins after that has ended.
    assert len(chunks._pool._idle) in (1, 2)
    assert {id(c) for c in chunks._pool._connector._open} == {id(c) for c in chunks._pool._idle}
