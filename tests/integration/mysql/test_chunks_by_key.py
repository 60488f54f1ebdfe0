"""Existing rows by key: every row once, whatever the key's columns, compared by the server alone."""

from __future__ import annotations

import threading
import time
from typing import Any

import pyarrow as pa
import pymysql
import pytest
from tests.servers.mysql import MySQLDatabase, MySQLServer
from tests.support.mysql.controlled_source import MakeMySQLCapture, MySQLCapture
from tests.support.postgres.controlled_source import rows_of

from cdcflow.capture.interleave.messages import ChunkRead
from cdcflow.errors import ConfigurationError
from cdcflow.model.change import KeySet, Run
from cdcflow.sources.mysql import fetch

pytestmark = pytest.mark.mysql


@pytest.fixture(autouse=True)
def any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks as small as these tests ask for."""
    monkeypatch.setattr("cdcflow.sources.engine.key_chunks.ROWS_MIN", 1)
    monkeypatch.setattr("cdcflow.sources.engine.key_chunks.PART_ROWS_MIN", 1)


KEYS: dict[str, tuple[str, list[Any]]] = {
    "an unsigned number beyond 2^63": ("k bigint unsigned", [0, 1, 2**63 - 1, 2**63, 2**63 + 1, 2**64 - 1]),
    "a negative number": ("k int", [-(2**31), -5, 0, 7, 2**31 - 1]),
    "text without case": ("k varchar(30) COLLATE utf8mb4_general_ci", ["a", "B", "c", "D", "ä2", "z", "Z1", "é", ""]),
    "text in the order of its bytes": ("k varchar(30) COLLATE utf8mb4_bin", ["a", "A", "b", "B", "ä", "Ä", " ", "😀"]),
    "text in another character set": (
        "k varchar(20) CHARACTER SET latin1 COLLATE latin1_danish_ci",
        ["ä", "z", "ö", "é", "a", "ÿ", "x'y"],
    ),
    "text of two bytes a letter": (
        "k varchar(20) CHARACTER SET utf16 COLLATE utf16_bin",
        ["ä", "z", "ö", "日本", "a", "ÿ"],
    ),
    "text with spaces at the end": ("k char(9)", ["a", "b", "ab", "a b"]),
    "bytes": ("k varbinary(9)", [b"", b"\\", b"'", b"\0", b"\0\0", b"\xff", b"a\xff"]),
    "bytes of one length": ("k binary(4)", [b"\0\0\0\0", b"\0\0\0\1", b"abcd", b"\xff\0\xff\0"]),
    "an enumeration": ("k enum('z','b','ä','A''x','m') ", ["z", "b", "ä", "A'x", "m"]),
    "a set": ("k set('z','b','a')", ["", "z", "b", "z,b", "a", "z,b,a"]),
    "a decimal": (
        "k decimal(40,10)",
        ["-99999999999999999999.9999999999", "-0.1", "0", "0.1", "123456789012345678901"],
    ),
    "a double": ("k double", [-1.5e300, -0.1, 0.0, 0.1, 1.1, 1e-300, 2**53 + 2.0]),
    "a float": ("k float", [-1.1, 0.1, 1.1, 1.2, 3.4e38, 1e-30]),
    "a date": ("k date", ["1000-01-01", "1999-12-31", "2024-02-29", "9999-12-31"]),
    "a moment": ("k datetime(6)", ["1000-01-01 00:00:00.000001", "2024-01-01 00:00:00", "2024-01-01 00:00:00.5"]),
    "a timestamp": ("k timestamp(3)", ["1971-01-01 00:00:00.001", "2024-01-01 00:00:00", "2037-01-01 00:00:00.5"]),
    "a date in no calendar": ("k date", ["0000-00-00", "0000-01-01", "2024-00-10", "2024-02-31", "2024-03-01"]),
    "a timestamp in no calendar": (
        "k datetime(3)",
        ["0000-00-00 00:00:00", "0000-00-01 00:00:01.5", "2024-04-00 23:00:00", "2024-04-31 00:00:00.001"],
    ),
    "no timestamp": ("k timestamp", ["0000-00-00 00:00:00", "1971-01-01 00:00:00"]),
    "a time": ("k time(6)", ["-838:59:59", "-00:00:00.5", "00:00:00", "00:00:00.000001", "838:59:59"]),
    "a year": ("k year", [1901, 2000, 2024, 2155, 0]),
    "bits": ("k bit(33)", [0, 1, 2**33 - 1, 2**32, 65535]),
}


NO_DATES = ("a date in no calendar", "a timestamp in no calendar", "no timestamp")
"""What the servers store as dates anyway, in sessions that allow it."""


@pytest.mark.spread(23)
@pytest.mark.parametrize("kind", KEYS)
@pytest.mark.parametrize("size", [1, 2, 1000])
def test_every_row_comes_once_whatever_its_key_is(
    mysql_database: MySQLDatabase, make_capture: MakeMySQLCapture, kind: str, size: int
) -> None:
    """W16, W17, W19, W21: a client that compares keys itself, or rounds them, skips rows or never stops reading."""
    column, values = KEYS[kind]
    mysql_database.execute(f"CREATE TABLE t ({column} NOT NULL PRIMARY KEY, n int NOT NULL)")
    fill(mysql_database, values)
    capture = make_capture(mysql_database, zero_dates="text" if kind in NO_DATES else "stop")
    capture.prepare()
    reads = capture.all_reads("t", size)
    numbers = [
        row["n"] for read in reads if isinstance(read.run, Run) for b in read.run.batches for row in b.rows.to_pylist()
    ]
    assert sorted(numbers) == list(range(len(values)))
    in_order = [row[0] for row in mysql_database.execute("SELECT n FROM t ORDER BY k")]
    assert numbers == in_order
    assert reads[-1].units_done == len(values)


@pytest.mark.parametrize("size", [1, 1000])
def test_every_row_comes_once_by_years_of_two_digits(
    mysql_database: MySQLDatabase, make_capture: MakeMySQLCapture, size: int
) -> None:
    """MariaDB orders by the whole year, which it does not show. MySQL has no such type any longer."""
    if mysql_database.server.flavor == "mysql":
        with pytest.raises(pymysql.Error, match="YEAR"):
            mysql_database.execute("CREATE TABLE t (k year(2) PRIMARY KEY)")
        return
    years = [1900, 1901, 1969, 1970, 2000, 2001, 2069, 2155]
    mysql_database.execute("CREATE TABLE t (k year(2) NOT NULL PRIMARY KEY, n int NOT NULL)")
    fill(mysql_database, years)
    capture = make_capture(mysql_database)
    capture.prepare()
    reads = capture.all_reads("t", size)
    rows = [row for read in reads if isinstance(read.run, Run) for b in read.run.batches for row in b.rows.to_pylist()]
    assert [(row["k"], row["n"]) for row in rows] == [(y if y > 1900 else 0, n) for n, y in enumerate(years)]


def keys_in_the_log(capture: MySQLCapture, *names: str) -> KeySet:
    """The keys of the rows of `t`, of these columns, in the log's types."""
    rows, schema = capture.rows("t"), capture.shape("t").row_schema
    found = {name: [row[name] for row in rows] for name in names}
    return KeySet(pa.table(found, pa.schema([schema.field(name) for name in names])))


