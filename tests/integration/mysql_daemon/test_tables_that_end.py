"""Tables that are dropped, renamed or recreated while the daemon does not run, or while its stream lags."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

import pytest
from tests.servers.mysql import MySQLDatabase
from tests.support.daemon.mysql_bank import MySQLBank

from cdcflow import wiring
from cdcflow.capture.attempt import LoopIntervals
from cdcflow.config import load
from cdcflow.log.read.log_reader import LogReader
from cdcflow.model.table import TableId
from cdcflow.sources.mysql.stream import BinlogStream
from cdcflow.testing.folded import fold_log

pytestmark = [pytest.mark.mysql, pytest.mark.spread(1)]

LATE = 100
"""The row that is written just before a table ends."""

FORMS: Mapping[str, Sequence[str]] = {
    "dropped": ["DROP TABLE dropped"],
    "several": ["DROP TABLE several, several_more"],
    "if_there": ["DROP TABLE IF EXISTS if_there, never_there"],
    "moved": ["RENAME TABLE moved TO {other}.moved"],
    "altered": ["ALTER TABLE altered RENAME TO {other}.altered"],
    "renamed": ["RENAME TABLE renamed TO renamed_new", "UPDATE renamed_new SET v = 'later' WHERE id = 1"],
    "swapped": ["RENAME TABLE swapped TO x, swapped_too TO swapped, x TO swapped_too"],
    "aside": ["RENAME TABLE aside TO {other}.aside, aside_new TO aside", "INSERT INTO aside VALUES (7, 'later')"],
    "recreated": ["DROP TABLE recreated", "CREATE TABLE recreated (id int PRIMARY KEY, v text)"],
    "reshaped": ["DROP TABLE reshaped", "CREATE TABLE reshaped (w bigint, k varchar(9) PRIMARY KEY)"],
    "rekeyed": ["DROP TABLE rekeyed", "CREATE TABLE rekeyed (id int, v varchar(9) NOT NULL UNIQUE)"],
    "back": ["RENAME TABLE back TO {other}.back", "RENAME TABLE {other}.back TO back"],
    "unique_only": ["DROP TABLE unique_only"],
    "part": ["ALTER TABLE parts EXCHANGE PARTITION p0 WITH TABLE part"],
    "altered_first": ["ALTER TABLE altered_first ADD w int DEFAULT 5", "DROP TABLE altered_first"],
}
OF_MARIADB: Mapping[str, Sequence[str]] = {
    "replaced": ["CREATE OR REPLACE TABLE replaced (id int PRIMARY KEY, v text)"],
    "identified": ["DROP TABLE identified"],
    "historic": ["ALTER TABLE historic ADD SYSTEM VERSIONING", "UPDATE historic SET v = 'old'", "DROP TABLE historic"],
}
COLUMNS: Mapping[str, str] = {
    "rekeyed": "id int NOT NULL UNIQUE, v varchar(9)",
    "unique_only": "id int NOT NULL UNIQUE, v varchar(9)",
    "identified": "id int PRIMARY KEY, v varchar(9), u uuid DEFAULT '12345678-1234-1234-1234-123456789abc'",
}
BESIDE = ("several_more", "swapped_too", "aside_new", "kept")


class Lives:
    """A database whose tables end, one that is dropped as a whole, and one that is not captured."""

    def __init__(self, bank: MySQLBank) -> None:
        self.bank, self.name = bank, bank.database.name
        self.forms = {**FORMS, **(OF_MARIADB if bank.database.server.flavor == "mariadb" else {})}
        bank.configure(tables=[f"{self.name}.*", f"{self.name}_gone.*"])
        tables = [*self.forms, *BESIDE]
        bank.tables = ()
        bank.database.execute(
            f"CREATE DATABASE {self.name}_other",
            f"CREATE DATABASE {self.name}_gone",
            *(f"CREATE TABLE {t} ({COLUMNS.get(t, 'id int PRIMARY KEY, v varchar(9)')})" for t in tables),
            "CREATE TABLE parts LIKE part",
            "ALTER TABLE parts PARTITION BY RANGE (id) (PARTITION p0 VALUES LESS THAN (1000))",
            *(f"CREATE TABLE {self.name}_gone.{t} (id int PRIMARY KEY, v varchar(9))" for t in "ab"),
            *(f"INSERT INTO {t} (id, v) VALUES (1, '{n}'), (2, 'b{n}')" for n, t in enumerate(tables)),
            *(f"INSERT INTO {self.name}_gone.{t} VALUES (1, 'a'), (2, 'b')" for t in "ab"),
        )

    def end(self) -> None:
        """A change of each table, and then its end."""
        statements = [f"INSERT INTO {t} (id, v) VALUES ({LATE}, 'late')" for t in (*self.forms, *BESIDE)]
        statements += [f"UPDATE {t} SET v = 'late2' WHERE id = 2" for t in self.forms]
        for form in self.forms.values():
            statements += [s.format(other=f"{self.name}_other") for s in form]
        gone = f"{self.name}_gone"
        statements += [f"INSERT INTO {gone}.a VALUES ({LATE}, 'late')", f"DROP DATABASE {gone}"]
        self.bank.database.execute(*statements, "INSERT INTO kept VALUES (3, 'last')")

    def check(self) -> None:
        """Every table is in the log what it is at the source, and each change came that was before its end."""
        reader = self.bank.reader
        report = reader.check(deep=True)
        assert report.is_whole, report.faults
        tables, late = fold_log(reader), written(reader)
        for schema, names in ((self.name, [*self.forms, *BESIDE, "renamed_new"]), (f"{self.name}_gone", ["a", "b"])):
            there = self.there(schema)
            for name in names:
                table = TableId(schema, name)
                source = self.bank.source_rows(name) if name in there else []
                logged = [tuple(row.values.values()) for row in tables.get(table, {}).values()]
                assert len(logged) == len(source), table
                if name in there:
                    assert self.bank.logged_rows(name, tables) == source, table
        ended = [TableId(self.name, t) for t in (*self.forms, *BESIDE)] + [TableId(f"{self.name}_gone", "a")]
        assert [t for t in ended if t not in late] == []

    def there(self, schema: str) -> set[str]:
        found = self.bank.database.execute(
            f"SELECT table_name FROM information_schema.tables WHERE table_schema = '{schema}'"
        )
        return {str(row[0]) for row in found}

    def drop(self) -> None:
        self.bank.database.execute(*(f"DROP DATABASE IF EXISTS {self.name}_{n}" for n in ("gone", "other")))


def written(reader: LogReader) -> set[TableId]:
    """The tables whose late row came as a change."""
    found: set[TableId] = set()
    for table, _, rows in reader.read_rows():
        if "id" in rows.column_names:
            pairs = zip(rows.column("_op").to_pylist(), rows.column("id").to_pylist(), strict=True)
            found |= {table.id} if ("c", LATE) in pairs else set()
    return found


@pytest.fixture
def lives(mysql_database: MySQLDatabase, tmp_path: Path) -> Iterator[Lives]:
    made = Lives(MySQLBank(mysql_database, tmp_path, create=False))
    yield made
    made.drop()


@contextlib.contextmanager
def held_back(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Streams that return nothing: they lag whatever happens inside."""
    free = threading.Event()
    poll = BinlogStream.poll
    monkeypatch.setattr(BinlogStream, "poll", lambda stream: poll(stream) if free.is_set() else ())
    yield
    free.set()


