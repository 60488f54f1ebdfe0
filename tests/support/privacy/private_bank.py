"""A bank whose tables have values that must not leave the source: in keys, old rows, wide values, and everywhere else.

What the log must have is computed here in plain Python, by code that shares nothing with the policies.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import random
from collections.abc import Mapping
from datetime import date
from pathlib import Path
from typing import Any

import psycopg
from tests.servers.postgres import Database
from tests.support.daemon.bank import Bank
from tests.support.privacy.canaries import CANARY

from cdcflow.config import Config
from cdcflow.sources.privacy.secret_keys import PolicyKey

SECRETS = {"HASH_KEY": "5e8ff9bf55ba3508199d22e984129be6", "CARD_KEY": "d1bc8d3ba4afc7e109612cb73acbdddac052c930"}

SCHEMA = f"""
CREATE TABLE people (email text PRIMARY KEY, name text, ssn text NOT NULL, note text, card text, born date,
                     city text, score int, body text) WITH (fillfactor = 50);
ALTER TABLE people ALTER body SET STORAGE EXTERNAL, ALTER note SET STORAGE EXTERNAL;
CREATE TABLE cards (card text, number int, email text, body text, PRIMARY KEY (card, number));
ALTER TABLE cards ALTER body SET STORAGE EXTERNAL, ALTER email SET STORAGE EXTERNAL;
CREATE TABLE visits (id int PRIMARY KEY, email text, path text, seen boolean);
ALTER TABLE visits REPLICA IDENTITY FULL;
CREATE TABLE words (said text, times int);
ALTER TABLE words REPLICA IDENTITY FULL;
INSERT INTO people SELECT '{CANARY}-' || i || '@x', 'Ünï {CANARY} ' || 1000 + i, '{CANARY}' || i,
    'public: ' || repeat('{CANARY}', 700), '{CANARY} card ' || i % 40, date '1970-01-01' + i, 'Sen{CANARY}', i,
    CASE WHEN i % 3 = 0 THEN repeat(md5(i::text), 90) END
FROM generate_series(1, 1500) i;
INSERT INTO cards SELECT '{CANARY} card ' || i % 40, i, '{CANARY}-' || i || '@x' || repeat('{CANARY}', 500),
    repeat(md5(i::text), 90) FROM generate_series(1, 1500) i;