@pytest.mark.spread(15)
@pytest.mark.parametrize("kind", KEYS)
def test_rows_are_found_again_by_the_keys_that_the_log_has(
    mysql_database: MySQLDatabase, make_capture: MakeMySQLCapture, kind: str
) -> None:
    """W11: a row that moved is read by its key, which went through the log's types on the way."""
    column, values = KEYS[kind]
    mysql_database.execute(f"CREATE TABLE t ({column} NOT NULL PRIMARY KEY, n int NOT NULL)")
    fill(mysql_database, values)
    capture = make_capture(mysql_database, zero_dates="text" if kind in NO_DATES else "stop")
    capture.prepare()
    planned = capture.plan("t")
    read = capture.read(planned, kind="keys", keys=keys_in_the_log(capture, "k"))
    assert isinstance(read.run, Run)
    assert sorted(row["n"] for row in rows_of(read.run)) == list(range(len(values)))


@pytest.mark.spread(15)
@pytest.mark.parametrize("kind", KEYS)
def test_repair_deletes_the_keys_that_have_no_row_and_no_others(
    mysql_database: MySQLDatabase, make_capture: MakeMySQLCapture, kind: str
) -> None:
    """The keys went through the log's types on the way, and are compared there, value for value."""
    column, values = KEYS[kind]
    mysql_database.execute(f"CREATE TABLE t ({column} NOT NULL PRIMARY KEY, n int NOT NULL)")
    fill(mysql_database, values)
    capture = make_capture(mysql_database, zero_dates="text" if kind in NO_DATES else "stop")
    capture.prepare()
    planned = capture.plan("t")
    rows, keys = capture.rows("t"), keys_in_the_log(capture, "k")
    mysql_database.execute("DELETE FROM t WHERE n % 2 = 1")
    read = capture.read(planned, kind="keys", keys=keys, repairs=True)
    assert isinstance(read.run, Run)
    found = rows_of(read.run)
    count = len(values) // 2
    assert [row["_op"] for row in found] == ["d"] * count + ["r"] * (len(values) - count)
    assert sorted(str(row["k"]) for row in found[:count]) == sorted(str(row["k"]) for row in rows if row["n"] % 2)
    assert sorted(row["n"] for row in found[count:]) == [n for n in range(len(values)) if n % 2 == 0]
    assert read.deleted == count


