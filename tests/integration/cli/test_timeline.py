"""The timeline of a real pipeline: a kill, a schema change, merges and a comparison are where they happened."""

from __future__ import annotations

import json
import time
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.servers.postgres import PostgresServer
from tests.support.daemon.running_shop import Shop, said
from tests.support.polling import wait_until

from cdcflow.log.maintenance import activity

pytestmark = pytest.mark.postgres


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgresServer]:
    with PostgresServer() as server:
        yield server


@pytest.fixture
def shop(postgres: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    database = postgres.create_database("shop")
    database.execute("CREATE TABLE orders (id int PRIMARY KEY); INSERT INTO orders SELECT generate_series(1, 500)")
    monkeypatch.chdir(tmp_path)
    made = Shop(tmp_path, database)
    made.rest["log"]["seal"] = {"age_max": "200ms"}
    made.rest["merge"] = {"engine": "local", "warehouse": "lake", "every": "200ms"}
    made.write()
    yield made
    made.kill()
    database.drop()


def insert(shop: Shop, values: str) -> None:
    """Add a row, and wait until the log has it."""
    before = shop.ask("status")["durable_offset"]
    shop.database.execute(f"INSERT INTO orders VALUES ({values})")
    shop.wait_until(lambda s: s.get("durable_offset", 0) > before, "the row")


def events(lane: str, **given: str) -> list[dict[str, Any]]:
    found = json.loads(said("timeline", "--json", *(f"--{name}={value}" for name, value in given.items())))
    return [one for one in (*found["spans"], *found["marks"]) if one["lane"] == lane]


def states(lane: str) -> list[str]:
    return [one["state"] for one in events(lane)]


@pytest.mark.long
def test_kill_schema_change_merges_and_comparison_are_shown(shop: Shop) -> None:
    """An operator's questions in the morning: when did it end, since when does it run, what was different then?"""
    shop.start()
    insert(shop, "501")
    wait_until(lambda: "capturing" in states("capture"), "the daemon to be seen")
    changed_from = time.time()
    shop.database.execute("ALTER TABLE orders ADD COLUMN note text")
    insert(shop, "502, 'x'")
    changed_until = time.time()
    wait_until(lambda: "merged" in states("merge"), "a merge")
    said("verify", "public.orders", "--against", "log")

    killed_at = time.time()
    shop.kill()
    shop.start_again()
    started_at = time.time()
    insert(shop, "503, 'y'")
    wait_until(lambda: "outage" in states("capture"), "the next daemon to be seen")
    shop.end()

    (outage,) = [one for one in events("capture") if one["state"] == "outage"]
    assert outage["begin"] <= killed_at <= outage["end"] <= started_at
    assert "start" in states("capture")
    assert "done" in states("backfill")
    (schema,) = events("schema")
    assert schema["text"] == "public.orders: + note text"
    assert changed_from - 1 <= schema["at"] <= changed_until + 1
    assert [(one["state"], one["text"]) for one in events("verify")] == [("equal", "public.orders (log): equal")]
    assert activity.of_log(shop.folder / "log").capture[-1].ended

    text = said("timeline")
    assert "no daemon ran: it was killed, or its machine stopped" in text
    assert "public.orders: + note text" in text
    assert "503 rows" in text.splitlines()[-1]
    picture = said("timeline", "--svg")
    root = ET.fromstring(picture)  # noqa: S314
    assert root.tag.endswith("svg")
    assert "public.orders: + note text" in picture
    assert events("schema", until=time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(changed_from - 2))) == []
    assert events("schema", since="all") == [schema]


def test_times_that_are_no_times_are_refused(shop: Shop) -> None:
    """The error says what to write."""
    assert "there is no change log" in said("timeline", code=78)
    shop.start()
    shop.end()
    assert "this is neither a time nor a duration" in said("timeline", "--since", "yesterday", code=78)
    assert "would end before it begins" in said("timeline", "--until", "2020-01-01", code=78)
