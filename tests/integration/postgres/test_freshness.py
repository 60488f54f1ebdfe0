"""Freshness that is proven and metrics that outlast an outage, on a real server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.servers.postgres import Database, PostgresServer
from tests.support.capture.watched_capture import Watched

from cdcflow.errors import HistoryLost

pytestmark = pytest.mark.postgres


@pytest.fixture(scope="module")
def own_postgres() -> Iterator[PostgresServer]:
    """A server that the tests here stop."""
    with PostgresServer() as server:
        yield server


@pytest.fixture
def shop(own_postgres: PostgresServer) -> Iterator[Database]:
    made = own_postgres.create_database("shop")
    made.execute("CREATE TABLE orders (id int PRIMARY KEY, v int); CREATE TABLE items (id int PRIMARY KEY)")
    made.execute("INSERT INTO orders SELECT i, i FROM generate_series(1, 100) i")
    yield made
    made.drop()


def watched(folder: Path, shop: Database, **source: Any) -> Watched:
    """With a heartbeat so slow that only the canary can notice anything."""
    return Watched(folder, {"kind": "postgres", "url": shop.url, "heartbeat": "1h", "publication": "pub", **source})


def test_a_table_that_changes_is_fresh_and_an_idle_one_is_quiet(shop: Database, tmp_path: Path) -> None:
    """Both are proven by a mark through the same slot; a change is not needed."""
    with watched(tmp_path, shop) as on:
        before = on.until_fresh("public.items", "quiet")["fresh_as_of"]
        on.until_fresh_by(lambda: shop.execute("UPDATE orders SET v = v + 1"), "public.orders")
        on.until(lambda s: s["tables"]["public.items"]["fresh_as_of"] > before, "the next proof")
        on.until_fresh("public.orders", "quiet")
        quiet = on.until(lambda s: {t["freshness"] for t in s["tables"].values()} == {"quiet"}, "both to be quiet")
        page = on.metrics(quiet)
    assert page["cdcflow_tables_freshness not proven"] == 0
    assert page["cdcflow_tables_freshness quiet"] == 2
    assert on.error is None


@pytest.mark.parametrize(
    ("by_hand", "reason"),
    [
        ("ALTER PUBLICATION pub DROP TABLE orders", "it is not in publication pub"),
        (
            "ALTER PUBLICATION pub SET TABLE ONLY items, ONLY orders WHERE (id > 5)",
            "publication pub excludes rows or columns of it",
        ),
        (
            "ALTER PUBLICATION pub SET TABLE ONLY items, ONLY orders (id)",
            "publication pub excludes rows or columns of it",
        ),
        ("ALTER PUBLICATION pub SET (publish = 'insert')", "publication pub was changed"),
        ("DROP PUBLICATION pub", "publication pub is gone"),
        (
            "DROP TABLE orders; CREATE TABLE orders (id int PRIMARY KEY, v int)",
            "it was dropped, renamed or recreated since the capture began",
        ),
    ],
)
def test_a_table_whose_changes_do_not_reach_us_is_never_green(
    shop: Database, tmp_path: Path, by_hand: str, reason: str
) -> None:
    """The slot is connected, the position moves, nothing fails: only this check detects it. The next start then stops
    with an error that names where changes were lost.
    """
    with watched(tmp_path, shop) as on:
        proven = on.until_fresh("public.orders", "quiet", "fresh")
        for statement in by_hand.split("; "):
            shop.execute(statement)
        found = on.until(
            lambda s: str(s["tables"]["public.orders"]["freshness_reason"]).startswith(reason), "the reason"
        )["tables"]["public.orders"]
        assert found["freshness"] == "not proven"
        assert found["fresh_as_of"] >= proven["fresh_as_of"]
        assert on.error is None, "the capture itself has not noticed yet"
        page = on.metrics(on.watch.status())
        assert page["cdcflow_tables_freshness not proven"] >= 1
    if "CREATE TABLE" in by_hand:
        return  # another table of the same name is read from scratch, which is no loss
    with watched(tmp_path, shop) as again:
        assert isinstance(again.ended(), HistoryLost)
        status = again.watch.status()
        assert (status["state"], status["kind"]) == ("halted", "HistoryLost")
        assert again.metrics(status)["cdcflow_state halted"] == 1
        assert again.metrics(status)["cdcflow_state waiting"] == 0


def test_metrics_stay_and_the_lag_grows_while_the_server_is_unavailable(
    own_postgres: PostgresServer, shop: Database, tmp_path: Path
) -> None:
    """An alert on lag must fire in an outage; a metric that vanishes fires nothing."""
    with watched(tmp_path, shop) as on:
        on.until_fresh("public.orders", "quiet", "fresh")
        before = on.until(lambda s: s.get("lag_bytes") is not None and s.get("retained_bytes") is not None, "the lag")
        own_postgres.stop(immediate=True)
        try:
            away = on.until(lambda s: s["state"] == "waiting" and not s["source_up"], "the outage to be noticed")
            # An attempt counts as interrupted once it has closed what it had open, which may take a while.
            on.until(lambda s: bool(s["counts"]["retries"]), "the interruption to be counted")
            later = on.until(lambda s: s["lag_seconds"] > away["lag_seconds"] + 0.2, "the lag to grow")
            page = on.metrics(later)
        finally:
            own_postgres.start()
        assert page["cdcflow_cut"] >= before["cut"]
        assert page["cdcflow_retained_bytes"] > 0
        assert page["cdcflow_lag_bytes"] >= 0
        assert page["cdcflow_lag_seconds"] == later["lag_seconds"]
        assert (page["cdcflow_source_up"], page["cdcflow_state waiting"], page["cdcflow_state halted"]) == (0, 1, 0)
        assert page["cdcflow_retries_total SourceUnavailable"] >= 1
        assert page["cdcflow_rows_read_total"] == 100
        assert page["cdcflow_rows_per_second"] == 0, "what the last attempt knew, with nothing under way"
        frozen = later["tables"]["public.orders"]
        assert frozen["freshness"] == "not proven"
        assert frozen["freshness_reason"].startswith("nothing is currently captured")
        assert frozen["fresh_as_of"] is not None
        back = on.until(lambda s: s["state"] == "capturing" and s["source_up"], "the server to be back")
        assert on.metrics(back)["cdcflow_rows_read_total"] == 100, "counters of ended attempts stay"
        on.until_fresh("public.orders", "quiet", "fresh")


def test_daemon_that_starts_in_an_outage_reports_its_log_s_position(
    own_postgres: PostgresServer, shop: Database, tmp_path: Path
) -> None:
    """It never captured anything, and its metrics must not start at nothing."""
    with watched(tmp_path, shop) as on:
        on.until_fresh("public.orders", "quiet", "fresh")
        cut = on.until(lambda s: s.get("cut"), "a cut")["cut"]
    own_postgres.stop(immediate=True)
    try:
        with watched(tmp_path, shop) as on:
            away = on.until(lambda s: s.get("cut"), "the log's cut")
            assert away["cut"] >= cut
            assert set(away["tables"]) == {"public.items", "public.orders"}
            on.until(lambda s: s["lag_seconds"] > away["lag_seconds"], "the lag to grow")
    finally:
        own_postgres.start()


def test_rows_removed_with_their_partition_are_found(shop: Database, tmp_path: Path) -> None:
    """DETACH PARTITION removes rows, and the stream has no record of it. A backfill repairs it."""
    shop.execute("CREATE TABLE days (id int PRIMARY KEY) PARTITION BY RANGE (id)")
    shop.execute("CREATE TABLE days_1 PARTITION OF days FOR VALUES FROM (0) TO (100)")
    shop.execute("CREATE TABLE days_2 PARTITION OF days FOR VALUES FROM (100) TO (200)")
    shop.execute("INSERT INTO days VALUES (1), (101)")
    with watched(tmp_path, shop, tables=["public.days"]) as on:
        on.until_fresh("public.days", "quiet")
        canaries = on.capture._freshness
        assert canaries is not None
        settled = canaries._turn + 3
        on.until(lambda _: canaries._turn > settled, "samples")
        shop.execute("ALTER TABLE days DETACH PARTITION days_2")
        found = on.until_fresh("public.days", "not proven")
        assert found["freshness_reason"].startswith("its rows changed at the source, but no change arrived")
        on.capture.request("backfill", ["public.days"])
        on.until(lambda s: s["tables"]["public.days"]["generation"] == 2, "the backfill")
        on.until_fresh("public.days", "quiet", "fresh")
    assert on.error is None