@pytest.mark.spread(15)
@pytest.mark.parametrize("kind", KEYS)
def test_repair_finds_rows_by_keys_of_two_columns(
    mysql_database: MySQLDatabase, make_capture: MakeMySQLCapture, kind: str
) -> None:
    """MariaDB converts single values, but none in a list of rows: texts in latin1 were not found, and deleted."""
    column, values = KEYS[kind]
    mysql_database.execute(f"CREATE TABLE t ({column} NOT NULL, n int NOT NULL, PRIMARY KEY (k, n))")
    fill(mysql_database, values)
    capture = make_capture(mysql_database, zero_dates="text" if kind in NO_DATES else "stop")
    capture.prepare()
    planned = capture.plan("t")
    keys = keys_in_the_log(capture, "k", "n")
    mysql_database.execute("DELETE FROM t WHERE n % 2 = 1")
    read = capture.read(planned, kind="keys", keys=keys, repairs=True)
    assert isinstance(read.run, Run)
    found = sorted((row["_op"], row["n"]) for row in rows_of(read.run))
    assert found == sorted(("d" if n % 2 else "r", n) for n in range(len(values)))


def test_repair_deletes_the_requested_key_and_reads_the_current_row(
    mysql_database: MySQLDatabase, capture: MySQLCapture
) -> None:
    """For the server 'A' and 'Ä' are 'a', and 'b ' is 'b'; downstream they are two rows, and one of them must go."""
    mysql_database.execute(
        "CREATE TABLE t (k varchar(9) COLLATE utf8mb4_general_ci, n int, PRIMARY KEY (k, n))",
        "INSERT INTO t VALUES ('a', 1), ('b', 1)",
    )
    capture.prepare()
    asked = [("A", 1), ("b ", 1), ("b", 1), ("Ä", 1), ("c", 1), ("a", 2)]
    keys = pa.table({"k": [k for k, _ in asked], "n": pa.array([n for _, n in asked], pa.int32())})
    read = capture.read(capture.plan("t"), kind="keys", keys=KeySet(keys), repairs=True)
    assert isinstance(read.run, Run)
    found = [(row["_op"], row["k"], row["n"]) for row in rows_of(read.run)]
    gone = [("A", 1), ("Ä", 1), ("a", 2), ("b ", 1), ("c", 1)]
    assert sorted(found[:5]) == sorted(("d", k, n) for k, n in gone)
    assert set(found[5:]) == {("r", "a", 1), ("r", "b", 1)}


def fill(database: MySQLDatabase, values: list[Any]) -> None:
    with database.session() as connection, connection.cursor() as cursor:
        cursor.execute("SET sql_mode = 'ALLOW_INVALID_DATES'")
        for n, value in enumerate(values):
            cursor.execute("INSERT INTO t (k, n) VALUES (%s, %s)", (value, n))


