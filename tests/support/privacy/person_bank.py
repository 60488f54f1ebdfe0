"""A bank whose values are encrypted by persons, some of whom are erased; and what of them can be read."""

from __future__ import annotations

import contextlib
import random
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import psycopg
import pyarrow as pa
from tests.servers.mysql import MySQLDatabase
from tests.servers.postgres import Database
from tests.support.daemon.bank import Bank, Branch, Folded
from tests.support.daemon.mysql_bank import MySQLBank
from tests.support.privacy import canaries
from tests.support.privacy.canaries import CANARY, has_canary

from cdcflow.config import Config, load
from cdcflow.sources.privacy.secret_keys import PERSON_DIGITS, decrypt_with
from cdcflow.wiring.decryption import Decryption

PERSONS = 60
BY_ID = {"encrypt": {"key": "${env:CARD_KEY}", "id": "k1", "key_by": "id"}}
BY_USER = {"encrypt": {"key": "${env:CARD_KEY}", "id": "k1", "key_by": "user_id"}}
ENCRYPTED = {"users": ("id", "email"), "orders": ("user_id", "address")}
"""For each table the column of the person, and the column that is encrypted."""
TOKEN = re.compile(rb"k1:([0-9a-f]{32})\.[A-Za-z0-9_-]+=*")

SCHEMA = f"""
CREATE TABLE users (id int PRIMARY KEY, email text NOT NULL, visits int);
CREATE TABLE orders (id int PRIMARY KEY, user_id int, address text, total int) WITH (fillfactor = 50);
ALTER TABLE orders ALTER address SET STORAGE EXTERNAL;
INSERT INTO users SELECT i, '{CANARY}-' || i || '@x', 0 FROM generate_series(1, {PERSONS}) i;
INSERT INTO orders SELECT i, i % {PERSONS} + 1, repeat('{CANARY} ' || i, CASE WHEN i % 3 = 0 THEN 300 ELSE 1 END), i
FROM generate_series(1, 1200) i;
"""
MYSQL_SCHEMA = (
    "CREATE TABLE users (id int PRIMARY KEY, email varchar(100) NOT NULL, visits int)",
    "CREATE TABLE orders (id int PRIMARY KEY, user_id int, address mediumtext, total int)",
    f"INSERT INTO users SELECT n, concat('{CANARY}-', n, '@x'), 0 FROM numbers WHERE n <= {PERSONS}",
    f"INSERT INTO orders SELECT n, n % {PERSONS} + 1, concat('{CANARY} ', n), n FROM numbers",
)


