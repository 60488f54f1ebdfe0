"""Banks with one more table, `people`, whose changes cannot leave the source after a fault."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import psycopg
import yaml
from tests.support.daemon.bank import Bank, _plain
from tests.support.daemon.mysql_bank import MySQLBank
from tests.support.privacy.canaries import CANARY

from cdcflow.config import Config

PEOPLE = "CREATE TABLE people (id bigint PRIMARY KEY, ssn varchar(40), note varchar(40))"
FIRST = 1500
"""The rows that `people` has before the capture."""


@dataclass(frozen=True, slots=True)
class Fault:
    """`rules` of `people` that `statement` makes unusable, and those that fit afterwards. `hidden`: its columns that
    nothing may show."""

    rules: Mapping[str, Any]
    statement: str
    mended: Mapping[str, Any]
    hidden: frozenset[str] = frozenset()


VALUE = Fault(
    {"where": "CAST(note AS integer) >= 0"},
    f"INSERT INTO people VALUES (900000, 'x', '{CANARY}')",
    {"where": f"CASE WHEN note = '{CANARY}' THEN TRUE ELSE CAST(note AS integer) >= 0 END"},
)
RENAMED_POLICY = Fault(
    {"columns": {"ssn": "drop"}},
    "ALTER TABLE people RENAME COLUMN ssn TO social",
    {"columns": {"ssn": "drop", "social": "drop"}, "optional": ["ssn", "social"]},
    frozenset(["ssn", "social"]),
)
RENAMED_NAME = Fault(
    {"where": "ssn <> 'none'"},
    "ALTER TABLE people CHANGE COLUMN ssn social varchar(40)",
    {"where": "coalesce(social, ssn) <> 'none'", "optional": ["ssn", "social"]},
)
EXCHANGED_NAMES = Fault(
    {"where": "char_length(note) < 30"},
    "ALTER TABLE people RENAME COLUMN ssn TO note, RENAME COLUMN note TO ssn",
    {"where": "char_length(ssn) < 30"},
)


class FailingBank(Bank):
    """On PostgreSQL."""

    fault = VALUE

    def begin(self, fault: Fault) -> None:
        self.fault = fault
        self.tables = (*self.tables, "people")
        with self.database.connect(autocommit=True) as conn:
            conn.execute(PEOPLE)
            conn.execute(f"INSERT INTO people SELECT i, '{CANARY}' || i, i FROM generate_series(1, {FIRST}) i")
        self.configure()

    def configured(self, source: Mapping[str, Any]) -> Config:
        return super().configured({"spool_bytes_max": 1 << 16, "tables": ["public.*"], **source})

    def transact(self, conn: psycopg.Connection[Any], dice: random.Random) -> None:
        super().transact(conn, dice)
        for statement in _on_people(dice):
            conn.execute(f"{statement} ON CONFLICT DO NOTHING" if statement.startswith("INSERT") else statement)

    def source_rows(self, table: str) -> list[tuple[object, ...]]:
        with self.database.connect() as conn:
            conn.execute("SET timezone = 'UTC'")
            rows = conn.execute(f"SELECT {', '.join(self.columns(table))} FROM {table}").fetchall()
        return sorted((tuple(_plain(v) for v in row) for row in rows), key=repr)

    def columns(self, table: str) -> list[str]:
        return [name for name in super().columns(table) if name not in self.fault.hidden]

    def break_people(self) -> None:
        self.database.execute(self.fault.statement)


class FailingMySQLBank(MySQLBank):
    """On MySQL and MariaDB."""

    fault = VALUE

    def begin(self, fault: Fault) -> None:
        self.fault = fault
        self.tables = (*self.tables, "people")
        self.database.execute(
            PEOPLE, f"INSERT INTO people SELECT id, concat('{CANARY}', id), id FROM accounts WHERE id <= {FIRST}"
        )
        self.configure()

    def configured(self, source: Mapping[str, Any]) -> Config:
        return super().configured({"spool_bytes_max": 1 << 16, **source})

    def _change(self, cursor: Any, dice: random.Random) -> None:
        super()._change(cursor, dice)
        for statement in _on_people(dice):
            cursor.execute(statement.replace("INSERT", "INSERT IGNORE"))

    def columns(self, table: str) -> list[str]:
        return [name for name in super().columns(table) if name not in self.fault.hidden]

    def break_people(self) -> None:
        self.database.execute(self.fault.statement)


def use_rules(bank: FailingBank | FailingMySQLBank, rules: Mapping[str, Any]) -> None:
    """Write the settings file with these rules for `people`."""
    bank.other_settings = {
        "tables": {f"{bank.schema}.people": dict(rules)},
        "merge": {"engine": "local", "warehouse": str(bank.folder / "warehouse")},
    }
    found = yaml.safe_load(bank.config_path.read_text())
    bank.config_path.write_text(yaml.safe_dump({**found, **bank.other_settings}))


def _on_people(dice: random.Random) -> list[str]:
    """Statements that do not name the columns, so that they can be renamed at any time."""
    one = dice.randint(1, FIRST)
    match dice.randint(0, 3):
        case 0:
            return [f"DELETE FROM people WHERE id = {one}"]
        case 1:
            return [f"UPDATE people SET id = {dice.randint(10**6, 10**12)} WHERE id = {one}"]
        case _:
            return [f"INSERT INTO people VALUES ({one}, '{CANARY}{one}', '{dice.randint(0, 99)}')"]