@pytest.mark.parametrize("size", [1, 3, 7, 1000])
def test_key_of_several_columns_is_followed_in_its_own_order(
    mysql_database: MySQLDatabase, capture: MySQLCapture, size: int
) -> None:
    """W22: the order of the key's columns is the index's, not the table's, and each has its own comparison."""
    mysql_database.execute(
        "CREATE TABLE t (c int unsigned NOT NULL, a varchar(5) COLLATE utf8mb4_general_ci NOT NULL, b date NOT NULL, "
        "PRIMARY KEY (a, b, c))",
        "INSERT INTO t SELECT c.n, a.n, b.n FROM (SELECT 1 n UNION SELECT 4000000000) c, "
        "(SELECT 'x' n UNION SELECT 'Y' UNION SELECT 'ä') a, "
        "(SELECT '2024-01-01' n UNION SELECT '1999-12-31' UNION SELECT '2024-06-01') b",
    )
    capture.prepare()
    rows = [(r["a"], str(r["b"]), r["c"]) for r in capture.rows("t", size)]
    assert rows == [(a, str(b), c) for a, b, c in mysql_database.execute("SELECT a, b, c FROM t ORDER BY a, b, c")]
    assert len(rows) == 18


def test_rows_inserted_after_the_plan_are_left_to_the_log(mysql_database: MySQLDatabase, capture: MySQLCapture) -> None:
    """W28: otherwise the backfill of a table that grows at its end would never finish."""
    mysql_database.execute("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1), (2), (3)")
    capture.prepare()
    planned = capture.plan("t")
    mysql_database.execute("INSERT INTO t VALUES (4), (5)")
    read = capture.read(planned, None, 2)
    last = capture.read(planned, read.reached, 2)
    assert [read.exhausted, last.exhausted] == [False, True]
    assert [r.run.rows for r in (read, last) if isinstance(r.run, Run)] == [2, 1]


def test_empty_table_is_read_at_once(mysql_database: MySQLDatabase, capture: MySQLCapture) -> None:
    """Many tables are empty; each must end."""
    mysql_database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    capture.prepare()
    assert capture.rows("t") == []


def test_names_are_quoted_whatever_they_contain(mysql_database: MySQLDatabase, capture: MySQLCapture) -> None:
    """S01: a table's name ends up in many statements."""
    mysql_database.execute(
        "CREATE TABLE `x``; DROP TABLE kept; --` (`k``ey'\"` int PRIMARY KEY, `%s` int, `ä ö` int)",
        "INSERT INTO `x``; DROP TABLE kept; --` VALUES (1, 2, 3), (2, 3, 4)",
        "CREATE TABLE kept (id int PRIMARY KEY)",
    )
    capture.prepare()
    name = "x`; DROP TABLE kept; --"
    assert [list(r.values())[:3] for r in capture.rows(name, 1)] == [[1, 2, 3], [2, 3, 4]]
    mysql_database.execute("INSERT INTO `x``; DROP TABLE kept; --` VALUES (3, 4, 5)")
    assert [list(r.values())[:3] for r in capture.changes(name)] == [[3, 4, 5]]
    assert capture.rows("kept") == []


def test_unique_key_without_nulls_serves_where_there_is_no_primary_key(
    mysql_database: MySQLDatabase, capture: MySQLCapture
) -> None:
    """W22: the key is the same for chunks and for changes."""
    mysql_database.execute(
        "CREATE TABLE t (a int, b int NOT NULL, c varchar(9) NOT NULL, "
        "UNIQUE wide (b, c), UNIQUE nulls (a), UNIQUE k (c))",
        "INSERT INTO t VALUES (NULL, 1, 'x'), (NULL, 1, 'y')",
    )
    capture.prepare()
    assert capture.shape("t").key == ("b", "c")
    assert [r["c"] for r in capture.rows("t", 1)] == ["x", "y"]
    mysql_database.execute("UPDATE t SET a = 2 WHERE c = 'x'")
    batches = capture.batches()
    assert [b.table for b in batches] == [capture.shape("t")]
    assert batches[0].rows.to_pylist()[0]["a"] == 2


def test_table_without_a_key_is_refused_with_an_error_that_names_it(
    mysql_database: MySQLDatabase, capture: MySQLCapture
) -> None:
    """P08: indistinguishable rows cannot be merged by key, and users must learn that at once."""
    mysql_database.execute("CREATE TABLE loose (a int, b int, UNIQUE (a))")
    with pytest.raises(ConfigurationError, match=r"loose has no primary key(.|\n)*ADD PRIMARY KEY"):
        capture.prepare()


