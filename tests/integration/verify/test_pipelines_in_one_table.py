"""Two pipelines, of two servers, in one table, while both are written to and merges are killed."""

from __future__ import annotations

import contextlib
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.servers.mysql import MySQLDatabase
from tests.servers.postgres import Database
from tests.support.polling import wait_until
from tests.support.verify.compared_shop import ComparedShop

from cdcflow import local
from cdcflow.errors import ConfigurationError

pytestmark = pytest.mark.long

ROWS = 300


def pipeline(shop: ComparedShop, name: str, warehouse: Path) -> None:
    """Its settings and its rows; ids are the same in both."""
    shop.file = shop.folder / f"{name}.yaml"
    shop.settings["merge"] |= {
        "warehouse": str(warehouse),
        "tables": {"routes": {f"{shop.schema}.orders": "shop.orders"}, "constants": {"shop.orders": {"region": name}}},
    }
    shop.write()
    shop.execute("CREATE TABLE orders (id int PRIMARY KEY, n int, note varchar(40))")
    shop.execute(
        f"INSERT INTO orders VALUES {', '.join(f'({i}, {i}, {chr(39)}{name} {i}{chr(39)})' for i in range(ROWS))}"
    )


@contextlib.contextmanager
def writing(shop: ComparedShop, seed: int) -> Iterator[None]:
    """A session that changes rows until the end."""
    stop, chance = threading.Event(), random.Random(seed)

    def write() -> None:
        while not stop.wait(0.02):
            id_, n = chance.randrange(2 * ROWS), chance.randrange(1000)
            shop.execute(f"DELETE FROM orders WHERE id = {id_}")
            if chance.random() < 0.7:
                shop.execute(f"INSERT INTO orders VALUES ({id_}, {n}, 'new {n}')")
            shop.execute(f"UPDATE orders SET n = n + 1 WHERE id BETWEEN {id_} AND {id_ + 3}")

    writer = threading.Thread(target=write)
    writer.start()
    try:
        yield
    finally:
        stop.set()
        writer.join()


def merge(*shops: ComparedShop, dies_after: float | None = None) -> None:
    command = [sys.executable, "-m", "cdcflow.cli", "merge"]
    for shop in shops:
        command += ["-c", str(shop.file)]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if dies_after is not None:
        time.sleep(dies_after)
        running.kill()
    said, _ = running.communicate()
    print(said)  # shown if the test fails; the first merges may find nothing sealed


def merged_rows(warehouse: Path, *shops: ComparedShop) -> dict[str, list[tuple[Any, ...]]]:
    """The rows of each pipeline after a merge."""
    merge(*shops)
    found: dict[str, list[tuple[Any, ...]]] = {}
    rows = None
    with contextlib.suppress(ConfigurationError):  # no cut yet
        rows = local.read_cut(warehouse).get("shop.orders")
    for row in [] if rows is None else rows.select(["region", "id", "n", "note"]).to_pylist():
        found.setdefault(row["region"], []).append((row["id"], row["n"], row["note"]))
    return {region: sorted(listed) for region, listed in found.items()}


def test_pipelines_stay_apart_in_one_table(
    one_database: Database, mysql_database: MySQLDatabase, tmp_path: Path
) -> None:
    """One is read again, the other widens a column; killed merges lose nothing and write nothing twice."""
    warehouse = tmp_path / "warehouse"
    for name in ("eu", "us"):
        (tmp_path / name).mkdir()
    with (
        ComparedShop.on_postgres(one_database, tmp_path / "eu") as eu,
        ComparedShop.on_mysql(mysql_database, tmp_path / "us") as us,
    ):
        shops = {"eu": eu, "us": us}
        for name, shop in shops.items():
            pipeline(shop, name, warehouse)
            shop.start("orders", options=["-c", f"{name}.yaml"])
        wait_until(lambda: len(merged_rows(warehouse, eu, us)) == 2, "both pipelines in the table")
        chance = random.Random(1)
        with writing(eu, 2), writing(us, 3):
            for number in range(10):
                merge(eu, us, dies_after=0.5 + 2.5 * chance.random())
                if number == 2:
                    us.execute("ALTER TABLE orders MODIFY n bigint")
                    us.execute(f"INSERT INTO orders VALUES ({3 * ROWS}, 5000000000, 'wide')")
                if number == 4:
                    eu.said("backfill", "public.orders")
                if number == 6:
                    eu.kill()
                    eu.start(options=["-c", "eu.yaml"])
            eu.wait_until_done("orders")
        wanted = {
            name: sorted(tuple(row) for row in shop.execute("SELECT id, n, note FROM orders"))
            for name, shop in shops.items()
        }
        wait_until(lambda: merged_rows(warehouse, eu, us) == wanted, "the table to have the rows of both")
        assert (3 * ROWS, 5000000000, "wide") in wanted["us"]
        for shop in shops.values():
            report = shop.verify("--against", "tables", code=0)
            assert {table["verdict"] for table in report.values()} == {"equal"}
        # The rows of the other pipeline are not its own.
        eu.execute("TRUNCATE orders")
        wait_until(lambda: merged_rows(warehouse, eu, us) == {"us": wanted["us"]}, "the rows of one to be gone")
