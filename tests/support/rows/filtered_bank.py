"""Banks whose rows are captured only in part, with computed columns and new names. The expected rows are those that the
server itself finds: by its own SQL."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import psycopg
from tests.support.daemon.bank import Bank, _plain
from tests.support.daemon.mysql_bank import MySQLBank

from cdcflow.config import Config

ACCOUNTS = "balance < 3000 AND (body IS NULL OR body < '9') AND owner <> 'owner 17'"
ENTRIES = "account % 3 = 0 OR note IS NULL"


def rules(schema: str) -> dict[str, Any]:
    return {
        f"{schema}.accounts": {
            "where": ACCOUNTS,
            "columns": {"balance": {"rename": "amount"}},
            "computed": {
                "day": "date_trunc('day', opened)",
                "head": "left(body, 4)",
                "label": "CASE WHEN balance >= 1000 THEN owner || '!' ELSE 'poor' END",
            },
        },
        f"{schema}.e*": {"where": ENTRIES, "columns": {"id": {"rename": "Nr"}}, "computed": {"double": "amount * 2"}},
    }


class FilteredBank(Bank):
    """On PostgreSQL: old rows of `entries` are in the log, those of `accounts` are not."""

    def configured(self, source: Mapping[str, Any]) -> Config:
        self.other_settings = {"tables": rules(self.schema), **self.other_settings}
        return super().configured({"spool_bytes_max": 1 << 16, **source})

    def transact(self, conn: psycopg.Connection[Any], dice: random.Random) -> None:
        super().transact(conn, dice)
        match dice.randint(0, 9):
            case 0:  # both ways over the filter, which does not get all columns
                conn.execute("UPDATE accounts SET balance = 6000 - balance WHERE id %% 91 = %s", (dice.randint(0, 90),))
            case 1:
                conn.execute("UPDATE entries SET account = account + 1 WHERE id %% 97 = %s", (dice.randint(0, 96),))
            case 2:
                conn.execute(
                    "UPDATE entries SET id = -id, account = account + 1 WHERE id = %s", (dice.randint(1, 999),)
                )
            case 3:
                with conn.transaction():
                    conn.execute("UPDATE entries SET note = repeat('x', 60), account = account + 1 WHERE id < 3000")
                    with conn.transaction() as inner:
                        conn.execute("UPDATE entries SET account = account + 1 WHERE id < 2500")
                        if dice.random() < 0.5:
                            raise psycopg.Rollback(inner)
            case _:
                pass

    def source_rows(self, table: str) -> list[tuple[object, ...]]:
        with self.database.connect() as conn:
            conn.execute("SET timezone = 'UTC'")
            rows = conn.execute(_SELECT.get(table, f"SELECT * FROM {table}")).fetchall()
        return sorted((tuple(_plain(v) for v in row) for row in rows), key=repr)

    def columns(self, table: str) -> list[str]:
        return _columns(table, super().columns(table))


class FilteredMySQLBank(MySQLBank):
    """Sessions omit different columns from the log."""

    def configured(self, source: Mapping[str, Any]) -> Config:
        self.other_settings = {"tables": rules(self.schema), **self.other_settings}
        return super().configured({"spool_bytes_max": 1 << 16, **source})

    def _change(self, cursor: Any, dice: random.Random) -> None:
        super()._change(cursor, dice)
        match dice.randint(0, 6):
            case 0:
                cursor.execute(
                    "UPDATE accounts SET balance = 6000 - balance WHERE id %% 91 = %s", (dice.randint(0, 90),)
                )
            case 1:
                cursor.execute("UPDATE entries SET account = account + 1 WHERE id %% 97 = %s", (dice.randint(0, 96),))
            case 2:
                cursor.execute(
                    "UPDATE entries SET id = -id, account = account + 1 WHERE id = %s", (dice.randint(1, 999),)
                )
            case 3:
                cursor.execute("UPDATE entries SET note = repeat('x', 60), account = account + 1 WHERE id < 2000")
            case _:
                pass

    def source_rows(self, table: str) -> list[tuple[object, ...]]:
        if table not in _SELECT:
            return super().source_rows(table)
        query = _SELECT[table].replace("date_trunc('day', opened)", "CAST(DATE(opened) AS datetime)")
        query = query.replace("owner || '!'", "concat(owner, '!')")
        with self.session() as session, session.cursor() as cursor:
            cursor.execute("SET time_zone = '+00:00'")
            cursor.execute(query)
            return sorted((tuple(row) for row in cursor.fetchall()), key=repr)

    def columns(self, table: str) -> list[str]:
        return _columns(table, super().columns(table))


_SELECT = {
    "accounts": "SELECT id, owner, balance, body, opened, date_trunc('day', opened), left(body, 4),"
    f" CASE WHEN balance >= 1000 THEN owner || '!' ELSE 'poor' END FROM accounts WHERE {ACCOUNTS}",
    "entries": f"SELECT id, account, amount, note, amount * 2 FROM entries WHERE {ENTRIES}",
}


def _columns(table: str, names: list[str]) -> list[str]:
    match table:
        case "accounts":
            return [*("amount" if name == "balance" else name for name in names), "day", "head", "label"]
        case "entries":
            return [*("Nr" if name == "id" else name for name in names), "double"]
        case _:
            return names
