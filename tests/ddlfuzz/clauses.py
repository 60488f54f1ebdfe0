"""PostgreSQL's several clauses in one ALTER; on MySQL and MariaDB client character sets, failing ALTERs, capitals."""

from __future__ import annotations

import random

from tests.ddlfuzz.kinds import fresh_name, kind, one_plain_table, one_table
from tests.ddlfuzz.model import Column, Model, Table

POSTGRES_OLD_ROWS = {
    "null": "",
    "filled": "DEFAULT 7",
    "required": "NOT NULL DEFAULT 8",
    "random": "DEFAULT (random() * 1000)::integer",
}
CLIENT_SETS = {
    "utf8mb4": "utf-8",
    "binary": "utf-8",
    "latin1": "latin-1",
    "latin2": "iso8859_2",
    "latin5": "iso8859_9",
    "cp1250": "cp1250",
    "cp850": "cp850",
    "cp852": "cp852",
    "macroman": "mac_roman",
    "ujis": "euc_jp",
    "utf8mb3": "utf-8",
    "latin7": "iso8859_13",
    "cp1256": "cp1256",
    "cp1257": "cp1257",
    "hp8": "hp_roman8",
    "gbk": "gbk",
    "gb18030": "gb18030",
}
"""The sets that have the letters of the tables' names, by the names of Python's. Not all have those of the rows."""

# ── several clauses ─────────────────────────────────────────────────────────────────────────────────────────────


def _altered(model: Model, dice: random.Random) -> tuple[object, ...] | None:
    found = one_table(model, dice)
    if found is None:
        return None
    shape = model.tables[str(found[0])]
    names = shape.given() or ["body"]
    made = [
        f"add/{fresh_name(model, dice)}/{dice.choice(('null', 'filled', 'required'))}",
        f"add/{fresh_name(model, dice)}/{dice.choice(('null', 'filled', 'random'))}",
        f"drop/{dice.choice(names)}",
        f"widen/{dice.choice(shape.given('int') or names)}",
        f"other/{dice.choice(shape.given('int') or names)}",
        f"default/{dice.choice(names)}",
        "check",
    ]
    return (*found, *dice.sample(made, dice.choice((2, 2, 3, 4))))


@kind(_altered, "postgres", weight=6)
def altered(model: Model, table: str, *clauses: str) -> list[str] | None:
    """PostgreSQL's several clauses in one ALTER: it may rewrite the table once for all of them."""
    said = [_postgres_clause(model.tables[table], *clause.split("/")) for clause in clauses]
    given = [text for text in said if text is not None]
    return [f"ALTER TABLE {table} {', '.join(given)}"] if len(given) == len(said) else None


def _postgres_clause(shape: Table, word: str, name: str = "", how: str = "") -> str | None:
    match word:
        case "add" if name not in shape.columns:
            shape.columns[name] = Column("int")
            return f"ADD COLUMN {name} integer {POSTGRES_OLD_ROWS[how]}"
        case "drop" if name in shape.given() and len(shape.given()) > 1:
            del shape.columns[name]
            return f"DROP COLUMN {name}"
        case "widen" if name in shape.given("int"):
            shape.columns[name] = Column("big")
            return f"ALTER COLUMN {name} TYPE bigint"
        case "other" if name in shape.given("int"):
            return f"ALTER COLUMN {name} TYPE integer USING {name} + 3"
        case "default" if name in shape.given():
            return f"ALTER COLUMN {name} SET DEFAULT NULL"
        case "check":
            return "ADD CHECK (alt > -100000000)"
    return None


# ── the session's settings ─────────────────────────────────────────────────────────────────────────────────────


def _charset(model: Model, dice: random.Random) -> tuple[object, ...]:
    return (dice.choice(list(CLIENT_SETS)),)


@kind(_charset, "mysql", "mariadb", weight=3)
def in_a_set(model: Model, charset: str) -> list[str] | None:
    """The clauses that follow are interpreted in this character set."""
    return [f"SET character_set_client = {charset}"]


