"""A settings file that changes while a daemon runs: planned, applied, reloaded by SIGHUP, refused."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from deltalake import DeltaTable
from tests.servers.postgres import Database, PostgresServer
from tests.support.daemon.running_shop import CANARY, Shop, planned, said

from cdcflow.errors import ConfigurationError

pytestmark = pytest.mark.postgres


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgresServer]:
    with PostgresServer() as server:
        yield server


@pytest.fixture
def shop(postgres: PostgresServer) -> Iterator[Database]:
    made = postgres.create_database("shop")
    made.execute("CREATE TABLE orders (id int PRIMARY KEY, due date); CREATE TABLE items (id int PRIMARY KEY)")
    made.execute("INSERT INTO orders SELECT i, '2020-01-01' FROM generate_series(1, 3000) i")
    made.execute("INSERT INTO items SELECT i FROM generate_series(1, 500) i; CREATE TABLE bare (v int)")
    made.execute("ANALYZE")
    yield made
    made.drop()


@pytest.fixture
def here(shop: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    monkeypatch.chdir(tmp_path)
    made = Shop(tmp_path, shop)
    yield made
    made.kill()


def test_a_table_and_a_limit_are_planned_and_applied(here: Shop, shop: Database) -> None:
    """The plan predicts what happens, with the server's numbers, and apply does exactly that in the same process."""
    first = planned()
    assert (first["is_running"], first["actions"], first["cost"]["rows"]) == (False, {"public.orders": "added"}, 3000)
    assert first["limits"] == []
    assert "log that the source keeps, at most: no limit" in said("plan")
    assert "the next `cdcflow run` does this" in said("apply", "--yes")
    here.start()
    assert not planned()["changes"]
    assert "Nothing changes: 1 tables" in said("plan", "--detailed-exitcode")

    here.write(tables=["public.orders", "public.items"], backfill={"rows_per_second_max": 100_000})
    found = planned()
    assert {c["name"]: c["taken"] for c in found["settings"]} == {
        "source.backfill.rows_per_second_max": "running",
        "source.tables": "next cut",
    }
    assert found["actions"] == {"public.items": "added", "public.orders": "unchanged"}
    assert (found["cost"]["rows"], found["cost"]["bytes"] > 0) == (500, True)
    shop.server.reload(max_slot_wal_keep_size="2GB")
    try:
        text = said("plan", "--detailed-exitcode", code=2)
    finally:
        shop.server.reload(max_slot_wal_keep_size="")
    assert "500 rows" in text
    assert "log that the source keeps, at most: 2.1 GB (max_slot_wal_keep_size)" in text
    assert here.ask("status")["settings"]["number"] == 1, "a plan changes nothing"

    said("apply", answer="n\n", code=1)
    assert "The daemon captures with these settings" in said("apply", answer="y\n")
    status = here.wait_until(lambda s: s.get("tables", {}).get("public.items", {}).get("state") == "done", "items")
    assert status["settings"] == {"number": 2, "given": 2}
    assert status["tables"]["public.orders"]["generation"] == 1
    assert not planned()["changes"]

    here.write(tables=["public.items"])
    found = planned()
    assert found["actions"] == {"public.items": "unchanged", "public.orders": "left out"}
    assert any("if you select it again later, it is read again" in w for w in found["warnings"])
    said("apply", "--yes", "--json")
    here.wait_until(
        lambda s: s.get("tables", {}).get("public.orders", {}).get("state") == "forgotten",
        "the exclusion of table orders",
    )
    here.write(tables=["public.*", "!public.bare"], special_values="clamp")
    assert planned()["actions"] == {"public.items": "unchanged", "public.orders": "captured again"}
    said("apply", "--yes")
    here.wait_until(lambda s: s.get("tables", {}).get("public.orders", {}).get("state") == "done", "orders again")
    here.write(special_values="text")
    (again,) = [t for t in planned()["tables"] if t["action"] == "read again"]
    assert (again["name"], again["why"], again["merged"]) == ("public.orders", "due: clamp → as text", False)
    shop.execute("INSERT INTO items VALUES (501)")
    here.end()
    assert planned()["actions"]["public.orders"] == "read again", "the next start does it as well"
    assert "the log is whole" in said("log", "check", "--deep")


