"""Servers that keep the names of tables in lower case, as on Windows: statements may write them in any."""

from __future__ import annotations

import sys

import pytest
from tests.servers.mysql import Flavor, MySQLServer
from tests.support.mysql.controlled_source import MySQLCapture

from cdcflow.sources.mysql.table_names import lower_name

pytestmark = [pytest.mark.mysql, pytest.mark.spread(1)]

STATEMENTS = (
    "TRUNCATE TABLE EMPTIED",
    "DROP TABLE Dropped, shop.ÄRGER",
    "RENAME TABLE Renamed TO Elsewhere",
    "ALTER TABLE FILLED ADD COLUMN d int DEFAULT 7",
    "ALTER TABLE Itself RENAME TO ITSELF, ADD COLUMN d int DEFAULT 7",
    "ALTER TABLE itself RENAME TO Itself",
    "ALTER TABLE NOTHING ADD COLUMN d int",
    "INSERT INTO Nothing (ID) VALUES (1)",
    "INSERT INTO SECRET VALUES (1)",
    "CREATE TABLE _Copied_GHO LIKE Copied",
    "RENAME TABLE COPIED TO _copied_del, _copied_gho TO COPIED",
)


def test_statements_name_tables_in_any_case(flavor: Flavor) -> None:
    """TRUNCATE TABLE {} with a name in capitals empties the table that is captured in lower case; so does each other
    statement. The settings may name tables, and the table of marks, as they like."""
    with MySQLServer(flavor, in_lower_case=True) as server:
        database = server.create_database("Shop")
        names = ("emptied", "Dropped", "Ärger", "renamed", "Filled", "itself", "nothing", "Secret", "copied")
        database.execute(*(f"CREATE TABLE `{name}` (id int PRIMARY KEY)" for name in names))
        capture = MySQLCapture(database, tables=["SHOP.*", "!Shop.Secret"], marks_table="CDC.Marks")
        capture.prepare()
        database.execute(*STATEMENTS)
        found = capture.emptied_and_filled()
        told = {f.subject: f.text for f in capture.source.doctor()}
        every = "".join(map(chr, [*range(0x20, 0xD800), *range(0xE000, 0x10000)]))
        [(lower,)] = server.execute(f"SELECT LOWER(CONVERT(_utf8mb4 X'{every.encode().hex()}' USING utf8mb3))")
        capture.close()
    assert found == (["dropped", "emptied", "renamed", "ärger"], {"filled", "itself"})
    assert "case does not count" in told["lower_case_table_names"]
    assert "shop.secret" not in told
    # MySQL leaves letters alone that came to Unicode late.
    assert {a: (b, c) for a, b, c in zip(every, lower, map(lower_name, every), strict=True) if b not in (a, c)} == {}
    assert sys.maxunicode > 0xFFFF
