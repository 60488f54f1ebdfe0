"""What is published is in the topics once and in order, whatever happens to the publisher."""

from __future__ import annotations

import itertools
import json
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from tests.servers.kafka import KafkaBroker
from tests.support.kafka.topics import committed
from tests.support.kill import publisher as killable_publisher
from tests.support.polling import wait_for

from cdcflow import wiring
from cdcflow.config import Config
from cdcflow.errors import ConfigurationError, InvariantViolated
from cdcflow.model.position import SourceIdentity
from cdcflow.publish.envelope import topic_name
from cdcflow.publish.position import Published
from cdcflow.publish.producer import Cluster, TableProducer
from cdcflow.testing.sinks import ORDERS, PRODUCTS, Writer, changes, transactions

IDENTITY = SourceIdentity("postgres", "7301", "shop", "1")
PRODUCTS_TOPIC = topic_name(PRODUCTS.id.schema, PRODUCTS.id.name)
_numbers = itertools.count(1)
_ids = itertools.count(1)


class Shop:
    """A log with orders and products, and where it is published to."""

    def __init__(self, folder: Path, broker: KafkaBroker, *, log_in_kafka: bool = False, **kafka: Any) -> None:
        self.prefix = f"shop{next(_numbers)}"
        self.address = broker.address
        self.orders: list[int] = []
        self.products: list[int] = []
        in_kafka = {"kafka": {"brokers": broker.address, "topic": f"{self.prefix}-log", "work": str(folder)}}
        settings = {
            "source": {"kind": "postgres", "url": "postgresql://nobody@127.0.0.1:1/none"},
            "log": in_kafka if log_in_kafka else {"path": str(folder / "log")},
            "publish": {
                "kafka": {"brokers": broker.address, "topic_prefix": self.prefix, "group_rows_max": 50, **kafka}
            },
        }
        self.file = folder / "cdcflow.yaml"
        self.file.write_text(json.dumps(settings))  # JSON is YAML
        self.config = Config.model_validate(settings)
        self._log = wiring.open_log(self.config, IDENTITY)
        self._writer = Writer.of(self._log)

    def seal(self) -> None:
        """Begin a new part of the log."""
        self._log.roll()

    def sell(self, transactions_count: int = 1, rows: int = 3) -> None:
        """Commit transactions of orders and products."""
        for _ in range(transactions_count):
            ids = list(itertools.islice(_ids, rows))
            self.orders += ids
            self.products += ids
            sold = changes(ORDERS, [{"id": i} for i in ids], range(0, 2 * rows, 2))
            made = changes(PRODUCTS, [{"id": i} for i in ids], range(1, 2 * rows, 2))
            self._writer.append(transactions([ids[0]], [2 * rows], sold, made))
            self._writer.cut()
        self._log.sync()

    def close(self) -> None:
        self._log.close()

    def publish(self) -> None:
        wiring.publisher(self.config, lambda event, fields: None).run(once=True)

    def found(self, topic: str) -> list[int]:
        """The ids in a topic, in its order."""
        messages = committed(self.address, f"{self.prefix}.{topic}")
        return [json.loads(m.value)["after"]["id"] for m in messages if m.value is not None]

    def check(self) -> None:
        assert self.found("shop.orders") == self.orders
        assert self.found(PRODUCTS_TOPIC) == self.products


@pytest.fixture
def shop(tmp_path: Path, broker: KafkaBroker) -> Shop:
    return Shop(tmp_path, broker)


def killed_at(shop: Shop, point: str, count: int) -> None:
    program = Path(killable_publisher.__file__)
    done = subprocess.run([sys.executable, program, shop.file, point, str(count)], check=False, timeout=120)
    assert done.returncode == -signal.SIGKILL


def test_publisher_killed_at_every_step_loses_and_doubles_nothing(shop: Shop) -> None:
    """A machine may go down at any step; a consumer of committed messages must see each change once."""
    shop.sell(150)
    for point in killable_publisher.POINTS:
        killed_at(shop, point, 2)
    shop.publish()
    shop.check()
    shop.sell(20)
    shop.publish()
    shop.check()


