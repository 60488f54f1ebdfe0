"""What a statement in the log does, judged by its first words: every kind, and texts that only resemble it."""

from __future__ import annotations

import pytest

from cdcflow.model.table import TableId
from cdcflow.sources.mysql.events import Query
from cdcflow.sources.mysql.gtids import Flavor
from cdcflow.sources.mysql.sql import ANSI_QUOTES, NO_BACKSLASH_ESCAPES
from cdcflow.sources.mysql.statements import (
    Begin,
    Commit,
    Created,
    Emptied,
    Harmless,
    OtherDdl,
    Renamed,
    Rollback,
    RowChange,
    Savepoint,
    SchemaDropped,
    Statement,
    XaEnd,
    statement_of,
)


def said(text: str) -> Statement:
    return statement_of(Query("shop", text))


def tables(*names: str) -> tuple[TableId, ...]:
    found = (name.rpartition(".") for name in names)
    return tuple(TableId(schema or "shop", name) for schema, _, name in found)


@pytest.mark.parametrize(
    ("text", "statement"),
    [
        ("BEGIN", Begin()),
        ("begin /* of a group */", Begin()),
        ("XA START X'01',X'',1", Begin()),
        ("XA BEGIN 'a'", Begin()),
        ("START TRANSACTION", Begin()),
        ("COMMIT", Commit()),
        ("commit", Commit()),
        ("ROLLBACK", Rollback()),
        ("ROLLBACK WORK", Rollback()),
        ("SAVEPOINT `a b`", Savepoint("a b", to=False)),
        ("ROLLBACK TO `s``1`", Savepoint("s`1", to=True)),
        ("ROLLBACK TO SAVEPOINT s1", Savepoint("s1", to=True)),
        ("ROLLBACK TO savepoint", Savepoint("savepoint", to=True)),
        ("RELEASE SAVEPOINT s1", Harmless()),
        ("XA END X'01'", Harmless()),
        ("XA PREPARE X'01'", Harmless()),
        ("XA COMMIT X'0aFF',X'01',7", XaEnd((7, b"\x0a\xff", b"\x01"), commit=True)),
        ("xa rollback X'0a'", XaEnd((1, b"\x0a", b""), commit=False)),
        ("  XA COMMIT X'' , X'02' , 3 ONE PHASE", XaEnd((3, b"", b"\x02"), commit=True)),
        ("FLUSH TABLES", Harmless()),
        ("GRANT ALL ON *.* TO u", Harmless()),
        ("REVOKE ALL ON *.* FROM u", Harmless()),
        ("ANALYZE TABLE t", Harmless()),
        ("ANALYZE TABLES t, u", Harmless()),
        ("ANALYZE LOCAL TABLE t", Harmless()),
        ("ANALYZE NO_WRITE_TO_BINLOG TABLE t", Harmless()),
        ("OPTIMIZE TABLE t", Harmless()),
        ("REPAIR TABLE t", Harmless()),
        ("CHECK TABLE t", Harmless()),
        ("SET PASSWORD = 'x'", Harmless()),
        ("CREATE TEMPORARY TABLE t (id int)", Harmless()),
        ("CREATE OR REPLACE TEMPORARY TABLE t (id int)", Harmless()),
        ("DROP TEMPORARY TABLE IF EXISTS t", Harmless()),
    ],
)
def test_what_changes_neither_rows_nor_shapes(text: str, statement: Statement) -> None:
    """They frame transactions, or do not concern a capture."""
    assert said(text) == statement


