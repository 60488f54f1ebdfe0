"""Conditions, policies, new names, computed columns and routes together, from a server to its tables: whatever random
changes and statements do, a table in a cut has exactly the rows that the server finds by the same condition."""

from __future__ import annotations

import contextlib
import os
import random
from pathlib import Path
from typing import Any

import psycopg
import pymysql
import pytest
from tests.servers.mysql import MySQLDatabase
from tests.servers.postgres import PostgresServer
from tests.support.daemon.bank import Bank, Branch
from tests.support.daemon.mysql_bank import MySQLBank
from tests.support.rows.ruled_histories import ALONE, PARTS, TABLES, RuledHistory, Words, plain

from cdcflow import local, wiring
from cdcflow.capture.interleave.progress import Progress
from cdcflow.config import load
from cdcflow.model.table import TableId

SEEDS = [int(seed) for seed in os.environ.get("CDCFLOW_RULED_SEEDS", "1,2").split(",")]
ROUNDS = 4


@pytest.mark.postgres
@pytest.mark.spread(1)
@pytest.mark.parametrize("seed", SEEDS)
def test_tables_have_the_rows_of_the_rules(private_server: PostgresServer, tmp_path: Path, seed: int) -> None:
    """Old rows in the log or not, wide values that updates omit, columns that come, go and come again."""
    database = private_server.create_database(f"ruled_{seed}")
    with database.connect(autocommit=True) as conn:
        conn.execute("SET timezone = 'UTC'")

        def run(*statements: Any) -> None:
            for one in statements:
                conn.execute(*([one] if isinstance(one, str) else one))

        words = Words(
            text="text",
            wide="text",
            document="jsonb",
            moment="timestamptz",
            condition=lambda text: text.replace("->>'$.city'", "->>'city'").replace("TIMESTAMP '", "timestamptz '"),
            run=run,
            query=lambda text: conn.execute(text.replace("doc,", "doc::text,")).fetchall(),
            refused=(psycopg.errors.UniqueViolation,),
            images=lambda dice, table: [
                f"ALTER TABLE {table} ALTER wide SET STORAGE EXTERNAL",
                f"ALTER TABLE {table} REPLICA IDENTITY {dice.choice(['DEFAULT', 'FULL'])}",
            ],
        )
        history = RuledHistory(words, "public", random.Random(seed))
        bank = Bank(database, tmp_path, create=False)
        play(history, bank, lambda: bank.configure(tables=["public.*"]))
    database.drop()


@pytest.mark.mysql
@pytest.mark.long
@pytest.mark.parametrize("seed", SEEDS)
def test_tables_of_mysql_have_the_rows_of_the_rules(mysql_database: MySQLDatabase, tmp_path: Path, seed: int) -> None:
    """Sessions omit columns from the log, and statements show no numbers of columns."""
    with contextlib.closing(mysql_database.connect()) as connection, connection.cursor() as cursor:
        cursor.execute("SET autocommit = 1, time_zone = '+00:00', sql_mode = concat(@@sql_mode, ',PIPES_AS_CONCAT')")

        def run(*statements: Any) -> None:
            for one in statements:
                cursor.execute(*([one] if isinstance(one, str) else one))

        def query(text: str) -> list[tuple[Any, ...]]:
            cursor.execute(text)
            return list(cursor.fetchall())

        def condition(text: str) -> str:
            return text.replace(
                "doc->>'$.city'", "json_unquote(nullif(json_extract(doc, '$.city'), CAST('null' AS json)))"
            )

        words = Words(
            text="varchar(100) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin",
            wide="mediumtext",
            document="json",
            moment="timestamp(6)",
            condition=condition if mysql_database.server.flavor == "mysql" else of_mariadb,
            run=run,
            query=query,
            refused=(pymysql.err.IntegrityError,),
            images=lambda dice, table: [
                f"SET SESSION binlog_row_image = '{dice.choice(['FULL', 'NOBLOB', 'MINIMAL'])}'"
            ],
        )
        history = RuledHistory(words, mysql_database.name, random.Random(seed))
        bank = MySQLBank(mysql_database, tmp_path, create=False)
        play(history, bank, bank.configure)


def of_mariadb(text: str) -> str:
    """MariaDB's documents are texts: a null in one is a text, too."""
    return text.replace("doc->>'$.city'", "json_value(doc, '$.city')")


def play(history: RuledHistory, bank: Branch, configure: Any) -> None:
    warehouse = bank.folder / "warehouse"
    bank.other_settings = {
        "tables": history.rules,
        "merge": {
            "warehouse": str(warehouse),
            "engine": "local",
            "tables": {"routes": {rf"{history.schema}\.items_(?P<part>\d)": "shop.items"}},
        },
    }
    configure()
    settings, dice = load(bank.config_path), history.dice
    for table in TABLES:
        for _ in range(60):
            history.change(table)
    incarnation = 0
    with bank.capturing():
        for number in range(ROUNDS):
            for _ in range(80 if number else 0):
                history.change(dice.choice(TABLES))
                if dice.random() < 0.04:
                    history.statement(dice.choice(TABLES))
            incarnation = wait_until_sealed(history, bank, incarnation)
            report = local.merge(bank.log, warehouse, policies=wiring.policies(settings))
            assert not [t for t in report.tables if t.left_out], report.tables
            compare(history, local.read_cut(warehouse), number)


def wait_until_sealed(history: RuledHistory, bank: Branch, incarnation: int) -> int:
    """Wait until everything so far is sealed. Returns the incarnation of `ALONE`; `incarnation`: that of before."""
    fence = bank.fence()
    bank.wait_until(lambda: bank.has_reached(fence), "the log to pass the fence")
    if history.is_recreated and isinstance(bank, Bank):  # the log has no such statement: the capture looks for tables
        bank.wait_until(lambda: incarnation_of(history, bank) != incarnation, "the table to be found")
        bank.wait_until(lambda: bank.has_reached(fence), "its backfill")
    history.is_recreated = False
    newest = bank.reader.newest_checkpoint().next_offset - 1
    bank.wait_until(lambda: bank.sealed_offset() >= newest, f"offset {newest} to be sealed")
    return incarnation_of(history, bank)


def incarnation_of(history: RuledHistory, bank: Branch) -> int:
    progress = Progress.from_json(bank.reader.newest_checkpoint().progress)
    return progress.tables[TableId(history.schema, ALONE)].incarnation


def compare(history: RuledHistory, cut: Any, number: int) -> None:
    about = f"round {number}, where {history.where}"
    items = cut["shop.items"].to_pylist()
    names = [name for name in cut["shop.items"].column_names if not name.startswith("_") and name != "part"]
    for table in PARTS:
        mine = plain([row for row in items if row["part"] == table[-1]], names)
        assert differences(mine, history.expected(table, names)) == [], (table, names, about)
    alone = cut[f"{history.schema}.{ALONE}"]
    names = [name for name in alone.column_names if not name.startswith("_") and is_present(history, name)]
    found = plain(alone.to_pylist(), names)
    assert differences(found, history.expected(ALONE, names)) == [], (ALONE, names, about)


def differences(found: list[Any], expected: list[Any]) -> list[str]:
    """The first rows that only one of them has; wide values are cut off."""
    only = [("found", row) for row in found if row not in expected]
    only += [("expected", row) for row in expected if row not in found]
    return [f"{which}: {[str(value)[:30] for value in row]}" for which, row in only][:6]


def is_present(history: RuledHistory, name: str) -> bool:
    """Whether the source still has a column: the table keeps one that was dropped."""
    return not name.startswith("extra_") or name in history.extra[ALONE]
