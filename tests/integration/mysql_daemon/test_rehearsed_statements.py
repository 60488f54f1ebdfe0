"""`cdcflow plan --ddl` before each statement, and what the capture then really did on MySQL and MariaDB."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.integration.mysql_daemon.test_statements import following
from tests.servers.mysql import MySQLDatabase
from tests.support.daemon.mysql_bank import MySQLBank

from cdcflow import wiring
from cdcflow.config import load
from cdcflow.model.table import TableId

pytestmark = [pytest.mark.mysql, pytest.mark.long]

ACTIONS = {
    "nullable": "ADD COLUMN c int",
    "several": "ADD COLUMN c int NULL AFTER id, ADD INDEX (v)",
    "filled": "ADD COLUMN c int NOT NULL DEFAULT 7",
    "computed": "ADD COLUMN c int AS (v + 1) STORED",
    "dropped": "DROP COLUMN w",
    "readded": "DROP COLUMN w, ADD COLUMN w int",
    "renamed": "RENAME COLUMN w TO x",
    "changed": "CHANGE w x varchar(20)",
    "bigger": "MODIFY v bigint",
    "smaller": "MODIFY v smallint",
    "signs": "MODIFY v int unsigned",
    "longer": "MODIFY w varchar(40)",
    "shorter": "MODIFY w varchar(5)",
    "recoded": "MODIFY w varchar(20) CHARACTER SET latin1",
    "labels": "MODIFY e enum('b', 'a', 'c')",
    "settings": "ALTER COLUMN v SET DEFAULT 3",
    "indexed": "ADD UNIQUE INDEX u (v), COMMENT 'DROP COLUMN v'",
    "other_key": "DROP PRIMARY KEY, ADD PRIMARY KEY (id, v)",
    "converted": "CONVERT TO CHARACTER SET utf8mb4",
    "rebuilt": "ENGINE = InnoDB, FORCE",
    "parted": "PARTITION BY HASH (id) PARTITIONS 2",
}
COLUMNS = "id int NOT NULL, v int NOT NULL, w varchar(20), e enum('a', 'b'), PRIMARY KEY (id)"


def test_each_statement_does_what_was_foretold(mysql_database: MySQLDatabase, tmp_path: Path) -> None:
    """Whether the table is read again, its columns, and its rows in the log. After a row of the smaller type a larger
    one reads nothing."""
    bank = MySQLBank(mysql_database, tmp_path, create=False)
    bank.tables = tuple(ACTIONS)
    bank.database.execute(
        *(f"CREATE TABLE {t} ({COLUMNS}) CHARACTER SET utf8mb4" for t in ACTIONS),
        *(f"INSERT INTO {t} VALUES (1, 1, 'x', 'a'), (2, 2, 'y', 'b')" for t in ACTIONS),
    )
    foretold = {}
    config = load(bank.config_path)
    with following(bank) as seen:
        bank.database.execute(*(f"UPDATE {t} SET v = 5 WHERE id = 1" for t in ACTIONS))
        for table, action in ACTIONS.items():
            statement = f"ALTER TABLE {bank.schema}.{table} {action}"
            [foretold[table]] = wiring.rehearse_ddl(config, statement).tables
            bank.database.execute(statement, f"UPDATE {table} SET v = 6 WHERE id = 1")
    effects = {t: "read again" if t in seen else "nothing" for t in ACTIONS}
    assert {t: f.effect for t, f in foretold.items() if f.effect not in (effects[t], "depends")} == {}
    assert {t: effects[t] for t, f in foretold.items() if f.effect == "depends"} == dict.fromkeys(
        ("bigger", "longer", "settings", "indexed"), "nothing"
    )
    shapes = bank.reader.table_shapes()
    for table, found in foretold.items():
        latest = shapes[TableId(bank.schema, table)]
        assert set(found.source_columns) == {c.name for c in latest[max(latest)].columns}, table
    bank.assert_log_equals_source()
