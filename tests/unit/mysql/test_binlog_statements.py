"""Statements in the binary log: what they mean for captured tables."""

from __future__ import annotations

import pytest
from tests.support.mysql.binlog_bytes import (
    Log,
    shape_of,
    simple,
)
from tests.support.mysql.binlog_decoder import (
    FLAVORS,
    Reader,
    T,
    TestTables,
    U,
    decoded,
    ids_of,
    one,
    reader,
    refused,
    rows_of,
)

from cdcflow.capture.interleave.messages import Advanced, ChangesRefused, RowsFilled
from cdcflow.errors import ConfigurationError
from cdcflow.model.table import TableId
from cdcflow.sources.mysql.gtids import Flavor
from cdcflow.sources.mysql.sql import NO_BACKSLASH_ESCAPES

T_OLD = simple("t_old")


@pytest.mark.parametrize("flavor", FLAVORS)
@pytest.mark.parametrize(
    "said",
    [
        "INSERT INTO t VALUES (1)",
        "/* app */ insert into `shop`.`t` select 1",
        "UPDATE t SET v = 1",
        "DELETE FROM t",
        "DELETE a FROM elsewhere.x a JOIN t",
        "REPLACE t SET id = 1",
        "LOAD DATA INFILE 'x' INTO TABLE t",
        "WITH c AS (SELECT 1) UPDATE t SET v = 1",
        "CREATE TABLE t SELECT 1 AS id",
        "CREATE TABLE t TABLE u",
        "SELECT `shop`.`changes_rows`()",
    ],
)
def test_rows_changed_by_a_statement_stop(flavor: Flavor, said: str) -> None:
    """M07: a session with binlog_format=STATEMENT changes rows that the log does not have."""
    log = Log(flavor)
    log.begin()
    log.query(said)
    log.commit()
    refused(log, ConfigurationError, "as a statement")


@pytest.mark.parametrize("said", ["UPDATE _view SET v = 1", "INSERT INTO _with_a_trigger VALUES (1)"])
def test_rows_changed_by_a_statement_on_another_name_of_the_schema_stop(said: str) -> None:
    """M07: it may be a view of a captured table, or its trigger may change one; the log does not have those rows."""
    log = Log()
    one(log, 1)
    log.begin()
    log.query(said)
    log.commit()
    refused(log, ConfigurationError, "may be a view of a captured table")


def listed(*schemas: str) -> bytes:
    """The status variable with the schemas that a statement used."""
    return bytes((12, len(schemas))) + b"".join(schema.encode() + b"\0" for schema in schemas)


@pytest.mark.parametrize(
    ("said", "more", "read"),
    [
        ("UPDATE x SET v = 1", b"", ["t"]),
        ("UPDATE x SET v = 1", listed("else"), []),
        ("UPDATE x SET v = 1", listed("else", "shop"), ["t"]),
        ("UPDATE x SET v = 1", listed(""), ["t"]),
        ("UPDATE x SET v = 1", bytes((12, 254)), ["t"]),
        ("UPDATE mysql.x SET v = 1", b"", []),
        ("UPDATE mysql.x SET v = 1", listed("mysql"), []),
        ("UPDATE mysql.x SET v = shop.f()", listed("mysql", "shop"), ["t"]),
        ("REPLACE INTO checksums SELECT count(*) FROM shop.t /*checksum chunk*/", listed("else", "shop"), []),
        ("REPLACE INTO checksums SELECT count(*) FROM shop.t /*checksum chunks*/", listed("else", "shop"), ["t"]),
        ("CALL p()", listed("else"), []),
        ("UPDATE x, y SET v = 1", listed("else"), []),
    ],
)
def test_tables_that_a_statement_on_another_schema_may_have_changed_are_read_again(
    said: str, more: bytes, read: list[str]
) -> None:
    """M07: through a view, a trigger or a function. MySQL lists the schemas of all tables that a statement used."""
    log = Log()
    one(log, 1)
    log.begin()
    log.query(said, "else", more=more)
    log.commit()
    assert filled(whole(log)) == read