INSERT INTO visits SELECT i, '{CANARY}-' || i % 30 || '@x', '/{CANARY}/' || i, i % 2 = 0
FROM generate_series(1, 1500) i;
INSERT INTO words SELECT '{CANARY} ' || i % 30, i % 7 FROM generate_series(1, 300) i;
"""

HASH = {"hash": "${env:HASH_KEY}"}
ENCRYPT = {"encrypt": {"key": "${env:CARD_KEY}", "id": "k1"}}
POLICIES: dict[str, Any] = {
    "public.people": {
        "columns": {
            "email": HASH,
            "name": {"mask": {"keep_last": 4}},
            "ssn": "drop",
            "note": {"truncate": 8},
            "card": ENCRYPT,
            "born": {"constant": date(1900, 1, 1).isoformat()},
            "city": None,
        }
    },
    "public.c*": {"columns": {"card": ENCRYPT, "email": HASH}},
    "public.visits": {"columns": {"email": HASH, "path": "mask"}},
    "*.words": {"columns": {"said": HASH}},
}


def hashed(value: str | None) -> str | None:
    if value is None:
        return None
    return hmac.new(SECRETS["HASH_KEY"].encode(), value.encode(), hashlib.sha256).hexdigest()


def leaving(table: str, row: Mapping[str, Any]) -> dict[str, Any]:
    """A row as the log must have it, with encrypted values in plain text."""
    name = row.get("name")
    match table:
        case "people":
            masked = None if name is None else "****" + (name[-4:] if len(name) >= 8 else "")
            return {
                "email": hashed(row["email"]),
                "name": masked,
                "note": None if row["note"] is None else row["note"][:8],
                "card": row["card"],
                "born": None if row["born"] is None else date(1900, 1, 1),
                "city": None,
                "score": row["score"],
                "body": row["body"],
            }
        case "cards":
            return {**row, "email": hashed(row["email"])}
        case "visits":
            return {**row, "email": hashed(row["email"]), "path": None if row["path"] is None else "****"}
        case _:
            return {**row, "said": hashed(row["said"])}


def decrypted(value: str | None) -> str | None:
    key = PolicyKey("k1", SECRETS["CARD_KEY"].encode())
    return None if value is None else key.decrypt(value).decode()


class PrivateBank(Bank):
    """On PostgreSQL. The environment must have `SECRETS`."""

    tables: tuple[str, ...] = ("people", "cards", "visits", "words")

    def __init__(self, database: Database, folder: Path) -> None:
        with database.connect(autocommit=True) as conn:
            conn.execute(SCHEMA)
        super().__init__(database, folder, create=False)

    def configured(self, source: Mapping[str, Any]) -> Config:
        self.other_settings = {"tables": POLICIES, **self.other_settings}
        return super().configured({"spool_bytes_max": 1 << 16, **source})

    def transact(self, conn: psycopg.Connection[Any], dice: random.Random) -> None:
        """Inserts, partial updates, deletes, key changes, savepoints, and now and then a large transaction."""
        number, other = dice.randint(1, 1500), dice.randint(1, 1500)
        email = f"{CANARY}-{number}@x"
        with contextlib.suppress(psycopg.errors.UniqueViolation), conn.transaction():
            conn.execute("UPDATE people SET score = score + 1 WHERE email = %s", (email,))
            match dice.randint(0, 9):
                case 0:
                    conn.execute("UPDATE people SET email = %s WHERE email = %s", (f"{CANARY}-{number}@y", email))
                case 1:
                    conn.execute("DELETE FROM people WHERE email = %s", (email,))
                case 2:
                    values = (email, f"{CANARY} new 0001", CANARY, None, CANARY)
                    conn.execute(
                        "INSERT INTO people (email, name, ssn, note, card) VALUES (%s, %s, %s, %s, %s)", values
                    )
                case 3:
                    conn.execute("UPDATE cards SET number = number + 10000 WHERE number = %s", (other,))
                case 4:
                    conn.execute("UPDATE cards SET card = card || '!' WHERE number %% 97 = %s", (other % 97,))
                case 5:
                    conn.execute("UPDATE visits SET seen = NOT seen, path = path || '/' WHERE id = %s", (other,))
                case 6:
                    conn.execute("UPDATE words SET times = times + 1 WHERE said = %s", (f"{CANARY} {other % 30}",))
                case 7:
                    with conn.transaction() as inner:
                        conn.execute("DELETE FROM visits WHERE id %% 7 = %s", (other % 7,))
                        raise psycopg.Rollback(inner)
                case 8:
                    conn.execute("UPDATE visits SET path = %s || id WHERE id %% 3 = 0", (CANARY * 40,))
                case _:
                    conn.execute("UPDATE people SET name = NULL, city = %s WHERE email = %s", (CANARY, email))

    def source_rows(self, table: str) -> list[tuple[object, ...]]:
        with self.database.connect() as conn:
            found = conn.execute(f"SELECT * FROM {table}")
            names = [column.name for column in found.description or ()]
            rows = [leaving(table, dict(zip(names, row, strict=True))) for row in found]
        return sorted((tuple(row.values()) for row in rows), key=repr)

    def columns(self, table: str) -> list[str]:
        return list(leaving(table, dict.fromkeys(super().columns(table))))

    def logged_rows(self, table: str, tables: Any = None) -> list[tuple[object, ...]]:
        names = self.columns(table)
        rows = super().logged_rows(table, tables)
        if "card" not in names:
            return rows
        at = names.index("card")
        return sorted(((*row[:at], decrypted(row[at]), *row[at + 1 :]) for row in rows), key=repr)  # type: ignore[arg-type]
