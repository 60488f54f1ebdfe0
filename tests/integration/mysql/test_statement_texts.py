"""Statements of clients in every character set that the servers have, as the servers log them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pymysql
import pytest
from pymysql.constants import COMMAND
from tests.servers.mysql import Flavor, MySQLDatabase, MySQLServer
from tests.support.mysql.controlled_source import MySQLCapture

pytestmark = pytest.mark.mysql

WORDS = (
    "таблица",
    "表ソ十",
    "功許",
    "表格",
    "대장",
    "täble",
    "żółw",
    "πίναξ",
    "שולחן",
    "جدول",
    "ตาราง",
    "աղյուսակ",
    "ცხრილი",
    "ÅÄÖ",
)
"""Each character set can encode one of these; the test uses the first that survives the round trip."""
SAID = {
    "emptied": "TRUNCATE TABLE {}",
    "dropped": "DROP TABLE {}",
    "renamed": "ALTER TABLE {} RENAME AS elsewhere.{}",
    "filled": "ALTER TABLE {} ADD COLUMN d int DEFAULT 7 COMMENT 'x', RENAME TO {}",
    "nothing": "ALTER TABLE {} ADD COLUMN d int",
}


def say(connection: Any, statement: bytes) -> None:
    """Run a statement as the bytes given; the driver would encode it as UTF-8."""
    connection._execute_command(COMMAND.COM_QUERY, statement)
    connection._read_query_result()


def names(database: MySQLDatabase) -> Iterator[tuple[str, str, bytes]]:
    """Each set that a client may have, a word that it can say, and its bytes: by the server itself."""
    sets = database.execute("SELECT character_set_name FROM information_schema.character_sets ORDER BY 1")
    for (charset,) in sets:
        if charset in ("ucs2", "utf16", "utf16le", "utf32"):
            continue  # no client may have them
        for word in WORDS if charset not in ("ascii", "binary") else ("plain",):
            asked = f"CONVERT('{word}' USING {charset})"
            [(same, raw)] = database.execute(f"SELECT CONVERT({asked} USING utf8mb4) = '{word}', HEX({asked})")
            if same:
                yield charset, word, bytes.fromhex(raw)
                break
        else:
            pytest.fail(f"no word for {charset}")


@pytest.mark.spread(1)
@pytest.mark.parametrize("third", [0, 1, 2])
def test_statement_of_a_client_of_any_set_is_followed(
    mysql_database: MySQLDatabase, capture: MySQLCapture, third: int
) -> None:
    """Decoded in another set it names a table that does not exist, and rows stay, or old rows have no new value."""
    words = list(names(mysql_database))
    assert len(words) > 30
    words = words[third::3]
    with contextlib.closing(mysql_database.connect()) as connection:
        say(connection, b"SET NAMES utf8mb4")
        for charset, word, _ in words:
            for kind in SAID:
                say(connection, f"CREATE TABLE `{word}_{charset}_{kind}` (id int PRIMARY KEY)".encode())
        mysql_database.execute("CREATE DATABASE IF NOT EXISTS elsewhere")
        capture.prepare()
        for charset, _, raw in words:
            say(connection, f"SET NAMES {charset}".encode())
            for kind, text in SAID.items():
                name = b"`" + raw + f"_{charset}_{kind}`".encode()
                say(connection, text.encode().replace(b"{}", name))
    emptied, filled = capture.emptied_and_filled()
    mysql_database.execute("DROP DATABASE elsewhere")
    assert emptied == sorted(f"{w}_{c}_{k}" for c, w, _ in words for k in ("emptied", "dropped", "renamed"))
    assert filled == {f"{w}_{c}_filled" for c, w, _ in words}


def test_statement_that_was_prepared_in_another_set_is_followed(
    mysql_database: MySQLDatabase, capture: MySQLCapture
) -> None:
    """The servers log it with the session's current set, which its bytes are not in; also a routine's."""
    name = "таблица"
    with contextlib.closing(mysql_database.connect()) as connection:

        def run(text: str, charset: str = "cp1251") -> None:
            say(connection, text.encode(charset))

        run("SET NAMES utf8mb4")
        for kind in ("prepared", "routine", "generated", "left"):
            run(f"CREATE TABLE {name}_{kind} (id int PRIMARY KEY)", "utf8")
        run("SET NAMES cp1251")
        run(f"CREATE PROCEDURE p() BEGIN SET NAMES utf8mb4; TRUNCATE TABLE {name}_routine; END")
        capture.prepare()
        run("SET NAMES utf8mb4")
        run(f"PREPARE s FROM 'ALTER TABLE {name}_prepared ADD d int DEFAULT 7'", "utf8")
        run("SET NAMES koi8r")
        run("EXECUTE s")
        run("SET NAMES cp1251")
        run("CALL p()")
        run(f"CREATE TEMPORARY TABLE {name}_left (id int)")
        run(f"DROP TEMPORARY TABLE {name}_left")
        run(f"CREATE TABLE {name}_made SELECT 1 AS id")
    assert capture.emptied_and_filled() == ([], {f"{name}_prepared", f"{name}_routine"})


def test_names_without_quotes_may_have_any_letter(mysql_database: MySQLDatabase, capture: MySQLCapture) -> None:
    """A sign, or a space of Unicode, is a letter to the servers; in a set of single bytes that space parts words."""
    with contextlib.closing(mysql_database.connect()) as connection:
        say(connection, b"SET NAMES utf8mb4")
        for name in ("€x", "«q»", "a\xa0b", "a\u2003b", "1a", "a$b", "plain", "ındex", "t"):
            say(connection, f"CREATE TABLE `{name}` (id int PRIMARY KEY, `ındex` int)".encode())
        capture.prepare()
        for name in ("€x", "«q»", "a\xa0b", "a\u2003b", "1a", "a$b"):
            say(connection, f"TRUNCATE {name}".encode())
        say(connection, f"TRUNCATE {mysql_database.name}.€x --\x01 , nothing".encode())
        say(connection, "ALTER TABLE t DROP ındex".encode())
        say(connection, b"SET NAMES latin1")
        say(connection, b"TRUNCATE\xa0TABLE\xa0plain")
    assert capture.emptied_and_filled() == (
        sorted(["€x", "«q»", "a\xa0b", "a\u2003b", "1a", "a$b", "€x", "plain"]),
        {"t"},
    )


def test_alter_in_two_phases_counts_when_it_is_committed(mysql_servers: Callable[[Flavor], MySQLServer]) -> None:
    """MariaDB logs the text when an ALTER begins and when it fails, too; one that failed did nothing."""
    database = mysql_servers("mariadb").create_database("two_phases")
    for name in ("kept", "filled", "renamed"):
        database.execute(
            f"CREATE TABLE {name} (id int PRIMARY KEY, v int)", f"INSERT INTO {name} VALUES (1, 1), (2, 1)"
        )
    capture = MySQLCapture(database)
    capture.prepare()
    with contextlib.closing(database.connect()) as connection:
        say(connection, b"SET binlog_alter_two_phase = ON")
        for failing in ("ADD UNIQUE KEY (v), RENAME TO gone", "ADD UNIQUE KEY (v), ADD w int DEFAULT 7"):
            with pytest.raises(pymysql.err.IntegrityError):
                say(connection, f"ALTER TABLE kept {failing}, ALGORITHM = COPY".encode())
        say(connection, b"ALTER TABLE filled ADD w int DEFAULT 7, ALGORITHM = COPY")
        say(connection, b"ALTER TABLE renamed ADD w int DEFAULT 7, RENAME TO gone, ALGORITHM = COPY")
    found = capture.emptied_and_filled()
    capture.close()
    database.drop()
    assert found == (["renamed"], {"filled"})