@pytest.mark.parametrize(
    ("others", "possible"),
    [
        ((), True),
        (("UPDATE else.x SET v = 2",), True),
        (("ALTER TABLE t DROP v",), False),
        (("CREATE TABLE _t_gho LIKE t", "RENAME TABLE t TO _t_del, _t_gho TO t"), False),
    ],
)
@pytest.mark.parametrize("is_first", [False, True])
def test_statement_that_may_have_changed_rows_is_not_taken_for_one_that_did(
    others: tuple[str, ...], possible: bool, is_first: bool
) -> None:
    """A read that is running continues after the first kind, and begins again after the second, or after both."""
    log = Log()
    one(log, 1)
    said = ("UPDATE else.x SET v = 1", *others) if is_first else (*others, "UPDATE else.x SET v = 1")
    for statement in said:
        if statement.startswith("UPDATE"):
            log.begin()
            log.query(statement, "else")
            log.commit()
        else:
            log.standalone(statement)
    found = [e for e in whole(log).events if isinstance(e, RowsFilled)]
    assert [(e.table, e.possible, e.swapped) for e in found] == [(T.id, possible, False)]


@pytest.mark.parametrize("said", ["CALL p()", "UPDATE x, y SET v = 1"])
@pytest.mark.parametrize("more", [b"", listed("else", "shop")])
def test_statement_on_tables_that_cannot_be_determined_stops(said: str, more: bytes) -> None:
    """M07: unless the event lists other schemas only."""
    log = Log()
    one(log, 1)
    log.begin()
    log.query(said, "else", more=more)
    log.commit()
    refused(log, ConfigurationError, "cannot be determined from its text")


@pytest.mark.parametrize(
    "said",
    [
        "ALTER TABLE t DROP INDEX i, ADD INDEX (v)",
        "ALTER TABLE t DROP KEY `PRIMARY`",
        "ALTER TABLE t DROP CONSTRAINT c",
        "ALTER TABLE t ADD UNIQUE (v)",
        "ALTER TABLE t ADD CONSTRAINT c UNIQUE KEY (v)",
        "ALTER TABLE t MODIFY id int NULL",
        "CREATE UNIQUE INDEX i ON t (v)",
        "DROP INDEX i ON t",
        "DROP INDEX IF EXISTS `on` ON shop.t WAIT 5",
    ],
)
def test_table_without_a_primary_key_that_may_have_another_key_is_read_again(said: str) -> None:
    """P18: updates that kept the earlier key may have changed the later one, and deletes may lack it."""
    log = Log()
    one(log, 1)
    log.standalone(said)
    assert filled(whole(log, TestTables(without_primary_key=frozenset((T.id,))))) == ["t"]
    assert filled(whole(log)) == []


@pytest.mark.parametrize(
    "said", ["ALTER TABLE t ADD INDEX (v)", "ALTER TABLE t RENAME KEY a TO b", "CREATE INDEX i ON t (v)"]
)
def test_other_indexes_identify_no_rows(said: str) -> None:
    """P18: such a table need not be read again for them."""
    log = Log()
    one(log, 1)
    log.standalone(said)
    assert filled(whole(log, TestTables(without_primary_key=frozenset((T.id,))))) == []


@pytest.mark.parametrize("compress", [False, True])
@pytest.mark.parametrize(
    ("said", "read"),
    [
        ("TRUNCATE TABLE t", ["t"]),
        ("ALTER TABLE t DROP v", ["t"]),
        ("ALTER TABLE t RENAME TO x", ["t"]),
        ("TRUNCATE TABLE `t`, `ü`", ["t"]),
        ("ALTER TABLE t ADD w int", []),
        ("TRUNCATE TABLE x", []),
    ],
)
def test_statement_on_a_temporary_table_does_not_empty_the_captured_one(
    said: str, read: list[str], compress: bool
) -> None:
    """M37: with `binlog_format = STATEMENT` it is logged under the name that both have."""
    log = Log("mariadb")
    log.compress = compress
    one(log, 1)
    log.standalone(said, flags=4)
    found = whole(log)
    assert [r[1] for r in rows_of(found)] == ["c"]
    assert filled(found) == read


@pytest.mark.parametrize("said", ["DROP TABLE t", "DROP TABLE `t` /* generated by server */", "DROP TABLE t, `ü`"])
def test_dropped_table_is_emptied_although_its_event_names_the_session(said: str) -> None:
    """M37: both servers set the flag of a session's own tables in each DROP TABLE."""
    log = Log("mysql")
    one(log, 1)
    log.standalone(said, flags=4)
    assert [r[1] for r in rows_of(whole(log))] == ["c", "t"]


