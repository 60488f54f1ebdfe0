"""A branch of the bank on MySQL or MariaDB."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pymysql
from tests.servers.mysql import MySQLDatabase
from tests.support.daemon.bank import Branch, Folded

from cdcflow.config import Config
from cdcflow.sources.mysql.position import BinlogPosition

SCHEMA = (
    "CREATE TABLE accounts (id bigint PRIMARY KEY, owner varchar(100) NOT NULL, balance decimal(14,2) NOT NULL,"
    " body mediumtext, opened timestamp(6) NOT NULL DEFAULT current_timestamp(6))",
    "CREATE TABLE entries (id bigint PRIMARY KEY AUTO_INCREMENT, account bigint NOT NULL,"
    " amount decimal(14,2) NOT NULL, note varchar(100))",
    "CREATE TABLE holders (name varchar(40), region int unsigned, seen tinyint(1), words set('a','b','c'),"
    " PRIMARY KEY (name, region)) DEFAULT CHARACTER SET latin1 COLLATE latin1_swedish_ci",
    "INSERT INTO accounts SELECT n, concat('owner ', n), n, IF(n % 3, NULL, repeat(sha2(n, 256), 45)), now(6)"
    " FROM numbers",
    "INSERT INTO entries (account, amount, note) SELECT n % 6000 + 1, n, 'first' FROM numbers",
    "INSERT INTO holders SELECT concat('Ünder ', n % 50), n, n % 2, n % 8 FROM numbers WHERE n <= 400",
)
KEY_IS_THERE = (pymysql.err.IntegrityError,)
GIVEN_UP = (1205, 1213)
"""A lock that did not come, and a deadlock: the server has rolled back."""


class MySQLBank(Branch):
    """Three tables; of one the key is text under a collation that does not tell case, and a number.

    Every session logs unchanged columns differently: it omits nothing, wide values, or everything.
    """

    tables: tuple[str, ...] = ("accounts", "entries", "holders")

    def __init__(self, database: MySQLDatabase, folder: Path, *, create: bool = True, **source: Any) -> None:
        super().__init__(folder)
        self.database = database
        self.schema = database.name
        self._always = source
        if create:
            digits = " UNION ALL ".join(f"SELECT {n} AS d" for n in range(10))
            joined = ", ".join(f"({digits}) t{n}" for n in range(4))
            number = "t0.d + 10 * t1.d + 100 * t2.d + 1000 * t3.d + 1"
            numbers = f"CREATE TABLE numbers AS SELECT {number} AS n FROM {joined} HAVING n <= 6000"
            database.execute(numbers, *SCHEMA, "DROP TABLE numbers")
        self.configure()

    def configure(self, **source: Any) -> Config:
        server = self.database.server
        named = {"kind": server.flavor, "url": server.url(), "tables": [f"{self.schema}.*"], "tls": {"mode": "off"}}
        return self.configured({**named, **self._always, **source})

    @contextlib.contextmanager
    def session(self) -> Iterator[Any]:
        with contextlib.closing(self.database.connect()) as connection:
            yield connection

    def transact(self, session: Any, dice: random.Random) -> None:
        """Inserts, partial updates, deletes, key changes, savepoints."""
        with session.cursor() as cursor:
            cursor.execute(f"SET SESSION binlog_row_image = '{dice.choice(['FULL', 'NOBLOB', 'MINIMAL'])}'")
            try:
                cursor.execute("BEGIN")
                self._change(cursor, dice)
                cursor.execute("COMMIT" if dice.random() < 0.97 else "ROLLBACK")
            except KEY_IS_THERE:
                cursor.execute("ROLLBACK")
            except pymysql.err.OperationalError as error:
                if error.args[0] not in GIVEN_UP:
                    raise
                cursor.execute("ROLLBACK")

    def _change(self, cursor: Any, dice: random.Random) -> None:
        first, second = dice.randint(1, 7000), dice.randint(1, 7000)
        cursor.execute("UPDATE accounts SET balance = balance - 1 WHERE id = %s", (first,))
        entries = "INSERT INTO entries (account, amount, note) VALUES (%s, -1, NULL), (%s, 1, 'transfer')"
        cursor.execute(entries, (first, second))
        match dice.randint(0, 8):
            case 0:
                cursor.execute("DELETE FROM accounts WHERE id = %s", (second,))
            case 1:
                # Every column: nothing here has to be read by its key, so that a table that is done stays done.
                wide = "INSERT IGNORE INTO accounts VALUES (%s, 'new', 0, repeat('x', 5000), now(6))"
                cursor.execute(wide, (second,))
            case 2:
                cursor.execute("UPDATE accounts SET id = id + 10000 WHERE id = %s", (second,))
            case 3:
                cursor.execute("SAVEPOINT inner_one")
                cursor.execute("DELETE FROM entries WHERE id %% 97 = %s", (dice.randint(0, 96),))
                cursor.execute("ROLLBACK TO SAVEPOINT inner_one")
            case 4:
                cursor.execute("DELETE FROM entries WHERE id %% 997 = %s", (dice.randint(0, 996),))
            case 5:
                cursor.execute("UPDATE holders SET seen = NOT seen WHERE region %% 17 = %s", (dice.randint(0, 16),))
            case 6:
                name, region = f"Über {dice.randint(1, 99)}", dice.randint(0, 2**32 - 1)
                cursor.execute("INSERT INTO holders VALUES (%s, %s, NULL, '')", (name, region))
            case 7:
                # The same key to the collation, a different one to cdcflow.
                cursor.execute("UPDATE holders SET name = upper(name) WHERE region = %s", (dice.randint(1, 400),))
            case _:
                cursor.execute("UPDATE accounts SET body = NULL, owner = 'nobody' WHERE id = %s", (second,))

    def fence(self) -> str:
        file, place = self.database.server.binlog()
        return f"{file}:{place};"

    def is_past(self, position: str, fence: str) -> bool:
        return not fence or BinlogPosition.parse(position).coordinate >= BinlogPosition.parse(fence).coordinate

    def source_rows(self, table: str) -> list[tuple[object, ...]]:
        with self.session() as session, session.cursor() as cursor:
            cursor.execute("SET time_zone = '+00:00'")
            cursor.execute(f"SELECT {', '.join(self.columns(table))} FROM {table}")
            return sorted((tuple(row) for row in cursor.fetchall()), key=repr)

    def logged_rows(self, table: str, tables: Folded | None = None) -> list[tuple[object, ...]]:
        return sorted((tuple(_naive(v) for v in row) for row in super().logged_rows(table, tables)), key=repr)

    def columns(self, table: str) -> list[str]:
        rows = self.database.execute(
            "SELECT column_name FROM information_schema.columns WHERE table_schema = database()"
            f" AND table_name = '{table}' ORDER BY ordinal_position"
        )
        return [str(row[0]) for row in rows]


def _naive(value: object) -> object:
    return value.replace(tzinfo=None) if isinstance(value, datetime) else value
