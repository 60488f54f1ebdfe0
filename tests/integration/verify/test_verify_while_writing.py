"""A comparison while everything runs: it reports neither rows that are being written nor a kill of the daemon."""

from __future__ import annotations

import json
import os
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from tests.support.verify.compared_shop import ComparedShop

ROWS = 3000
HOT = 20
"""Rows that change all the time."""
SECONDS = 5.0
MINUTES = float(os.environ.get("MINUTES", "1"))
"""Minutes that each comparison of `make verify-soak` takes."""
KILL_SHARE = 0.3
"""The share of comparisons that are followed by a kill of the daemon."""


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
    """Transactions, one after another, and concurrent merges, for as long as the block."""
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


def compare_while_writing(shop: ComparedShop, seconds: float = SECONDS, *, kills: bool = False) -> None:
    seed = random.SystemRandom().randrange(10**6)
    chosen = random.Random(seed)
    make(shop)
    shop.start("items")
    shop.merge_until("items", lambda rows: rows.num_rows == ROWS)
    verdicts: Counter[str] = Counter()
    with writing(shop, seed):
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            found = shop.verify("--against", "both")
            verdicts.update(table["verdict"] for table in found.values())
            assert "different" not in verdicts, f"seed {seed}: {json.dumps(found)}"
            if kills and chosen.random() < KILL_SHARE:
                shop.kill()
                time.sleep(chosen.uniform(0, 2))
                shop.start("items")
    assert verdicts["equal"] + verdicts["unsettled"], verdicts
    shop.kill()
    shop.start("items")
    found = shop.verify("--against", "both", code=0)
    assert {name: table["verdict"] for name, table in found.items()} == {"items/log": "equal", "items/tables": "equal"}
    shop.assert_copies_equal_source("items", ["id", "name", "qty"])


@pytest.mark.long
@pytest.mark.spread(1)
def test_nothing_differs_in_postgres_while_it_is_written(postgres_shop: ComparedShop) -> None:
    """False alarms are defects: the next one would be ignored."""
    compare_while_writing(postgres_shop)


@pytest.mark.long
@pytest.mark.mysql
def test_nothing_differs_in_mysql_and_mariadb_while_they_are_written(mysql_shop: ComparedShop) -> None:
    """The same, by another server's snapshots."""
    compare_while_writing(mysql_shop)


@pytest.mark.long
@pytest.mark.timeout(0)
def test_nothing_differs_in_postgres_for_minutes_of_kills(postgres_shop: ComparedShop) -> None:
    """`make verify-soak`: writers, kills of the daemon, merges, and one comparison after another."""
    compare_while_writing(postgres_shop, MINUTES * 60, kills=True)


@pytest.mark.long
@pytest.mark.mysql
@pytest.mark.timeout(0)
def test_nothing_differs_in_mysql_and_mariadb_for_minutes_of_kills(mysql_shop: ComparedShop) -> None:
    """The same."""
    compare_while_writing(mysql_shop, MINUTES * 60, kills=True)
