"""The text of a statement in the character set of its client: the names that its bytes are, and those they may be."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

import pytest
from tests.support.mysql.binlog_bytes import Log, simple
from tests.support.mysql.binlog_decoder import Reader, TestTables, ids_of, one, reader, rows_of

from cdcflow.capture.interleave.messages import RowsFilled
from cdcflow.model.table import TableId
from cdcflow.sources.mysql.statement_text import other_texts, statement_text
from cdcflow.sources.mysql.status_variables import StatusVariables, status_variables
from cdcflow.sources.mysql.types.columns import ServerColumn

CP1251, KOI8R, GBK, SJIS, SWE7, BINARY, LATIN1, ASCII = 51, 7, 28, 13, 10, 63, 8, 11
NAME = "таблица"


def charset(client: int) -> bytes:
    """The status variable with a client's character set."""
    return struct.pack("<BHHH", 4, client, client, 255)


@dataclass
class NamedTables(TestTables):
    """Only these tables are captured; the catalog has all of them except those that are `gone`."""

    names: tuple[str, ...] = ()
    gone: tuple[str, ...] = ()

    def is_captured(self, table: TableId) -> bool:
        return table.schema == self.captured and table.name in self.names

    def now(self, table: TableId) -> Sequence[ServerColumn] | None:
        return None if table.name in self.gone else super().now(table)


def read(log: Log, *names: str, gone: tuple[str, ...] = (), schema: str = "shop") -> Reader:
    """A reader of a log, after one in which each of these tables had a row."""
    tables = NamedTables(captured=schema, names=names, gone=gone)
    before = Log()
    for name in names:
        one(before, 1, table=simple(name, schema))
    reader(before, tables=tables).feed(before.dump())
    found = reader(log, tables=tables)
    found.feed(log.dump())
    return found


def read_again(found: Reader) -> set[str]:
    return {e.table.name for e in found.events if isinstance(e, RowsFilled)}


def emptied(found: Reader) -> list[str]:
    return [str(r[0]) for r in rows_of(found) if r[1] == "t"]


# ── status variables ────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("first", [b"", b"\x83\x01\x2d\x00\x00\x09", b"\x03\x02\x00\x01\x00", b"\x02\x03std\x00"])
def test_charset_is_found_whatever_comes_before_it(first: bytes) -> None:
    """MariaDB 11.5 writes its collations (131) before it, so the numbers are not in order."""
    data = struct.pack("<BIBQ", 0, 0, 1, 4) + b"\x06\x03std" + first + charset(GBK) + b"\x11" + bytes(8)
    assert status_variables(data) == StatusVariables(4, GBK)


@pytest.mark.parametrize(
    ("variable", "is_done"),
    [
        (b"\x82\x02", False),  # START
        (b"\x82\x04" + bytes(8), True),  # COMMIT
        (b"\x82\x08" + bytes(8), False),  # ROLLBACK
        (b"\x82\x10", True),
        (b"\x05\x03UTC\x07\x01\x00\x08\x01\x00\x0b\x01a\x01b\x0c\x02a\0b\0\x80abc\x81" + bytes(8) + b"\x82\x02", False),
        (b"\x0c\xfe\x82\x02", False),  # too many schemas: the event names none
        (b"\x0c\x02a\0", True),  # cut off
        (b"\xf0\x82\x02", True),  # an unknown number ends what can be read
        (b"\x0b\x01a", True),
        (b"\x82", True),
    ],
)
def test_phase_of_an_alter_is_recognized(variable: bytes, is_done: bool) -> None:
    """MariaDB logs that an ALTER began, and how it ended."""
    found = status_variables(charset(LATIN1) + variable)
    assert (found.client, found.is_done) == (LATIN1, is_done)


@pytest.mark.parametrize(
    ("listed", "schemas"),
    [
        (b"\x02a\0\xd1\x84\0", ("a", "ф")),
        (b"\x01\0", None),  # a table that foreign keys reference was used
        (b"\x00", None),
        (b"\xfe", None),  # too many
        (b"\x02a\0", None),  # cut off
    ],
)
def test_schemas_that_a_statement_used_are_found(listed: bytes, schemas: tuple[str, ...] | None) -> None:
    """MySQL lists them; an incomplete list must not seem to be all of them."""
    assert status_variables(charset(LATIN1) + b"\x0c" + listed).schemas == schemas


# ── texts ───────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("raw", "client", "text"),
    [
        (NAME.encode("cp1251"), CP1251, NAME),
        (NAME.encode("koi8_r"), KOI8R, NAME),
        (b"`\x95\\\x83\\`", SJIS, "`表ソ`"),  # the second bytes are backslashes
        (b"'\xb1\x60' `t`", GBK, "'盽' `t`"),  # … and a backtick
        (b"`t{ble``` @x '\\'", SWE7, "`täbleé` @x '\\'"),
        (NAME.encode(), BINARY, NAME),
        (NAME.encode(), None, NAME),
        (NAME.encode(), 4000, NAME),  # the number of a later server's set
        (NAME.encode(), ASCII, NAME),  # made by the server: no ASCII, but UTF-8
    ],
)
def test_text_is_read_in_the_set_of_the_client(raw: bytes, client: int | None, text: str) -> None:
    """It is what the servers take it for: letters first, then quotes."""
    found = statement_text(raw, client)
    assert (found.text, found.is_readable) == (text, True)


def test_bytes_that_no_named_set_has_are_detected() -> None:
    """They are in some other set, and U+FFFD where it matters not."""
    found = statement_text(NAME.encode("cp1251"), 255)
    assert not found.is_readable
    assert (NAME, True) in set(other_texts(found.raw, found.text))
    assert statement_text(b"TRUNCATE t", GBK).raw == b""