def test_table_without_a_key_is_read_whole_exactly_between_two_transactions(
    mysql_database: MySQLDatabase, make_capture: MakeMySQLCapture
) -> None:
    """P08, G18: the rows that a snapshot saw and the inserts that it did not see are together all rows, none twice."""
    capture = make_capture(mysql_database, tables_without_key="whole")
    mysql_database.execute("CREATE TABLE loose (a int)")
    capture.prepare()
    planned = capture.plan("loose")
    stop = threading.Event()

    def write() -> None:
        with mysql_database.session() as connection, connection.cursor() as cursor:
            while not stop.is_set():
                cursor.execute("INSERT INTO loose VALUES (1)")

    writers = [threading.Thread(target=write) for _ in range(2)]
    for writer in writers:
        writer.start()
    reads = [capture.read(planned, kind="whole") for _ in range(15)]
    stop.set()
    for writer in writers:
        writer.join()
    total = mysql_database.execute("SELECT count(*) FROM loose")[0][0]
    xids = [xid for event in capture.events() if isinstance(run := getattr(event, "run", None), Run) for xid in run.xid]
    assert len(xids) == total
    for read in reads:
        assert isinstance(read.run, Run)
        hidden = read.visibilities[0].hidden(pa.array(xids, pa.uint64()).to_numpy())
        assert read.run.rows - 1 + len(hidden) == total


def test_table_without_a_key_that_does_not_fit_in_memory_is_refused_with_an_error_that_names_it(
    mysql_database: MySQLDatabase, make_capture: MakeMySQLCapture
) -> None:
    """O11: in place of a daemon that the system ends, again and again, for the memory that it takes."""
    capture = make_capture(mysql_database, tables_without_key="whole", backfill={"whole_bytes_max": 1 << 20})
    mysql_database.execute("CREATE TABLE loose (a longblob)", "INSERT INTO loose VALUES (REPEAT('x', 900000))")
    capture.prepare()
    planned = capture.plan("loose")
    run = capture.read(planned, kind="whole").run
    assert isinstance(run, Run)
    assert run.rows == 2
    mysql_database.execute("INSERT INTO loose VALUES (REPEAT('x', 3000000)), (REPEAT('y', 3000000))")
    with pytest.raises(ConfigurationError, match=r"loose.* no key") as caught:
        capture.read(planned, kind="whole")
    assert caught.value.remedy is not None
    mysql_database.execute("ALTER TABLE loose ADD COLUMN id int AUTO_INCREMENT PRIMARY KEY")
    assert len(capture.rows("loose")) == 3


def test_chunk_of_large_rows_ends_early(
    mysql_database: MySQLDatabase, capture: MySQLCapture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """O11, P69: twenty thousand rows of a megabyte each would not fit into memory."""
    monkeypatch.setattr("cdcflow.sources.engine.key_chunks.CHUNK_BYTES_MAX", 1 << 20)
    mysql_database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v longblob, w longblob)",
        "INSERT INTO t SELECT n, REPEAT('x', 300000), NULL FROM (SELECT 1 n UNION SELECT 2 UNION SELECT 3 "
        "UNION SELECT 4 UNION SELECT 5 UNION SELECT 6 UNION SELECT 7 UNION SELECT 8 UNION SELECT 9) AS numbers",
        "INSERT INTO t SELECT n, REPEAT('y', 9000000), REPEAT('z', 9000000) FROM (SELECT 20 n UNION SELECT 21) AS n",
    )
    capture.prepare()
    reads = capture.all_reads("t", 1000)
    rows = [r for read in reads if isinstance(read.run, Run) for r in rows_of(read.run)]
    assert [r["id"] for r in rows] == [1, 2, 3, 4, 5, 6, 7, 8, 9, 20, 21]
    assert [len(r["v"] + r["w"]) for r in rows[-2:]] == [18_000_000] * 2
    assert len(reads) >= 4
    within_bound(reads)


def within_bound(reads: list[ChunkRead]) -> None:
    """Beyond the bound of 1 MiB a chunk holds, for each of two parts, a row and the bytes received with it."""
    for run in runs_of(reads):
        largest = max((len(r["v"]) + len(r.get("w") or b"") for r in rows_of(run)), default=0)
        assert run.bytes < 3 * (1 << 20) + 2 * largest


