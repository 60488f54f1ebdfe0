"""The topics of a log: creates and checks them, and reads the committed records in them."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import ConfigResource
from confluent_kafka.admin._listoffsets import OffsetSpec
from confluent_kafka.admin._metadata import ClusterMetadata, TopicMetadata
from confluent_kafka.cimpl import NewTopic

from cdcflow.errors import InvariantViolated, SinkUnavailable
from cdcflow.log.format.records import Message
from cdcflow.sinks.kafka.failures import GONE, ErrorCallback, is_missing, is_moving, map_error, refused_option

CLEANED = "cleanup.policy"
NEWS_S = 3.0
"""How long a topic may seem to be missing because another broker created it and this one has not learned of it. A
topic that is missing for longer does not exist."""
_FOREVER = {CLEANED: "delete", "retention.ms": "-1", "retention.bytes": "-1"}
# Only closed segments are compacted: small ones keep short what is read at a start.
COMPACTED = {CLEANED: "compact", "segment.bytes": str(16 << 20), "min.cleanable.dirty.ratio": "0.1"}


# The library's own log would go to stderr. Its errors contain the same information.
_UNHEARD = logging.getLogger("cdcflow.sinks.kafka.library")
_UNHEARD.propagate = False
_UNHEARD.addHandler(logging.NullHandler())


@dataclass(frozen=True, slots=True)
class Topics:
    """The place of a log in Kafka: its own topic, and a second one for its state.

    `options` are the client library's own settings (security, timeouts), secrets in them resolved. `message_bytes` is
    how much of a frame one record holds at most: less than the topic's `max.message.bytes`. `replicas` counts the
    copies of newly created topics (None: the brokers' default). After `wait_s` without an answer brokers count as
    unavailable.
    """

    brokers: str
    name: str
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    message_bytes: int = 900_000
    replicas: int | None = None
    wait_s: float = 30.0

    @property
    def state(self) -> str:
        return f"{self.name}.checkpoint"

    @property
    def transactional_id(self) -> str:
        return f"cdcflow/{self.name}"

    def client(self, errors: ErrorCallback, **settings: Any) -> dict[str, Any]:  # Any: as the library types them
        """Settings for a client of the library."""
        ours = {"bootstrap.servers": self.brokers, "error_cb": errors, "client.id": "cdcflow", "logger": _UNHEARD}
        return {"reconnect.backoff.max.ms": 2000, **self.options, **ours, **settings}

    def make(self, admin: Admin) -> None:
        """Create the topics unless they exist.

        Raises:
            ConfigurationError: the brokers refuse.
            InvariantViolated: one of them exists with something in it, and the other does not.
            SinkUnavailable: the brokers do not answer.
        """
        attempted = f"opening the log in topic {self.name}"
        there = admin.partitions()
        missing = {self.name, self.state} - there.keys()
        if len(missing) == 1:
            self._check_empty(attempted, *missing)
        if missing:
            kinds = {self.name: _FOREVER, self.state: COMPACTED}
            admin.make([NewTopic(t, 1, self.replicas or -1, config=kinds[t]) for t in sorted(missing)])
            admin.wait_for(missing)

    def _check_empty(self, attempted: str, missing: str) -> None:
        # The process that created them may have died between the two. Otherwise the missing one had the state or the
        # rows.
        [there] = {self.name, self.state} - {missing}
        with self.reader(there) as reader:
            if reader.bounds()[1] > 0:
                raise InvariantViolated(
                    f"{attempted}: topic {missing} is gone, but topic {there} exists",
                    remedy=GONE,
                    runbook="topic-gone",
                )

    def reader(self, topic: str) -> PartitionReader:
        return PartitionReader(self, topic)

    def wait_until_shown(self, admin: Admin | None = None) -> None:
        """Wait until readers see all that was committed when this was called. For a writer between two transactions.

        A commit is certain before its marks are in the topics; the brokers write those afterwards.

        Raises:
            SinkUnavailable: there is still a transaction open, or the brokers do not answer.
        """
        admin = admin or Admin(self, f"reading topic {self.name}")
        ends = admin.ends(committed=False)
        deadline = time.monotonic() + self.wait_s
        while any(end < ends[topic] for topic, end in admin.ends(committed=True).items()):
            if time.monotonic() > deadline:
                raise SinkUnavailable(f"reading topic {self.name}: committed records do not become visible")
            time.sleep(0.005)


class Admin:
    """Queries brokers about topics. Used by one thread."""

    def __init__(self, topics: Topics, attempted: str) -> None:
        self._topics = topics
        self._attempted = attempted
        self._wait_s = topics.wait_s
        self._errors = ErrorCallback()
        try:
            self._client = AdminClient(topics.client(self._errors))
        except KafkaException as error:
            raise refused_option(error, attempted) from None

    def partitions(self) -> dict[str, int]:
        """How many partitions each existing topic of the log has."""
        topics = (self._topics.name, self._topics.state)
        found = self._all_topics()
        return {t: len(found[t].partitions) for t in topics if t in found and found[t].error is None}

    def partitions_of_both(self) -> dict[str, int]:
        """Return the same as `partitions` for topics that exist, once the broker that answers has learned of both.

        Raises:
            SinkUnavailable: it has not learned of them in time.
        """
        deadline = time.monotonic() + self._wait_s
        while len(found := self.partitions()) < 2:
            if time.monotonic() > deadline:
                raise SinkUnavailable(f"{self._attempted}: the brokers do not show the topics")
            time.sleep(0.05)
        return found

    def settings(self, *topics: str) -> dict[str, dict[str, str]]:
        """The settings of each topic."""
        asked = {topic: ConfigResource(ConfigResource.Type.TOPIC, topic) for topic in topics}
        try:
            answers = self._client.describe_configs(list(asked.values()), request_timeout=self._wait_s)
            found = {topic: answers[resource].result(self._wait_s) for topic, resource in asked.items()}
        except KafkaException as error:
            raise map_error(error, self._attempted, self._errors) from None
        return {
            topic: {name: entry.value for name, entry in entries.items() if entry.value is not None}
            for topic, entries in found.items()
        }

    def replicas(self) -> dict[str, int]:
        """How many copies there are of each of the log's topics."""
        found = self._all_topics()
        topics = (self._topics.name, self._topics.state)
        return {t: len(found[t].partitions[0].replicas) for t in topics if t in found and found[t].partitions}

    def make(self, topics: list[NewTopic]) -> None:
        try:
            for future in self._client.create_topics(topics, operation_timeout=self._wait_s).values():
                future.result(self._wait_s)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise map_error(error, f"{self._attempted}: creating its topics", self._errors) from None

    def brokers(self) -> int:
        """The number of brokers, as known to the one that answers."""
        return len(self._metadata().brokers)

    def _all_topics(self) -> dict[str, TopicMetadata]:
        """Return what the brokers report about every topic, keyed by topic."""
        return self._metadata().topics

    def _metadata(self) -> ClusterMetadata:
        """Query the brokers, in steps of a second: a client that the brokers refuse learns that only between two
        steps, and must not wait longer."""
        deadline = time.monotonic() + self._wait_s
        while True:
            try:
                return self._client.list_topics(timeout=min(1.0, self._wait_s))
            except KafkaException as error:
                self._client.poll(0)
                if self._errors.refused is not None or time.monotonic() > deadline:
                    raise map_error(error, self._attempted, self._errors) from None

    def ends(self, *, committed: bool) -> dict[str, int]:
        """The offset after the last record of each of the log's topics, or after the last committed one."""
        isolation = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED
        latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]  # the library's
        asked = {TopicPartition(topic, 0): latest for topic in (self._topics.name, self._topics.state)}
        try:
            found = self._client.list_offsets(asked, isolation_level=isolation, request_timeout=self._wait_s)
            return {at.topic: int(future.result(self._wait_s).offset) for at, future in found.items()}
        except KafkaException as error:
            raise map_error(error, self._attempted, self._errors) from None

    def wait_for(self, topics: set[str]) -> None:
        """Wait until the brokers know newly created topics."""
        deadline = time.monotonic() + self._wait_s
        while not topics <= {
            t for t, at in self._all_topics().items() if at.partitions and at.partitions[0].leader >= 0
        }:
            if time.monotonic() > deadline:
                raise SinkUnavailable(f"{self._attempted}: the brokers do not show the topics that they created")
            time.sleep(0.05)


