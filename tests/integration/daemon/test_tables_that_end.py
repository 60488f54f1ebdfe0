"""Tables that are dropped, renamed or moved away while the daemon runs, does not run, or has a lagging stream."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

import pytest
from tests.servers.postgres import Database
from tests.support.daemon.bank import Bank

from cdcflow import wiring
from cdcflow.capture.attempt import LoopIntervals
from cdcflow.capture.interleave.progress import Progress
from cdcflow.model.table import TableId
from cdcflow.sources.postgres.stream import PostgresStream
from cdcflow.testing.folded import fold_log

pytestmark = pytest.mark.postgres

LATE = 100
"""The row that is written just before a table ends."""

FORMS: Mapping[str, Sequence[str]] = {
    "dropped": ["DROP TABLE dropped"],
    "moved": ["ALTER TABLE moved SET SCHEMA aside"],
    "left_": ["ALTER TABLE left_ RENAME TO _left"],
    "renamed": ["ALTER TABLE renamed RENAME TO renamed_new"],
    "twice": ["ALTER TABLE twice RENAME TO twice_more", "ALTER TABLE twice_more RENAME TO twice_new"],
    "renamed_dropped": ["ALTER TABLE renamed_dropped RENAME TO gone_soon", "DROP TABLE gone_soon"],
    "swapped": [
        "ALTER TABLE swapped RENAME TO x",
        "ALTER TABLE swapped_too RENAME TO swapped",
        "ALTER TABLE x RENAME TO swapped_too",
    ],
    "recreated": ["DROP TABLE recreated", "CREATE TABLE recreated (id int PRIMARY KEY, v text)"],
    "reshaped": ["DROP TABLE reshaped", "CREATE TABLE reshaped (v bigint, id varchar(9) PRIMARY KEY)"],
    "whole": ["DROP TABLE whole"],
    "keyless": ["DROP TABLE keyless"],
    "holes": ["DROP TABLE holes"],
    "altered": [
        "ALTER TABLE altered ADD w int DEFAULT 5",
        "INSERT INTO altered VALUES (101, 'x')",
        "DROP TABLE altered",
    ],
    "emptied": ["TRUNCATE emptied", "INSERT INTO emptied VALUES (101, 'x')", "DROP TABLE emptied"],
    "parted": ["DROP TABLE parted"],
    "attached": ["ALTER TABLE root ATTACH PARTITION attached FOR VALUES FROM (0) TO (1000)"],
    "typed": ["DROP TABLE typed", "DROP TYPE mood", "DROP DOMAIN small"],
    "large": ["INSERT INTO large SELECT i, repeat('x', 400) FROM generate_series(1000, 3000) i", "DROP TABLE large"],
    "back": ["ALTER TABLE back SET SCHEMA aside", "ALTER TABLE aside.back SET SCHEMA public"],
}
"""How each of these tables ends."""

PARTS: Mapping[str, Sequence[str]] = {
    "part_dropped": ["DROP TABLE part_dropped_1"],
    "part_detached": ["ALTER TABLE part_detached DETACH PARTITION part_detached_1"],
}
PLAIN = "id int PRIMARY KEY, v text"
COLUMNS: Mapping[str, str] = {
    "whole": "x int, id int PRIMARY KEY, v text",
    "keyless": "id int, v text",
    "holes": "x int, id int PRIMARY KEY, y text, v text",
    "parted": "id int PRIMARY KEY, v text) PARTITION BY RANGE (id",
    "typed": "id int PRIMARY KEY, v text, m mood DEFAULT 'sad', ms mood[] DEFAULT '{ok}', s small DEFAULT 3",
}
NEW = ("moved", "left_", "renamed_new", "twice_new", "recreated")
"""Tables that get rows later, under their new names."""

SAME_SHAPE = ("dropped", "moved", "left_", "renamed", "whole", "keyless", "holes", "parted", "typed", "large")


class Ends:
    """A database whose tables end, a schema that is dropped as a whole, and one that is not captured."""

    def __init__(self, database: Database, folder: Path) -> None:
        self.bank = Bank(database, folder, create=False)
        self.bank.configure(tables=["public.*", "gone.*", "!public._*"])
        self.ending = [*FORMS, *PARTS, "swapped_too", "gone.a"]
        self.kept: dict[str, list[tuple[object, ...]]] = {}
        filled = [*self.ending, "kept"]
        self.execute(
            "CREATE SCHEMA aside",
            "CREATE SCHEMA gone",
            "CREATE TYPE gone.mood AS ENUM ('sad', 'ok')",
            "CREATE TYPE mood AS ENUM ('sad', 'ok')",
            "CREATE DOMAIN small AS int CHECK (value < 10)",
            *(f"CREATE TABLE {t} ({COLUMNS.get(t, PLAIN)})" for t in [*FORMS, "swapped_too", "kept"]),
            *(f"CREATE TABLE {t} ({PLAIN}) PARTITION BY RANGE (id)" for t in ("root", *PARTS)),
            *(f"CREATE TABLE {t}_1 PARTITION OF {t} DEFAULT" for t in ("parted", *PARTS)),
            f"CREATE TABLE gone.a ({PLAIN}, m gone.mood DEFAULT 'sad')",
            "ALTER TABLE holes DROP x, DROP y",
            "ALTER TABLE whole REPLICA IDENTITY FULL",
            "ALTER TABLE keyless REPLICA IDENTITY FULL",
            *(f"INSERT INTO {t} (id, v) VALUES (1, '{n}'), (2, 'b')" for n, t in enumerate(filled)),
        )

    def execute(self, *statements: str) -> None:
        with self.bank.database.connect(autocommit=True) as conn:
            for statement in statements:
                conn.execute(statement.encode())

    def end(self) -> None:
        """A change of each table, and then its end."""
        for table in self.ending:
            self.execute(
                f"INSERT INTO {table} (id, v) VALUES ({LATE}, 'late')", f"UPDATE {table} SET v = 'late2' WHERE id = 2"
            )
        for form, statements in {**FORMS, **PARTS, "gone.a": ["DROP SCHEMA gone CASCADE"]}.items():
            for statement in statements:
                now = self.rows(form)
                self.kept[form] = self.kept[form] if now is None else now
                self.execute(statement)

    def later(self) -> None:
        """Changes of tables under their new names."""
        names = {"moved": "aside.moved", "left_": "_left"}
        self.execute(*(f"INSERT INTO {names.get(t, t)} VALUES (200, 'later')" for t in NEW))
        self.execute("INSERT INTO kept VALUES (3, 'last')")

    def rows(self, table: str) -> list[tuple[object, ...]] | None:
        """A captured table's rows at the source; `None` if the table does not exist."""
        query = "SELECT FROM pg_class WHERE oid = to_regclass(%s) AND NOT relispartition"
        with self.bank.database.connect() as conn:
            if conn.execute(query, [table]).fetchone() is None:
                return None
            return sorted(conn.execute(f"SELECT id, v FROM {table}".encode()).fetchall(), key=repr)

    def check(self) -> None:
        """Every table is in the log what it is at the source, or what it was when it ended."""
        reader = self.bank.reader
        report = reader.check(deep=True)
        assert report.is_whole, report.faults
        tables, found, expected = fold_log(reader), {}, {}
        more = ["kept", "root", "renamed_new", "twice_new", "part_detached_1"]
        for name in (*self.ending, *more):
            logged = tables.get(self.id(name), {}).values()
            found[name] = sorted(((r.values.get("id"), r.values.get("v")) for r in logged), key=repr)
            now = self.rows(name)
            expected[name] = self.kept[name] if now is None else now
        assert found == expected
        assert {self.id(t) for t in ("aside.moved", "_left", "gone_soon", "x")}.isdisjoint(tables)
        shapes = reader.table_shapes()
        assert [t for t in SAME_SHAPE if len(shapes[self.id(t)]) != 1] == []

    @staticmethod
    def id(name: str) -> TableId:
        schema, _, table = name.rpartition(".")
        return TableId(schema or "public", table)

    @property
    def all_found(self) -> bool:
        """The check of the tables has found every old name missing."""
        found = Progress.from_json(self.bank.reader.newest_checkpoint().progress).tables
        return all(known.state == "forgotten" for table in (*SAME_SHAPE, "twice") for known in [found[self.id(table)]])


