"""Write messages into Kafka, in transactions. With `registry`, the only module here that uses confluent-kafka.

The brokers give the transactional id to the latest producer that requests it; they refuse the previous one, and drop
the messages that it had not committed. So a commit with unknown outcome is decided before the position is read.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from cdcflow.errors import CdcflowError, ConfigurationError, InvariantViolated, OutcomeUnknown, SinkUnavailable
from cdcflow.publish.events import Messages
from cdcflow.publish.position import KEY, Published
from cdcflow.sinks.kafka.failures import is_fenced, is_missing, is_refused

WAIT_S = 30.0
LOOK_S = 10.0
TRANSACTION_TIMEOUT_MS = 600_000
UNCHANGED_HEADER = "cdcflow.unchanged"
_UNREACHED = frozenset((KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._RESOLVE))
_UNKNOWN = frozenset((KafkaError._TIMED_OUT, KafkaError._STATE, KafkaError.REQUEST_TIMED_OUT))


Setting = str | int | float | bool


@dataclass(frozen=True, slots=True)
class Cluster:
    """The brokers with the topics. `options` are librdkafka's own settings.

    Missing topics are created with `partitions`, `replicas` and `topic_options`.
    """

    brokers: str
    prefix: str
    options: Mapping[str, str] = field(default_factory=dict)
    partitions: int = 1
    replicas: int = 1
    topic_options: Mapping[str, str] = field(default_factory=dict)

    @property
    def position_topic(self) -> str:
        return f"{self.prefix}.cdcflow-position"

    @property
    def gap_topic(self) -> str:
        return f"{self.prefix}.cdcflow-gaps"

    def client(self, **settings: Setting) -> dict[str, Setting]:
        return {"bootstrap.servers": self.brokers, "log_level": 0, **self.options, **settings}


class TableProducer:
    """The only writer of a prefix's topics, from `open` until the next `open`."""

    def __init__(self, cluster: Cluster, producer: Producer, published: Published | None) -> None:
        self._cluster = cluster
        self._producer = producer
        self._known: set[str] = set()
        self._begun = False
        self._begun_at = 0.0
        self.timeout_ms = int(cluster.options.get("transaction.timeout.ms", TRANSACTION_TIMEOUT_MS))
        self.published = published

    @property
    def overdue(self) -> bool:
        """Whether the current transaction has been open longer than the brokers allow."""
        return self._begun and time.monotonic() - self._begun_at >= self.timeout_ms / 1000

    @classmethod
    def open(cls, cluster: Cluster) -> TableProducer:
        """Take the topics over, and read the published position.

        Raises:
            SinkUnavailable: the brokers do not answer.
            ConfigurationError: they refuse.
        """
        settings: dict[str, Setting] = {
            "transactional.id": f"cdcflow-publish/{cluster.prefix}",
            "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS,
            "enable.idempotence": True,
            # The same key goes to the same partition as from a Java producer.
            "partitioner": "murmur2_random",
            "linger.ms": 5,
            "compression.type": "lz4",
            "queue.buffering.max.messages": 1_000_000,
            "queue.buffering.max.kbytes": 128 << 10,
        }
        producer = Producer(cluster.client(**{**settings, **cluster.options}))
        with _naming(f"publishing under {cluster.prefix}"):
            made = cls(cluster, producer, None)
            made.make_topics([])
            producer.init_transactions(WAIT_S)
            made.published = _last_position(cluster)
        return made

    def make_topics(self, names: Collection[str]) -> None:
        """Create these topics, and the position's, if they do not exist."""
        wanted = {*names, self._cluster.position_topic} - self._known
        if not wanted:
            return
        with _naming("making topics"):
            admin = AdminClient(self._cluster.client())
            there = set(admin.list_topics(timeout=WAIT_S).topics)
            new = [self._new(name) for name in sorted(wanted - there)]
            for made in admin.create_topics(new).values() if new else ():
                made.result(WAIT_S)
        self._known |= wanted

    def _new(self, name: str) -> NewTopic:
        cluster = self._cluster
        if name in (cluster.position_topic, cluster.gap_topic):
            return NewTopic(name, 1, cluster.replicas, config={"cleanup.policy": "compact"})
        return NewTopic(name, cluster.partitions, cluster.replicas, config=dict(cluster.topic_options))

    def begin(self) -> None:
        with _naming("publishing"):
            self._producer.begin_transaction()
        self._begun, self._begun_at = True, time.monotonic()

    def send(self, messages: Messages) -> None:
        """Send messages in the transaction. Waits while the brokers are slower than cdcflow."""
        produce, topic = self._producer.produce, messages.topic
        (key_begin, key_end), (begin, end) = messages.key_frame, messages.value_frame
        keys, tombstones, unchanged = messages.keys, messages.tombstones, messages.unchanged
        with _naming(f"publishing to topic {topic}"):
            for number, value in enumerate(messages.values):
                plain = None if keys is None else keys[number]
                key = None if plain is None else key_begin + plain + key_end
                if value is None:
                    self._put(topic, None, key)
                elif number in unchanged:
                    self._put(topic, begin + value + end, key, unchanged[number])
                else:
                    try:
                        produce(topic, begin + value + end, key)
                    except BufferError:
                        self._put(topic, begin + value + end, key)
                if tombstones is not None and tombstones[number]:
                    self._put(topic, None, key)
            self._producer.poll(0)

    def _put(self, topic: str, value: bytes | None, key: bytes | None, unchanged: bytes | None = None) -> None:
        headers: list[tuple[str, str | bytes | None]] | None = None
        if unchanged is not None:
            headers = [(UNCHANGED_HEADER, unchanged)]
        while True:
            try:
                self._producer.produce(topic, value, key, headers=headers)
                return
            except BufferError:
                self._producer.poll(0.1)

    def commit(self, published: Published) -> None:
        """Make everything since `begin` visible together with this position.

        Raises:
            SinkUnavailable, OutcomeUnknown: open again, and continue at the position that the topics then have.
            InvariantViolated: another process has taken the topics over.
        """
        self._put(self._cluster.position_topic, published.to_json(), KEY)
        with _naming("committing what was published"):
            self._producer.commit_transaction(self.timeout_ms / 1000)
        self._begun = False
        self.published = published

    def close(self) -> None:
        """Drop the messages that were not committed. Never raises: the next process takes the topics over anyway."""
        if self._begun:
            with contextlib.suppress(KafkaException):
                # Aborting before anything was sent is a fatal error of the library with some brokers.
                self._producer.flush(5)
                self._producer.abort_transaction(5)
        self._producer.purge()