@pytest.mark.parametrize("computed", [False, True])
@pytest.mark.parametrize(
    "said",
    [
        "ALTER TABLE t ALTER v SET DEFAULT 'x'",
        "ALTER TABLE t ALTER COLUMN v DROP DEFAULT",
        "ALTER TABLE t MODIFY v varchar(300)",
    ],
)
def test_table_with_generated_columns_is_read_again_after_another_definition(said: str, computed: bool) -> None:
    """P18: they may use a column's default, or the zeros that fill a number: no row has those."""
    log = Log()
    one(log, 1)
    log.standalone(said)
    tables = TestTables(computed=frozenset((T.id,)) if computed else frozenset())
    assert filled(whole(log, tables)) == (["t"] if computed else [])


@pytest.mark.parametrize("flavor", FLAVORS)
@pytest.mark.parametrize("sql_mode", [0, NO_BACKSLASH_ESCAPES])
def test_session_s_mode_defines_where_a_string_ends(flavor: Flavor, sql_mode: int) -> None:
    """The event has the sql_mode of the session that executed it."""
    log = Log(flavor)
    one(log, 1)
    log.standalone(r"ALTER TABLE t COMMENT = '\', DROP v, COMMENT = ', COMMENT = 'x'", sql_mode=sql_mode)
    found = decoded(log)
    assert [e.table.name for e in found.events if isinstance(e, RowsFilled)] == ["t"] * bool(sql_mode)


@pytest.mark.parametrize("said", ["INSERT INTO elsewhere.t VALUES (1)", "DELETE FROM elsewhere.t WHERE 1"])
def test_statement_on_a_table_that_is_not_captured_is_ignored(said: str) -> None:
    """M07: a checksum tool's own table must not end the capture of all others."""
    log = Log()
    log.begin()
    log.query(said)
    log.commit()
    one(log, 1)
    assert ids_of(decoded(log)) == [1]


def test_table_whose_shape_changes_within_a_batch_has_each_rows_shape() -> None:
    """M33: each row has the shape in force when it was written; two shapes in one batch, and back again."""
    log = Log()
    for table in (simple("t"), simple("t", extra=["w"]), simple("t")):
        log.table_ids.clear()
        one(log, 1, 2, table=table)
        log.standalone("ALTER TABLE t ADD w varchar(200)")
    assert [sorted(r[2]) for r in rows_of(decoded(log))] == [["id", "v"]] * 2 + [["id", "v", "w"]] * 2 + [
        ["id", "v"]
    ] * 2


@pytest.mark.parametrize(
    "said", ["RENAME TABLE t TO _t_del, _t_gho TO t", "rename table `shop`.`t` to `shop`.`_t_old`, `_t_new` to `t`"]
)
def test_swap_by_a_schema_change_tool_continues_under_the_name(said: str) -> None:
    """M37: the shadow table's rows were never captured; after the swap the same table has another shape."""
    log = Log()
    one(log, 1)
    one(log, 1, table=simple("_t_gho", extra=["w"]))
    log.standalone(said)
    log.table_ids.clear()
    one(log, 2, table=simple("t", extra=["w"]))
    assert [(r[0], r[1], r[2]["id"]) for r in rows_of(decoded(log))] == [("t", "c", 1), ("t", "c", 2)]


def test_swap_in_two_steps_is_followed_too() -> None:
    """M37: gh-ost's two-step cut-over leaves the name empty for a moment."""
    log = Log()
    one(log, 1)
    log.standalone("ALTER TABLE t RENAME TO _t_del")
    log.standalone("ALTER TABLE _t_gho RENAME AS t")
    log.table_ids.clear()
    one(log, 2)
    assert [r[1] for r in rows_of(decoded(log))] == ["c", "c"]


def filled(found: Reader, *, swapped: bool = False) -> list[str]:
    """The tables that are to be read again; `swapped`: whether they are being read. The stream reports all of that
    before anything else."""
    said = [e for e in found.events if isinstance(e, RowsFilled)]
    first = [e for e in found.events if not isinstance(e, Advanced)][: len(said)]
    assert all(isinstance(e, RowsFilled) for e in first)
    return [e.table.name for e in said if e.swapped == swapped]


def whole(log: Log, tables: TestTables | None = None) -> Reader:
    """A reader that was fed all of the log at once."""
    found = reader(log, tables=tables)
    found.feed(log.dump())
    return found


