"""ALTER TABLE: which clauses may change values of existing rows."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import pytest

from cdcflow.model.table import TableId
from cdcflow.sources.mysql.alters import Altered, Redefined, alter_effects, widens
from cdcflow.sources.mysql.events import Query
from cdcflow.sources.mysql.sql import tokens_of
from cdcflow.sources.mysql.statements import OtherDdl, PartsChanged, Renamed, Several, statement_of
from cdcflow.sources.mysql.types.columns import ServerColumn, TypeCode

UTF8MB4, LATIN1 = 255, 8

HARMLESS = """
ADD COLUMN w int
ADD w int DEFAULT NULL, ADD INDEX (w)
ADD (w int NULL, x varchar(9) COMMENT 'NOT NULL DEFAULT 7')
ADD w timestamp NULL
ADD w int UNIQUE KEY
ADD CONSTRAINT c FOREIGN KEY (a) REFERENCES b (c)
ADD UNIQUE INDEX i (a, b), DROP INDEX j, RENAME INDEX k TO l
DROP FOREIGN KEY f, DROP CONSTRAINT c, DROP CHECK d
ALTER COLUMN v SET DEFAULT 7, ALTER INDEX i INVISIBLE
ENGINE = InnoDB ROW_FORMAT=DYNAMIC, ALGORITHM=INPLACE, LOCK=NONE
COMMENT 'DROP COLUMN v', AUTO_INCREMENT = 99, FORCE
WAIT 5 ADD INDEX (v)
PARTITION BY RANGE (id) (PARTITION p0 VALUES LESS THAN (10), PARTITION p1 VALUES LESS THAN MAXVALUE)
ADD PARTITION (PARTITION p2 VALUES LESS THAN (30))
REORGANIZE PARTITION p0 INTO (PARTITION a VALUES LESS THAN (5), PARTITION b VALUES LESS THAN (10))
REMOVE PARTITIONING
REMOVE PARTITIONING, ENABLE KEYS
DISABLE KEYS
ORDER BY v, WITHOUT VALIDATION
ADD PARTITION (PARTITION p2 VALUES LESS THAN (30)), WITH VALIDATION
ANALYZE PARTITION p0
CHECK PARTITION p0
COALESCE PARTITION 2
OPTIMIZE PARTITION p0
REBUILD PARTITION p0
ADD COLUMN IF NOT EXISTS w int, ADD x varchar(9)
ADD (w decimal(9, 2), x int)
ADD KEY (v), ADD CHECK (v > 0), ADD FULLTEXT INDEX (v), ADD SPATIAL KEY (v), ADD FOREIGN KEY (v) REFERENCES b (c)
ADD CONSTRAINT CHECK (v > 0), ADD CONSTRAINT UNIQUE (v)
DROP INDEX IF EXISTS j, DROP KEY k, RENAME KEY k TO l, RENAME CONSTRAINT c TO d
ALTER v DROP DEFAULT
ENGINE InnoDB, ADD INDEX (v)
ENGINE=RocksDB COMMENT 'x'
NOWAIT ADD INDEX (v)
FORCE, ADD INDEX (v)
ADD w timestamp(6) NULL DEFAULT NULL
ADD w int INVISIBLE COMMENT 'x' AFTER v
ADD serial int, ADD COLUMN generated int, ADD auto_increment int
ADD (serial int, generated int)
ADD PARTITION (PARTITION p2 DEFAULT)
ADD (w int, FOREIGN KEY (w) REFERENCES u (id)), ADD (x int, FULLTEXT KEY (v))
"""
FILLS = """
ADD w int NOT NULL
ADD w int DEFAULT 7
ADD (v int, w datetime default now())
ADD w int AS (id + 1) STORED
ADD w int AUTO_INCREMENT UNIQUE
ADD w timestamp
ADD w timestamp(6) DEFAULT NULL
ADD PRIMARY KEY (v)
ADD CONSTRAINT PRIMARY KEY (v)
ADD w int KEY
ADD PERIOD FOR SYSTEM_TIME (a, b)
DROP v
DROP COLUMN v, ADD COLUMN v int
DROP COLUMN `index`
DROP PRIMARY KEY
DROP SYSTEM VERSIONING
RENAME COLUMN v TO w
CHANGE v w int
MODIFY v text
MODIFY v int unsigned zerofill
MODIFY v varchar(9) CHARACTER SET latin1
MODIFY v varchar(9) COLLATE utf8mb4_bin
MODIFY v bigint AUTO_INCREMENT
MODIFY v int GENERATED ALWAYS AS (id + 1)
MODIFY v enum('a', 'b')
MODIFY v datetime(3)
CONVERT TO CHARACTER SET utf8mb4
DEFAULT CHARACTER SET latin1
COMMENT 'x' COLLATE utf8mb4_bin
ENGINE = MyISAM
ENGINE = InnoDB, DROP v
ENGINE MyISAM
ADD INDEX (v), FROBNICATE
ADD
ADD COLUMN
ADD INDEX (v), DROP v
WAIT 5 DROP v
NOWAIT DROP v
FORCE DROP v
ROW_FORMAT = DYNAMIC DROP v
DROP PARTITION p0
TRUNCATE PARTITION p0
ANALYZE v
WITH SYSTEM VERSIONING
ADD SYSTEM VERSIONING
ADD w int, ADD x int NOT NULL
ADD (w decimal(9, 2), x int DEFAULT 1)
ADD (w int AS (id + (1)), x int)
ADD COLUMN IF NOT EXISTS w int NOT NULL
ADD w int PRIMARY KEY
ADD w serial
ADD w int NULL DEFAULT 7
ADD w int GENERATED ALWAYS AS (1)
ADD w int COMMENT 'x' KEY
ADD w timestamp DEFAULT NULL
ADD w timestamp NOT NULL
ADD CONSTRAINT c PRIMARY KEY (v)
CHANGE COLUMN v w bigint
CHANGE COLUMN IF EXISTS v w bigint
MODIFY v varchar(9) BINARY
MODIFY v bigint, DROP w
MODIFY v bigint DEFAULT (id + 1)
REPAIR PARTITION p0
ADD COLUMN w timestamp
ADD (w timestamp, x int)
ADD (w int, PRIMARY KEY (w))
ADD (w int NULL PRIMARY KEY)
ADD CONSTRAINT `c` PRIMARY KEY (v)
ADD `(` timestamp
ADD (
ADD (w int,
FORCE = 1
MODIFY v varchar(
MODIFY v varchar(300
MODIFY v int NULL x )
MODIFY v int NULL UNSIGNED
"""


def lines(text: str) -> list[str]:
    return text.strip().splitlines()


@pytest.mark.parametrize("said", lines(HARMLESS))
def test_clause_that_changes_no_values_reads_nothing_again(said: str) -> None:
    """Reading a large table again is expensive, and operators run these clauses every day."""
    found = alter_effects(list(tokens_of(said)))
    assert not found.fills
    assert not found.redefined


@pytest.mark.parametrize("said", lines(FILLS))
def test_clause_that_may_change_values_fills(said: str) -> None:
    """P18: the log does not record the new values; a clause that is not known to be harmless counts."""
    assert alter_effects(list(tokens_of(said))).fills


NAMES = ("t", "`t`", "shop.t", "`shop` . `t`", "/* x */ t -- y\n", "/*!50100 t */")
FORMS = ("RENAME {}", "RENAME TO {}", "rename as {}", "RENAME = {}", "/*!80000 RENAME */ {}", "RENAME # x\n TO {}")
ENDLESS = ("ADD (", "ADD (w int,", "MODIFY v varchar(", "MODIFY v varchar(300")


@pytest.mark.parametrize("said", [*lines(HARMLESS), *lines(FILLS)])
def test_rename_to_its_own_name_hides_no_other_clause(said: str) -> None:
    """It renames nothing, in whatever form; every other clause counts, before and after it."""
    alone = statement_of(Query("shop", f"ALTER TABLE t {said}"))
    for form, name in itertools.product(FORMS, NAMES):
        rename = form.format(name)
        assert statement_of(Query("shop", f"ALTER TABLE t {rename}, {said}")) == alone
        assert said in ENDLESS or statement_of(Query("shop", f"ALTER TABLE shop.t {said}, {rename}")) == alone


@pytest.mark.parametrize("said", [*lines(HARMLESS), *lines(FILLS)])
def test_rename_to_another_name_hides_no_other_clause(said: str) -> None:
    """A tool's copy that takes the name of the table may be altered with the same statement."""
    renamed = Renamed(((TableId("shop", "t"), TableId("shop", "u")),))
    alone = statement_of(Query("shop", f"ALTER TABLE u {said}"))
    if isinstance(alone, PartsChanged):
        return  # a statement with partition clauses has no other clauses
    expected = renamed if alone == OtherDdl(TableId("shop", "u")) else Several((renamed, alone))  # type: ignore[arg-type]
    for form in FORMS:
        assert statement_of(Query("shop", f"ALTER TABLE t {form.format('u')}, {said}")) == expected


def test_last_of_several_names_counts() -> None:
    """As the servers do."""
    found = statement_of(Query("shop", "ALTER TABLE t RENAME TO u, ADD w int, RENAME x.v"))
    assert found == Renamed(((TableId("shop", "t"), TableId("x", "v")),))
    assert statement_of(Query("shop", "ALTER TABLE t RENAME u, RENAME t")) == OtherDdl(TableId("shop", "t"))


@pytest.mark.parametrize("number", range(300))
def test_several_clauses_fill_as_soon_as_one_of_them_does(number: int) -> None:
    """Pairs and triples of all clauses: no clause hides the others."""
    dice = random.Random(number)
    harmless = [said for said in lines(HARMLESS) if not said.startswith(NOT_FIRST)]
    fills = [said for said in lines(FILLS) if said not in ENDLESS and not said.startswith(NOT_FIRST)]
    clauses = dice.sample(harmless, dice.choice((1, 2)))
    assert not alter_effects(list(tokens_of(", ".join(clauses)))).fills
    clauses.insert(dice.randint(0, len(clauses)), dice.choice(fills))
    assert alter_effects(list(tokens_of(", ".join(clauses)))).fills


NOT_FIRST = ("PARTITION BY", "ADD (")
"""Clauses that only the last one may be, or that are cut off in the lists."""


def column(code: TypeCode, size: int = 0, *, collation: int | None = None, unsigned: bool = False) -> ServerColumn:
    return ServerColumn("v", code, size, nullable=True, unsigned=unsigned, collation=collation)


INT, UINT = column(TypeCode.LONG), column(TypeCode.LONG, unsigned=True)
REQUIRED = replace(INT, nullable=False)
TEXT, LATIN = column(TypeCode.VARCHAR, 80, collation=UTF8MB4), column(TypeCode.VARCHAR, 20, collation=LATIN1)


@pytest.mark.parametrize(
    ("said", "before", "now", "harmless"),
    [
        ("MODIFY v bigint", INT, INT, True),
        ("MODIFY COLUMN v int(11) DEFAULT 5 COMMENT 'x' AFTER id", INT, INT, True),
        ("MODIFY COLUMN IF EXISTS v bigint FIRST", INT, INT, True),
        ("MODIFY IF EXISTS v int", INT, INT, True),
        ("CHANGE COLUMN V v integer INVISIBLE", INT, INT, True),
        ("MODIFY v bigint NOT NULL", REQUIRED, REQUIRED, True),
        ("MODIFY v bigint COMMENT 'x' DEFAULT 5 NOT NULL", INT, INT, False),
        ("MODIFY v bigint NULL DEFAULT NULL", REQUIRED, INT, True),
        ("MODIFY v mediumint", INT, INT, False),
        ("MODIFY v smallint", INT, INT, False),
        ("MODIFY v tinyint", column(TypeCode.TINY), INT, True),
        ("MODIFY v tinyint", column(TypeCode.SHORT), INT, False),
        ("MODIFY v smallint", column(TypeCode.SHORT), INT, True),
        ("MODIFY v smallint", column(TypeCode.INT24), INT, False),
        ("MODIFY v mediumint", column(TypeCode.INT24), INT, True),
        ("MODIFY v int", column(TypeCode.INT24), INT, True),
        ("MODIFY v int", column(TypeCode.LONGLONG), INT, False),
        ("MODIFY v bigint", column(TypeCode.LONGLONG), INT, True),
        ("MODIFY v bigint", column(TypeCode.FLOAT), INT, False),
        ("MODIFY v varchar(300)", TEXT, INT, False),
        ("MODIFY v varchar(300)", TEXT, LATIN, False),
        ("MODIFY v varchar(300)", column(TypeCode.VARCHAR, 80), TEXT, False),
        ("MODIFY v varchar(300)", TEXT, column(TypeCode.VARCHAR, 80), False),
        ("MODIFY v varchar(19)", LATIN, LATIN, False),
        ("MODIFY v bigint unsigned", INT, INT, False),
        ("MODIFY v bigint", UINT, UINT, False),
        ("CHANGE v v bigint unsigned NULL", UINT, UINT, True),
        ("MODIFY v bigint NOT NULL", INT, INT, False),
        ("MODIFY v varchar(20)", TEXT, TEXT, True),
        ("MODIFY v varchar(19)", TEXT, TEXT, False),
        ("MODIFY v varchar(300)", LATIN, TEXT, False),
        ("MODIFY v varchar(300)", LATIN, LATIN, True),
        ("MODIFY v varchar(300)", INT, TEXT, False),
        ("MODIFY v int", TEXT, INT, False),
        ("MODIFY v varchar(300)", column(TypeCode.CHAR, 80, collation=UTF8MB4), TEXT, False),
        ("MODIFY v varchar(300)", column(TypeCode.VARCHAR, 20, collation=63), TEXT, False),
    ],
)
def test_column_that_only_became_wider_keeps_its_values(
    said: str, before: ServerColumn, now: ServerColumn, harmless: bool
) -> None:
    """Widening is the one change of a type that changes no value."""
    found = alter_effects(list(tokens_of(said)))
    assert not found.fills
    [redefined] = found.redefined
    assert isinstance(redefined, Redefined)
    assert widens(redefined, before, now) is harmless


def test_every_redefined_column_is_reported() -> None:
    """A column that only became wider does not speak for the other one."""
    assert alter_effects(
        list(tokens_of("MODIFY v varchar(300) NOT NULL, ADD INDEX (v), CHANGE w W bigint unsigned"))
    ) == (
        Altered(
            False,
            (
                Redefined("v", "VARCHAR", 300, unsigned=False, nullable=False),
                Redefined("w", "BIGINT", 0, unsigned=True, nullable=True),
            ),
        )
    )


def test_names_and_strings_are_not_keywords() -> None:
    """A column may be called `unsigned`, and a comment may contain anything."""
    found = alter_effects(list(tokens_of("MODIFY `bigint` int COMMENT 'NOT NULL'")))
    assert found.redefined == (Redefined("bigint", "INT", 0, unsigned=False, nullable=True),)
    assert alter_effects(list(tokens_of("MODIFY `v` `int`"))).fills
    assert not alter_effects(list(tokens_of("ADD `,` int, ADD `)` int, ADD `(` int"))).fills
    assert alter_effects(list(tokens_of("ADD (`)` int, x int NOT NULL)"))).fills


def test_text_without_a_stated_size_is_not_wider_than_any() -> None:
    """What is not understood makes nothing harmless."""
    for said in ("MODIFY v varchar", "MODIFY v varchar(x)", "MODIFY v varchar('9')"):
        assert alter_effects(list(tokens_of(said))).redefined == (Redefined("v", "VARCHAR", 0, False, True),)
