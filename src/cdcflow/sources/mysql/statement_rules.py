"""What each statement on a table of MySQL or MariaDB does to a running capture: the rules of `cdcflow plan --ddl`.

The texts are those of docs/mysql-ddl.md, row by row; a test compares them.
"""

from __future__ import annotations

from cdcflow.sources.engine.statement_rules import StatementRule

RULES = (
    StatementRule(
        "add_null",
        "nothing",
        "`ADD COLUMN` that is NULL in old rows, also `ALGORITHM = INSTANT`, `FIRST`, `AFTER`",
        "nothing",
    ),
    StatementRule(
        "add_filled",
        "read again",
        "`ADD COLUMN` with a default, `NOT NULL`, `AUTO_INCREMENT`, `SERIAL`, `PRIMARY KEY`",
        "read again",
    ),
    StatementRule(
        "add_computed",
        "read again",
        "`ADD COLUMN` `GENERATED ALWAYS AS`, stored or virtual",
        "read again",
    ),
    StatementRule(
        "add_timestamp",
        "read again",
        "`ADD COLUMN … TIMESTAMP` that is not declared NULL (`explicit_defaults_for_timestamp = OFF` fills it)",
        "read again",
    ),
    StatementRule(
        "drop_column",
        "read again",
        "`DROP COLUMN`, also added again under its name",
        "read again: the binary log gives columns no number, so a later column of that name would show the dropped "
        "one's values",
    ),
    StatementRule(
        "rename_column",
        "read again",
        "`RENAME COLUMN`, `CHANGE` to another name, `CHANGE` or `MODIFY` to its name in another case",
        "read again",
    ),
    StatementRule(
        "widen",
        "depends",
        "`MODIFY`, `CHANGE` to a larger whole number (`TINYINT`, `SMALLINT`, `MEDIUMINT`, `INT`, `INTEGER`, `BIGINT`) "
        "of the same sign, or to a longer `VARCHAR` that names no character set; with `NULL`, `NOT NULL`, `DEFAULT`, "
        "`COMMENT`, `FIRST`, `AFTER`, `VISIBLE`, `INVISIBLE`, `SIGNED`",
        "nothing, if a row of the table has arrived since the last statement about it, the name is written exactly "
        "as the column's, the table has no generated columns, and it has a primary key if NULL is newly allowed; "
        "otherwise read again",
    ),
    StatementRule(
        "modify",
        "read again",
        "every other `MODIFY` or `CHANGE`: a shorter type, another type, `NULL` to `NOT NULL`, the labels of an "
        "`ENUM` or `SET`, `zerofill`",
        "read again",
    ),
    StatementRule(
        "recode",
        "read again",
        "`MODIFY … CHARACTER SET`, `COLLATE`",
        "read again, and decoded in the new character set after the statement",
    ),
    StatementRule(
        "column_default",
        "depends",
        "`ALTER COLUMN … SET DEFAULT`, `DROP DEFAULT`, `SET VISIBLE`, `SET INVISIBLE`",
        "nothing; with `DEFAULT` read again if the table has generated columns, which may use it",
    ),
    StatementRule(
        "index",
        "depends",
        "`ADD`, `DROP`, `RENAME`, `ALTER` of `INDEX`, `KEY`, `UNIQUE`, `FULLTEXT`, `SPATIAL`; `ENABLE KEYS`, `DISABLE "
        "KEYS`",
        "nothing, if the table has a primary key, or the statement adds no unique key and drops no index; otherwise "
        "read again: other columns may identify its rows",
    ),
    StatementRule(
        "constraint",
        "nothing",
        "`ADD`, `DROP`, `ALTER` of `CONSTRAINT`, `CHECK`, `FOREIGN KEY`",
        "nothing for the table. What a foreign key cascades: see [mysql.md](mysql.md#limits)",
    ),
    StatementRule(
        "change_key",
        "read again",
        "`ADD PRIMARY KEY`, `DROP PRIMARY KEY`",
        "read again",
    ),
    StatementRule(
        "lose_key",
        "fails",
        "`DROP PRIMARY KEY`, and no key after it",
        "**fails** until it has a key again",
    ),
    StatementRule(
        "recode_table",
        "read again",
        "`CONVERT TO CHARACTER SET`, `DEFAULT CHARACTER SET`, `COLLATE`",
        "read again, and decoded in the new character set. The default counts as well: a later `MODIFY` takes it "
        "without naming it",
    ),
    StatementRule(
        "engine",
        "nothing",
        "`ENGINE = InnoDB`, `ENGINE = RocksDB`, `FORCE`, `ORDER BY`",
        "nothing",
    ),
    StatementRule(
        "lose_transactions",
        "fails",
        "`ENGINE =` one without transactions",
        "**fails**, also if the engine is InnoDB again before the next check",
    ),
    StatementRule(
        "options",
        "nothing",
        "options that do not affect values: `ALGORITHM`, `AUTOEXTEND_SIZE`, `AUTO_INCREMENT`, `AVG_ROW_LENGTH`, "
        "`CHECKSUM`, `COMMENT`, `COMPRESSION`, `ENCRYPTED`, `ENCRYPTION`, `ENCRYPTION_KEY_ID`, `KEY_BLOCK_SIZE`, "
        "`LOCK`, `MAX_ROWS`, `MIN_ROWS`, `NOWAIT`, `PACK_KEYS`, `PAGE_CHECKSUM`, `PAGE_COMPRESSED`, "
        "`PAGE_COMPRESSION_LEVEL`, `ROW_FORMAT`, `STATS_AUTO_RECALC`, `STATS_PERSISTENT`, `STATS_SAMPLE_PAGES`, "
        "`TRANSACTIONAL`, `WAIT`, `WITH VALIDATION`, `WITHOUT VALIDATION`",
        "nothing",
    ),
    StatementRule(
        "other_option",
        "read again",
        "any other option or clause, such as `UNION`, `DATA DIRECTORY`, `SECONDARY_ENGINE`, `TABLESPACE`",
        "read again",
    ),
    StatementRule(
        "ignore",
        "read again",
        "`ALTER IGNORE TABLE` (MariaDB: drops rows that a new key does not allow)",
        "read again",
    ),
    StatementRule(
        "versioning",
        "fails",
        "`ADD SYSTEM VERSIONING`, `WITH SYSTEM VERSIONING` (MariaDB)",
        "**fails**: after it the log mixes old and current rows",
    ),
    StatementRule(
        "no_versioning",
        "read again",
        "`DROP SYSTEM VERSIONING`, `ADD PERIOD`, `DROP PERIOD`",
        "read again; rows logged since `ADD SYSTEM VERSIONING` are skipped",
    ),
    StatementRule(
        "partition",
        "nothing",
        "`PARTITION BY`, `REMOVE PARTITIONING`, `ADD`, `COALESCE`, `REORGANIZE`, `REBUILD`, `ANALYZE`, `CHECK`, "
        "`OPTIMIZE PARTITION`",
        "nothing: the same rows in other places",
    ),
    StatementRule(
        "repair_part",
        "read again",
        "`REPAIR PARTITION`",
        "read again: it may drop rows",
    ),
    StatementRule(
        "drop_part",
        "read again",
        "`TRUNCATE`, `DROP PARTITION`",
        "read again",
    ),
    StatementRule(
        "exchange_part",
        "read again",
        "`EXCHANGE PARTITION … WITH TABLE`",
        "read again, both tables",
    ),
    StatementRule(
        "tablespace",
        "nothing",
        "`CREATE`, `ALTER`, `DROP` of `TABLESPACE`, `UNDO TABLESPACE`, `LOGFILE GROUP`",
        "nothing",
    ),
    StatementRule(
        "create_table",
        "added",
        "`CREATE TABLE`, `CREATE TABLE … LIKE`",
        "nothing; the next check adds it if the settings select it, and one without a key is skipped until it has one",
    ),
    StatementRule(
        "temporary",
        "nothing",
        "`CREATE`, `DROP TEMPORARY TABLE`",
        "nothing",
    ),
    StatementRule(
        "drop_table",
        "emptied",
        "`TRUNCATE TABLE`, `DROP TABLE` of any number of tables, `DROP DATABASE`, `DROP SCHEMA`",
        "emptied",
    ),
    StatementRule(
        "rename_table",
        "emptied",
        "`RENAME TABLE`, `ALTER TABLE … RENAME`, to a name that is not captured",
        "emptied. A table whose name is not ASCII is also read again if it still exists: MariaDB 11.8.6 leaves it, "
        "with its rows, where an ALTER copied it",
    ),
    StatementRule(
        "maintain",
        "nothing",
        "`ANALYZE`, `OPTIMIZE`, `REPAIR`, `CHECK TABLE`, `FLUSH`",
        "nothing",
    ),
    StatementRule(
        "create_index",
        "depends",
        "`CREATE INDEX`, `DROP INDEX`",
        "nothing, if the table has a primary key, or the index is new and not `UNIQUE`; otherwise read again, as after "
        "an `ALTER TABLE`",
    ),
    StatementRule(
        "view",
        "nothing",
        "`CREATE`, `ALTER`, `DROP VIEW`",
        "nothing; a view that the settings name is refused",
    ),
    StatementRule(
        "routine",
        "nothing",
        "`CREATE`, `ALTER`, `DROP` of `TRIGGER`, `EVENT`, `PROCEDURE`, `FUNCTION`, `PACKAGE`, whatever their bodies "
        "say",
        "nothing",
    ),
    StatementRule(
        "sequence",
        "nothing",
        "`CREATE`, `ALTER`, `DROP SEQUENCE` (MariaDB)",
        "nothing: sequences are not captured",
    ),
    StatementRule(
        "users",
        "nothing",
        "`CREATE`, `ALTER`, `DROP`, `RENAME` of `USER`, `ROLE`, `SERVER`; `GRANT`, `REVOKE`, `SET PASSWORD`, `SET "
        "DEFAULT ROLE`",
        "nothing in the log; doctor names a right that is missing",
    ),
)

BY_KIND = {rule.kind: rule for rule in RULES}