@pytest.mark.parametrize(
    ("said", "emptied", "read"),
    [
        ("RENAME TABLE t TO elsewhere.t, elsewhere.loaded TO t", ["t"], ["t"]),
        ("ALTER TABLE elsewhere.loaded RENAME TO shop.t", ["t"], ["t"]),
        ("ALTER TABLE u ADD w int NOT NULL, RENAME COLUMN v TO x, RENAME AS t", ["t", "u"], ["t"]),
        ("RENAME TABLE t TO x, u TO t, x TO u", ["t", "u"], ["t", "u"]),
        ("RENAME TABLE t TO elsewhere.x, u TO t, elsewhere.x TO u", ["t", "u"], ["t", "u"]),
        ("RENAME TABLE t TO t_old, t_new TO t", ["t", "t_new", "t_old"], ["t_old", "t"]),
        ("RENAME TABLE t TO x, x TO t", [], []),
    ],
)
def test_names_that_got_another_tables_rows_are_emptied_and_read(
    said: str, emptied: list[str], read: list[str]
) -> None:
    """M37, M38: what every migration does by hand. A name that only vanished has no rows to read."""
    log = Log()
    for name in ("t", "u", "t_new"):
        one(log, 1, table=simple(name))
    log.standalone(said)
    found = whole(log, TestTables(shapes={T_OLD.id: shape_of(T_OLD)}))
    assert sorted(r[0] for r in rows_of(found)[3:]) == emptied
    assert {r[1] for r in rows_of(found)[3:]} <= {"t"}
    assert filled(found) == read


def test_table_that_is_renamed_away_no_longer_has_rows() -> None:
    """M38: under its old name it is gone; under the new one it is a new table."""
    log = Log()
    one(log, 1)
    log.standalone("RENAME TABLE t TO archive.t")
    assert [r[1] for r in rows_of(decoded(log))] == ["c", "t"]


@pytest.mark.parametrize(
    ("said", "ops"),
    [
        ("TRUNCATE TABLE t", "t"),
        ("truncate `shop`.t", "t"),
        ("/* x */ TRUNCATE /* y */ t -- z", "t"),
        ("DROP TABLE IF EXISTS `t` /* generated by server */", "t"),
        ("DROP TABLE elsewhere.t, shop.u, shop.t", "tt"),
        ("DROP TEMPORARY TABLE IF EXISTS t", ""),
        ("DROP DATABASE shop", "tt"),
        ("CREATE OR REPLACE TABLE t (id int)", "t"),
        ("TRUNCATE elsewhere.t", ""),
        ("/*!50100 TRUNCATE */ /*!50100 TABLE */ t", "t"),
    ],
)
def test_emptied_tables_are_reported(said: str, ops: str) -> None:
    """M40, M39: rows that are all removed at once have no row events."""
    log = Log("mariadb")
    one(log, 1)
    one(log, 1, table=U)
    log.standalone(said)
    assert "".join(r[1] for r in rows_of(decoded(log)))[2:] == ops


@pytest.mark.parametrize(
    ("said", "emptied", "read"),
    [
        ("ALTER TABLE t TRUNCATE PARTITION p0", [], ["t"]),
        ("ALTER TABLE t DROP PARTITION p0, p1", [], ["t"]),
        ("ALTER TABLE t EXCHANGE PARTITION p0 WITH TABLE elsewhere.x", [], ["t"]),
        ("ALTER TABLE elsewhere.parts EXCHANGE PARTITION p WITH TABLE shop.t", [], ["t"]),
        ("ALTER TABLE t EXCHANGE PARTITION p0 WITH TABLE u", [], ["t", "u"]),
        ("ALTER TABLE elsewhere.t DROP PARTITION p0", [], []),
        ("ALTER TABLE t DISCARD PARTITION p0 TABLESPACE", [], ["t"]),
        ("ALTER TABLE t DISCARD TABLESPACE", ["t"], []),
        ("ALTER TABLE t IMPORT TABLESPACE", ["t"], ["t"]),
        ("ALTER TABLE t CONVERT TABLE u TO PARTITION p1 VALUES LESS THAN (9)", ["u"], ["t"]),
        ("ALTER TABLE t CONVERT PARTITION p1 TO TABLE u", ["u"], ["u", "t"]),
    ],
)
def test_partitions_that_are_added_or_dropped_are_read_again(said: str, emptied: list[str], read: list[str]) -> None:
    """M40: the log does not contain which rows were inserted or deleted; the end of the backfill deletes the missing
    ones."""
    log = Log()
    for table in (T, U):
        one(log, 1, table=table)
    log.standalone(said)
    one(log, 2)
    found = whole(log)
    assert [(r[0], r[1]) for r in rows_of(found)[2:]] == [*((t, "t") for t in emptied), ("t", "c")]
    assert filled(found) == read


