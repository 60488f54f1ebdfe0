"""Steps that change rows, and transactions around them."""

from __future__ import annotations

import random

from tests.ddlfuzz.kinds import kind, nothing, one_table
from tests.ddlfuzz.model import Model


def _several(model: Model, dice: random.Random) -> tuple[object, ...] | None:
    table = one_table(model, dice)
    return table and (*table, dice.randint(1, 2400), dice.choice((1, 2, 5, 40, 150)), dice.randint(1, 999))


@kind(_several, weight=14)
def insert(model: Model, table: str, first: str, count: str, seed: str) -> list[str] | None:
    shape = model.tables[table]
    names = [n for n, c in shape.columns.items() if c.values == "given"]
    rows = []
    for i in range(int(count)):
        key = int(first) + i
        # `alt` is unique for as long as `id` is; no random number, so that a case means the same on every run.
        given = {"id": str(key), "alt": str(key * 7 + 3)}
        values = [
            given.get(n) or model.literal(shape.columns[n], int(seed) + 13 * i + 3 * k) for k, n in enumerate(names)
        ]
        rows.append(f"({', '.join(values)})")
    # Not IGNORE, which turns zero dates into NULL.
    conflict = "ON CONFLICT DO NOTHING" if model.is_postgres else "ON DUPLICATE KEY UPDATE id = VALUES(id)"
    return [f"INSERT INTO {table} ({', '.join(names)}) VALUES {', '.join(rows)} {conflict}"]


def _some(model: Model, dice: random.Random) -> tuple[object, ...] | None:
    table = one_table(model, dice)
    if table is None:
        return None
    columns = model.tables[str(table[0])].given()
    modulus = dice.choice((1, 3, 10, 50))
    return (*table, dice.choice(columns), modulus, dice.randrange(modulus), dice.randint(1, 999)) if columns else None


@kind(_some, weight=14)
def update(model: Model, table: str, column: str, modulus: str, rest: str, seed: str) -> list[str] | None:
    found = model.tables[table].columns[column]
    if found.values != "given" or column not in model.tables[table].free():
        return None
    return [f"UPDATE {table} SET {column} = {model.literal(found, int(seed))} WHERE id % {modulus} = {rest}"]


def _key(model: Model, dice: random.Random) -> tuple[object, ...] | None:
    table = one_table(model, dice)
    return table and (*table, dice.randint(1, 400), dice.choice((500, 1000, -200)))


@kind(_key, weight=5)
def rekey(model: Model, table: str, key: str, by: str) -> list[str] | None:
    """Another key for one row; the server may refuse it."""
    return [f"UPDATE {table} SET id = id + {by} WHERE id = {key}"] if table in model.tables else None


def _thinned(model: Model, dice: random.Random) -> tuple[object, ...] | None:
    table = one_table(model, dice)
    modulus = dice.choice((4, 30, 100))
    return table and (*table, modulus, dice.randrange(modulus))


@kind(_thinned, weight=6)
def delete(model: Model, table: str, modulus: str, rest: str) -> list[str] | None:
    return [f"DELETE FROM {table} WHERE id % {modulus} = {rest}"] if table in model.tables else None


@kind(one_table, weight=2)
def truncate(model: Model, table: str) -> list[str] | None:
    return [f"TRUNCATE TABLE {table}"] if table in model.tables else None


@kind(nothing, weight=4)
def begin(model: Model) -> list[str] | None:
    if model.in_transaction or model.held:
        return None
    model.in_transaction = True
    return ["BEGIN"]


@kind(nothing, weight=6)
def commit(model: Model) -> list[str] | None:
    if not model.in_transaction:
        return None
    model.in_transaction = model.has_savepoint = False
    return ["COMMIT"]


@kind(nothing, weight=2)
def rollback(model: Model) -> list[str] | None:
    """The executor restores the model from before `begin`, where the server rolls DDL back too."""
    if not model.in_transaction:
        return None
    model.in_transaction = model.has_savepoint = False
    return ["ROLLBACK"]


@kind(nothing, "postgres", weight=1)
def savepoint(model: Model) -> list[str] | None:
    if not model.in_transaction:
        return None
    model.has_savepoint = True
    return ["SAVEPOINT kept"]


@kind(nothing, "postgres", weight=1)
def undo(model: Model) -> list[str] | None:
    """Back to the savepoint. The executor restores the model from there."""
    return ["ROLLBACK TO SAVEPOINT kept"] if model.has_savepoint else None


@kind(nothing, "postgres", weight=1)
def linger(model: Model) -> list[str] | None:
    """The executor waits until the daemon has some of the transaction's rows: the server may send them early."""
    return [] if model.in_transaction else None


@kind(nothing, "postgres", weight=1)
def hold(model: Model) -> list[str] | None:
    """A commit that waits for a standby: it is sent, and no session sees it. Later steps are of another session."""
    if not model.in_transaction:
        return None
    model.in_transaction, model.has_savepoint, model.held = False, False, True
    return ["{hold}"]


def _patience(model: Model, dice: random.Random) -> tuple[object, ...] | None:
    return (dice.choice(("soon", "late")),)


@kind(_patience, "postgres", weight=6)
def release(model: Model, patience: str) -> list[str] | None:
    """End the wait of a commit. `late`: not before the executor has seen that the daemon has it."""
    if not model.held:
        return None
    model.held = False
    return ["{release}"]


CHANGES = ("delete", "insert", "rekey", "truncate", "update")
ROWS = frozenset((*CHANGES, "begin", "commit", "hold", "linger", "rollback", "savepoint", "undo"))

__all__ = ["ROWS", "insert"]
