"""Brokers that die, move, stay silent or refuse: what was durable stays, and the reason is reported."""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest
from confluent_kafka import KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from tests.servers.kafka import KafkaBroker, KafkaCluster
from tests.servers.proxy import TcpProxy
from tests.support.polling import PATIENCE_S, wait_until

from cdcflow.capture.ports.log import Log
from cdcflow.errors import (
    CdcflowError,
    ConfigurationError,
    InvariantViolated,
    OutcomeUnknown,
    SinkUnavailable,
)
from cdcflow.model.position import Checkpoint, SourceIdentity
from cdcflow.sinks.kafka import producer
from cdcflow.sinks.kafka.doctor import doctor
from cdcflow.sinks.kafka.log import KafkaLog
from cdcflow.sinks.kafka.producer import Sender
from cdcflow.sinks.kafka.reader import KafkaReader
from cdcflow.sinks.kafka.topics import Admin, Topics
from cdcflow.testing.sinks import ORDERS, Writer, changes, orders, transactions

IDENTITY = SourceIdentity("postgres", "7301", "shop", "1")
pytestmark = pytest.mark.kafka
_numbers = itertools.count(1)
TRIED_AGAIN_S = 1.0
"""More than the half second after which the client library tries again."""


@pytest.fixture
def topics(broker: KafkaBroker) -> Topics:
    return Topics(broker.address, f"faults{next(_numbers)}", wait_s=10)


@pytest.fixture(scope="module")
def own_broker() -> Iterator[tuple[KafkaBroker, TcpProxy]]:
    """A broker of this module, which tests may kill, behind a proxy."""
    with TcpProxy() as proxy, KafkaBroker(advertised=proxy.port) as broker:
        proxy.target = broker.port
        yield broker, proxy


@pytest.fixture
def far(own_broker: tuple[KafkaBroker, TcpProxy]) -> Iterator[tuple[KafkaBroker, TcpProxy, Topics]]:
    broker, proxy = own_broker
    yield broker, proxy, Topics(f"127.0.0.1:{proxy.port}", f"far{next(_numbers)}", wait_s=5)
    proxy.bytes_per_s = None
    proxy.mend()


def opened(topics: Topics) -> Writer:
    return Writer.of(KafkaLog.open(topics, IDENTITY))


def ids(topics: Topics) -> list[int]:
    return [i for _, _, rows in KafkaReader(topics).read_rows() for i in rows.column("id").to_pylist()]


def make(topics: Topics, *made: NewTopic) -> None:
    """Create topics as another program would, and wait until they have leaders."""
    admin = AdminClient({"bootstrap.servers": topics.brokers})
    for future in admin.create_topics(list(made)).values():
        future.result()
    Admin(topics, "making topics").wait_for({topic.topic for topic in made})


def write_on(writer: Writer, first: int, patience_s: float = PATIENCE_S) -> None:
    """Transaction after transaction: a broker drops a deleted topic shortly after it has answered."""
    deadline = time.monotonic() + patience_s
    for transaction in itertools.count(first):
        writer.put(orders(transaction))
        assert time.monotonic() < deadline


def closed_without_a_word(log: Log) -> None:
    """The owner of a dead log closes it, as the pipeline does."""
    log.close()


def reopened(topics: Topics, patience_s: float = PATIENCE_S) -> Writer:
    """Opened again as the pipeline does it: until the brokers are available."""

    def writer() -> Writer | None:
        with contextlib.suppress(SinkUnavailable, OutcomeUnknown):
            return opened(topics)
        return None

    return wait_until(writer, "the brokers to be available", patience_s=patience_s)


# ── brokers ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_second_producer_of_an_opening_is_not_fenced_by_the_first(
    topics: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    """O07: a killed writer's open transaction has to end first, and a standby does not wait until the library tries
    again."""
    writer = opened(topics)
    writer.put(orders(1))
    killed = Sender(topics)
    killed.fence()
    killed.begin()
    killed.put(topics.name, b"", b"never committed")
    killed.settle()
    killed.leave()
    made = 0

    def count(settings: dict[str, object]) -> Producer:
        nonlocal made
        made += 1
        return Producer(settings)

    monkeypatch.setattr(producer, "Producer", count)
    monkeypatch.setattr(producer, "ANSWERED_WITHIN_S", 0.001)
    again = opened(topics)
    assert made > 1
    until = time.monotonic() + TRIED_AGAIN_S
    written = [1]
    while time.monotonic() < until:
        written.append(written[-1] + 1)
        again.put(orders(written[-1]))
    topics.wait_until_shown()
    assert ids(topics) == written