@pytest.mark.parametrize(
    ("said", "other"),
    [
        ("DROP TABLE {}t", "elsewhere.`other {}`, "),
        ("RENAME TABLE {}t TO elsewhere.t", "elsewhere.a{0} TO elsewhere.`b {0}`, "),
    ],
)
def test_list_of_many_tables_is_read_to_its_end(said: str, other: str) -> None:
    """M39: a statement may name as many tables as an event has room for."""
    log = Log()
    one(log, 1)
    log.standalone(said.format("".join(other.format(n) for n in range(5000))))
    assert [r[1] for r in rows_of(decoded(log))] == ["c", "t"]


@pytest.mark.parametrize(
    "said",
    [
        "ALTER TABLE t ADD SYSTEM VERSIONING",
        "alter table shop.t add column a timestamp(6) as row start, add system versioning",
        "CREATE OR REPLACE TABLE t (id int PRIMARY KEY, v int) WITH SYSTEM VERSIONING",
        "CREATE TABLE t (id int PRIMARY KEY, v int WITH SYSTEM VERSIONING)",
    ],
)
def test_table_that_keeps_history_fails_before_its_rows(said: str) -> None:
    """M61: after the statement an update consists of an update of the current row and an insert of the old one."""
    log = Log("mariadb")
    one(log, 1)
    log.standalone(said)
    one(log, 2)
    found = reader(log, tables=TestTables(versioned=frozenset([T.id])))
    first = found.feed(log.dump())[0]
    assert isinstance(first, ChangesRefused)
    assert first.is_checked
    assert "is system-versioned" in first.reason
    assert "DROP SYSTEM VERSIONING" in first.reason


def test_history_that_was_ended_since_stops_nothing() -> None:
    """M61: the remedy was followed; the end of the history requests that the table be read again."""
    log = Log("mariadb")
    log.standalone("ALTER TABLE t ADD SYSTEM VERSIONING")
    log.standalone("ALTER TABLE t DROP SYSTEM VERSIONING")
    assert filled(whole(log)) == ["t"]


def test_other_ddl_is_reported_and_requests_the_shape_again() -> None:
    """M35: nothing depends on what a statement means; the next table map is described again."""
    log = Log()
    one(log, 1)
    log.standalone("ALTER TABLE t COMMENT 'unheard of' FROBNICATE")
    one(log, 2)
    found = decoded(log)
    assert found.tables.told == [TableId("shop", "t")]
    assert found.tables.asked == [TableId("shop", "t")] * 2
    assert ids_of(found) == [1, 2]


