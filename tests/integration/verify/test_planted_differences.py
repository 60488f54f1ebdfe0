"""Errors that a copy can have, planted in rows of a merged table: each is found and named, and nothing else is.

A merge publishes the planted errors with the next change of the source, as it would publish its own fault.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from tests.support.verify.compared_shop import ComparedShop

ROWS = 40

Edit = Callable[[list[dict[str, Any]]], None]


@dataclass(frozen=True)
class Planted:
    """`found`: which keys differ, how, and in which columns."""

    edit: Edit
    found: Mapping[int, tuple[str, tuple[str, ...]]]


def of(rows: list[dict[str, Any]], number: int) -> dict[str, Any]:
    return next(row for row in rows if row["id"] == number)


def remove(rows: list[dict[str, Any]], number: int) -> None:
    rows.remove(of(rows, number))


def add(rows: list[dict[str, Any]], number: int, copied: int) -> None:
    rows.append({**of(rows, copied), "id": number})


def swap(rows: list[dict[str, Any]], one: int, other: int) -> None:
    first, second = of(rows, one), of(rows, other)
    first["id"], second["id"] = other, one


def shift(rows: list[dict[str, Any]]) -> None:
    for row in rows:
        row["name"], row["note"] = row["note"], row["name"]


def half_repaired(rows: list[dict[str, Any]]) -> None:
    """Of two columns that were off only one was repaired."""
    of(rows, 31)["price"] += 1


PLANTED = {
    "row missing": Planted(lambda rows: remove(rows, 3), {3: ("missing", ())}),
    "last row missing": Planted(lambda rows: remove(rows, ROWS), {ROWS: ("missing", ())}),
    "row extra": Planted(lambda rows: add(rows, 1001, 5), {1001: ("extra", ())}),
    "last digit": Planted(
        lambda rows: of(rows, 7).update(price=of(rows, 7)["price"] + Decimal("0.01")), {7: ("different", ("price",))}
    ),
    "NULL for unchanged": Planted(lambda rows: of(rows, 8).update(note=None), {8: ("different", ("note",))}),
    "empty for NULL": Planted(lambda rows: of(rows, 20).update(note=""), {20: ("different", ("note",))}),
    "swapped keys": Planted(
        lambda rows: swap(rows, 9, 10),
        {9: ("different", ("name", "note", "price", "at")), 10: ("different", ("name", "note", "price", "at"))},
    ),
    "old version": Planted(lambda rows: of(rows, 11).update(name="name 11 before"), {11: ("different", ("name",))}),
    "lost delete": Planted(lambda rows: add(rows, 12, 13), {12: ("extra", ())}),
    "doubled row": Planted(lambda rows: add(rows, 14, 14), {14: ("doubled", ())}),
    "a zone off": Planted(
        lambda rows: of(rows, 15).update(at=of(rows, 15)["at"] + dt.timedelta(hours=1)), {15: ("different", ("at",))}
    ),
    "truncated text": Planted(
        lambda rows: of(rows, 16).update(name=of(rows, 16)["name"][:-1]), {16: ("different", ("name",))}
    ),
    "two equal errors": Planted(
        lambda rows: (of(rows, 17).update(note="same error"), of(rows, 18).update(note="same error"))[0],
        {17: ("different", ("note",)), 18: ("different", ("note",))},
    ),
    "repair left half way": Planted(half_repaired, {31: ("different", ("price",))}),
}


def made(shop: ComparedShop, text: str) -> None:
    """A table whose rows all differ in every column."""
    notes = {n: "NULL" if n == 20 else f"'note {n}'" for n in range(1, ROWS + 1) if n != 12}
    rows = [f"({n}, 'name {n}', {note}, {n}.25, '2026-05-0{n % 9 + 1} 12:00:0{n % 10}')" for n, note in notes.items()]
    shop.execute(
        f"CREATE TABLE items (id int PRIMARY KEY, name {text}, note {text}, price decimal(10,2), at timestamp(6))",
        f"INSERT INTO items VALUES {', '.join(rows)}",
    )


def publish(shop: ComparedShop, number: int) -> None:
    """A change of the source, with which a merge publishes whatever the table is by now."""
    shop.execute(f"UPDATE items SET name = 'name {number}' WHERE id = 1")
    shop.merge_until("items", lambda rows: f"name {number}" in rows.column("name").to_pylist())


def plant(shop: ComparedShop, edit: Edit) -> list[dict[str, Any]]:
    """Change the table; return its previous rows."""
    right: list[dict[str, Any]] = []

    def edited(rows: pa.Table) -> pa.Table:
        right.extend(rows.to_pylist())
        wrong = rows.to_pylist()
        edit(wrong)
        return pa.Table.from_pylist(wrong, schema=rows.schema)

    shop.edit("items", edited)
    return right


def mend(shop: ComparedShop, right: list[dict[str, Any]]) -> None:
    """The rows before something was planted, but for the one that has changed since."""

    def mended(rows: pa.Table) -> pa.Table:
        newest = of(rows.to_pylist(), 1)
        return pa.Table.from_pylist([newest if row["id"] == 1 else row for row in right], schema=rows.schema)

    shop.edit("items", mended)


def compare(shop: ComparedShop) -> None:
    shop.start("items")
    shop.merge_until("items", lambda rows: rows.num_rows == ROWS - 1)
    assert shop.verify(code=0)["items/tables"]["rows"] == ROWS - 1

    def all_of_them(rows: list[dict[str, Any]]) -> None:
        for planted in PLANTED.values():
            planted.edit(rows)

    right = plant(shop, all_of_them)
    publish(shop, 2000)
    found = shop.verify("--keys", "100", code=1)["items/tables"]
    differences = {d["key"]["id"]: (d["what"], tuple(d["columns"])) for d in found["differences"]}
    wanted = {key: what for planted in PLANTED.values() for key, what in planted.found.items()}
    assert differences == wanted
    assert found["different"] == len(wanted)
    mend(shop, right)

    right = plant(shop, shift)
    publish(shop, 3000)
    found = shop.verify("--keys", "3", code=1)["items/tables"]
    assert (found["different"], len(found["differences"])) == (ROWS - 2, 3), "all but the row that was written since"
    mend(shop, right)
    publish(shop, 3001)
    assert shop.verify(code=0)["items/tables"]["verdict"] == "equal"


@pytest.mark.spread(1)
def test_differences_planted_in_tables_of_postgres_are_found_and_named(postgres_shop: ComparedShop) -> None:
    """Each of them is found, and no other row is reported."""
    made(postgres_shop, "text")
    compare(postgres_shop)


@pytest.mark.spread(1)
@pytest.mark.mysql
def test_differences_planted_in_tables_of_mysql_and_mariadb_are_found_and_named(mysql_shop: ComparedShop) -> None:
    """The same, where the server compares text by a collation."""
    made(mysql_shop, "varchar(100)")
    compare(mysql_shop)