# ── what happens to them ────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("flavor", ["mysql", "mariadb"])
@pytest.mark.parametrize(
    ("said", "emptied_tables", "filled"),
    [
        ("TRUNCATE TABLE {}", [NAME], set()),
        ("DROP TABLE `u`, `{}`", ["u", NAME], set()),
        ("RENAME TABLE u TO x, {} TO y", ["u", NAME], set()),
        ("ALTER TABLE {} ADD COLUMN d int DEFAULT 7", [], {NAME}),
        ("ALTER TABLE {} ADD COLUMN d int", [], set()),
    ],
)
def test_statement_of_a_client_is_followed(flavor: str, said: str, emptied_tables: list[str], filled: set[str]) -> None:
    """Read as Latin-1 it names a table that does not exist, and counts for nothing."""
    log = Log(flavor)  # type: ignore[arg-type]
    log.standalone(said.format(NAME).encode("cp1251"), more=charset(CP1251))
    found = read(log, NAME, "u", gone=(NAME,))
    assert (emptied(found), read_again(found)) == (emptied_tables, filled)


@pytest.mark.parametrize(("gone", "filled"), [((), {NAME}), ((NAME,), set())])
def test_table_that_the_server_did_not_remove_is_read_again(gone: tuple[str, ...], filled: set[str]) -> None:
    """MariaDB copies a table to its new name and may leave the old one, with its rows, where that is not ASCII."""
    log = Log("mariadb")
    log.standalone(f"ALTER TABLE {NAME} RENAME x, ORDER BY id")
    found = read(log, NAME, gone=gone)
    assert (emptied(found), read_again(found)) == ([NAME], filled)


@pytest.mark.parametrize("client", [255, KOI8R, GBK, BINARY])
@pytest.mark.parametrize(
    "said",
    [
        "TRUNCATE TABLE {}",
        "DROP DATABASE IF EXISTS {}",
        "ALTER TABLE {} ADD d int NOT NULL",
    ],
)
def test_table_named_in_another_set_than_the_event_specifies_is_read_again(client: int, said: str) -> None:
    """A prepared statement, or a routine that calls SET NAMES, is logged with the character set in force when it
    runs."""
    log = Log()
    schema = NAME if "DATABASE" in said else "shop"
    log.standalone(said.format(NAME).encode("cp1251"), schema, more=charset(client))
    found = read(log, NAME, "u" if schema == "shop" else NAME, schema=schema)
    assert (read_again(found), emptied(found)) == ({NAME}, [])


def test_table_named_in_another_set_that_is_gone_is_emptied() -> None:
    """It cannot be read, and no later statement brings its rows back."""
    log = Log()
    log.standalone(f"DROP TABLE {NAME}".encode("cp1251"), more=charset(KOI8R))
    found = read(log, NAME, "u", gone=(NAME,))
    assert (emptied(found), read_again(found)) == ([NAME], set())


@pytest.mark.parametrize(("said", "filled"), [("ALTER TABLE {} DROP v", {"t", "u"}), ("CREATE VIEW {} AS x", set())])
def test_name_that_is_no_text_may_be_any_table(said: str, filled: set[str]) -> None:
    """Every captured table is read again; a statement that concerns no table has no effect."""
    log = Log()
    log.standalone(said.encode().replace(b"{}", b"\xff\xfe\xf2x"), more=charset(255))
    assert read_again(read(log, "t", "u")) == filled


@pytest.mark.parametrize(
    "said",
    [
        "ALTER TABLE t COMMENT 'ä' , ADD COLUMN w int COMMENT 'ß'".encode("latin1"),
        "CREATE TABLE тест (id int)".encode("cp1251"),
        "CREATE TABLE `таблица2` (id int) START TRANSACTION".encode(),
        b"INSERT INTO elsewhere.t VALUES ('\xff')",
    ],
)
def test_letters_that_name_no_captured_table_change_nothing(said: bytes) -> None:
    """Comments and other tables in another language are common."""
    log = Log()
    log.standalone(said, more=charset(CP1251) + b"\x0c\x01elsewhere\0")
    one(log, 2, table=simple("t"))
    found = read(log, "t", "u")
    assert (emptied(found), read_again(found), ids_of(found)) == ([], set(), [2])


def test_savepoint_is_found_again_after_a_change_of_the_client_s_character_set() -> None:
    """The servers write its name in UTF-8. Read in two sets it would be two names, and all rows would be removed."""
    log = Log()
    log.begin()
    log.insert(simple("t"), (1, "a"))
    log.query("SAVEPOINT `точка`", more=charset(GBK))
    log.insert(simple("t"), (2, "b"))
    log.query("ROLLBACK TO `Точка`", more=charset(CP1251))
    log.insert(simple("t"), (3, "c"))
    log.commit()
    assert ids_of(read(log, "t")) == [1, 3]


def test_alter_in_two_phases_counts_when_it_is_committed() -> None:
    """MariaDB with binlog_alter_two_phase: the text is logged twice, also for an ALTER that failed."""
    start, commit, rollback = b"\x82\x02", b"\x82\x04" + bytes(8), b"\x82\x08" + bytes(8)
    log = Log("mariadb")
    log.standalone("ALTER TABLE t RENAME TO x", more=start)
    log.standalone("ALTER TABLE u ADD w int DEFAULT 7", more=start)
    one(log, 2, table=simple("t"))
    log.standalone("ALTER TABLE t RENAME TO x", more=rollback)
    one(log, 3, table=simple("u"))
    found = read(log, "t", "u")
    assert (emptied(found), read_again(found), ids_of(found)) == ([], set(), [2, 3])
    log.standalone("ALTER TABLE u ADD w int DEFAULT 7", more=commit)
    assert read_again(read(log, "t", "u")) == {"u"}
