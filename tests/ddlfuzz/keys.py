"""Steps that change keys: other columns, temporarily none, temporarily two rows of one key, a unique key instead."""

from __future__ import annotations

import random

from tests.ddlfuzz.kinds import kind, one_plain_table, one_table
from tests.ddlfuzz.model import Model, Table
from tests.ddlfuzz.rows import insert


def _keyed(model: Model, dice: random.Random) -> tuple[object, ...] | None:
    table = one_table(model, dice)
    return table and (*table, dice.choice(("id", "alt", "id,alt", "alt,id")))


@kind(_keyed, weight=1)
def change_key(model: Model, table: str, columns: str) -> list[str] | None:
    shape = model.tables[table]
    key = tuple(columns.split(","))
    if shape.parts is not None or key == shape.key:
        return None
    shape.key = key
    if not model.is_postgres:
        return [f"ALTER TABLE {table} {_dropped(shape)}, ADD PRIMARY KEY ({columns})"]
    return ["BEGIN", _without_key(table), _with_key(model, table, key), "COMMIT"]


def _dropped(shape: Table) -> str:
    """MySQL's clause that takes a table's key away."""
    unique, shape.unique = shape.unique, False
    return "DROP KEY only_alt" if unique else "DROP PRIMARY KEY"


def _without_key(table: str) -> str:
    return (
        f"DO $$ BEGIN EXECUTE 'ALTER TABLE {table} DROP CONSTRAINT ' || (SELECT quote_ident(conname)"
        f" FROM pg_constraint WHERE conrelid = '{table}'::regclass AND contype = 'p'); END $$"
    )


def _with_key(model: Model, table: str, key: tuple[str, ...]) -> str:
    name = f"{model.split(table)[1]}_key_{'_'.join(key)}"
    return f"ALTER TABLE {table} ADD CONSTRAINT {name} PRIMARY KEY ({', '.join(key)})"


def _doubled(model: Model, dice: random.Random) -> tuple[object, ...] | None:
    table = one_table(model, dice)
    return table and (*table, dice.randint(1, 400), dice.choice(("FULL", "DEFAULT")), dice.choice(("one", "four")))


@kind(_doubled, "postgres", weight=2)
def double_key(model: Model, table: str, id_: str, identity: str, transactions: str) -> list[str] | None:
    """One key has two rows for a moment, in one transaction or in several; the older of them is deleted."""
    shape = model.tables[table]
    if shape.parts is not None:
        return None
    names = ", ".join(n for n, c in shape.columns.items() if c.values == "given")
    steps = [
        f"ALTER TABLE {table} REPLICA IDENTITY FULL",
        _without_key(table),
        f"INSERT INTO {table} ({names}) SELECT {names} FROM {table} WHERE id = {id_}",
        f"DELETE FROM {table} WHERE ctid = (SELECT min(ctid) FROM {table} WHERE id = {id_})",
        _with_key(model, table, shape.key),
        f"ALTER TABLE {table} REPLICA IDENTITY {identity}",
    ]
    # A row that was alone is deleted with its key: that means the same.
    return ["BEGIN", *steps, "COMMIT"] if transactions == "one" else steps


def _keyless(model: Model, dice: random.Random) -> tuple[object, ...] | None:
    table = one_plain_table(model, dice)
    how = dice.choice(("apart", "together")), dice.choice(("FULL", "DEFAULT", "DEFAULT"))
    return table and (*table, dice.randint(1, 400), dice.choice((1, 3, 40)), dice.randint(1, 999), *how)


@kind(_keyless, weight=3)
def keyless_moment(
    model: Model, table: str, first: str, count: str, seed: str, transactions: str, identity: str
) -> list[str] | None:
    """The key is dropped, rows are added and changed, the key is added again, as by migrations and dumps."""
    shape = model.tables[table]
    added = insert(model, table, first, count, seed)
    if shape.parts is not None or added is None:
        return None
    low, high = int(first), int(first) + int(count)
    # Rows of these keys would prevent the key from being added again.
    clean = f"DELETE FROM {table} WHERE id >= {low} AND id < {high} OR alt >= {low * 7 + 3} AND alt < {high * 7 + 3}"
    # What the server would refuse must be refused before the key is dropped.
    tried = [clean, *added, clean]
    rows = [added[0].partition(" ON CONFLICT")[0].partition(" ON DUPLICATE")[0]]
    if not model.is_postgres:
        gone = f"ALTER TABLE {table} {_dropped(shape)}"
        rows.append(f"UPDATE {table} SET alt = alt + 1 WHERE id = {first}")
        return [*tried, gone, *rows, f"ALTER TABLE {table} ADD PRIMARY KEY ({', '.join(shape.key)})"]
    if identity == "FULL":
        rows.append(f"UPDATE {table} SET alt = alt + 1 WHERE id = {first}")
    steps = [
        *tried,
        f"ALTER TABLE {table} REPLICA IDENTITY {identity}",
        _without_key(table),
        *rows,
        _with_key(model, table, shape.key),
        f"ALTER TABLE {table} REPLICA IDENTITY DEFAULT",
    ]
    return ["BEGIN", *steps, "COMMIT"] if transactions == "together" else steps


@kind(one_plain_table, "mysql", "mariadb")
def unique_key(model: Model, table: str) -> list[str] | None:
    """A unique key without NULLs is the table's key where it has no primary one."""
    shape = model.tables[table]
    if shape.parts is not None or shape.unique:
        return None
    shape.key, shape.unique = ("alt",), True
    return [f"ALTER TABLE {table} DROP PRIMARY KEY, ADD UNIQUE KEY only_alt (alt)"]


@kind(one_plain_table, "postgres")
def identity_index(model: Model, table: str) -> list[str] | None:
    """Deletes and updates carry the columns of another index than the primary key's."""
    if model.tables[table].parts is not None:
        return None
    name = f"{model.split(table)[1]}_by_alt"
    return [
        f"CREATE UNIQUE INDEX IF NOT EXISTS {name} ON {table} (alt)",
        f"ALTER TABLE {table} REPLICA IDENTITY USING INDEX {name}",
    ]


@kind(one_plain_table, "postgres", weight=1)
def identity_lost(model: Model, table: str) -> list[str] | None:
    """The index of the identity is dropped: until another identity is set the table has none."""
    schema, name = model.split(table)
    return [f"DROP INDEX IF EXISTS {schema}{name}_by_alt"] if table in model.tables else None


__all__: list[str] = []
