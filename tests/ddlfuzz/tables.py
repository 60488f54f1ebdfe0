"""Steps that create, drop, rename and rewrite tables, and those on partitions."""

from __future__ import annotations

import random

from tests.ddlfuzz.kinds import kind, nothing, one_plain_table, one_table
from tests.ddlfuzz.model import KEY_COLUMNS, Column, Model, Table

STARTING = {"body": "text", "c1": "int", "c2": "short", "c3": "number"}


def created(model: Model, name: str, parts: dict[str, int] | None = None) -> list[str]:
    """A table of the shape that all begin with; with `parts` a partitioned one."""
    columns = {**dict.fromkeys(KEY_COLUMNS, "big"), **STARTING}
    model.tables[name] = Table({n: Column(t) for n, t in columns.items()}, parts=parts)
    listed = ", ".join(f"{n} {model.sql_type(t)}{' NOT NULL' if n in KEY_COLUMNS else ''}" for n, t in columns.items())
    if not model.is_postgres:
        model.tables[name].indexes = ("i0", "i1")
        listed += ", INDEX i0 (alt), INDEX i1 (alt)"
    text = f"CREATE TABLE {name} ({listed}, PRIMARY KEY (id))"
    if parts is None:
        wide = [f"ALTER TABLE {name} ALTER COLUMN body SET STORAGE EXTERNAL"] if model.is_postgres else []
        return [text, *wide]
    if model.is_postgres:
        return [text + " PARTITION BY RANGE (id)", *(_part(name, p, at) for p, at in parts.items())]
    listed = ", ".join(f"PARTITION {p} VALUES LESS THAN ({at * 1000 + 1000})" for p, at in parts.items())
    return [f"{text} PARTITION BY RANGE (id) ({listed})"]


def _part(table: str, part: str, at: int) -> str:
    low = at * 1000 if at else "MINVALUE"
    return f"CREATE TABLE {part} PARTITION OF {table} FOR VALUES FROM ({low}) TO ({at * 1000 + 1000})"


def _home(model: Model) -> str:
    return "public." if model.is_postgres else ""


def _new_table(model: Model, dice: random.Random) -> tuple[object, ...]:
    return (f"{_home(model)}t{dice.randint(0, 4)}",)


@kind(_new_table)
def create_table(model: Model, table: str) -> list[str] | None:
    return None if table in model.tables else created(model, table)


def _new_parted(model: Model, dice: random.Random) -> tuple[object, ...]:
    return (f"{_home(model)}p{dice.randint(0, 1)}",)


@kind(_new_parted, weight=1)
def create_parted(model: Model, table: str) -> list[str] | None:
    """A table with three partitions by its key."""
    if table in model.tables or table in (home for home, _ in model.parted.values()):
        return None
    names = [f"{table}_{n}" if model.is_postgres else f"p{n}" for n in range(3)]
    return created(model, table, dict(zip(names, range(3), strict=True)))


@kind(one_plain_table)
def drop_table(model: Model, table: str) -> list[str] | None:
    if model.tables[table].parts is not None or len(model.tables) < 2:
        return None
    del model.tables[table]
    model.parted.pop(table, None)
    return [f"DROP TABLE {table}"]


@kind(one_plain_table, weight=1)
def recreate_table(model: Model, table: str) -> list[str] | None:
    """Dropped and recreated under its name."""
    dropped = drop_table(model, table)
    return dropped and [*dropped, *created(model, table)]


@kind(one_plain_table, "mariadb", weight=1)
def replace_table(model: Model, table: str) -> list[str] | None:
    """The same in one statement."""
    made = recreate_table(model, table)
    return made and [made[1].replace("CREATE TABLE", "CREATE OR REPLACE TABLE", 1)]


@kind(nothing, "mysql", "mariadb", weight=1)
def drop_database(model: Model) -> list[str] | None:
    """The whole database; a table of the first shape is created in a new one of that name."""
    model.tables.clear()
    return ["DROP DATABASE {database}", "CREATE DATABASE {database}", "USE {database}", *created(model, "t0")]


@kind(nothing, "postgres", weight=8)
def drop_schema(model: Model) -> list[str] | None:
    """With the tables in it."""
    gone = [name for name in model.tables if name.startswith("side.")]
    if not gone or len(gone) == len(model.tables):
        return None
    for name in gone:
        del model.tables[name]
        model.parted.pop(name, None)
    return ["DROP SCHEMA side CASCADE", "CREATE SCHEMA side"]


def _new_name(model: Model, dice: random.Random) -> tuple[object, ...] | None:
    table = one_plain_table(model, dice)
    return table and (*table, dice.choice((f"t{dice.randint(0, 6)}", f"hidden_{dice.randint(0, 2)}")))


@kind(_new_name, weight=3)
def rename_table(model: Model, table: str, name: str) -> list[str] | None:
    schema, _ = model.split(table)
    if schema + name in model.tables or model.tables[table].parts is not None:
        return None
    model.tables[schema + name] = model.tables.pop(table)
    if table in model.parted:
        model.parted[schema + name] = model.parted.pop(table)
    return [f"ALTER TABLE {table} RENAME TO {name}" if model.is_postgres else f"RENAME TABLE {table} TO {name}"]


def _two(model: Model, dice: random.Random) -> tuple[object, ...] | None:
    names = [n for n in model.plain() if n not in model.parted]
    pairs = [(a, b) for a in names for b in names if a < b and model.split(a)[0] == model.split(b)[0]]
    return dice.choice(pairs) if pairs else None


