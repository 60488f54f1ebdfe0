"""A transactional producer: everything in one Kafka transaction, or nothing.

It aborts nothing. A transaction that cannot be finished is abandoned together with the producer; the next process to
open the log takes the transactional id over, and the brokers end the open transaction, one way or the other, before
they answer. So there is one way to start, and no state of the client library (an abort before anything was sent is a
fatal error in some) that must be repaired.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from cdcflow.errors import OutcomeUnknown, SinkUnavailable
from cdcflow.sinks.kafka.failures import ErrorCallback, Fenced, is_fenced, map_error, refused_option
from cdcflow.sinks.kafka.topics import Topics

TRANSACTION_TIMEOUT_MS = 600_000
"""How long the brokers keep a transaction open whose producer is gone.

Readers wait that long unless the log is opened earlier. Sending a transaction of the source takes less than this.
"""
QUEUED_KBYTES_MAX = 32 << 10
CONNECTED_WITHIN_S = 1.0
ANSWERED_WITHIN_S = 0.05
"""How long to wait for the right to write before finding out whether the brokers have refused it for now."""

OnDelivery = Callable[[KafkaError | None, Message], None]


class Sender:
    """A producer for a log's topics, which has the exclusive right to write them after `fence`. Used by one thread at
    a time.

    It connects in the background once it is created. If `fence` must be fast, create the sender some time before.
    """

    def __init__(self, topics: Topics) -> None:
        self._attempted = f"writing the log in topic {topics.name}"
        self._opening = f"opening the log in topic {topics.name}"
        self._errors = ErrorCallback()
        self._topic = topics.name
        self._wait_s = topics.wait_s
        settings: dict[str, Any] = {
            "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS,
            "linger.ms": 1,
            "queue.buffering.max.kbytes": QUEUED_KBYTES_MAX,
            "queue.buffering.max.messages": 1_000_000,
            "message.max.bytes": max(1_000_000, topics.message_bytes + 4096),
            **topics.client(self._errors, **{"transactional.id": topics.transactional_id, "enable.idempotence": True}),
        }
        self._settings = settings
        self._producer = self._new_producer()

    def fence(self) -> None:
        """Take the exclusive right from its previous holder, whose open transaction the brokers end.

        Raises:
            ConfigurationError: the brokers refuse.
            SinkUnavailable: they do not answer.
        """
        until = time.monotonic() + self._wait_s
        while not self._take_right(until):
            # The brokers end the open transaction of a killed writer within milliseconds. The library tries again
            # after half a second, a second producer at once. The first one has got its answer: it cannot fence that.
            self.leave()
            self._producer = self._new_producer()

    def _new_producer(self) -> Producer:
        try:
            return Producer(self._settings)
        except KafkaException as error:
            raise refused_option(error, self._opening) from None

    def _take_right(self, until: float) -> bool:
        """Wait for the right. Return False if the brokers must first end an open transaction of its previous holder."""
        # Without a connection the library waits half a second before it tries again.
        with contextlib.suppress(KafkaException):
            self._producer.list_topics(self._topic, timeout=min(CONNECTED_WITHIN_S, self._wait_s))
        while True:
            try:
                self._producer.init_transactions(min(ANSWERED_WITHIN_S, self._wait_s))
            except KafkaException as error:
                about: KafkaError = error.args[0]
                # A timeout is retriable, and has the code of the brokers' latest answer. The next call continues it.
                if not about.retriable() or time.monotonic() > until:
                    raise self._refusal(error) from None
                if about.code() == KafkaError.CONCURRENT_TRANSACTIONS:
                    return False
            else:
                return True

    def _refusal(self, error: KafkaException) -> Exception:
        with contextlib.suppress(KafkaException):
            self._producer.poll(0)
        return map_error(error, self._opening, self._errors)

    def begin(self) -> None:
        """Begin a transaction."""
        with self._errors_translated():
            self._producer.begin_transaction()

    def put(self, topic: str, key: bytes, value: bytes | None, on_delivery: OnDelivery | None = None) -> None:
        """Send one more record. Waits while the brokers are slower than cdcflow.

        Raises:
            SinkUnavailable: they accept nothing at all.
        """
        left, moved_at = -1, time.monotonic()
        with self._errors_translated():
            while True:
                try:
                    self._producer.produce(topic, value, key, 0, on_delivery)
                except BufferError:
                    left, moved_at = self._check_progress(left, moved_at)
                    self._producer.poll(0.05)
                else:
                    return

    def settle(self) -> None:
        """Wait until the brokers have all records, however slow they are."""
        left, moved_at = -1, time.monotonic()
        with self._errors_translated():
            while self._producer.flush(0.2):
                left, moved_at = self._check_progress(left, moved_at)

    def commit(self) -> None:
        """Commit the transaction.

        Raises:
            SinkUnavailable: it was not committed, and will not be.
            OutcomeUnknown: it is unknown until the log is opened the next time.
        """
        self.settle()
        try:
            self._producer.commit_transaction(self._wait_s)
        except KafkaException as error:
            about: KafkaError = error.args[0]
            failed = self._error_from(error)
            if isinstance(failed, SinkUnavailable) and not about.txn_requires_abort():
                text = f"{self._attempted}: it is unknown whether it was committed ({about.str()})"
                raise OutcomeUnknown(text) from None
            raise failed from None

    def leave(self) -> None:
        """Drop the records that were not sent, and the open transaction.

        This also drops a commit that was requested and not answered: the library keeps requesting it as long as the
        producer exists.
        """
        if self._producer is not None:
            with contextlib.suppress(KafkaException):
                self._producer.purge()
            self._producer = None  # type: ignore[assignment]  # not used after this

    def _check_progress(self, left: int, moved_at: float) -> tuple[int, float]:
        """Return how much is left to be sent and since when; raise SinkUnavailable if that has been the same for too
        long."""
        now, count = time.monotonic(), len(self._producer)
        if count != left:
            return count, now
        if now - moved_at > self._wait_s:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT, f"they accepted nothing for {self._wait_s:g} s"))
        return left, moved_at

    @contextlib.contextmanager
    def _errors_translated(self) -> Iterator[None]:
        try:
            yield
        except KafkaException as error:
            raise self._error_from(error) from None

    def _error_from(self, error: KafkaException) -> Exception:
        with contextlib.suppress(KafkaException):
            self._producer.poll(0)  # errors that were not reported yet
        about: KafkaError = error.args[0]
        if is_fenced(about):
            return Fenced(about.str())
        return map_error(error, self._attempted, self._errors)
