"""A table that is unverified after lost history, where Spark merges and Spark reads what is compared."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.servers.postgres import PostgresServer
from tests.support.polling import wait_until
from tests.support.verify.compared_shop import ComparedShop

from cdcflow import wiring
from cdcflow.config import FileLog, load
from cdcflow.spark.cuts import read_cut
from cdcflow.spark.job import merge

pytestmark = [pytest.mark.spark, pytest.mark.postgres, pytest.mark.long]  # some fifteen merges and comparisons

ROWS = 200
CHANGED = (
    "UPDATE items SET name = 'unseen' WHERE id IN (5, 6)",
    "DELETE FROM items WHERE id IN (1, 2, 3)",
    f"INSERT INTO items VALUES ({ROWS}, 'unseen')",
)
DIFFERENT = 6
NAME = "public.items"


@pytest.fixture
def shop(
    own_postgres: PostgresServer, tmp_path: Path, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> Iterator[ComparedShop]:
    """A shop whose tables Spark merges and reads, by the session of the tests."""
    monkeypatch.setattr(importlib.import_module("cdcflow.spark.session"), "session_for", lambda config: spark)
    with ComparedShop.on_postgres(own_postgres.create_database("shop"), tmp_path) as made:
        made.settings["merge"]["engine"] = "spark"
        made.write()
        yield made


def merged(spark: Any, shop: ComparedShop, name: str, *, incomplete: bool) -> int:
    """Merge by Spark until a row's name is in the table; how many rows it has."""
    config = load(shop.file)
    assert isinstance(config.log, FileLog)
    warehouse = shop.folder / "warehouse"
    layout = wiring.log_layout(config.log)

    def rows() -> int | None:
        if not wiring.sealed_bounds(config):
            return None
        merge(spark, layout, warehouse, policies=wiring.policies(config))
        shown = read_cut(spark, warehouse, incomplete=incomplete)
        if NAME in shown and shown[NAME].where(f"name = '{name}'").count():
            return int(shown[NAME].count())
        return None

    return wait_until(rows, f"{name} to be merged", patience_s=120)


def gap(shop: ComparedShop) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(shop.said("status", "--json", code=None))["tables"][NAME]["gap"]
    return found


def test_unverified_table_is_compared_and_repaired_by_spark(shop: ComparedShop, spark: Any) -> None:
    """P37: no cut that Spark publishes shows the table as whole until its rows were compared and those repaired that
    the gap made wrong; the next cut does.
    """
    rows = ", ".join(f"({n}, 'name {n}')" for n in range(ROWS))
    shop.execute("CREATE TABLE items (id int PRIMARY KEY, name text)", f"INSERT INTO items VALUES {rows}")
    shop.start("items")
    assert merged(spark, shop, "name 7", incomplete=False) == ROWS
    shop.stop()
    shop.execute(
        "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = current_database()",
        *CHANGED,
    )
    assert "--keep-rows" in shop.refused()
    shop.start(options=["--accept-history-loss", "--keep-rows"])
    shop.wait_until(lambda status: status["tables"][NAME]["gap"] is not None, "the gap")
    shop.execute("UPDATE items SET name = 'behind the gap' WHERE id = 10")
    merged(spark, shop, "behind the gap", incomplete=True)
    assert NAME not in read_cut(spark, shop.folder / "warehouse")
    found = shop.verify("--against", "both", code=1)
    assert {name: (t["verdict"], t["different"]) for name, t in found.items()} == {
        "items/log": ("different", DIFFERENT),
        "items/tables": ("different", DIFFERENT),
    }
    assert gap(shop)["proven"] is None, "a comparison that found differences proves nothing"
    assert f"{NAME} is verified" in shop.said("repair", code=0)
    assert gap(shop)["proven"] is not None
    assert merged(spark, shop, "unseen", incomplete=False) == ROWS - 2
    shop.verify("--against", "both", code=0)
