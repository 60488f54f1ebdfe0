"""The records of a lease in Kafka: a compacted topic, which one transactional producer at a time may write.

Beginning a producer fences the previous one. So a process that begins one, finds the latest record unchanged and
commits the next one knows that no other process has committed any in between.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace

from confluent_kafka.cimpl import NewTopic

from cdcflow.errors import OutcomeUnknown, SinkUnavailable
from cdcflow.sinks.kafka.failures import Fenced
from cdcflow.sinks.kafka.producer import Sender
from cdcflow.sinks.kafka.topics import COMPACTED, Admin, PartitionReader, Topics

_KEY = b"lease"


class TopicRegister:
    """Implements `cdcflow.capture.ports.lease.Register`: the topic `<topic>.lease`, created if it does not exist."""

    def __init__(self, log: Topics, wait_s: float) -> None:
        self._topics = replace(log, name=f"{log.name}.lease", wait_s=wait_s)
        self._sender: Sender | None = None
        self._prepared: Sender | None = None
        """A sender that is connected in advance, while another process holds the lease, so that `add` need not wait
        for that."""
        self._reader: PartitionReader | None = None
        self._number = 0
        self._record: tuple[int, bytes] | None = None
        self._read_until = 0

    def latest(self) -> tuple[int, bytes] | None:
        try:
            return self._latest()
        except SinkUnavailable:
            # The library counts by the time of day: a client whose clock was set back answers nothing for that long.
            self.close()
            raise

    def _latest(self) -> tuple[int, bytes] | None:
        if self._reader is not None and self._sender is None and self._prepared is None:  # read twice: by a standby
            self._prepared = Sender(self._topics)
        reader = self._open()
        low, high = reader.bounds()
        for message in reader.messages(max(low, self._read_until), high):
            number, _, content = message.value.partition(b" ")
            self._record = int(number), content
        self._read_until = high
        return self._record

    def add(self, number: int, content: bytes) -> bool:
        try:
            if self._sender is None or number != self._number + 1:
                self._fence()
                latest = self.latest()
                if (0 if latest is None else latest[0]) != number - 1:
                    return False
            self._send(number, content)
        except Fenced:
            self._leave()
            return False
        except (OutcomeUnknown, SinkUnavailable):
            self._leave()
            raise
        self._number = number
        self._record = number, content  # readers may not see it yet
        return True

    def close(self) -> None:
        self._leave()
        prepared, self._prepared = self._prepared, None
        if prepared is not None:
            prepared.leave()
        reader, self._reader, self._read_until, self._record = self._reader, None, 0, None
        if reader is not None:
            reader.__exit__()

    def _send(self, number: int, content: bytes) -> None:
        assert self._sender is not None  # noqa: S101 - see `add`
        self._sender.begin()
        self._sender.put(self._topics.name, _KEY, f"{number} ".encode() + content)
        self._sender.commit()

    def _fence(self) -> None:
        self._leave()
        sender, self._prepared = self._prepared or Sender(self._topics), None
        sender.fence()
        self._sender = sender

    def _leave(self) -> None:
        sender, self._sender = self._sender, None
        if sender is not None:
            with contextlib.suppress(Fenced):
                sender.leave()

    def _open(self) -> PartitionReader:
        if self._reader is None:
            self._create()
            self._reader = self._topics.reader(self._topics.name)
        return self._reader

    def _create(self) -> None:
        admin = Admin(self._topics, f"opening the lease in topic {self._topics.name}")
        if self._topics.name not in admin.partitions():
            admin.make([NewTopic(self._topics.name, 1, self._topics.replicas or -1, config=COMPACTED)])
            admin.wait_for({self._topics.name})
