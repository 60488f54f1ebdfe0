"""What tests of restored copies share: copying a server's files, and a job that writes as many bytes each time."""

from __future__ import annotations

import random
import re
import shutil
from collections.abc import Iterable
from pathlib import Path

from tests.support.postgres.controlled_source import Row


def copied(source: Path, target: Path) -> None:
    """Copy the files of a server that is stopped, with their owner."""
    owner = source.stat()
    shutil.copytree(source, target, symlinks=True)
    for path in (target, *target.rglob("*")):
        shutil.chown(path, owner.st_uid, owner.st_gid)


def put_back(kept: Path, data: Path) -> None:
    """Replace the files of a server that is stopped by those of the copy."""
    shutil.rmtree(data)
    kept.rename(data)


Transaction = tuple[str, ...]


def drawn_job(dice: random.Random, unlike: str, first: int, transactions: int) -> list[Transaction]:
    """Transactions over a captured table `t` (id, v) and a second one, `u`. `unlike` is SQL for a text of 36 letters
    that is different each time. Run twice on the same rows it writes the same bytes in the same order, and other
    values; with the tables' names exchanged (`exchanged`) nearly so."""
    ids = iter(range(first, first + 10_000))

    def row(table: str) -> str:
        return f"INSERT INTO {table} SELECT {next(ids)}, {unlike}"

    def one() -> Transaction:
        match dice.randint(0, 9):
            case 0 | 1 | 2:
                return tuple(row("t") for _ in range(dice.randint(1, 3)))
            case 3 | 4:
                return (f"UPDATE t SET v = {unlike} WHERE id % {dice.randint(1, 4)} = 0",)
            case 5:
                return (f"DELETE FROM t WHERE id % 5 = {dice.randint(0, 4)}", row("t"))
            case 6:
                return (f"UPDATE t SET id = id + 100000 WHERE id < 100000 AND id % 7 = {dice.randint(0, 6)}", row("t"))
            case 7:
                return (row("t"), "SAVEPOINT s", row("t"), "ROLLBACK TO SAVEPOINT s", row("u"))
            case _:
                return (row("u"),)

    return [one() for _ in range(transactions)]


def exchanged(job: list[Transaction]) -> list[Transaction]:
    """The same transactions on the other table: the copy changes one as the original changed the other."""
    other = {"t": "u", "u": "t"}
    return [
        tuple(re.sub(r"(INTO|UPDATE|FROM) ([tu])\b", lambda m: f"{m[1]} {other[m[2]]}", s) for s in transaction)
        for transaction in job
    ]


def folded(rows: dict[int, str], changes: Iterable[Row]) -> dict[int, str]:
    """The table `t` after these changes."""
    rows = dict(rows)
    for change in changes:
        if change["_op"] == "d":
            rows.pop(change["id"], None)
        else:
            rows[change["id"]] = change["v"]
    return rows


__all__ = ["Transaction", "copied", "drawn_job", "exchanged", "folded", "put_back"]