@kind(_two)
def swap_tables(model: Model, one: str, other: str) -> list[str] | None:
    """Two captured tables renamed into each other: in one statement, or in one transaction."""
    if one == other or {one, other} - set(model.plain()):
        return None
    model.tables[one], model.tables[other] = model.tables[other], model.tables[one]
    if not model.is_postgres:
        return [f"RENAME TABLE {one} TO aside, {other} TO {one}, aside TO {other}"]
    schema, first = model.split(one)
    second = model.split(other)[1]
    steps = ((one, "aside"), (other, first), (f"{schema}aside", second))
    return ["BEGIN", *(f"ALTER TABLE {a} RENAME TO {b}" for a, b in steps), "COMMIT"]


def _moving(model: Model, dice: random.Random) -> tuple[object, ...] | None:
    table = one_plain_table(model, dice)
    return table and (*table, dice.choice(("public", "side", "away")))


@kind(_moving, "postgres", weight=3)
def move_table(model: Model, table: str, schema: str) -> list[str] | None:
    """To another schema: `side` is captured, `away` is not."""
    name = f"{schema}.{model.split(table)[1]}"
    if name in model.tables or model.tables[table].parts is not None:
        return None
    model.tables[name] = model.tables.pop(table)
    if table in model.parted:
        model.parted[name] = model.parted.pop(table)
    return [f"ALTER TABLE {table} SET SCHEMA {schema}"]


@kind(one_plain_table, weight=3)
def rewrite(model: Model, table: str) -> list[str] | None:
    """The same rows in other places: nothing downstream changes."""
    if model.tables[table].parts is not None or model.in_transaction:
        return None
    return [f"VACUUM FULL {table}" if model.is_postgres else f"OPTIMIZE TABLE {table}"]


@kind(one_plain_table)
def rewrite_sorted(model: Model, table: str) -> list[str] | None:
    shape = model.tables[table]
    if shape.parts is not None:
        return None
    if not model.is_postgres:
        return [f"ALTER TABLE {table} FORCE"]
    find = f"SELECT indexrelid::regclass FROM pg_index WHERE indrelid = '{table}'::regclass AND indisprimary"
    index = f"(SELECT relname FROM pg_class WHERE oid = ({find}))"
    return [f"DO $$ BEGIN EXECUTE 'CLUSTER {table} USING ' || quote_ident({index}); END $$"]


# ── partitions ──────────────────────────────────────────────────────────────────────────────────────────────────


def _one_part(model: Model, dice: random.Random) -> tuple[object, ...] | None:
    found = [(t, p) for t, shape in model.tables.items() for p in shape.parts or ()]
    return dice.choice(found) if found else None


@kind(_one_part)
def truncate_part(model: Model, table: str, part: str) -> list[str] | None:
    if part not in (model.tables[table].parts or ()):
        return None
    return [f"TRUNCATE TABLE {part}" if model.is_postgres else f"ALTER TABLE {table} TRUNCATE PARTITION {part}"]


@kind(_one_part)
def drop_part(model: Model, table: str, part: str) -> list[str] | None:
    parts = model.tables[table].parts or {}
    # The last is never dropped: rows of the ids above would go into the next one on MySQL, and nowhere on PostgreSQL.
    if parts.pop(part, None) is None or not parts:
        return None
    return [f"DROP TABLE {part}" if model.is_postgres else f"ALTER TABLE {table} DROP PARTITION {part}"]


@kind(_one_part, "postgres", weight=4)
def detach_part(model: Model, table: str, part: str) -> list[str] | None:
    shape = model.tables[table]
    parts = shape.parts or {}
    if part not in parts or len(parts) == 1:
        return None
    model.parted[part] = (table, parts.pop(part))
    model.tables[part] = Table(model.copy().tables[table].columns, shape.key)
    return [f"ALTER TABLE {table} DETACH PARTITION {part}"]


def _parted(model: Model, dice: random.Random) -> tuple[object, ...] | None:
    return (dice.choice(list(model.parted)),) if model.parted else None


@kind(_parted, "postgres", weight=4)
def attach_part(model: Model, part: str) -> list[str] | None:
    """A table that has rows becomes a partition."""
    table, at = model.parted.pop(part)
    shape = model.tables[table]
    if part not in model.tables or shape.parts is None:
        return None
    del model.tables[part]
    shape.parts[part] = at
    low = at * 1000 if at else "MINVALUE"
    return [f"ALTER TABLE {table} ATTACH PARTITION {part} FOR VALUES FROM ({low}) TO ({at * 1000 + 1000})"]


@kind(_one_part, "mysql", "mariadb")
def exchange_part(model: Model, table: str, part: str) -> list[str] | None:
    """A partition's rows are exchanged with those of a table that is not captured."""
    if part not in (model.tables[table].parts or ()):
        return None
    return [
        "DROP TABLE IF EXISTS hidden_x",
        f"CREATE TABLE hidden_x LIKE {table}",
        "ALTER TABLE hidden_x REMOVE PARTITIONING",
        f"ALTER TABLE {table} EXCHANGE PARTITION {part} WITH TABLE hidden_x",
    ]


def _split(model: Model, dice: random.Random) -> tuple[object, ...] | None:
    return one_table(model, dice)


@kind(_split, "mysql", "mariadb")
def repartition(model: Model, table: str) -> list[str] | None:
    """The same rows in other partitions: nothing downstream changes."""
    parts = model.tables[table].parts
    if parts is None or len(parts) < 2:
        return None
    (first, _), (second, at) = sorted(parts.items(), key=lambda item: item[1])[:2]
    del parts[first]
    into = f"PARTITION {second} VALUES LESS THAN ({at * 1000 + 1000})"
    return [f"ALTER TABLE {table} REORGANIZE PARTITION {first}, {second} INTO ({into})"]


__all__ = ["created"]
