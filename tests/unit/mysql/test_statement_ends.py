"""Statements with something behind their last word: what they are is said by their first ones."""

from __future__ import annotations

import pytest

from cdcflow.model.table import TableId
from cdcflow.sources.mysql.alters import Altered
from cdcflow.sources.mysql.events import Query
from cdcflow.sources.mysql.statements import (
    Begin,
    Commit,
    Emptied,
    Harmless,
    OtherDdl,
    Renamed,
    Rollback,
    Savepoint,
    SchemaDropped,
    Statement,
    statement_of,
)


@pytest.mark.parametrize(
    ("text", "statement"),
    [
        ("ROLLBACK TO SAVEPOINT s1;", Savepoint("s1", to=True)),
        ("ROLLBACK TO s1;", Savepoint("s1", to=True)),
        ("SAVEPOINT s1;", Savepoint("s1", to=False)),
        ("BEGIN;", Begin()),
        ("COMMIT;", Commit()),
        ("ROLLBACK;", Rollback()),
        ("TRUNCATE TABLE t;", Emptied((TableId("shop", "t"),))),
        ("DROP DATABASE shop;", SchemaDropped("shop")),
        ("OPTIMIZE TABLE a, b, c, d;", Harmless()),
    ],
)
def test_what_stands_behind_a_statement_makes_no_other_one_of_it(text: str, statement: Statement) -> None:
    """Clients leave a semicolon there, and the server logs the text as it came."""
    assert statement_of(Query("shop", text)) == statement


@pytest.mark.parametrize(
    "text",
    [
        "CREATE VIEW v AS SELECT 1",
        "CREATE INDEX i ON t (v)",
        "DROP INDEX i ON t",
        "ALTER DATABASE shop CHARACTER SET latin1",
        "CREATE TABLE",
        "ALTER TABLE",
        "ALTER TABLE 'no name' ADD COLUMN v int",
        "SOMETHING NEW",
    ],
)
def test_what_is_not_known_may_have_changed_any_table(text: str) -> None:
    """Shapes that were learned before it are learned anew, of every table."""
    assert statement_of(Query("shop", text)) == OtherDdl(None)


@pytest.mark.parametrize("end", ["RENAME", "RENAME TO", "ADD w int, RENAME AS", "RENAME TO 'x'"])
def test_a_table_that_is_renamed_to_nothing_that_is_understood_may_hold_anything(end: str) -> None:
    """It is read again: the text is not all there, or not SQL that we know."""
    found = statement_of(Query("shop", f"ALTER TABLE a {end}"))
    assert found == OtherDdl(TableId("shop", "a"), Altered(fills=True))


@pytest.mark.parametrize("part", ["COLUMN", "INDEX", "KEY", "CONSTRAINT"])
def test_a_part_of_a_table_that_is_renamed_is_no_table(part: str) -> None:
    """The table keeps its name, whatever its part is called now; a rename behind it is one."""
    table = TableId("shop", "a")
    found = statement_of(Query("shop", f"ALTER TABLE a RENAME {part} b TO c"))
    assert isinstance(found, OtherDdl)
    assert found.table == table
    both = statement_of(Query("shop", f"ALTER TABLE a RENAME {part} b TO c, RENAME TO d"))
    assert both == Renamed(((table, TableId("shop", "d")),))