def test_plan_refuses_settings_whose_tests_fail(here: Shop) -> None:
    """A plan that shows a failed test and ends with 0 is applied by the next script."""
    tables = "tables: {public.orders: {columns: {id: integer, due: date}, key: [id]}}\n"
    case = "tests: {a row: {before: {public.orders: [{id: 1}]}, tables: {public.orders: [{id: %d}]}}}\n"
    test = here.folder / "orders.yaml"
    here.file.write_text(here.file.read_text() + "\ntests: [orders.yaml]\n")
    test.write_text(tables + case % 1)
    assert "tests: 1 passed" in said("plan")
    test.write_text(tables + case % 2)
    text = said("plan", code=1)
    assert "tests: 1 failed, 0 passed" in text
    assert "test failed" in text
    assert "refused" in said("apply", "--yes", code=1)


def test_sighup_applies_the_file_and_a_bad_one_is_reported(here: Shop) -> None:
    """SIGHUP has no caller to answer: the reason is an event, and the capture continues."""
    here.start()
    assert here.daemon is not None
    here.file.write_text("source: [")
    here.daemon.send_signal(signal.SIGHUP)
    here.wait_until(lambda _: bool(here.events("settings not taken up")), "the reason")
    assert "cdcflow.yaml" in here.events("settings not taken up")[0]["reason"]
    here.write(tables=["public.orders", "public.bare"])
    here.daemon.send_signal(signal.SIGHUP)
    here.wait_until(lambda _: len(here.events("settings not taken up")) == 2, "another reason")
    told = here.events("settings not taken up")[1]
    assert "bare has no primary key" in told["reason"]
    assert "ADD PRIMARY KEY" in told["remedy"]
    here.write(tables=["public.orders", "public.items"])
    here.daemon.send_signal(signal.SIGHUP)
    status = here.wait_until(lambda s: s.get("tables", {}).get("public.items", {}).get("state") == "done", "items")
    assert status["settings"]["number"] == 2
    here.end()


def test_settings_that_this_log_cannot_continue_with_are_refused_before_anything_happens(
    here: Shop, postgres: PostgresServer
) -> None:
    """Another slot, another database, a table without a key: each error names the remedy, and the daemon continues."""
    here.start()
    here.write(slot="another")
    found = json.loads(said("plan", "--json", code=1))
    assert [("source.slot = " in r["text"], bool(r["remedy"])) for r in found["refused"]] == [(True, True)]
    said("apply", "--yes", code=1)
    del here.source["slot"]
    url = here.source["url"]
    here.write(url=url.replace("/shop", "/postgres"), tables=["pg_catalog.*", "public.*"])
    assert "this log belongs to database shop" in said("plan", code=1)
    here.write(url=url, tables=["public.orders", "public.bare"])
    assert "bare has no primary key" in said("plan", code=1)
    assert here.ask("status")["settings"] == {"number": 1, "given": 1}
    other = here.folder / "other.yaml"
    other.write_text(here.file.read_text())
    assert "the daemon on this log was started with" in said("plan", "--config", str(other), code=78)
    here.end()


def test_file_that_changed_since_the_plan_is_not_applied(here: Shop) -> None:
    """Apply does only what the operator agreed to."""
    here.start()
    here.write(tables=["public.items"])
    with pytest.raises(ConfigurationError, match="has changed since it was planned"):
        here.ask("reload", digest="of another file")
    answer = here.ask("settings")
    assert (answer["number"], answer["settings"]["source.tables"]) == (1, "public.orders")
    assert CANARY not in json.dumps(answer)
    here.end()


def test_a_type_that_a_merge_cannot_follow_is_warned_of_and_the_warning_helps(here: Shop) -> None:
    """The plan's own words, followed to the letter: move the folder away when the table is read, merge."""
    here.rest["merge"] = {"engine": "local"}
    here.write(special_values="clamp")
    here.start()
    here.end()  # which seals what it has, for the merge
    said("merge")
    here.start()
    here.write(special_values="text")
    (table,) = planned()["tables"]
    assert table["merged"] is True
    (warning,) = [w for w in planned()["warnings"] if "current-state table cannot follow" in w]
    assert "move the table's folder away in the warehouse when it is read, then run `cdcflow merge`" in warning
    said("apply", "--yes")
    done = ("done", 2)
    here.wait_until(
        lambda s: [(t["state"], t["generation"]) for t in s.get("tables", {}).values()] == [done], "orders again"
    )
    here.end()
    assert "cannot be merged further" in said("merge", code=78)
    (here.folder / "warehouse" / "public" / "orders").rename(here.folder / "moved")
    said("merge")
    merged = DeltaTable(here.folder / "warehouse" / "public" / "orders")
    assert {f.name: f.type.type for f in merged.schema().fields}["due"] == "string"
    assert sum(merged.get_add_actions(flatten=True).column("num_records").to_pylist()) == 3000
