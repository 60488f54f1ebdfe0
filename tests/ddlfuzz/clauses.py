"""MySQL and MariaDB: several clauses in one ALTER, sets of the client, ALTERs that fail, names in capitals."""

from __future__ import annotations

import random

from tests.ddlfuzz.kinds import fresh_name, kind, one_plain_table, one_table
from tests.ddlfuzz.model import Column, Model, Table

FORMS = {"none": "RENAME {}", "to": "RENAME TO {}", "as": "RENAME AS `{}`", "sign": "RENAME = {}"}
OLD_ROWS = {"null": "", "filled": "DEFAULT 7", "required": "NOT NULL"}
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
}
"""The sets that have all letters of the cases, by the names of Python's."""

# ── several clauses ─────────────────────────────────────────────────────────────────────────────────────────────


def _clauses(model: Model, dice: random.Random) -> tuple[object, ...] | None:
    found = one_plain_table(model, dice)
    if found is None:
        return None
    shape = model.tables[str(found[0])]
    names = shape.given() or ["body"]
    made = [
        f"add/{fresh_name(model, dice)}/{dice.choice(('null', 'filled', 'required'))}",
        f"drop/{dice.choice(names)}",
        f"widen/{dice.choice(shape.given('int') or names)}",
        f"convert/{dice.choice(('latin1', 'utf8mb4'))}",
        f"same/{dice.choice(list(FORMS))}",
        f"same/{dice.choice(list(FORMS))}",
        f"rename/{dice.choice(list(FORMS))}/t{dice.randint(0, 4)}",
        f"index/{dice.choice(shape.given('int', 'big') or ['alt'])}",
        "engine",
        "comment",
        "order",
    ]
    chosen = dice.sample(made, dice.choice((2, 2, 3, 4)))
    return (*found, *(text + dice.choice(("", "", "!")) for text in chosen))


@kind(_clauses, "mysql", "mariadb", weight=8)
def combined(model: Model, table: str, *clauses: str) -> list[str] | None:
    """Each clause counts, in whatever order and company; those with a `!` are in an executable comment."""
    name, shape = table, model.tables[table]
    said: list[str] = []
    for clause in clauses:
        word, *rest = clause.rstrip("!").split("/")
        if word == "rename":
            if shape.parts is not None or rest[1] in model.tables:
                return None
            name = rest[1]
        text = _clause(table, shape, word, rest)
        if text is None:
            return None
        said.append(f"/*!50001 {text} */" if clause.endswith("!") else text)
    if name != table:
        model.tables[name] = model.tables.pop(table)
    return [f"ALTER TABLE {table} {', '.join(said)}"]


def _clause(table: str, shape: Table, word: str, rest: list[str]) -> str | None:
    match word:
        case "add" if rest[0] not in shape.columns:
            shape.columns[rest[0]] = Column("int")
            return f"ADD COLUMN {rest[0]} int {OLD_ROWS[rest[1]]}"
        case "drop" if rest[0] in shape.given() and len(shape.given()) > 1:
            del shape.columns[rest[0]]
            return f"DROP COLUMN {rest[0]}"
        case "widen" if rest[0] in shape.given("int"):
            shape.columns[rest[0]] = Column("big")
            return f"MODIFY {rest[0]} bigint"
        case "convert":
            return f"CONVERT TO CHARACTER SET {rest[0]}"
        case "same":
            return FORMS[rest[0]].format(table)
        case "rename":
            return FORMS[rest[0]].format(rest[1])
        case "index" if rest[0] in shape.columns:
            return f"ADD INDEX ({rest[0]})"
        case "engine":
            return "ENGINE = InnoDB"
        case "comment":
            return "COMMENT 'é, RENAME TO x'"
        case "order":
            return "ORDER BY alt"
    return None


# ── what the session is set to ──────────────────────────────────────────────────────────────────────────────────


def _charset(model: Model, dice: random.Random) -> tuple[object, ...]:
    return (dice.choice(list(CLIENT_SETS)),)


@kind(_charset, "mysql", "mariadb", weight=3)
def in_a_set(model: Model, charset: str) -> list[str] | None:
    """What follows is said in this character set."""
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


@kind(one_table, "mysql", "mariadb", weight=2)
def in_capitals(model: Model, table: str) -> list[str] | None:
    """A server that tells case refuses it."""
    return [f"TRUNCATE TABLE {table.upper()}"] if table.upper() != table else None


__all__ = ["CLIENT_SETS"]