def _prepared(model: Model, dice: random.Random) -> tuple[object, ...] | None:
    table = one_table(model, dice)
    return table and (*table, fresh_name(model, dice), *dice.sample([s for s in CLIENT_SETS if s != "binary"], 2))


@kind(_prepared, "mysql", "mariadb", weight=3)
def prepared_in_a_set(model: Model, table: str, column: str, first: str, second: str) -> list[str] | None:
    """Prepared in one character set and executed in another, by whose name it is logged."""
    if column in model.tables[table].columns:
        return None
    model.tables[table].columns[column] = Column("int")
    return [
        f"SET character_set_client = {first}",
        f"PREPARE said FROM 'ALTER TABLE {table} ADD COLUMN {column} int DEFAULT 9'",
        f"SET character_set_client = {second}",
        "EXECUTE said",
    ]


def _switch(model: Model, dice: random.Random) -> tuple[object, ...]:
    return (dice.choice(("ON", "ON", "OFF")),)


@kind(_switch, "mariadb", weight=2)
def two_phases(model: Model, switch: str) -> list[str] | None:
    """An ALTER is logged when it begins and when it ends."""
    return [f"SET SESSION binlog_alter_two_phase = {switch}"]


@kind(one_plain_table, "mysql", "mariadb", weight=3)
def failing_alter(model: Model, table: str) -> list[str] | None:
    """It adds a key that two rows do not allow, after it has copied some."""
    if model.tables[table].parts is not None or len(model.tables) < 2:
        return None
    del model.tables[table]
    return [
        "DROP TABLE IF EXISTS hidden_failed",
        f"ALTER TABLE {table} ADD COLUMN twice int DEFAULT 7, ADD UNIQUE KEY (twice), RENAME TO hidden_failed, "
        "ALGORITHM = COPY",
    ]


# ── names in another case ───────────────────────────────────────────────────────────────────────────────────────


def _shouted(model: Model, dice: random.Random) -> tuple[object, ...] | None:
    table = one_table(model, dice)
    return table and (*table, dice.choice(("truncate", "truncate", "add", "update", "force", "rename")))


@kind(_shouted, "mysql", "mariadb", weight=3)
def in_capitals(model: Model, table: str, what: str = "truncate") -> list[str] | None:
    """A server with case-sensitive names refuses it."""
    shape, name = model.tables[table], table.upper()
    if name == table:
        return None
    match what:
        case "truncate":
            return [f"TRUNCATE TABLE {name}"]
        case "add" if "c6" not in shape.columns:
            shape.columns["c6"] = Column("int")
            return [f"ALTER TABLE {name} ADD COLUMN c6 int DEFAULT 6"]
        case "update":
            return [f"UPDATE {name} SET alt = alt + 1 WHERE id % 3 = 1"]
        case "force":
            return [f"ALTER TABLE {name} FORCE"]
        case "rename" if shape.parts is None:
            # Away and back: the server keeps the names in lower case.
            return [f"RENAME TABLE {name} TO ASIDE", f"ALTER TABLE Aside RENAME TO {name}"]
    return None


def _shouted_column(model: Model, dice: random.Random) -> tuple[object, ...] | None:
    found = [(t, c) for t, table in model.tables.items() for c in table.given("int")]
    return (*dice.choice(found), dice.choice(("drop", "modify", "rename"))) if found else None


@kind(_shouted_column, "mysql", "mariadb", weight=2)
def column_in_capitals(model: Model, table: str, column: str, what: str) -> list[str] | None:
    """Every server takes a column's name in any case; a MODIFY and a RENAME leave it in the new one."""
    shape, name = model.tables[table], column.upper()
    if column not in shape.given("int") or name == column:
        return None
    if what == "drop":
        del shape.columns[column]
        return [f"ALTER TABLE {table} DROP COLUMN {name}"]
    made = Column("big" if what == "modify" else "int")
    shape.columns = {name if n == column else n: made if n == column else c for n, c in shape.columns.items()}
    how = f"MODIFY {name} bigint" if what == "modify" else f"RENAME COLUMN {column} TO {name}"
    return [f"ALTER TABLE {table} {how}"]


__all__ = ["CLIENT_SETS"]
