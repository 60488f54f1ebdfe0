"""A comparison while everything runs: it blames nobody for what is being written, nor for a kill of the daemon."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from comparedshop import ComparedShop

ROWS = 3000
HOT = 20
"""Rows that change all the time."""
SECONDS = 8.0


def make(shop: ComparedShop) -> None:
    rows = ", ".join(f"({n}, 'name {n}', {n})" for n in range(ROWS))
    shop.execute(
        "CREATE TABLE items (id int PRIMARY KEY, name varchar(60), qty int)", f"INSERT INTO items VALUES {rows}"
    )


def write(shop: ComparedShop, number: int, seed: int) -> None:
    """One transaction: hot rows, others, new keys, moved keys, deletes."""
    chosen = random.Random(seed + number)
    hot, cold, new = chosen.randrange(HOT), chosen.randrange(HOT, ROWS), ROWS + 2 * number
    shop.execute(
        f"UPDATE items SET qty = qty + 1, name = 'hot {number}' WHERE id = {hot}",
        f"UPDATE items SET name = 'cold {number}' WHERE id = {cold}",
        f"INSERT INTO items VALUES ({new}, 'new {number}', 0)",
        f"UPDATE items SET id = id + 1 WHERE id = {new}" if number % 3 == 0 else f"DELETE FROM items WHERE id = {cold}",
    )


@contextmanager
def writing(shop: ComparedShop, seed: int) -> Iterator[None]:
    """Transactions, one after another, and merges beside them, for as long as the block."""
    over = threading.Event()
    failed: list[Exception] = []

    def again_and_again(act: Callable[[int], Any]) -> None:
        number = 0
        try:
            while not over.is_set():
                act(number)
                number += 1
        except Exception as error:  # noqa: BLE001  it fails the test, in its own thread
            failed.append(error)

    def merge(number: int) -> None:
        shop.merge()
        over.wait(0.3)

    acts = (lambda number: write(shop, number, seed), merge)
    threads = [threading.Thread(target=again_and_again, args=(act,)) for act in acts]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()
    assert not failed, failed


def compare_while_writing(shop: ComparedShop) -> None:
    seed = random.SystemRandom().randrange(10**6)
    make(shop)
    shop.start("items")
    shop.merge_until("items", lambda rows: rows.num_rows == ROWS)
    with writing(shop, seed):
        until = time.monotonic() + SECONDS
        verdicts = []
        while time.monotonic() < until:
            found = shop.verify("--against", "both")
            verdicts += [table["verdict"] for table in found.values()]
            assert "different" not in verdicts, (seed, found)
    assert verdicts
    shop.kill()
    shop.start("items")
    found = shop.verify("--against", "both", code=0)
    assert {name: table["verdict"] for name, table in found.items()} == {"items/log": "equal", "items/tables": "equal"}


def test_nothing_differs_in_postgres_while_it_is_written(postgres_shop: ComparedShop) -> None:
    """False alarms are defects: nobody believes the next one."""
    compare_while_writing(postgres_shop)


@pytest.mark.mysql
def test_nothing_differs_in_mysql_and_mariadb_while_they_are_written(mysql_shop: ComparedShop) -> None:
    """The same, by another server's snapshots."""
    compare_while_writing(mysql_shop)
