"""What a statement of MySQL or MariaDB will do, by its text and the current tables."""

from __future__ import annotations

import pytest

from cdcflow.errors import ConfigurationError
from cdcflow.model.table import Column, Table, TableId
from cdcflow.model.types import ColumnType
from cdcflow.sources.engine.statement_rules import StatementPart, edit_table
from cdcflow.sources.mysql.events import Query
from cdcflow.sources.mysql.rehearsed_statements import StatementTables, number_by_name, statement_parts
from cdcflow.sources.mysql.sql import split_statements
from cdcflow.sources.mysql.statements import OtherDdl, statement_of
from cdcflow.sources.mysql.table_names import TableNames
from cdcflow.sources.mysql.types.columns import Policy
from cdcflow.sources.mysql.types.names import column_type

COLUMNS = {"id": "int", "v": "int", "w": "varchar(20)", "e": "enum('a','b')"}


def type_of(table: TableId, column: str, text: str) -> ColumnType:
    return column_type(table, column, text, Policy())


def shape(name: str = "t", schema: str = "shop") -> Table:
    columns = [Column(n, 0, type_of(TableId(schema, name), n, text)) for n, text in COLUMNS.items()]
    table = Table(TableId(schema, name), 1, tuple(columns), ("id",))
    return edit_table(table, (), type_of, number_by_name)


T = shape()


def parts(text: str, *tables: Table, mode: int = 0) -> list[StatementPart]:
    known = {t.id: t for t in tables or (T, shape("u"))}
    return statement_parts(text, StatementTables(known, lambda t: t.schema == "shop", "mariadb", TableNames(mode)))


def after(text: str) -> Table:
    return edit_table(T, [edit for part in parts(text) for edit in part.edits], type_of, number_by_name)


@pytest.mark.parametrize(
    ("clauses", "kinds", "effect"),
    [
        ("ADD x int", "add_null", "nothing"),
        ("ADD COLUMN IF NOT EXISTS v int NOT NULL", "add_filled", "read again"),
        ("ADD x varchar(9) NULL AFTER id, ALGORITHM=INSTANT", "add_null options", "nothing"),
        ("ADD (x int, y int DEFAULT 5)", "add_null add_filled", "read again"),
        ("ADD x int NOT NULL", "add_filled", "read again"),
        ("ADD x int AS (v + 1) STORED", "add_computed", "read again"),
        ("ADD x timestamp", "add_timestamp", "read again"),
        ("DROP COLUMN v", "drop_column", "read again"),
        ("DROP v, ADD v int", "drop_column add_null", "read again"),
        ("RENAME COLUMN v TO z", "rename_column", "read again"),
        ("CHANGE v z int", "rename_column", "read again"),
        ("CHANGE v V int", "rename_column", "read again"),
        ("MODIFY v bigint", "widen", "depends"),
        ("MODIFY v smallint", "modify", "read again"),
        ("MODIFY v int unsigned", "modify", "read again"),
        ("MODIFY w varchar(40)", "widen", "depends"),
        ("MODIFY w varchar(4)", "modify", "read again"),
        ("MODIFY w text", "modify", "read again"),
        ("MODIFY w varchar(40) CHARACTER SET latin1", "recode", "read again"),
        ("MODIFY e enum('a', 'b', ',)')", "modify", "read again"),
        ("ALTER COLUMN v SET DEFAULT 7", "column_default", "depends"),
        ("ADD INDEX (v), DROP INDEX i, ADD UNIQUE KEY k (w)", "index index index", "depends"),
        (
            "ADD INDEX (v), RENAME KEY k TO l, ALTER INDEX i INVISIBLE, DISABLE KEYS",
            "index index index index",
            "nothing",
        ),
        ("ADD CONSTRAINT c UNIQUE (v), DROP CONSTRAINT d", "index index", "depends"),
        ("ADD CONSTRAINT c FOREIGN KEY (v) REFERENCES u (id), DROP FOREIGN KEY f", "constraint constraint", "nothing"),
        ("DROP PRIMARY KEY, ADD PRIMARY KEY (v, id)", "change_key change_key", "read again"),
        ("DROP PRIMARY KEY", "lose_key", "fails"),
        ("CONVERT TO CHARACTER SET utf8mb4", "recode_table", "read again"),
        ("DEFAULT CHARACTER SET latin1", "recode_table", "read again"),
        ("ENGINE = InnoDB, FORCE", "engine engine", "nothing"),
        ("ENGINE = MyISAM", "lose_transactions", "fails"),
        ("COMMENT 'DROP COLUMN v', AUTO_INCREMENT = 99", "options options", "nothing"),
        ("DATA DIRECTORY '/x'", "other_option", "read again"),
        ("ADD SYSTEM VERSIONING", "versioning", "fails"),
        ("DROP SYSTEM VERSIONING", "no_versioning", "read again"),
        ("REMOVE PARTITIONING", "partition", "nothing"),
        ("REPAIR PARTITION p0", "repair_part", "read again"),
        ("DROP PARTITION p0, p1", "drop_part", "read again"),
        ("EXCHANGE PARTITION p0 WITH TABLE shop.u", "exchange_part exchange_part", "read again"),
    ],
)
def test_clauses_of_alter_table(clauses: str, kinds: str, effect: str) -> None:
    """Whether values change is decided by the parser of the binary log; the rule must not contradict it."""
    found = parts(f"ALTER TABLE shop.t {clauses}")
    assert [part.rule.kind for part in found] == kinds.split()
    order = ("fails", "read again", "depends", "nothing")
    assert min((part.effect for part in found), key=order.index) == effect
    statement = statement_of(Query("", f"ALTER TABLE shop.t {clauses}"))
    if isinstance(statement, OtherDdl):
        altered = statement.altered
        depends = altered.redefined or altered.defaults or altered.keys
        reads = "read again" if altered.fills else "depends" if depends else "nothing"
        assert effect in (reads, "fails") or (reads, effect) == ("depends", "read again")