@pytest.mark.parametrize(
    ("text", "changed"),
    [
        ("INSERT INTO t VALUES (1)", ["t"]),
        ("insert low_priority ignore into `a b`.`c``d` values (1)", ["a b.c`d"]),
        ("INSERT DELAYED t SET v = 1", ["t"]),
        ("INSERT HIGH_PRIORITY t SET v = 1", ["t"]),
        ("REPLACE INTO other.t VALUES (1)", ["other.t"]),
        ("UPDATE t SET v = 1", ["t"]),
        ("UPDATE LOW_PRIORITY IGNORE other.t SET v = 1 WHERE id = 2", ["other.t"]),
        ("DELETE FROM t", ["t"]),
        ("DELETE QUICK FROM t WHERE id = 1", ["t"]),
        ("DELETE FROM t ORDER BY id LIMIT 1", ["t"]),
        ("DELETE FROM t LIMIT 1", ["t"]),
        ('UPDATE "t" SET v = 1', ["t"]),
        ("UPDATE t, u SET t.v = u.v", []),
        ("UPDATE t JOIN u SET t.v = u.v", []),
        ("UPDATE t AS a, u SET a.v = u.v", []),
        ("DELETE a FROM t a", []),
        ("DELETE t, u FROM t JOIN u", []),
        ("DELETE FROM t USING t JOIN u", []),
        ("UPDATE (SELECT 1) x SET v = 1", []),
        ("LOAD DATA INFILE 'x' INTO TABLE t", []),
        ("WITH c AS (SELECT 1) UPDATE t SET v = 1", []),
        ("CALL p()", []),
        ("DO sleep(1)", []),
        ("SELECT changes_rows()", []),
        ("VALUES ROW(1)", []),
        ("ANALYZE UPDATE t SET v = 1", []),
        ("SET STATEMENT max_statement_time = 1 FOR UPDATE t SET v = 1", ["t"]),
        ("/*!50100 UPDATE */ t SET v = 1", ["t"]),
        ("-- a word\nUPDATE t SET v = 1", ["t"]),
        ("# UPDATE u\nUPDATE t SET v = 1", ["t"]),
    ],
)
def test_which_table_a_statement_changes_rows_of(text: str, changed: list[str]) -> None:
    """A statement that plainly names a single table gives it; for any other it could be every table."""
    found = said(text)
    assert isinstance(found, RowChange)
    assert found.tables == tables(*changed)


@pytest.mark.parametrize(
    "text",
    [
        "CREATE TABLE t AS SELECT 1 AS id",
        "CREATE TABLE t TABLE u",
        "CREATE TABLE IF NOT EXISTS t (id int PRIMARY KEY) AS (TABLE u)",
        "CREATE TABLE t AS VALUES ROW(1)",
        "CREATE TABLE t VALUES (1)",
        "CREATE TABLE t AS WITH w AS (TABLE u) TABLE w",
    ],
)
def test_table_created_from_a_query_is_a_change_of_its_rows(text: str) -> None:
    """Logged as a statement, its rows are nowhere in the log. Logged as rows, it is an empty table."""
    assert said(text) == RowChange(tables("t"), "CREATE TABLE … SELECT")


@pytest.mark.parametrize(
    "text",
    [
        "CREATE TABLE t (id int) PARTITION BY RANGE (id) (PARTITION p VALUES LESS THAN (9), PARTITION q VALUES LESS "
        "THAN MAXVALUE)",
        "CREATE TABLE t (id int COMMENT 'SELECT') PARTITION BY LIST (id) (PARTITION p VALUES IN (1))",
        "CREATE TABLE t (`table` int, `values` int) START TRANSACTION",
    ],
)
def test_table_made_without_a_query_is_empty(text: str) -> None:
    """Partitions have VALUES, too."""
    assert said(text) == Created(tables("t")[0])


@pytest.mark.parametrize("text", ["", " /* nothing */ -- at all"])
def test_statement_without_keywords_counts_as_unknown(text: str) -> None:
    """Unknown means that something may have changed, not that cdcflow ends the stream with an error."""
    assert said(text) == OtherDdl(None)


@pytest.mark.parametrize("text", ["CREATE VIEW v AS TABLE t", "ALTER VIEW v AS TABLE t"])
def test_view_of_a_table_is_not_that_table(text: str) -> None:
    """TABLE alone is a query, too: the table would count as created or altered."""
    assert said(text) == OtherDdl(None)


@pytest.mark.parametrize(
    ("text", "sql_mode"),
    [
        (r"ALTER TABLE t COMMENT = '\', RENAME TO u, COMMENT = 'x'", NO_BACKSLASH_ESCAPES),
        (r"ALTER TABLE t COMMENT = '\', RENAME TO x, COMMENT = ', RENAME TO u", 0),
        (r"""ALTER TABLE t DROP CHECK "a\", RENAME TO u, DROP CHECK "b", FORCE""", ANSI_QUOTES),
        (r"""ALTER TABLE t COMMENT "\", RENAME TO x, COMMENT ", RENAME TO u""", 0),
    ],
)
def test_meaning_of_a_backslash_in_quotes_follows_the_session(text: str, sql_mode: int) -> None:
    """With NO_BACKSLASH_ESCAPES a string may end with one; taken for an escape, it hides what follows."""
    assert statement_of(Query("shop", text, sql_mode)) == Renamed(((tables("t")[0], tables("u")[0]),))


def test_row_statement_is_named_by_its_keyword() -> None:
    """The message contains what was found, and never the values in it."""
    found = said("insert into t values ('secret')")
    assert isinstance(found, RowChange)
    assert found.what == "INSERT"