def wait(bank: Bank, what: str) -> None:
    fence = bank.fence()
    bank.wait_until(lambda: bank.has_reached(fence), what)


@pytest.fixture
def ends(database: Database, tmp_path: Path) -> Ends:
    return Ends(database, tmp_path)


@contextlib.contextmanager
def held_back(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Streams that return nothing: they lag whatever happens inside."""
    free = threading.Event()
    poll = PostgresStream.poll
    monkeypatch.setattr(PostgresStream, "poll", lambda stream: poll(stream) if free.is_set() else ())
    yield
    free.set()


@pytest.mark.spread(1)
@pytest.mark.parametrize("way", ["stopped", "behind", "running"])
def test_tables_that_end_keep_what_they_had(ends: Ends, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    """P61, O05: the catalog is later than the stream. Every change from before a table's end is in the log, and no
    later one under its old name.
    """
    monkeypatch.setattr(wiring.captures, "LoopIntervals", partial(LoopIntervals, tables_look_s=0.3))
    bank = ends.bank
    with bank.capturing():
        wait(bank, "the backfill")
        if way == "behind":
            with held_back(monkeypatch):
                ends.end()
                ends.later()
                bank.wait_until(lambda: ends.all_found, "the check of the tables")
        elif way == "running":
            ends.end()
            bank.wait_until(lambda: ends.all_found, "the check of the tables")
            ends.later()
        if way != "stopped":
            wait(bank, "the ends")
    if way == "stopped":
        ends.end()
        ends.later()
    for _ in range(2):
        with bank.capturing():
            wait(bank, "the ends")
        ends.check()


@pytest.mark.spread(1)
@pytest.mark.parametrize("names", [["t", "u"], ["*"]], ids=["by name", "by wildcard"])
@pytest.mark.parametrize("way", ["stopped", "running"])
def test_capture_whose_tables_are_all_gone_waits_for_others(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names: Sequence[str], way: str
) -> None:
    """A name that was captured is no mistake in the settings, and a database without tables gets new ones."""
    monkeypatch.setattr(wiring.captures, "LoopIntervals", partial(LoopIntervals, tables_look_s=0.3))
    bank = Bank(database, tmp_path, create=False)
    bank.configure(tables=[f"public.{name}" for name in names])
    create = "; ".join(f"CREATE TABLE {t} ({PLAIN})" for t in "tu")
    database.execute(f"{create}; INSERT INTO t VALUES (1, 'a'); INSERT INTO u VALUES (1, 'a')")
    last = "INSERT INTO t VALUES (2, 'late'); DROP TABLE t, u"
    with bank.capturing():
        wait(bank, "the backfill")
        if way == "running":
            database.execute(last)
            wait(bank, "the ends")
    if way == "stopped":
        database.execute(last)
    with bank.capturing():
        wait(bank, "the ends")
    rows = fold_log(bank.reader)
    assert [len(rows[TableId("public", t)]) for t in "tu"] == [2, 1]
    bank.tables = ("t", "u")
    with bank.capturing():
        database.execute(f"{create}; INSERT INTO t VALUES (7, 'new'); INSERT INTO u VALUES (8, 'new')")
        bank.wait_until(lambda: all(map(partial(is_new, bank), "tu")), "the new tables")
    bank.assert_log_equals_source()


def is_new(bank: Bank, table: str) -> bool:
    """The table that was created last is read."""
    rows = fold_log(bank.reader).get(TableId("public", table), {})
    return [row.values["v"] for row in rows.values()] == ["new"]
