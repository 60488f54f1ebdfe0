"""The topics of a log, and reading what is committed in them. The room of confluent-kafka."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from cdcflow.errors import CdcflowError, ConfigurationError, InvariantViolated, OutcomeUnknown, SinkUnavailable
from cdcflow.sinks.kafka.records import Message

WAIT_S = 30.0
TAIL = 1000

_DENIED = frozenset(
    (
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.SASL_AUTHENTICATION_FAILED,
        KafkaError._AUTHENTICATION,
    )
)
_FENCED = frozenset((KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH))
# Only closed segments are compacted: small ones keep short what is read at a start.
_COMPACTED = {"cleanup.policy": "compact", "segment.bytes": str(16 << 20), "min.cleanable.dirty.ratio": "0.1"}
_GONE = frozenset((KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION))


@dataclass(frozen=True, slots=True)
class Topics:
    """Where a log in Kafka is: its own topic, and one beside it for its checkpoint.

    `options` are librdkafka's own settings (security, timeouts). `message_bytes` is how much of a frame one record
    holds at most: less than the broker's `message.max.bytes`. `replicas` counts the copies of topics that are made.
    """

    brokers: str
    name: str
    options: Mapping[str, str] = field(default_factory=dict)
    message_bytes: int = 900_000
    replicas: int = 1

    @property
    def state(self) -> str:
        return f"{self.name}.checkpoint"

    def client(self, **settings: str | int | bool) -> dict[str, str | int | bool]:
        """Settings for a client of the library."""
        return {"bootstrap.servers": self.brokers, "log_level": 0, **self.options, **settings}

    def make(self) -> bool:
        """Make the topics unless they are there. True: they were made just now.

        Raises:
            InvariantViolated: one of them is there without the other.
            SinkUnavailable, ConfigurationError: the brokers do not answer, or refuse.
        """
        admin = AdminClient(self.client())
        try:
            there = {self.name, self.state} & set(admin.list_topics(timeout=WAIT_S).topics)
            if len(there) == 2:
                return False
            if there:
                [gone] = {self.name, self.state} - there
                raise InvariantViolated(f"opening the log in Kafka: topic {gone} is gone, and {there.pop()} is there")
            kept = {"retention.ms": "-1", "retention.bytes": "-1"}
            made = [
                NewTopic(self.name, 1, self.replicas, config={"cleanup.policy": "delete", **kept}),
                NewTopic(self.state, 1, self.replicas, config=_COMPACTED),
            ]
            for future in admin.create_topics(made).values():
                future.result(WAIT_S)
        except KafkaException as error:
            raise named(error, f"opening the log in topic {self.name}") from None
        return True

    def reader(self, topic: str) -> Reader:
        return Reader(self, topic)


class Reader:
    """Reads the one partition of a topic, committed records only. A context manager. Used by one thread."""

    def __init__(self, topics: Topics, topic: str) -> None:
        self.topic = topic
        self._consumer = Consumer(
            topics.client(
                **{
                    "group.id": "cdcflow-readers-have-no-group",
                    "isolation.level": "read_committed",
                    "enable.auto.commit": False,
                    "auto.offset.reset": "error",
                    "enable.partition.eof": True,
                }
            )
        )

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *error: object) -> None:
        self._consumer.close()

    def bounds(self) -> tuple[int, int]:
        """The first offset that is there, and the one behind the last."""
        try:
            low, high = self._consumer.get_watermark_offsets(TopicPartition(self.topic, 0), timeout=WAIT_S)
        except KafkaException as error:
            raise named(error, f"reading topic {self.topic}") from None
        return int(low), int(high)

    def messages(self, begin: int) -> Iterator[Message]:
        """The committed records from an offset on, to the end of what is committed now."""
        try:
            self._consumer.assign([TopicPartition(self.topic, 0, begin)])
            while True:
                for found in self._consumer.consume(500, timeout=WAIT_S) or [None]:
                    if found is None:
                        raise SinkUnavailable(f"reading topic {self.topic}: no broker answered for {WAIT_S:g} s")
                    if (error := found.error()) is None:
                        yield Message(found.offset(), found.key() or b"", found.value() or b"")
                    elif error.code() == KafkaError._PARTITION_EOF:
                        return
                    else:
                        raise KafkaException(error)
        except KafkaException as error:
            raise named(error, f"reading topic {self.topic}") from None
        finally:
            self._consumer.unassign()


def named(error: KafkaException, attempted: str) -> CdcflowError:
    """What a refusal of the library or the brokers means."""
    about: KafkaError = error.args[0]
    said = f"{attempted}: {about.str()}"
    code = about.code()
    if code in _FENCED or (about.fatal() and "fenced" in about.str().lower()):
        return InvariantViolated(
            f"{attempted}: another process writes this log now, and the brokers refuse this one; stop it there first"
        )
    if code in _GONE:
        return InvariantViolated(f"{attempted}: the topic is gone ({about.str()})")
    if code in _DENIED:
        return ConfigurationError(said, remedy="check log.kafka.options (security) and the rights of that user")
    if code == KafkaError.MSG_SIZE_TOO_LARGE:
        return ConfigurationError(
            said, remedy="set log.kafka.message_bytes below the topic's max.message.bytes, or raise that"
        )
    if code in (KafkaError._TIMED_OUT, KafkaError._STATE, KafkaError.REQUEST_TIMED_OUT):
        return OutcomeUnknown(said)
    return SinkUnavailable(said)


__all__ = ["Reader", "Topics", "named"]
