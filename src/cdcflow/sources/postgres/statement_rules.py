"""What each statement on a table of PostgreSQL does to a running capture: the rules of `cdcflow plan --ddl`.

The texts are those of docs/postgres-ddl.md, row by row; a test compares them.
"""

from __future__ import annotations

from cdcflow.sources.engine.statement_rules import StatementRule

RULES = (
    StatementRule(
        "add_null",
        "nothing",
        "`ADD COLUMN` without a default",
        "nothing: old rows have NULL",
    ),
    StatementRule(
        "add_constant",
        "nothing",
        "`ADD COLUMN … DEFAULT` constant, also `NOT NULL`",
        "nothing: the constant for older rows is kept with the column",
    ),
    StatementRule(
        "add_unkept",
        "depends",
        "… of an `interval`, an infinite date or number, a year before 1 or after 9999, a list of several dimensions",
        "read again, unless a setting makes the column a text: readers do not agree on such constants",
    ),
    StatementRule(
        "rewrite_constant",
        "read again",
        "… and a `VACUUM FULL` or another rewrite before the next check or row",
        "read again: the constant is gone from the catalog",
    ),
    StatementRule(
        "add_volatile",
        "read again",
        "`ADD COLUMN … DEFAULT random()`, `now()` per row, or any volatile default",
        "read again",
    ),
    StatementRule(
        "add_counted",
        "read again",
        "`ADD COLUMN … serial`, `GENERATED … AS IDENTITY`",
        "read again",
    ),
    StatementRule(
        "add_stored",
        "depends",
        "`ADD COLUMN … GENERATED ALWAYS AS (…) STORED`",
        "18: read again; before 18 the server does not publish the column, and no table has it",
    ),
    StatementRule(
        "add_virtual",
        "nothing",
        "`ADD COLUMN … GENERATED ALWAYS AS (…) VIRTUAL` (18)",
        "nothing: the server does not publish it, and no table has it",
    ),
    StatementRule(
        "drop_column",
        "nothing",
        "`DROP COLUMN`, also added again under its name",
        "nothing: columns are identified by number, so the new one is another column. Read again where a row is from "
        "about the time of both and the types do not distinguish the old column from the new one",
    ),
    StatementRule(
        "retype_values",
        "read again",
        "`ALTER COLUMN … TYPE` with `USING`, or to a type that stores values differently",
        "read again",
    ),
    StatementRule(
        "retype_meaning",
        "read again",
        "`ALTER COLUMN … TYPE` that keeps the bytes and changes their meaning (`timestamp` to `timestamptz`, `cidr` "
        "to `inet`)",
        "read again",
    ),
    StatementRule(
        "retype_name",
        "nothing",
        "`ALTER COLUMN … TYPE` that changes neither (`varchar(10)` to `text`)",
        "nothing",
    ),
    StatementRule(
        "set_expression",
        "depends",
        "`SET EXPRESSION AS` (17)",
        "18: read again; 17 does not publish the column",
    ),
    StatementRule(
        "drop_expression",
        "depends",
        "`DROP EXPRESSION`",
        "before 18 read again, because the values were never sent; since 18 nothing",
    ),
    StatementRule(
        "column_default",
        "nothing",
        "`SET DEFAULT`, `DROP DEFAULT`, `SET NOT NULL`, `DROP NOT NULL`",
        "nothing",
    ),
    StatementRule(
        "column_identity",
        "nothing",
        "`ADD GENERATED … AS IDENTITY` on an existing column, `SET GENERATED`, `RESTART`, `DROP IDENTITY`",
        "nothing",
    ),
    StatementRule(
        "column_storage",
        "nothing",
        "`SET STATISTICS`, `SET (n_distinct)`, `RESET`, `SET STORAGE`, `SET COMPRESSION`",
        "nothing",
    ),
    StatementRule(
        "rename_column",
        "nothing",
        "`RENAME COLUMN`, two columns that change names",
        "nothing: a column is its number",
    ),
    StatementRule(
        "constraint",
        "nothing",
        "`ADD CONSTRAINT` (`CHECK`, `FOREIGN KEY`, `UNIQUE`, `NOT NULL`, `EXCLUDE`, `NOT VALID`, `USING INDEX`), "
        "`VALIDATE`, `ALTER CONSTRAINT`, `RENAME CONSTRAINT`, `DROP CONSTRAINT`",
        "nothing",
    ),
    StatementRule(
        "change_key",
        "nothing",
        "`DROP` of the primary key and `ADD` of another",
        "the next row has the new key; the merge requires a backfill of a table whose key changed",
    ),
    StatementRule(
        "lose_key",
        "fails",
        "`DROP` of the primary key, and none after it",
        "the server refuses updates and deletes; the table **fails** until it has a key or `REPLICA IDENTITY FULL`",
    ),
    StatementRule(
        "double_key",
        "read again",
        "`DROP` and `ADD` of the primary key of a table with `REPLICA IDENTITY FULL`, whose rows do not tell which "
        "columns were the key",
        "read again",
    ),
    StatementRule(
        "same_key",
        "nothing",
        "`RENAME` of a key's column or constraint, `REINDEX`, also `CONCURRENTLY`",
        "nothing: it is the same key",
    ),
    StatementRule(
        "identity",
        "nothing",
        "`REPLICA IDENTITY FULL`, `DEFAULT`, `USING INDEX`",
        "counts from the next row",
    ),
    StatementRule(
        "lose_identity",
        "fails",
        "`REPLICA IDENTITY NOTHING`, or the identity's index dropped",
        "a captured table **fails**; refused with an error if it is not captured yet",
    ),
    StatementRule(
        "triggers",
        "nothing",
        "`ENABLE`, `DISABLE`, `ALWAYS`, `REPLICA` of `TRIGGER` and `RULE`",
        "nothing: changes by a trigger or a rule are in the log like any other",
    ),
    StatementRule(
        "row_security",
        "nothing",
        "`ENABLE`, `DISABLE`, `FORCE`, `NO FORCE ROW LEVEL SECURITY`",
        "nothing in the stream; a backfill without `BYPASSRLS` stops with an error",
    ),
    StatementRule(
        "table_settings",
        "nothing",
        "`CLUSTER ON`, `SET WITHOUT CLUSTER`, `SET WITHOUT OIDS`, `SET (fillfactor)`, `RESET`",
        "nothing",
    ),
    StatementRule(
        "tablespace",
        "nothing",
        "`SET TABLESPACE`",
        "nothing after a backfill; a table that is being read is read from the start",
    ),
    StatementRule(
        "access_method",
        "fails",
        "`SET ACCESS METHOD`",
        "the same; with any method other than heap the table **fails**",
    ),
    StatementRule(
        "unlogged",
        "refused",
        "`SET UNLOGGED`",
        "the server refuses it for a table that a publication lists. Under `FOR ALL TABLES` or `TABLES IN SCHEMA` it "
        "does not: what the table had is **kept**, and with `SET LOGGED` it is **read again**, also if both happen "
        "between two checks",
    ),
    StatementRule(
        "inherit",
        "nothing",
        "`INHERIT`, `NO INHERIT`, `OF`, `NOT OF`",
        "nothing: a table that inherits is a separate table",
    ),
    StatementRule(
        "owner",
        "nothing",
        "`OWNER TO`, `GRANT`, `REVOKE`",
        "nothing; a backfill without `SELECT` stops with the `GRANT`",
    ),
    StatementRule(
        "rename_table",
        "added",
        "`RENAME TO`, `SET SCHEMA`",
        "its changes continue under the name under which it was captured; then **added** under its new name, as if "
        "recreated, if the settings select it. What it had under the old name is **kept**",
    ),
    StatementRule(
        "rename_outside",
        "kept",
        "… to a name that the settings do not select",
        "nothing arrives under the new name; what it had is **kept**",
    ),
    StatementRule(
        "create_part",
        "nothing",
        "`CREATE TABLE … PARTITION OF`",
        "nothing: its rows arrive as its root's. If every column has a default, the catalog does not distinguish it "
        "from `ATTACH`",
    ),
    StatementRule(
        "attach_part",
        "read again",
        "`ATTACH PARTITION` of a table with rows",
        "during a backfill they are read with it; then the root is **read again**",
    ),
    StatementRule(
        "detach_part",
        "read again",
        "`DETACH PARTITION`, also `CONCURRENTLY`",
        "the root is **read again**, without its rows. The same if `CONCURRENTLY` was interrupted, although the "
        "catalog still lists the partition. The detached table is **added**, if it is selected",
    ),
    StatementRule(
        "create_table",
        "added",
        "`CREATE TABLE`, `CREATE TABLE AS`, `SELECT INTO`, `CREATE TABLE … (LIKE …)`",
        "**added** if the settings select it; one without a key is skipped until it has one",
    ),
    StatementRule(
        "create_other",
        "nothing",
        "`CREATE TEMPORARY`, `UNLOGGED`, `FOREIGN TABLE`",
        "skipped; refused if the settings name it",
    ),
    StatementRule(
        "drop_table",
        "kept",
        "`DROP TABLE`, `DROP SCHEMA … CASCADE`, `DROP OWNED`",
        "the others continue; **kept**",
    ),
    StatementRule(
        "truncate",
        "emptied",
        "`TRUNCATE`, also of several tables, `CASCADE`, `RESTART IDENTITY`",
        "the log gets one truncate per table",
    ),
    StatementRule(
        "rewrite",
        "depends",
        "`VACUUM FULL`, `CLUSTER`",
        "nothing after a backfill (but see a constant's row above); a table that is being read is read from the "
        "start, and a partitioned one is read again, because the catalog shows `TRUNCATE` of a partition the same "
        "way; so is one that no publication lists by its name, because it shows `SET UNLOGGED` and "
        "`SET LOGGED` the same way",
    ),
    StatementRule(
        "maintain",
        "nothing",
        "`VACUUM`, `ANALYZE`, `REINDEX`, `CREATE`, `ALTER`, `DROP INDEX`, `CREATE STATISTICS`, `COMMENT`, `SECURITY "
        "LABEL`",
        "nothing",
    ),
    StatementRule(
        "other_object",
        "nothing",
        "`CREATE`, `ALTER`, `DROP` of `VIEW`, `MATERIALIZED VIEW`, `SEQUENCE`, `FUNCTION`, `PROCEDURE`, `TRIGGER`, "
        "`RULE`, `POLICY`, `CAST`, `OPERATOR`, `COLLATION`, `EXTENSION`, `SERVER`, `EVENT TRIGGER`, `TEXT SEARCH …`, "
        "`LANGUAGE`, `TRANSFORM`; `REFRESH MATERIALIZED VIEW`, `IMPORT FOREIGN SCHEMA`",
        "nothing: they have no captured rows. A view that the settings name is refused",
    ),
    StatementRule(
        "add_label",
        "nothing",
        "`ALTER TYPE … ADD VALUE`",
        "nothing",
    ),
)

BY_KIND = {rule.kind: rule for rule in RULES}