def upto(bank: MySQLBank) -> Callable[[], bool]:
    fence = bank.fence()
    return lambda: bank.has_reached(fence)


def test_tables_that_end_while_no_daemon_captures(lives: Lives) -> None:
    """M38, M39: what the catalog shows at the start is later than what the stream has still to tell."""
    bank = lives.bank
    with bank.capturing():
        bank.wait_until(upto(bank), "the backfill")
    lives.end()
    for _ in range(2):
        with bank.capturing():
            bank.wait_until(upto(bank), "the ends")
        lives.check()


def test_tables_that_end_while_the_stream_lags(lives: Lives, monkeypatch: pytest.MonkeyPatch) -> None:
    """The check of the tables sees that they are gone before the stream has their last changes, and so do the starts
    that follow from it.
    """
    monkeypatch.setattr(wiring.captures, "LoopIntervals", partial(LoopIntervals, tables_look_s=0.3))
    bank = lives.bank
    starts: list[int] = []

    def tell(event: str, fields: Mapping[str, object]) -> None:
        if event == "capture started":
            starts.append(int(str(fields["tables"])))

    with bank.capturing(on_event=tell):
        bank.wait_until(upto(bank), "the backfill")
        with held_back(monkeypatch):
            lives.end()
            bank.wait_until(lambda: len(set(starts)) > 1, "the check of the tables")
        bank.wait_until(upto(bank), "the ends")
    lives.check()
    with bank.capturing():
        bank.wait_until(upto(bank), "the next start")
    lives.check()