class PartitionReader:
    """Reads the one partition of a topic, committed records only. A context manager. Used by one thread."""

    def __init__(self, topics: Topics, topic: str) -> None:
        self.topic = topic
        self._closed = False
        self._latest: object = None
        self._wait_s = topics.wait_s
        self._errors = ErrorCallback()
        try:
            self._consumer = Consumer(
                topics.client(
                    self._errors,
                    **{
                        "group.id": "cdcflow-readers-have-no-group",
                        "isolation.level": "read_committed",
                        "enable.auto.commit": False,
                        "auto.offset.reset": "error",
                        "enable.partition.eof": True,
                        "fetch.wait.max.ms": 20,
                        "queued.max.messages.kbytes": 16 << 10,
                    },
                )
            )
        except KafkaException as error:
            raise refused_option(error, f"reading topic {topic}") from None

    def __enter__(self) -> PartitionReader:
        return self

    def __exit__(self, *error: object) -> None:
        self._closed = True
        self._consumer.close()

    def bounds(self) -> tuple[int, int]:
        """The first available offset, and the one after the last committed record."""
        began = time.monotonic()
        while True:
            try:
                low, high = self._consumer.get_watermark_offsets(TopicPartition(self.topic, 0), timeout=self._wait_s)
            except KafkaException as error:
                self._consumer.poll(0)
                about = error.args[0]
                patience = NEWS_S if is_missing(about) else self._wait_s if is_moving(about) else 0.0
                if time.monotonic() - began >= patience:
                    raise map_error(error, f"reading topic {self.topic}", self._errors) from None
                time.sleep(0.1)
            else:
                return int(low), int(high)

    def messages(self, begin: int, end: int | None = None) -> Iterator[Message]:
        """The committed records from offset `begin` to `end` (exclusive; None: the end of what is committed now).

        That end is queried first: a new leader may for a short time serve less than was committed, and reports that
        only in answer to this query.
        """
        end = self.bounds()[1] if end is None else end
        if begin >= end:
            return
        self._latest = this = object()
        try:
            self._consumer.assign([TopicPartition(self.topic, 0, begin)])
            yield from self._until(end)
        except KafkaException as error:
            raise map_error(error, f"reading topic {self.topic}", self._errors) from None
        finally:
            # A caller that stopped in the middle may release this generator only after the reader, or while the next
            # one reads.
            if not self._closed and self._latest is this:
                self._consumer.unassign()

    def _until(self, end: int) -> Iterator[Message]:
        heard_at = time.monotonic()
        while True:
            first = self._consumer.poll(1.0)
            if first is None:
                if time.monotonic() - heard_at > self._wait_s:
                    raise KafkaException(KafkaError(KafkaError._TIMED_OUT, f"nothing arrived for {self._wait_s:g} s"))
                continue
            for found in (first, *self._consumer.consume(500, timeout=0)):
                offset, error = found.offset(), found.error()
                if error is None:
                    heard_at = time.monotonic()
                    if offset is None or offset >= end:
                        return
                    yield Message(offset, found.key() or b"", found.value() or b"")
                elif error.code() != KafkaError._PARTITION_EOF:
                    raise KafkaException(error)
                elif offset is not None and offset >= end:
                    return
                elif time.monotonic() - heard_at > self._wait_s:
                    raise KafkaException(KafkaError(KafkaError._TIMED_OUT, f"it ends at {offset}, not at {end}"))