@pytest.mark.parametrize(
    "said",
    """
CREATE INDEX i ON t (v)
CREATE UNIQUE INDEX i ON t (v) LOCK=NONE
DROP INDEX i ON t
CREATE OR REPLACE VIEW t_seen AS SELECT * FROM t
ALTER VIEW t_seen AS SELECT id FROM t
DROP VIEW IF EXISTS t_seen
CREATE DEFINER=`root`@`%` TRIGGER g AFTER INSERT ON t FOR EACH ROW DELETE FROM u WHERE id = NEW.id
DROP TRIGGER g
CREATE DEFINER=`root`@`%` EVENT e ON SCHEDULE EVERY 1 DAY DO TRUNCATE TABLE t
ALTER EVENT e DISABLE
DROP EVENT e
CREATE PROCEDURE p() DELETE FROM t
CREATE FUNCTION f() RETURNS int RETURN (SELECT count(*) FROM t)
ALTER PROCEDURE p COMMENT 'DROP TABLE t'
DROP PROCEDURE p
DROP FUNCTION f
CREATE PACKAGE a AS PROCEDURE p(); END
CREATE SEQUENCE s START WITH 5
ALTER SEQUENCE s RESTART 5
DROP SEQUENCE s
CREATE TABLESPACE x ADD DATAFILE 'x.ibd'
ALTER TABLESPACE x RENAME TO y
DROP TABLESPACE y
CREATE UNDO TABLESPACE u ADD DATAFILE 'u.ibu'
CREATE SERVER s FOREIGN DATA WRAPPER mysql OPTIONS (HOST 'h')
CREATE DATABASE other CHARACTER SET latin1
ALTER DATABASE shop CHARACTER SET latin1
CREATE USER u IDENTIFIED BY 'x'
RENAME USER u TO v
SET DEFAULT ROLE NONE TO v
CREATE ROLE r
GRANT SELECT ON t TO v
ANALYZE TABLE t
OPTIMIZE TABLE t
REPAIR TABLE t
CHECK TABLE t
FLUSH TABLES t
CREATE TABLE elsewhere (id int PRIMARY KEY)
CREATE TABLE elsewhere (id int) START TRANSACTION
CREATE TABLE elsewhere LIKE t
CREATE TEMPORARY TABLE t (id int)
REPLACE INTO `percona`.`checksums` SELECT count(*) FROM t /*checksum chunk*/
""".strip().splitlines(),
)
def test_statement_about_no_captured_rows_is_passed_over(said: str) -> None:
    """A stop, or a table that is read again, for each view that a client creates would serve nothing."""
    log = Log("mariadb")
    one(log, 1)
    log.standalone(said)
    one(log, 2)
    found = whole(log)
    assert [r[1] for r in rows_of(found)] == ["c", "c"]
    assert filled(found) == []


@pytest.mark.parametrize(
    ("said", "filled"),
    [
        ("ALTER TABLE t ADD COLUMN w int DEFAULT 7", True),
        ("ALTER TABLE t ADD w int NOT NULL", True),
        ("alter table shop.t add (w datetime default now())", True),
        ("ALTER TABLE t ADD w int AS (id + 1) STORED", True),
        ("ALTER TABLE t ADD w int AUTO_INCREMENT UNIQUE", True),
        ("ALTER TABLE t RENAME COLUMN v TO w", True),
        ("ALTER TABLE t CHANGE COLUMN IF EXISTS v w text", True),
        ("ALTER TABLE t CHANGE v `V` text", True),
        ("ALTER TABLE t CHANGE V `v` varchar(300)", False),
        ("ALTER TABLE t CHANGE v `V` varchar(300)", True),
        ("ALTER TABLE t ADD COLUMN w int DEFAULT NULL, ADD INDEX (w)", False),
        ("ALTER TABLE t ADD w int COMMENT 'DEFAULT 7'", False),
        ("ALTER TABLE t MODIFY v varchar(300) DEFAULT 'x'", False),
        ("ALTER TABLE t MODIFY v varchar(10)", True),
        ("ALTER TABLE t MODIFY nowhere varchar(300)", True),
        ("ALTER IGNORE TABLE t ADD UNIQUE KEY (v)", True),
        ("ALTER TABLE elsewhere.t ADD COLUMN w int DEFAULT 7", False),
    ],
)
def test_statement_that_gives_old_rows_values_is_reported_before_anything_after_it(said: str, filled: bool) -> None:
    """P18: what the log does not contain has to be read; the request precedes it, so a crash cannot lose it."""
    log = Log()
    one(log, 1)
    log.standalone(said)
    one(log, 2)
    found = decoded(log)
    assert [(e.table, n) for n, e in enumerate(found.events) if isinstance(e, RowsFilled)] == [(T.id, 0)] * filled
    assert ids_of(found) == [1, 2]


