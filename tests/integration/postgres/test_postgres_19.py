"""What PostgreSQL 19 brought. Run on its own server, whatever the other tests run on."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.servers.postgres import Database, PostgresServer
from tests.servers.releases import RELEASES, environment
from tests.support.postgres.controlled_source import MakeCapture

from cdcflow.errors import ConfigurationError, HistoryLost

pytestmark = [pytest.mark.postgres, pytest.mark.long]  # it may have to be fetched


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    release = next(r for r in RELEASES if r.name == "PostgreSQL 19")
    with PostgresServer(Path(environment(release)["CDCFLOW_POSTGRES"]), {"wal_level": "replica"}) as made:
        yield made


@pytest.fixture
def shop(server: PostgresServer) -> Iterator[Database]:
    made = server.create_database("shop")
    made.execute("CREATE TABLE items (id int PRIMARY KEY, name text); CREATE TABLE other (id int PRIMARY KEY)")
    yield made
    made.drop()


def test_level_replica_is_enough_and_becomes_logical_with_the_slot(shop: Database, make_capture: MakeCapture) -> None:
    """Logical decoding begins without a restart: start and doctor refused it."""
    capture = make_capture(shop)
    level = next(f for f in capture.source.doctor() if f.subject == "wal_level")
    assert level.level == "ok"
    before = capture.prepare()
    assert shop.execute("SHOW effective_wal_level") == [("logical",)]
    shop.execute("INSERT INTO items VALUES (1, 'a')")
    assert [r["id"] for r in capture.changes("public.items")] == [1]
    capture.close()
    assert make_capture(shop).prepare(before).position == before.position


def test_level_minimal_is_refused(make_capture: MakeCapture) -> None:
    """It writes too little for any decoding, effective or not."""
    release = next(r for r in RELEASES if r.name == "PostgreSQL 19")
    settings = {"wal_level": "minimal", "max_wal_senders": "0"}
    with PostgresServer(Path(environment(release)["CDCFLOW_POSTGRES"]), settings) as minimal:
        capture = make_capture(minimal.create_database("shop"))
        with pytest.raises(ConfigurationError):
            capture.prepare()
        assert next(f for f in capture.source.doctor() if f.subject == "wal_level").level == "error"


def test_table_that_a_publication_excepts_is_refused_and_the_remedy_works(
    shop: Database, make_capture: MakeCapture
) -> None:
    """Its entry in the catalog means that it is excluded, where all other entries mean that a table is published."""
    whole = "publish_via_partition_root = true, publish_generated_columns = stored"
    shop.execute(f"CREATE PUBLICATION p FOR ALL TABLES EXCEPT (TABLE items, TABLE other), ALL SEQUENCES WITH ({whole})")
    settings = {"publication": "p", "tables": ["public.items"]}
    capture = make_capture(shop, **settings)
    with pytest.raises(ConfigurationError) as refused:
        capture.prepare()
    statement = re.search(r"run (ALTER PUBLICATION .*)", str(refused.value))
    assert statement is not None
    shop.execute(statement[1])
    capture = make_capture(shop, **settings)
    before = capture.prepare()
    shop.execute("INSERT INTO items VALUES (1, 'a'); INSERT INTO other VALUES (1)")
    assert [r["id"] for r in capture.changes()] == [1]
    assert capture.source.coverage({t.id: t.incarnation for t in capture.source.tables()}) == {}
    shop.execute("ALTER PUBLICATION p SET ALL TABLES EXCEPT (TABLE items), ALL SEQUENCES")
    assert list(capture.source.coverage({t.id: t.incarnation for t in capture.source.tables()}).values()) == [
        "it is not in publication p"
    ]
    capture.close()
    with pytest.raises(HistoryLost, match="was excepted from publication p"):
        make_capture(shop, **settings).prepare(before)


def test_repack_writes_new_files_and_causes_no_change(shop: Database, make_capture: MakeCapture) -> None:
    """As VACUUM FULL and CLUSTER: nothing is read again, and what follows is in the stream."""
    shop.execute("INSERT INTO items SELECT i, 'x' FROM generate_series(1, 50) i")
    capture = make_capture(shop, tables=["public.items"])
    capture.prepare()
    shop.execute("REPACK items")
    shop.execute("REPACK (CONCURRENTLY) items")
    shop.execute("UPDATE items SET name = 'y' WHERE id = 7")
    assert [(r["_op"], r["id"], r["name"]) for r in capture.changes("public.items")] == [("u", 7, "y")]