@pytest.mark.parametrize("code", [KafkaError.COORDINATOR_LOAD_IN_PROGRESS, KafkaError._TIMED_OUT], ids=str)
def test_broker_that_gives_the_right_to_write_later_is_waited_for(
    topics: Topics, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """O07: it has just become the coordinator, or is busy. A second producer would only take longer."""
    made: list[Producer] = []

    class Later(Producer):
        asked = 0

        def __init__(self, settings: dict[str, object]) -> None:
            super().__init__(settings)
            made.append(self)

        def init_transactions(self, *args: float) -> None:
            self.asked += 1
            if self.asked < 3:
                raise KafkaException(KafkaError(code, "not yet", False, True, False))
            super().init_transactions(*args)

    monkeypatch.setattr(producer, "Producer", Later)
    writer = opened(topics)
    assert len(made) == 1
    writer.put(orders(1))
    topics.wait_until_shown()
    assert ids(topics) == [1]


def test_broker_that_learns_of_new_topics_later_is_no_fault(topics: Topics, monkeypatch: pytest.MonkeyPatch) -> None:
    """L05: several brokers answer, and a topic that one of them has created is unknown to the others for a moment."""
    partitions, answers = Admin.partitions, 0

    def later(admin: Admin) -> dict[str, int]:
        nonlocal answers
        answers += 1
        return {} if answers < 4 else partitions(admin)

    monkeypatch.setattr(Admin, "partitions", later)
    writer = opened(topics)
    writer.put(orders(1))
    topics.wait_until_shown()
    assert ids(topics) == [1]


@pytest.mark.long
def test_broker_killed_in_a_transaction_loses_only_that_transaction(
    far: tuple[KafkaBroker, TcpProxy, Topics], monkeypatch: pytest.MonkeyPatch
) -> None:
    """L02, O07: records of a transaction that was never committed stay in the topic, and no reader may see them."""
    broker, _, topics = far
    writer = opened(topics)
    first = writer.put(orders(1, 2))
    settle = Sender.settle

    def killed(sender: Sender) -> None:
        settle(sender)
        broker.kill()
        sender.put(topics.name, b"", b"this one never arrives")
        settle(sender)

    monkeypatch.setattr(Sender, "settle", killed)
    with pytest.raises(SinkUnavailable):
        writer.put(orders(3))
    monkeypatch.undo()
    with pytest.raises(SinkUnavailable):
        writer.log.sync()
    closed_without_a_word(writer.log)
    broker.start()
    again = reopened(topics)
    assert again.checkpoint == first
    again.put(orders(3))
    topics.wait_until_shown()
    assert ids(topics) == [1, 2, 3]


@pytest.mark.long
def test_broker_killed_before_it_answers_a_commit_leaves_no_unverified_transaction(
    far: tuple[KafkaBroker, TcpProxy, Topics], monkeypatch: pytest.MonkeyPatch
) -> None:
    """K04: only the brokers know whether it was committed, and they are queried before anything is written."""
    broker, _, topics = far
    writer = opened(topics)
    first = writer.put(orders(1, 2))
    settle = Sender.settle

    def killed(sender: Sender) -> None:
        settle(sender)
        broker.kill()

    monkeypatch.setattr(Sender, "settle", killed)
    with pytest.raises(OutcomeUnknown):
        writer.put(orders(3))
    monkeypatch.undo()
    closed_without_a_word(writer.log)
    broker.start()
    again = reopened(topics)
    assert again.checkpoint in (first, writer.checkpoint)
    if again.checkpoint == first:
        again.put(orders(3))
    topics.wait_until_shown()
    assert ids(topics) == [1, 2, 3]


def test_commit_whose_answer_was_lost_is_found_in_the_log(
    far: tuple[KafkaBroker, TcpProxy, Topics], monkeypatch: pytest.MonkeyPatch
) -> None:
    """K04, K11: it landed. Writing those rows again would double them, so the log is read before anything else."""
    _, proxy, topics = far
    writer = opened(topics)
    writer.put(orders(1))
    settle = Sender.settle

    def deaf(sender: Sender) -> None:
        settle(sender)
        proxy.hold(replies_only=True)

    monkeypatch.setattr(Sender, "settle", deaf)
    with pytest.raises(OutcomeUnknown):
        writer.put(orders(2))
    monkeypatch.undo()
    proxy.mend()
    closed_without_a_word(writer.log)
    again = opened(topics)
    assert again.checkpoint == writer.checkpoint
    again.put(orders(3))
    topics.wait_until_shown()
    assert ids(topics) == [1, 2, 3]


@pytest.mark.parametrize("fault", [pytest.param("cut", marks=pytest.mark.long), "hold"])
def test_broken_or_silent_link_leaves_the_log_unchanged(far: tuple[KafkaBroker, TcpProxy, Topics], fault: str) -> None:
    """O07: a half-open link stays silent; the sync still ends, and nothing was acknowledged."""
    _, proxy, topics = far
    writer = opened(topics)
    first = writer.put(orders(1))
    getattr(proxy, fault)()
    with pytest.raises((SinkUnavailable, OutcomeUnknown)):
        writer.put(orders(2))
    assert writer.log.checkpoint == first
    proxy.mend()
    closed_without_a_word(writer.log)
    again = reopened(topics)
    assert again.checkpoint == first
    again.put(orders(2))
    topics.wait_until_shown()
    assert ids(topics) == [1, 2]


@pytest.mark.long
def test_leader_that_moves_costs_nothing() -> None:
    """K01: every cut that was acknowledged is on the brokers that are left, in order and once."""
    with KafkaCluster(3, {"min.insync.replicas": "2"}) as cluster:
        topics = Topics(cluster.address, "moved", replicas=3, wait_s=20)
        writer = opened(topics)
        for number in range(60):
            if number in (20, 40):
                cluster.leader("moved" if number == 20 else "__transaction_state").kill()
            try:
                writer.put(orders(number))
            except (SinkUnavailable, OutcomeUnknown):
                closed_without_a_word(writer.log)
                again = reopened(topics)
                if again.checkpoint.next_offset < number + 2:
                    again.put(orders(number))
                writer = again
            if number in (30,):
                for broker in cluster.brokers:
                    if not broker.is_running:
                        broker.start()
                        broker.wait_until_ready(3)
        topics.wait_until_shown()
        assert ids(topics) == list(range(60))
        assert KafkaReader(topics).check(deep=True).is_whole
        writer.log.close()


@pytest.mark.long
def test_slow_broker_holds_the_writer_up_and_fills_no_memory(
    far: tuple[KafkaBroker, TcpProxy, Topics],
) -> None:
    """L23: a transaction larger than memory waits on disk; what is not durable yet is not reported as durable."""
    _, proxy, topics = far
    writer = opened(topics)
    first = writer.put(orders(1))
    noise = np.random.default_rng(1)
    pieces = [
        ([changes(ORDERS, [{"id": 100 + n, "note": noise.bytes(1 << 20).hex()} for _ in range(2)])], None)
        for n in range(60)
    ]
    writer.append(writer.write_spool(9, pieces, [], rows=120))
    del pieces
    writer.cut()
    proxy.bytes_per_s = 40 << 20
    process = psutil.Process()
    before, most = process.memory_info().rss, 0
    done = threading.Event()

    def sync() -> None:
        writer.log.sync()
        done.set()

    thread = threading.Thread(target=sync)
    thread.start()
    seen: Checkpoint = writer.log.checkpoint
    while not done.wait(0.05):
        most = max(most, process.memory_info().rss)
        seen = writer.log.checkpoint
        assert thread.is_alive()
    assert seen == first
    assert most - before < 120 << 20, "250 MB were to be sent"
    assert writer.log.checkpoint == writer.checkpoint


# ── records and topics ──────────────────────────────────────────────────────────────────────────────────────


def test_value_of_a_hundred_megabytes_is_written_in_pieces(topics: Topics) -> None:
    """L23: a broker takes a megabyte at a time, and a database stores a gigabyte in one value."""
    writer = opened(topics)
    huge = np.random.default_rng(2).bytes(50_000_000).hex()
    rows = [{"id": 1, "note": huge}, {"id": 2, "note": "small"}]
    writer.put(transactions([5], [2], changes(ORDERS, rows)), orders(3))
    topics.wait_until_shown()
    found = [row for _, _, rows in KafkaReader(topics).read_rows() for row in rows.select(["id", "note"]).to_pylist()]
    assert [row["id"] for row in found] == [1, 2, 3]
    assert found[0]["note"] == huge


def test_record_that_the_topic_rejects_is_named(topics: Topics) -> None:
    """Found at the start where it can be; the setting is named, and its value."""
    small = NewTopic(topics.name, 1, 1, config={"max.message.bytes": "50000"})
    make(topics, small, NewTopic(topics.state, 1, 1, config={"cleanup.policy": "compact"}))
    with pytest.raises(ConfigurationError, match=r"max\.message\.bytes is 50000.*\n.*message_bytes to 49800"):
        opened(topics)


@pytest.mark.long
def test_deleted_topic_stops_the_writer_with_an_error_that_names_it(topics: Topics) -> None:
    """L05, K11: continuing in a new, empty topic would leave an unrequested hole in the log."""
    writer = opened(topics)
    writer.put(orders(1))
    admin = AdminClient({"bootstrap.servers": topics.brokers})
    for future in admin.delete_topics([topics.name]).values():
        future.result()
    with pytest.raises(InvariantViolated, match=f"(?s){topics.name}.*gone"):
        write_on(writer, first=2)
    closed_without_a_word(writer.log)
    with pytest.raises(InvariantViolated, match=f"topic {topics.name} is gone, but topic {topics.state} exists"):
        opened(topics)


def test_recreated_topic_is_not_taken_for_the_log(topics: Topics) -> None:
    """L05, L21: an empty topic with an existing position would lose everything between, unnoticed."""
    writer = opened(topics)
    writer.put(orders(1))
    writer.log.close()
    admin = AdminClient({"bootstrap.servers": topics.brokers})
    for future in admin.delete_topics([topics.name]).values():
        future.result()
    wait_until(lambda: topics.name not in admin.list_topics(timeout=PATIENCE_S).topics, "the topic to be gone")
    make(topics, NewTopic(topics.name, 1, 1))
    with pytest.raises(InvariantViolated, match="one of them was recreated"):
        opened(topics)


@pytest.mark.parametrize(
    ("topic", "partitions", "config", "expected"),
    [
        ("", 3, {}, "has 3 partitions"),
        ("", 1, {"cleanup.policy": "compact"}, "cleanup.policy is not delete"),
        (".checkpoint", 1, {"cleanup.policy": "delete"}, "cleanup.policy is not compact"),
    ],
)
def test_topic_that_no_log_can_be_in_is_refused(
    topics: Topics, topic: str, partitions: int, config: dict[str, str], expected: str
) -> None:
    """A topic that an operator created beforehand can break every promise: order, rows, or the position."""
    make(topics, NewTopic(f"{topics.name}{topic}", partitions, 1, config=config))
    with pytest.raises(ConfigurationError, match=expected) as caught:
        opened(topics)
    assert caught.value.remedy
    assert any(finding.level == "error" for finding in doctor(topics))


# ── writers ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_replaced_writer_is_refused_by_the_brokers_and_names_its_successor(topics: Topics) -> None:
    """L10, L11, P75: a suspended daemon wakes up after another daemon fenced it; nothing that it writes may count."""
    old = opened(topics)
    old.put(orders(1))
    new = opened(topics)
    new.put(orders(2))
    with pytest.raises(InvariantViolated, match=r"epoch 1, and epoch 2 has begun: process \d+ on .* took the log over"):
        old.put(orders(3))
    closed_without_a_word(old.log)
    new.put(orders(4))
    topics.wait_until_shown()
    assert ids(topics) == [1, 2, 4]


def test_timed_out_transaction_is_not_mistaken_for_a_second_writer(
    topics: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The brokers refuse both with the same error; the one must be retried, the other must stop."""
    hurried = Topics(topics.brokers, topics.name, {"transaction.timeout.ms": "1000"}, wait_s=10)
    writer = opened(hurried)
    first = writer.put(orders(1))
    settle = Sender.settle

    def late(sender: Sender) -> None:
        settle(sender)
        time.sleep(4)

    monkeypatch.setattr(Sender, "settle", late)
    monkeypatch.setattr("cdcflow.sinks.kafka.log.SUCCESSOR_S", 1.0)
    with pytest.raises(SinkUnavailable, match=r"(?s)no other process has opened the log.*transaction\.timeout\.ms"):
        writer.put(orders(2))
    monkeypatch.undo()
    closed_without_a_word(writer.log)
    again = opened(hurried)
    assert again.checkpoint == first
    again.put(orders(2))
    topics.wait_until_shown()
    assert ids(topics) == [1, 2]


def test_transaction_that_fails_before_anything_was_sent_leaves_nothing_open(
    topics: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    """K04: aborting at that point is a fatal error of the client library; so nothing is aborted, and the next producer
    fences it.
    """
    writer = opened(topics)
    first = writer.put(orders(1))

    def fails(*_: object) -> None:
        raise SinkUnavailable("planted")

    monkeypatch.setattr(Sender, "put", fails)
    with pytest.raises(SinkUnavailable, match="planted"):
        writer.put(orders(2))
    monkeypatch.undo()
    closed_without_a_word(writer.log)
    again = opened(topics)
    assert again.checkpoint == first
    again.put(orders(2))
    topics.wait_until_shown()
    assert ids(topics) == [1, 2]


def test_unreachable_brokers_are_named() -> None:
    """O07: the daemon keeps trying, and reports what it tries to reach."""
    with TcpProxy() as nobody:
        topics = Topics(f"127.0.0.1:{nobody.port}", "nowhere", wait_s=2)
        with pytest.raises(
            SinkUnavailable, match=r"(?s)opening the log in topic nowhere.*log\.kafka\.brokers"
        ) as caught:
            opened(topics)
        assert isinstance(caught.value, CdcflowError)


def test_unknown_option_is_named_and_its_value_is_not(broker: KafkaBroker) -> None:
    """S03: a value in the wrong place may be a secret."""
    for options in ({"no.such.option": "hunter2"}, {"security.protocol": "hunter2"}):
        with pytest.raises(ConfigurationError) as caught:
            opened(Topics(broker.address, "options", options))
        assert next(iter(options)) in str(caught.value)
        assert "hunter2" not in str(caught.value)


def test_expired_offsets_are_refused_with_an_error_that_names_the_first_one(topics: Topics) -> None:
    """L19: a reader of expired records gets an error with the first offset that exists."""
    writer = opened(topics)
    for number in (1, 2, 3):
        writer.put(orders(number))
        assert isinstance(writer.log, KafkaLog)
        writer.log.roll()
        writer.log.sync()
    writer.log.close()
    second = KafkaReader(topics).topic_ranges()[2].topic_offset
    admin = AdminClient({"bootstrap.servers": topics.brokers})
    for future in admin.delete_records([TopicPartition(topics.name, 0, second)]).values():
        future.result()
    again = opened(topics)
    again.put(orders(4))
    topics.wait_until_shown()
    with pytest.raises(CdcflowError, match="the first one left is 3"):
        ids(topics)
    left = [i for _, _, rows in KafkaReader(topics).read_rows(3) for i in rows.column("id").to_pylist()]
    assert left == [3, 4]
    assert KafkaReader(topics).check().is_whole


def test_spools_of_a_killed_writer_are_removed_by_the_next(topics: Topics, tmp_path: Path) -> None:
    """L17: the spool of a large transaction that a crash cut off would stay on the disk indefinitely."""
    killed = KafkaLog.open(topics, IDENTITY, scratch=tmp_path)
    killed.open_spool().write([changes(ORDERS, [{"id": 1}])], None)
    [left] = tmp_path.iterdir()
    again = KafkaLog.open(topics, IDENTITY, scratch=tmp_path)
    assert not left.exists()
    again.close()
    assert not list(tmp_path.iterdir())