@pytest.mark.parametrize(
    ("before", "read"),
    [
        (["CREATE TABLE _t_gho LIKE t", "ALTER TABLE _t_gho ADD INDEX (v), ADD w int NULL"], []),
        (["create table `shop`.`_t_gho` (like shop.t)"], []),
        (["CREATE TABLE _t_gho LIKE t", "ALTER TABLE _t_gho ADD w int DEFAULT 5"], ["t"]),
        (["CREATE TABLE _t_gho LIKE t", "ALTER TABLE _t_gho MODIFY v text"], ["t"]),
        (["CREATE TABLE _t_gho LIKE t", "ALTER TABLE _t_gho DROP CHECK c, ADD FULLTEXT INDEX (v)"], []),
        (["CREATE TABLE _t_gho LIKE t", "ALTER TABLE _t_gho ADD UNIQUE INDEX (v)"], ["t"]),
        (["CREATE TABLE _t_gho LIKE t", "CREATE UNIQUE INDEX i ON _t_gho (v)"], ["t"]),
        (["CREATE TABLE _t_gho LIKE t", "ALTER TABLE _t_gho ENGINE=InnoDB, ADD CONSTRAINT CHECK (v > 0)"], ["t"]),
        (["CREATE TABLE _t_gho LIKE t", "ALTER TABLE _t_gho ADD FOREIGN KEY (v) REFERENCES u (id)"], ["t"]),
        (
            ["CREATE TABLE _t_gho LIKE t", "ALTER TABLE _t_gho PARTITION BY LIST (id) (PARTITION p VALUES IN (1))"],
            ["t"],
        ),
        (["CREATE TABLE _t_gho LIKE t", "TRUNCATE TABLE t"], ["t"]),
        (["CREATE TABLE _t_gho LIKE elsewhere.t"], ["t"]),
        (["CREATE TABLE _t_gho LIKE t", "DROP TABLE _t_gho", "CREATE TABLE _t_gho (id int PRIMARY KEY, v int)"], ["t"]),
        (["CREATE TABLE _t_gho LIKE u"], ["t"]),
        (["CREATE TABLE _u_gho LIKE t", "RENAME TABLE _u_gho TO _t_gho"], ["t"]),
        (
            ["CREATE TABLE _t_gho LIKE t", "RENAME TABLE _t_gho TO elsewhere.x", "RENAME TABLE elsewhere.x TO _t_gho"],
            ["t"],
        ),
        (["CREATE TABLE _t_gho LIKE t", "TRUNCATE TABLE _t_gho"], ["t"]),
        ([], ["t"]),
    ],
)
def test_swap_by_a_tool_is_read_again_unless_nothing_can_have_changed(before: list[str], read: list[str]) -> None:
    """M37: a schema change tool gave the rows their new values in a table that is not captured."""
    log = Log()
    one(log, 1)
    for said in [*before, "RENAME TABLE t TO _t_del, _t_gho TO t"]:
        log.standalone(said)
    found = whole(log)
    assert filled(found) == read
    # A snapshot of before may find the new table under the name, and in it less than it has now.
    assert filled(found, swapped=True) == ([] if read else ["t"])


@pytest.mark.parametrize(
    ("said", "emptied", "read"),
    [
        ("RENAME TABLE t TO lhma_2026_11_23_t, lhmn_t TO t", [], ["lhma_2026_11_23_t", "t"]),
        ("RENAME TABLE t TO __t_old, __t_new TO t", [], ["t"]),
        ("RENAME TABLE t TO _t_20261123_del, _t_gho TO t", [], ["t"]),
        ("RENAME TABLE t TO _t_del, elsewhere._t_gho TO t", ["t"], ["t"]),  # not where the tool makes it
        ("RENAME TABLE t TO elsewhere._t_del", ["t"], []),
        ("RENAME TABLE t TO _t_del, _u_gho TO t", ["t"], ["t"]),
        ("RENAME TABLE t TO _t_del, _t_ghost TO t", ["t"], ["t"]),
        ("RENAME TABLE t TO _t_del, t_gho TO t", ["t"], ["t"]),
        ("RENAME TABLE t TO _t_delta", ["t"], []),
    ],
)
def test_tables_of_a_tool_are_recognized_only_by_the_names_it_uses(
    said: str, emptied: list[str], read: list[str]
) -> None:
    """M37: another table's rows under a captured name are not the earlier rows."""
    log = Log()
    one(log, 1)
    log.standalone(said)
    found = whole(log)
    assert [r[0] for r in rows_of(found)[1:]] == emptied
    assert filled(found) == read


def test_definition_is_compared_with_the_last_one_in_the_log() -> None:
    """A shape from before another statement, or from today's catalog, does not show what the column was."""
    log = Log()
    log.standalone("ALTER TABLE t MODIFY v varchar(300)")
    found = whole(log, TestTables(shapes={T.id: shape_of(T)}))
    assert filled(found) == ["t"]


def test_shape_of_a_table_that_was_never_seen_is_read_from_the_catalog() -> None:
    """A table may be truncated before the stream has seen a row of it."""
    log = Log()
    log.standalone("TRUNCATE TABLE t")
    found = reader(log, tables=TestTables(shapes={T.id: shape_of(T)}))
    found.feed(log.dump())
    assert rows_of(found) == [("t", "t", {})]


