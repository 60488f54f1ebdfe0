"""Publishing that begins, moves and ends while its process runs, and what is refused."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.servers.kafka import KafkaBroker
from tests.servers.postgres import PostgresServer
from tests.support.daemon.running_shop import Shop, planned, said

from cdcflow.publish.position import Published
from cdcflow.publish.producer import Cluster, TableProducer

pytestmark = [pytest.mark.postgres, pytest.mark.kafka]


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgresServer]:
    with PostgresServer() as server:
        yield server


@pytest.fixture
def here(postgres: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    database = postgres.create_database("shop")
    database.execute("CREATE TABLE orders (id int PRIMARY KEY); INSERT INTO orders VALUES (1)")
    monkeypatch.chdir(tmp_path)
    made = Shop(tmp_path, database)
    yield made
    made.kill()
    database.drop()


def taken_by_another_log(broker: KafkaBroker, prefix: str) -> None:
    """What a publisher of another log leaves under a prefix."""
    producer = TableProducer.open(Cluster(broker.address, prefix))
    producer.begin()
    producer.commit(Published("another log"))
    producer.close()


def published(shop: Shop, times: int) -> Callable[[object], bool]:
    return lambda _: len(shop.events("published")) >= times


def begun(shop: Shop) -> list[str]:
    return [str(event["prefix"]) for event in shop.events("publishing begun")]


def test_publishing_begins_moves_is_refused_and_ends_while_the_daemon_runs(here: Shop, broker: KafkaBroker) -> None:
    """It needed a restart; and a prefix that another log has must not end a daemon that captures well."""
    here.start()
    for number, prefix in enumerate(("one", "two"), 1):
        here.rest["publish"] = {"kafka": {"brokers": broker.address, "topic_prefix": prefix}}
        here.write()
        assert {change["taken"] for change in planned()["settings"]} == {"running"}
        said("apply", "--yes")
        here.wait_until(published(here, number), f"{prefix} to be published")
        assert begun(here)[-1] == prefix
    taken_by_another_log(broker, "taken")
    here.rest["publish"]["kafka"]["topic_prefix"] = "taken"
    here.write()
    assert "its topics hold the changes of another log" in said("apply", "--yes", code=78)
    assert begun(here) == ["one", "two"], "it continues as before"
    # The remedy, to the letter: another prefix. Then none at all.
    here.rest["publish"]["kafka"]["topic_prefix"] = "three"
    here.write()
    said("apply", "--yes")
    here.wait_until(lambda _: begun(here) == ["one", "two", "three"], "the third to begin")
    del here.rest["publish"]
    here.write()
    said("apply", "--yes")
    assert not planned()["changes"]
    here.rest["publish"] = {"kafka": {"brokers": broker.address, "topic_prefix": "three"}}
    here.write()
    said("publish", "--once")  # which fences the previous publisher of the topics
    here.end()


@pytest.mark.long
def test_publish_reads_its_settings_again_on_hang_up(here: Shop, broker: KafkaBroker) -> None:
    """SIGHUP ended it."""
    here.start()
    here.end()
    here.rest["publish"] = {"kafka": {"brokers": broker.address, "topic_prefix": "four"}}
    here.write()
    command = [sys.executable, "-m", "cdcflow.cli", "publish", "--json"]
    process = subprocess.Popen(command, cwd=here.folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert process.stdout is not None

    def until(event: str) -> dict[str, Any]:
        assert process.stdout is not None
        for line in process.stdout:
            if (found := json.loads(line))["event"] == event:
                return dict(found)
        raise AssertionError(f"it ended before {event}")

    try:
        assert until("publishing begun")["prefix"] == "four"
        here.file.write_text("source: [")
        process.send_signal(signal.SIGHUP)
        assert "cdcflow.yaml" in until("settings not taken up")["reason"]
        here.rest["publish"]["kafka"]["topic_prefix"] = "five"
        here.write()
        process.send_signal(signal.SIGHUP)
        assert until("publishing begun")["prefix"] == "five"
        assert until("published")
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.communicate()
