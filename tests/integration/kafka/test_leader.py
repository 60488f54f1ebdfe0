"""Three brokers under a running capture: they die, lead in turn, are restarted and fall silent, and it keeps
running.
"""

from __future__ import annotations

import contextlib
import itertools
import subprocess
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.servers.kafka import KafkaBroker, KafkaCluster
from tests.servers.postgres import PostgresServer
from tests.support.daemon.bank import Bank

from cdcflow.errors import SinkUnavailable
from cdcflow.model.table import OP, TableId
from cdcflow.sinks.kafka.reader import KafkaReader
from cdcflow.sinks.kafka.topics import Admin, Topics

_numbers = itertools.count(1)
pytestmark = [pytest.mark.postgres, pytest.mark.kafka]
PATIENCE_S = 180.0  # brokers take 9 s to miss one of them, and the machine may be busy
MORE_TRANSACTIONS = 40
# The lead returns to the preferred broker soon after it restarts, from a broker that is alive and keeps running.
SETTINGS = {
    "min.insync.replicas": "2",
    "auto.leader.rebalance.enable": "true",
    "leader.imbalance.check.interval.seconds": "2",
}


@pytest.fixture(scope="module")
def cluster() -> Iterator[KafkaCluster]:
    with KafkaCluster(3, SETTINGS) as running:
        yield running


class Led:
    """A daemon that captures a busy bank into three brokers, and what may happen to those."""

    def __init__(self, cluster: KafkaCluster, bank: Bank, topic: str) -> None:
        self.cluster = cluster
        self.bank = bank
        self.topic = topic
        self.daemon: subprocess.Popen[bytes] = bank.daemon()

    def until_more_is_durable(self, when: str) -> None:
        """The bank's commits since now become readable in the log."""
        written = self.bank.transactions + MORE_TRANSACTIONS
        self._until(lambda: self.bank.transactions >= written, f"the bank to continue {when}")
        fence = self.bank.fence()
        self._until(lambda: self.bank.has_reached(fence), f"the log to continue {when}")

    def until_led_by_another(self, than: KafkaBroker) -> None:
        self._until(lambda: self.cluster.leader(self.topic) is not than, f"another broker than {than.node} to lead")

    def until_led_by(self, broker: KafkaBroker) -> None:
        self._until(lambda: self.cluster.leader(self.topic) is broker, f"broker {broker.node} to lead")

    def until_all_have_it(self) -> None:
        self._until(
            lambda: len(self.cluster.in_sync(self.topic)) == len(self.cluster.brokers), "all copies to be in sync"
        )

    def until_interrupted(self) -> None:
        """The daemon abandons an attempt, and starts the next."""
        self._until(lambda: "capture interrupted" in self.bank.output(), "the capture to be interrupted")

    def assert_nothing_is_lost_or_doubled(self) -> None:
        """The daemon is the one that was started, and the log has all that the bank committed, once."""
        self.bank.stop_writing()
        self.bank.catch_up_and_stop(self.daemon)
        self.bank.assert_log_equals_source()
        assert not inserted_twice(self.bank)

    def ended(self) -> None:
        """Leave nothing running, also where the test has failed."""
        self.bank.stop_writing()
        if self.daemon.poll() is None:
            self.daemon.kill()
            self.daemon.wait()

    def _until(self, holds: Callable[[], bool], what: str) -> None:
        def does() -> bool:
            # A reader during a change of leader gets an error to retry.
            with contextlib.suppress(SinkUnavailable):
                return holds()
            return False

        self.bank.wait_until(does, what, self.daemon, PATIENCE_S)


@pytest.fixture
def led(kafka_server: PostgresServer, cluster: KafkaCluster, tmp_path: Path) -> Iterator[Led]:
    topic = f"led_{next(_numbers)}"
    database = kafka_server.create_database(topic)
    log = {"kafka": {"brokers": cluster.address, "topic": topic, "replicas": 3}}
    made = Led(cluster, Bank(database, tmp_path, log=log), topic)
    made.bank.start_writing(seed=61)
    yield made
    made.ended()
    database.drop()


@pytest.mark.long
def test_new_topic_is_not_mistaken_for_a_deleted_one(cluster: KafkaCluster) -> None:
    """L05: brokers learn of a topic one after another; a reader during a daemon's first start must not stop there."""
    for number in range(40):
        topics = Topics(cluster.address, f"made{number}", replicas=3)
        maker = threading.Thread(target=topics.make, args=(Admin(topics, "creating a log"),))
        maker.start()
        while maker.is_alive():
            # For a topic without a leader yet it may report an error to retry, and nothing worse.
            with contextlib.suppress(SinkUnavailable):
                assert not KafkaReader(topics).exists()


@pytest.mark.long
def test_leader_that_dies_moves_and_is_restarted_costs_the_daemon_nothing(led: Led) -> None:
    """K01, O07: brokers are replaced under a running capture every month; no operator should have to intervene."""
    cluster = led.cluster
    led.until_more_is_durable("at the start")
    first = cluster.leader(led.topic)
    assert cluster.preferred(led.topic) is first

    first.kill()
    led.until_led_by_another(than=first)
    led.until_more_is_durable("while the broker that led it is dead")

    first.start()
    led.until_led_by(first)
    led.until_more_is_durable("led by the first broker again")

    led.until_all_have_it()
    coordinator = cluster.leader("__transaction_state")
    for broker in {first.node: first, coordinator.node: coordinator}.values():
        broker.stop()
        led.until_more_is_durable(f"while broker {broker.node} is down")
        broker.start()
        led.until_all_have_it()
    led.until_more_is_durable("at the end")
    led.assert_nothing_is_lost_or_doubled()


@pytest.mark.long
def test_brokers_without_a_majority_are_waited_for(led: Led) -> None:
    """O07, K04: one broker alone acknowledges nothing; what was under way then is sent again, or was committed."""
    led.until_more_is_durable("at the start")
    leader = led.cluster.leader(led.topic)
    silent = [broker for broker in led.cluster.brokers if broker is not leader]
    for broker in silent:
        broker.pause()
    try:
        led.until_interrupted()
    finally:
        for broker in silent:
            broker.resume()
    led.until_more_is_durable("with all brokers again")
    led.assert_nothing_is_lost_or_doubled()


def inserted_twice(bank: Bank) -> list[int]:
    """Keys that the log inserted more than once, of a table whose keys are never used again."""
    seen: Counter[int] = Counter()
    for _, _, rows in bank.reader.read_rows(tables={TableId(bank.schema, "entries")}):
        operations = zip(rows.column(OP).to_pylist(), rows.column("id").to_pylist(), strict=True)
        seen.update(key for operation, key in operations if operation == "c")
    return [key for key, count in seen.items() if count > 1]
