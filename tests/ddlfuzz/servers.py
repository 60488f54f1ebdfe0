"""Steps that exist on one server only: publications, character sets, enums, row versions."""

from __future__ import annotations

import random

from tests.ddlfuzz.kinds import kind, nothing, one_column, one_plain_table, one_table
from tests.ddlfuzz.model import Column, Model, is_hidden

# ── PostgreSQL ──────────────────────────────────────────────────────────────────────────────────────────────────
# {publication} is inserted when the statement is run: cdcflow names it.


@kind(nothing, "postgres")
def publish_less(model: Model) -> list[str] | None:
    if not model.published:
        return None
    model.published = False
    return ["ALTER PUBLICATION {publication} SET (publish = 'insert')"]


@kind(nothing, "postgres", weight=3)
def publish_all(model: Model) -> list[str] | None:
    if model.published:
        return None
    model.published = True
    return ["ALTER PUBLICATION {publication} SET (publish = 'insert, update, delete, truncate')"]


def _one_published(model: Model, dice: random.Random) -> tuple[object, ...] | None:
    names = [n for n in model.plain() if not is_hidden(n)]
    return (dice.choice(names),) if names else None


@kind(_one_published, "postgres", weight=1)
def unpublish(model: Model, table: str) -> list[str] | None:
    """Take a table out of the publication and add it again."""
    if table not in model.tables:
        return None
    return [f"ALTER PUBLICATION {{publication}} {what} TABLE {table}" for what in ("DROP", "ADD")]


@kind(_one_published, "postgres", weight=1)
def filter_rows(model: Model, table: str) -> list[str] | None:
    """Publish a part of the rows for the length of one update, then all of them: the entry is a new one."""
    if table not in model.tables or model.in_transaction:
        return None
    alter = f"ALTER PUBLICATION {{publication}} DROP TABLE {table}", "ALTER PUBLICATION {publication} ADD TABLE"
    return [alter[0], f"{alter[1]} {table} WHERE (id < 0)", alter[0], f"{alter[1]} {table}"]


@kind(nothing, "postgres", weight=1)
def relabel(model: Model) -> list[str] | None:
    """Rows that have the label change, and no log records it."""
    used = model.moods[0]
    model.moods = (*model.moods[1:], used + "er")
    return [f"ALTER TYPE mood RENAME VALUE '{used}' TO '{used}er'"]


@kind(nothing, "postgres", weight=1)
def add_label(model: Model) -> list[str] | None:
    if model.in_transaction:
        return None
    model.moods = (*model.moods, f"more{len(model.moods)}")
    return [f"ALTER TYPE mood ADD VALUE '{model.moods[-1]}'"]


@kind(one_plain_table, "postgres")
def identity_full(model: Model, table: str) -> list[str] | None:
    return [f"ALTER TABLE {table} REPLICA IDENTITY FULL"] if table in model.tables else None


@kind(one_plain_table, "postgres")
def identity_default(model: Model, table: str) -> list[str] | None:
    return [f"ALTER TABLE {table} REPLICA IDENTITY DEFAULT"] if table in model.tables else None


# ── MySQL and MariaDB ───────────────────────────────────────────────────────────────────────────────────────────


def _charset(model: Model, dice: random.Random) -> tuple[object, ...] | None:
    table = one_table(model, dice)
    return table and (*table, dice.choice(("latin1", "utf8mb4", "utf8mb3")))


@kind(_charset, "mysql", "mariadb", weight=3)
def convert_table(model: Model, table: str, charset: str) -> list[str] | None:
    return [f"ALTER TABLE {table} CONVERT TO CHARACTER SET {charset}"] if table in model.tables else None


def _text_charset(model: Model, dice: random.Random) -> tuple[object, ...] | None:
    found = one_column("short", "latin")(model, dice)
    return found and (*found, dice.choice(("latin1", "utf8mb4")))


@kind(_text_charset, "mysql", "mariadb", weight=3)
def convert_column(model: Model, table: str, column: str, charset: str) -> list[str] | None:
    if column not in model.tables[table].given("short", "latin"):
        return None
    return [f"ALTER TABLE {table} MODIFY COLUMN {column} varchar(40) CHARACTER SET {charset}"]


@kind(one_column("mood"), "mysql", "mariadb")
def reorder_labels(model: Model, table: str, column: str) -> list[str] | None:
    """The labels stay, their numbers in the log change."""
    if column not in model.tables[table].given("mood"):
        return None
    moods = tuple(reversed(model.tables[table].columns[column].moods))
    model.tables[table].columns[column] = Column("mood", moods=moods)
    return [f"ALTER TABLE {table} MODIFY COLUMN {column} {model.sql_type('mood', moods)}"]


@kind(one_column("mood"), "mysql", "mariadb")
def extend_labels(model: Model, table: str, column: str) -> list[str] | None:
    if column not in model.tables[table].given("mood"):
        return None
    moods = (*(old := model.tables[table].columns[column].moods), f"more{len(old)}")
    model.tables[table].columns[column] = Column("mood", moods=moods)
    return [f"ALTER TABLE {table} MODIFY COLUMN {column} {model.sql_type('mood', moods)}"]


@kind(one_column("int", "big", "number", "moment"), "mysql", "mariadb")
def move_column(model: Model, table: str, column: str) -> list[str] | None:
    """To the first place in the table."""
    shape = model.tables[table]
    if column not in shape.given("int", "big", "number", "moment"):
        return None
    sql = model.sql_type(shape.columns[column].type)
    shape.columns = {column: shape.columns.pop(column), **shape.columns}
    return [f"ALTER TABLE {table} MODIFY COLUMN {column} {sql} FIRST"]


@kind(one_column("int"), "mysql", "mariadb")
def change_column(model: Model, table: str, column: str) -> list[str] | None:
    """CHANGE with a new name and a wider type in one statement."""
    shape = model.tables[table]
    name = f"{column}x"
    if column not in shape.given("int") or name in shape.columns:
        return None
    shape.columns = {name if n == column else n: Column("big") if n == column else c for n, c in shape.columns.items()}
    return [f"ALTER TABLE {table} CHANGE COLUMN {column} {name} bigint"]


@kind(one_plain_table, "mysql", "mariadb")
def online_change(model: Model, table: str) -> list[str] | None:
    """What gh-ost does: a shadow table is filled, and takes the name in one RENAME of two."""
    if table not in model.tables or model.tables[table].parts is not None:
        return None
    shadow, old = f"_{table}_gho", f"_{table}_del"
    names = ", ".join(n for n, c in model.tables[table].columns.items() if c.values != "computed")
    return [
        f"CREATE TABLE {shadow} LIKE {table}",
        f"INSERT INTO {shadow} ({names}) SELECT {names} FROM {table}",
        f"RENAME TABLE {table} TO {old}, {shadow} TO {table}",
        f"DROP TABLE {old}",
    ]


@kind(one_plain_table, "mariadb", weight=3)
def versioned(model: Model, table: str) -> list[str] | None:
    if model.tables[table].versioned or model.tables[table].parts is not None:
        return None
    model.tables[table].versioned = True
    return ["SET SESSION system_versioning_alter_history = KEEP", f"ALTER TABLE {table} ADD SYSTEM VERSIONING"]


@kind(one_plain_table, "mariadb", weight=3)
def not_versioned(model: Model, table: str) -> list[str] | None:
    if not model.tables[table].versioned:
        return None
    model.tables[table].versioned = False
    return [f"ALTER TABLE {table} DROP SYSTEM VERSIONING"]


__all__: list[str] = []
