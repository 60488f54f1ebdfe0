"""Readers of the topics learn of a gap in the source's log, and when its tables are right again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.servers.kafka import KafkaBroker
from tests.servers.postgres import PostgresServer
from tests.support.kafka.topics import committed
from tests.support.verify.compared_shop import ComparedShop

from cdcflow import wiring
from cdcflow.config import load

pytestmark = pytest.mark.postgres


def test_released_log_is_a_gap_in_the_topics_until_the_tables_are_repaired(
    own_postgres: PostgresServer, broker: KafkaBroker, tmp_path: Path
) -> None:
    """P37: rows that were deleted in the gap are deleted at the consumer, before the table counts as right."""
    database = own_postgres.create_database("shop")
    with ComparedShop.on_postgres(database, tmp_path) as shop:
        shop.settings["source"] |= {"log_budget_then": "release", "slot": "gaps"}
        shop.settings["publish"] = {"kafka": {"brokers": broker.address, "topic_prefix": "gaps"}}
        shop.write()
        shop.execute("CREATE TABLE items (id int PRIMARY KEY)", "INSERT INTO items VALUES (1), (2), (3)")
        shop.execute("CREATE TABLE notes (note text)", "ALTER TABLE notes REPLICA IDENTITY FULL")
        shop.execute("INSERT INTO notes VALUES ('a')")
        shop.start("items", "notes")
        shop.stop()
        # The server itself gives the slot up.
        own_postgres.reload(max_slot_wal_keep_size="1MB")
        shop.execute("DELETE FROM items WHERE id = 2", "INSERT INTO notes VALUES ('b')")
        for _ in range(40):
            shop.execute(
                "SELECT pg_logical_emit_message(false, 'load', repeat('x', 1 << 20))", "SELECT pg_switch_wal()"
            )
        shop.execute("CHECKPOINT")
        shop.start()
        shop.wait_until(is_repaired, "both tables to be right again")
        shop.stop()
        wiring.publisher(load(shop.file), lambda event, fields: None).run(once=True)
        wiring.publisher(load(shop.file), lambda event, fields: None).run(once=True)
    found = [json.loads(message.value or b"") for message in committed(broker.address, "gaps.cdcflow-gaps")]
    about = [(one["type"], one["additional_data"]["data_collection"]) for one in found]
    assert sorted(about[:2]) == [("STARTED", "public.items"), ("STARTED", "public.notes")]
    assert sorted(about[2:]) == [("COMPLETED", "public.items"), ("COMPLETED", "public.notes")]
    how = {one["additional_data"]["data_collection"]: one["additional_data"].get("how") for one in found[2:]}
    assert how == {"public.items": "compared", "public.notes": "read"}
    assert all(one["additional_data"]["before"] < one["additional_data"]["after"] for one in found[:2])
    values = [json.loads(m.value) for m in committed(broker.address, "gaps.public.items") if m.value is not None]
    assert {"op": "d", "id": 2} in [{"op": v["op"], "id": (v["before"] or v["after"])["id"]} for v in values]


def is_repaired(status: dict[str, Any]) -> bool:
    items, notes = (status["tables"][f"public.{name}"] for name in ("items", "notes"))
    return bool(items["gap"]["proven"] is not None and notes["generation"] == 2 and notes["state"] == "done")
