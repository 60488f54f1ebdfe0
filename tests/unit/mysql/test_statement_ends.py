"""Statements with further text after their last word: their first words decide what they are."""

from __future__ import annotations

import pytest

from cdcflow.model.table import TableId
from cdcflow.sources.mysql.alters import Altered
from cdcflow.sources.mysql.events import Query
from cdcflow.sources.mysql.statements import (
    Begin,
    Commit,
    Created,
    Emptied,
    Harmless,
    OtherDdl,
    PartsChanged,
    Renamed,
    Rollback,
    RowChange,
    Savepoint,
    SchemaDropped,
    Several,
    Statement,
    Versioned,
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
def test_text_after_a_statement_does_not_change_its_meaning(text: str, statement: Statement) -> None:
    """Clients leave a semicolon there, and the server logs the text unchanged."""
    assert statement_of(Query("shop", text)) == statement


@pytest.mark.parametrize(
    "text",
    [
        "CREATE VIEW v AS SELECT 1",
        "CREATE INDEX i ON t (v)",
        "DROP VIEW v",
        "ALTER DATABASE shop CHARACTER SET latin1",
        "CREATE TABLE",
        "ALTER TABLE",
        "ALTER TABLE 'no name' ADD COLUMN v int",
        "SOMETHING NEW",
    ],
)
def test_what_is_not_known_may_have_changed_any_table(text: str) -> None:
    """Shapes that were learned before it are fetched again, for every table."""
    assert statement_of(Query("shop", text)) == OtherDdl(None)


@pytest.mark.parametrize("end", ["RENAME", "RENAME TO", "ADD w int, RENAME AS", "RENAME TO 'x'"])
def test_a_table_that_is_renamed_to_nothing_that_is_understood_may_hold_anything(end: str) -> None:
    """It is read again: the text is incomplete, or not SQL that cdcflow knows."""
    found = statement_of(Query("shop", f"ALTER TABLE a {end}"))
    assert found == OtherDdl(TableId("shop", "a"), Altered(fills=True))


@pytest.mark.parametrize("part", ["COLUMN", "INDEX", "KEY", "CONSTRAINT"])
def test_a_part_of_a_table_that_is_renamed_is_no_table(part: str) -> None:
    """The table keeps its name, whatever its part is called now; a table rename after it is a rename."""
    table = TableId("shop", "a")
    found = statement_of(Query("shop", f"ALTER TABLE a RENAME {part} b TO c"))
    assert isinstance(found, OtherDdl)
    assert found.table == table
    both = statement_of(Query("shop", f"ALTER TABLE a RENAME {part} b TO c, RENAME TO d"))
    renamed = Renamed(((table, TableId("shop", "d")),))
    filled = OtherDdl(TableId("shop", "d"), Altered(fills=True, renamed=(("b", "c"),)))
    assert both == (Several((renamed, filled)) if part == "COLUMN" else renamed)


T, X = TableId("shop", "t"), TableId("other", "x")


@pytest.mark.parametrize(
    ("text", "other", "what"),
    [
        ("EXCHANGE PARTITION p WITH TABLE other.x", X, "EXCHANGE PARTITION"),
        ("EXCHANGE PARTITION p WITH TABLE other.x WITHOUT VALIDATION", X, "EXCHANGE PARTITION"),
        ("TRUNCATE PARTITION ALL", None, "TRUNCATE PARTITION"),
        ("DROP PARTITION p, q", None, "DROP PARTITION"),
        ("DISCARD PARTITION p TABLESPACE", None, "DISCARD PARTITION"),
        ("IMPORT PARTITION p TABLESPACE", None, "IMPORT PARTITION"),
        ("DISCARD TABLESPACE", None, "DISCARD TABLESPACE"),
        ("IMPORT TABLESPACE", None, "IMPORT TABLESPACE"),
        ("CONVERT PARTITION p TO TABLE other.x", X, "CONVERT PARTITION"),
        ("CONVERT TABLE other.x TO PARTITION p VALUES LESS THAN (9)", X, "CONVERT TABLE"),
        ("CONVERT TABLE `x` TO PARTITION p DEFAULT", TableId("shop", "x"), "CONVERT TABLE"),
    ],
)
@pytest.mark.parametrize("head", ["ALTER TABLE t", "ALTER TABLE IF EXISTS shop.t", "alter ignore table `t`"])
def test_rows_added_or_removed_with_whole_partitions(head: str, text: str, other: TableId | None, what: str) -> None:
    """M40: there are no row events for them, and the other table lost or received them."""
    assert statement_of(Query("shop", f"{head} {text}")) == PartsChanged(T, other, what)


@pytest.mark.parametrize("text", ["CONVERT TO CHARACTER SET latin1", "TRUNCATE x", "DROP v", "ADD PARTITION (x)"])
def test_what_only_begins_like_a_part_is_a_clause_like_others(text: str) -> None:
    """Its values are examined instead."""
    found = statement_of(Query("shop", f"ALTER TABLE t {text}"))
    assert isinstance(found, OtherDdl)
    assert found.table == T


@pytest.mark.parametrize(
    ("text", "statement"),
    [
        ("CREATE TABLE t (id int)", Created(T)),
        ("CREATE TABLE IF NOT EXISTS shop.t (id int)", Created(T)),
        ("CREATE TABLE t LIKE other.x", Created(T, X)),
        ("CREATE TABLE IF NOT EXISTS t LIKE other.x", Created(T, X)),
        ("CREATE TABLE t (LIKE other.x)", Created(T, X)),
        ("CREATE TABLE t LIKE", Created(T)),
        ("CREATE TABLE t (x int) COMMENT 'LIKE x'", Created(T)),
        ("CREATE TABLE t (`like` int)", Created(T)),
        ("CREATE TABLE t (id int) WITH SYSTEM VERSIONING", Versioned(T)),
        ("CREATE TABLE t (id int, v int WITH SYSTEM VERSIONING)", Versioned(T)),
        ("CREATE TABLE t (id int WITHOUT SYSTEM VERSIONING)", Created(T)),
        ("CREATE TABLE t (id int) WITH SYSTEM", Created(T)),
        ("CREATE OR REPLACE TABLE t (id int) WITH SYSTEM VERSIONING", Versioned(T, replaces=True)),
        ("CREATE OR REPLACE TABLE t LIKE other.x", Emptied((T,), dropped=True)),
        ("CREATE OR REPLACE TABLE t SELECT 1", RowChange((T,), "CREATE TABLE … SELECT")),
        ("CREATE TABLE 'no name' SELECT 1", RowChange((), "CREATE TABLE … SELECT")),
        ("ALTER TABLE t ADD SYSTEM VERSIONING", Versioned(T)),
        ("ALTER TABLE t ADD v int WITH SYSTEM VERSIONING", Versioned(T)),
        ("ALTER TABLE t ADD v int, ADD SYSTEM VERSIONING", Versioned(T)),
        ("ALTER TABLE t DROP SYSTEM VERSIONING", OtherDdl(T, Altered(fills=True))),
        ("ALTER IGNORE TABLE t ADD INDEX (v)", OtherDdl(T, Altered(fills=True))),
        ("ALTER ONLINE IGNORE TABLE t ADD INDEX (v)", OtherDdl(T, Altered(fills=True))),
        ("ALTER ONLINE TABLE t ADD INDEX (v)", OtherDdl(T, Altered(fills=False))),
        ("ALTER TABLE `ignore` ADD INDEX (v)", OtherDdl(TableId("shop", "ignore"), Altered(fills=False))),
    ],
)
def test_how_a_table_was_created_and_which_rows_it_has(text: str, statement: Statement) -> None:
    """P18: with another table's columns, with the history of its rows, or with rows that are not in the log."""
    assert statement_of(Query("shop", text)) == statement


@pytest.mark.parametrize(
    ("text", "pairs"),
    [
        ("RENAME TABLE a TO b, ", [("a", "b")]),
        ("RENAME TABLE a TO b, c", [("a", "b")]),
        ("RENAME TABLE a TO b, c TO", [("a", "b")]),
        ("RENAME TABLE a TO b c TO d", [("a", "b")]),
        ("RENAME TABLE a", []),
        ("RENAME TABLE a b", []),
        ("RENAME TABLE", []),
        ("RENAME TABLE a WAIT 10 TO b", [("a", "b")]),
    ],
)
def test_what_is_understood_of_a_list_of_new_names(text: str, pairs: list[tuple[str, str]]) -> None:
    """Its pairs up to where it ends."""
    found = statement_of(Query("shop", text))
    assert found == Renamed(tuple((TableId("shop", a), TableId("shop", b)) for a, b in pairs))


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("DROP TABLE a, ", "a"),
        ("DROP TABLE a, b, 'x'", "ab"),
        ("DROP TABLE a b", "a"),
        ("DROP TABLE", ""),
        ("TRUNCATE TABLE", ""),
        ("TRUNCATE", ""),
    ],
)
def test_what_is_understood_of_a_list_of_tables(text: str, names: str) -> None:
    """Its names up to where it ends."""
    found = statement_of(Query("shop", text))
    assert isinstance(found, Emptied)
    assert found.tables == tuple(TableId("shop", name) for name in names)