@pytest.mark.parametrize(
    ("text", "effects"),
    [
        ("TRUNCATE TABLE t", {"shop.t": "emptied"}),
        ("DROP TABLE IF EXISTS shop.t, elsewhere.x", {"shop.t": "emptied", "elsewhere.x": "not captured"}),
        ("DROP DATABASE shop", {"shop.t": "emptied", "shop.u": "emptied"}),
        ("RENAME TABLE shop.t TO archive.t", {"shop.t": "emptied"}),
        ("ALTER TABLE shop.t RENAME TO t9", {"shop.t": "emptied", "shop.t9": "added"}),
        ("CREATE TABLE shop.x (id int PRIMARY KEY)", {"shop.x": "added"}),
        ("CREATE TEMPORARY TABLE x (id int)", {"None": "nothing"}),
        ("CREATE INDEX i ON t (v)", {"None": "nothing"}),
        ("CREATE UNIQUE INDEX i ON t (v)", {"None": "depends"}),
        ("DROP INDEX i ON t", {"None": "depends"}),
        ("CREATE OR REPLACE VIEW v AS SELECT 1", {"None": "nothing"}),
        ("CREATE DEFINER=`a`@`b` TRIGGER x BEFORE INSERT ON t FOR EACH ROW DELETE FROM t", {"None": "nothing"}),
        ("ALTER IGNORE TABLE shop.t ADD UNIQUE KEY (v)", {"shop.t": "depends"}),
        ("ALTER TABLE elsewhere.x DROP COLUMN v", {"elsewhere.x": "not captured"}),
        ("OPTIMIZE TABLE t", {"None": "nothing"}),
    ],
)
def test_statement_about_whole_tables(text: str, effects: dict[str, str]) -> None:
    assert {str(part.table): part.effect for part in parts(text)} == effects


@pytest.mark.parametrize(
    "text",
    [
        "ALTER TABLE shop.t FROBNICATE",
        "ALTER TABLE shop.t ADD INDEX (v), FROBNICATE",
        "UPDATE shop.t SET v = 1",
        "CREATE OR REPLACE TABLE shop.t (id int)",
        "RENAME TABLE shop.t TO shop.x, shop.u TO shop.t",
        "RENAME TABLE shop._t_gho TO shop.x",
        "ALTER TABLE shop.t RENAME x, DROP COLUMN v",
        "TRUNCATE TABLE nowhere",
        "CREATE TABLE shop.x SELECT 1 AS id",
        "ALTER TABLE shop.t IMPORT TABLESPACE",
        "SELECT 1",
    ],
)
def test_statement_that_is_not_known_is_refused(text: str) -> None:
    """The capture would read the table again to be safe; a rehearsal does not guess."""
    with pytest.raises(ConfigurationError, match="plan --ddl"):
        parts(text)


def test_columns_after_a_statement() -> None:
    """A rename is a new column: the binary log gives columns no number."""
    found = after(
        "ALTER TABLE shop.t RENAME COLUMN v TO w, RENAME COLUMN w TO v, ADD x decimal(9,2) NULL, DROP e,"
        " MODIFY ID bigint unsigned"
    )
    assert [(c.name, str(c.type.arrow)) for c in found.columns] == [
        ("ID", "uint64"),
        ("w", "int32"),
        ("v", "string"),
        ("x", "decimal128(9, 2)"),
    ]
    numbers = {c.name: c.number for c in T.columns}
    assert [c.number for c in found.columns[1:3]] == [numbers["w"], numbers["v"]]
    assert after("ALTER TABLE shop.t CHANGE id number int").key == ("number",)
    assert after("ALTER TABLE shop.t DROP PRIMARY KEY, ADD PRIMARY KEY (v, id)").key == ("v", "id")


def test_names_in_another_case_are_those_of_the_server() -> None:
    assert parts("TRUNCATE TABLE SHOP.T", mode=1)[0].table == T.id
    assert parts("TRUNCATE TABLE SHOP.T")[0].effect == "not captured"


def test_statements_are_split_outside_of_quotes_and_comments() -> None:
    text = "ALTER TABLE t ADD `a;b` int; -- no; more\nTRUNCATE t /* ; */; SET @a = ';'"
    assert [one.split()[0] for one in split_statements(text, "mysql")] == ["ALTER", "--", "SET"]