def looked_at(cluster: Cluster) -> Published | None:
    """Return the published position, read without becoming the writer; `None` if publishing has not begun.

    Raises:
        SinkUnavailable: the brokers do not answer.
        ConfigurationError: they refuse.
    """
    with _naming(f"publishing under {cluster.prefix}"):
        there = AdminClient(cluster.client()).list_topics(timeout=LOOK_S).topics
        return _last_position(cluster) if cluster.position_topic in there else None


def _last_position(cluster: Cluster) -> Published | None:
    """Return the latest committed position, None if there is no position."""
    settings: dict[str, Setting] = {
        "group.id": "cdcflow-readers-have-no-group",
        "isolation.level": "read_committed",
        "enable.auto.commit": False,
        "enable.partition.eof": True,
    }
    consumer = Consumer(cluster.client(**settings))
    found: Published | None = None
    try:
        low, _ = consumer.get_watermark_offsets(TopicPartition(cluster.position_topic, 0), timeout=WAIT_S)
        consumer.assign([TopicPartition(cluster.position_topic, 0, low)])
        while True:
            message = consumer.poll(WAIT_S)
            if message is None:
                raise SinkUnavailable(
                    f"reading topic {cluster.position_topic}: no broker answered for {WAIT_S:g} s",
                    runbook="broker-unreachable",
                )
            if (error := message.error()) is None:
                found = Published.from_json(message.value() or b"", cluster.position_topic)
            elif error.code() == KafkaError._PARTITION_EOF:
                return found
            else:
                raise KafkaException(error)
    finally:
        consumer.close()


@contextlib.contextmanager
def _naming(attempted: str) -> Iterator[None]:
    try:
        yield
    except KafkaException as error:
        raise _translate_error(error, attempted) from None


def _translate_error(error: KafkaException, attempted: str) -> CdcflowError:
    """Translate an error of the library or the brokers."""
    about: KafkaError = error.args[0]
    code, said = about.code(), f"{attempted}: {about.str()}"
    if is_fenced(about):
        return InvariantViolated(
            f"{attempted}: another process publishes under this prefix now, and the brokers refuse this one",
            runbook="two-daemons",
        )
    if is_missing(about):
        return SinkUnavailable(f"{attempted}: a topic is gone; the next attempt creates it again")
    if is_refused(about):
        return ConfigurationError(
            said, remedy="check publish.kafka.options (security) and the rights of that user", runbook="broker-refuses"
        )
    if code in (KafkaError.MSG_SIZE_TOO_LARGE, KafkaError._BAD_MSG):
        return ConfigurationError(
            f"{attempted}: a message is larger than Kafka allows",
            remedy="raise message.max.bytes in publish.kafka.options, and max.message.bytes of the topic",
            runbook="message-too-large",
        )
    if code in _UNKNOWN:
        return OutcomeUnknown(said)
    if code in _UNREACHED:
        return SinkUnavailable(said, runbook="broker-unreachable")
    return SinkUnavailable(said)
