"""The private bank on MySQL and MariaDB: keys of chunks are in checkpoints there, and updates omit columns."""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.servers.mysql import MySQLDatabase
from tests.support.daemon.bank import Folded
from tests.support.daemon.mysql_bank import MySQLBank
from tests.support.privacy.canaries import CANARY
from tests.support.privacy.private_bank import ENCRYPT, HASH, decrypted, hashed

from cdcflow.config import Config

SCHEMA = (
    "CREATE TABLE people (email varchar(100) PRIMARY KEY, name varchar(100), ssn varchar(40) NOT NULL, note mediumtext,"
    " score int, body mediumtext)",
    "CREATE TABLE cards (card varchar(60), number int, email varchar(100), body mediumtext,"
    " PRIMARY KEY (card, number))",
    "CREATE TABLE visits (id int PRIMARY KEY, email varchar(100), path varchar(1000), seen tinyint)",
    f"INSERT people SELECT concat('{CANARY}-', n, '@x'), concat('Ünï {CANARY} ', n), '{CANARY}',"
    f" concat('public: ', repeat('{CANARY}', 700)), n, IF(n % 3, NULL, repeat(sha2(n, 256), 45)) FROM numbers",
    f"INSERT INTO cards SELECT concat('{CANARY} card ', n % 40), n, concat('{CANARY}-', n, '@x'),"
    " repeat(sha2(n, 256), 45) FROM numbers",
    f"INSERT INTO visits SELECT n, concat('{CANARY}-', n % 30, '@x'), concat('/{CANARY}/', n), n % 2 FROM numbers",
)


def leaving(table: str, row: Mapping[str, Any]) -> dict[str, Any]:
    """A row as the log must have it, with encrypted values in plain text."""
    match table:
        case "people":
            return {
                "email": hashed(row["email"]),
                "name": None if row["name"] is None else "****" + (row["name"][-4:] if len(row["name"]) >= 8 else ""),
                "note": None if row["note"] is None else row["note"][:8],
                "score": row["score"],
                "body": row["body"],
            }
        case "cards":
            return {**row, "email": hashed(row["email"])}
        case _:
            return {**row, "email": hashed(row["email"]), "path": None if row["path"] is None else "****"}


class PrivateMySQLBank(MySQLBank):
    """The environment must have the secrets of `private_bank`."""

    tables: tuple[str, ...] = ("people", "cards", "visits")

    def __init__(self, database: MySQLDatabase, folder: Path) -> None:
        digits = " UNION ALL ".join(f"SELECT {n} AS d" for n in range(10))
        numbers = f"SELECT t0.d + 10 * t1.d + 100 * t2.d + 1 AS n FROM ({digits}) t0, ({digits}) t1, ({digits}) t2"
        database.execute(f"CREATE TABLE numbers AS {numbers}", *SCHEMA, "DROP TABLE numbers")
        super().__init__(database, folder, create=False)

    def configured(self, source: Mapping[str, Any]) -> Config:
        people = {"email": HASH, "name": {"mask": {"keep_last": 4}}, "ssn": "drop", "note": {"truncate": 8}}
        tables: dict[str, Any] = {
            f"{self.schema}.people": {"columns": people},
            "*.c*": {"columns": {"CARD": ENCRYPT, "email": HASH}},
            f"{self.schema}.visits": {"columns": {"email": HASH, "path": "mask"}},
        }
        self.other_settings = {"tables": tables, **self.other_settings}
        backfill = {"chunk_time_target_ms": 20, "chunk_rows_max": 200}
        return super().configured({"spool_bytes_max": 1 << 16, "backfill": backfill, **source})

    def _change(self, cursor: Any, dice: random.Random) -> None:
        number, other = dice.randint(1, 1000), dice.randint(1, 1000)
        email = f"{CANARY}-{number}@x"
        cursor.execute("UPDATE people SET score = score + 1 WHERE email = %s", (email,))
        match dice.randint(0, 8):
            case 0:
                cursor.execute("UPDATE people SET email = %s WHERE email = %s", (f"{CANARY}-{number}@y", email))
            case 1:
                cursor.execute("DELETE FROM people WHERE email = %s", (email,))
            case 2:
                values = (email, f"{CANARY} new 0001", CANARY, None, 0, None)
                table = "people"
                cursor.execute(f"INSERT IGNORE INTO {table} VALUES (%s, %s, %s, %s, %s, %s)", values)
            case 3:
                cursor.execute("UPDATE cards SET number = number + 10000 WHERE number = %s", (other,))
            case 4:
                cursor.execute("UPDATE cards SET card = concat(card, '!') WHERE number %% 97 = %s", (other % 97,))
            case 5:
                cursor.execute("UPDATE visits SET seen = NOT seen, path = concat(path, '/') WHERE id = %s", (other,))
            case 6:
                cursor.execute("SAVEPOINT inner_one")
                cursor.execute("DELETE FROM visits WHERE id %% 7 = %s", (other % 7,))
                cursor.execute("ROLLBACK TO SAVEPOINT inner_one")
            case 7:
                cursor.execute("UPDATE visits SET path = concat(%s, id) WHERE id %% 3 = 0", (CANARY * 40,))
            case _:
                cursor.execute("UPDATE people SET name = NULL WHERE email = %s", (email,))

    def source_rows(self, table: str) -> list[tuple[object, ...]]:
        names = MySQLBank.columns(self, table)
        with self.session() as session, session.cursor() as cursor:
            cursor.execute(f"SELECT {', '.join(names)} FROM {table}")
            rows = [leaving(table, dict(zip(names, row, strict=True))) for row in cursor.fetchall()]
        return sorted((tuple(row.values()) for row in rows), key=repr)

    def columns(self, table: str) -> list[str]:
        return list(leaving(table, dict.fromkeys(super().columns(table))))

    def logged_rows(self, table: str, tables: Folded | None = None) -> list[tuple[object, ...]]:
        rows = super().logged_rows(table, tables)
        if table != "cards":
            return rows
        return sorted(((decrypted(str(row[0])), *row[1:]) for row in rows), key=repr)