def test_a_log_in_kafka_is_published_as_one_in_files_is(tmp_path: Path, broker: KafkaBroker) -> None:
    """Where the log is stored is a matter of settings: what consumers get must not depend on it, nor on which process
    was killed.
    """
    shop = Shop(tmp_path, broker, log_in_kafka=True)
    for _ in range(3):
        shop.sell(20)
        shop.seal()
    for point in ("after messages", "after commit"):
        killed_at(shop, point, 2)
    shop.publish()
    shop.check()
    shop.sell(5)
    shop.publish()
    shop.check()
    shop.close()


@pytest.mark.long
def test_uncommitted_messages_of_a_killed_publisher_are_never_read(shop: Shop) -> None:
    """What was sent and not committed is in the topic's file, and must not be in what a consumer sees."""
    shop.sell(40)
    killed_at(shop, "before commit", 1)
    shop.publish()
    shop.check()


def test_a_stale_publisher_is_refused_by_the_brokers(shop: Shop) -> None:
    """Two publishers of one prefix, one of them stopped for a while: it must not add to what the other wrote."""
    shop.sell(10)
    cluster = Cluster(shop.address, shop.prefix)
    stale = TableProducer.open(cluster)
    stale.begin()
    shop.publish()
    with pytest.raises(InvariantViolated, match="another process publishes"):
        stale.commit(Published("stale", 1000))
    stale.close()
    shop.sell(10)
    shop.publish()
    shop.check()


def test_the_end_of_a_group_is_the_end_of_a_transaction(tmp_path: Path, broker: KafkaBroker) -> None:
    """A consumer that waits for whole transactions sees them whole: the brokers show a group at once or not at all."""
    shop = Shop(tmp_path, broker, group_rows_max=5)
    shop.sell(3, rows=20)
    killed_at(shop, "after commit", 2)
    assert shop.found("shop.orders") == shop.orders[:40]
    assert shop.found(PRODUCTS_TOPIC) == shop.products[:40]


def test_topics_of_another_log_are_not_continued(tmp_path: Path, broker: KafkaBroker) -> None:
    """A recreated log begins at offset 1 again: continuing at the old position would skip its rows."""
    first, second = (tmp_path / name for name in ("first", "second"))
    for folder in (first, second):
        folder.mkdir()
    shop = Shop(first, broker)
    shop.sell()
    shop.publish()
    other = Shop(second, broker)
    other.sell()
    settings = other.config.model_dump(mode="json", exclude_none=True)
    settings["publish"]["kafka"]["topic_prefix"] = shop.prefix
    with pytest.raises(ConfigurationError, match="another log"):
        wiring.publisher(Config.model_validate(settings)).run(once=True)


def test_log_restored_to_an_older_state_is_refused(tmp_path: Path, broker: KafkaBroker) -> None:
    """Offsets that were published would be assigned to other rows, which would never be published."""
    shop = Shop(tmp_path, broker)
    shop.sell()
    shop.publish()
    producer = TableProducer.open(Cluster(shop.address, shop.prefix))
    assert producer.published is not None
    producer.begin()
    producer.commit(Published(producer.published.log_id, 10_000))
    producer.close()
    with pytest.raises(ConfigurationError, match="more than the log"):
        shop.publish()


def test_publishing_follows_the_log_until_it_is_stopped(shop: Shop) -> None:
    """The daemon publishes next to the capture: commits are published without a command."""
    publisher = wiring.publisher(shop.config, lambda event, fields: None)
    thread = threading.Thread(target=publisher.run)
    thread.start()
    try:
        for _ in range(5):
            shop.sell(3)
            time.sleep(0.05)
        wait_for(lambda: shop.found(PRODUCTS_TOPIC), lambda found: found == shop.products, "the products")
    finally:
        publisher.stop()
        thread.join(60)
    assert not thread.is_alive()
    shop.check()