def runs_of(reads: list[ChunkRead]) -> list[Run]:
    return [read.run for read in reads if isinstance(read.run, Run)]


def test_chunk_of_large_rows_by_key_ends_early_and_leaves_the_rest(
    mysql_database: MySQLDatabase, capture: MySQLCapture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """O11: ten thousand keys of rows of a megabyte would not fit into memory; the chunk reports what was not read."""
    numbers = " UNION ".join(f"SELECT {n} n" for n in range(1, 41))
    mysql_database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v longblob)",
        # Small ones first, so that the size of the first rows does not predict that of the following ones.
        f"INSERT INTO t SELECT n, REPEAT('x', IF(n > 20, 300000, 10)) FROM ({numbers}) AS numbers",
        "INSERT INTO t VALUES (50, REPEAT('y', 9000000))",
    )
    capture.prepare()
    planned = capture.plan("t")
    monkeypatch.setattr(capture.chunks, "_keys_bytes_max", 1 << 20)
    left: KeySet | None = KeySet(pa.table({"id": pa.array([*range(1, 41), 50, 77], pa.int32())}))
    reads: list[ChunkRead] = []
    while left is not None:
        assert len(reads) < 50, "the keys do not end"
        reads.append(capture.read(planned, kind="keys", keys=left, repairs=True))
        left = reads[-1].keys_left
    found = [(r["_op"], r["id"]) for run in runs_of(reads) for r in rows_of(run)]
    assert sorted(key for op, key in found if op == "r") == [*range(1, 41), 50]
    assert [key for op, key in found if op == "d"] == [77], "a key that was left for another chunk is not gone"
    # A single row is returned whatever its size; a read that is not known to fit is aborted.
    assert all(run.bytes < (2 << 20) or run.rows <= 1 for run in runs_of(reads))


def test_rows_by_key_that_arrive_all_at_once_are_bounded_as_well(
    mysql_database: MySQLDatabase, capture: MySQLCapture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An answer whose end arrived with its rows was taken, however large it was."""
    read = fetch._ResultPackets._read

    def read_late(self: fetch._ResultPackets, size: int) -> bytes:
        time.sleep(0.05)
        return read(self, size)

    mysql_database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v longblob)",
        "INSERT INTO t VALUES (1, REPEAT('x', 300000)), (2, REPEAT('x', 300000)), (3, REPEAT('y', 3000000))",
    )
    capture.prepare()
    planned = capture.plan("t")
    monkeypatch.setattr(capture.chunks, "_keys_bytes_max", 1 << 20)
    monkeypatch.setattr(fetch._ResultPackets, "_read", read_late)
    first = capture.read(planned, kind="keys", keys=KeySet(pa.table({"id": pa.array([1, 2, 3], pa.int32())})))
    assert [r["id"] for run in runs_of([first]) for r in rows_of(run)] == [1]
    assert first.keys_left is not None
    assert len(first.keys_left) == 2


def test_first_rows_by_key_are_bounded_too(
    mysql_database: MySQLDatabase, capture: MySQLCapture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sixteen rows of eight megabytes were taken together before anything was known of their size."""
    numbers = " UNION ".join(f"SELECT {n} n" for n in range(1, 17))
    mysql_database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v longblob)",
        f"INSERT INTO t SELECT n, REPEAT('x', 1000000) FROM ({numbers}) AS numbers",
    )
    capture.prepare()
    planned = capture.plan("t")
    monkeypatch.setattr(capture.chunks, "_keys_bytes_max", 4 << 20)
    read = capture.read(planned, kind="keys", keys=KeySet(pa.table({"id": pa.array(range(1, 17), pa.int32())})))
    assert isinstance(read.run, Run)
    assert 1 <= read.run.rows <= 5
    assert read.keys_left is not None
    assert len(read.keys_left) == 16 - read.run.rows