@pytest.mark.parametrize(
    ("said", "changed"),
    [
        ("CREATE TABLE x (id int)", ["x"]),
        ("CREATE TABLE x LIKE t", ["x"]),
        ("CREATE OR REPLACE TABLE t (id int)", ["t"]),
        ("CREATE TABLE t (id int) WITH SYSTEM VERSIONING", ["t"]),
        ("CREATE OR REPLACE TABLE t (id int) WITH SYSTEM VERSIONING", ["t"]),
        ("ALTER TABLE t ADD SYSTEM VERSIONING", ["t"]),
        ("ALTER TABLE t ADD INDEX (v)", ["t"]),
        ("ALTER TABLE t ADD w int NOT NULL", ["t"]),
        ("TRUNCATE TABLE t", ["t"]),
        ("DROP TABLE t, x", ["t", "x"]),
        ("DROP DATABASE shop", ["t"]),
        ("RENAME TABLE t TO x, x TO y", ["t", "x", "y"]),
        ("ALTER TABLE t EXCHANGE PARTITION p WITH TABLE x", ["t", "x"]),
        ("ALTER TABLE t DISCARD TABLESPACE", ["t"]),
        ("ALTER TABLE t IMPORT TABLESPACE", ["t"]),
        ("ALTER TABLE t CONVERT PARTITION p TO TABLE x", ["t", "x"]),
        ("ALTER TABLE t CONVERT TABLE x TO PARTITION p VALUES LESS THAN (9)", ["t", "x"]),
        ("CREATE INDEX i ON t (v)", [None]),
        ("FLUSH TABLES", []),
        ("CREATE TEMPORARY TABLE t (id int)", []),
    ],
)
def test_tables_that_a_statement_named_are_looked_up_again(said: str, changed: list[str | None]) -> None:
    """M33: their shapes, and whether they are captured, may differ after the statement; the other tables are not
    queried."""
    log = Log("mariadb")
    one(log, 1)
    log.standalone(said)
    found = whole(log)
    assert {None if t is None else t.name for t in found.tables.told} == set(changed)


@pytest.mark.parametrize(
    ("name", "is_shadow"),
    [
        ("_t_gho", True),
        ("_t_new", True),
        ("__t_new", True),
        ("lhmn_t", True),
        ("t_gho", False),
        ("_t_ghost", False),
        ("_x_gho", False),
        ("_tt_gho", False),
        ("lhmn_tt", False),
        ("xlhmn_t", False),
        ("_t_del", False),
    ],
)
def test_which_tables_have_the_rows_of_the_one_that_they_replace(name: str, is_shadow: bool) -> None:
    """M37: by the names that the tools give them; any other table that takes a name has its own rows."""
    log = Log()
    one(log, 1)
    log.standalone(f"CREATE TABLE `{name}` LIKE t")
    log.standalone(f"RENAME TABLE t TO _t_old, `{name}` TO t")
    found = whole(log)
    # Only gh-ost always copies all rows: pt-online-schema-change and LHM have options for some.
    has_all = name == "_t_gho"
    assert filled(found, swapped=True) == (["t"] if has_all else [])
    assert filled(found) == ([] if has_all else ["t"])
    assert [(r[0], r[1]) for r in rows_of(found)[1:]] == ([] if is_shadow else [("t", "t")])


@pytest.mark.parametrize(
    ("name", "is_left_over"),
    [
        ("_t_del", True),
        ("_t_old", True),
        ("__t_old", True),
        ("_t_20240102030405_del", True),
        ("lhma_2024_01_02_t", True),
        ("t_old", False),
        ("_t_older", False),
        ("_t_x_del", False),
        ("_x_del", False),
        ("lhma_t", False),
        ("lhma_x_t", False),
        ("elsewhere._t_del", False),
    ],
)
def test_which_name_a_table_gets_that_was_only_renamed_temporarily(name: str, is_left_over: bool) -> None:
    """M37: another table takes its place immediately afterwards; a table that got any other name is gone."""
    log = Log()
    one(log, 1)
    log.standalone(f"RENAME TABLE t TO {name}")
    assert [(r[0], r[1]) for r in rows_of(whole(log))[1:] if r[0] == "t"] == ([] if is_left_over else [("t", "t")])