class Persons(Branch):
    """What the banks on all databases share."""

    tables: tuple[str, ...] = ("users", "orders")
    erased: frozenset[int] = frozenset()

    def policies(self) -> dict[str, Any]:
        return {
            f"{self.schema}.users": {"columns": {"email": BY_ID}},
            f"{self.schema}.orders": {"columns": {"address": BY_USER}},
        }

    def change(self, execute: Callable[..., object], dice: random.Random) -> None:
        """Rows that pass from person to person, and values that the log does not repeat."""
        person, order = dice.choice([17, dice.randint(1, PERSONS)]), dice.randint(1, 1300)
        execute("UPDATE users SET visits = visits + 1 WHERE id = %s", (person,))
        match dice.randint(0, 6):
            case 0:
                execute("UPDATE orders SET user_id = %s WHERE id = %s", (person, order))
            case 1:
                execute("UPDATE orders SET total = total + 1 WHERE user_id = %s", (person,))
            case 2:
                execute("UPDATE orders SET address = %s, total = 0 WHERE id = %s", (f"{CANARY} new {order}", order))
            case 3:
                execute("DELETE FROM orders WHERE id = %s", (order,))
            case 4:
                execute("UPDATE users SET email = %s WHERE id = %s", (f"{CANARY}-{person}@y", person))
            case 5:
                execute("UPDATE orders SET user_id = NULL WHERE id = %s", (order,))
            case _:
                execute("INSERT INTO orders VALUES (%s, %s, %s, 1)", (order, person, f"{CANARY} {order}" * 300))

    def without_erased(self, table: str, rows: list[tuple[object, ...]]) -> list[tuple[object, ...]]:
        """The source's rows, NULL where the value of an erased person is."""
        names = self.columns(table)
        person, value = (names.index(name) for name in ENCRYPTED[table])
        left = ((row, row[person] in self.erased) for row in rows)
        found = (tuple(None if n == value and gone else v for n, v in enumerate(row)) for row, gone in left)
        return sorted(found, key=repr)

    def decrypted(self, table: str, rows: list[tuple[object, ...]]) -> list[tuple[object, ...]]:
        """The log's rows with values in plain text, NULL where they cannot be read."""
        at, decryption = self.columns(table).index(ENCRYPTED[table][1]), self.decryption()

        def plain(value: object) -> object:
            found = None if value is None else decryption.decrypt(str(value))
            return None if found is None else found.decode()

        return sorted((tuple(plain(v) if n == at else v for n, v in enumerate(row)) for row in rows), key=repr)

    def decryption(self) -> Decryption:
        return Decryption.of(load(self.config_path))

    def readable_places(self, persons: Sequence[int]) -> list[str]:
        """Where files have a canary, or a value of one of these persons that a key which is left decrypts."""
        key = self.decryption().keys[0]
        maker, ciphers = key.person_keys(), {}
        for person in maker.persons(pa.array([str(person).encode() for person in persons])):
            with contextlib.suppress(KeyError):
                wrapped = self.decryption().person_keys.find(person)
                if wrapped is not None:
                    ciphers[person[-PERSON_DIGITS:].encode()] = maker.unwrap(person, wrapped)

        def is_readable(content: bytes) -> bool:
            for token in TOKEN.finditer(content) if ciphers else ():
                with contextlib.suppress(ValueError, KeyError):  # a part of a value; of another person
                    if CANARY.encode() in decrypt_with(ciphers[token[1]], token[0].decode()):
                        return True
            return has_canary(content)

        with mock.patch.object(canaries, "has_canary", is_readable):
            return canaries.canaries_in(self.folder)


class PersonBank(Persons, Bank):
    """On PostgreSQL. The environment must have the secrets of `private_bank`."""

    def __init__(self, database: Database, folder: Path) -> None:
        with database.connect(autocommit=True) as conn:
            conn.execute(SCHEMA)
        super().__init__(database, folder, create=False)

    def configured(self, source: Mapping[str, Any]) -> Config:
        self.other_settings = {"tables": self.policies(), **self.other_settings}
        return super().configured({"spool_bytes_max": 1 << 16, **source})

    def transact(self, conn: psycopg.Connection[Any], dice: random.Random) -> None:
        with contextlib.suppress(psycopg.errors.UniqueViolation), conn.transaction():
            self.change(conn.execute, dice)

    def source_rows(self, table: str) -> list[tuple[object, ...]]:
        return self.without_erased(table, super().source_rows(table))

    def logged_rows(self, table: str, tables: Folded | None = None) -> list[tuple[object, ...]]:
        return self.decrypted(table, super().logged_rows(table, tables))


class MySQLPersonBank(Persons, MySQLBank):
    """On MySQL and MariaDB, with every `binlog_row_image`."""

    tables: tuple[str, ...] = ("users", "orders")

    def __init__(self, database: MySQLDatabase, folder: Path) -> None:
        digits = " UNION ALL ".join(f"SELECT {n} AS d" for n in range(10))
        numbers = f"SELECT t0.d + 10 * t1.d + 100 * t2.d + 1 AS n FROM ({digits}) t0, ({digits}) t1, ({digits}) t2"
        database.execute(f"CREATE TABLE numbers AS {numbers}", *MYSQL_SCHEMA, "DROP TABLE numbers")
        super().__init__(database, folder, create=False)

    def configured(self, source: Mapping[str, Any]) -> Config:
        self.other_settings = {"tables": self.policies(), **self.other_settings}
        return super().configured({"backfill": {"chunk_time_target_ms": 20, "chunk_rows_max": 200}, **source})

    def _change(self, cursor: Any, dice: random.Random) -> None:
        self.change(cursor.execute, dice)

    def source_rows(self, table: str) -> list[tuple[object, ...]]:
        return self.without_erased(table, super().source_rows(table))

    def logged_rows(self, table: str, tables: Folded | None = None) -> list[tuple[object, ...]]:
        return self.decrypted(table, super().logged_rows(table, tables))