@pytest.mark.spread(1)
def test_statements_with_long_keys_are_as_short_as_the_server_requires(
    own_mysql: MySQLServer, make_capture: MakeMySQLCapture
) -> None:
    """A server refuses statements above `max_allowed_packet`: such rows would never be read, and their table never be
    done."""
    own_mysql.execute("SET GLOBAL max_allowed_packet = 1048576")
    database = own_mysql.create_database("long_keys")
    keys = [f"{'k' * 690}{n}" for n in range(1500)]
    database.execute(
        "CREATE TABLE t (k varchar(700) PRIMARY KEY)", f"INSERT INTO t VALUES ('{keys[0]}'), ('{keys[-1]}')"
    )
    capture = make_capture(database)
    capture.prepare()
    read = capture.read(capture.plan("t"), kind="keys", keys=KeySet(pa.table({"k": keys})))
    assert isinstance(read.run, Run)
    assert sorted(row["k"] for row in rows_of(read.run)) == sorted((keys[0], keys[-1]))
    assert read.keys_left is None


def test_changed_shape_is_read_in_its_new_form(mysql_database: MySQLDatabase, capture: MySQLCapture) -> None:
    """W15, M34: a column that comes between two chunks is in the later one, and the cursor still holds."""
    mysql_database.execute("CREATE TABLE t (id int PRIMARY KEY, a int)", "INSERT INTO t VALUES (1, 1), (2, 2), (3, 3)")
    capture.prepare()
    planned = capture.plan("t")
    read = capture.read(planned, None, 1)
    assert read.shape == capture.shape("t")
    mysql_database.execute("ALTER TABLE t ADD COLUMN b int NOT NULL DEFAULT 7 FIRST")
    later = capture.read(planned, read.reached, 10)
    assert isinstance(later.run, Run)
    assert [(r["b"], r["id"], r["a"]) for r in rows_of(later.run)] == [(7, 2, 2), (7, 3, 3)]
    assert later.shape == capture.shape("t") != read.shape


def test_changed_key_starts_the_table_from_scratch(mysql_database: MySQLDatabase, capture: MySQLCapture) -> None:
    """W27: a cursor made for another key means nothing."""
    mysql_database.execute("CREATE TABLE t (id int PRIMARY KEY, a int NOT NULL)", "INSERT INTO t VALUES (1, 3), (2, 2)")
    capture.prepare()
    planned = capture.plan("t")
    read = capture.read(planned, None, 1)
    mysql_database.execute("ALTER TABLE t DROP PRIMARY KEY, ADD PRIMARY KEY (a)")
    assert capture.read(planned, read.reached, 1).rewritten
    mysql_database.execute("RENAME TABLE t TO u")
    assert capture.read(planned, read.reached, 1).rewritten


def test_invisible_and_generated_columns_are_columns(mysql_database: MySQLDatabase, capture: MySQLCapture) -> None:
    """M49: SELECT * leaves them out, and the log has them."""
    mysql_database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, a int INVISIBLE, v int GENERATED ALWAYS AS (id + 1) VIRTUAL, "
        "s int GENERATED ALWAYS AS (id * 2) STORED)",
        "INSERT INTO t (id, a) VALUES (1, 5)",
    )
    capture.prepare()
    mysql_database.execute("INSERT INTO t (id, a) VALUES (2, 6)")
    seen = [*capture.rows("t"), *capture.changes("t")]
    assert [(r["id"], r["a"], r["v"], r["s"]) for r in seen] == [(1, 5, 2, 2), (2, 6, 3, 4), (2, 6, 3, 4)]


@pytest.mark.parametrize(("size", "rows_max", "expected"), [(1, None, 1000), (1, 300, 300), (2000, 300, 300)])
def test_chunk_has_no_more_rows_than_the_limit_that_it_brings(
    mysql_database: MySQLDatabase,
    make_capture: MakeMySQLCapture,
    monkeypatch: pytest.MonkeyPatch,
    size: int,
    rows_max: int | None,
    expected: int,
) -> None:
    """A small chunk used the limit of the settings that the capture began with, also after it was lowered."""
    monkeypatch.setattr("cdcflow.sources.engine.key_chunks.ROWS_MIN", 1000)
    mysql_database.execute("CREATE TABLE t (k int PRIMARY KEY)")
    mysql_database.execute("INSERT INTO t VALUES " + ", ".join(f"({n})" for n in range(1500)))
    capture = make_capture(mysql_database)
    capture.prepare()
    read = capture.read(capture.plan("t"), size=size, rows_max=rows_max)
    assert isinstance(read.run, Run)
    assert read.run.rows == expected