@pytest.mark.parametrize("names", [["t", "u"], ["*"]], ids=["by name", "by wildcard"])
def test_capture_whose_tables_are_all_gone_waits_for_others(
    mysql_database: MySQLDatabase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names: Sequence[str]
) -> None:
    """M39: a name that was captured is no mistake in the settings, and a database without tables gets new ones."""
    monkeypatch.setattr(wiring.captures, "LoopIntervals", partial(LoopIntervals, tables_look_s=0.3))
    bank = MySQLBank(mysql_database, tmp_path, create=False)
    bank.configure(tables=[f"{bank.schema}.{name}" for name in names])
    create = [f"CREATE TABLE {t} (id int PRIMARY KEY, v varchar(9))" for t in "tu"]
    mysql_database.execute(*create, *(f"INSERT INTO {t} VALUES (1, 'a')" for t in "tu"))
    bank.tables = ()
    with bank.capturing():
        bank.wait_until(upto(bank), "the backfill")
    mysql_database.execute(f"INSERT INTO t VALUES ({LATE}, 'late')", "DROP TABLE t, u")
    for _ in range(2):
        with bank.capturing():
            bank.wait_until(upto(bank), "the ends")
        assert not any(fold_log(bank.reader).values())
    assert written(bank.reader) == {TableId(bank.schema, "t")}
    bank.tables = ("t", "u")
    with bank.capturing():
        mysql_database.execute(*create, "INSERT INTO t VALUES (2, 'new')", "INSERT INTO u VALUES (3, 'new')")
        bank.wait_until(lambda: len(fold_log(bank.reader).get(TableId(bank.schema, "u"), {})) == 1, "the new tables")
        bank.wait_until(upto(bank), "the new tables")
    bank.assert_log_equals_source()


def test_key_that_is_added_while_no_daemon_captures(mysql_database: MySQLDatabase, tmp_path: Path) -> None:
    """As in phpMyAdmin's dumps: a table is created without a key, filled, and gets one. The rows between have none."""
    bank = MySQLBank(mysql_database, tmp_path, create=False)
    bank.configure(tables_without_key="whole")
    bank.tables = ("old", "older", "new", "newer")
    mysql_database.execute(
        "CREATE TABLE old (id int, v varchar(9))",
        "CREATE TABLE older (id int PRIMARY KEY, v varchar(9))",
        *(f"INSERT INTO {t} VALUES (1, 'a'), (2, 'b')" for t in ("old", "older")),
    )
    with bank.capturing():
        bank.wait_until(upto(bank), "the backfill")
    mysql_database.execute(
        "INSERT INTO old VALUES (3, 'c')",
        "UPDATE old SET v = 'd' WHERE id = 1",
        "ALTER TABLE old ADD PRIMARY KEY (id)",
        "ALTER TABLE older DROP PRIMARY KEY, MODIFY id int NULL",
        "INSERT INTO older VALUES (NULL, 'e'), (NULL, 'e')",
        "DELETE FROM older WHERE id IS NULL",
        "ALTER TABLE older ADD PRIMARY KEY (v)",
        "CREATE TABLE new (id int, v varchar(9))",
        "INSERT INTO new VALUES (1, 'x'), (2, 'y')",
        "ALTER TABLE new ADD PRIMARY KEY (id)",
        "CREATE TABLE newer (id int NOT NULL, v varchar(9))",
        "INSERT INTO newer VALUES (1, 'x'), (1, 'y')",
        "DELETE FROM newer WHERE v = 'x'",
        "ALTER TABLE newer ADD PRIMARY KEY (id), MODIFY id int NOT NULL AUTO_INCREMENT",
        *(f"UPDATE {t} SET v = concat(v, id) WHERE id = 1" for t in bank.tables),
    )
    for _ in range(2):
        with bank.capturing():
            bank.wait_until(upto(bank), "the keys")
        bank.assert_log_equals_source()


def test_new_table_that_the_settings_do_not_fit_is_skipped(mysql_database: MySQLDatabase, tmp_path: Path) -> None:
    """N15: `bad_text: replace` would map different text keys to one; the other tables are captured, and its remedy
    helps.
    """
    bank = MySQLBank(mysql_database, tmp_path, create=False)
    bank.configure(bad_text="replace")
    bank.tables, words = ("t",), TableId(bank.schema, "words")
    mysql_database.execute("CREATE TABLE t (id int PRIMARY KEY, v varchar(9))", "INSERT INTO t VALUES (1, 'a')")
    with bank.capturing():
        bank.wait_until(upto(bank), "the backfill")
    mysql_database.execute(
        "CREATE TABLE words (k varchar(9) PRIMARY KEY, v varchar(9))",
        "INSERT INTO words VALUES ('a', 'b')",
        "INSERT INTO t VALUES (2, 'b')",
    )
    with bank.capturing() as capture:
        bank.wait_until(upto(bank), "the other table")
        assert capture.status()["left_out"] == [str(words)]
    bank.assert_log_equals_source()
    [problem] = [f for f in wiring.doctor(load(bank.config_path)) if f.subject == str(words)]
    assert f"{{{words}.k: stop}}" in str(problem.remedy)
    bank.configure(bad_text="replace", columns={f"{words}.k": "stop"})
    bank.tables = ("t", "words")
    with bank.capturing():
        bank.wait_until(lambda: len(fold_log(bank.reader).get(words, {})) == 1, "the table that was skipped")
    bank.assert_log_equals_source()
