"""Random histories of tables under conditions, policies, new names and routes, on a server: changes that omit columns,
keys that change, statements in the middle. The expected rows are those that the server finds by its own SQL."""

from __future__ import annotations

import contextlib
import datetime as dt
import random
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

PARTS = ("items_1", "items_2")
ALONE = "orders"
TABLES = (*PARTS, ALONE)
CONDITIONS = (
    "kind <> 'draft'",
    "kind IN ('paid', 'open') OR n IS NULL",
    "n % 3 = 0 AND amount > 10",
    "NOT (kind = 'paid' AND n > 4)",
    "coalesce(n, -1) BETWEEN -1 AND 5",
    "id % 4 <> 1",
    "id > 20 AND kind IS NOT NULL",
    "doc->>'$.city' = 'Bonn' OR amount IS NULL",
    "at >= TIMESTAMP '2026-06-01 00:00:00'",
    "note LIKE 'a%' OR n < 3",
)
"""Conditions in cdcflow's words."""


@dataclass(frozen=True)
class Words:
    """A server's words. `run` executes statements, `query` returns the rows of one."""

    text: str
    wide: str
    document: str
    moment: str
    condition: Callable[[str], str]
    run: Callable[..., None]
    query: Callable[[str], list[tuple[Any, ...]]]
    refused: tuple[type[Exception], ...]
    images: Callable[[random.Random, str], list[str]]
    """Statements that choose what of a table's later changes the log has."""


class RuledHistory:
    """Tables and what happens to them; `rules` are the settings' `tables`."""

    def __init__(self, words: Words, schema: str, dice: random.Random) -> None:
        self.words, self.schema, self.dice = words, schema, dice
        self.where = {table: dice.choice(CONDITIONS) for table in ("items", ALONE)}
        self.cut = dice.randint(1, 4)
        self.extra: dict[str, list[str]] = {table: [] for table in TABLES}
        """The columns that statements added, by tables."""
        self.added = 0
        self.is_recreated = False
        """Whether `ALONE` was dropped and created again. The caller resets it: at most once until then."""
        for table in TABLES:
            self.create(table)

    @property
    def rules(self) -> dict[str, Any]:
        columns = {"amount": {"rename": "price"}, "note": {"truncate": self.cut}, "secret": "mask"}
        computed = {"twice": "n * 2", "town": "doc->>'$.city'"}
        found = {"columns": columns, "computed": computed}
        return {
            f"{self.schema}.items_*": {**found, "where": self.where["items"]},
            f"{self.schema}.{ALONE}": {**found, "where": self.where[ALONE]},
        }

    def create(self, table: str) -> None:
        w = self.words
        self.extra[table] = []
        w.run(
            f"CREATE TABLE {table} (id int PRIMARY KEY, kind {w.text}, n int, amount decimal(10,2), secret {w.text},"
            f" wide {w.wide}, doc {w.document}, at {w.moment} NULL, note {w.text})",
            *w.images(self.dice, table),
        )

    # ── changes ─────────────────────────────────────────────────────────────────────────────────────────────

    def value(self, column: str) -> Any:
        dice = self.dice
        if column != "id" and dice.random() < 0.15:
            return None
        match column:
            case "id":
                return dice.randint(1, 60)
            case "kind":
                return dice.choice(["draft", "paid", "open", "Draft", ""])
            case "amount":
                return Decimal(dice.randint(-500, 5000)) / 100
            case "wide":
                return dice.choice("xyz") * dice.choice([10, 9000])
            case "doc":
                return dice.choice(['{"city": "Bonn"}', '{"city": null}', '{"city": "K\\u00f6ln", "n": 1}', "[1]"])
            case "at":
                return dt.datetime(2026, dice.randint(1, 12), dice.randint(1, 28), 12, tzinfo=dt.UTC)
            case "note" | "secret":
                return dice.choice(["abc", "a", "", "ünïcode", "before", "A"])
            case _:
                return dice.randint(-3, 9)

    def change(self, table: str) -> None:
        dice, columns = self.dice, ["kind", "n", "amount", "secret", "wide", "doc", "at", "note", *self.extra[table]]
        some = dice.sample(columns, dice.randint(1, 3))
        marks = ", ".join(f"{name} = %s" for name in some)
        values = [self.value(name) for name in some]
        match dice.randint(0, 9):
            case 0 | 1 | 2 | 3:
                names = ["id", *columns]
                with contextlib.suppress(*self.words.refused):
                    self.words.run(
                        (
                            f"INSERT INTO {table} ({', '.join(names)}) VALUES ({', '.join(['%s'] * len(names))})",
                            [self.value(name) for name in names],
                        )
                    )
            case 4 | 5 | 6:
                self.words.run((f"UPDATE {table} SET {marks} WHERE id = %s", [*values, self.value("id")]))
            case 7:
                self.words.run((f"UPDATE {table} SET {marks} WHERE id %% 3 = %s", [*values, dice.randint(0, 2)]))
            case 8:
                with contextlib.suppress(*self.words.refused):
                    self.words.run(
                        (f"UPDATE {table} SET {marks}, id = id + 100 WHERE id = %s", [*values, self.value("id")])
                    )
            case _:
                self.words.run((f"DELETE FROM {table} WHERE id = %s", [self.value("id")]))

    def statement(self, table: str) -> None:
        """A statement that changes a table: those of one that is routed keep what the other one has."""
        dice, extra = self.dice, self.extra[table]
        match dice.randint(0, 5 if table == ALONE else 2):
            case 0:
                self.words.run(f"TRUNCATE TABLE {table}")
            case 1:
                self.added += 1
                extra.append(f"extra_{self.added}")
                self.words.run(f"ALTER TABLE {table} ADD {extra[-1]} int DEFAULT {dice.randint(1, 9)}")
            case 2 if extra and table == ALONE:
                self.words.run(f"ALTER TABLE {table} DROP COLUMN {extra.pop(dice.randrange(len(extra)))}")
            case 3 if extra:
                name = dice.choice(extra)  # away, and back with its name and another number
                self.words.run(f"ALTER TABLE {table} DROP COLUMN {name}", f"ALTER TABLE {table} ADD {name} int")
            case 4 if not self.is_recreated:
                self.is_recreated = True
                self.words.run(f"DROP TABLE {table}")
                self.create(table)
            case _:
                for statement in self.words.images(dice, table):
                    self.words.run(statement)

    # ── what tables must have ───────────────────────────────────────────────────────────────────────────────

    def expected(self, table: str, columns: list[str]) -> list[tuple[Any, ...]]:
        """A table's rows as the warehouse must have them: `columns` without those that only another table has."""
        where = self.words.condition(self.where["items" if table in PARTS else table])
        named = {
            "price": "amount",
            "secret": "CASE WHEN secret IS NOT NULL THEN '****' END",
            "note": f"left(note, {self.cut})",
            "twice": "n * 2",
            "town": self.words.condition("doc->>'$.city'"),
        }
        own = {"id", "kind", "n", "wide", "doc", "at", *named, *self.extra[table]}
        listed = ", ".join(named.get(name, name) if name in own else "NULL" for name in columns)
        return sorted(
            (_plain(row) for row in self.words.query(f"SELECT {listed} FROM {table} WHERE {where}")), key=repr
        )


def plain(rows: list[dict[str, Any]], columns: list[str]) -> list[tuple[Any, ...]]:
    return sorted((_plain(tuple(row[name] for name in columns)) for row in rows), key=repr)


def _plain(row: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(value.replace(tzinfo=None) if isinstance(value, dt.datetime) else value for value in row)