@pytest.mark.parametrize(
    ("text", "emptied", "dropped"),
    [
        ("TRUNCATE t", ["t"], False),
        ("TRUNCATE TABLE other.t", ["other.t"], False),
        ("DROP TABLE t", ["t"], True),
        ("DROP TABLES a, b.c, `d,e`", ["a", "b.c", "d,e"], True),
        ("DROP TABLE IF EXISTS a, b RESTRICT", ["a", "b"], True),
        ("DROP TABLE a /* generated by server */", ["a"], True),
        ("CREATE OR REPLACE TABLE t (id int)", ["t"], True),
    ],
)
def test_which_tables_no_longer_have_rows(text: str, emptied: list[str], dropped: bool) -> None:
    """Rows that are all removed at once have no row events."""
    assert said(text) == Emptied(tables(*emptied), dropped)


@pytest.mark.parametrize(
    ("text", "schema"),
    [("DROP DATABASE shop", "shop"), ("DROP SCHEMA IF EXISTS `a b`", "a b"), ("drop schema x", "x")],
)
def test_dropped_schema_drops_all_its_tables(text: str, schema: str) -> None:
    """It names none of them."""
    assert said(text) == SchemaDropped(schema)


@pytest.mark.parametrize(
    ("text", "pairs"),
    [
        ("RENAME TABLE a TO b", [("a", "b")]),
        ("RENAME TABLES a TO b, c.d TO e.f, b TO a", [("a", "b"), ("c.d", "e.f"), ("b", "a")]),
        ("RENAME TABLE IF EXISTS a WAIT 5 TO b, c NOWAIT TO d", [("a", "b"), ("c", "d")]),
        ("ALTER TABLE a RENAME b", [("a", "b")]),
        ("ALTER TABLE a RENAME TO b.c", [("a", "b.c")]),
        ("ALTER TABLE IF EXISTS a RENAME AS b", [("a", "b")]),
    ],
)
def test_tables_get_other_names_one_after_another(text: str, pairs: list[tuple[str, str]]) -> None:
    """A swap has three steps, and each one starts from the result of the previous one."""
    assert said(text) == Renamed(tuple((tables(a)[0], tables(b)[0]) for a, b in pairs))


def test_a_list_of_hundreds_of_tables_is_read_to_its_end() -> None:
    """DROP TABLE of a schema's tables, as tools write it."""
    names = [f"shop.t{n}" for n in range(900)]
    assert said(f"DROP TABLE {', '.join(names)}") == Emptied(tables(*names), dropped=True)


@pytest.mark.parametrize("text", ["ALTER TABLE a RENAME COLUMN b TO c", "ALTER TABLE a RENAME INDEX b TO c"])
def test_a_renamed_part_of_a_table_is_no_renamed_table(text: str) -> None:
    """The table keeps its name."""
    assert not isinstance(said(text), Renamed)


@pytest.mark.parametrize(
    ("text", "flavor", "statement"),
    [
        ("TRUNCATE /*M! TABLE */ t", "mariadb", Emptied(tables("t"))),
        ("ALTER TABLE t /*M!100100 RENAME TO u, */ ADD d int", "mysql", OtherDdl(tables("t")[0])),
        ("ALTER TABLE t /*M!100100 RENAME TO u, */ ADD d int", "mariadb", Renamed((tables("t", "u"),))),  # type: ignore[arg-type]
        ("ALTER TABLE t /*!50701 RENAME TO u, */ ADD d int", "mysql", Renamed((tables("t", "u"),))),  # type: ignore[arg-type]
        ("ALTER TABLE t /* 50701 RENAME TO u, */ ADD d int", "mariadb", OtherDdl(tables("t")[0])),
        ("ALTER TABLE t /*M 999999 RENAME TO u, (* x *) */ ADD d int", "mariadb", OtherDdl(tables("t")[0])),
        ("ALTER TABLE t /*!080000RENAME TO u*/", "mysql", Renamed((tables("t", "u"),))),  # type: ignore[arg-type]
        ("TRUNCATE t --\x01, u", "mysql", Emptied(tables("t"))),
        ("TRUNCATE TABLE .t", "mariadb", Emptied(tables("t"))),
        ("ALTER TABLE t RENAME .u", "mariadb", Renamed((tables("t", "u"),))),  # type: ignore[arg-type]
    ],
)
def test_comments_count_as_the_server_counts_them(text: str, flavor: Flavor, statement: Statement) -> None:
    """MySQL does not execute MariaDB's comments, and logs them; what neither executes is logged as another comment."""
    assert statement_of(Query("shop", text, flavor=flavor)) == statement
